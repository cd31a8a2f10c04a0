"""Random convolutional features: an extractor that needs no training and no download.

Filters drawn once and frozen, an activation, means over a coarse grid of the image (Saxe et al.,
"On Random Weights and Unsupervised Feature Learning", ICML 2011). Only the head is trained.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from fedrift.model_names import RANDOM_FILTERS

KERNEL = 6
CELLS = 4  # of the grid, along each side


class RandomConvolutions(nn.Module):
    """One frozen layer of random filters, pooled, and a linear head."""

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
