"""Secure aggregation over the apps in this process: masked sums, drop-outs and bad company."""

# pyright: reportMissingImports=false

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedrift as fr
from fedrift import api
from fedrift.federation import membership
from fedrift.federation.events import EVENTS
from tests.federation.test_federation import spec
from tests.support.federations import ABOUT, Federation, Meddle
from tests.support.flower_apps import FLOWER, Grid, as_in_app, written
from tests.support.product import load_run

pytest.importorskip("flwr", reason="needs fedrift[flower]")
pytestmark = FLOWER


@pytest.fixture
def in_app(monkeypatch: pytest.MonkeyPatch) -> None:
    as_in_app(monkeypatch)


@pytest.mark.usefixtures("in_app")
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fednova", "mimemom"])
def test_masked_runs_end_where_open_ones_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SecAgg+: nothing leaves a node unmasked, and only quantisation moves the result."""
    grid, record = masked_run(name, tmp_path, monkeypatch)
    here = api.run_spec(replace(spec(name, per_round=4), workers=0))
    off = [np.abs(record.weights()[k] - v.numpy()).max() for k, v in here.tensors().items()]
    assert 0 < max(off) < 2e-4, "0: the masks were not on"
    assert {key for row in record.ledger for key in row["up"]} == {"masked", "keys"}
    assert all(row["down"]["keys"][0] > 0 for row in record.ledger)
    for reply in grid.seen:
        arrays = [a for r in reply.content.array_records.values() for a in r.values()]
        assert not arrays, "an array left a node in the open"


def masked_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Any = None
) -> tuple[Grid, Any]:
    from flwr.app import Context, RecordDict

    from fedrift.federation import secagg

    monkeypatch.setattr(membership, "PAUSE", 0.0)
    monkeypatch.setattr(secagg, "PAUSE", 0.0)
    client, server = written(tmp_path / "app", spec(name, per_round=4))
    config: dict[str, Any] = {"out": str(tmp_path / "out"), "deadline": 100.0, "secagg": True}
    nodes = {
        700 + i: {"partition-id": i, "num-partitions": 4, "state-dir": str(tmp_path / f"s{i}")}
        for i in range(4)
    }
    grid = Grid(client.app if harm is None else harm(client.app), config, nodes)
    server.app(grid, Context(1, 1, {}, RecordDict(), config))
    return grid, load_run(tmp_path / "out" / "run")


@pytest.mark.usefixtures("in_app")
def test_the_keys_stand_in_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte of the protocol's records, counted independently where the messages pass."""
    passed = {"up": 0, "down": 0}

    def size(content: Any) -> int:
        record, total = content.config_records["secaggplus_configs"], 0
        for name, value in record.items():
            for item in value if isinstance(value, list) else [value]:
                total += len(item) if isinstance(item, (bytes, str)) else 8
            total += len(name)
        return total

    def listening(app: Any) -> Any:
        def answer(message: Any, context: Any) -> Any:
            if message.metadata.message_type != "train":
                return app(message, context)
            passed["down"] += size(message.content)
            reply = app(message, context)
            passed["up"] += size(reply.content)
            return reply

        return answer

    _, record = masked_run("scaffold", tmp_path, monkeypatch, listening)
    total = {way: sum(row[way]["keys"][0] for row in record.ledger) for way in passed}
    masked = sum(row["up"]["masked"][0] for row in record.ledger)
    assert total == {"up": passed["up"] - masked, "down": passed["down"]}


STAGES = ("setup", "share_keys", "collect_masked_vectors", "unmask")


def at_stage(stage: str, harm: Any, nodes: tuple[int, ...] = (702,)) -> Any:
    """An app that answers a stage as `harm` makes of the honest reply, at some nodes."""

    def harmed(app: Any) -> Any:
        def answer(message: Any, context: Any) -> Any:
            records = message.content.config_records
            now = records["secaggplus_configs"]["stage"] if "secaggplus_configs" in records else ""
            reply = app(message, context)
            if now == stage and context.node_id in nodes:
                harm(reply.content)
            return reply

        return answer

    return harmed


def gone(content: Any) -> None:
    raise RuntimeError("gone")


def replies_without_third(tmp_path: Path) -> Any:
    """Weights of a run in the open in which client 2 never answers."""
    federation = Federation(spec("scaffold", per_round=4), tmp_path / "open").everybody()
    third = sorted(federation.office.desks)[2]
    silent: Meddle = lambda kind, envelope, honest: honest if kind == ABOUT else "gone"  # noqa: E731
    federation.office.desks[third].meddle = silent
    return federation.run(deadline=100.0).tensors()


