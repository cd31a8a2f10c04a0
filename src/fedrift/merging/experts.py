"""Specialists beside each other, and a router that says whose an input is: no weight is changed.

The router looks at features that everybody can compute, those of the common start, and is made of
sums that each holder sends once: for `ridge` what Fed3R sums (Σ φφᵀ and Σ φ, with the expert as
the label), for `prototype` Σ φ, Σ ‖φ‖² and how many. Another expert adds its own sums and model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from fedrift.core.evaluation import combine, evaluate_chunk
from fedrift.core.flat import Inputs, Loss, count, take
from fedrift.core.flat_model import call
from fedrift.core.isolation import one_thread
from fedrift.core.messages import Size
from fedrift.core.problem import Problem
from fedrift.engine.ledger import Entry, Ledger
from fedrift.engine.result import Result
from fedrift.errors import InputError, named_arguments
from fedrift.merging.specialists import (
    Specialist,
    check_alike,
    check_start,
    specialists_of,
    with_data,
)
from fedrift.report.saved import SavedRun

ROUTERS, MIXES = ("ridge", "prototype"), ("top-1", "soft")
CHUNK = 250
RIDGE = 0.01  # λ, as in Fed3R
SHARPNESS = 10.0  # of the softmax over ridge scores, which lie between 0 and 1


@dataclass(frozen=True, eq=False)
class Sums:
    """What the holder of an expert tells of its inputs; double precision."""

    second: Tensor
    """Σ φφᵀ with a 1 behind the features; empty for prototypes."""
    first: Tensor
    """Σ φ, with the 1: the last entry is how many inputs there are."""
    square: float
    """Σ ‖φ‖²."""

    @property
    def nbytes(self) -> int:
        width = self.second.shape[0]
        return 8 * (width * (width + 1) // 2 + self.first.numel() + 1)


class Features(nn.Module):
    """What the router sees: the input of the head of the common start; where there is no such
    layer the input itself, and of tokens the share of each."""

    def __init__(self, problem: Problem) -> None:
        nn.Module.__init__(self)
        self.start = problem.module(problem.w0, {}).eval()
        self.head, self.classes = problem.head, problem.classes or 0
        self.requires_grad_(False)

    @torch.no_grad()
    def forward(self, x: Inputs) -> Tensor:
        if self.head is not None:
            caught: list[Tensor] = []
            layer = self.start.get_submodule(self.head)
            hook = layer.register_forward_pre_hook(lambda _, given: caught.append(given[0]))
            try:
                call(self.start, x)
            finally:
                hook.remove()
            return caught[0].flatten(1).double()
        plain = x if isinstance(x, Tensor) else next(iter(_parts(x)))
        if plain.is_floating_point():
            return plain.flatten(1).double()
        tokens = max(self.classes, int(plain.max()) + 1)
        counts = torch.zeros(len(plain), tokens, dtype=torch.float64)
        ones = torch.ones(plain.flatten(1).shape, dtype=torch.float64)
        return counts.scatter_add_(1, plain.flatten(1), ones) / plain[0].numel()


def _parts(x: Any) -> Any:
    return x.values() if isinstance(x, dict) else x


class Routed(nn.Module):
    """Experts and their router as one module of one input, be it a dict or a tuple; `passes` counts
    inputs that experts were given."""

    def __init__(
        self,
        experts: Sequence[nn.Module],
        features: Features,
        sums: Sequence[Sums],
        router: str,
        mix: str,
        loss: Loss,
    ) -> None:
        nn.Module.__init__(self)
        self.experts, self.features = nn.ModuleList(experts), features
        self.router, self.mix, self.loss = router, mix, loss
        self.passes = 0
        gate = ridge_gate(sums) if router == "ridge" else prototypes(sums)
        self.register_buffer("gate", gate)
        self.register_buffer("width", spread(sums))

    def scores(self, x: Inputs) -> Tensor:
        """How much each input is each expert's: inputs × experts."""
        phi = self.features(x)
        gate, width = cast("Tensor", self.gate), cast("Tensor", self.width)
        if self.router == "ridge":
            return nn.functional.pad(phi, (0, 1), value=1.0) @ gate * SHARPNESS
        return -torch.cdist(phi, gate).square() / (2 * width)

    def forward(self, x: Inputs) -> Tensor:
        """Of the expert with the largest score its logits; softly the logarithm of the mean of
        all experts' probabilities, weighted by their scores."""
        scores = self.scores(x)
        if self.mix == "top-1":
            return self._chosen(x, scores.argmax(1))
        weights = torch.softmax(scores, 1)
        total: Tensor | None = None
        for i, expert in enumerate(self.experts):
            self.passes += count(x)
            shares = torch.softmax(call(expert, x, self.loss), 1)
            weight = weights[:, i].to(shares.dtype).view(-1, *[1] * (shares.dim() - 1))
            total = weight * shares if total is None else total + weight * shares
        assert total is not None
        return total.clamp_min(torch.finfo(total.dtype).tiny).log()

    def _chosen(self, x: Inputs, expert_of: Tensor) -> Tensor:
        """Every input goes to one expert only."""
        places: list[Tensor] = []
        outputs: list[Tensor] = []
        for i in expert_of.unique().tolist():
            rows = torch.nonzero(expert_of == i)[:, 0]
            self.passes += len(rows)
            places.append(rows)
            outputs.append(call(self.experts[i], take(x, rows), self.loss))
        return torch.cat(outputs)[torch.cat(places).argsort()]


