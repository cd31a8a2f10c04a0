"""`fedrift verify`: every file that it claims to have looked at, and only then to the last bit."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from fedrift.cli import code_of
from fedrift.cli.launch import modest
from fedrift.cli.second_run import Verdict, near
from fedrift.cli.verify import fingerprint_of
from fedrift.config.spec import Spec
from fedrift.engine.ledger import Ledger
from fedrift.engine.prepare import prepare
from fedrift.engine.result import figures
from fedrift.engine.task import task_from_spec
from fedrift.errors import RunError
from fedrift.storage import run_record

WORDS = "run scaffold --data digits --model logistic --clients 4 --rounds 2 --workers 0 -q".split()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify") / "run"
    assert code_of([*WORDS, "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "run")


def summary(**changes: Any) -> Callable[[Path], None]:
    def forge(folder: Path) -> None:
        path = folder / "summary.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return forge


def without(name: str, key: str) -> Callable[[Path], None]:
    def forge(folder: Path) -> None:
        path = folder / name
        kept = json.loads(path.read_text())
        del kept[key]
        path.write_text(json.dumps(kept))

    return forge


def identity(folder: Path) -> None:
    path = folder / "env.json"
    known = json.loads(path.read_text())
    known["identity"]["parts"]["clients"][0] = "0" * 16
    path.write_text(json.dumps(known))


def text(name: str, content: str) -> Callable[[Path], None]:
    def forge(folder: Path) -> None:
        (folder / name).write_text(content)

    return forge


def line(name: str, **changes: Any) -> Callable[[Path], None]:
    def forge(folder: Path) -> None:
        path = folder / name
        rows = [json.loads(row) for row in path.read_text().splitlines()]
        rows[0] |= changes
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    return forge


def unwatched(name: str, **changes: Any) -> Callable[[Path], None]:
    """The checkpoint knows the files of lines; without it only the second run does."""

    def forge(folder: Path) -> None:
        line(name, **changes)(folder)
        (folder / "checkpoint.safetensors").unlink()

    return forge


def flipped(name: str, where: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / name
        content = bytearray(path.read_bytes())
        content[int(where * len(content))] ^= 1
        path.write_bytes(bytes(content))

    return damage


def weights(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = sorted(tensors)[0]
    tensors[name] = np.nextafter(tensors[name], np.float32(9))
    save_file(tensors, folder / "model.safetensors")


DAMAGED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a better accuracy": (summary(final_accuracy=0.99, best_accuracy=0.99), "final_accuracy 0.99"),
    "fewer bytes": (summary(bytes_up=1), "bytes_up 1"),
    "another seed": (summary(seed=7), "seed 7"),
    "no status": (summary(status="perfect"), "status"),
    "a prize": (summary(prize=1), "has prize"),
    "a seed of another kind": (summary(seed="0"), "seed 0"),
    "another instruction set": (summary(instructions="ABACUS"), "instructions ABACUS"),
    "a place that is none": (summary(folder=[1]), "'folder' is"),
    **{
        f"no {name}": (without("summary.json", name), f"summary.json has no {name}")
        for name in (
            *("algorithm", "alpha", "diverged_at", "final_accuracy", "accuracy"),
            *("nonfinite_replies", "seconds", "fingerprint", "instructions", "folder"),
        )
    },
    "clients without a scheme": (without("clients.json", "scheme"), "scheme of clients.json"),
    "data of another run": (identity, "env.json is of another run (the clients' data)"),
    "a loss of training": (unwatched("training.jsonl", loss=[1.0] * 4), "loss was [1.0"),
    "a round of another kind": (line("rounds.jsonl", bytes_up=True), "'bytes_up' is"),
    "an empty summary": (text("summary.json", "{}"), "it has no 'status'"),
    "empty clients": (text("clients.json", "{}"), "counts of clients.json"),
    "an empty environment": (text("env.json", "{}"), "env.json has no fedrift"),
    "no identity": (without("env.json", "identity"), "env.json has no identity"),
    "no summary": (text("summary.json", "{"), "summary.json"),
    "exchanges": (line("ledger.jsonl", gradients=1), "gradient_evaluations"),
    "who replied": (line("ledger.jsonl", replied=[0]), "checkpoint"),
    "who trained": (line("training.jsonl", client=[0, 99]), "training.jsonl"),
    "a figure of training": (line("rounds.jsonl", train_loss=0.5), "rounds.jsonl"),
    "damaged exchanges": (text("ledger.jsonl", "x\n\n"), "ledger.jsonl"),
    "damaged clients": (text("clients.json", '{"sizes": "x"}'), "clients.json"),
    "other clients": (text("clients.json", '{"sizes": [1, 2, 3, 4]}'), "clients.json"),
    "damaged environment": (text("env.json", "[]"), "env.json"),
    "weights": (weights, "fingerprint"),
    "the checkpoint": (flipped("checkpoint.safetensors", 0.9), "checkpoint"),
    "client states": (flipped("clients/root.rows", 0.6), "client"),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_damage_is_a_failed_verification(
    what: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forge, says = DAMAGED[what]
    forge(folder)
    assert code_of(["verify", str(folder), "-q"]) == 1
    said = capsys.readouterr().err
    assert says in said and "FEDRIFT_DEBUG" not in said, said


def test_what_was_looked_at_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "analysis").mkdir()
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert code_of(["verify", str(folder), "-q"]) == 0
    said = capsys.readouterr().out
    assert "all 2 evaluated rounds agree to the last bit" in said
    names = "spec.toml env.json clients.json rounds.jsonl ledger.jsonl summary.json"
    for name in f"{names} model.safetensors checkpoint.safetensors".split():
        assert name in said.partition("; not at ")[0]
    assert "summary.json (but seconds, folder)" in said and "rounds.jsonl (but seconds)" in said
    assert said.rstrip().endswith("not at analysis")
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


PERSONAL = (
    "run fedper --data digits --model mlp:hidden=4 --clients 4 --rounds 2 --workers 0 -q "
    "--client-test 0.3 --eval-clients every=1"
).split()


def test_what_clients_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert code_of([*PERSONAL, "--out", str(folder)]) == 0
    assert code_of(["verify", str(folder), "-q"]) == 0
    assert "client_rounds.jsonl" in capsys.readouterr().out.partition("not at")[0]
    without("summary.json", "at_clients")(shutil.copytree(folder, tmp_path / "short"))
    assert code_of(["verify", str(tmp_path / "short"), "-q"]) == 1
    assert "summary.json has no at_clients" in capsys.readouterr().err
    unwatched("client_rounds.jsonl", loss=[0.5] * 4)(folder)
    assert code_of(["verify", str(folder), "-q"]) == 1
    assert "round 1: loss was [0.5" in capsys.readouterr().err


def test_a_spot_check_says_what_it_leaves_out(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary(status="stopped")(folder)
    assert code_of(["verify", str(folder), "-q", "--rounds", "1"]) == 0
    said = capsys.readouterr().out
    assert (
        "summary.json (but seconds, folder, status, diverged_at, continuations, beginnings)" in said
    )
    assert code_of(["verify", str(folder), "-q"]) == 1
    assert "status was stopped, is done now" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_what_is_no_run_folder_is_a_wrong_input(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert code_of(["verify", str(tmp_path / name)]) == 2


def test_states_of_clients_that_are_gone(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "clients" / "root.rows").unlink()
    assert code_of(["verify", str(folder), "--quiet"]) == 1
    assert "root.rows cannot be read" in capfd.readouterr().err


ELSEWHERE = ("instructions was ABACUS",)


@pytest.mark.parametrize(
    ("verdict", "says"),
    [
        (Verdict("all agree", ()), "verified: all agree"),
        (
            Verdict("", ("loss was 1, is 2 now",), ELSEWHERE, 1e-7),
            "cannot be compared bit for bit (instructions was ABACUS): within 1e-6 of it",
        ),
    ],
)
def test_what_is_said_of_bits(verdict: Verdict, says: str) -> None:
    assert verdict.sentence() == says


@pytest.mark.parametrize("distance", [None, 1e-5, float("nan"), float("inf")])
def test_what_is_too_far_is_not_the_same_run(distance: float | None) -> None:
    with pytest.raises(RunError, match="loss was 1"):
        Verdict("", ("loss was 1, is 2 now",), ELSEWHERE, distance).sentence()


def test_runs_of_another_instruction_set(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there"
    words = [sys.executable, "-m", "fedrift", *WORDS, "--out", str(there)]
    subprocess.run(words, env={**os.environ, "ATEN_CPU_CAPABILITY": "default"}, check=True)
    assert code_of(["verify", str(there), "-q"]) == 0
    said = capsys.readouterr().out
    prints = [json.loads((f / "summary.json").read_text()) for f in (folder, there)]
    if prints[0]["fingerprint"] != prints[1]["fingerprint"]:
        assert prints[0]["instructions"] != prints[1]["instructions"]
        assert said.startswith("cannot be compared bit for bit (instructions was ")
        assert "): within 1e-6 of it; looked at spec.toml" in said


def elsewhere(folder: Path, name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """A forger who says that it was another processor: lines are others, all hashes made to fit."""
    env, path = json.loads((folder / "env.json").read_text()), folder / name
    (folder / "env.json").write_text(json.dumps(env | {"instructions": "ABACUS/12345678"}))
    rows = [json.loads(text) for text in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row | change(row)) + "\n" for row in rows))
    (folder / "checkpoint.safetensors").unlink()
    record = run_record.load(folder)
    told = figures(record.rounds, Ledger.of(record.ledger), record.clients)
    task = task_from_spec(record.spec, prepare(record.spec))
    told |= {"instructions": "ABACUS/12345678", "fingerprint": fingerprint_of(record, task)}
    summary(**told)(folder)


def nudged(value: Any) -> Any:
    """As far away as other last bits may have it."""
    if isinstance(value, list):
        return [nudged(one) for one in value]
    return value * (1 - 1e-7) if isinstance(value, float) else value


def one_more(row: dict[str, Any]) -> dict[str, Any]:
    correct, total = list(row["class_correct"]), row["class_total"]
    correct[0] += 1 if correct[0] < total[0] else -1
    found = [a / b for a, b in zip(correct, total, strict=True)]
    return {"class_correct": correct, "classes": found, "accuracy": sum(correct) / row["n"]}


ROUNDED: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "last digits": ("rounds.jsonl", lambda row: {k: nudged(v) for k, v in row.items()}, ""),
    "reports": ("training.jsonl", lambda row: {k: nudged(v) for k, v in row.items()}, ""),
    "one sample": ("rounds.jsonl", one_more, ""),
    "accuracy": ("rounds.jsonl", lambda row: {"accuracy": 0.99}, "accuracy was 0.99"),
    "two classes": ("rounds.jsonl", lambda row: {"classes": [0.9] * 10}, "classes was [0.9"),
    "who took part": ("rounds.jsonl", lambda row: {"cohort": [0, 1, 2]}, "cohort was [0, 1, 2]"),
    "training": ("rounds.jsonl", lambda row: {"train_accuracy": 0.99}, "train_accuracy was 0.99"),
    "its loss": ("rounds.jsonl", lambda row: {"train_loss": 0.1}, "train_loss was 0.1"),
    "clients": ("training.jsonl", lambda row: {"accuracy": [0.9] * 4}, "accuracy was [0.9"),
    "the cost": ("ledger.jsonl", lambda row: {"gradients": 1}, "gradients was 1"),
}


@pytest.mark.parametrize("what", ROUNDED)
def test_rounding_explains_last_digits_only(
    what: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, change, says = ROUNDED[what]
    elsewhere(folder, name, change)
    assert code_of(["verify", str(folder), "-q"]) == (1 if says else 0)
    said = "".join(capsys.readouterr())
    assert "cannot be compared bit for bit (instructions was ABACUS/12345678, is " in said
    assert (f": {says}" in said and "no matter of bits" in said) if says else "1e-6 of it" in said


@pytest.mark.parametrize("value", [math.nan, math.inf, [1.0, math.nan], None, "a"])
def test_what_has_the_same_bits_is_near(value: Any) -> None:
    """A figure that is no number agrees with itself; with numbers it does not."""
    assert near({"a_loss": value}, {"a_loss": value}, "a_loss")
    assert not near({"a_loss": value}, {"a_loss": 0.5}, "a_loss")
    assert not near({"a_loss": 0.5}, {"a_loss": value}, "a_loss")


def test_nor_does_it_explain_how_a_run_ended(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere(folder, "rounds.jsonl", lambda row: {})
    summary(status="diverged", diverged_at=2)(folder)
    assert code_of(["verify", str(folder), "-q"]) == 1
    assert "status was diverged, is done now, which is no matter" in capsys.readouterr().err


def test_texts_of_earlier_versions_are_said_not_to_be_looked_at(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary(continuations=["Once upon a time"])(folder)
    assert code_of(["verify", str(folder), "-q"]) == 0
    assert "summary.json (but seconds, folder, continuations)" in capsys.readouterr().out


def test_the_instruction_set_stands_beside_the_fingerprint(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = json.loads((folder / "summary.json").read_text())
    assert known["instructions"].startswith(torch.backends.cpu.get_cpu_capability())
    assert code_of(["resume", str(folder)]) == 0
    assert f"{known['fingerprint']} ({known['instructions']})" in capsys.readouterr().out


def test_workers_of_a_stranger_are_not_started() -> None:
    assert modest(Spec(workers=500)).workers == "auto"
    assert [modest(Spec(workers=n)).workers for n in (0, 1, "auto")] == [0, 1, "auto"]
