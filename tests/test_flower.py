"""Flower: letters as records, the apps over a grid in this process, and real federations."""

# pyright: reportMissingImports=false

from __future__ import annotations

import copy
import importlib.util
import itertools
import json
import re
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fedrift as fr
from fedrift import front
from fedrift.backends import remote, roster
from fedrift.backends.codec import Piece, Refused
from fedrift.backends.letters import Letter
from fedrift.cli import code_of
from fedrift.experiment import Spec
from fedrift.federation.charter import Charter
from fedrift.federation.template import write_app
from fedrift.federation.told import EVENTS
from fedrift.prepare import prepare
from fedrift.results import load
from test_federation import spec

pytest.importorskip("flwr", reason="needs fedrift[flower]")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_a_letter_comes_back() -> None:
    from fedrift.backends.flower import from_records, to_records

    sent = Letter(
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

    from fedrift.backends.flower import from_records

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
    """Flower's messages can be made inside an app only; this is as if."""
    from flwr.supercore.task_identity import TaskIdentity

    monkeypatch.setattr(TaskIdentity, "_run_id", 1)
    monkeypatch.setattr(TaskIdentity, "_node_id", 1)
    monkeypatch.setattr(TaskIdentity, "_task_id", 1)


def written(folder: Path, what: Spec) -> tuple[ModuleType, ModuleType]:
    """The modules of an app that was just written."""
    write_app(folder, Charter.of(what, prepare(what)), 60.0)
    found: list[ModuleType] = []
    for name in ("client", "server"):
        at = importlib.util.spec_from_file_location(
            f"written_{name}", folder / "federated" / f"{name}.py"
        )
        assert at is not None and at.loader is not None
        module = importlib.util.module_from_spec(at)
        at.loader.exec_module(module)
        found.append(module)
    return found[0], found[1]


class Grid:
    """Flower's grid with nodes in this process."""

    def __init__(self, app: Any, config: dict[str, Any], nodes: dict[int, dict[str, Any]]) -> None:
        self._app, self._config, self._nodes = app, config, nodes
        self._replies: dict[str, Any] = {}
        self._contexts: dict[int, Any] = {}
        self._count = itertools.count()
        self.seen: list[Any] = []

    def get_node_ids(self) -> list[int]:
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        from flwr.app import Context, Error, Message, RecordDict

        tickets: list[str] = []
        for message in messages:
            ticket = f"message {next(self._count)}"
            message.metadata.__dict__["_message_id"] = ticket
            node = message.metadata.dst_node_id
            new = Context(1, node, self._nodes[node], RecordDict(), self._config)
            context = self._contexts.setdefault(node, new)
            try:
                reply = self._app(copy.deepcopy(message), context)
            except Exception as error:
                reply = Message(Error(2, str(error)), reply_to=message)
            self._replies[ticket] = reply
            self.seen.append(reply)
            tickets.append(ticket)
        return tickets

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Any:
        assert timeout is not None, "every exchange has a deadline"
        return self.pull_messages(self.push_messages(messages))

    def pull_messages(self, ids: Iterable[str]) -> list[Any]:
        return [self._replies.pop(i) for i in list(ids) if i in self._replies]


@pytest.mark.usefixtures("in_app")
@pytest.mark.parametrize("name", ["scaffold", "mimemom"])
def test_the_apps_give_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flwr.app import Context, RecordDict

    monkeypatch.setattr(roster, "PAUSE", 0.0)
    monkeypatch.setattr(remote, "PAUSE", 0.0)
    client, server = written(tmp_path / "app", spec("fedavg"))
    config: dict[str, Any] = {"algorithm": name, "rounds": 3, "out": str(tmp_path / "out")}
    config |= {"min-nodes": 0, "deadline": 5.0, "test": ""}
    nodes = {
        700 + i: {"partition-id": i, "num-partitions": 4, "state-dir": str(tmp_path / f"s{i}")}
        for i in range(4)
    }
    grid = Grid(client.app, config, nodes)
    server.app(grid, Context(1, 1, {}, RecordDict(), config))
    here = front.run_spec(replace(spec(name), workers=0))
    record = load(tmp_path / "out" / "run")
    assert record.summary["fingerprint"] == here.fingerprint
    assert list(record.ledger) == here.ledger.rows()
    events = [json.loads(x) for x in (tmp_path / "out" / EVENTS).read_text().splitlines()]
    assert events[-1]["event"] == "finished"


@pytest.mark.usefixtures("in_app")
def test_a_site_whose_data_do_not_fit_is_told_why(tmp_path: Path) -> None:
    from flwr.app import Context, Message, RecordDict

    from fedrift.backends.flower import from_records, to_records

    client, _ = written(tmp_path / "app", spec("fedavg"))
    np.savez(tmp_path / "bad.npz", x=np.zeros((3, 1, 2, 2), np.float32), y=np.zeros(3, np.int64))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"partition-id": 0, "data": str(tmp_path / "bad.npz")}, "samples of shape"),
        ({"partition-id": 0, "data": str(tmp_path / "none.npz")}, "is not a file"),
        ({}, "partition-id is missing"),
        ({"partition-id": 9}, "partition-id=9 must be from 0 to 3"),
    ]
    for node, says in cases:
        message = Message(to_records(Letter({"a": 1})), dst_node_id=1, message_type="query")
        message.metadata.__dict__["_message_id"] = "1"
        reply = client.app(message, Context(1, 1, node, RecordDict(), {}))
        assert re.search(says, str(from_records(reply.content).header["refused"]))


