"""Residual networks with GroupNorm: He et al. 2016, as GHBM (ResNet-20) and FL-Simulator use them.

Every normalisation has two groups, so there are no running statistics to average. Sums and
activations overwrite the output of the layer before (5 % of a step): a forward hook that keeps
a tensor has to copy it.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

GROUPS = 2


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class Block(nn.Module):
    """Two 3×3 convolutions around a shortcut.

    Where the shape changes the shortcut is a projection, or without parameters (option A):
    every second pixel, and zeros for the new channels, half of them on each side.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, projects: bool) -> None:
        nn.Module.__init__(self)
        self.conv1 = _conv(inputs, outputs, 3, stride)
        self.norm1 = nn.GroupNorm(GROUPS, outputs)
        self.conv2 = _conv(outputs, outputs, 3)
        self.norm2 = nn.GroupNorm(GROUPS, outputs)
        self.stride, self.new_channels = stride, outputs - inputs
        changes = stride != 1 or inputs != outputs
        self.shortcut = (
            nn.Sequential(_conv(inputs, outputs, 1, stride), nn.GroupNorm(GROUPS, outputs))
            if projects and changes
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = self.norm2(self.conv2(y))
        return F.relu(y.add_(self._short(x)), inplace=True)

    def _short(self, x: Tensor) -> Tensor:
        if self.shortcut is not None:
            return self.shortcut(x)
        if self.stride != 1:
            x = x[:, :, :: self.stride, :: self.stride]
        if not self.new_channels:
            return x
        before = self.new_channels // 2
        return F.pad(x, (0, 0, 0, 0, before, self.new_channels - before))


def _stages(widths: tuple[int, ...], blocks: int, projects: bool) -> nn.Sequential:
    """Stages of equal length; all but the first halve the image."""
    stages: list[nn.Sequential] = []
    inputs = widths[0]
    for number, width in enumerate(widths):
        stage: list[Block] = []
        for first in (True, *[False] * (blocks - 1)):
            stage.append(Block(inputs, width, 2 if first and number else 1, projects))
            inputs = width
        stages.append(nn.Sequential(*stage))
    return nn.Sequential(*stages)


class ResNet(nn.Module):
    """Stem, stages, mean over pixels, linear."""

    head = "fc"

    def __init__(self, stem: nn.Conv2d, pools: bool, stages: nn.Sequential, fc: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.conv, self.norm = stem, nn.GroupNorm(GROUPS, stem.out_channels)
        self.pools, self.stages, self.fc = pools, stages, fc

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.conv(x))
        if self.pools:  # before the activation: the same function, a quarter of the work
            x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = self.stages(F.relu(x, inplace=True))
        return self.fc(x.mean(dim=(2, 3)))


def resnet20(input_shape: tuple[int, ...], classes: int) -> ResNet:
    """Three stages of three blocks, 16-32-64 channels; Kaiming-normal weights (fan in)."""
    widths = (16, 32, 64)
    stages = _stages(widths, 3, projects=False)
    net = ResNet(_conv(input_shape[0], 16, 3), False, stages, nn.Linear(64, classes))
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
    return net


def resnet18(
    input_shape: tuple[int, ...], classes: int, stem: Literal["imagenet", "cifar"] = "imagenet"
) -> ResNet:
    """Four stages of two blocks, 64-128-256-512 channels; Kaiming-normal convolutions (fan out).

    The stem is 7×7 with stride 2 and a pooling as for ImageNet, or 3×3 for small images.
    """
    large = stem == "imagenet"
    first = _conv(input_shape[0], 64, 7, 2) if large else _conv(input_shape[0], 64, 3)
    stages = _stages((64, 128, 256, 512), 2, projects=True)
    net = ResNet(first, large, stages, nn.Linear(512, classes))
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return net
