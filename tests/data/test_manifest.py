"""Manifests: what is saved comes back, and nothing in the file is believed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedrift.data.manifest import labels_digest, load, save
from fedrift.data.partition import partition
from fedrift.errors import InputError, RunError
from tests.support.product import Partition

Y = np.arange(60) % 5


@pytest.fixture
def made() -> Partition:
    return partition("dirichlet:0.5", Y, clients=4, seed=3)


@pytest.fixture
def file(made: Partition, tmp_path: Path) -> Path:
    return save(made, Y, tmp_path / "split.json")


def test_round_trip(made: Partition, file: Path) -> None:
    loaded = load(file, Y.astype(np.uint8))
    assert (loaded.name, loaded.seed, loaded.digest) == ("dirichlet:0.5", 3, made.digest)
    again = partition(f"manifest:{file}", Y, seed=99)
    assert again.digest == made.digest and again.note == "dirichlet:0.5, seed 3"
    with pytest.raises(InputError, match="use clients=4"):
        partition(f"manifest:{file}", Y, clients=5, seed=0)


def test_the_file_is_plain_json_with_one_client_per_line(made: Partition, file: Path) -> None:
    content = json.loads(file.read_text())
    assert content["parts"] == [part.tolist() for part in made.parts]
    assert json.dumps(content["parts"][2], separators=(",", ":")) in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o644


def test_an_empty_client_survives(tmp_path: Path) -> None:
    made = Partition("mine", (np.arange(3), np.array([], np.int64)), 0)
    path = save(made, [0, 1, 2], tmp_path / "m.json")
    assert load(path, [0, 1, 2]).sizes.tolist() == [3, 0]


def test_targets_that_are_no_labels(tmp_path: Path) -> None:
    y = np.random.default_rng(0).random((8, 2))
    path = save(partition("iid", y, clients=2, seed=0), y, tmp_path / "m.json")
    assert load(path, y).clients == 2
    with pytest.raises(InputError, match="other labels"):
        load(path, y + 1)


def test_other_data_are_refused(file: Path) -> None:
    with pytest.raises(InputError, match="other labels or another order"):
        load(file, np.roll(Y, 1))
    with pytest.raises(InputError, match="made for 60 samples, but the data have 59"):
        load(file, Y[:-1])
    assert labels_digest(Y) != labels_digest(Y.reshape(12, 5))


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "format": ({"format": "zip"}, "no partition manifest"),
    "version": ({"version": 2}, "version is not known"),
    "boolean version": ({"version": True}, "version is not known"),
    "scheme": ({"scheme": 5}, "scheme must be"),
    "terminal codes": ({"scheme": "\x1b[2J"}, "scheme must be"),
    "long scheme": ({"scheme": "a" * 10_001}, "scheme must be"),
    "seed": ({"seed": "3"}, "seed must be"),
    "negative seed": ({"seed": -3}, "seed must be"),
    "clients": ({"clients": 5}, "a list of 5 lists"),
    "boolean clients": ({"clients": True}, "clients must be"),
    "samples": ({"samples": 60.0}, "samples must be"),
    "parts": ({"parts": {"0": []}}, "parts must be"),
    "hash": ({"parts_sha256": "0" * 64}, "changed or damaged"),
    "unknown key": ({"extra": 1}, "key 'extra' is not known"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_fields(file: Path, change: str) -> None:
    values, says = CHANGES[change]
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))
    with pytest.raises(InputError) as caught:
        load(file, Y)
    assert says in str(caught.value) and str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (lambda part: part[1:], "belongs to no client"),
        (lambda part: [part[0], *part], "already given away"),
        (lambda part: [*part[1:], 60], "outside 0 to 59"),
        (lambda part: [*part[1:], -1], "outside 0 to 59"),
        (lambda part: [*part[1:], 10**30], "outside 0 to 59"),
        (lambda part: [*part[1:], 1.0], "whole numbers"),
        (lambda part: [*part[1:], True], "whole numbers"),
        (lambda part: [*part[1:], None], "whole numbers"),
        (lambda part: [part], "whole numbers"),
        (lambda part: "0", "whole numbers"),
    ],
)
def test_changed_parts(file: Path, first, says) -> None:
    content = json.loads(file.read_text())
    content["parts"][0] = first(content["parts"][0])
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match=says):
        load(file, Y)


def test_a_sample_of_two_clients(file: Path) -> None:
    content = json.loads(file.read_text())
    content["parts"][1].append(content["parts"][0][0])
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match="client 1 has a sample that is already given away"):
        load(file, Y)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"seed": ' + b"9" * 10_000 + b"}",
        b'{"format": "fedrift-partition", "format": "fedrift-partition"}',
    ],
)
def test_what_is_no_json(file: Path, raw: bytes) -> None:
    file.write_bytes(raw)
    with pytest.raises(InputError, match="not valid JSON"):
        load(file, Y)


def test_a_file_too_large_for_the_data_is_not_parsed(file: Path) -> None:
    with file.open("ab") as out:
        out.write(b" " * (1 << 21))
    with pytest.raises(InputError, match="too large for these data"):
        load(file, Y)


def test_what_is_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.json", Path("\0")):
        with pytest.raises(InputError, match=r"no such file|cannot be read"):
            load(path, Y)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(key=st.sampled_from(["version", "scheme", "seed", "clients", "parts"]), value=VALUES)
def test_any_value_is_taken_or_refused_in_one_sentence(file: Path, key: str, value: object) -> None:
    whole = file.read_text()
    try:
        file.write_text(json.dumps({**json.loads(whole), key: value}))
        try:
            assert load(file, Y).samples == 60
        except InputError as error:
            assert str(file) in str(error)
    finally:
        file.write_text(whole)


def test_a_failed_save_leaves_the_old_file_and_no_other(made, file, monkeypatch) -> None:
    before = file.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match="No space left on device"):
        save(made, Y, file)
    assert file.read_bytes() == before and os.listdir(file.parent) == [file.name]


def test_save_refuses_other_targets(made: Partition, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="y has 59 samples, but the partition 60"):
        save(made, Y[:-1], tmp_path / "m.json")
    assert not list(tmp_path.iterdir())
