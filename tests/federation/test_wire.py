"""Bytes that cross between nodes and SuperLink, counted on the wire, against the ledger."""

# pyright: reportMissingImports=false

from __future__ import annotations

import math
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fedrift.federation.events import EVENTS
from fedrift.federation.template import write_app
from tests.federation.test_federation import simulated, spec
from tests.federation.test_flower_deployed import news, node
from tests.support.federations import FederationConfig
from tests.support.flower_apps import FLOWER
from tests.support.product import load_run, prepare

pytest.importorskip("flwr", reason="needs fedrift[flower]")
pytestmark = [*FLOWER, pytest.mark.slow, pytest.mark.timeout(900)]

FIXED = {"up": 25_000, "down": 10_000}
"""Bytes that Flower adds to each message, at most: docs/deploy.md says how many it was seen to."""


class Meter:
    """Passes bytes between nodes and the SuperLink and counts them."""

    def __init__(self, to: int) -> None:
        self.up = self.down = 0
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._thread(self._accept)

    @staticmethod
    def _thread(run: Any, *arguments: Any) -> None:
        threading.Thread(target=run, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                node, _ = self._listener.accept()
                link = socket.create_connection(("127.0.0.1", self._to))
                self._thread(self._pass, node, link, "up")
                self._thread(self._pass, link, node, "down")

    def _pass(self, source: Any, target: Any, way: str) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                setattr(self, way, getattr(self, way) + len(data))
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(1)

    def close(self) -> None:
        self._listener.close()


def crossed(folder: Path, what: Any) -> tuple[list[Any], dict[str, int]]:
    """Lines of the ledger after the first round, and the bytes that crossed meanwhile."""
    from fedrift.federation.demo import Loopback

    write_app(folder / "app", FederationConfig.of(what, prepare(what)), 600.0)
    here = Loopback(folder / "net")
    out, counts = folder / "out", list[dict[str, int]]()
    try:
        here.start_link()
        meter = Meter(here.port)
        for i in range(what.clients):
            mine = {**node(folder, i), "num-partitions": what.clients}
            here.start_node(f"node{i}", mine, superlink=f"127.0.0.1:{meter.port}")
        here.start_app(folder / "app", {"out": out})
        for number in (1, what.rounds):
            news(out / EVENTS, number)
            counts.append({"up": meter.up, "down": meter.down})
        news(out / EVENTS, "finished")
        meter.close()
    finally:
        here.stop()
    first, last = counts
    return load_run(out / "run").ledger[1:], {way: last[way] - first[way] for way in FIXED}


def beyond(rows: list[Any], measured: dict[str, int], way: str, field: str) -> tuple[float, float]:
    """Bytes of a message in the ledger, and how many more crossed."""
    messages = sum(len(row["asked"]) for row in rows)
    payload = sum(row[way][field][0] for row in rows) / messages
    more = measured[way] / messages - payload
    print(f"{way}: {payload:.0f} B in the ledger, {more:.0f} B more per message")
    return payload, more


@pytest.mark.parametrize("hidden", [4, 520])
def test_the_wire_carries_what_the_ledger_says(hidden: int, tmp_path: Path) -> None:
    """Within 3 % of the ledger from 1 MB on, and a fixed cost per message; the start aside."""
    what = spec("fedavg", clients=2, per_round=2, rounds=4, model=f"mlp:hidden={hidden}")
    rows, measured = crossed(tmp_path, what)
    for way, field in (("up", "delta"), ("down", "w")):
        payload, more = beyond(rows, measured, way, field)
        assert 0 <= more < FIXED[way]
        if hidden > 500:
            assert payload > 1_000_000 and more / payload < 0.03


def test_three_nodes_send_the_packed_bytes_that_the_ledger_says(tmp_path: Path) -> None:
    """A hundredth of the entries with feedback: the same bits as a simulation, and its bytes."""
    what = spec(
        "fedavg",
        clients=3,
        per_round=3,
        rounds=4,
        model="mlp:hidden=520",
        compress="up=topk:0.01,feedback",
    )
    rows, measured = crossed(tmp_path, what)
    here = simulated(what)
    entries = here.weights.numel()
    up, more_up = beyond(rows, measured, "up", "delta")
    down, more_down = beyond(rows, measured, "down", "w")
    assert up == 8 * math.ceil(0.01 * entries) and down == 4 * entries
    assert 0 <= more_up < FIXED["up"] and 0 <= more_down < FIXED["down"]
    assert load_run(tmp_path / "out" / "run").summary["fingerprint"] == here.fingerprint
