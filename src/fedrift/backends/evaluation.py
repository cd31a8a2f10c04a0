"""Evaluation at the server, in chunks of a fixed size, so that anybody can do a part of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from fedrift.exchange import Shown
from fedrift.flat import count, take
from fedrift.problem import Problem

EVALUATION_CHUNK = 250  # fixed, so that results do not depend on who evaluates

Chunk = Mapping[str, Any]
ChunkMetric = Callable[[Any, Any, Any, "int | None", "Tensor | None"], Mapping[str, Any]]


@dataclass(frozen=True)
class Evaluator:
    """The server's test data and what is measured on it, chunk by chunk."""

    problem: Problem
    x: Any
    y: Any
    measure: ChunkMetric
    keeps_outputs: bool = False

    def __len__(self) -> int:
        """Number of chunks."""
        return -(-count(self.x) // EVALUATION_CHUNK)

    @torch.no_grad()
    def chunks(self, shown: Shown, which: range | None = None) -> list[dict[str, Any]]:
        """What each chunk adds; all of them if it is not said which."""
        problem, model = self.problem, self.problem.model
        if shown.allowed is not None:
            shown = replace(shown, allowed=shown.allowed.to(problem.device))
        model.load_buffers(shown.buffers or [problem.rest[name] for name in problem.moving])
        model.freeze(shown.frozen)
        model.temperature = shown.temperature
        model.load(shown.w)
        return [self._chunk(i, shown) for i in which or range(len(self))]

    def _chunk(self, i: int, shown: Shown) -> dict[str, Any]:
        some = slice(i * EVALUATION_CHUNK, (i + 1) * EVALUATION_CHUNK)
        problem, target = self.problem, take(self.y, some)
        output = problem.model.output(take(self.x, some))
        sums = dict(self.measure(output, target, problem.loss, problem.classes, shown.allowed))
        if self.keeps_outputs:
            sums["output"] = output
        return sums


class Pending(Protocol):
    """An evaluation under way."""

    def chunks(self) -> list[Chunk]:
        """Wait for it; the chunks in order."""
        ...


@dataclass(frozen=True)
class Done:
    """An evaluation that was finished at once."""

    parts: Sequence[Chunk]

    def chunks(self) -> list[Chunk]:
        return list(self.parts)
