"""Rows × peers × repeats, in turns; every finished run is kept, so that a stopped one goes on."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from peers import environments, watch, work
from peers.curves import agreement
from peers.environments import PEERS, CannotMake, Peer, surroundings

BENCHMARKS = Path(__file__).resolve().parents[1]
Run = dict[str, Any]


@dataclass
class Results:
    """What is known so far, and the file that holds it."""

    path: Path
    content: dict[str, Any]

    @staticmethod
    def read(path: Path) -> Results:
        content = json.loads(path.read_text()) if path.exists() else {}
        return Results(path, {"machine": {}, "versions": {}, "rows": {}, "runs": []} | content)

    def write(self) -> None:
        unfinished = self.path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(self.content, indent=1) + "\n")
        unfinished.replace(self.path)

    def begin(self, row: work.Work) -> None:
        """Runs of the row as it was defined before do not count any more."""
        described = json.loads(json.dumps(asdict(row)))
        if self.content["rows"].get(row.row, {}).get("work") != described:
            self.forget(row.row, list(PEERS))
            self.content["rows"][row.row] = {"work": described}

    def forget(self, row: str, peers: list[str]) -> None:
        runs: list[Run] = self.content["runs"]
        self.content["runs"] = [r for r in runs if r["row"] != row or r["peer"] not in peers]

    def of(self, row: str, peer: str) -> list[Run]:
        return [r for r in self.content["runs"] if r["row"] == row and r["peer"] == peer]

    def add(self, run: Run) -> None:
        self.content["runs"].append(run)
        self.write()


@dataclass(frozen=True)
class Harness:
    """Where things are, and how long a run may take."""

    results: Results
    cache: Path
    limit: float

    def prepare(self, peers: list[Peer], rows: list[work.Work]) -> dict[str, Path]:
        """Data, environments, and one import each, so that no run pays for cold files."""
        os.environ["PEERS_DATA"] = str(self.cache / "data")
        for row in rows:
            work.generate(row)
        ready: dict[str, Path] = {}
        for peer in peers:
            try:
                python = environments.make(peer, self.cache)
            except CannotMake as error:
                print(f"{peer.title}: {error}", flush=True)
                continue
            self._watched(peer, [str(python), "-c", f"import {peer.module}"])
            ready[peer.name] = python
            self.results.content["versions"][peer.title] = environments.version(
                python, peer.package
            )
        self.results.content["machine"] = machine()
        self.results.write()
        return ready

    def turn(self, row: work.Work, peer: Peer, python: Path | None, repeat: int) -> Run:
        """One run: what it measured, or what went wrong."""
        run: Run = {"row": row.row, "peer": peer.name, "repeat": repeat}
        if python is None:
            return run | {"error": "its environment could not be made"}
        with tempfile.TemporaryDirectory() as place:
            out = Path(place) / "notes.json"
            rest = ["-m", "peers", peer.name, row.row, str(out), "--seed", str(repeat)]
            command = [str(python), *peer.launcher, *rest, "--rounds", str(row.rounds)]
            ran = self._watched(peer, command)
            run["others"] = ran.others
            if ran.code is None:
                return run | {"error": f"took longer than {self.limit:.0f} s"}
            if ran.code or not out.exists():
                return run | {"error": last_words(ran.said)}
            return run | measured(row, ran, json.loads(out.read_text()))

    def _watched(self, peer: Peer, command: list[str]) -> watch.Ran:
        logs = self.cache / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        env = surroundings({"FLWR_HOME": str(self.cache / "flwr")}, ours=not peer.has_venv)
        log = logs / f"{peer.name}.log"
        return watch.run(command, folder=BENCHMARKS, env=env, log=log, limit=self.limit)


def measured(row: work.Work, ran: watch.Ran, notes: dict[str, Any]) -> Run:
    """Steady state is the mean of the rounds after the first few: a mean, because evaluations may
    be put off from one round to the next."""
    ends: list[float] = notes["ends"]
    if len(ends) != row.rounds:
        return {"error": f"did {len(ends)} rounds of {row.rounds}"}
    steady = (ends[-1] - ends[row.warmup - 1]) / (row.rounds - row.warmup)
    return {
        "total": ran.seconds,
        "start": ends[0] - ran.launched - steady,
        "visit": steady / row.cohort,
        "peak_bytes": ran.peak_bytes,
        "rounds": [after - before for before, after in pairwise(ends)],
        "losses": notes["losses"],
    }


def last_words(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line and not line.startswith(("Traceback",))]
    return (telling or lines or ["no message"])[-1][:200]


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    info = Path("/proc/cpuinfo")
    names = [
        line.partition(":")[2].strip()
        for line in (info.read_text().splitlines() if info.exists() else [])
        if line.startswith("model name")
    ]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "memory_bytes": memory,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def compare(results: Results) -> None:
    """Write down how far the peers' losses are from ours, row by row."""
    for row, about in results.content["rows"].items():
        curves = {
            name: [run["losses"] for run in results.of(row, name) if "losses" in run]
            for name in PEERS
        }
        if curves["fedrift"]:
            about["distances"] = agreement({name: c for name, c in curves.items() if c})
    results.write()
