"""Input as an enemy: whatever the bytes, an error is one sentence, quick, and writes nothing.

The cases of all tests here together are 9,600; folders, lines and signals are those of
`make test-stress`.
"""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedrift.config.models import choose_model
from fedrift.config.privacy import parse_aggregate, parse_privacy
from fedrift.config.spec import FIELDS, read_toml
from fedrift.core.faults import parse_faults
from fedrift.data import manifest
from fedrift.errors import InputError, RunError
from fedrift.storage import jsonl
from fedrift.storage.fork import read_origin
from tests.support.problems import small_run
from tests.support.product import (
    Partition,
    Spec,
    catalogue,
    checkpoint,
    datasets,
    parse,
)
from tests.support.small_files import isolate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

HOW = settings(
    max_examples=1000,
    deadline=2000,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
SLOWER = settings(HOW, max_examples=300)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
WORDS = st.text(alphabet="abz019:=,.-_|() /\\\0\n\"'[]{}é", max_size=40)


def refused_or_read(act: Callable[[], object]) -> None:
    """It may work, or say in one sentence what is wrong; nothing else."""
    with contextlib.suppress(InputError, RunError):
        act()


def damaged(content: bytes) -> st.SearchStrategy[bytes]:
    """The content with some bytes changed, taken out or put in, or cut short."""

    def apply(changes: list[tuple[int, int, bytes]]) -> bytes:
        new = bytearray(content)
        for at, length, piece in changes:
            start = at % (len(new) + 1)
            new[start : start + length] = piece
        return bytes(new)

    change = st.tuples(st.integers(0, 1 << 20), st.integers(0, 40), st.binary(max_size=40))
    return st.lists(change, min_size=1, max_size=4).map(apply) | st.binary(max_size=200)


@HOW
@given(text=WORDS | st.text(max_size=60))
def test_names(text: str) -> None:
    for read in (
        lambda: parse(text, "x"),
        lambda: catalogue.check(parse(text, "algorithm")),
        lambda: datasets.check(text),
        lambda: choose_model(text),
        lambda: parse_faults([text]),
        lambda: parse_aggregate(text),
        lambda: parse_privacy(text),
    ):
        refused_or_read(read)


@HOW
@given(key=st.sampled_from(sorted(FIELDS)), value=JSON)
def test_fields_of_a_spec(key: str, value: Any) -> None:
    refused_or_read(lambda: Spec.of({key: value}).validate())


@HOW
@given(key=st.sampled_from(sorted(FIELDS)), text=WORDS)
def test_flags(key: str, text: str) -> None:
    refused_or_read(lambda: FIELDS[key].read(FIELDS[key].parse(text, key), key))


TOML = Spec(algorithm="scaffold:option=I", lr=0.1, participants=((0, 1), (2,))).to_toml().encode()


@HOW
@given(content=damaged(TOML))
def test_spec_files(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "spec.toml"
    path.write_bytes(content)
    refused_or_read(lambda: Spec.of(read_toml(path)).validate())
    (tmp_path / "origin.toml").write_bytes(b"at_round = 1\n[spec]\n" + content)
    refused_or_read(lambda: read_origin(tmp_path))


LABELS = np.arange(12) % 3
PARTS = Partition("iid", tuple(np.arange(i, 12, 3) for i in range(3)), 0)


@HOW
@given(data=st.data())
def test_manifests(data: st.DataObject, tmp_path: Path) -> None:
    path = manifest.save(PARTS, LABELS, tmp_path / "m.json")
    good = path.read_bytes()
    if data.draw(st.booleans()):
        path.write_bytes(data.draw(damaged(good)))
    else:
        content = json.loads(good)
        content[data.draw(st.sampled_from(sorted(content)))] = data.draw(JSON)
        path.write_text(json.dumps(content))
    refused_or_read(lambda: manifest.load(path, LABELS))


def npz(**arrays: np.ndarray) -> bytes:
    held = io.BytesIO()
    np.savez_compressed(held, allow_pickle=False, **arrays)
    return held.getvalue()


SMALL = npz(x=np.zeros((12, 4), np.float32), y=LABELS)


@HOW
@given(content=damaged(SMALL))
def test_npz_files(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(content)
    refused_or_read(lambda: datasets.load(f"npz:{path}"))


@HOW
@given(
    shape=st.lists(st.integers(-(2**40), 2**62), max_size=4),
    kind=st.sampled_from(["<f4", "|O", "<f8", "|S0", "<U99999", "<M8[ns]", "|V7", "<i8", ">c16"]),
    claimed=st.integers(0, 2**40),
)
def test_npz_headers_that_lie(shape: list[int], kind: str, claimed: int, tmp_path: Path) -> None:
    """Shape bombs: nothing is allocated on the word of a header."""
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {tuple(shape)}, }}".encode()
    head += b" " * (63 - (len(head) + 10) % 64) + b"\n"
    member = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + b"\0" * 64
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", member)
        archive.writestr("y.npy", member)
    refused_or_read(lambda: datasets.load(f"npz:{path}"))


CSV = b"path,label,user,split\na.png,0,u,train\nb.png,1,v,test\n"


@SLOWER
@given(table=damaged(CSV), picture=st.binary(max_size=100))
def test_tables_and_pictures(table: bytes, picture: bytes, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(table)
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"\x89PNG\r\n\x1a\n" + picture)
    refused_or_read(lambda: datasets.load(f"csv:{tmp_path / 't.csv'},root={tmp_path}"))


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    isolate(tmp_path, monkeypatch)
    return tmp_path


IDX = b"\x00\x00\x08\x03" + (2).to_bytes(4, "big") + (28).to_bytes(4, "big") * 2


@SLOWER
@given(content=damaged(IDX + b"\0" * 200))
def test_idx_files(content: bytes, offline: Path, tmp_path: Path) -> None:
    for name in (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ):
        (tmp_path / name).write_bytes(content)
    refused_or_read(lambda: datasets.load("mnist", tmp_path))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a run."""
    folder = tmp_path_factory.mktemp("fuzz") / "run"
    small_run("scaffold", out=folder, rounds=2)
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@HOW
@given(data=st.data())
def test_checkpoints(data: st.DataObject, finished: dict[str, bytes], tmp_path: Path) -> None:
    """Never taken for good; ValueError is what the caller passes over."""
    path = tmp_path / checkpoint.FILE
    good = finished[checkpoint.FILE]
    content = data.draw(damaged(good))
    path.write_bytes(content)
    with contextlib.suppress(ValueError):
        checkpoint.read(path, None)


@HOW
@given(content=st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode()))
def test_records(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    refused_or_read(lambda: jsonl.read_lines(path))
    refused_or_read(lambda: jsonl.read_file(path))
