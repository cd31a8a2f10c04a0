"""Would one batched call for many clients speed up small convolutional networks? A trial.

    python benchmarks/convolutions.py [--turns N]

Processor time of a gradient step per client, in one process with one thread. One by one, as
fedrift trains them (channels-last); against stacks of 2 to 16 clients, by a grouped convolution,
by `torch.func.vmap`, and by patches (im2col) with batched products. Ways take turns.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from fedrift import models

CLASSES = 10
STACKS = (2, 4, 8, 16)
STEPS = 3  # of each way in a turn


class Row(NamedTuple):
    """A model by name, the shape of its samples, and the size of a batch."""

    model: str
    shape: tuple[int, int, int]
    batch: int


ROWS = (
    Row("niid-cnn", (3, 32, 32), 64),
    Row("lenet", (3, 32, 32), 10),
    Row("resnet20", (3, 32, 32), 32),
)
Weights = Mapping[str, Tensor]
Convolve = Callable[..., Tensor]


def grouped(x: Tensor, w: Tensor, b: Tensor | None, **how: int) -> Tensor:
    """Clients side by side as groups of channels: (clients, batch, channels, high, wide)."""
    clients, batch = x.shape[:2]
    wide = x.transpose(0, 1).flatten(1, 2)
    bias = None if b is None else b.flatten()
    y = F.conv2d(wide, w.flatten(0, 1), bias, groups=clients, **how)
    return y.view(batch, clients, -1, *y.shape[2:]).transpose(0, 1)


def patches(x: Tensor, w: Tensor, b: Tensor | None, stride: int = 1, padding: int = 0) -> Tensor:
    """Every patch a row, and one batched product for all clients."""
    clients, batch, _, high, wide = x.shape
    size = w.shape[-1]
    columns = F.unfold(x.flatten(0, 1), size, padding=padding, stride=stride)
    columns = columns.view(clients, batch, columns.shape[1], -1).permute(0, 1, 3, 2).flatten(1, 2)
    y = torch.bmm(columns, w.flatten(2).transpose(1, 2))
    if b is not None:
        y = y + b.unsqueeze(1)
    sides = [(side + 2 * padding - size) // stride + 1 for side in (high, wide)]
    return y.view(clients, batch, *sides, -1).permute(0, 1, 4, 2, 3)


class Stacked:
    """A network's layers on stacks: parameters (clients, …), samples (clients, batch, …)."""

    def __init__(self, weights: Weights, convolve: Convolve) -> None:
        self.weights, self.convolve = weights, convolve

    def conv(self, x: Tensor, name: str, **how: int) -> Tensor:
        return self.convolve(
            x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"), **how
        )

    def linear(self, x: Tensor, name: str) -> Tensor:
        w, b = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return torch.baddbmm(b.unsqueeze(1), x, w.transpose(1, 2))

    @staticmethod
    def each(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """What sees one image at a time needs no stack."""
        y = f(x.flatten(0, 1))
        return y.view(*x.shape[:2], *y.shape[1:])


def conv_net(net: Any, stack: Stacked, x: Tensor) -> Tensor:
    """`models.ConvNet.forward` on a stack."""
    for name in ("conv1", "conv2"):
        padding = getattr(net, name).padding[0]
        pool = partial(F.max_pool2d, kernel_size=2)
        x = F.relu(stack.each(pool, stack.conv(x, name, padding=padding)))
    x = stack.linear(F.relu(stack.linear(x.flatten(2), "fc1")), "fc2")
    return x if net.fc3 is None else stack.linear(F.relu(x), "fc3")


def one_by_one(net: nn.Module, x: Tensor, y: Tensor) -> Callable[[], object]:
    nets = [copy.deepcopy(net).to(memory_format=torch.channels_last) for _ in x]  # type: ignore[call-overload]
    samples = [one.to(memory_format=torch.channels_last) for one in x]

    def step() -> None:
        for one, given, wanted in zip(nets, samples, y, strict=True):
            torch.autograd.grad(F.cross_entropy(one(given), wanted), list(one.parameters()))

    return step


def by_vmap(net: nn.Module, x: Tensor, y: Tensor) -> Callable[[], object]:
    weights = {
        name: p.detach().expand(len(x), *p.shape).clone() for name, p in net.named_parameters()
    }

    def loss(of: Weights, given: Tensor, wanted: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(net, dict(of), (given,)), wanted)

    gradients = torch.func.vmap(torch.func.grad(loss))
    return lambda: gradients(weights, x, y)


def by_stack(convolve: Convolve, net: nn.Module, x: Tensor, y: Tensor) -> Callable[[], object]:
    weights = {
        name: p.detach().expand(len(x), *p.shape).clone().requires_grad_()
        for name, p in net.named_parameters()
    }

    def step() -> object:
        z = conv_net(net, Stacked(weights, convolve), x)
        loss = F.cross_entropy(z.flatten(0, 1), y.flatten(), reduction="sum") / y.shape[1]
        return torch.autograd.grad(loss, list(weights.values()))

    return step


WAYS: dict[str, Callable[[nn.Module, Tensor, Tensor], Callable[[], object]]] = {
    "grouped convolution": partial(by_stack, grouped),
    "vmap": by_vmap,
    "patches": partial(by_stack, patches),
}


def seconds(step: Callable[[], object]) -> float:
    began = time.process_time()
    for _ in range(STEPS):
        step()
    return (time.process_time() - began) / STEPS


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--turns", type=int, default=5)
    turns = given.parse_args().turns
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = Table(
        "model", "batch", "clients", "one by one, ms", *(f"{way} ÷ one by one" for way in WAYS)
    )
    for row in ROWS:
        net = models.factory(row.model, row.shape, CLASSES)()
        for clients in STACKS:
            x = torch.randn(clients, row.batch, *row.shape)
            y = torch.randint(0, CLASSES, (clients, row.batch))
            ways = {"one by one": one_by_one(net, x, y)}
            for name, make in WAYS.items():
                if isinstance(net, models.ConvNet) or name == "vmap":
                    ways[name] = make(net, x, y)
            best = {name: min(seconds(step) for _ in range(2)) for name, step in ways.items()}
            for _ in range(turns):
                for name, step in ways.items():
                    best[name] = min(best[name], seconds(step))
            one = best["one by one"]
            shown = [f"{best[way] / one:.2f}" if way in best else "–" for way in WAYS]
            table.add_row(
                row.model, str(row.batch), str(clients), f"{one / clients * 1e3:.2f}", *shown
            )
    Console().print(table)


if __name__ == "__main__":
    main()
