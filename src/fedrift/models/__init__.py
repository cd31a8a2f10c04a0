"""The models by name, and the reader's own by `package.module:Class`. Each of ours names its head.

All but the residual networks keep PyTorch's default initialisation. Convolutions are pooled
before the activation: the same function, a quarter of the work.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrift.config import models, own_code
from fedrift.config.models import CONV_PADDING, RANDOM_FILTERS, side_after
from fedrift.errors import InputError
from fedrift.models.mobilenet import Scale, mobilenet_v2
from fedrift.models.resnet import resnet18, resnet20
from fedrift.models.text import Gpt, Lstm

KERNEL = 6  # of the random filters
CELLS = 4  # of the grid that they are pooled to, along each side


class Logistic(nn.Module):
    """One linear layer on the flattened sample."""

    head = "fc"
    layers = ("flatten", "fc")

    def __init__(self, input_shape: tuple[int, ...], classes: int) -> None:
        nn.Module.__init__(self)
        self.fc = nn.Linear(prod(input_shape), classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.flatten(x, 1))


class Mlp(nn.Module):
    """Two hidden layers of equal width on the flattened sample."""

    head = "fc3"
    layers = ("flatten", "fc1", "relu", "fc2", "relu", "fc3")

    def __init__(self, input_shape: tuple[int, ...], classes: int, hidden: int = 200) -> None:
        nn.Module.__init__(self)
        self.fc1 = nn.Linear(prod(input_shape), hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return self.fc3(F.relu(self.fc2(x)))


class Perceptron(nn.Module):
    """One hidden layer on the flattened sample."""

    head = "fc2"
    layers = ("flatten", "fc1", "relu", "fc2")

    def __init__(self, input_shape: tuple[int, ...], classes: int, hidden: int = 200) -> None:
        nn.Module.__init__(self)
        self.fc1 = nn.Linear(prod(input_shape), hidden)
        self.fc2 = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))


def mlp(input_shape: tuple[int, ...], classes: int, hidden: int = 200, depth: int = 2) -> nn.Module:
    """With so many hidden layers."""
    return (Perceptron if depth == 1 else Mlp)(input_shape, classes, hidden)


class ConvNet(nn.Module):
    """Two 5×5 convolutions, each pooled 2×2, then one or two hidden layers."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        channels: tuple[int, int],
        hidden: tuple[int, ...],
        padding: int,
    ) -> None:
        nn.Module.__init__(self)
        first, second = channels
        self.conv1 = nn.Conv2d(input_shape[0], first, 5, padding=padding)
        self.conv2 = nn.Conv2d(first, second, 5, padding=padding)
        pixels = prod(side_after(side, padding) for side in input_shape[1:])
        sizes = (second * pixels, *hidden)
        self.fc1 = nn.Linear(sizes[0], sizes[1])
        self.fc2 = nn.Linear(sizes[1], sizes[2] if len(hidden) > 1 else classes)
        self.fc3 = nn.Linear(sizes[2], classes) if len(hidden) > 1 else None
        self.head = "fc2" if self.fc3 is None else "fc3"

    def forward(self, x: Tensor) -> Tensor:
        # In place only where nobody else can hold the tensor: a hook may keep a layer's output.
        x = F.relu(F.max_pool2d(self.conv1(x), 2), inplace=True)
        x = F.relu(F.max_pool2d(self.conv2(x), 2), inplace=True)
        x = self.fc2(F.relu(self.fc1(torch.flatten(x, 1))))
        return x if self.fc3 is None else self.fc3(F.relu(x))


