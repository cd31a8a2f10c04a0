"""Who computed, sent and waited on the simulated clock, and how often slow clients counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedrift.errors import InputError
from fedrift.figures.style import COLOURS, new_figure, save, time_ticks

MOST_CLIENTS = 40  # rows of the picture
MOST_VISITS = 20_000  # in it
KINDS = (("receives", 2, COLOURS[0]), ("computes", 3, COLOURS[1]), ("sends", 4, COLOURS[2]))


@dataclass(frozen=True)
class Pace:
    """What the clock did to the clients of a run, from the fastest third to the slowest."""

    clients: int
    """Whose replies were waited for at least once."""
    seconds: tuple[float | None, ...]
    """Median over the clients of a third of the median length of their visits; None: there are
    no clients in it."""
    replies: tuple[float, ...]
    """Share of all replies that count."""
    samples: tuple[float, ...]
    """Share of these clients' samples; empty if they are not known."""


def trips_of(ledger: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], list[float]]]:
    """Every way of a client, with the exchange in which it ended."""
    found = [(row, trip) for row in ledger for trip in row.get("trips", ())]
    if not found:
        raise InputError("the run has no clock: give it devices, such as --devices lognormal")
    return found


def pace_of(ledger: Sequence[Mapping[str, Any]], sizes: Sequence[int] = ()) -> Pace:
    """How long clients took and how much they count, by thirds of their speed."""
    lengths: dict[int, list[float]] = {}
    counted: dict[int, int] = {}
    for row, (client, began, *_, arrives) in trips_of(ledger):
        lengths.setdefault(int(client), []).append(arrives - began)
        is_counted = int(client) not in row.get("dropped", ())
        counted[int(client)] = counted.get(int(client), 0) + is_counted
    takes = {client: float(np.median(own)) for client, own in lengths.items()}
    order = sorted(takes, key=lambda client: (takes[client], client))
    thirds = [part.tolist() for part in np.array_split(np.array(order), 3)]
    total = max(1, sum(counted.values()))
    held = sum(sizes[c] for c in order) if len(sizes) else 0
    return Pace(
        len(order),
        tuple(float(np.median([takes[c] for c in part])) if part else None for part in thirds),
        tuple(sum(counted[c] for c in part) / total for part in thirds),
        tuple(sum(sizes[c] for c in part) / held for part in thirds) if held else (),
    )


def gantt(
    ledger: Sequence[Mapping[str, Any]],
    ends: Mapping[int, float],
    rounds: tuple[int, int],
    path: Path,
) -> Path:
    """A row per client: receiving, computing, sending; `ends` are the times of evaluated rounds.

    Who is too late stops when the round is over.
    """
    first, last = rounds
    chosen = [(row, trip) for row, trip in trips_of(ledger) if first <= row["round"] <= last]
    if not chosen:
        raise InputError(f"rounds {first}-{last} have no replies on the clock; name others")
    clients = sorted({int(trip[0]) for _, trip in chosen})[:MOST_CLIENTS]
    place = {client: i for i, client in enumerate(clients)}
    chosen = [(row, trip) for row, trip in chosen if int(trip[0]) in place]
    if len(chosen) > MOST_VISITS:
        raise InputError(
            f"rounds {first}-{last} have {len(chosen):,} visits, and a picture has room for "
            f"{MOST_VISITS:,}: name fewer with --rounds"
        )
    figure, [axis] = new_figure(1)
    figure.set_size_inches(9.0, 1.6 + 0.22 * len(clients))
    for name, _, colour in KINDS:
        axis.barh(0, 0.0, color=colour, label=name)
    axis.plot([], [], "x", color="black", label="too late")
    axis.plot([], [], ":", color="0.4", label="a round is over")
    bars: dict[tuple[int, str, float], list[tuple[float, float]]] = {}
    for row, (client, began, *parts, arrives) in chosen:
        at, is_late = began, int(client) in row.get("dropped", ())
        end = min(arrives, ends.get(row["round"], arrives)) if is_late else arrives
        for (_, _, colour), length in zip(KINDS, parts, strict=True):
            width = max(0.0, min(length, end - at))
            alpha = 0.3 if is_late else 1.0
            bars.setdefault((place[int(client)], colour, alpha), []).append((at, width))
            at += length
        if is_late:
            axis.plot(end, place[int(client)], "x", color="black")
    for (line, colour, alpha), spans in bars.items():
        axis.broken_barh(spans, (line - 0.35, 0.7), color=colour, alpha=alpha, linewidth=0)
    for number, end in ends.items():
        if first <= number <= last:
            axis.axvline(end, color="0.4", linewidth=0.8, linestyle=":")
    axis.set_yticks(range(len(clients)), [f"client {client}" for client in clients])
    axis.invert_yaxis()
    axis.set_xlabel("time of the simulated clock")
    time_ticks(axis)
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=5, frameon=False)
    return save(figure, path)
