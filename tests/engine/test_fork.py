"""Forks and verification: the same bits up to the round, other settings after it, lies found."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fedrift.cli import code_of
from fedrift.config.spec import Spec
from fedrift.storage import run_record
from fedrift.storage.fork import fork_spec

SMALL = "--data digits --model logistic --clients 6 --per-round 3 --lr 0.1 --rounds 6 -q".split()


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fork") / "parent"
    assert code_of(["run", "scaffold", *SMALL, "--workers", "0", "--out", str(folder)]) == 0
    return folder


def fork(parent: Path, out: Path, *more: str) -> int:
    return code_of(["fork", str(parent), "--out", str(out), "-q", *more])


def untimed(folder: Path) -> list[dict[str, object]]:
    return [
        {k: v for k, v in row.items() if k != "seconds"} for row in run_record.load(folder).rounds
    ]


def test_a_fork_shares_the_first_rounds(parent: Path, tmp_path: Path) -> None:
    assert fork(parent, tmp_path / "b", "--at-round", "4", "--set", "lr=0.01") == 0
    old, new = untimed(parent), untimed(tmp_path / "b")
    assert old[:4] == new[:4] and old[4] != new[4] and len(new) == 6
    assert run_record.load(tmp_path / "b").spec.lr == 0.01
    assert code_of(["verify", str(tmp_path / "b"), "-q"]) == 0


def test_a_fork_that_changes_nothing_is_the_run_itself(parent: Path, tmp_path: Path) -> None:
    assert fork(parent, tmp_path / "b", "--at-round", "3") == 0
    ends = [run_record.load(folder).summary["fingerprint"] for folder in (parent, tmp_path / "b")]
    assert ends[0] == ends[1]


def test_a_fork_is_resumed_from_nothing_but_its_specs(parent: Path, tmp_path: Path) -> None:
    out = tmp_path / "b"
    assert fork(parent, out, "--at-round", "4", "--set", "lr=0.01", "--set", "rounds=8") == 0
    said = run_record.load(out).summary["fingerprint"]
    for file in ("summary.json", "checkpoint.safetensors", "checkpoint.previous.safetensors"):
        (out / file).unlink(missing_ok=True)
    assert code_of(["resume", str(out), "-q"]) == 0
    assert run_record.load(out).summary["fingerprint"] == said


@pytest.fixture(scope="module")
def uniform(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose clients count alike, without privacy."""
    folder = tmp_path_factory.mktemp("fork") / "uniform"
    words = ["run", "fedavg:weights=uniform", *SMALL, "--workers", "0", "--out", str(folder)]
    assert code_of(words) == 0
    return folder


def test_a_fork_does_not_promise_what_its_first_rounds_gave_away(
    uniform: Path, tmp_path: Path
) -> None:
    how = ["--at-round", "4", "--set", "privacy=gaussian:1,clip=1"]
    assert fork(uniform, tmp_path / "b", *how) == 0
    kept = run_record.load(tmp_path / "b")
    assert kept.summary["epsilon"] == math.inf
    assert any("first 4 rounds" in note for note in kept.environment["notes"])


