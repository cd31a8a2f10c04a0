"""What a visit costs on Ray, on one node and on two, beside worker processes.

    python benchmarks/nodes.py [ROUNDS]        12 unless said; needs fedrift[ray]

Two nodes are two of Ray's own node processes, started here with one core each: what is sent from
one to the other goes through their object stores and sockets, as between machines, but over
loopback. Visits make one step on ten samples, so that nearly all of their time is what it takes to
ask; 20 a round. All ways take turns in one run and must end with one fingerprint. Writes the part
"nodes" of docs/performance.md when no number of rounds is said.
"""

from __future__ import annotations

import logging
import statistics
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]
from rich.table import Table

import fedrift as fr
import history
import page
from fedrift import models
from fedrift.backends.ray_tasks import disconnect
from overhead import Clock, console, images

CLIENTS, SAMPLES, COHORT, ROUNDS, REPEATS = 40, 10, 20, 12, 3
WARM = 3  # rounds until every worker has been started and has its data
WORK = (("fedavg", "logistic"), ("scaffold", "logistic"), ("fedavg", "cnn-mcmahan"))
WAYS = {"two processes": 0, "Ray, one node of two cores": 1, "Ray, two nodes of one core": 2}


@contextmanager
def cluster(nodes: int) -> Generator[dict[str, Any]]:
    """What a run is told to use it; `nodes` of Ray with two cores between them, if any."""
    if not nodes:
        yield {"workers": 2}
        return
    made = Cluster()
    for _ in range(nodes):
        made.add_node(num_cpus=2 // nodes, include_dashboard=False, object_store_memory=2 * 10**8)
    try:
        made.wait_for_nodes()
        yield {"backend": f"ray:{made.address}"}
    finally:
        disconnect()
        made.shutdown()


def visit(algorithm: str, model: str, rounds: int, how: dict[str, Any]) -> tuple[float, str]:
    """Milliseconds of a round in steady state ÷ its visits, and the fingerprint."""
    clock = Clock()
    x, y = images(CLIENTS * SAMPLES)
    result = fr.run(
        algorithm,
        model=models.factory(model, (1, 28, 28), 10),
        clients=fr.split(x, y, "iid", clients=CLIENTS),
        rounds=rounds + WARM,
        per_round=COHORT,
        steps=1,
        batch_size=SAMPLES,
        lr=0.05,
        callbacks=[clock],
        **how,
    )
    times = [b - a for a, b in zip(clock.marks[WARM:], clock.marks[WARM + 1 :], strict=False)]
    return statistics.median(times) / COHORT * 1e3, str(result.fingerprint)


def measure(rounds: int) -> dict[tuple[str, str], dict[str, list[float]]]:
    found: dict[tuple[str, str], dict[str, list[float]]] = {
        work: {way: [] for way in WAYS} for work in WORK
    }
    ends: dict[tuple[str, str], set[str]] = {work: set() for work in WORK}
    for _ in range(REPEATS):
        for way, nodes in WAYS.items():
            with cluster(nodes) as how:
                for work in WORK:
                    ms, fingerprint = visit(*work, rounds, how)
                    console.print(f"{way}: {' '.join(work)}, {ms:.2f} ms a visit")
                    found[work][way].append(ms)
                    ends[work].add(fingerprint)
    for work, fingerprints in ends.items():
        assert len(fingerprints) == 1, (work, fingerprints)
    return found


def main() -> None:
    logging.getLogger("ray").setLevel(logging.ERROR)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    found = measure(rounds)
    shown = Table("visit", *WAYS, title=f"ms per visit: median of {REPEATS} (least–most)")
    rows: list[tuple[str, ...]] = []
    for (algorithm, model), ways in found.items():
        cells = [f"{statistics.median(v):.2f} ({min(v):.2f}–{max(v):.2f})" for v in ways.values()]
        rows.append((f"`{algorithm}`, `{model}`", *cells))
        shown.add_row(f"{algorithm}, {model}", *cells)
    console.print(shown)
    if len(sys.argv) == 1:
        intro = (
            "## Several machines\n\nBeyond one machine the same visits are tasks of Ray. What one "
            f"costs when it computes next to nothing, one step on ten samples, {COHORT} a round: "
            f"median milliseconds per visit (least–most of {REPEATS}), all ways in turns in one "
            "run and with one fingerprint. Two nodes are Ray's own node processes on one machine, "
            "with an object store each, so that weights and replies are copied between them as "
            "between machines, over loopback. Written by `benchmarks/nodes.py` on "
            f"{history.machine()}."
        )
        head = f"| visit | {' | '.join(WAYS)} |\n|---|{'--:|' * len(WAYS)}"
        lines = [f"| {' | '.join(row)} |" for row in rows]
        page.write("nodes", "\n".join([intro, "", head, *lines]))


if __name__ == "__main__":
    main()
