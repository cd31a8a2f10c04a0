"""Who takes part, and the environment each is run in: one venv per peer, made once, pinned."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nnodes=1", "--nproc_per_node=2")


@dataclass(frozen=True)
class Peer:
    """A library, or the bare limit; `has_venv` says that it is not run by our own interpreter."""

    name: str
    title: str
    package: str
    processes: str
    launcher: tuple[str, ...] = ()
    lacks: str = ""
    has_venv: bool = True

    @property
    def module(self) -> str:
        return "peers.bare" if self.name == "bare" else f"peers.with_{self.name}"


PEERS = {
    peer.name: peer
    for peer in (
        Peer("bare", "bare PyTorch", "torch", "2 workers", has_venv=False),
        Peer("fedrift", "fedrift", "fedrift", "2 workers", has_venv=False),
        Peer("flower", "Flower simulation", "flwr", "2 Ray actors", lacks="e"),
        Peer("pfl", "pfl-research", "pfl", "torchrun, 2 processes", TORCHRUN),
        Peer("fedlab", "FedLab", "fedlab", "2 trainers, 1 server"),
        Peer("fluke", "fluke", "fluke-fl", "1 process, 2 threads"),
    )
}


class CannotMake(Exception):
    """An environment could not be made; says why."""


def make(peer: Peer, cache: Path) -> Path:
    """The peer's interpreter; its venv is made if there is none with these very versions."""
    if not peer.has_venv:
        return Path(sys.executable)
    wanted = (HERE / "requirements" / f"{peer.name}.txt").read_text()
    place = cache / peer.name
    python, ready = place / "bin" / "python", place / "ready.txt"
    if ready.exists() and ready.read_text() == wanted:
        return python
    print(f"Making the environment of {peer.title}; the first time takes minutes", flush=True)
    ready.unlink(missing_ok=True)
    _call([sys.executable, "-m", "venv", "--clear", str(place)])
    listed = HERE / "requirements" / f"{peer.name}.txt"
    quietly = ["install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    _call([str(python), "-m", "pip", *quietly, "-r", str(listed)])
    ready.write_text(wanted)
    return python


def _call(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=surroundings({}))
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CannotMake(f"{' '.join(command[1:4])} failed: {last}")


def surroundings(added: Mapping[str, str], *, ours: bool = False) -> dict[str, str]:
    """Environment variables of a run: ours sees our search path, a peer only its own venv."""
    kept = {k: v for k, v in os.environ.items() if ours or k not in ("PYTHONPATH", "PYTHONHOME")}
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    return kept | quiet | dict(added)


def version(python: Path, package: str) -> str:
    """The installed version of a package, without importing it."""
    ask = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([str(python), "-c", ask], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "unknown"
