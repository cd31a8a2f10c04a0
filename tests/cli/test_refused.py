"""A refused command leaves the disk as it was: no folder, no file, nothing overwritten."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedrift import comparison
from fedrift.cli import code_of
from fedrift.errors import InputError

SMALL = "--clients 3 --model logistic --rounds 2 --workers 0"
REFUSED = {
    "compare, data": f"compare fedavg {SMALL} --data text:pipe --out new",
    "run, devices": f"run fedavg {SMALL} --devices trace:pipe --out new",
    "compare, deep": f"compare fedavg {SMALL} --data text:pipe --out new/deep/er",
    "compare, settings": f"compare fedavg {SMALL} --late over:1 --out new",
    "compare, second setting": f"compare fedavg {SMALL} --late wait --late over:1 --out new",
    "compare, second algorithm": f"compare fedavg fedper {SMALL} --head nowhere --out new",
    "compare, first round": f"compare fedavg {SMALL} --weights uniform --aggregate krum:1 --out a",
    "compare, tuning": f"compare fedavg {SMALL} --tune lr=0.1,0.2 --data text:pipe --out new",
    "compare, watched": f"compare fedavg {SMALL} --data text:pipe --out new --watch",
    "compare, another before": f"compare fedavg {SMALL} --data text:pipe --out before",
    "compare, foreign files": f"compare fedavg {SMALL} --out foreign",
    "compare, no text": f"compare fedavg {SMALL} --out c\udcff",
    "compare, no text of its own": f"compare fedavg {SMALL} --out h\udcff",
    "compare, too long": f"compare fedavg {SMALL} --out {'n' * 300}",
    "run, too long": f"run fedavg {SMALL} --out a/b/{'n' * 300}",
    "compare, a pipe": "compare --spec pipe",
    "run, no text": f"run fedavg {SMALL} --out c\udcff",
    "run, a pipe": "run --spec pipe",
    "run, first round": f"run fedavg {SMALL} --weights uniform --aggregate krum:1 --out a/b/c",
    "run, watched": f"run fedavg {SMALL} --weights uniform --aggregate krum:1 --out a/b --watch",
    "preset": "preset run mnist-scaffold --workers 0",
    "preset, named": "preset run mnist-scaffold --workers 0 --out new",
}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison that was made before."""
    folder = tmp_path_factory.mktemp("made") / "before"
    assert code_of(f"compare fedavg {SMALL} --rounds 1 --out {folder} --quiet".split()) == 0
    return folder


@pytest.mark.timeout(120)  # of a pipe nobody reads to the end
@pytest.mark.parametrize("name", REFUSED)
def test_nothing_is_written(
    name: str, before: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDRIFT_DATA", str(tmp_path / "missing"))
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "h\udcff").mkdir()
    if "foreign" in name:
        (tmp_path / "foreign").mkdir()
        (tmp_path / "foreign" / "notes.txt").write_text("mine")
    if "before" in REFUSED[name]:
        shutil.copytree(before, tmp_path / "before")
    known = seen(tmp_path)
    assert code_of(REFUSED[name].split()) == 2
    assert seen(tmp_path) == known


def test_a_backend_that_cannot_be_had_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody(*_: object) -> None:
        raise InputError("backend 'ray:127.0.0.1:9' cannot be reached")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fedrift.engine.execute.made", nobody)
    assert code_of(f"run fedavg {SMALL} --out new".split()) == 2
    assert not seen(tmp_path)


def seen(folder: Path) -> dict[Path, bytes]:
    """Every file with its content, every folder."""
    return {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


WORDS = ("run \udcff", "run fedavg --data \udcff", "run fedavg --model \udcff", "run --spec \udcff")
WORDS += (
    "run fedavg --lr \udcff",
    "run fedavg --data npz:\udcff",
    "compare fedavg \udcff",
    "\udcff",
)
WORDS += tuple(f"{name} \udcff" for name in "verify report analyse timeline explain list".split())
WORDS += ("merge \udcff \udcff", "conform \udcff:\udcff", "preset show \udcff", "run --\udcff")


@pytest.mark.parametrize("words", WORDS, ids=ascii)
def test_bytes_that_are_no_text_are_refused_and_spelled(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As a shell hands them on: half a character stands for each, and no terminal prints it."""
    monkeypatch.chdir(tmp_path)
    assert code_of(words.split()) == 2
    said = capfd.readouterr().err
    assert said.startswith("error: ") and "FEDRIFT_DEBUG" not in said
    assert "\\udcff" in said


@pytest.mark.parametrize("name", ["inf", "-inf", "nan", "--x"])
@pytest.mark.parametrize("command", ["run fedavg", "compare fedavg fedsgd"])
def test_folders_that_cannot_be_named_again_are_not_made(
    name: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records spell numbers like the first ones; commands take the last ones for options."""
    monkeypatch.chdir(tmp_path)
    assert code_of([*f"{command} {SMALL}".split(), f"--out={name}"]) == 2
    assert not seen(tmp_path)


def test_what_was_made_before_a_refusal_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []

    def execute(*given: Any, **named: Any) -> Any:
        if made:
            raise InputError("no")
        made.append(comparison_execute(*given, **named))
        return made[0]

    comparison_execute = comparison.execute
    monkeypatch.setattr(comparison, "execute", execute)
    monkeypatch.chdir(tmp_path)
    assert code_of([*f"compare fedavg fedsgd {SMALL} --out new".split()]) == 2
    assert len(list((tmp_path / "new" / "runs").iterdir())) == 1
    assert "fedsgd" in (tmp_path / "new" / "compare.toml").read_text()


def test_a_summary_without_its_fingerprint_is_no_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(f"run fedavg {SMALL} --out {tmp_path / 'a'} --quiet".split()) == 0
    summary = tmp_path / "a" / "summary.json"
    record = json.loads(summary.read_text())
    del record["fingerprint"]
    summary.write_text(json.dumps(record))
    capsys.readouterr()
    assert code_of(["resume", str(tmp_path / "a"), "--workers", "0"]) == 2
    assert "is damaged: it has no fingerprint" in " ".join(capsys.readouterr().err.split())


def test_states_of_other_clients_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A checkpoint of six clients in the folder of three."""
    for clients in "36":
        words = f"run scaffold {SMALL} --clients {clients} --out {tmp_path / clients} --quiet"
        assert code_of(words.split()) == 0
    (tmp_path / "6" / "checkpoint.safetensors").replace(tmp_path / "3" / "checkpoint.safetensors")
    capsys.readouterr()
    assert code_of(["merge", str(tmp_path / "3"), str(tmp_path / "6")]) == 2
    assert "checkpoint that cannot be used: its clients" in " ".join(
        capsys.readouterr().err.split()
    )
