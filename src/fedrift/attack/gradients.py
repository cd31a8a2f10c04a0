"""Inputs read out of the gradient of a linear layer, and what keeps them in.

Of a layer z = W x + b the gradients of one sample are ∂L/∂W = δ xᵀ and ∂L/∂b = δ: every row of the
one, divided by the entry of the other, is the input itself (Phong et al. 2017). Of several samples
a row is a mixture, unless only one of them makes the unit active. The server divides what it has
seen of the first layer, row by row. For every input the nearest row is taken, which only the client
can know: the figures are the most that this attack could find.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrift.api import run
from fedrift.data import datasets
from fedrift.engine.result import Result
from fedrift.errors import InputError
from fedrift.models import factory
from fedrift.rng import generator

RECOVERED = 0.99  # correlation from which an input counts as read
DELTA = 1e-5
NOT_FIRST = (
    "model: the attack divides the first layer's gradient by that of its bias, and the first layer "
    "is not linear with a bias; use logistic or mlp"
)


@dataclass(frozen=True)
class Setting:
    """What the server sees of the victim, and how the run makes it."""

    name: str
    algorithm: str
    options: Mapping[str, Any]
    crowd: int = 1
    """Clients whose sum is all that is seen."""


def settings(steps: Sequence[int], noises: Sequence[float], crowds: Sequence[int]) -> list[Setting]:
    """FedSGD and FedAvg as they are, then clipped and noised, then added up with others'."""
    whole = {"batch_size": "full", "lr": 0.1}
    found = [Setting("FedSGD: the gradient", "fedsgd:weights=uniform", {"lr": 1.0})]
    for number in steps:
        name = f"FedAvg, {number} step{'' if number == 1 else 's'}"
        found.append(Setting(name, "fedavg:weights=uniform", {**whole, "steps": number}))
    for noise in noises:
        private = {"privacy": f"gaussian:{noise:g},clip=1,delta={DELTA:g}"}
        name = f"FedSGD, clipped, noise {noise:g}"
        found.append(Setting(name, "fedsgd:weights=uniform", {"lr": 1.0, **private}))
    for crowd in crowds:
        name = f"FedSGD, sum of {crowd} clients"
        found.append(Setting(name, "fedsgd:weights=uniform", {"lr": 1.0}, crowd))
    return found


@dataclass(frozen=True, eq=False)
class Reading:
    """What the attack found in one setting."""

    setting: str
    inputs: np.ndarray
    """What it took for each input of the victim, in the same units."""
    correlations: np.ndarray
    """With the input itself; 1 is the input up to brightness and contrast."""
    epsilon: float | None = None
    """Of the differential privacy that the setting guarantees."""

    @property
    def recovered(self) -> float:
        """The share of inputs that were read."""
        return float((self.correlations >= RECOVERED).mean())


@dataclass(frozen=True, eq=False)
class Attack:
    """The victim's inputs and what was read in every setting."""

    data: str
    inputs: np.ndarray
    readings: tuple[Reading, ...]
    note: str = ""
    """What could not be tried."""

    def rows(self) -> list[dict[str, Any]]:
        """One per setting."""
        return [
            {
                "setting": one.setting,
                "read": one.recovered,
                "correlation": float(one.correlations.mean()),
                "epsilon": one.epsilon,
            }
            for one in self.readings
        ]

    def plot(self, path: str | Path) -> Path:
        """The inputs, and below them what was read."""
        from fedrift.figures.attack import save_picture

        shown = {one.setting: one.inputs for one in self.readings}
        marks = {one.setting: one.correlations for one in self.readings}
        return save_picture(self.inputs, shown, marks, Path(path))


def attack(
    data: str = "digits",
    *,
    model: str = "mlp",
    samples: int = 4,
    steps: Sequence[int] = (1, 5, 20),
    noises: Sequence[float] = (0.001, 0.01, 0.1),
    crowds: Sequence[int] = (4, 16),
    data_dir: Path | None = None,
    seed: int = 0,
) -> Attack:
    """Try to read the inputs of a client from one round, under different ways of sending them."""
    loaded = datasets.load(data, data_dir)
    if loaded.is_text or loaded.generated is not None:
        raise InputError(f"data '{data}': the attack reads images or other numbers; use digits")
    needed = samples * max((1, *crowds))
    if needed > len(loaded.x):
        raise InputError(
            f"samples={samples} for {max(crowds)} clients are {needed}, and '{data}' has "
            f"{len(loaded.x)}; use fewer"
        )
    chosen = generator(seed, "attack").permutation(len(loaded.x))[:needed]
    x = torch.from_numpy(np.ascontiguousarray(loaded.x[chosen])).float()
    y = torch.from_numpy(loaded.y[chosen])
    make = factory(model, tuple(x.shape[1:]), loaded.classes)
    readings: list[Reading] = []
    note = ""
    if noises and find_spec("dp_accounting") is None:
        noises, note = (), "noise was not tried: it needs pip install 'fedrift[privacy]'"
    for one in settings(steps, noises, crowds):
        clients = [
            (x[i * samples :][:samples], y[i * samples :][:samples]) for i in range(one.crowd)
        ]
        result = run(
            one.algorithm,
            model=make,
            clients=clients,
            rounds=1,
            workers=0,
            seed=seed,
            **one.options,
        )
        found, near = read(result, x[:samples].flatten(1))
        epsilon = result.info.get("epsilon")
        readings.append(Reading(one.name, found.view(x[:samples].shape).numpy(), near, epsilon))
    return Attack(data, x[:samples].numpy(), tuple(readings), note)


def read(result: Result, inputs: Tensor) -> tuple[Tensor, np.ndarray]:
    """For every input the nearest of what the change of the first layer gives, and its
    correlation."""
    candidates = ratios(result)
    if candidates.shape[1] != inputs.shape[1]:
        raise InputError(NOT_FIRST)
    if not len(candidates):
        return torch.zeros_like(inputs), np.zeros(len(inputs))
    near = correlations(inputs.double(), candidates)
    best = near.argmax(1)
    return candidates[best].to(inputs.dtype), near[torch.arange(len(best)), best].numpy()


def ratios(result: Result) -> Tensor:
    """Rows of the first layer's change, each divided by that of its bias."""
    layout = result.problem.layout
    change = layout.named(result.weights.double() - result.problem.w0.double())
    first = next((n for n in layout.names if n.endswith("weight")), "")
    bias = f"{first.removesuffix('weight')}bias"
    if not first or bias not in change or change[first].dim() != 2:
        raise InputError(NOT_FIRST)
    weight, below = change[first], change[bias]
    moved = below.abs() > 0
    return weight[moved] / below[moved, None]


def correlations(inputs: Tensor, candidates: Tensor) -> Tensor:
    """Inputs × candidates: cosines after the mean of each is taken away."""
    a, b = (t - t.mean(1, keepdim=True) for t in (inputs, candidates))
    lengths = a.norm(dim=1)[:, None] * b.norm(dim=1)[None]
    return (a @ b.T) / lengths.clamp_min(1e-300)
