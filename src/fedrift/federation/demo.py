"""A whole federation on this machine: data at the nodes, a comparison, live progress, a report."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedrift.errors import InputError, RunError
from fedrift.experiment import Spec
from fedrift.federation.charter import Charter
from fedrift.federation.loopback import Loopback
from fedrift.federation.papers import make_papers
from fedrift.federation.template import write_app
from fedrift.federation.told import EVENTS
from fedrift.grid import slug
from fedrift.prepare import Prepared, prepare

SILENCE = 900.0  # seconds without any news after which a run is given up

Say = Callable[[str, dict[str, Any]], None]
"""Algorithm and what happened."""


@dataclass(frozen=True)
class Laid:
    """Everything on disk before a process starts."""

    app: Path
    test: Path
    sites: tuple[Path, ...]


def lay_out(folder: Path, spec: Spec, ready: Prepared, deadline: float) -> Laid:
    """One file of samples for each node, one for the server's test, and the app without data."""
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"out '{folder}' is not empty; name a new folder")
    sites: list[Path] = []
    for client, part in enumerate(ready.partition.parts):
        site = folder / "sites" / f"node{client}"
        site.mkdir(parents=True)
        np.savez(site / "data.npz", x=ready.x[part], y=ready.data.y[part])
        sites.append(site)
    test = folder / "server" / "test.npz"
    test.parent.mkdir(parents=True)
    np.savez(test, x=ready.data.x_test, y=ready.data.y_test)
    write_app(folder / "app", Charter.of(spec, ready), deadline)
    return Laid(folder / "app", test, tuple(sites))


def demonstrate(
    algorithms: Sequence[str],
    spec: Spec,
    folder: Path,
    *,
    secure: bool,
    deadline: float,
    say: Say,
) -> list[Path]:
    """Run every algorithm in one federation after another on the same nodes; the run folders."""
    specs = [replace(spec, algorithm=text) for text in algorithms]
    for one in specs:
        one.validate()
    ready = prepare(spec)
    laid = lay_out(folder, specs[0], ready, deadline)
    names = [site.name for site in laid.sites]
    papers = make_papers(folder / "papers", names, ["127.0.0.1"]) if secure else None
    here = Loopback(folder / "logs", papers)
    try:
        say("", {"event": "note", "text": "starting the SuperLink"})
        here.start_link()
        for client, site in enumerate(laid.sites):
            if secure:
                here.register(site.name)
            config = {"partition-id": client, "num-partitions": len(names)}
            config |= {"data": site / "data.npz", "state-dir": site / "state"}
            here.start_node(site.name, config)
        say("", {"event": "note", "text": f"starting {len(names)} SuperNodes"})
        made: list[Path] = []
        for text in algorithms:
            out = folder / "runs" / slug(text)
            config = {"algorithm": text, "out": out, "test": laid.test}
            name = here.start_app(laid.app, config)
            for row in _news(here, name, out / EVENTS):
                say(text, row)
                if row["event"] == "failed":
                    raise RunError(f"{text}: {row['text']}")
            made.append(out / "run")
        return made
    finally:
        say("", {"event": "note", "text": "stopping every process"})
        here.stop()


def _news(here: Loopback, name: str, file: Path) -> Iterator[dict[str, Any]]:
    """Events as the server app writes them, until it has finished or failed."""
    seen, heard = 0, time.monotonic()
    while True:
        here.check()
        ended = here.started[name].poll() is not None
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        for line in lines[seen:]:
            row = json.loads(line)
            yield row
            heard = time.monotonic()
            if row["event"] in ("finished", "failed"):
                return
        seen = len(lines)
        if ended and here.started[name].returncode:
            raise RunError(f"flwr run ended{here.tail(name)}")
        if time.monotonic() - heard > SILENCE:
            raise RunError(f"nothing was heard for {SILENCE:g} seconds{here.tail(name)}")
        time.sleep(0.5)
