"""Models that one experiment needs and none of the named ones is."""

from __future__ import annotations

from torch import Tensor, nn


class NormalisedPerceptron(nn.Module):
    """A hidden layer of 128 units with BatchNorm, on features of 256 dimensions, ten classes."""

    head = "out"

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(256, 128)
        self.norm = nn.BatchNorm1d(128)
        self.out = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(nn.functional.relu(self.norm(self.hidden(x))))


class NormalisedDigits(nn.Module):
    """The same on images of 28 × 28 pixels."""

    head = "out"

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(784, 128)
        self.norm = nn.BatchNorm1d(128)
        self.out = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(nn.functional.relu(self.norm(self.hidden(x.flatten(1)))))