@pytest.mark.usefixtures("in_app")
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fednova", "mimemom"])
def test_masked_runs_end_where_open_ones_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SecAgg+: nothing leaves a node unmasked, and only quantisation moves the result."""
    grid, record = masked_run(name, tmp_path, monkeypatch)
    here = front.run_spec(replace(spec(name, per_round=4), workers=0))
    off = [np.abs(record.weights()[k] - v.numpy()).max() for k, v in here.tensors().items()]
    assert 0 < max(off) < 2e-4, "0: the masks were not on"
    assert {key for row in record.ledger for key in row["up"]} == {"masked"}
    for reply in grid.seen:
        arrays = [a for r in reply.content.array_records.values() for a in r.values()]
        assert not arrays, "an array left a node in the open"


def masked_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Any = None
) -> tuple[Grid, Any]:
    from flwr.app import Context, RecordDict

    monkeypatch.setattr(roster, "PAUSE", 0.0)
    client, server = written(tmp_path / "app", spec(name, per_round=4))
    config: dict[str, Any] = {"out": str(tmp_path / "out"), "deadline": 5.0, "secagg": True}
    nodes = {
        700 + i: {"partition-id": i, "num-partitions": 4, "state-dir": str(tmp_path / f"s{i}")}
        for i in range(4)
    }
    grid = Grid(client.app if harm is None else harm(client.app), config, nodes)
    server.app(grid, Context(1, 1, {}, RecordDict(), config))
    return grid, load(tmp_path / "out" / "run")


@pytest.mark.usefixtures("in_app")
def test_a_node_that_drops_out_of_a_masked_round_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shares its keys and then never sends its vector: its masks are taken out of the sum."""

    def harm(app: Any) -> Any:
        def answer(message: Any, context: Any) -> Any:
            if "down" in message.content.array_records and context.node_id == 702:
                raise RuntimeError("gone")
            return app(message, context)

        return answer

    _, record = masked_run("scaffold", tmp_path, monkeypatch, harm)
    assert all(row["replied"] == [0, 1, 3] for row in record.ledger)
    assert record.summary["status"] == "done"


@pytest.mark.usefixtures("in_app")
def test_what_cannot_be_masked_is_refused_before_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(fr.InputError, match=r"secagg: 'train' cannot be masked"):
        masked_run("fedcm", tmp_path, monkeypatch)


