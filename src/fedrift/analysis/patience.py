"""How a long measurement tells how long it may take, and how far it is."""

from __future__ import annotations

from typing import Protocol


class Watch(Protocol):
    """Is told before a long piece of work how long it may take, and after every step of it."""

    def begin(self, what: str, steps: int, seconds: float) -> None:
        """`seconds` of 0 means that nobody knows: the first steps will show."""
        ...

    def step(self) -> None: ...


class Unwatched:
    """Nobody looks."""

    def begin(self, what: str, steps: int, seconds: float) -> None:
        return None

    def step(self) -> None:
        return None
