"""MobileNetV2: Sandler, Howard, Zhu, Zhmoginov, Chen, CVPR 2018, as torchvision names its parts.

Weights that torchvision published, stored as safetensors, therefore load as they are. The dropout
before the classifier is left out: it has no weights, and features must not depend on chance.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrift.config.models import MOBILE_SIZE
from fedrift.errors import InputError

WIDTH = 1280  # of the pooled feature
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet: what the published weights expect to have been taken off and divided by."""
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels, blocks, stride of the first block: the paper's table 2."""
UNTRAINED = "num_batches_tracked"

Scale = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and deviation per channel that the data set was normalised with."""


def _layer(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Module:
    """Convolution, normalisation, activation."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(inplace=True),
    )


class Inverted(nn.Module):
    """Widen, filter each channel, narrow; a shortcut where the shape stays."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        nn.Module.__init__(self)
        hidden = inputs * expansion
        widen = [] if expansion == 1 else [_layer(inputs, hidden, 1)]
        self.conv = nn.Sequential(
            *widen,
            _layer(hidden, hidden, 3, stride, hidden),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.is_residual else self.conv(x)


class Prepared(nn.Module):
    """Images of any data set as the published weights expect them: size, channels, scale."""

    scale: Tensor
    shift: Tensor

    def __init__(self, size: int, data: Scale | None) -> None:
        nn.Module.__init__(self)
        mean, std = (torch.tensor(values).reshape(1, 3, 1, 1) for values in (MEAN, STD))
        was_mean, was_std = (
            torch.tensor(values).reshape(1, -1, 1, 1) for values in data or ((0.0,), (1.0,))
        )
        self.size = size
        self.register_buffer("scale", was_std / std)
        self.register_buffer("shift", (was_mean - mean) / std)

    def extra_repr(self) -> str:
        return f"bilinear to {self.size}×{self.size}"

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-2:] != (self.size, self.size):
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", align_corners=False)
        return x * self.scale + self.shift  # one channel becomes three


class MobileNetV2(nn.Module):
    """Inverted residuals, mean over pixels, linear."""

    head = "classifier.1"

    def __init__(self, prepared: Prepared, classes: int) -> None:
        nn.Module.__init__(self)
        self.prepared = prepared
        layers: list[nn.Module] = [_layer(3, 32, 3, 2)]
        inputs = 32
        for expansion, width, blocks, stride in STAGES:
            for number in range(blocks):
                layers.append(Inverted(inputs, width, 1 if number else stride, expansion))
                inputs = width
        self.features = nn.Sequential(*layers, _layer(inputs, WIDTH, 1))
        self.classifier = nn.Sequential(OrderedDict([("1", nn.Linear(WIDTH, classes))]))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(self.prepared(x)).mean(dim=(2, 3)))


def mobilenet_v2(
    input_shape: tuple[int, ...],
    classes: int,
    weights: str | None = None,
    size: int = MOBILE_SIZE,
    data: Scale | None = None,
) -> MobileNetV2:
    """Fresh (Kaiming-normal, fan out), or with the weights of a safetensors file.

    The classifier comes from the file too where it knows as many classes; else it is fresh.
    """
    net = MobileNetV2(Prepared(size, data), classes)
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out")
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, 0, 0.01)
            nn.init.zeros_(layer.bias)
    if weights is not None:
        _load(net, Path(weights), classes)
    return net


def _load(net: MobileNetV2, path: Path, classes: int) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        loaded = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"weights '{path}' cannot be read as safetensors: {error}") from None
    own = {
        name: value
        for name, value in net.state_dict().items()
        if not name.startswith("prepared.") and not name.endswith(UNTRAINED)
    }
    head = {name for name in own if name.startswith("classifier.")}
    known = loaded.get("classifier.1.bias")
    if known is None or len(known) != classes:
        own = {name: value for name, value in own.items() if name not in head}
    wrong = [n for n, v in own.items() if n not in loaded or loaded[n].shape != v.shape]
    strange = [n for n in loaded if n not in own and n not in head and not n.endswith(UNTRAINED)]
    if wrong or strange:
        first = (wrong or strange)[0]
        raise InputError(f"weights '{path}' are not those of a MobileNetV2: '{first}' does not fit")
    net.load_state_dict({name: loaded[name] for name in own}, strict=False)