def test_init_writes_an_app_from_a_spec(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "spec.toml"
    file.write_text(spec("scaffold").to_toml())
    assert code_of(["flower", "init", str(tmp_path / "My App"), "--spec", str(file)]) == 0
    charter = Charter.read(tmp_path / "My App" / "federated" / "fedrift.toml")
    assert charter.clients == 4 and charter.shape == (1, 8, 8) and charter.classes == 10
    assert 'name = "my-app"' in (tmp_path / "My App" / "pyproject.toml").read_text()
    capsys.readouterr()
    assert code_of(["flower", "init", str(tmp_path / "My App"), "--spec", str(file)]) == 2
    assert "is not empty" in capsys.readouterr().err
    elsewhere = ["flower", "init", str(tmp_path / "x"), "--spec", str(file)]
    assert code_of([*elsewhere, "--shape", "3,4,4", "--classes", "7"]) == 0
    assert Charter.read(tmp_path / "x" / "federated" / "fedrift.toml").shape == (3, 4, 4)


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


# Real federations: a SuperLink and SuperNodes as processes, TLS and authentication on.

DEPLOYED = 600


def news(file: Path, wanted: str, seconds: float = 240.0) -> dict[str, Any]:
    """The first event of a kind; fails when it does not come."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for line in file.read_text().splitlines() if file.exists() else ():
            row = json.loads(line)
            if row["event"] == wanted or (row["event"] == "round" and wanted == row["round"]):
                return row
            assert row["event"] != "failed", row
        time.sleep(0.3)
    raise AssertionError(f"no '{wanted}' after {seconds} seconds: {file}")


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Three SuperNodes with a key each, at a SuperLink that knows them."""
    from fedrift.federation.loopback import Loopback
    from fedrift.federation.papers import make_papers

    home = tmp_path_factory.mktemp("deployed")
    names = [f"node{i}" for i in range(3)]
    here = Loopback(home / "net", make_papers(home / "p", [*names, "stranger"], ["127.0.0.1"]))
    try:
        here.start_link()
        for i, name in enumerate(names):
            here.register(name)
            here.start_node(name, node(home, i))
        yield here, home
    finally:
        here.stop()


def node(home: Path, i: int) -> dict[str, Any]:
    return {"partition-id": i, "num-partitions": 3, "state-dir": home / f"state{i}"}


@pytest.mark.slow
@pytest.mark.timeout(DEPLOYED)
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "mimemom"])
def test_a_deployed_federation_gives_the_same_bits(name: str, deployed: Any) -> None:
    here, home = deployed
    what = spec(name, clients=3, rounds=2)
    write_app(home / f"app {name}", Charter.of(what, prepare(what)), 120.0)
    out = home / f"out {name}"
    here.start_app(home / f"app {name}", {"out": out})
    assert news(out / EVENTS, "finished")["status"] == "done"
    simulated = front.run_spec(replace(what, workers=0))
    record = load(out / "run")
    assert record.summary["fingerprint"] == simulated.fingerprint
    assert list(record.ledger) == simulated.ledger.rows()


@pytest.mark.slow
@pytest.mark.timeout(DEPLOYED)
def test_a_killed_node_returns(deployed: Any) -> None:
    here, home = deployed
    what = spec("scaffold", clients=3, rounds=8)
    write_app(home / "app", Charter.of(what, prepare(what)), 120.0)
    out = home / "out"
    config: dict[str, Any] = {"out": out, "min-nodes": 2}
    here.start_app(home / "app", config)
    news(out / EVENTS, 1)  # type: ignore[arg-type]
    here.kill("node2")
    here.start_node("node2", node(home, 2))
    news(out / EVENTS, "finished", 400.0)
    replied = [len(row["replied"]) for row in load(out / "run").ledger]
    assert len(replied) == 8 and replied[0] == 3 and min(replied) >= 1


@pytest.mark.slow
@pytest.mark.timeout(DEPLOYED)
def test_a_killed_server_goes_on_and_ends_as_if_nothing_had_happened(deployed: Any) -> None:
    import os
    import signal

    from fedrift.federation.loopback import descendants

    here, home = deployed
    what = spec("scaffold", clients=3, rounds=5, seed=1)
    write_app(home / "app killed", Charter.of(what, prepare(what)), 120.0)
    out = home / "out killed"
    here.start_app(home / "app killed", {"out": out})
    news(out / EVENTS, 2)  # type: ignore[arg-type]
    below = descendants(here.started["superlink"].pid)
    found = [p for p in below if b"flwr-serverapp" in Path(f"/proc/{p}/cmdline").read_bytes()]
    assert found
    for process in found:
        os.kill(process, signal.SIGKILL)
    lines = len((out / EVENTS).read_text().splitlines())
    here.start_app(home / "app killed", {"out": out})
    news(out / EVENTS, "finished", 400.0)
    assert len((out / EVENTS).read_text().splitlines()) > lines
    simulated = front.run_spec(replace(what, workers=0))
    record = load(out / "run")
    assert record.summary["fingerprint"] == simulated.fingerprint
    assert list(record.ledger) == simulated.ledger.rows()


