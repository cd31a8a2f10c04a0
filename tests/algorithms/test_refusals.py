"""What would be meaningless is refused before the first round, in words that name the option."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fedrift as fr
from fedrift.algorithms.fedcm import FedCM
from fedrift.algorithms.ghbm import GHBM
from fedrift.algorithms.mime import Mime
from fedrift.conform.problem import Place
from fedrift.core import SAM, Adam, Local, unit
from tests.support.product import Point, Scaffold, golden_trial, path, run_trial, uneven_quadratic

NO_MOMENTUM = (
    "scaffold",
    "scaffold:option=II",
    "fedgamma",
    "sam(scaffold)",
    "fedcm",
    "mofedsam",
    "ghbm",
    "localghbm",
    "fedhbm",
    "mime",
    "mimemom",
    "mimelite",
    "mimelitemom",
    "diloco",
    "diloco:inner=sgd",
    "swa(scaffold)",
    "wima(fedcm)",
    "serveradam(scaffold)",
)


@pytest.mark.parametrize("text", NO_MOMENTUM)
def test_local_momentum_is_refused(text: str) -> None:
    """Through the front door, before any round, naming what to change."""
    rounds: list[Any] = []
    with pytest.raises(fr.InputError, match="momentum"):
        fr.run(
            text,
            model=Point,
            loss=golden_trial().loss,
            clients=list(golden_trial().clients),
            rounds=2,
            momentum=0.9,
            workers=0,
            on_round=rounds.append,
        )
    assert rounds == []


@pytest.mark.parametrize(
    "text", ["fedavg", "fedprox", "fednova", "fedsam", "feddyn", "scaffold:option=I", "fedgf"]
)
def test_local_momentum_is_taken_where_it_has_a_meaning(text: str) -> None:
    trial = uneven_quadratic()
    with_momentum = path(text, trial.working(momentum=0.5))
    assert not torch.equal(with_momentum[-1], path(text, trial)[-1])


@pytest.mark.parametrize("kind", [Scaffold, FedCM, GHBM, Mime])
def test_an_adaptive_local_optimizer_is_refused(kind: Any) -> None:
    with pytest.raises(fr.InputError, match="momentum=0"):
        fr.run(
            kind(local=Local(optimizer=Adam())),
            model=Point,
            loss=golden_trial().loss,
            clients=list(golden_trial().clients),
            rounds=1,
        )


@pytest.mark.parametrize("repair", ["raw", "outside"])
def test_a_repair_admits_momentum(repair: str) -> None:
    """Both ways out of the division by rate × steps run; `raw` keeps the exact fixed point."""
    trial = golden_trial(rounds=150).working(momentum=0.5, lr=0.05)
    end = path(f"scaffold:momentum_repair={repair}", trial)[-1].tolist()
    assert end == pytest.approx((-0.2, 4 / 3), abs=1e-4 if repair == "raw" else 0.2)


@pytest.mark.parametrize("text", ["scaffold", "fedgamma", "feddyn", "fedspeed", "fedsmoo"])
def test_weights_by_samples_are_refused_where_the_rule_is_uniform(text: str) -> None:
    with pytest.raises(fr.InputError, match="weights=samples"):
        run_trial(f"{text}:weights=samples", uneven_quadratic())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scaffold:objective=samples", "all clients in every round"),
        ("feddyn:alpha=0", "above 0|> 0"),
        ("fedspeed:gamma=0", "> 0"),
        ("fedcm:alpha=0", "> 0"),
        ("fedgf:window=0", ">= 1"),
        ("fedgf:threshold=automatic", "auto"),
        ("sam(fedgf)", "gradient"),
        ("sam(fedsmoo)", "gradient"),
        ("sam(fedsam)", "gradient"),
        ("serveradam(feddyn)", "outer optimizer"),
        ("fed3r", "head"),
        ("fed3rft(fedavg)", "head"),
    ],
)
def test_other_refusals(text: str, said: str) -> None:
    with pytest.raises(fr.InputError, match=said):
        run_trial(text, uneven_quadratic())


def test_clipping_is_refused_where_the_length_of_work_is_unknown() -> None:
    with pytest.raises(fr.InputError, match="clip"):
        run_trial("fednova", uneven_quadratic().working(clip=1.0))


def test_two_names_for_one_setting_are_refused() -> None:
    for text, local in (("diloco:inner_lr=0.1", {"lr": 0.1}), ("diloco:inner_wd=0", {})):
        trial = uneven_quadratic().working(weight_decay=0.1, **local)
        with pytest.raises(fr.InputError, match="keep one"):
            run_trial(text, trial)


@pytest.mark.parametrize("text", ["fedsam:rho=0.1", "fedasam:rho=0.1", "fedgf", "fedspeed"])
def test_a_zero_gradient_has_no_direction(text: str) -> None:
    """At the minimum of a client g = 0: nothing is divided by its length, nothing moves."""
    here = torch.zeros(1, 2, dtype=torch.float64)
    flat = golden_trial()
    clients = ((torch.ones(1, 2, dtype=torch.float64), here),)
    trial = type(flat)(Point, clients, flat.local, 3, loss=flat.loss)
    for w in path(text, trial):
        assert torch.equal(w, torch.zeros(2, dtype=torch.float64))


def test_fedsmoo_survives_a_zero_gradient() -> None:
    flat = golden_trial()
    clients = ((torch.ones(1, 2, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)),)
    trial = type(flat)(Place, clients, flat.local, 3, loss=flat.loss)
    assert all(torch.isfinite(w).all() for w in path("fedsmoo", trial))


def test_normalising_nothing_gives_nothing() -> None:
    assert torch.equal(unit(torch.zeros(3)), torch.zeros(3))
    assert float(unit(torch.tensor([3.0, 4.0])).norm()) == pytest.approx(1.0)
    assert SAM(0.1).rho == 0.1


def test_without_history_nothing_is_added() -> None:
    """The first round of the momentum methods is that of the method without."""
    trial = uneven_quadratic()
    first = path("fedavg", trial)[0]
    for text in ("ghbm:tau=1", "localghbm", "fedhbm", "fedavgm", "mimelite"):
        assert torch.equal(path(text, trial)[0], first), text
    sharp = path("fedsam:rho=0.05", trial)[0]
    assert torch.equal(path("fedgf:rho=0.05,threshold=-1", trial)[0], sharp)


def test_divisions_take_the_rate_of_their_round() -> None:
    """With a falling rate SCAFFOLD's c_i is still the mean of the raw gradients (option II)."""
    trial = uneven_quadratic().working(schedule="exp:0.7")
    displaced = path("scaffold", trial)
    averaged = path("scaffold:momentum_repair=raw", trial)
    for a, b in zip(displaced, averaged, strict=True):
        assert float((a - b).abs().max()) < 1e-12