def test_a_private_fork_of_a_private_run_counts_both(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    words = ["run", "fedavg:weights=uniform", *SMALL, "--workers", "0"]
    words += ["--privacy", "gaussian:1,clip=1", "--out", str(tmp_path / "a")]
    assert code_of(words) == 0
    for noise in (1, 2):
        how = ["--at-round", "4", "--set", f"privacy=gaussian:{noise},clip=1"]
        assert fork(tmp_path / "a", tmp_path / f"b{noise}", *how) == 0
    whole, same, other = (
        run_record.load(tmp_path / name).summary["epsilon"] for name in ("a", "b1", "b2")
    )
    assert same == pytest.approx(whole, rel=1e-6) and 0 < other < whole


REFUSED = [
    (["--at-round", "0"], "at_round"),
    (["--at-round", "7"], "at_round"),
    (["--at-round", "6"], "nothing to do"),
    (["--at-round", "4", "--set", "seed=1"], "seed"),
    (["--at-round", "4", "--set", "data=mnist5k"], "data"),
    (["--at-round", "4", "--set", "lr"], "KEY=VALUE"),
    (["--at-round", "4", "--set", "lr=-1"], "lr"),
    (["--at-round", "4", "--set", "rate=1"], "rate"),
    (["--at-round", "4", "--set", "algorithm=fedavg"], "cannot go on"),
    (
        ["--at-round", "4", "--set", "compress=up=topk:0.1"],
        "with compress=up=topk:0.1 cannot go on",
    ),
    (["--at-round", "4", "--set", "adapter=head"], "a fork keeps its adapter"),
    (["--at-round", "4", "--set", "client_test=0.2"], "a fork keeps its client_test"),
]


@pytest.mark.parametrize(("more", "says"), REFUSED, ids=[str(m) for m, _ in REFUSED])
def test_forks_that_are_refused(
    more: list[str], says: str, parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fork(parent, tmp_path / "b", *more) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_what_travels_may_be_packed_from_then_on(parent: Path, tmp_path: Path) -> None:
    how = ["--at-round", "4", "--set", "compress=up=float16"]  # clients keep nothing of it
    assert fork(parent, tmp_path / "b", *how) == 0
    before, after = untimed(parent), untimed(tmp_path / "b")
    assert before[:4] == after[:4] and before[4:] != after[4:]


def test_rivals_give_way() -> None:
    new, _ = fork_spec(Spec(per_round=3, epochs=2), 4, {"fraction": "0.5", "steps": "3"})
    assert (new.per_round, new.fraction, new.epochs, new.steps) == (None, 0.5, None, 3)


def test_a_run_is_verified(parent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["verify", str(parent), "-q"]) == 0
    assert "all 6" in capsys.readouterr().out
    assert code_of(["verify", str(parent), "-q", "--rounds", "2"]) == 0
    assert "first 2" in capsys.readouterr().out


def copy(parent: Path, to: Path) -> Path:
    to.mkdir()
    for file in parent.glob("*.*"):
        (to / file.name).write_bytes(file.read_bytes())
    return to


def test_an_embellished_curve_is_found(
    parent: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lies = copy(parent, tmp_path / "lies")
    rows = [json.loads(line) for line in (lies / "rounds.jsonl").read_text().splitlines()]
    rows[1]["accuracy"] = 0.99
    (lies / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert code_of(["verify", str(lies), "-q"]) == 1
    assert "best_accuracy" in capsys.readouterr().err
    summary = json.loads((lies / "summary.json").read_text())
    curve = [row["accuracy"] for row in rows]
    summary |= {"best_accuracy": max(curve), "accuracy": curve}
    (lies / "summary.json").write_text(json.dumps(summary))  # better hidden
    assert code_of(["verify", str(lies), "-q"]) == 1
    assert "fingerprint" in capsys.readouterr().err
    for name in ("summary.json", "checkpoint.safetensors", "checkpoint.previous.safetensors"):
        (lies / name).unlink(missing_ok=True)
    assert code_of(["verify", str(lies), "-q", "--rounds", "3"]) == 1
    assert "round 2: accuracy was 0.99" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["resume", "verify", "fork"])
@pytest.mark.parametrize("line", ['data = "evil:make"', 'model = "evil:make"'])
def test_code_named_in_a_folder_is_not_run(
    command: str,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A folder may come from anybody; the command line and one's own spec do not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('ran', 'w').close()\ndef make(): return None\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "spec.toml").write_text(f"{line}\nrounds = 9\n")
    more = ["--at-round", "2", "--out", "b"] if command == "fork" else []
    assert code_of([command, "run", *more]) == 2
    assert "--trust-code" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
