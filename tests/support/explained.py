"""What `fedrift explain` records of an algorithm, once for all tests that look at it."""

from __future__ import annotations

from functools import cache

from fedrift.algorithms import NAMES
from fedrift.conform.subject import subject_of
from fedrift.explain import UNDRAWN, choose_settings
from fedrift.explain.story import Turn, record_turns

TRAINS = [name for name in NAMES if name not in UNDRAWN]
ROUNDS = 4


@cache
def seen(text: str) -> tuple[Turn, ...]:
    _, task, _ = choose_settings(text, None, ROUNDS, None, None, None)
    return record_turns(task, subject_of(task.text))
