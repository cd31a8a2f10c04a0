"""The plan of a run: memory and disk, said before it starts; what cannot fit is refused."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import fedrift as fr
from fedrift.api import task_of
from fedrift.core.isolation import drawing_alone
from fedrift.engine import plan as room
from fedrift.engine.callbacks import Passive
from tests.support.problems import Net, blobs, small_run, uneven_clients
from tests.support.product import Plan


class Listener(Passive):
    def __init__(self) -> None:
        self.plans: list[Plan] = []

    def on_start(self, plan: Plan) -> None:
        self.plans.append(plan)


@pytest.mark.parametrize(
    "how",
    [
        {"rounds": 40, "per_round": 2},
        {"rounds": 3, "per_round": None},
        {"rounds": 2, "per_round": 1},
        {"rounds": 30, "per_round": None, "fraction": 0.3, "sampling": "bernoulli"},
        {"rounds": 3, "per_round": 2, "sampling": "cyclic"},
    ],
    ids=str,
)
def test_the_plan_knows_the_disk(how: dict[str, Any], tmp_path: Path) -> None:
    listener = Listener()
    small_run("scaffold", out=tmp_path / "run", callbacks=[listener], **how)
    took = os.stat(tmp_path / "run" / "clients" / "root.rows").st_size
    said = listener.plans[0].disk_bytes
    assert 0.4 * said <= took <= 1.6 * said, "a small file grows by doubling"


def test_an_algorithm_without_client_state_needs_no_disk() -> None:
    listener = Listener()
    small_run("fedavg", callbacks=[listener])
    assert listener.plans[0].disk_bytes == 0 and listener.plans[0].memory_bytes > 10**8


def test_what_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_disk", lambda _: 1000)
    with pytest.raises(fr.InputError, match=r"needs about .* of disk.*larger disk"):
        small_run("scaffold", out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == [], "what was refused leaves nothing"
    (tmp_path / "mine").mkdir()
    with pytest.raises(fr.InputError, match="larger disk"):
        small_run("scaffold", out=tmp_path / "mine")
    small_run("fedavg", out=tmp_path / "mine")
    monkeypatch.undo()
    monkeypatch.setattr(room, "free_memory", lambda: 10**6)
    with pytest.raises(fr.InputError, match=r"needs about .* of memory, but 1\.0 MB"):
        small_run("fedavg")


def test_looking_for_room_does_not_walk_through_foreign_folders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Client states of a run without a folder go to the folder for temporary files: a large one."""
    walked: list[Path] = []
    monkeypatch.setattr(room, "bytes_in", walked.append)
    small_run("scaffold", rounds=1)
    assert walked == []


def test_this_machine_is_known() -> None:
    memory = room.free_memory()
    assert memory is None or memory > 10**7
    assert room.free_disk(Path("not/there/yet")) > 0


class Noisy(Net):
    """Draws from torch's one generator in every pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.randn(len(x), 1)


def test_a_trial_waits_for_another_thread_that_draws() -> None:
    """Runs of a comparison are tried in threads; one that probes a model must draw alone."""
    settings: dict[str, Any] = {"model": Noisy, "clients": uneven_clients(), "rounds": 1}
    problem = task_of("fedavg", settings).problem
    trial = threading.Thread(target=room.passes, args=(problem, blobs(4)))
    with drawing_alone():
        before = torch.get_rng_state()
        trial.start()
        trial.join(0.3)
        assert trial.is_alive()
        assert torch.equal(torch.get_rng_state(), before)
    trial.join(60)
    assert not trial.is_alive()
