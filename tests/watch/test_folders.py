"""Run folders read while they grow: what is new is taken in once, what was cut is forgotten."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedrift.core.phases import EVALUATE
from fedrift.core.plain_files import replace_text
from fedrift.errors import InputError
from fedrift.watch import writer
from fedrift.watch.folders import Watched
from fedrift.watch.tail import Tail

SPEC = 'algorithm = "fedavg"\ndata = "digits"\nmodel = "mlp"\nrounds = 10\nseed = 3\n'


def folder(root: Path, name: str = "a") -> Path:
    path = root / name
    path.mkdir(parents=True)
    (path / "spec.toml").write_text(SPEC)
    return path


def add(path: Path, name: str, *records: object) -> None:
    with (path / name).open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def row(round: int, **columns: object) -> dict[str, object]:
    sums = {"bytes_up": 10 * round, "bytes_down": 20 * round, "seconds": 0.5 * round}
    return {"round": round, "accuracy": 0.1 * round, "loss": 1.0, **sums, **columns}


def test_a_tail_gives_every_whole_line_once(tmp_path: Path) -> None:
    file = tmp_path / "rounds.jsonl"
    tail = Tail(file)
    assert tail.fresh() == ([], False)
    file.write_text('{"round": 1}\n{"round": 2}\n{"rou')
    assert [line["round"] for line in tail.fresh()[0]] == [1, 2]
    assert tail.fresh() == ([], False)
    with file.open("a") as more:
        more.write('nd": 3}\n')
    assert [line["round"] for line in tail.fresh()[0]] == [3]
    file.write_text('{"round": 9}\n')
    assert tail.fresh() == ([{"round": 9}], True)


def test_what_is_no_file_has_no_lines(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    for name in ("folder", "pipe", "link", "nothing"):
        assert Tail(tmp_path / name).fresh() == ([], False)


def test_what_is_new_is_added_and_what_was_cut_is_void(tmp_path: Path) -> None:
    path = folder(tmp_path)
    add(path, "rounds.jsonl", row(1), row(2, client_loss=0.5))
    watched = Watched(tmp_path)
    watched.refresh()
    run = watched.runs["a"]
    assert run.columns["round"] == [1, 2]
    assert run.columns["bytes"] == [30, 60]
    assert run.columns["client_loss"] == [None, 0.5]
    add(path, "rounds.jsonl", row(3, loss="nan"))
    watched.refresh()
    assert run.curves(2, 0)["columns"]["round"] == [3]
    assert run.columns["loss"] == [1.0, 1.0, None]
    assert run.columns["client_loss"] == [None, 0.5, None]
    # resumed from an earlier checkpoint: the reader's rows are void
    (path / "rounds.jsonl").write_text(json.dumps(row(1)) + "\n")
    watched.refresh()
    assert run.curves(3, 0) == {"from": 0, "generation": 1, "columns": run.columns}
    assert run.columns["round"] == [1]


def test_clients_that_evaluate_are_no_cohort_and_lost_replies_are_counted_once(
    tmp_path: Path,
) -> None:
    path = folder(tmp_path)
    trained = {"round": 1, "phase": "train", "asked": [7, 2], "nonfinite": [7]}
    add(path, "ledger.jsonl", trained, {"round": 1, "phase": EVALUATE, "asked": [*range(9)]})
    watched = Watched(tmp_path)
    watched.refresh()
    run = watched.runs["a"]
    assert (run.cohort, run.left_out) == ([7, 2], 1)
    (path / "ledger.jsonl").write_text(json.dumps(trained) + "\n")  # resumed
    watched.refresh()
    assert run.left_out == 1


def test_a_run_that_goes_on_has_more_rounds(tmp_path: Path) -> None:
    path = folder(tmp_path)
    watched = Watched(tmp_path)
    watched.refresh()
    replace_text(path / "spec.toml", SPEC.replace("rounds = 10", "rounds = 40"))
    watched.refresh()
    assert watched.overview()["runs"][0]["rounds"] == 40


def test_the_overview_says_how_far_and_how_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder(tmp_path)
    add(path, "rounds.jsonl", row(1), row(3))
    add(path, "ledger.jsonl", {"round": 4, "phase": "train", "asked": [7, 2], "nonfinite": [7]})
    watched = Watched(tmp_path)
    watched.refresh()
    there = path.stat()
    monkeypatch.setattr(
        "fedrift.watch.folders.writers", lambda: {(there.st_dev, there.st_ino): 4711}
    )
    run = watched.overview()["runs"][0]
    assert run["status"] == "running" and run["process"] == 4711
    assert run["reached"] == 4 and run["cohort"] == [7, 2]
    assert run["pace"] == pytest.approx(0.5)
    assert run["left"] == pytest.approx(0.5 * 6)
    assert run["warnings"] == ["left out because they were not finite: 1 of the replies"]


def test_the_status_of_runs_that_nobody_writes(tmp_path: Path) -> None:
    folder(tmp_path, "b/runs/unfinished")
    done = folder(tmp_path, "done")
    (done / "summary.json").write_text('{"status": "done"}')
    broken = folder(tmp_path, "broken")
    (broken / "spec.toml").write_text("algorithm = 3\n")
    watched = Watched(tmp_path)
    watched.refresh()
    shown = watched.overview()
    assert {r["name"]: r["status"] for r in shown["runs"]} == {
        "b/runs/unfinished": "unfinished",
        "done": "done",
    }
    assert len(shown["problems"]) == 1 and shown["problems"][0].startswith("broken cannot be read")


def test_runs_of_a_comparison_know_it_and_how_many_it_will_have(tmp_path: Path) -> None:
    for name in ("alone", "c/runs/one", "c/runs/two", "python/runs/one", "broken/runs/one"):
        folder(tmp_path, name)
    (tmp_path / "c/compare.toml").write_text(
        'algorithms = ["fedavg", "scaffold"]\nseeds = 3\n[grid]\nlr = [0.1, 0.2]\n'
    )
    (tmp_path / "broken/compare.toml").write_text("algorithms = 3\n")
    watched = Watched(tmp_path)
    watched.refresh()
    shown = watched.overview()
    assert {run["name"]: run["group"] for run in shown["runs"]} == {
        "alone": None,
        "broken/runs/one": "broken",
        "c/runs/one": "c",
        "c/runs/two": "c",
        "python/runs/one": "python",
    }
    assert shown["methods"] == ["fedavg", "scaffold"]
    assert shown["comparisons"] == {"c": 12, "python": None, "broken": None}
    inside = Watched(tmp_path / "c")
    inside.refresh()
    assert inside.overview()["comparisons"] == {"": 12}


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = folder(tmp_path / "outside")
    inside = tmp_path / "inside"
    real = folder(inside, "real")
    (inside / "link").symlink_to(outside)
    (real / "rounds.jsonl").symlink_to(outside / "spec.toml")
    os.mkfifo(real / "ledger.jsonl")
    watched = Watched(inside)
    watched.refresh()
    assert list(watched.runs) == ["real"]
    assert watched.runs["real"].rows == 0


def test_a_folder_that_goes_away_goes_from_the_list(tmp_path: Path) -> None:
    path = folder(tmp_path)
    watched = Watched(tmp_path)
    watched.refresh()
    (path / "spec.toml").unlink()
    watched.refresh()
    assert watched.overview()["runs"] == []


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no folder"):
        Watched(tmp_path / "none")


HOLD = """
import signal, sys, time
from pathlib import Path
from fedrift.storage.run_folder import lock_folder
signal.signal(signal.{}, signal.{})
try:
    lock = lock_folder(Path(sys.argv[1]))
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(130)
"""


def _hold(path: Path, which: str, handler: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD.format(which, handler), str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.skipif(not writer.LOCKS.exists(), reason="needs /proc/locks")
def test_the_writer_is_known_and_ends_as_after_an_interrupt(tmp_path: Path) -> None:
    path = folder(tmp_path)
    with pytest.raises(InputError, match="nobody is writing"):
        writer.stop(path)
    with _hold(path, "SIGINT", "default_int_handler") as process:
        assert writer.writer_of(path, writer.writers()) == process.pid
        assert writer.stop(path) == process.pid
        assert process.wait(10) == 130
    assert writer.writer_of(path, writer.writers()) is None


@pytest.mark.skipif(not writer.LOCKS.exists(), reason="needs /proc/locks")
def test_a_writer_in_the_background_is_stopped_by_the_other_signal(tmp_path: Path) -> None:
    path = folder(tmp_path)
    with _hold(path, "SIGINT", "SIG_IGN") as process:
        with pytest.raises(InputError, match="heeds neither"):
            writer.stop(path)
        process.kill()


def test_refreshing_again_reads_only_what_is_new(tmp_path: Path) -> None:
    for number in range(50):
        add(folder(tmp_path, f"r{number}"), "rounds.jsonl", *(row(i) for i in range(1, 200)))
    watched = Watched(tmp_path)
    watched.refresh()
    before = {name: run.rounds.place for name, run in watched.runs.items()}
    watched.refresh()
    assert {name: run.rounds.place for name, run in watched.runs.items()} == before
    assert all(run.rows == 199 for run in watched.runs.values())


def test_of_every_client_the_last_visit_is_told(tmp_path: Path) -> None:
    path = folder(tmp_path)
    add(path, "training.jsonl", {"round": 1, "client": [0, 7], "loss": [2.0, 3.0]})
    add(path, "training.jsonl", {"round": 2, "client": [7, 4], "loss": [1.23456, None]})
    watched = Watched(tmp_path)
    watched.refresh()
    clients = watched.runs["a"].clients
    assert clients.since(0, 0) == {
        "from": 0,
        "generation": 0,
        "client": [0, 7, 4],
        "loss": [2.0, 1.235, None],
        "round": [1, 2, 2],
        "visits": [1, 2, 1],
    }
    assert clients.since(1, 0)["client"] == [7, 4]
    assert clients.since(2, 0)["client"] == []
    told = watched.overview()["runs"][0]
    assert told["clients"] == [0, 3] and told["population"] == 8
    (path / "training.jsonl").write_text('{"round": 1, "client": [3], "loss": [1]}\n')
    watched.refresh()
    assert clients.since(2, 0) | {"generation": 1} == clients.since(0, 1)
    assert clients.since(2, 0)["client"] == [3]


@pytest.mark.parametrize(
    "line",
    [
        {"client": [-1, 10**9, True, "x"], "loss": [1.0, 1.0, 1.0, 1.0]},
        {"client": "0", "loss": [1.0]},
        {"client": [[0]], "loss": None},
        {},
    ],
)
def test_strange_reports_of_training_are_passed_over(
    tmp_path: Path, line: dict[str, object]
) -> None:
    path = folder(tmp_path)
    add(path, "training.jsonl", {"round": 1, **line})
    watched = Watched(tmp_path)
    watched.refresh()
    assert watched.runs["a"].clients.seen == {}