class RandomConvolutions(nn.Module):
    """One frozen layer of random filters, pooled, and a linear head; no download."""

    head = "fc"

    def __init__(
        self, input_shape: tuple[int, ...], classes: int, filters: int = RANDOM_FILTERS
    ) -> None:
        nn.Module.__init__(self)
        self.conv = nn.Conv2d(input_shape[0], filters, KERNEL, padding=KERNEL // 2)
        nn.init.kaiming_normal_(self.conv.weight)
        self.conv.requires_grad_(False)
        self.fc = nn.Linear(filters * CELLS**2, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.adaptive_avg_pool2d(F.relu(self.conv(x)), CELLS).flatten(1))


def _conv_net(name: str, channels: tuple[int, int], *hidden: int) -> Callable[..., nn.Module]:
    return partial(ConvNet, channels=channels, hidden=hidden, padding=CONV_PADDING[name])


class ModelEntry(NamedTuple):
    """`make(input_shape, classes, …options)` and one line about it."""

    make: Callable[..., nn.Module]
    about: str


NAMES: dict[str, ModelEntry] = {
    "logistic": ModelEntry(Logistic, models.NAMES["logistic"]),
    "mlp": ModelEntry(mlp, models.NAMES["mlp"]),
    "cnn": ModelEntry(_conv_net("cnn", (20, 50), 500), models.NAMES["cnn"]),
    "cnn-mcmahan": ModelEntry(_conv_net("cnn-mcmahan", (32, 64), 512), models.NAMES["cnn-mcmahan"]),
    "lenet": ModelEntry(_conv_net("lenet", (64, 64), 384, 192), models.NAMES["lenet"]),
    "niid-cnn": ModelEntry(_conv_net("niid-cnn", (6, 16), 120, 84), models.NAMES["niid-cnn"]),
    "resnet20": ModelEntry(resnet20, models.NAMES["resnet20"]),
    "resnet18": ModelEntry(resnet18, models.NAMES["resnet18"]),
    "mobilenet-v2": ModelEntry(mobilenet_v2, models.NAMES["mobilenet-v2"]),
    "random-conv": ModelEntry(RandomConvolutions, models.NAMES["random-conv"]),
    "gpt": ModelEntry(Gpt, models.NAMES["gpt"]),
    "lstm": ModelEntry(Lstm, models.NAMES["lstm"]),
}


def factory(
    text: str, input_shape: tuple[int, ...], classes: int, data: Scale | None = None
) -> Callable[[], nn.Module]:
    """A picklable function that builds the named model for samples of this shape.

    data: mean and deviation the samples were normalised with, for weights that expect others.
    """
    if classes < 1:
        raise InputError(f"model '{text}' needs at least 1 class, not {classes}")
    shape = tuple(int(side) for side in input_shape)
    choice = models.choose_model(text, shape)
    if choice.attribute is None:
        options: dict[str, Any] = dict(choice.options)
        if choice.name == "mobilenet-v2":
            options["data"] = data
        return partial(NAMES[choice.name].make, shape, classes, **options)
    _arguments(choice.text, _load(choice.name, choice.attribute), shape, classes)
    return partial(build_own, choice.name, choice.attribute, shape, classes)


def build_own(module: str, attribute: str, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """The reader's own model: `attribute` of `module`, called with what its signature accepts."""
    text = f"{module}:{attribute}"
    make = _load(module, attribute)
    if isinstance(make, nn.Module):
        built: Any = copy.deepcopy(make)
    else:
        arguments = _arguments(text, make, input_shape, classes)
        try:
            built = make(**arguments)
        except Exception as error:
            raise InputError(f"model '{text}' raised {type(error).__name__}: {error}") from error
    if not isinstance(built, nn.Module):
        raise InputError(f"model '{text}' returned a {type(built).__name__}, not an nn.Module")
    if next(built.parameters(), None) is None:
        raise InputError(f"model '{text}' has no parameters; there is nothing to train")
    return built


def _load(module: str, attribute: str) -> Callable[..., object]:
    loaded = own_code.load(module, attribute, "model", f"; models of ours: {', '.join(NAMES)}")
    if not callable(loaded):
        kind = type(loaded).__name__
        raise InputError(f"model '{module}:{attribute}' is a {kind}, not a class or function")
    return loaded


def _arguments(
    text: str, make: Callable[..., object], input_shape: tuple[int, ...], classes: int
) -> dict[str, object]:
    """What to call it with: those of our arguments that its signature names."""
    if isinstance(make, nn.Module):
        return {}
    try:
        parameters = inspect.signature(make).parameters
    except ValueError:  # written in C: no signature to look at
        return {}
    ours: dict[str, object] = {
        "input_shape": input_shape,
        "classes": classes,
        "num_classes": classes,
    }
    chosen: dict[str, object] = {}
    for name, parameter in parameters.items():
        is_open = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if name in ours and not is_open and parameter.kind != parameter.POSITIONAL_ONLY:
            chosen[name] = ours[name]
        elif parameter.default is parameter.empty and not is_open:
            raise InputError(
                f"model '{text}' needs an argument '{name}'; give it a default "
                "(only input_shape, classes and num_classes are passed)"
            )
    return chosen
