"""What a run cost: bytes per round, phase and field, gradients and forward passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedrift.core.codecs import sizes_of
from fedrift.core.devices import Trip
from fedrift.core.exchange import Exchange, Outcome
from fedrift.core.messages import Size, nbytes, pack
from fedrift.errors import InputError


@dataclass(frozen=True)
class Cost:
    """Totals of a round, or of several."""

    bytes_down: int = 0
    bytes_up: int = 0
    gradients: int = 0
    """Examples differentiated once."""
    forwards: int = 0
    """Examples only passed forward."""
    steps: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.bytes_down + other.bytes_down,
            self.bytes_up + other.bytes_up,
            self.gradients + other.gradients,
            self.forwards + other.forwards,
            self.steps + other.steps,
        )


@dataclass(frozen=True)
class Entry:
    """One exchange: who was asked, who answered, and how many bytes each field took in all."""

    round: int
    phase: str
    asked: tuple[int, ...]
    replied: tuple[int, ...]
    nonfinite: tuple[int, ...]
    down: Mapping[str, Size]
    up: Mapping[str, Size]
    gradients: int
    forwards: int
    steps: int
    dropped: tuple[int, ...] = ()
    """Who was asked and, in a simulated fault or after a deadline, did not answer."""
    reported: int = field(default=0, compare=False)
    """Bytes of what training reported, where it travelled beside the messages. The run does without
    them, so no total has them."""
    trips: tuple[Trip, ...] = ()
    """When each was sent what, and when its reply arrived, on the simulated clock."""

    @property
    def cost(self) -> Cost:
        return Cost(
            sum(s.total for s in self.down.values()),
            sum(s.total for s in self.up.values()),
            self.gradients,
            self.forwards,
            self.steps,
        )

    def row(self) -> dict[str, Any]:
        """The entry as a line of `ledger.jsonl`."""
        return {
            "round": self.round,
            "phase": self.phase,
            "asked": list(self.asked),
            "replied": list(self.replied),
            "nonfinite": list(self.nonfinite),
            "down": {name: [s.tensors, s.numbers] for name, s in self.down.items()},
            "up": {name: [s.tensors, s.numbers] for name, s in self.up.items()},
            "gradients": self.gradients,
            "forwards": self.forwards,
            "steps": self.steps,
            **({"dropped": list(self.dropped)} if self.dropped else {}),
            **({"reported": self.reported} if self.reported else {}),
            **({"trips": [list(trip) for trip in self.trips]} if self.trips else {}),
        }

    @staticmethod
    def of(row: Mapping[str, Any]) -> Entry:
        """The inverse of `row`."""

        def sizes(side: str) -> dict[str, Size]:
            return {name: Size(*pair) for name, pair in row[side].items()}

        return Entry(
            round=row["round"],
            phase=row["phase"],
            asked=tuple(row["asked"]),
            replied=tuple(row["replied"]),
            nonfinite=tuple(row["nonfinite"]),
            down=sizes("down"),
            up=sizes("up"),
            gradients=row["gradients"],
            forwards=row["forwards"],
            steps=row["steps"],
            dropped=tuple(row.get("dropped", ())),
            reported=int(row.get("reported", 0)),
            trips=tuple(Trip(*trip) for trip in row.get("trips", ())),
        )


def entry_of(
    exchange: Exchange,
    clients: Sequence[int],
    outcome: Outcome,
    dropped: tuple[int, ...] = (),
    strangers: int = 0,
    base: int = 0,
    trips: Sequence[Trip] = (),
) -> Entry:
    """What an exchange cost; frozen parameters are sent once, to strangers, who keep them. `base`
    are bytes of what was frozen before the run."""
    number, sizes = len(clients), sizes_of(exchange.compression, "down", exchange.down)
    down = {n: Size(s.tensors * number, s.numbers * number) for n, s in sizes.items()}
    if exchange.buffers:
        down["buffers"] = Size(tensors=sum(b.nbytes for b in exchange.buffers) * number)
    if base:
        down["base"] = Size(tensors=base)
    if strangers and exchange.frozen:
        size = sum(v.nbytes for v in exchange.frozen.values())
        down["frozen"] = Size(tensors=size * strangers)
    for message in exchange.private.values():
        for name, size in nbytes(pack(message)).items():
            down[f"private {name}"] = down.get(f"private {name}", Size()) + size
    return Entry(
        round=exchange.round + 1,
        phase=exchange.phase,
        asked=tuple(clients),
        replied=outcome.replied,
        nonfinite=outcome.nonfinite,
        down={**down, **outcome.down_bytes},
        up=outcome.up_bytes,
        gradients=outcome.work.gradients,
        forwards=outcome.work.forwards,
        steps=outcome.work.steps,
        dropped=dropped,
        reported=outcome.reported_bytes,
        trips=tuple(trips),
    )


@dataclass
class Ledger:
    """All exchanges of a run, in order."""

    entries: list[Entry] = field(default_factory=list)

    @staticmethod
    def of(rows: Sequence[Mapping[str, Any]]) -> Ledger:
        """From the lines of a run folder, which nobody vouches for."""
        try:
            return Ledger([Entry.of(row) for row in rows])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"the ledger is damaged ({error!r:.80}); restore it from a copy"
            ) from None

    @property
    def total(self) -> Cost:
        return sum((e.cost for e in self.entries), Cost())

    @property
    def bytes_up(self) -> int:
        return self.total.bytes_up

    @property
    def bytes_down(self) -> int:
        return self.total.bytes_down

    @property
    def gradients(self) -> int:
        return self.total.gradients

    def of_round(self, round: int) -> Cost:
        return sum((e.cost for e in self.entries if e.round == round), Cost())

    def rows(self) -> list[dict[str, Any]]:
        return [e.row() for e in self.entries]
