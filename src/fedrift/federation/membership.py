"""Who is there: nodes join, leave and return under a new id; the newest of a client wins."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from fedrift.backends.codec import Refused
from fedrift.federation.protocol import ABOUT, Envelope, read_header

PAUSE = 0.3  # seconds between two looks at the transport
PATIENCE = 20.0  # seconds that a newcomer's first answer is waited for
TRIES = 3  # of a newcomer that fails
REMIND = 30.0  # seconds after which it is said again who is waited for


class Transport(Protocol):
    """Carries envelopes. Node ids are of no meaning beyond the connection."""

    def nodes(self) -> set[int]:
        """Ids of the nodes that are connected, as far as is known."""
        ...

    def send(self, kind: str, envelopes: Mapping[int, Envelope]) -> dict[str, int]:
        """Send one envelope to each node; ticket → node."""
        ...

    def collect(self, tickets: set[str]) -> dict[str, Envelope | str]:
        """Replies that have come: envelopes, or what went wrong in words. Does not wait."""
        ...


class Membership:
    """Which node holds which client, and how many samples."""

    def __init__(
        self,
        transport: Transport,
        *,
        experiment: str,
        population: int,
        least: int,
        note: Callable[[str], None],
    ) -> None:
        self.nodes: dict[int, int] = {}
        """Client → node."""
        self.sizes: np.ndarray = np.zeros(population, dtype=np.int64)
        self._transport, self._experiment, self._least = transport, experiment, least
        self._population, self._note = population, note
        self._asked: dict[str, tuple[int, float]] = {}
        self._known: set[int] = set()
        self._failures: dict[int, int] = {}

    def present(self) -> np.ndarray:
        """Clients whose nodes are there; waits until they are enough."""
        reminded = time.monotonic()
        while True:
            self._refresh()
            if len(self.nodes) >= self._least and not self._is_curious():
                return np.array(sorted(self.nodes), dtype=np.int64)
            if time.monotonic() - reminded > REMIND:
                reminded = time.monotonic()
                self._note(f"waiting: {len(self.nodes)} of at least {self._least} nodes are there")
            time.sleep(PAUSE)

    def _is_curious(self) -> bool:
        """A newcomer has been asked only now."""
        now = time.monotonic()
        return any(now - since < PATIENCE for _, since in self._asked.values())

    def _refresh(self) -> None:
        here = self._transport.nodes()
        self._known &= here
        for client, node in list(self.nodes.items()):
            if node not in here:
                del self.nodes[client]
                self._note(f"client {client} has left")
        new = here - self._known
        self._known |= new
        envelope = Envelope({"experiment": self._experiment})
        if new:
            now = time.monotonic()
            sent = self._transport.send(ABOUT, dict.fromkeys(new, envelope))
            self._asked |= {ticket: (node, now) for ticket, node in sent.items()}
        self._asked = {t: (node, at) for t, (node, at) in self._asked.items() if node in here}
        if self._asked:
            for ticket, answer in self._transport.collect(set(self._asked)).items():
                node, _ = self._asked.pop(ticket)
                self._take(node, answer)

    def _take(self, node: int, answer: Envelope | str) -> None:
        if not isinstance(answer, Envelope):
            self._failures[node] = self._failures.get(node, 0) + 1
            self._note(f"a node could not say who it is: {answer}")
            if self._failures[node] < TRIES:
                self._known.discard(node)
            return
        try:
            if "refused" in answer.header:
                raise Refused(read_header(answer, "refused", str))
            client, samples = (read_header(answer, name, int) for name in ("client", "samples"))
            if read_header(answer, "experiment", str) != self._experiment:
                raise Refused("it runs another experiment, or another version of something")
            if read_header(answer, "clients", int) != self._population or not (
                0 <= client < self._population
            ):
                raise Refused(f"client {client} is not one of {self._population}")
            if samples < 0:
                raise Refused(f"it says that it holds {samples} samples")
        except Refused as why:
            self._note(f"a node was not taken in: {why}")
            return
        if client in self.nodes:
            self._note(f"client {client} is now at a newer node")
        else:
            self._note(f"client {client} is here with {samples} samples")
        self.nodes[client] = node
        self.sizes[client] = samples
