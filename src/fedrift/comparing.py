"""Several algorithms on one task: `fr.compare`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedrift import backends
from fedrift.algorithm import local_of
from fedrift.comparison import Comparison, Item, Runner, Watch
from fedrift.described import work
from fedrift.entrant import Entrant, instance, text_of
from fedrift.errors import InputError, unknown
from fedrift.front import SETTINGS, settled
from fedrift.grid import seeds_of, slug
from fedrift.track import tracks

LONGEST = 60  # characters of a label in the name of a folder


def compare(
    algorithms: Entrant | Sequence[Entrant] | Mapping[str, Entrant],
    *,
    seeds: int | Sequence[int] = 1,
    workers: int | str = "auto",
    out: str | Path | None = None,
    watch: Watch | None = None,
    track: str | Sequence[str] | None = None,
    **settings: Any,
) -> Comparison:
    """Run several algorithms on the same task, with the same seeds; other arguments as for `run`.

    For one seed all of them start from the same weights, ask the same cohorts and see the same
    batches, so that differences are the algorithms' own. There are as many runs as algorithms
    times seeds, each as long as one `run`; `workers` of them are under way at a time.

    algorithms: texts, objects or classes; `{label: algorithm}` says what each is called. Objects
        of one class are told apart by the fields in which they differ.
    seeds: how many (0, 1, …), or which.
    out: a folder for the runs; the same call goes on where it was stopped.
    watch: is told when runs start, finish a round and end.
    """
    for key in settings:
        if key not in SETTINGS or key == "seed":
            raise unknown("argument of compare", key, [k for k in SETTINGS if k != "seed"])
    numbers = seeds_of(list(seeds) if isinstance(seeds, Sequence) else seeds)
    if workers != "auto" and (not isinstance(workers, int) or workers < 0):
        raise InputError(f"workers={workers!r} must be 'auto' or a whole number")
    folder, wanted = None if out is None else Path(out), tracks(track)
    items: list[Item] = []
    entrants = named(algorithms)
    places = _places(list(entrants))
    for seed in numbers:
        for label, algorithm in entrants.items():
            place = None if folder is None else folder / "runs" / f"{places[label]}-s{seed}"
            make = partial(settled, algorithm, {**settings, "seed": seed})
            shown = "" if label == algorithm else label
            items.append(Item(label, {}, seed, make, place, settings.get("rounds", 0), shown))
    number = backends.cores() if workers == "auto" else int(workers)
    return Comparison(Runner(number, watch, wanted).run(items), folder)


def named(algorithms: Any) -> dict[str, Entrant]:
    """Every algorithm under a label of its own."""
    if isinstance(algorithms, Mapping):
        for label, one in algorithms.items():
            if not isinstance(label, str) or not label.strip():
                raise InputError(f"algorithms: the label {label!r} must be a text")
            _ = one if isinstance(one, str) else instance(one)
        found: dict[str, Entrant] = dict(algorithms)  # type: ignore[reportUnknownArgumentType]
    else:
        listed = algorithms if isinstance(algorithms, (list, tuple)) else [algorithms]
        made = [one if isinstance(one, str) else instance(one) for one in listed]
        found = dict(zip(_labels(made), made, strict=True))
    if not found:
        raise InputError("algorithms is empty: name at least one")
    return found


def _labels(algorithms: Sequence[Any]) -> list[str]:
    """Texts as they are, objects by their class and options, then by the local work in which they
    differ; a second one of a name gets a number."""
    texts = [a if isinstance(a, str) else text_of(a) for a in algorithms]
    works = [{} if isinstance(a, str) else work(local_of(a)) for a in algorithms]
    names: list[str] = []
    for i, (text, mine) in enumerate(zip(texts, works, strict=True)):
        rivals = [works[j] for j, other in enumerate(texts) if other == text and j != i]
        own = [k for k, v in mine.items() if any(r and r.get(k) != v for r in rivals)]
        if own:
            text += f" ({', '.join(f'{k} {mine[k]}' for k in own)})"
        names.append(text)
    return [
        f"{name} ({names[:i].count(name) + 1})" if name in names[:i] else name
        for i, name in enumerate(names)
    ]


def _places(labels: Sequence[str]) -> dict[str, str]:
    """A folder for each: readable, and with a digest where that alone would not tell them apart."""
    short = [slug(label) for label in labels]
    places: dict[str, str] = {}
    for label, name in zip(labels, short, strict=True):
        digest = hashlib.sha256(label.encode()).hexdigest()[:8]
        is_plain = short.count(name) == 1 and len(label) <= LONGEST
        places[label] = name if is_plain else f"{name[:LONGEST]}-{digest}"
    return places
