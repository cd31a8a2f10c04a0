"""What training last reported of every client of a run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedrift.storage.jsonl import Record
from fedrift.watch.tail import Tail

MOST_CLIENTS = 100_000


@dataclass(slots=True)
class Seen:
    """A client's last visit."""

    round: int
    loss: float | None
    visits: int


@dataclass
class Clients:
    """Grows with `training.jsonl`."""

    tail: Tail
    seen: dict[int, Seen] = field(default_factory=dict[int, Seen])
    generation: int = 0
    """Grows when what was read before is void."""

    @classmethod
    def of(cls, file: Path) -> Clients:
        return cls(Tail(file))

    def refresh(self) -> None:
        """Takes in what has been written since the last time."""
        rows, is_void = self.tail.fresh()
        if is_void and self.seen:
            self.seen, self.generation = {}, self.generation + 1
        for row in rows:
            clients, losses = row.get("client"), row.get("loss")
            if isinstance(clients, list) and isinstance(losses, list):
                for client, loss in zip(clients, losses, strict=False):
                    self._visit(client, loss, row["round"])

    def _visit(self, client: Any, loss: Any, round: int) -> None:
        if type(client) is not int or not 0 <= client < MOST_CLIENTS:
            return
        is_known = type(loss) in (int, float) and math.isfinite(loss)
        before = self.seen.get(client)
        visits = before.visits + 1 if before else 1
        self.seen[client] = Seen(round, float(f"{loss:.4g}") if is_known else None, visits)

    def since(self, round: int, generation: int) -> Record:
        """Clients visited after a round; all, if the reader has seen visits that are void now."""
        after = round if generation == self.generation else 0
        news = [(client, seen) for client, seen in self.seen.items() if seen.round > after]
        return {
            "from": after,
            "generation": self.generation,
            "client": [client for client, _ in news],
            "loss": [seen.loss for _, seen in news],
            "round": [seen.round for _, seen in news],
            "visits": [seen.visits for _, seen in news],
        }
