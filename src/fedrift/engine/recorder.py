"""Between a run and its folder: what is written when, and how a run is found again."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrift.config import own_code
from fedrift.config.spec import FIELDS, Spec
from fedrift.data.split import Split
from fedrift.engine import domains
from fedrift.engine.arithmetic import last_bits
from fedrift.errors import InputError
from fedrift.storage import checkpoint
from fedrift.storage.checkpoint import Checkpoint
from fedrift.storage.run_folder import RunFolder, holds_run, read_spec
from fedrift.storage.run_record import read_environment
from fedrift.version import VERSION

SHORTEST = 10.0  # seconds between checkpoints
SETTINGS = "rounds, seed, participants or other settings"
"""What the part of a run's identity is called whose values its spec tells."""
ELSEWHERE = ("out", "workers", "backend", "data_dir")  # settings that do not decide a result
SHARE = 0.02  # of a run's time that checkpoints may take


class RunRecorder:
    """Writes a run folder: lines as rounds end, checkpoints as often as they are cheap."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._next = time.perf_counter() + SHORTEST

    def rounds(self, row: Mapping[str, Any]) -> None:
        self.folder.append_round(row)

    def ledger(self, row: Mapping[str, Any]) -> None:
        self.folder.append_ledger(row)

    def clients(self, row: Mapping[str, Any]) -> None:
        self.folder.append_clients(row)

    def training(self, row: Mapping[str, Any]) -> None:
        self.folder.append_training(row)

    def is_due(self) -> bool:
        return time.perf_counter() >= self._next

    def checkpoint(self, make: Callable[[], Checkpoint]) -> None:
        start = time.perf_counter()
        checkpoint.write(self.folder.path, replace(make(), lines=self.folder.marks()))
        took = time.perf_counter() - start
        self._next = start + took + max(SHORTEST, took / SHARE)

    def finish(self, weights: Mapping[str, Tensor], summary: Mapping[str, Any]) -> None:
        """The weights and the summary; the summary last, because it says that all is there."""
        self.folder.write_model({n: w.detach().cpu().numpy() for n, w in weights.items()})
        self.folder.write_summary(summary)
        self.folder.close()


def open_folder(
    path: Path,
    spec: Spec,
    environment: Callable[[], dict[str, Any]],
    clients: Callable[[], dict[str, Any]],
    differences: Callable[[Mapping[str, Any]], Sequence[str]],
    origin: str | None = None,
    is_longer: Callable[[Mapping[str, Any]], bool] = lambda known: False,
) -> tuple[RunFolder, bool]:
    """A new folder, or the one of the same run to go on with (True).

    `differences` says what of the run is not what an environment tells; `is_longer` if that is only
    that it has more rounds.
    """
    if not holds_run(path):
        return RunFolder.create(path, spec, environment(), clients(), origin), False
    known = read_environment(path)
    others = differences(known)
    if others and not is_longer(known):
        raise InputError(_another(path, spec, others))
    return RunFolder.reopen(path), True


def _another(path: Path, spec: Spec, others: Sequence[str]) -> str:
    """What of a run is not what the folder holds, and what to do about it."""
    there, here = read_spec(path).to_dict(), spec.to_dict()
    changed = [
        (key, there.get(key), here.get(key))
        for key in FIELDS
        if key not in ELSEWHERE and _is_other(there.get(key), here.get(key))
    ]
    words = [f"{name} differ{'' if ' or ' in name else 's'}" for name in others if name != SETTINGS]
    if SETTINGS in others and not changed:
        words.append(f"{SETTINGS} differ")
    fix = ""
    if len(changed) == 1 and not words:
        key, before, _ = changed[0]
        fix = f"leave {key} out" if before is None else f"set {key}={before}"
        fix += " to have that one, or "
    words += [f"{key} was {_shown(before)}, is {_shown(now)}" for key, before, now in changed]
    return f"out '{path}' holds another run ({', '.join(words)}); {fix}name a new folder"


def _is_other(one: Any, other: Any) -> bool:
    """Whether two plain values of a setting differ; objects belong to the named parts."""
    plain = (int, float, str, bool, type(None))
    return isinstance(one, plain) and isinstance(other, plain) and one != other


def _shown(value: Any) -> str:
    return "not given" if value is None else str(value)


def find(
    folder: RunFolder, like: Any, accept: Callable[[Checkpoint], None]
) -> tuple[Checkpoint | None, tuple[str, ...]]:
    """The newest checkpoint that is whole, and what is to be said about others.

    `accept` raises ValueError when the rows beside it do not fit.
    """
    notes: list[str] = []
    for name in (checkpoint.FILE, checkpoint.PREVIOUS):
        if not (folder.path / name).exists():
            continue
        try:
            point = checkpoint.read(folder.path / name, like)
            folder.check_marks(point.lines)
            accept(point)
            return point, tuple(notes)
        except ValueError as error:
            notes.append(f"{name} cannot be used ({error}); going on from an earlier state")
    return None, tuple(notes)


MOST_COUNTS = 1_000_000  # numbers; a larger table of labels is left out


def clients(split: Split, classes: int | None) -> dict[str, Any]:
    """Who holds how many samples of which class, for reports."""
    counts = None
    labels = isinstance(split.y, Tensor) and split.y.dim() == 1 and not split.y.is_floating_point()
    # Neither made when they are visited, nor held elsewhere.
    is_here = split.make is None and len(split.parts) == len(split)
    is_here = is_here and all(len(p) == n for p, n in zip(split.parts, split.sizes, strict=True))
    if is_here and classes and labels and len(split) * classes <= MOST_COUNTS:
        y = split.y.cpu().numpy()
        counts = [np.bincount(y[p][y[p] >= 0], minlength=classes).tolist() for p in split.parts]
    about: dict[str, Any] = {"sizes": split.sizes.tolist(), "counts": counts, "scheme": split.note}
    if split.test is not None:
        about["test_sizes"] = split.test.sizes.tolist()
    if split.domains is not None and split.domains.is_tested:
        about["domains"] = domains.about(split.domains)
    return about


GIVEN_AS_OBJECTS = dict.fromkeys(("data", "model"), own_code.IN_PYTHON)
"""Stands in the spec of a run whose data and model were given as objects."""


LIMITS = ("ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")
"""Variables by which libraries take other instructions than torch's own kernels do."""


