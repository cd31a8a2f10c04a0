"""One peer does one row: `python -m peers PEER ROW OUT.json`, from the folder `benchmarks`."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

from peers.notes import Notes
from peers.work import ROWS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m peers", description=__doc__)
    parser.add_argument("peer", help="bare, fedrift, flower, pfl, fedlab or fluke")
    parser.add_argument("row", choices=ROWS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rounds", type=int, help="instead of the row's own")
    parser.add_argument("--seed", type=int, default=0, help="of cohorts and batches")
    given = parser.parse_args()
    notes = Notes()
    # A module of its own name, not __main__: worker processes import it instead of unpickling it.
    peer = import_module(f"peers.with_{given.peer}" if given.peer != "bare" else "peers.bare")
    if peer.main(ROWS[given.row].shortened(given.rounds), given.seed, notes):
        notes.write(given.out)


if __name__ == "__main__":
    main()
