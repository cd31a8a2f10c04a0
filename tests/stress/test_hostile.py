"""Run folders of strangers: no code of theirs runs, nothing hangs, every answer is a sentence."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedrift.algorithms.scaffold import Server
from fedrift.cli import code_of
from fedrift.core import SGD
from tests.support.problems import small_run
from tests.support.product import RunFolder, Scaffold, checkpoint

COMMANDS = {
    "resume": (),
    "verify": (),
    "fork": ("--at-round", "1", "--out", "new"),
    "analyse": ("--what", "classes"),
}
VECTOR = torch.zeros(16 * 9 + 4 * 17)  # the model of a small run
SERVER = Server(w=VECTOR, c=VECTOR, opt=SGD().init(VECTOR))
EVIL = """
from pathlib import Path
Path("PWNED").write_text("x")
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped."""
    run = tmp_path_factory.mktemp("original") / "run"
    words = ["run", "fedavg", "--rounds", "2", "--workers", "0", "--quiet", "--out", str(run)]
    assert code_of(words) == 0
    (run / "summary.json").unlink()
    return run


@pytest.fixture
def folder(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, with a module of a stranger beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(EVIL)
    return shutil.copytree(original, tmp_path / "run")


def refused(command: str, capfd: pytest.CaptureFixture[str]) -> str:
    capfd.readouterr()
    code = code_of([command, "run", *COMMANDS[command]])
    said = capfd.readouterr().err
    assert code == 2 and said.startswith("error: ") and "FEDRIFT_DEBUG" not in said, said
    assert not Path("PWNED").exists()
    return said


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("algorithm", "evil:Class"),
        ("algorithm", "swa(evil:Class):start=0.5"),
        ("data", "evil:load"),
        ("model", "evil:Net"),
        ("loss", "evil:loss"),
        ("backend", "ray:127.0.0.1:9"),
    ],
)
def test_the_spec_cannot_run_code(
    command: str, field: str, value: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = folder / "spec.toml"
    lines = [s for s in path.read_text().splitlines() if not s.startswith(f"{field} =")]
    path.write_text("\n".join([*lines, f'{field} = "{value}"']))
    assert "--trust-code" in refused(command, capfd)


@pytest.mark.parametrize("command", ["resume", "verify", "analyse"])
@pytest.mark.parametrize("field", ["algorithm", "loss", "model"])
def test_nor_can_the_spec_it_comes_from(
    command: str, field: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "origin.toml").write_text(f'at_round = 1\n[spec]\n{field} = "evil:x"\nrounds = 2\n')
    assert "--trust-code" in refused(command, capfd)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ["pipe", "endless", "link"])
@pytest.mark.parametrize(
    "name",
    [
        "spec.toml",
        "origin.toml",
        "summary.json",
        "rounds.jsonl",
        "env.json",
        "model.safetensors",
        "checkpoint.safetensors",
        "analysis",
    ],
)
def test_pipes_devices_and_links_are_not_read(
    command: str, kind: str, name: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = folder / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if kind == "endless" else "/tmp")
    said = refused(command, capfd)
    assert "plain file" in said or "no run folder" in said or "holds no" in said


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["rounds.jsonl", "summary.json", "env.json", "clients.json"])
@pytest.mark.parametrize("kind", ["pipe", "endless", "huge"])
def test_a_report_does_not_wait_for_them(
    name: str, kind: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = folder / name
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    else:
        with path.open("wb") as file:
            file.truncate(1 << 42)
    code = code_of(["report", "run", "--out", "page.html"])
    said = capfd.readouterr().err
    assert code in (0, 2) and "Traceback" not in said and "FEDRIFT_DEBUG" not in said, said


def forged(**changes: Any) -> checkpoint.Checkpoint:
    """A checkpoint that a stranger made, its hash being right."""
    n = np.zeros(7, np.int64)
    usual: dict[str, Any] = {"round": 1, "server": None, "buffers": (), "rows": {"": n - 1}}
    usual |= {"counted": (), "told": (), "seconds": 0.0, "sums": {"": n}}
    return checkpoint.Checkpoint(**(usual | changes))


FORGED: dict[str, dict[str, Any]] = {
    "rows that are no numbers": {"rows": {"": np.zeros(7)}},
    "rows of others": {"rows": {"../../x": np.zeros(7, np.int64)}},
    "strange clients": {"counted": (10**12,)},
    "negative clients": {"told": (-5,)},
    "a late round": {"round": 10**9},
    "lines before the beginning": {"lines": {"rounds.jsonl": (-1, 0)}},
    "lines elsewhere": {"lines": {"../victim": (0, 0)}},
    "another model": {"server": replace(SERVER, w=torch.zeros(3))},
}


@pytest.mark.parametrize("name", FORGED)
def test_forged_checkpoints_are_passed_over(name: str, tmp_path: Path) -> None:
    """The run goes on from the one before; its result is right all the same."""
    run, wanted = tmp_path / "run", small_run("scaffold", rounds=2)
    small_run("scaffold", rounds=2, out=run)
    (run / "summary.json").unlink()
    server = Scaffold().server(wanted.problem)
    checkpoint.write(run, forged(**({"server": server} | FORGED[name])))
    assert small_run("scaffold", rounds=2, out=run).fingerprint == wanted.fingerprint


@pytest.mark.parametrize("content", ['{"status": "done"}', '{"status": "done", "rounds": []}'])
def test_a_summary_without_numbers(
    content: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "summary.json").write_text(content)
    assert code_of(["resume", "run"]) == 2
    assert "damaged" in capfd.readouterr().err


@pytest.mark.parametrize("value", ['"x"', "[1]", "1.5", "null", "true"])
def test_lines_whose_round_is_no_number(
    value: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    line = (folder / "rounds.jsonl").read_text().splitlines()[0]
    first = line.replace('"round": 1', f'"round": {value}')
    (folder / "rounds.jsonl").write_text(f"{first}\n{line}\n")
    assert code_of(["verify", "run"]) == 1  # it cannot be verified
    assert "not verified: line 1 of 'run/rounds.jsonl' is damaged" in capfd.readouterr().err


def test_a_model_that_no_machine_holds(capfd: pytest.CaptureFixture[str]) -> None:
    assert code_of(["run", "fedavg", "--model", "mlp:hidden=100000000"]) == 2
    assert "20000" in capfd.readouterr().err


def test_a_folder_of_a_tracker_is_no_obstacle(folder: Path) -> None:
    (folder / "tensorboard" / "run").mkdir(parents=True)
    (folder / "tensorboard" / "run" / "events").write_bytes(b"x")
    assert code_of(["resume", "run", "--quiet"]) == 0


@pytest.mark.parametrize(
    "words", [["resume", "run"], ["run", "fedavg", "--rounds", "2", "--out", "run"]]
)
def test_a_folder_that_somebody_writes_is_refused_at_once(
    words: list[str],
    folder: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedrift.engine.prepare.prepare", lambda *_: pytest.fail("data were read"))
    with RunFolder.reopen(folder):
        assert code_of([*words, "--quiet"]) == 2
    assert "another process" in capfd.readouterr().err
