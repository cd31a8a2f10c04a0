"""A setting is declared once: the signature of `run`, its flags and its TOML key agree with it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedrift as fr
from fedrift import api
from fedrift.config.spec import (
    AXES,
    EXCLUSIVE,
    FIELDS,
    GROUPS,
    LOCAL_WORK,
    SETTINGS,
    Spec,
    replaced_by,
)
from fedrift.engine.objects import Objects
from fedrift.storage.run_record import load
from tests.support.problems import Net, blobs, small_run, uneven_clients

OF_NAMED_DATA = {"data", "data_dir", "partition", "alpha", "shift"}
OTHERWISE: dict[str, Any] = {  # what a call in Python writes in another way
    "algorithm": inspect.Parameter.empty,
    "model": inspect.Parameter.empty,
    "clients": inspect.Parameter.empty,
    "rounds": inspect.Parameter.empty,
    "batch_size": "default",
    "augment": None,
    "faults": None,
}


def test_the_signature_of_run_is_the_spec() -> None:
    parameters = inspect.signature(fr.run).parameters
    assert {*SETTINGS} - OF_NAMED_DATA <= {*parameters}
    usual = Spec()
    for name in SETTINGS.keys() - OF_NAMED_DATA:
        assert parameters[name].default == OTHERWISE.get(name, getattr(usual, name)), name
    own = {"on_round", "track", "analyse", "profile", "test", "metrics", "progress"}
    assert {*parameters} - {*SETTINGS} <= own | {"callbacks"}
    assert {*api.OBJECTS} < {*inspect.signature(Objects).parameters}


def test_lists_of_settings_are_read_from_their_declarations() -> None:
    assert {*FIELDS} == {*SETTINGS} == {*vars(Spec())}
    assert {one.group for one in SETTINGS.values()} == {*GROUPS}
    assert all(one.help.endswith(".") for one in SETTINGS.values())
    assert {"epochs", "steps", "batch_size", "lr", "momentum", "schedule"} <= {*LOCAL_WORK}
    fixed = "algorithm seed out workers backend data_dir device stack"
    assert {*FIELDS} - {*AXES} == {*fixed.split()}
    pairs = {("per_round", "fraction"), ("epochs", "steps"), ("participants", "per_round")}
    assert {*EXCLUSIVE} == pairs
    assert replaced_by(["steps"]) == {"epochs"}
    assert replaced_by(["per_round", "lr"]) == {"fraction", "participants"}
    assert replaced_by(["participants"]) == {"per_round", "rounds"}


def test_values_of_numpy_and_torch_are_taken_as_pythons_own() -> None:
    plain = small_run("fedavg", rounds=2, per_round=3, epochs=[1, 2, 1, 2, 1, 2, 1], momentum=0.5)
    same = small_run(
        "fedavg",
        rounds=np.int64(2),
        per_round=torch.tensor(3),
        epochs=np.array([1, 2, 1, 2, 1, 2, 1]),
        lr=np.float64(0.1),
        momentum=np.float32(0.5),
        dtype=torch.float32,
        device=torch.device("cpu"),
        seed=np.int32(0),
    )
    assert same.fingerprint == plain.fingerprint
    whole = small_run("fedavg", batch_size=None).fingerprint
    assert small_run("fedavg", batch_size="full").fingerprint == whole, "as in a TOML file"
    x, y = blobs(40)
    images, clients = x[:, :4].reshape(-1, 1, 2, 2), [(x[:, :4].reshape(-1, 1, 2, 2), y)]
    how: dict[str, Any] = {"model": "logistic", "rounds": 1, "workers": 0, "test": (images, y)}
    one = fr.run("fedavg", clients=clients, augment="flip", **how)
    assert one.fingerprint == fr.run("fedavg", clients=clients, augment=["flip"], **how).fingerprint


def test_a_run_in_python_writes_down_what_a_spec_can_hold(tmp_path: Path) -> None:
    small_run("fedavg", out=tmp_path / "a", weights="uniform", faults="dropout:0.1", clip=1)
    spec = load(tmp_path / "a").spec
    assert (spec.algorithm, spec.weights) == ("fedavg:weights=uniform", None)
    assert (spec.data, spec.model, spec.clients) == ("python", "python", 7)
    assert (spec.faults, spec.clip, spec.batch_size) == (("dropout:0.1",), 1.0, 16)


def test_what_is_missing_or_unknown_is_named() -> None:
    task: dict[str, Any] = {"model": Net, "clients": uneven_clients()}
    with pytest.raises(fr.InputError, match="rounds is missing"):
        api.task_of("fedavg", task)
    with pytest.raises(fr.InputError, match="unknown argument of compare 'partition'"):
        fr.compare(["fedavg"], partition="iid", rounds=1, **task)
