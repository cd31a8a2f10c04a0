"""Real federations: a SuperLink and SuperNodes as processes, TLS and authentication on."""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrift import api
from fedrift.config.grid import slug
from fedrift.federation.events import EVENTS
from fedrift.federation.template import write_app
from tests.federation.test_federation import spec
from tests.support.federations import VISIT, Envelope, Federation, FederationConfig, messages
from tests.support.flower_apps import FLOWER
from tests.support.product import Spec, load_run, prepare

pytest.importorskip("flwr", reason="needs fedrift[flower]")
pytestmark = [*FLOWER, pytest.mark.slow, pytest.mark.timeout(900)]


def wait_for(file: Path, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not file.exists():
        assert time.monotonic() < end, f"{file} does not come"
        time.sleep(0.1)


def news(file: Path, wanted: str | int, seconds: float = 800.0) -> dict[str, Any]:
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
    from fedrift.federation.certificates import make_certificates
    from fedrift.federation.demo import Loopback

    home = tmp_path_factory.mktemp("deployed")
    names = [f"node{i}" for i in range(3)]
    here = Loopback(
        home / "net", make_certificates(home / "p", [*names, "stranger"], ["127.0.0.1"])
    )
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


KINDS: dict[str, dict[str, Any]] = {
    "fedavg": {},  # nothing kept anywhere
    "scaffold": {},  # a state at each client
    "diloco": {"steps": 2},  # an optimizer's state at each client
    "mimemom": {},  # two exchanges a round, the server's optimizer sent along
    "fedgf": {},  # fields that are there in some rounds only
    "fed3rft(fedavg):train=head": {"rounds": 4},  # statistics, then training; frozen parameters
    "swa(serveradam(fedprox))": {},  # wrappers around wrappers
}


@pytest.mark.parametrize("name", KINDS)
def test_a_deployed_federation_gives_the_same_bits(name: str, deployed: Any) -> None:
    here, home = deployed
    what = spec(name, **{"clients": 3, "rounds": 2, **KINDS[name]})
    app, out = home / f"app {slug(name)}", home / f"out {slug(name)}"
    write_app(app, FederationConfig.of(what, prepare(what)), 600.0)
    here.start_app(app, {"out": out})
    assert news(out / EVENTS, "finished")["status"] == "done"
    simulated = api.run_spec(replace(what, workers=0))
    record = load_run(out / "run")
    assert record.summary["fingerprint"] == simulated.fingerprint
    assert messages(record.ledger) == simulated.ledger.rows()


def test_flowers_simulation_gives_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs fedrift[ray]")
    from fedrift.federation.demo import Loopback

    what = spec("scaffold", clients=3, rounds=2)
    write_app(tmp_path / "app", FederationConfig.of(what, prepare(what)), 600.0)
    here, out = Loopback(tmp_path / "net"), tmp_path / "out"
    here.environment["FEDRIFT_STATE"] = str(tmp_path / "state")
    federation = "num-supernodes=3 client-resources-num-cpus=1"
    try:
        here.start_link("--simulation")
        here.start_app(tmp_path / "app", {"out": out}, "--federation-config", federation)
        news(out / EVENTS, "finished")
    finally:
        here.stop()
    simulated = api.run_spec(replace(what, workers=0))
    record = load_run(out / "run")
    assert record.summary["fingerprint"] == simulated.fingerprint
    assert messages(record.ledger) == simulated.ledger.rows()


HOLDING = """
import time
from pathlib import Path

from fedrift.federation.apps import client_app
from fedrift.federation.sources import site_samples


def load(config, node):
    hold = Path(node["state-dir"]).with_suffix(".hold")
    if hold.exists():
        hold.with_suffix(".holding").touch()
    while hold.exists():
        time.sleep(0.1)
    return site_samples(config, node)


app = client_app(Path(__file__).parent, load)
"""


def test_a_node_killed_in_the_middle_of_a_visit_returns(deployed: Any, tmp_path: Path) -> None:
    """The run ends as one in which that client was silent in that round, and only then."""
    here, home = deployed
    what = spec("scaffold", clients=3, per_round=3, rounds=10)
    write_app(home / "app", FederationConfig.of(what, prepare(what)), 600.0)
    (home / "app" / "federated" / "client.py").write_text(HOLDING)
    out, hold = home / "out", home / "state2.hold"
    here.start_app(home / "app", {"out": out, "min-nodes": 2})
    news(out / EVENTS, 1)
    hold.touch()
    wait_for(hold.with_suffix(".holding"))
    here.kill("node2")
    hold.unlink()
    start_again(here, home, 2)
    news(out / EVENTS, "finished")
    record = load_run(out / "run")
    replied = [row["replied"] for row in record.ledger]
    lost = [t for t, who in enumerate(replied) if who != [0, 1, 2]]
    assert len(replied) == 10 and lost[0] > 0 and replied[-1] == [0, 1, 2]
    asked = [row["asked"] for row in record.ledger]
    assert asked[lost[0]] == [0, 1, 2], "it was in the middle of its visit"
    expected = silent(what, tmp_path, lambda round: round in lost)
    assert all(np.array_equal(record.weights()[k], v.numpy()) for k, v in expected.items())


def start_again(here: Any, home: Path, i: int) -> None:
    """As a supervisor does: while the dead node is listed, the SuperLink refuses its key."""
    end, wanted = time.monotonic() + 300, "Activated node_id"
    log = here.home / "superlink.log"
    before = log.read_text(errors="replace").count(wanted)
    while log.read_text(errors="replace").count(wanted) == before:
        assert time.monotonic() < end, here.tail(f"node{i}")
        if f"node{i}" in here.started and here.started[f"node{i}"].poll() is not None:
            here.kill(f"node{i}")  # what it has left behind
        if f"node{i}" not in here.started:
            here.start_node(f"node{i}", node(home, i))
        time.sleep(0.5)


def silent(what: Spec, folder: Path, when: Callable[[int], bool]) -> Any:
    """Weights of a federation in this process whose last client does not answer in some rounds."""
    federation = Federation(what, folder).everybody()
    last = sorted(federation.office.desks)[-1]

    def meddle(kind: str, envelope: Envelope, honest: Envelope) -> Envelope | str:
        return "gone" if kind == VISIT and when(int(envelope.header["round"])) else honest

    federation.office.desks[last].meddle = meddle
    return federation.run(deadline=100.0).tensors()


HOSTILE = """
from pathlib import Path

import numpy as np
from flwr.app import Array
from flwr.clientapp import ClientApp

from fedrift.federation.apps import client_app
from fedrift.federation.sources import site_samples

honest = client_app(Path(__file__).parent, site_samples)
app = ClientApp()


@app.query()
def about(message, context):
    return honest(message, context)


@app.train()
def train(message, context):
    reply = honest(message, context)
    if context.node_config["partition-id"] == 2:
        harm(int(message.content["fedrift"]["round"]), reply.content)
    return reply


def harm(round, content):
    was = content["up"]["delta"]
    if round == 0:
        bad = np.full(was.shape, np.nan, np.float32)
    elif round == 1:
        bad = np.zeros(3, np.float32)
    elif round == 2:
        bad = np.zeros(4 << 20, np.float32)
    if round < 3:
        raw = {"stype": "fedrift.raw", "data": bad.tobytes()}
        content["up"]["delta"] = Array(dtype="float32", shape=bad.shape, **raw)
    elif round == 3:
        content["fedrift"]["phase"] = "steal"
"""


def test_a_hostile_node_is_refused_and_the_run_goes_on(deployed: Any, tmp_path: Path) -> None:
    here, home = deployed
    what = spec("scaffold", clients=3, per_round=3, rounds=5, seed=2)
    write_app(home / "app hostile", FederationConfig.of(what, prepare(what)), 600.0)
    (home / "app hostile" / "federated" / "client.py").write_text(HOSTILE)
    out = home / "out hostile"
    here.start_app(home / "app hostile", {"out": out})
    news(out / EVENTS, "finished")
    record = load_run(out / "run")
    assert [row["replied"] for row in record.ledger] == [[0, 1]] * 4 + [[0, 1, 2]]
    told = (out / EVENTS).read_text()
    for says in (
        "round 1: client 2 sent what is not finite",
        "round 2: client 2 refused: field 'delta' is float32 of shape (3,), declared",
        "round 3: client 2 refused: field 'delta' is float32 of shape (4194304,), declared",
        "round 4: client 2 refused: header 'phase' is not declared",
    ):
        assert says in told, told
    expected = silent(what, tmp_path, lambda round: round < 4)
    assert all(np.array_equal(record.weights()[k], v.numpy()) for k, v in expected.items())


def test_a_node_that_joins_late_is_asked_and_known(tmp_path: Path) -> None:
    from fedrift.federation.demo import Loopback

    what = spec("scaffold", clients=3, per_round=3, rounds=6)
    ready = prepare(what)
    write_app(tmp_path / "app", FederationConfig.of(what, ready), 600.0)
    here, out = Loopback(tmp_path / "net"), tmp_path / "out"
    try:
        here.start_link()
        for i in range(2):
            here.start_node(f"node{i}", node(tmp_path, i))
        here.start_app(tmp_path / "app", {"out": out, "min-nodes": 2})
        news(out / EVENTS, 1)
        here.start_node("node2", node(tmp_path, 2))
        news(out / EVENTS, "finished")
    finally:
        here.stop()
    record = load_run(out / "run")
    replied = [row["replied"] for row in record.ledger]
    assert replied[0] == [0, 1] and replied[-1] == [0, 1, 2]
    assert record.clients["sizes"] == [len(part) for part in ready.partition.parts]


def test_a_killed_server_goes_on_and_ends_as_if_nothing_had_happened(deployed: Any) -> None:
    import os
    import signal

    from fedrift.federation.demo import descendants

    here, home = deployed
    what = spec("scaffold", clients=3, rounds=5, seed=1)
    write_app(home / "app killed", FederationConfig.of(what, prepare(what)), 600.0)
    out = home / "out killed"
    here.start_app(home / "app killed", {"out": out})
    news(out / EVENTS, 2)
    below = descendants(here.started["superlink"].pid)
    found = [p for p in below if b"flwr-serverapp" in Path(f"/proc/{p}/cmdline").read_bytes()]
    assert found
    for process in found:
        os.kill(process, signal.SIGKILL)
    lines = len((out / EVENTS).read_text().splitlines())
    here.start_app(home / "app killed", {"out": out})
    news(out / EVENTS, "finished")
    assert len((out / EVENTS).read_text().splitlines()) > lines
    simulated = api.run_spec(replace(what, workers=0))
    record = load_run(out / "run")
    assert record.summary["fingerprint"] == simulated.fingerprint
    assert messages(record.ledger) == simulated.ledger.rows()


def test_a_deployed_federation_with_masks(deployed: Any) -> None:
    here, home = deployed
    what = spec("scaffold", clients=3, rounds=1)
    write_app(home / "app masked", FederationConfig.of(what, prepare(what)), 600.0)
    out = home / "out masked"
    here.start_app(home / "app masked", {"out": out, "secagg": True})
    news(out / EVENTS, "finished")
    record, own = load_run(out / "run"), api.run_spec(replace(what, workers=0))
    off = [np.abs(record.weights()[k] - v.numpy()).max() for k, v in own.tensors().items()]
    assert 0 < max(off) < 2e-4
    assert [row["replied"] for row in record.ledger] == [[0, 1, 2]]


def test_strangers_and_plain_text_are_refused(deployed: Any) -> None:
    here, home = deployed
    attempts: list[tuple[str, bool]] = [("stranger", False), ("nokey", False), ("plain", True)]
    for name, plain in attempts:
        here.start_node(name, node(home, 0), "--max-retries", "1", plain=plain)
    for name, _ in attempts:
        assert here.started.pop(name).wait(120) != 0, here.tail(name)


def test_the_demo_ends_with_a_report_and_no_process(tmp_path: Path) -> None:
    import subprocess

    command = [sys.executable, "-m", "fedrift", "flower", "demo", "fedavg", "--rounds", "1"]
    command += ["--nodes", "2", "--data", "digits:train=60,test=40"]  # into flower-demo, here
    how: dict[str, Any] = {"capture_output": True, "text": True, "check": False}
    done = subprocess.run(command, timeout=800, cwd=tmp_path, **how)
    assert done.returncode == 0, done.stderr
    assert "round 1/1" in done.stderr and "fingerprint" in done.stderr
    assert (tmp_path / "flower-demo" / "report.html").stat().st_size > 10_000
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], **how)
    assert not left.stdout, left.stdout
