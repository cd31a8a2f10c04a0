"""What `fedrift explain` records of an algorithm, once for all tests that look at it."""

from __future__ import annotations

from functools import cache

from fedrift.algorithms import NAMES
from fedrift.explain import settle
from fedrift.explain.story import Turn, watched
from tests.support.product import subject_of

TRAINS = [name for name in NAMES if name != "fed3r"]
ROUNDS = 4


@cache
def seen(text: str) -> tuple[Turn, ...]:
    _, task, _ = settle(text, None, ROUNDS, None, None, None)
    return watched(task, subject_of(task.text))