def instructions() -> str:
    """The instruction set of this process and how it rounds, as in `AVX512/04606ffa`: where these
    differ, as on two makers' processors with the same set, so do the last bits of results."""
    limits = [f"{name}={os.environ[name]}" for name in LIMITS if os.environ.get(name)]
    return " ".join([f"{torch.backends.cpu.get_cpu_capability()}/{last_bits()}", *limits])


def instructions_of(known: Mapping[str, Any]) -> str:
    """All that a run was computed under, one after the other; empty if it was not kept."""
    places = known.get("resumed")
    past = [p for p in places if isinstance(p, dict)] if isinstance(places, list) else []
    used = [place.get("instructions") for place in (known, *past)]
    return ", then ".join(dict.fromkeys(str(one) for one in used if one))


def environment(identity: object, notes: tuple[str, ...] = ()) -> dict[str, Any]:
    """What the bits of a run depend on besides its spec."""
    return {
        "fedrift": VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "instructions": instructions(),
        "identity": identity,
        "notes": list(notes),
    }


DECISIVE = ("fedrift", "torch", "numpy", "python", "machine", "instructions")
"""What of an environment may move the last bits of a result."""


def moved(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """What has changed since a run began, in words."""
    return tuple(
        f"{name} was {before[name]!s:.40}, is {now[name]} now"
        for name in DECISIVE
        if name in before and before[name] != now[name]
    )


def elsewhere(folder: RunFolder, round: int) -> tuple[str, ...]:
    """A note if a run goes on under other circumstances than before; its folder keeps them."""
    known = read_environment(folder.path)
    places = known.get("resumed")
    past = [p for p in places if isinstance(p, dict)] if isinstance(places, list) else []
    now = environment("")
    changes = moved({**known, **(past[-1] if past else {})}, now)
    if not changes:
        return ()
    place = {"after_round": round, **{name: now[name] for name in DECISIVE}}
    folder.write_environment({**known, "resumed": [*past, place]})
    return (f"{'; '.join(changes)}: the last bits may be others than without an interruption",)
