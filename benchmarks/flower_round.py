"""A round in a Flower federation against an app that only imports torch and sends nothing.

    python benchmarks/flower_round.py [ROUNDS [TURNS [NODES]]]

One SuperLink and NODES SuperNodes on this machine serve both apps, TURNS times one after the other,
ROUNDS intervals between rounds in all for each. Both look for replies equally often. Run nothing
else meanwhile.
"""

from __future__ import annotations

import compileall
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table

import fedrift
from fedrift.config.spec import Spec
from fedrift.engine.prepare import prepare
from fedrift.federation.config import FederationConfig
from fedrift.federation.demo import Loopback, write_layout
from fedrift.federation.events import EVENTS
from fedrift.federation.membership import PAUSE
from fedrift.federation.template import write_app

TARGET = 1.2
PATIENCE = 600.0  # seconds without a round after which the measurement is given up
DEADLINE = 300.0  # of an exchange
console = Console()

CLIENT = """\
import torch
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    return Message(RecordDict(), reply_to=message)
"""

SERVER = f"""\
import compileall
import json
import signal
import time
from pathlib import Path

import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    said = context.run_config
    while len(nodes := list(grid.get_node_ids())) < said["min-nodes"]:
        time.sleep({PAUSE})
    out = Path(said["out"])
    out.mkdir(parents=True)
    for number in range(said["rounds"]):
        messages = [Message(RecordDict(), dst_node_id=n, message_type="train") for n in nodes]
        waiting = set(grid.push_messages(messages))
        while waiting:
            for reply in grid.pull_messages(waiting):
                assert not reply.has_error(), reply.error
                waiting.discard(reply.metadata.reply_to_message_id)
            if waiting:
                time.sleep({PAUSE})
        with (out / "{EVENTS}").open("a") as file:
            row = {{"time": time.time(), "event": "round", "round": number + 1}}
            file.write(json.dumps(row) + "\\n")
"""


@dataclass
class Bench:
    """A federation with two apps that take turns."""

    home: Path
    nodes: int
    intervals: dict[str, list[float]] = field(default_factory=dict[str, list[float]])

    def measure(self, rounds: int, turns: int) -> None:
        """Seconds from the end of each round to the end of the next, of both apps."""
        spec = Spec.of({"data": "digits", "clients": self.nodes, "rounds": rounds // turns + 1})
        ready, empty = prepare(spec), self.home / "empty"
        laid = write_layout(self.home / "here", spec, ready, DEADLINE)
        write_app(empty, FederationConfig.of(spec, ready), DEADLINE)
        for name, text in (("client", CLIENT), ("server", SERVER)):
            (empty / "federated" / f"{name}.py").write_text(text, encoding="utf-8")
        net = Loopback(self.home / "net")
        try:
            net.start_link()
            for client, site in enumerate(laid.sites):
                config = {"partition-id": client, "num-partitions": self.nodes}
                config |= {"data": site / "data.npz", "state-dir": site / "state"}
                net.start_node(site.name, config)
            for turn in range(turns):
                self._turn(net, "empty", empty, {"min-nodes": self.nodes}, turn, spec.rounds)
                said = {"algorithm": "fedavg", "test": laid.test}
                self._turn(net, "fedrift", laid.app, said, turn, spec.rounds)
        finally:
            net.stop()

    def _turn(
        self,
        net: Loopback,
        name: str,
        app: Path,
        said: Mapping[str, object],
        turn: int,
        rounds: int,
    ) -> None:
        out = self.home / f"{name} {turn}"
        process = net.start_app(app, {**said, "out": out})
        marks: Sequence[float] = ()
        news = time.monotonic()
        while len(marks) < rounds:
            time.sleep(0.5)
            found = _ends(out / EVENTS)
            news = time.monotonic() if len(found) > len(marks) else news
            marks = found
            if net.started[process].poll() or time.monotonic() - news > PATIENCE:
                raise SystemExit(f"{name}: no round any more{net.tail(process)}")
        steps = [later - sooner for sooner, later in pairwise(marks)]
        self.intervals.setdefault(name, []).extend(steps)
        console.print(f"{name}: " + " ".join(f"{s:.1f}" for s in steps))


def _ends(file: Path) -> list[float]:
    rows = [json.loads(x) for x in file.read_text().splitlines()] if file.exists() else []
    return [row["time"] for row in rows if row["event"] == "round"]


def table(intervals: dict[str, list[float]]) -> Table:
    made = Table("app", "rounds", "mean s", "median s", "least s", "÷ empty", "target")
    base = statistics.mean(intervals["empty"])
    for name, steps in intervals.items():
        mean = statistics.mean(steps)
        made.add_row(
            name, str(len(steps)), f"{mean:.2f}", f"{statistics.median(steps):.2f}",
            f"{min(steps):.2f}", f"{mean / base:.3f}", f"≤ {TARGET}" if name == "fedrift" else "",
        )  # fmt: skip
    return made


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # every process is ended all the same
    # Each message starts a process that imports it.
    compileall.compile_dir(Path(fedrift.__path__[0]), quiet=1)  # as pip does
    said = [int(text) for text in sys.argv[1:]]
    rounds, turns, nodes = [*said, *(20, 2, 2)[len(said) :]]
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), nodes)
        bench.measure(rounds, turns)
    console.print(table(bench.intervals))
