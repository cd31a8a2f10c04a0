"""Measures fedrift and its peers on the same work, each in its own environment.

    python benchmarks/peers/run.py [--rows a,b] [--peers fedrift,flower] [--repeats N]

Run nothing else meanwhile. What is finished is kept in results.json and not done again, unless
--fresh; then `python benchmarks/peers/table.py` writes the table and the figure of the docs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers.environments import PEERS
from peers.harness import Harness, Results, compare
from peers.work import ROWS

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fedrift" / "peers"


def main() -> None:
    given = _parsed()
    rows = [ROWS[name].shortened(given.rounds) for name in given.rows]
    peers = [PEERS[name] for name in given.peers]
    results = Results.read(given.out)
    harness = Harness(results, given.cache.resolve(), given.limit)
    pythons = harness.prepare(peers, rows)
    for row in rows:
        results.begin(row)
        if given.fresh:
            results.forget(row.row, given.peers)
        for repeat in range(given.repeats or row.repeats):
            # another order each time, so that nobody always runs first
            for peer in peers[repeat:] + peers[:repeat]:
                known = results.of(row.row, peer.name)
                failed = any("error" in run for run in known)
                if row.row in peer.lacks or failed or len(known) > repeat:
                    continue
                start = time.perf_counter()
                run = harness.turn(row, peer, pythons.get(peer.name), repeat)
                results.add(run)
                _say(run, time.perf_counter() - start)
    compare(results)
    for row in rows:
        print(f"({row.row}) distances:", results.content["rows"][row.row].get("distances"))


def _say(run: dict[str, object], seconds: float) -> None:
    name = f"({run['row']}) {run['peer']:8} {run['repeat']}  {seconds:6.1f} s"
    if "error" in run:
        print(f"{name}  failed: {run['error']}", flush=True)
        return
    visit, start, peak = (float(str(run[key])) for key in ("visit", "start", "peak_bytes"))
    print(
        f"{name}  {visit * 1e3:8.2f} ms a visit  start {start:5.1f} s  {peak / 1e6:6.0f} MB"
        f"  others {100 * float(str(run['others'])):.0f} % of a core",
        flush=True,
    )


def _parsed() -> argparse.Namespace:
    def names(known: dict[str, object]) -> object:
        def several(text: str) -> list[str]:
            wanted = text.split(",")
            for name in wanted:
                if name not in known:
                    raise argparse.ArgumentTypeError(
                        f"'{name}' is unknown; there are {', '.join(known)}"
                    )
            return wanted

        return several

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    several_rows, several_peers = names(dict(ROWS)), names(dict(PEERS))
    parser.add_argument("--rows", type=several_rows, default=list(ROWS))  # type: ignore[arg-type]
    parser.add_argument("--peers", type=several_peers, default=list(PEERS))  # type: ignore[arg-type]
    parser.add_argument("--repeats", type=int, help="instead of each row's own number")
    parser.add_argument("--rounds", type=int, help="instead of each row's own, to try it out")
    parser.add_argument("--fresh", action="store_true", help="measure again what is known")
    parser.add_argument("--limit", type=float, default=240.0, help="seconds that one run may take")
    parser.add_argument("--cache", type=Path, default=CACHE, help="for environments and data")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results.json"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
