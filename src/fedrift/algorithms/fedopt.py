"""FedAvgM: Hsu, Qi, Brown, arXiv:1909.06335, 2019; FedOpt: Reddi et al., ICLR 2021, Algorithm 2.

FedAdagrad, FedAdam and FedYogi are the paper's form: no bias correction, accumulator from τ². The
authors' experiments used Keras optimizers (bias correction, accumulator 0): `bias_correction`,
`v_init=0`. FedAvgM is heavy ball; `nesterov` gives the other reading.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fedrift.algorithms.fedavg import FedAvg
from fedrift.core import SGD, Adagrad, Adam, Local, Weights

Positive = Annotated[float, "> 0"]
Decay = Annotated[float, ">= 0", "< 1"]


def fedavgm(
    local: Local = Local(),
    beta: Decay = 0.9,
    server_lr: Positive = 1.0,
    nesterov: bool = False,
    weights: Weights = "samples",
) -> FedAvg:
    """FedAvg whose server adds momentum to the mean update.

    beta: momentum of the server
    server_lr: rate of the server's step; with momentum it acts as server_lr/(1−β)
    nesterov: look ahead: step along −D + βv instead of v
    """
    outer = SGD(lr=server_lr, momentum=beta, nesterov=nesterov)
    return FedAvg(local=local, outer=outer, weights=weights)


def fedadagrad(
    local: Local = Local(),
    server_lr: Positive = 0.1,
    tau: Positive = 1e-3,
    v_init: Annotated[float, ">= 0"] | None = None,
    weights: Weights = "samples",
) -> FedAvg:
    """FedAvg with Adagrad at the server: v ← v + D².

    server_lr: rate of the server's step
    tau: adaptivity; larger is closer to plain averaging
    v_init: initial accumulator; τ² unless given
    """
    outer = Adagrad(lr=server_lr, eps=tau, v_init=tau**2 if v_init is None else v_init)
    return FedAvg(local=local, outer=outer, weights=weights)


def _adaptive(
    yogi: bool,
    local: Local = Local(),
    server_lr: Positive = 0.1,
    tau: Positive = 1e-3,
    beta1: Decay = 0.9,
    beta2: Decay = 0.99,
    bias_correction: bool = False,
    v_init: Annotated[float, ">= 0"] | None = None,
    weights: Weights = "samples",
) -> FedAvg:
    """FedAvg with Adam or Yogi at the server, which differ in how v follows D².

    server_lr: rate of the server's step
    tau: adaptivity, outside the root; larger is closer to plain averaging
    beta1: decay of the mean update
    beta2: decay of its square
    bias_correction: divide by 1−βᵗ as Keras and torch do; meant for v_init=0
    v_init: initial v; τ² unless given
    """
    start = tau**2 if v_init is None else v_init
    outer = Adam(server_lr, beta1, beta2, tau, start, bias_correction, yogi=yogi)
    return FedAvg(local=local, outer=outer, weights=weights)


fedadam = partial(_adaptive, False)
"""FedAvg with Adam at the server: v ← β2 v + (1−β2) D²."""

fedyogi = partial(_adaptive, True)
"""FedAvg with Yogi at the server: v moves towards D² by (1−β2) D², however far it is."""
