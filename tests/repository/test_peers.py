"""The comparison with peers: equal work is recognised, commands are measured whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from peers import curves, harness, table, watch, work  # noqa: E402
from peers.environments import PEERS  # noqa: E402
from peers.figures import Figures  # noqa: E402
from peers.targets import NAMED, Target  # noqa: E402

CURVE = [2.2, 1.9, 1.4, 1.0, 0.8]


def test_equal_curves_agree_and_less_work_is_seen():
    assert curves.distance(CURVE, CURVE) == 0
    assert curves.distance(CURVE, curves.with_less_work(CURVE, 0.8)) > curves.TOLERANCE
    assert curves.with_less_work(CURVE, 1.0) == pytest.approx(CURVE)


def test_a_round_that_a_peer_did_not_evaluate_is_left_out():
    assert curves.distance(CURVE, [None, *CURVE[1:]]) == 0
    assert curves.mean_curve([[1.0, None], [3.0, 2.0]]) == [2.0, None]


def run(command: list[str], tmp_path: Path, limit: float = 60.0) -> watch.Ran:
    log = tmp_path / "log"
    return watch.run(command, folder=tmp_path, env=dict(os.environ), log=log, limit=limit)


def test_memory_of_a_child_counts(tmp_path: Path):
    hold = "x = bytearray(200_000_000); import time; time.sleep(1.5)"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"
    ran = run([sys.executable, "-c", script], tmp_path)
    assert ran.code == 0 and ran.seconds >= 1.5
    assert 200_000_000 < ran.peak_bytes < 300_000_000


def test_what_takes_too_long_is_ended_with_its_children(tmp_path: Path):
    # a shell, because it starts at once even on a busy machine
    ran = run(["sh", "-c", "sleep 60 & echo $! > pid; wait"], tmp_path, limit=2.0)
    assert ran.code is None and ran.seconds < 20
    time.sleep(0.2)
    assert watch.status(int((tmp_path / "pid").read_text())) == ()


def test_what_other_processes_use_is_seen(tmp_path: Path):
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        beside = run([sys.executable, "-c", "import time; time.sleep(3)"], tmp_path)
    finally:
        other.kill()
        other.wait()
    assert beside.others > 0.3


def measured(row: str, peer: str, visit: float) -> dict[str, Any]:
    return {
        "row": row, "peer": peer, "repeat": 0, "visit": visit, "total": 10 * visit, "start": 1.0,
        "peak_bytes": 1e6, "losses": CURVE, "others": 0.25,
    }  # fmt: skip


@pytest.fixture
def results(tmp_path: Path) -> Path:
    runs = [measured("a", "fedrift", 0.01), measured("a", "flower", 0.04)]
    runs.append(measured("a", "bare", 0.0125))
    runs.append({"row": "a", "peer": "fluke", "repeat": 0, "error": "ImportError: no such thing"})
    content = {
        "machine": harness.machine(),
        "versions": {"fedrift": "1"},
        "rows": {"a": {"work": asdict(work.ROWS["a"]), "distances": {"flower": 0.2}}},
        "runs": runs,
    }
    path = tmp_path / "results.json"
    path.write_text(json.dumps(content))
    return path


def test_the_table_says_what_falls_short_failed_or_differs(results: Path):
    text = "\n".join(table.text(Figures.read(results)))
    assert "| (a) fedrift ÷ bare PyTorch, per visit: ≤ 0.6 | 0.80 | **falls short** |" in text
    assert "ImportError: no such thing" in text
    assert "kept about 25 % of a core busy" in text  # what else ran is said, too
    assert "**20.0 %, differs**" in text
    assert "| (d) fedrift ÷ bare PyTorch, per visit: ≤ 0.15 | – | not measured |" in text


def test_a_limit_is_met_from_below():
    limit = Target("b", 1.05)
    assert limit in NAMED
    assert limit.is_met(1.0) and not limit.is_met(1.1)


def test_results_of_another_definition_of_the_work_are_forgotten(results: Path):
    known = harness.Results.read(results)
    known.begin(work.ROWS["a"])
    assert known.of("a", "fedrift")
    known.begin(work.ROWS["a"].shortened(3))
    assert not known.of("a", "fedrift")


def test_steady_state_leaves_out_the_first_rounds():
    row = work.ROWS["b"]
    ends = [100.0, 110.0, *(110.0 + 2 * k for k in range(1, row.rounds - 1))]
    ran = watch.Ran(launched=90.0, seconds=40.0, peak_bytes=1, code=0, said="")
    found = harness.measured(row, ran, {"ends": ends, "losses": [None] * row.rounds})
    assert found["visit"] == pytest.approx(2 / row.cohort)
    assert found["start"] == pytest.approx(8.0)
    assert "error" in harness.measured(row, ran, {"ends": ends[:-1], "losses": []})


@pytest.mark.parametrize("name", [name for name, peer in PEERS.items() if peer.has_venv])
def test_requirements_are_pinned(name: str):
    lines = (BENCHMARKS / "peers" / "requirements" / f"{name}.txt").read_text().splitlines()
    wanted = [line for line in lines if not line.startswith("#")]
    assert all("==" in line for line in wanted)
    assert any(line.lower().startswith(f"{PEERS[name].package}==") for line in wanted)


@pytest.mark.parametrize("row", "abcd")
def test_models_are_those_of_the_same_name_in_fedrift(row: str):
    from fedrift import models

    mine, wanted = work.ROWS[row], work.model(work.ROWS[row])
    ours = models.factory(mine.model, mine.shape, work.CLASSES)()
    shapes = [[p.shape for p in module.parameters()] for module in (wanted, ours)]
    assert shapes[0] == shapes[1]
