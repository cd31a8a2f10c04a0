"""FedSpeed: Sun, Shen, Huang, Ding, Tao, ICLR 2023, Algorithm 1, with the server rule of the code.

The paper subtracts the cohort's duals, the code the mean of all: the former oscillates under
partial participation. With a=0 or ρ=0 it is FedDyn(α=γ), which is how it is built.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fedrift.algorithms.feddyn import FedDyn
from fedrift.core import Extra, Local, Weights


def fedspeed(
    local: Local = Local(),
    gamma: Annotated[float, "> 0"] = 0.1,
    rho: Annotated[float, ">= 0"] = 0.1,
    a: Annotated[float, ">= 0", "<= 1"] = 1.0,
    weights: Weights = "uniform",
) -> FedDyn:
    """FedDyn with a gradient taken partly at the ascent point.

    gamma: weight of the proximal term, 1/λ in the paper
    rho: length of the ascent
    a: share of the gradient at the ascent point
    """
    return FedDyn(local=replace(local, gradient=Extra(rho, a)), alpha=gamma, weights=weights)