def ridge_gate(sums: Sequence[Sums]) -> Tensor:
    """(Σ A + λI)⁻¹ B: ridge regression of "whose is it" on the features, exact for any division."""
    a = torch.stack([one.second for one in sums]).sum(0)
    b = torch.stack([one.first for one in sums], 1)
    return torch.linalg.solve(a + RIDGE * torch.eye(len(a), dtype=a.dtype), b)


def prototypes(sums: Sequence[Sums]) -> Tensor:
    """The mean features of every expert's inputs: experts × features."""
    return torch.stack([one.first[:-1] / one.first[-1] for one in sums])


def spread(sums: Sequence[Sums]) -> Tensor:
    """Mean squared distance of inputs to the prototype of their expert."""
    own = [one.square - float(one.first[:-1].square().sum() / one.first[-1]) for one in sums]
    number = sum(float(one.first[-1]) for one in sums)
    return torch.tensor(max(sum(own) / number, 1e-12), dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Experts:
    """Specialists with a router, and how well they do together what each of them does alone."""

    router: str
    mix: str
    specialists: tuple[Specialist, ...]
    sums: tuple[Sums, ...]
    scores: np.ndarray
    """Accuracy (or loss) of every expert, and in the last row of all together, on every task."""
    routed: np.ndarray
    """Row: the task; column: the share of its test inputs whose best score is that expert's."""
    passes: float
    """Experts that compute, per input: 1 for top-1, all of them for soft."""
    measure: str
    ledger: Ledger

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.specialists)

    @property
    def parameters(self) -> int:
        """Of all experts together; `parameters_used` of them work on one input."""
        return sum(one.w.numel() for one in self.specialists)

    @property
    def parameters_used(self) -> float:
        """Weights of experts that are multiplied for one input, on average."""
        return self.passes * self.parameters / len(self.specialists)

    def module(self) -> Routed:
        """All experts and the router as one module."""
        return _module(self.specialists, self.sums, self.router, self.mix)

    def add(
        self,
        model: str | Path | Result | SavedRun,
        *,
        data: Any = None,
        test: Any = None,
        data_dir: str | None = None,
    ) -> Experts:
        """With one expert more; the others, and what they have sent, stay as they are."""
        (new,) = specialists_of([model], None, None, data_dir, "experts")
        new = with_data(new, data, test, "experts: data", "experts: test")
        with one_thread():
            return _measured((*self.specialists, new), self.sums, self.router, self.mix)

    def record(self) -> dict[str, Any]:
        """Everything but the weights, as JSON can hold it."""
        return {
            "router": self.router,
            "mix": self.mix,
            "models": list(self.names),
            "measure": self.measure,
            "scores": self.scores.tolist(),
            "routed": self.routed.tolist(),
            "passes": self.passes,
            "parameters": self.parameters,
            "parameters_used": self.parameters_used,
            "bytes_up": self.ledger.bytes_up,
            "ledger": self.ledger.rows(),
        }


@named_arguments
def experts(
    models: Sequence[str | Path | Result | SavedRun],
    router: str = "ridge",
    mix: str = "top-1",
    *,
    data: Sequence[Any] | None = None,
    tests: Sequence[Any] | None = None,
    data_dir: str | None = None,
) -> Experts:
    """Several trained models side by side, with a router in front of them.

    Args:
        models: run folders, what `load` returns of them, or results of `run`, from a common start.
        router: `"ridge"` (ridge regression on the start's features, from sums) or `"prototype"`
            (the nearest mean).
        mix: `"top-1"`, where one expert computes, or `"soft"`, where all do.
        data: an (x, y) or Dataset per model; folders of named data bring their training data, so
            None stands for these.
        tests: an (x, y) or Dataset per model, the test of its task; folders of named data bring
            theirs.
        data_dir: where data files are looked for.
    """
    for name, value, known in (("router", router, ROUTERS), ("mix", mix, MIXES)):
        if value not in known:
            raise InputError(f"experts: {name} must be {' or '.join(known)}, not '{value}'")
    specialists = specialists_of(models, data, tests, data_dir, "experts")
    with one_thread():
        return _measured(tuple(specialists), (), router, mix)


