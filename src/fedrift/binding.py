"""A model bound to its data: tried on two samples, in the memory format that suits it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fedrift import checks
from fedrift.data import given
from fedrift.data.resident import Split
from fedrift.errors import InputError
from fedrift.flat import count, map_tree, take
from fedrift.problem import Problem


def bind(
    describe: Callable[..., Problem],
    held: Split,
    test: tuple[Any, Any] | None,
    check: Callable[[Problem, Split, tuple[Any, Any] | None], None],
    device: str,
) -> tuple[Problem, Split, tuple[Any, Any] | None, tuple[str, ...]]:
    """Try the model on two samples: channels-last images first, then as they came."""
    first = held.first(2)
    try:
        return *_bound(describe, held, test, check, first, device, given.channels_last), ()
    except InputError:
        if not given.has_images(held.x):
            raise
    notes = ("the model takes no channels-last images: slower convolutions",)
    return *_bound(describe, held, test, check, first, device, given.contiguous), notes


def _bound(
    describe: Callable[..., Problem],
    held: Split,
    test: tuple[Any, Any] | None,
    check: Callable[[Problem, Split, tuple[Any, Any] | None], None],
    first: np.ndarray,
    device: str,
    arrange: Callable[[Any], Any],
) -> tuple[Problem, Split, tuple[Any, Any] | None]:
    def placed(tree: Any) -> Any:
        return map_tree(lambda t: t.to(device), tree)

    data = held.with_data(placed(arrange(held.x)), placed(held.y))
    probe = take(data.x, first), take(data.y, first)
    problem = describe(probe=map_tree(lambda t: t.cpu(), probe))
    check(problem, data, test)
    checks.try_loss(problem, probe, "loss")
    if test is None or not count(test[0]):
        return problem, data, None
    test = placed(arrange(test[0])), placed(test[1])
    few = torch.arange(min(2, count(test[0])))
    checks.try_loss(problem, (take(test[0], few), take(test[1], few)), "test")
    return problem, data, test