@pytest.mark.usefixtures("in_app")
@pytest.mark.parametrize("stage", STAGES)
def test_a_node_may_drop_out_at_any_stage(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, record = masked_run("scaffold", tmp_path, monkeypatch, at_stage(stage, gone))
    everybody = stage == "unmask"  # its vector is in the sum already
    assert all(
        row["replied"] == ([0, 1, 2, 3] if everybody else [0, 1, 3]) for row in record.ledger
    )
    if not everybody:
        expected = replies_without_third(tmp_path)
        off = [np.abs(record.weights()[k] - v.numpy()).max() for k, v in expected.items()]
        assert 0 < max(off) < 2e-4
    notes = (tmp_path / "out" / EVENTS).read_text()
    assert "round 1: client 2 dropped out: gone" in notes


def _replaced(name: str, value: Any) -> Any:
    def harm(content: Any) -> None:
        content.config_records["secaggplus_configs"][name] = value

    return harm


def _open_array(content: Any) -> None:
    from flwr.app import Array, ArrayRecord

    raw = Array(dtype="float32", shape=(1,), stype="fedrift.raw", data=bytes(4))
    content.array_records["up"] = ArrayRecord({"delta": raw})


def _no_record(content: Any) -> None:
    del content.config_records["secaggplus_configs"]


def _saved(*arrays: np.ndarray) -> list[bytes]:
    files = [io.BytesIO() for _ in arrays]
    for file, array in zip(files, arrays, strict=True):
        np.save(file, array, allow_pickle=True)
    return [file.getvalue() for file in files]


ONE = np.zeros(1, np.int64)
HARM: dict[str, tuple[str, Any, str]] = {
    "no record": ("setup", _no_record, "is not one of the stage"),
    "a key that is none": ("setup", _replaced("pk1", b"key"), "public key cannot be read"),
    "a number for a key": ("setup", _replaced("pk1", 3), "not made of bytes"),
    "another field": ("setup", _replaced("code", b"x"), "is not one of the stage"),
    "too few shares": ("share_keys", _replaced("dsts", [700]), "not one for each node"),
    "a huge share": ("share_keys", _replaced("ctxts", [bytes(1 << 16)] * 3), "above 4096 bytes"),
    "wrong shape": (
        "collect_masked_vectors",
        _replaced("masked_params", _saved(ONE, np.zeros(3, np.int64))),
        "expected is int64 of shape",
    ),
    "oversized": (
        "collect_masked_vectors",
        _replaced("masked_params", _saved(ONE, np.zeros(1 << 18, np.int64))),
        "bytes, at most are",
    ),
    "a pickle": (
        "collect_masked_vectors",
        _replaced("masked_params", _saved(ONE, np.array([{}], dtype=object))),
        "cannot be read",
    ),
    "fewer arrays": ("collect_masked_vectors", _replaced("masked_params", _saved(ONE)), "1 arrays"),
    "in the open": ("collect_masked_vectors", _open_array, "not masked"),
}


@pytest.mark.usefixtures("in_app")
@pytest.mark.parametrize("what", HARM)
def test_a_hostile_masked_reply_is_refused_and_the_run_goes_on(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, harm, says = HARM[what]
    _, record = masked_run("scaffold", tmp_path, monkeypatch, at_stage(stage, harm))
    assert record.summary["status"] == "done"
    assert all(row["replied"] == [0, 1, 3] for row in record.ledger)
    assert says in (tmp_path / "out" / EVENTS).read_text()


@pytest.mark.usefixtures("in_app")
def test_a_false_share_voids_the_round_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harm = at_stage("share_keys", _replaced("ctxts", [b"nonsense"] * 3))
    _, record = masked_run("scaffold", tmp_path, monkeypatch, harm)
    assert record.summary["status"] == "done"
    assert all(row["replied"] == [] for row in record.ledger)


@pytest.mark.usefixtures("in_app")
def test_the_sum_of_two_is_never_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower would unmask the sum of two of four; each of them could subtract its own."""
    harm = at_stage("collect_masked_vectors", gone, (701, 702))
    grid, record = masked_run("scaffold", tmp_path, monkeypatch, harm)
    assert all(row["replied"] == [] for row in record.ledger)
    for reply in grid.seen:
        if not reply.has_error():
            said = reply.content.config_records.get("secaggplus_configs", {})
            assert "shares" not in said, "a mask was taken off"


@pytest.mark.usefixtures("in_app")
def test_what_cannot_be_masked_is_refused_before_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(fr.InputError, match=r"secagg: 'train' cannot be masked"):
        masked_run("fedcm", tmp_path, monkeypatch)
