"""The reader of run folders: clean records, or one sentence; never an error of its own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import fedrift as fr
from tests.support.problems import small_run
from tests.support.product import run_record

WRONG: list[Any] = [True, {"a": 1}, [None], [-1], 10**30]
LINES = {"rounds.jsonl": "round loss accuracy cohort bytes_up gradients seconds".split()}
LINES["ledger.jsonl"] = "round phase asked replied nonfinite down up gradients steps".split()
RECORDS = {"summary.json": "status rounds final_accuracy accuracy bytes_up seconds".split()}
RECORDS |= {"env.json": ["notes"], "clients.json": ["sizes", "counts", "scheme"]}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clean") / "run"
    small_run("scaffold", out=folder, rounds=2)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    for path in original.rglob("*"):
        if path.is_file():
            there = tmp_path / "run" / path.relative_to(original)
            there.parent.mkdir(parents=True, exist_ok=True)
            there.write_bytes(path.read_bytes())
    return tmp_path / "run"


def read(folder: Path) -> None:
    """All that a saved run tells."""
    run = fr.load(folder)
    assert isinstance(run, fr.SavedRun)
    assert repr(run) and run.rounds and run.accuracy and run.loss and run.seconds
    assert run.ledger.total.bytes_up
    fr.report(run, folder.parent / "page.html")


def told(folder: Path, file: str) -> str:
    with pytest.raises(fr.InputError) as error:
        read(folder)
    assert file in str(error.value), error.value
    return str(error.value)


@pytest.mark.parametrize(("file", "key"), [(f, k) for f, keys in LINES.items() for k in keys])
def test_lines_with_wrong_fields(file: str, key: str, folder: Path) -> None:
    path = folder / file
    lines = path.read_text().splitlines()
    for value in WRONG:
        path.write_text("\n".join([json.dumps({**json.loads(lines[0]), key: value}), *lines, ""]))
        assert "line 1" in told(folder, file)


@pytest.mark.parametrize(("file", "key"), [(f, k) for f, keys in RECORDS.items() for k in keys])
@pytest.mark.parametrize("value", [True, {"a": 1}, [None], 10**30, -3, "\ud800"], ids=repr)
def test_records_with_wrong_fields(file: str, key: str, value: Any, folder: Path) -> None:
    record = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**record, key: value}))
    told(folder, file)


def test_domains_of_which_no_client_has_any(folder: Path) -> None:
    record = json.loads((folder / "clients.json").read_text())
    domains = {"names": ["a", "b"], "of": [0] * len(record["sizes"]), "unseen": [0, 1]}
    (folder / "clients.json").write_text(json.dumps({**record, "domains": domains}))
    assert "'domains' is" in told(folder, "clients.json")


def test_a_ledger_without_those_who_replied(folder: Path) -> None:
    path = folder / "ledger.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    del rows[0]["replied"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "replied" in told(folder, "the ledger is damaged")


def test_rounds_out_of_order(folder: Path) -> None:
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    (folder / "rounds.jsonl").write_text("\n".join([lines[1], lines[0], ""]))
    assert "not in order" in told(folder, "rounds.jsonl")


@pytest.mark.parametrize(
    "kind", [torch.bfloat16, torch.float8_e4m3fn, torch.float16, torch.int64, torch.bool]
)
def test_weights_of_another_kind(kind: torch.dtype, folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({name: value.to(kind) for name, value in weights.items()}, folder / "forged")
    os.replace(folder / "forged", folder / "model.safetensors")
    with pytest.raises(fr.InputError, match=r"model\.safetensors|weights"):
        small_run("scaffold", out=folder, rounds=2)


def test_files_with_a_second_name_are_not_written(folder: Path, tmp_path: Path) -> None:
    (folder / "summary.json").unlink()
    os.link(folder / "rounds.jsonl", tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").read_bytes()
    with pytest.raises(fr.InputError, match="hard link"):
        small_run("scaffold", out=folder, rounds=2)
    assert (tmp_path / "elsewhere").read_bytes() == before
    assert len(run_record.load(folder).rounds) == 2, "reading is allowed"


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", ["model.safetensors", "checkpoint.safetensors"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(name: str, folder: Path) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    run = fr.load(folder)
    assert isinstance(run, fr.SavedRun)
    with pytest.raises(fr.InputError):
        run.tensors() if name.startswith("model") else small_run("scaffold", out=folder, rounds=2)


HALVES = ["\\ud800", "\\uDC00x", "\\ud800\\ud800"]


@pytest.mark.parametrize("file", [*LINES, *RECORDS])
@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("place", ["value", "name", "list"])
def test_halves_of_characters_are_damage(file: str, half: str, place: str, folder: Path) -> None:
    """JSON can spell them, and no file, page or terminal can hold them."""
    forms = {"value": f'"mine": "{half}"', "name": f'"{half}": 1', "list": f'"mine": [["{half}"]]'}
    text = (folder / file).read_text()
    (folder / file).write_text("{" + forms[place] + ", " + text.lstrip()[1:])
    told(folder, file)


@pytest.mark.parametrize("file", [*LINES, *RECORDS, "spec.toml"])
def test_so_are_bytes_that_are_no_text(file: str, folder: Path) -> None:
    with (folder / file).open("r+b") as kept:
        content = kept.read()
        kept.seek(0)
        kept.write(content.replace(b'"', b'"\xed\xa0\x80', 1))
    told(folder, file)
