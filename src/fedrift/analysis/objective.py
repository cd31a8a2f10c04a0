"""The mean loss over a fixed data set as a function of the weights: value, gradient, curvature."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from fedrift.core.flat import Batch, Vec, add_each, copy_each, count, take
from fedrift.core.problem import Problem
from fedrift.errors import InputError

CHUNK = 64  # a product differentiates twice, and larger batches only cost memory


class Objective:
    """F(w) = mean loss of the problem's model over some data: evaluation mode, no decay, no
    augmentation. Chunks are weighted by their size, so a short last one does not count too much.
    """

    def __init__(
        self,
        problem: Problem,
        data: Batch,
        *,
        moved: Mapping[str, Tensor] | None = None,
        temperature: float = 1.0,
        chunk: int = CHUNK,
    ) -> None:
        if not count(data[0]):
            raise InputError("data: there is no sample to take the loss of")
        self.problem, self.data, self.chunk = problem, data, chunk
        self._moved, self._temperature = dict(moved or {}), temperature
        self._total = self._weight(data)

    @property
    def size(self) -> int:
        """Number of weights."""
        return self.problem.layout.size

    def _weight(self, batch: Batch) -> int:
        target = batch[1]
        if self.problem.loss is nn.functional.cross_entropy and isinstance(target, Tensor):
            return int((target >= 0).sum()) if not target.is_floating_point() else count(batch[0])
        return count(batch[0])

    def _chunks(self) -> Iterator[tuple[Batch, float]]:
        for start in range(0, count(self.data[0]), self.chunk):
            some = slice(start, start + self.chunk)
            part = take(self.data[0], some), take(self.data[1], some)
            weight = self._weight(part)
            if weight:
                yield part, weight / max(1, self._total)

    def _at(self, w: Vec) -> None:
        model, problem = self.problem.model, self.problem
        model.freeze({n: problem.rest[n] for n in problem.moving} | self._moved)
        model.temperature = self._temperature
        model.module.eval()
        model.w.copy_(w)

    def _loss(self, part: Batch) -> Tensor:
        return self.problem.loss(self.problem.model.output(part[0]), part[1])

    @torch.no_grad()
    def loss(self, w: Vec) -> float:
        """F(w)."""
        self._at(w)
        return sum(share * float(self._loss(part)) for part, share in self._chunks())

    def value_and_grad(self, w: Vec) -> tuple[float, Vec]:
        """F(w) and ∇F(w)."""
        self._at(w)
        parameters, value = self.problem.model.parameters, 0.0
        total = torch.zeros_like(self.problem.w0)
        views = self.problem.layout.views(total)
        for part, share in self._chunks():
            with torch.enable_grad():
                loss = self._loss(part)
            g = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
            add_each(views, g, share)
            value += share * float(loss.detach())
        return value, total

    def grad(self, w: Vec) -> Vec:
        """∇F(w)."""
        return self.value_and_grad(w)[1]

    def product(self, w: Vec, v: Vec) -> Vec:
        """H(w)·v by differentiating twice."""
        self._at(w)
        total = torch.zeros_like(self.problem.w0)
        views, direction = self.problem.layout.views(total), self.problem.layout.views(v)
        for part, share in self._chunks():
            add_each(views, self._product(part, direction), share)
        return total

    def _product(self, part: Batch, direction: list[Tensor]) -> list[Tensor]:
        parameters = self.problem.model.parameters
        with torch.enable_grad():
            first = torch.autograd.grad(
                self._loss(part), parameters, create_graph=True, allow_unused=True
            )
        # a parameter that enters the loss linearly, or not at all, has no second derivative
        pairs = [(g, d) for g, d in zip(first, direction, strict=True) if _differentiable(g)]
        if not pairs:
            return [torch.zeros_like(p) for p in parameters]
        second = torch.autograd.grad(
            [g for g, _ in pairs],
            parameters,
            [d for _, d in pairs],
            allow_unused=True,
            materialize_grads=True,
        )
        product = [torch.empty_like(p) for p in parameters]
        copy_each(product, [g.detach() for g in second])
        return product

    def seconds(self, w: Vec) -> float:
        """About how long one product takes: one chunk is timed, after one to warm up."""
        self._at(w)
        part = next(iter(self._chunks()))[0]
        direction = self.problem.layout.views(torch.ones_like(self.problem.w0))
        self._product(part, direction)
        start = time.perf_counter()
        self._product(part, direction)
        return (time.perf_counter() - start) * -(-count(self.data[0]) // self.chunk)


def _differentiable(g: Tensor | None) -> bool:
    return g is not None and g.requires_grad
