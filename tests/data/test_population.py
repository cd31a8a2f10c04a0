"""Populations too large to hold: samples are made on the first visit, the same every time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedrift import api
from fedrift.data.sources import synthetic
from fedrift.errors import InputError
from tests.support.product import Spec, datasets, prepare

TEXT = "synthetic:1,1,clients=40,seed=3"


def small_population(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "RESIDENT", 20)


def spec(**changes: object) -> Spec:
    base = {"data": TEXT, "partition": "natural", "model": "logistic", "rounds": 3, "workers": 0}
    return Spec.of({**base, "per_round": 5, "lr": 0.01, **changes})


def test_made_on_demand_is_what_is_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = datasets.load(TEXT)
    small_population(monkeypatch)
    lazy = datasets.load(TEXT).generated
    assert lazy is not None and whole.users is not None
    assert np.array_equal(lazy.sizes, np.bincount(whole.users))
    for client in (0, 7, 39):
        x, y = lazy.make(client)
        assert np.array_equal(x, whole.x[whole.users == client])
        assert np.array_equal(y, whole.y[whole.users == client])


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_a_run_does_not_care_when_samples_are_made(
    algorithm: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    whole = api.run_spec(spec(algorithm=algorithm))
    small_population(monkeypatch)
    monkeypatch.setattr(synthetic, "TESTED", 40)
    lazy = api.run_spec(spec(algorithm=algorithm), out=tmp_path / "run")
    assert torch.equal(whole.weights, lazy.weights) and whole.loss == lazy.loss
    assert api.run_spec(spec(algorithm=algorithm, workers=2)).fingerprint == lazy.fingerprint


@pytest.mark.parametrize("how", [{"partition": "iid"}, {"shift": "noise:0.5"}], ids=str)
def test_such_clients_are_divided_already(
    how: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_population(monkeypatch)
    with pytest.raises(InputError, match="made one by one"):
        prepare(spec(**how))


@pytest.mark.slow
def test_a_hundred_thousand_clients() -> None:
    run = api.run_spec(spec(data="synthetic:1,1,clients=100000", rounds=2, per_round=50))
    assert run.status == "done" and len(run.clients["sizes"]) == 100_000
