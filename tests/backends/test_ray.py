"""The Ray backend: the same bits as in this process, and what happens when a worker dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedrift as fr
from tests.support.problems import Net, Wide, blobs, own_bytes, small_run

ray = pytest.importorskip("ray", reason="needs fedrift[ray]")
# Ray leaves its own processes to be collected by whoever comes later.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def local() -> Generator[None]:
    """One Ray for all tests of the file."""
    from fedrift.backends.ray_tasks import connect

    assert connect("", 2)
    yield
    ray.shutdown()


def same(one: fr.Result, other: fr.Result) -> bool:
    assert one.fingerprint == other.fingerprint
    assert one.ledger.entries == other.ledger.entries
    return torch.equal(one.weights, other.weights)


def on_ray(algorithm: Any, **how: Any) -> fr.Result:
    return small_run(algorithm, **{"workers": 2, "backend": "ray", **how})


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "mimemom", "fed3r", "diloco"])
def test_the_same_bits_on_ray(name: str) -> None:
    assert same(small_run(name, rounds=3), on_ray(name, rounds=3))


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("how", ["separate", "freeze-A", "exact"])
def test_adapters_are_the_same_on_ray(how: str) -> None:
    settings: dict[str, Any] = {"rounds": 3, "adapter": f"lora:rank=2,alpha=4,how={how}"}
    assert same(small_run("scaffold", **settings), on_ray("scaffold", **settings))


class Telling(Wide):
    """Writes down, at every pass, how much memory its process has written itself."""

    def __init__(self, width: int, folder: str) -> None:
        super().__init__(width)
        self.folder = folder

    def forward(self, input: Tensor) -> Tensor:
        with (Path(self.folder) / str(os.getpid())).open("a") as file:
            file.write(f"{own_bytes(os.getpid())}\n")
        return super().forward(input)


@pytest.mark.usefixtures("local")
@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(),
    reason="reads what workers hold from /proc, which only Linux has",
)
def test_a_worker_on_ray_holds_the_base_once(tmp_path: Path) -> None:
    base, held = 48 * 1024**2, {}
    for width in (8, 1024):
        folder = tmp_path / str(width)
        folder.mkdir()
        model = partial(Telling, width, str(folder))
        on_ray("fedavg", model=model, adapter="lora:rank=2,alpha=4", rounds=4)
        told = [
            file.read_text().split() for file in folder.iterdir() if file.name != str(os.getpid())
        ]
        held[width] = [(int(first), int(last)) for first, *_, last in told]
    few, many = held[8], held[1024]
    assert few and many
    assert all(last - first < base / 2 for first, last in many), "no visit brings another"
    assert max(last for _, last in many) - min(last for _, last in few) < 1.5 * base


@pytest.mark.usefixtures("local")
def test_images_metrics_and_augmentation_are_the_same_on_ray() -> None:
    x = blobs(96)[0].reshape(12, 1, 8, 8)
    how: dict[str, Any] = {
        "model": lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), Last()),
        "clients": [(x[i::3], torch.arange(4)) for i in range(3)],
        "test": (x, torch.arange(12) % 4),
        "metrics": {"largest": lambda output, target: output.max()},
        "augment": ["crop:1", "flip", "mixup:alpha=1"],
        "rounds": 2,
    }
    assert same(small_run("fedavg", **how), on_ray("fedavg", **how))


class Last(nn.Linear):
    """A class of this file, which no worker can import."""

    def __init__(self) -> None:
        super().__init__(72, 4)


@pytest.mark.usefixtures("local")
def test_an_error_in_a_client_method_is_told() -> None:
    def loss(output: Tensor, y: Tensor) -> Tensor:
        if torch.is_grad_enabled() and len(y) > 2:
            raise ZeroDivisionError("no luck today")
        return nn.functional.cross_entropy(output, y)

    with pytest.raises(fr.RunError, match="ZeroDivisionError: no luck today"):
        on_ray("fedavg", loss=loss)


def dying(marks: Path, times: int) -> Any:
    """A loss that kills its worker, so many times in all."""
    here = os.getpid()

    def loss(output: Tensor, y: Tensor) -> Tensor:
        if os.getpid() != here and torch.is_grad_enabled():
            for i in range(times):
                mark = marks / str(i)
                if not mark.exists():
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
        return nn.functional.cross_entropy(output, y)

    return loss


@pytest.mark.usefixtures("local")
def test_a_worker_that_dies_changes_nothing(tmp_path: Path) -> None:
    whole = small_run("scaffold", loss=dying(tmp_path, 0), rounds=3)
    assert same(whole, on_ray("scaffold", loss=dying(tmp_path, 1), rounds=3))
    assert (tmp_path / "0").exists()


@pytest.mark.usefixtures("local")
@pytest.mark.slow
def test_workers_that_always_die_end_the_run(tmp_path: Path) -> None:
    with pytest.raises(fr.RunError, match="given up after 4 attempts"):
        on_ray("fedavg", loss=dying(tmp_path, 1000), rounds=1)


@pytest.mark.usefixtures("local")
def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    def stop(report: fr.RoundReport) -> None:
        if report.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        on_ray("scaffold", out=tmp_path / "run", on_round=stop)
    assert same(small_run("scaffold"), on_ray("scaffold", out=tmp_path / "run"))


def test_what_cannot_be_is_said() -> None:
    for how, says in (
        ({"backend": "ray", "workers": 0}, "backend 'ray' and workers=0"),
        ({"backend": "rays"}, "unknown backend 'rays': did you mean 'ray'"),
    ):
        with pytest.raises(fr.InputError, match=says):
            small_run("fedavg", **how)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("local")
def test_every_algorithm_is_the_same_on_ray() -> None:
    from dataclasses import replace

    from tests.support.compositions import EVERY
    from tests.support.product import classifier, run_trial

    trial = replace(classifier(), rounds=4)
    for text in EVERY:
        there = run_trial(text, trial, workers=2, backend="ray")
        assert same(run_trial(text, trial), there), text


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_machines_and_one_that_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of two nodes; one is taken away while its visits run."""
    from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]

    if ray.is_initialized():
        ray.shutdown()
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    second = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    try:
        how: dict[str, Any] = {"backend": f"ray:{cluster.address}", "per_round": 5}
        assert same(small_run("scaffold", per_round=5), on_ray("scaffold", **how))
        start, left = time.monotonic(), []

        def leave(report: fr.RoundReport) -> None:
            if report.round == 2:
                cluster.remove_node(second)
                left.append(time.monotonic() - start)

        assert same(small_run("scaffold", per_round=5), on_ray("scaffold", on_round=leave, **how))
        assert left
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_help_is_given_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "fedrift.backends.ray_tasks", raising=False)
    with pytest.raises(fr.InputError, match=r"pip install 'fedrift\[ray\]'"):
        small_run("fedavg", model=Net, backend="ray", workers=2)


@pytest.mark.usefixtures("local")
def test_a_comparison_on_ray_is_the_same(tmp_path: Path) -> None:
    from fedrift.cli import code_of

    common = ["compare", "fedavg", "scaffold", "--clients", "3", "--rounds", "2", "--quiet"]
    folders = [tmp_path / "here", tmp_path / "there"]
    assert code_of([*common, "--workers", "0", "--out", str(folders[0])]) == 0
    assert code_of([*common, "--backend", "ray", "--workers", "2", "--out", str(folders[1])]) == 0
    from tests.support.product import load_run

    for run in sorted((folders[0] / "runs").iterdir()):
        other = folders[1] / "runs" / run.name
        assert load_run(run).summary["fingerprint"] == load_run(other).summary["fingerprint"]
