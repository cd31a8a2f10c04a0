"""Fed3R against ridge regression: golden numbers, and equality with the pooled solution."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from fedrift.conform.problem import Trial, classifier, pooled
from fedrift.conform.runs import run
from fedrift.engine.result import Result

RIDGE = 0.01
TOLERANCE = 2e-6
ROUNDING = 1e-10

# (features | bias) of both classes for features (1,2), (0,1), (3,1), (2,2), labels 0, 1, 0, 1.
GOLDEN = {
    "fed3r:normalise=false": (
        (0.200184, 0.002894, 0.194895),
        (-0.197275, 0.011535, 0.776669),
    ),
    "fed3r": ((0.999895, 0.014458, 0.973474), (-0.998295, 0.058370, 3.930267)),
}


class Given(nn.Module):
    """A model whose features are the samples themselves."""

    head = "out"

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.out = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x)


def golden_trial() -> Trial:
    """Four given feature vectors, two clients, one a round."""
    x = torch.tensor([[1.0, 2.0], [0.0, 1.0], [3.0, 1.0], [2.0, 2.0]], dtype=torch.float64)
    y = torch.tensor([0, 1, 0, 1])
    clients = ((x[:1], y[:1]), (x[1:], y[1:]))
    return Trial(Given, clients, {}, 2, per_round=1)


def head_of(result: Result) -> Tensor:
    """The classifier: one row per class, the bias last."""
    named = result.problem.layout.named(result.weights)
    weight, bias = result.problem.head_names()
    return torch.cat([named[weight], named[bias][:, None]], dim=1)


def golden_failures() -> list[str]:
    """Both golden classifiers, un-normalised and normalised."""
    failures: list[str] = []
    for text, expected in GOLDEN.items():
        head = head_of(run(text, golden_trial()))
        wrong = float((head - torch.tensor(expected, dtype=head.dtype)).abs().max())
        if not wrong <= TOLERANCE:
            failures.append(f"{text}: the classifier is off by {wrong:.1e}")
    return failures


def ridge(phi: Tensor, y: Tensor, classes: int, penalty: float = RIDGE) -> Tensor:
    """Ridge regression on one-hot labels by least squares with a bias: a class per row."""
    design = torch.cat([phi.double(), torch.ones(len(phi), 1, dtype=torch.float64)], dim=1)
    penalties = penalty**0.5 * torch.eye(design.shape[1], dtype=torch.float64)
    targets = nn.functional.one_hot(y, classes).double()
    nothing = torch.zeros(design.shape[1], classes, dtype=torch.float64)
    rows, sides = torch.cat([design, penalties]), torch.cat([targets, nothing])
    return torch.linalg.lstsq(rows, sides).solution.T


def splits() -> dict[str, Trial]:
    """The same samples in several hands, visited in several orders."""
    trial = replace(classifier(), dtype="float64", rounds=6, per_round=2)
    whole = pooled(trial).clients[0]
    parts = [slice(0, 3), slice(3, 90), slice(90, 91), slice(91, None)]
    pieces = tuple((whole[0][s], whole[1][s]) for s in parts)
    return {
        "the given split": trial,
        "another order": replace(
            trial, per_round=None, participants=((5,), (3, 4), (0, 1, 2)), rounds=3
        ),
        "another split": replace(trial, clients=pieces),
        "one client": replace(trial, clients=(whole,), per_round=1),
    }


def ridge_failures() -> list[str]:
    """Any split and order against ridge regression on all samples at once."""
    failures: list[str] = []
    for about, trial in splits().items():
        result = run("fed3r:normalise=false", trial)
        x, y = pooled(trial).clients[0]
        phi = torch.tanh(result.module().get_submodule("hidden")(x.double())).detach()
        wrong = float((head_of(result) - ridge(phi, y, 4)).abs().max())
        if not wrong <= ROUNDING:
            failures.append(
                f"with {about} the classifier is {wrong:.1e} from pooled ridge regression"
            )
    return failures
