"""Which neuron of one network is which of another: weight matching by linear assignment.

Ainsworth, Hayase, Srinivasa, "Git Re-Basin", ICLR 2023, algorithm 1. Renumbering the hidden neurons
of a layer, and the inputs of the next accordingly, leaves the function as it is. Given two networks
the numbering of the second is sought that brings its weights nearest to the first's: one layer at a
time by `scipy`'s linear assignment, in random order, until no layer changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedrift.core.flat import Layout, Vec, flatten
from fedrift.errors import InputError
from fedrift.rng import generator

MOST_SWEEPS = 100
Order = npt.NDArray[np.int64]
"""Which neuron of the network comes first, second, …"""


@dataclass(frozen=True)
class Chain:
    """The layers of a feed-forward network, input first: each feeds the next and no other.

    A convolution's channels may enter a linear layer as so many inputs each, one per pixel.
    """

    layout: Layout
    layers: tuple[str, ...]

    @staticmethod
    def of(layout: Layout) -> Chain:
        """A network whose parameters are weights and biases of layers, in the order of use."""
        layers = tuple(dict.fromkeys(name.rpartition(".")[0] for name in layout.names))
        shapes = dict(zip(layout.names, layout.shapes, strict=True))
        before = 0
        for layer in layers:
            shape = shapes.get(f"{layer}.weight", ())
            if len(shape) < 2 or (before and shape[1] % before):
                raise InputError(f"layer '{layer}' does not follow from the one before it")
            before = shape[0]
        return Chain(layout, layers)

    @property
    def hidden(self) -> tuple[str, ...]:
        """The layers whose neurons may be renumbered: all but the last."""
        return self.layers[:-1]

    def widths(self) -> dict[str, int]:
        """Neurons of each hidden layer."""
        shapes = dict(zip(self.layout.names, self.layout.shapes, strict=True))
        return {layer: shapes[f"{layer}.weight"][0] for layer in self.hidden}

    def renumbered(self, w: Vec, orders: Mapping[str, Order]) -> Vec:
        """The same function with its hidden neurons in another order."""
        tensors = self.layout.named(w)
        for place, layer in enumerate(self.layers):
            own = orders.get(layer)
            if own is not None:
                index = torch.from_numpy(own)
                for kind in ("weight", "bias"):
                    if f"{layer}.{kind}" in tensors:
                        tensors[f"{layer}.{kind}"] = tensors[f"{layer}.{kind}"][index]
            fed = orders.get(self.layers[place - 1]) if place else None
            if fed is not None:
                name = f"{layer}.weight"
                tensors[name] = _inputs(tensors[name], len(fed))[:, torch.from_numpy(fed)].reshape(
                    tensors[name].shape
                )
        return flatten([tensors[name] for name in self.layout.names])


def _inputs(weight: Tensor, sources: int) -> Tensor:
    """A layer's weights as outputs × neurons that feed it × weights of each."""
    return weight.reshape(len(weight), sources, -1)


def match_neurons(chain: Chain, a: Vec, b: Vec, seed: int = 0) -> dict[str, Order]:
    """The numbering of b's hidden neurons that brings its weights nearest to a's (a local optimum).

    Every assignment can only raise Σ⟨A, PB⟩, so this ends.
    """
    from scipy.optimize import linear_sum_assignment

    widths = chain.widths()
    orders = {layer: np.arange(width) for layer, width in widths.items()}
    ours, theirs = ({name: t.double() for name, t in chain.layout.named(w).items()} for w in (a, b))
    rng = generator(seed, "matching")
    for _ in range(MOST_SWEEPS):
        changed = False
        for layer in rng.permutation(np.array(chain.hidden)).tolist():
            gain = _gain(chain, ours, theirs, orders, layer)
            assignment = linear_sum_assignment(gain, maximize=True)[1].astype(np.int64)
            now = gain[np.arange(len(assignment)), orders[layer]].sum()
            new = gain[np.arange(len(assignment)), assignment].sum()
            if new > now + 1e-9 * max(1.0, abs(now)):
                orders[layer], changed = assignment, True
        if not changed:
            break
    return orders


def _gain(
    chain: Chain,
    ours: Mapping[str, Tensor],
    theirs: Mapping[str, Tensor],
    orders: Mapping[str, Order],
    layer: str,
) -> npt.NDArray[np.float64]:
    """What it is worth to put neuron j of b's layer in the place of neuron i of a's."""
    place, width = chain.layers.index(layer), len(orders[layer])
    before = orders.get(chain.layers[place - 1]) if place else None
    following = chain.layers[place + 1]
    after = orders.get(following)
    entering, leaving = theirs[f"{layer}.weight"], _inputs(theirs[f"{following}.weight"], width)
    if before is not None:
        entering = _inputs(entering, len(before))[:, torch.from_numpy(before)]
    if after is not None:
        leaving = leaving[torch.from_numpy(after)]
    pairs = [
        (ours[f"{layer}.weight"], entering),
        (_inputs(ours[f"{following}.weight"], width).transpose(0, 1), leaving.transpose(0, 1)),
    ]
    if f"{layer}.bias" in ours:
        pairs.append((ours[f"{layer}.bias"], theirs[f"{layer}.bias"]))
    total = torch.zeros(width, width, dtype=torch.float64)
    for mine, other in pairs:
        total.addmm_(mine.reshape(width, -1), other.reshape(width, -1).T)
    return total.numpy()


def unmoved(orders: Mapping[str, Order]) -> float:
    """The share of the hidden neurons that are matched to themselves."""
    themselves = [order == np.arange(len(order)) for order in orders.values()]
    return float(np.concatenate(themselves).mean())


def align(chain: Chain, a: Vec, b: Vec, seed: int = 0) -> Vec:
    """b with its hidden neurons renumbered to lie near a's."""
    return chain.renumbered(b, match_neurons(chain, a, b, seed))


def align_all(chain: Chain, models: Sequence[Vec], sweeps: int = 3, seed: int = 0) -> list[Vec]:
    """All models in one numbering: first the first one's, then each that of the others' mean."""
    first = models[0]
    aligned = [first, *(align(chain, first, w, seed) for w in models[1:])]
    for _ in range(sweeps if len(models) > 2 else 0):
        for i, w in enumerate(aligned):
            others = torch.stack([v for j, v in enumerate(aligned) if j != i]).mean(0)
            aligned[i] = align(chain, others, w, seed)
    return aligned
