"""FedBN: Li, Jiang, Zhang, Kamp, Dou, ICLR 2021.

Weight, bias and running statistics of every BatchNorm layer stay at the client.
"""

from __future__ import annotations

from fedrift.algorithms.fedavg import FedAvg
from fedrift.algorithms.keep import Keep
from fedrift.core import Local, Weights


def fedbn(local: Local = Local(), weights: Weights = "samples") -> Keep:
    """FedAvg on all but the BatchNorm layers, which stay at the clients with their statistics."""
    inner = FedAvg(local=local, weights=weights)
    return Keep(inner=inner, what="norm", may_match_nothing=True)
