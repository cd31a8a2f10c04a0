"""Comparisons: the same bits as single runs, one failure does not spread, work is never redone."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedrift as fr
from fedrift import comparison
from fedrift.backends.backend import opened
from fedrift.comparison import Item
from fedrift.core.isolation import one_thread
from fedrift.data.samples import hold_out
from fedrift.engine.callbacks import Callback, Passive, RoundReport
from fedrift.engine.prepare import load
from fedrift.storage.shared_memory import Block
from tests.support.problems import Net, blobs, small_run, uneven_clients
from tests.support.product import Entrant, Grid, Spec

NAMES = ["fedavg", "scaffold", "mime", "swa(fedsam):cycle=2"]
TASK: dict[str, Any] = {
    "model": Net,
    "clients": uneven_clients(),
    "test": blobs(200, seed=5),
    "rounds": 4,
    "per_round": 3,
    "lr": 0.1,
    "batch_size": 16,
}


class Log(Passive):
    """Notes what the runner tells, and may interrupt."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.rounds, self.stop_after = 0, stop_after

    def __call__(self, item: Item) -> list[Callback]:
        return [self]

    def on_round(self, report: RoundReport) -> None:
        self.rounds += 1
        if self.stop_after is not None and self.rounds >= self.stop_after:
            raise KeyboardInterrupt


@pytest.mark.parametrize("workers", [0, 2])
def test_a_comparison_gives_the_bits_of_single_runs(workers: int) -> None:
    made = fr.compare(NAMES, seeds=2, workers=workers, **TASK)
    alone = [small_run(name, rounds=4, seed=s).fingerprint for s in (0, 1) for name in NAMES]
    assert [r.fingerprint for r in made.results] == alone
    assert len(made.of("mime")) == 2
    assert set(made.frame()["algorithm"]) == set(NAMES)