@pytest.mark.slow
@pytest.mark.timeout(DEPLOYED)
def test_a_deployed_federation_with_masks(deployed: Any) -> None:
    here, home = deployed
    what = spec("scaffold", clients=3, rounds=1)
    write_app(home / "app masked", Charter.of(what, prepare(what)), 120.0)
    out = home / "out masked"
    here.start_app(home / "app masked", {"out": out, "secagg": True})
    news(out / EVENTS, "finished", 400.0)
    record, own = load(out / "run"), front.run_spec(replace(what, workers=0))
    off = [np.abs(record.weights()[k] - v.numpy()).max() for k, v in own.tensors().items()]
    assert 0 < max(off) < 2e-4
    assert [row["replied"] for row in record.ledger] == [[0, 1, 2]]


class Meter:
    """Passes bytes between nodes and the SuperLink and counts them."""

    def __init__(self, to: int) -> None:
        import socket

        self.up = self.down = 0
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread(self._accept)

    @staticmethod
    def _thread(run: Any, *arguments: Any) -> None:
        import threading

        threading.Thread(target=run, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        import socket
        from contextlib import suppress

        with suppress(OSError):
            while True:
                node, _ = self._listener.accept()
                link = socket.create_connection(("127.0.0.1", self._to))
                self._thread(self._pass, node, link, "up")
                self._thread(self._pass, link, node, "down")

    def _pass(self, source: Any, target: Any, way: str) -> None:
        from contextlib import suppress

        with suppress(OSError):
            while data := source.recv(1 << 16):
                setattr(self, way, getattr(self, way) + len(data))
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(1)

    def close(self) -> None:
        self._listener.close()


@pytest.mark.slow
@pytest.mark.timeout(DEPLOYED)
def test_the_wire_carries_what_the_ledger_says(tmp_path: Path) -> None:
    """A payload of more than 1 MB: within 3 % of the ledger, the start of the app aside."""
    from fedrift.federation.loopback import Loopback

    what = spec("fedavg", clients=2, per_round=2, rounds=4, model="mlp:hidden=520")
    write_app(tmp_path / "app", Charter.of(what, prepare(what)), 120.0)
    here = Loopback(tmp_path / "net")
    out, counts = tmp_path / "out", list[tuple[int, int]]()
    try:
        here.start_link()
        meter = Meter(here.port)
        for i in range(2):
            here.start_node(f"node{i}", node(tmp_path, i), superlink=f"127.0.0.1:{meter.port}")
        here.start_app(tmp_path / "app", {"out": out})
        for number in (1, 4):
            news(out / EVENTS, number)  # type: ignore[arg-type]
            counts.append((meter.up, meter.down))
        news(out / EVENTS, "finished")
        meter.close()
    finally:
        here.stop()
    rows = load(out / "run").ledger[1:]
    payload = sum(row["up"]["delta"][0] for row in rows), sum(row["down"]["w"][0] for row in rows)
    assert min(payload) > 6 * 1_000_000
    for way in (0, 1):
        measured = counts[1][way] - counts[0][way]
        print("up" if way == 0 else "down", measured, payload[way], measured / payload[way])
        assert 1.0 <= measured / payload[way] < 1.03


@pytest.mark.slow
@pytest.mark.timeout(DEPLOYED)
def test_strangers_and_plain_text_are_refused(deployed: Any) -> None:
    here, home = deployed
    attempts: list[tuple[str, bool]] = [("stranger", False), ("nokey", False), ("plain", True)]
    for name, plain in attempts:
        here.start_node(name, node(home, 0), "--max-retries", "1", plain=plain)
    for name, _ in attempts:
        assert here.started.pop(name).wait(120) != 0, here.tail(name)


@pytest.mark.slow
@pytest.mark.timeout(DEPLOYED)
def test_the_demo_ends_with_a_report_and_no_process(tmp_path: Path) -> None:
    import subprocess

    command = [sys.executable, "-m", "fedrift", "flower", "demo", "fedavg", "--rounds", "1"]
    command += ["--nodes", "2", "--data", "digits:train=60,test=40", "--out", str(tmp_path / "d")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    assert "round 1/1" in done.stderr and "fingerprint" in done.stderr
    assert (tmp_path / "d" / "report.html").stat().st_size > 10_000
    left = subprocess.run(
        ["pgrep", "-f", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert not left.stdout, left.stdout


def test_help_is_given_without_flwr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    monkeypatch.delitem(sys.modules, "fedrift.backends.flower", raising=False)
    with pytest.raises(fr.InputError, match=r"pip install 'fedrift\[flower\]'"):
        importlib.import_module("fedrift.backends.flower")
