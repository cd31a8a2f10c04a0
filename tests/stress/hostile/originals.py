"""Small run folders of every kind, made once; cases work on copies of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.stress.hostile.trial import Place, command, started

SMALL = (
    "--data digits --clients 3 --model logistic --rounds 3 --steps 2 --workers 0 --quiet".split()
)
OWN = "--client-test 0.3 --eval-clients every=1".split()
KINDS: dict[str, list[list[str]]] = {
    "done": [["run", "scaffold", *SMALL, "--out", "done"]],
    "personal": [["run", "fedper", *SMALL, *OWN, "--model", "mlp:hidden=4", "--out", "personal"]],
    "diverged": [["run", "fedavg", *SMALL, "--lr", "1e25", "--out", "diverged"]],
    "forked": [
        ["run", "fedavgm", *SMALL, "--out", "origin"],
        ["fork", "origin", "--at-round", "1", "--set", "lr=0.05", "--out", "forked", "--quiet"],
    ],
    "analysed": [
        ["run", "fedavg", *SMALL, "--out", "analysed"],
        ["analyse", "analysed", "--what", "classes", "--images", "50", "--quiet"],
    ],
    "both": [["compare", "fedavg", "scaffold", *SMALL, "--out", "both"]],
}
CUT = "cut"
"""Stopped after the second round of four."""


@dataclass(frozen=True)
class Original:
    """A run folder as it was made: the run in it that is touched, and what it ends with."""

    name: str
    run: str
    """Of a comparison one of its runs; else the same as the name."""
    fingerprint: str
    hashes: dict[str, str]
    """Of what stands in its files, as `folders.loaded` prints them."""


def make(root: Path) -> None:
    """All of them, in `root`."""
    place = Place(root / "making")
    for lines in KINDS.values():
        for words in lines:
            ended = started(place, command(words)).ended(300.0)
            assert ended.code == 0, f"{words}: {ended.errors}"
    ended = started(place, _stopped).ended(300.0)
    assert ended.code == 130, ended.errors
    unbroken = ["run", "scaffold", *SMALL, "--rounds", "4", "--out", "whole"]
    assert started(place, command(unbroken)).ended(300.0).code == 0
    table: dict[str, Any] = {}
    for name in (*KINDS, CUT):
        run = sorted((place.work / name / "runs").iterdir())[-1] if name == "both" else None
        within = name if run is None else str(run.relative_to(place.work))
        ended_with = place.work / ("whole" if name == CUT else within) / "summary.json"
        hashes = json.loads(started(place, loaded(within)).ended(300.0).out)
        table[name] = (within, json.loads(ended_with.read_text())["fingerprint"], hashes)
        (place.work / name).rename(root / name)
    (root / "table.json").write_text(json.dumps(table))
    place.remove()


def _stopped() -> int:
    """A run that is interrupted, with a checkpoint after every round."""
    from fedrift import cli
    from fedrift.engine import recorder

    recorder.SHORTEST, recorder.SHARE = 0.0, 1e9
    usual = recorder.RunRecorder.checkpoint

    def checkpoint(self: Any, make: Any) -> None:
        usual(self, make)
        if make().round == 2:
            raise KeyboardInterrupt

    recorder.RunRecorder.checkpoint = checkpoint
    return cli.code_of(["run", "scaffold", *SMALL, "--rounds", "4", "--out", CUT])


def read(root: Path) -> dict[str, Original]:
    table = json.loads((root / "table.json").read_text())
    return {name: Original(name, *held) for name, held in table.items()}


def loaded(name: str) -> Callable[[], int]:
    """`fedrift watch`, `fr.load` and what it offers; prints hashes of what stands in the files."""

    def act() -> int:
        import fedrift as fr
        from fedrift.cli.console import complain
        from fedrift.errors import InputError, RunError
        from fedrift.storage import run_folder, run_record

        watched(".")
        try:
            found = fr.load(name)
            assert repr(found)
            if isinstance(found, fr.Result):
                found.frame()
                found.client_frame()
            kept = run_record.load(name)
            weights = kept.weights() if (Path(name) / run_folder.MODEL).exists() else {}
        except (InputError, RunError) as error:
            return complain(str(error), 2)
        timed = ("seconds", "folder")
        own = {k: v for k, v in kept.summary.items() if k not in timed}
        rounds = [{k: v for k, v in row.items() if k not in timed} for row in kept.rounds]
        parts = {
            run_folder.SPEC: kept.spec.to_toml(),
            run_folder.ROUNDS: repr(rounds),
            run_folder.LEDGER: repr(kept.ledger),
            run_folder.CLIENT_ROUNDS: repr(kept.client_rounds),
            run_folder.SUMMARY: repr(sorted(own.items())),
            run_folder.MODEL: repr(sorted((k, v.tobytes()) for k, v in weights.items())),
        }
        print(json.dumps({k: hashlib.sha256(v.encode()).hexdigest() for k, v in parts.items()}))
        return 0

    return act


def watched(root: str) -> None:
    """What `fedrift watch` answers to its page."""
    from fedrift.storage.jsonl import dump
    from fedrift.watch.folders import Watched

    found = Watched(Path(root))
    for _ in range(2):
        found.refresh()
        dump(found.overview()).encode("utf-8")
        for run in found.runs.values():
            dump(run.curves(0, 0)).encode("utf-8")