def _measured(
    specialists: tuple[Specialist, ...], known: tuple[Sums, ...], router: str, mix: str
) -> Experts:
    check_alike(specialists, "experts")
    check_start(specialists, "experts")
    features = Features(specialists[0].problem)
    new = tuple(_sums(one, features, router) for one in specialists[len(known) :])
    sums = (*known, *new)
    module = _module(specialists, sums, router, mix)
    rows = [[_score(expert, one) for one in specialists] for expert in module.experts]
    module.passes = 0
    together = [_score(module, one) for one in specialists]
    tested = sum(count(one.test[0]) for one in specialists if one.test is not None)
    passes = module.passes / tested if tested else float("nan")
    every = [m for row in (*rows, together) for m in row]
    key = "accuracy" if all("accuracy" in m for m in every) else "loss"
    scores = [[m.get(key, np.nan) for m in row] for row in (*rows, together)]
    return Experts(
        router=router,
        mix=mix,
        specialists=specialists,
        sums=sums,
        scores=np.array(scores, np.float64),
        routed=np.array([_routed(module, one) for one in specialists]),
        passes=passes,
        measure=key,
        ledger=Ledger([_exchange(specialists, sums)]),
    )


def _module(
    specialists: Sequence[Specialist], sums: Sequence[Sums], router: str, mix: str
) -> Routed:
    problem = specialists[0].problem
    return Routed(
        [_expert(one) for one in specialists], Features(problem), sums, router, mix, problem.loss
    ).eval()


def _expert(one: Specialist) -> nn.Module:
    moved = dict(zip(one.problem.moving, one.buffers, strict=True)) | dict(one.frozen or {})
    return one.problem.module(one.w, moved).eval().requires_grad_(False)


def _sums(one: Specialist, features: Features, router: str) -> Sums:
    if one.data is None:
        raise InputError(f"experts: '{one.name}' has no data for the router; give data=…")
    first = second = None
    square = 0.0
    for start in range(0, count(one.data[0]), CHUNK):
        phi = features(take(one.data[0], slice(start, start + CHUNK)))
        square += float(phi.square().sum())
        phi = nn.functional.pad(phi, (0, 1), value=1.0)
        gram = phi.T @ phi if router == "ridge" else phi.new_empty((0, 0))
        total = phi.sum(0)
        first = total if first is None else first + total
        second = gram if second is None else second + gram
    if first is None or second is None:
        raise InputError(f"experts: '{one.name}' has no data for the router; its data are empty")
    return Sums(second, first, square)


@torch.no_grad()
def _score(module: nn.Module, one: Specialist) -> Mapping[str, Any]:
    if one.test is None:
        return {}
    (x, y), problem = one.test, one.problem
    chunks = [
        evaluate_chunk(
            _output(module, take(x, some), problem), take(y, some), problem.loss, problem.classes
        )
        for some in _slices(count(x))
    ]
    return combine(chunks)


def _output(module: nn.Module, x: Inputs, problem: Problem) -> Any:
    """Named inputs, and several, are given to all experts together as they come."""
    return module(x) if isinstance(module, Routed) else call(module, x, problem.loss)


@torch.no_grad()
def _routed(module: Routed, one: Specialist) -> np.ndarray:
    number = len(module.experts)
    if one.test is None:
        return np.full(number, np.nan)
    x = one.test[0]
    best = [module.scores(take(x, some)).argmax(1) for some in _slices(count(x))]
    return torch.bincount(torch.cat(best), minlength=number).numpy() / count(x)


def _slices(number: int) -> list[slice]:
    return [slice(start, start + CHUNK) for start in range(0, number, CHUNK)]


def _exchange(specialists: Sequence[Specialist], sums: Sequence[Sums]) -> Entry:
    everybody = tuple(range(len(specialists)))
    return Entry(
        round=1,
        phase="experts",
        asked=everybody,
        replied=everybody,
        nonfinite=(),
        down={},
        up={
            "w": Size(tensors=sum(one.w.nbytes for one in specialists)),
            "statistics": Size(tensors=sum(one.nbytes for one in sums)),
        },
        gradients=0,
        forwards=int(sum(float(one.first[-1]) for one in sums)),
        steps=0,
    )
