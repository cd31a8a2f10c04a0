"""FedPer: Arivazhagan, Aggarwal, Singh, Choudhary, arXiv:1912.00818, 2019.

Clients train base and personal layers together and send the base.
"""

from __future__ import annotations

from fedrift.algorithms.fedavg import FedAvg
from fedrift.algorithms.keep import Keep
from fedrift.core import Local, Weights


def fedper(local: Local = Local(), what: str = "head", weights: Weights = "samples") -> Keep:
    """FedAvg on the base of the model; the personal layers stay at the clients.

    what: the personal layers: head, or names such as fc.*+conv2.*
    """
    return Keep(inner=FedAvg(local=local, weights=weights), what=what)
