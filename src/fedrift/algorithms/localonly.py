"""Local training alone: the baseline that every federated method has to beat.

Each client goes on with its own model, on the minibatches that FedAvg would draw. Nothing is sent.
"""

from __future__ import annotations

from fedrift.algorithms.fedavg import FedAvg
from fedrift.algorithms.keep import Keep
from fedrift.core import Local


def localonly(local: Local = Local()) -> Keep:
    """Every client trains a model of its own, and nothing is sent."""
    return Keep(inner=FedAvg(local=local), what="all")