def test_every_run_has_its_own_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs begin in threads of their own; each shares its samples with the workers."""
    x, _ = blobs(600)
    factors = [1.0 + i for i in range(4)]
    put = Block.put

    def slow(self: Block, packed: Any) -> Any:
        time.sleep(0.02)  # the others come in between
        return put(self, packed)

    monkeypatch.setattr(Block, "put", slow)
    with one_thread(), opened("auto", 2) as pool:
        assert pool is not None
        places: list[Any] = [None] * len(factors)

        def share(i: int) -> None:
            tree = x * factors[i]
            places[i] = pool.share("x", tree, {"x": tree})

        threads = [threading.Thread(target=share, args=(i,)) for i in range(len(factors))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({name for name, _ in places}) == len(factors)
        for factor, (name, where) in zip(factors, places, strict=True):
            assert torch.equal(pool._blocks[name].get(where)["x"], x * factor)


def test_the_same_start_cohorts_and_batches_for_all() -> None:
    made = fr.compare(["fedavg", "fedprox:mu=0", "scaffold"], seeds=1, workers=0, **TASK)
    starts = {r.problem.w0.numpy().tobytes() for r in made.results}
    cohorts = {tuple(tuple(m["cohort"]) for m in r.metrics) for r in made.results}
    assert len(starts) == 1 and len(cohorts) == 1
    assert made.results[0].fingerprint == made.results[1].fingerprint


class SlowNet(Net):
    """Takes its time between two draws of initial weights, while other runs end."""

    def __init__(self) -> None:
        super().__init__()
        time.sleep(0.05)
        self.extra = torch.nn.Parameter(torch.rand(3))


def test_runs_that_end_do_not_disturb_one_that_draws_its_weights(tmp_path: Path) -> None:
    how: dict[str, Any] = {**TASK, "model": SlowNet, "rounds": 1, "out": tmp_path, "workers": 2}
    made = fr.compare(["fedavg", "fedprox", "fedsam"], seeds=3, **how)
    starts = {
        (o.item.seed, r.problem.w0.numpy().tobytes()) for o in made.outcomes if (r := o.result)
    }
    assert len(starts) == 3
    again = fr.compare(["fedavg", "fedprox", "fedsam"], seeds=3, **how)
    assert [r.fingerprint for r in again.results] == [r.fingerprint for r in made.results]


def test_a_run_that_fails_does_not_stop_the_others() -> None:
    def loss(output: Any, target: Any) -> Any:
        raise MemoryError("too much")

    ok = fr.compare(["fedavg"], workers=2, **TASK)
    assert [o.error for o in ok.outcomes] == [""]
    with pytest.raises(MemoryError):  # at the probe, before anything is started
        fr.compare(["fedavg"], workers=2, loss=loss, **TASK)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupted_comparison_goes_on(workers: int, tmp_path: Path) -> None:
    whole = [r.fingerprint for r in fr.compare(NAMES, workers=workers, **TASK).results]
    how: dict[str, Any] = {**TASK, "workers": workers, "out": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        fr.compare(NAMES, callbacks=Log(stop_after=6), **how)
    log = Log()
    again = fr.compare(NAMES, callbacks=log, **how)
    assert [r.fingerprint for r in again.results] == whole
    assert log.rounds < 4 * len(NAMES), "finished rounds are not repeated"
    idle = Log()
    assert [r.fingerprint for r in fr.compare(NAMES, callbacks=idle, **how).results] == whole
    assert idle.rounds == 0


def test_whoever_is_told_cannot_keep_an_interrupted_run_from_saving(tmp_path: Path) -> None:
    how: dict[str, Any] = {**TASK, "workers": 2, "out": tmp_path}
    with pytest.raises(KeyboardInterrupt):  # of round 2, and again of 3, which waits behind it
        fr.compare(["fedavg"], callbacks=Log(stop_after=2), **how)
    log = Log()
    fr.compare(["fedavg"], callbacks=log, **how)
    assert log.rounds == 1


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(fr.InputError, match="did you mean 'rounds'"):
        fr.compare(["fedavg"], round=3, **TASK)
    with pytest.raises(fr.InputError, match="workers"):
        fr.compare(["fedavg"], workers=-1, **TASK)
    with pytest.raises(fr.InputError, match="seeds"):
        fr.compare(["fedavg"], seeds=0, **TASK)


def test_held_out_samples_come_from_training_alone() -> None:
    data = load(Spec(data="digits"))
    held = hold_out(data)
    assert len(held.y) + len(held.y_test) == len(data.y)
    known = {row.tobytes() for row in np.concatenate([held.x, held.x_test])}
    assert known == {row.tobytes() for row in data.x}
    assert len(np.unique(held.y_test)) == data.classes


def test_tuning_takes_the_better_rate_and_leaves_other_options_alone(tmp_path: Path) -> None:
    base = Spec(data="digits", rounds=5, clients=4, workers=0, model="logistic", partition="iid")
    grid = Grid((Entrant("fedavg"), Entrant("fedprox")), base)
    made = comparison.tuned(grid, ["lr=0.0001,0.5", "mu=0,0.01"], tmp_path, None)
    rates = [e.settings["lr"] for e in made.entrants]
    assert rates == [0.5, 0.5]
    assert made.entrants[0].algorithm == "fedavg" and "mu=" in made.entrants[1].algorithm
    with pytest.raises(fr.InputError, match="tune 'colour'"):
        comparison.tuned(grid, ["colour=1,2"], None, None)
    with pytest.raises(fr.InputError, match="tune 'lr'"):
        comparison.tuned(grid, ["lr"], None, None)


def test_personal_and_global_models_are_judged_alike() -> None:
    x, y = blobs(120)
    clients = fr.split(x, y, "iid", clients=3, seed=0, test=0.3)
    made = fr.compare(
        ["fedavg", "fedper"], model=Net, clients=clients, test=(x, y), rounds=2, workers=0
    )
    assert [bool(result.client_rounds) for result in made.results] == [True, True]
    plain = fr.compare(["fedavg"], model=Net, clients=clients, test=(x, y), rounds=2, workers=0)
    assert not plain.results[0].client_rounds  # nobody asked for it
    assert torch.equal(plain.results[0].weights, made.results[0].weights)
