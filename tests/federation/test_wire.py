"""Bytes that cross between nodes and SuperLink, counted on the wire, against the ledger."""

# pyright: reportMissingImports=false

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fedrift.federation.events import EVENTS
from fedrift.federation.template import write_app
from tests.federation.test_federation import spec
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


@pytest.mark.parametrize("hidden", [4, 520])
def test_the_wire_carries_what_the_ledger_says(hidden: int, tmp_path: Path) -> None:
    """Within 3 % of the ledger from 1 MB on, and a fixed cost per message; the start aside."""
    from fedrift.federation.demo import Loopback

    what = spec("fedavg", clients=2, per_round=2, rounds=4, model=f"mlp:hidden={hidden}")
    write_app(tmp_path / "app", FederationConfig.of(what, prepare(what)), 600.0)
    here = Loopback(tmp_path / "net")
    out, counts = tmp_path / "out", list[dict[str, int]]()
    try:
        here.start_link()
        meter = Meter(here.port)
        for i in range(2):
            here.start_node(f"node{i}", node(tmp_path, i), superlink=f"127.0.0.1:{meter.port}")
        here.start_app(tmp_path / "app", {"out": out})
        for number in (1, 4):
            news(out / EVENTS, number)
            counts.append({"up": meter.up, "down": meter.down})
        news(out / EVENTS, "finished")
        meter.close()
    finally:
        here.stop()
    rows = load_run(out / "run").ledger[1:]
    messages = sum(len(row["asked"]) for row in rows)
    for way, field in (("up", "delta"), ("down", "w")):
        payload = sum(row[way][field][0] for row in rows)
        measured = counts[1][way] - counts[0][way]
        more = (measured - payload) / messages
        print(f"{way}: {payload / messages:.0f} B in the ledger, {more:.0f} B more per message")
        assert 0 <= more < FIXED[way]
        if hidden > 500:
            assert payload > messages * 1_000_000
            assert measured / payload < 1.03
