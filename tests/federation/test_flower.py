"""Flower: envelopes as records, the apps over a grid in this process, what `init` writes."""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedrift as fr
from fedrift import api
from fedrift.backends.codec import Piece, Refused
from fedrift.cli import code_of
from fedrift.federation import membership, remote
from fedrift.federation.events import EVENTS
from tests.federation.test_federation import spec
from tests.support.federations import Envelope, FederationConfig
from tests.support.flower_apps import FLOWER, Grid, as_in_app, written
from tests.support.product import load_run

pytest.importorskip("flwr", reason="needs fedrift[flower]")
pytestmark = FLOWER


def test_a_envelope_comes_back() -> None:
    from fedrift.federation.flower import from_records, to_records

    sent = Envelope(
        {"phase": "train", "round": 3, "temperature": 0.5},
        {
            "down": {
                "w": Piece("float32", (2,), bytes(8)),
                "opt.count": Piece("int64", (), b"1" * 8),
            }
        },
    )
    back = from_records(to_records(sent))
    assert dict(back.header) == dict(sent.header)
    assert {k: dict(v) for k, v in back.parts.items()} == sent.parts


def test_strange_records_are_refused() -> None:
    from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

    from fedrift.federation.flower import from_records

    raw = Array(dtype="float32", shape=(1,), stype="fedrift.raw", data=bytes(4))
    other = Array(dtype="float32", shape=(1,), stype="numpy.ndarray", data=bytes(4))
    header = {"fedrift": ConfigRecord({"a": 1})}
    cases: list[dict[str, Any]] = [
        {},
        {"other": ConfigRecord({"a": 1})},
        {**header, "other": ConfigRecord({"a": 1})},
        {**header, "m": MetricRecord({"a": 1.0})},
        {**header, "code": ArrayRecord({"x": raw})},
        {**header, "up": ArrayRecord({"x": other})},
    ]
    for records in cases:
        with pytest.raises(Refused):
            from_records(RecordDict(records))


@pytest.fixture
def in_app(monkeypatch: pytest.MonkeyPatch) -> None:
    as_in_app(monkeypatch)


@pytest.mark.usefixtures("in_app")
@pytest.mark.parametrize(
    ("name", "adapter"),
    [("scaffold", None), ("mimemom", None), ("scaffold", "lora:rank=2,how=exact")],
)
def test_the_apps_give_the_same_bits(
    name: str, adapter: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flwr.app import Context, RecordDict

    monkeypatch.setattr(membership, "PAUSE", 0.0)
    monkeypatch.setattr(remote, "PAUSE", 0.0)
    client, server = written(tmp_path / "app", replace(spec("fedavg"), adapter=adapter))
    config: dict[str, Any] = {"algorithm": name, "rounds": 3, "out": str(tmp_path / "out")}
    config |= {"min-nodes": 0, "deadline": 100.0, "test": ""}
    nodes = {
        700 + i: {"partition-id": i, "num-partitions": 4, "state-dir": str(tmp_path / f"s{i}")}
        for i in range(4)
    }
    grid = Grid(client.app, config, nodes)
    server.app(grid, Context(1, 1, {}, RecordDict(), config))
    here = api.run_spec(replace(spec(name), adapter=adapter, workers=0))
    record = load_run(tmp_path / "out" / "run")
    assert record.summary["fingerprint"] == here.fingerprint
    rows = [dict(row) for row in record.ledger]
    for row in rows:  # what training reports travels beside, where there was any
        assert (row.pop("reported", 0) > 0) == (row["steps"] > 0)
    assert rows == here.ledger.rows()
    events = [json.loads(x) for x in (tmp_path / "out" / EVENTS).read_text().splitlines()]
    assert events[-1]["event"] == "finished"


@pytest.mark.usefixtures("in_app")
def test_a_site_whose_data_do_not_fit_is_told_why(tmp_path: Path) -> None:
    from flwr.app import Context, Message, RecordDict

    from fedrift.federation.flower import from_records, to_records

    client, _ = written(tmp_path / "app", spec("fedavg"))
    np.savez(tmp_path / "bad.npz", x=np.zeros((3, 1, 2, 2), np.float32), y=np.zeros(3, np.int64))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"partition-id": 0, "data": str(tmp_path / "bad.npz")}, "samples of shape"),
        ({"partition-id": 0, "data": str(tmp_path / "none.npz")}, "is not a file"),
        ({}, "partition-id is missing"),
        ({"partition-id": 9}, "partition-id=9 must be from 0 to 3"),
    ]
    for node, says in cases:
        message = Message(to_records(Envelope({"a": 1})), dst_node_id=1, message_type="query")
        message.metadata.__dict__["_message_id"] = "1"
        reply = client.app(message, Context(1, 1, node, RecordDict(), {}))
        assert re.search(says, str(from_records(reply.content).header["refused"]))


def test_init_writes_an_app_from_a_spec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "spec.toml"
    file.write_text(spec("scaffold").to_toml())
    assert code_of(["flower", "init", str(tmp_path / "My App"), "--spec", str(file)]) == 0
    config = FederationConfig.read(tmp_path / "My App" / "federated" / "fedrift.toml")
    assert config.clients == 4 and config.shape == (1, 8, 8) and config.classes == 10
    assert 'name = "my-app"' in (tmp_path / "My App" / "pyproject.toml").read_text()
    capsys.readouterr()
    assert code_of(["flower", "init", str(tmp_path / "My App"), "--spec", str(file)]) == 2
    assert "is not empty" in capsys.readouterr().err
    elsewhere = ["flower", "init", str(tmp_path / "x"), "--spec", str(file)]
    assert code_of([*elsewhere, "--shape", "3,4,4", "--classes", "7"]) == 0
    made = FederationConfig.read(tmp_path / "x" / "federated" / "fedrift.toml")
    assert made.shape == (3, 4, 4) and not made.named


def test_data_that_only_the_sites_know_are_not_made_up(tmp_path: Path) -> None:
    """No samples of another data set at a site or the server, and none in the record of the run."""
    from fedrift.federation.sources import site_samples, test_samples
    from fedrift.federation.task import make_server_task

    config = FederationConfig(spec("fedavg"), (1, 8, 8), 10, 4, named=False)
    (tmp_path / "fedrift.toml").write_text(config.to_toml())
    again = FederationConfig.read(tmp_path / "fedrift.toml")
    assert test_samples(again, {"test": ""}) is None
    with pytest.raises(fr.InputError, match="put a loader into federated"):
        site_samples(again, {"partition-id": 0})
    assert make_server_task(again).about["data"] == "python"


def test_papers_are_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    folder = tmp_path / "papers"
    assert code_of(["flower", "papers", str(folder), "--nodes", "2", "--host", "fl.example"]) == 0
    server = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
    authority = x509.load_pem_x509_certificate((folder / "authority.crt").read_bytes())
    server.verify_directly_issued_by(authority)
    load_ssh_private_key((folder / "node1").read_bytes(), None)
    assert (folder / "node1").stat().st_mode & 0o77 == 0
    assert code_of(["flower", "papers", str(folder)]) == 2
    assert "exists" in capsys.readouterr().err


def test_help_is_given_without_flwr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    monkeypatch.delitem(sys.modules, "fedrift.federation.flower", raising=False)
    with pytest.raises(fr.InputError, match=r"pip install 'fedrift\[flower\]'"):
        importlib.import_module("fedrift.federation.flower")
