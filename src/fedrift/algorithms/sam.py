"""FedSAM, FedASAM: Caldarola, Caputo, Ciccone, ECCV 2022; FedSAM, MoFedSAM: Qu et al., ICML 2022;
FedGAMMA: Dai et al., IEEE TNNLS 2023. Each is another algorithm whose gradient is taken uphill.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fedrift.algorithms.fedavg import FedAvg
from fedrift.algorithms.fedcm import FedCM
from fedrift.algorithms.scaffold import Scaffold
from fedrift.core import ASAM, SAM, Local, Weights

Radius = Annotated[float, ">= 0"]


def fedsam(local: Local = Local(), rho: Radius = 0.05, weights: Weights = "samples") -> FedAvg:
    """FedAvg with sharpness-aware local steps: the gradient at w + ρ g/‖g‖.

    rho: length of the ascent
    """
    return FedAvg(local=replace(local, gradient=SAM(rho)), weights=weights)


def fedasam(
    local: Local = Local(),
    rho: Radius = 0.5,
    eta_a: Radius = 0.2,
    weights: Weights = "samples",
) -> FedAvg:
    """FedSAM with an ascent scaled by the size of each weight.

    rho: length of the ascent in scaled coordinates
    eta_a: added to |w|, so that small weights move too
    """
    return FedAvg(local=replace(local, gradient=ASAM(rho, eta_a)), weights=weights)


def mofedsam(
    local: Local = Local(),
    alpha: Annotated[float, "> 0", "<= 1"] = 0.1,
    rho: Radius = 0.1,
    weights: Weights = "uniform",
) -> FedCM:
    """FedCM with sharpness-aware local steps.

    alpha: weight of the fresh gradient (β in the paper)
    rho: length of the ascent, along the local gradient
    """
    return FedCM(local=replace(local, gradient=SAM(rho)), alpha=alpha, weights=weights)


def fedgamma(
    local: Local = Local(),
    rho: Radius = 0.01,
    server_lr: Annotated[float, "> 0"] = 1.0,
    weights: Weights = "uniform",
) -> Scaffold:
    """SCAFFOLD (option II) with sharpness-aware local steps.

    rho: length of the ascent, along the uncorrected local gradient
    server_lr: rate of the server's step
    """
    sharp = replace(local, gradient=SAM(rho))
    return Scaffold(local=sharp, server_lr=server_lr, weights=weights)
