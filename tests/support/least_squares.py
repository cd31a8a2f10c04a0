"""The methods with models of the clients' own, in plain numpy on two least-squares problems.

Written from the papers' rules alone: w is the global model, θ_i what client i is evaluated with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fedrift.conform.problem import PAIR_X, PAIR_Y

X, Y = [np.array(x) for x in PAIR_X], [np.array(y) for y in PAIR_Y]
START = np.array([0.5, -0.5])
ETA, K = 0.1, 3
BASE, OWN = np.array([1.0, 0.0]), np.array([0.0, 1.0])


def g(i: int, w: np.ndarray) -> np.ndarray:
    """The gradient of client i: mean of x (xᵀw − y)."""
    return X[i].T @ (X[i] @ w - Y[i]) / len(Y[i])


def mean(cohort: Sequence[int], values: Sequence[np.ndarray], uniform: bool = False) -> np.ndarray:
    sizes = [1.0 if uniform else float(len(Y[i])) for i in cohort]
    parts = [n * v for n, v in zip(sizes, values, strict=True)]
    return np.sum(parts, axis=0) / sum(sizes)


@dataclass
class State:
    """What there is: the global model, and what each client keeps."""

    w: np.ndarray = field(default_factory=START.copy)
    mine: list[np.ndarray] = field(default_factory=lambda: [START.copy(), START.copy()])
    local: list[np.ndarray | None] = field(default_factory=lambda: [None, None])
    alpha: list[float] = field(default_factory=lambda: [0.0, 0.0])


Method = Callable[[State, Sequence[int]], list[np.ndarray]]
"""One round with a cohort, in place; gives θ of both clients."""


def localonly(s: State, cohort: Sequence[int]) -> list[np.ndarray]:
    for i in cohort:
        for _ in range(K):
            s.mine[i] = s.mine[i] - ETA * g(i, s.mine[i])
    return s.mine


def fedper(s: State, cohort: Sequence[int]) -> list[np.ndarray]:
    sent: list[np.ndarray] = []
    for i in cohort:
        w = BASE * s.w + OWN * s.mine[i]
        for _ in range(K):
            w = w - ETA * g(i, w)
        s.mine[i] = OWN * w
        sent.append(BASE * w)
    s.w = mean(cohort, sent)
    return [s.w + OWN * s.mine[i] for i in (0, 1)]


def fedrep(s: State, cohort: Sequence[int], head_steps: int = 2) -> list[np.ndarray]:
    sent: list[np.ndarray] = []
    for i in cohort:
        w = BASE * s.w + OWN * s.mine[i]
        for _ in range(head_steps):
            w = w - ETA * OWN * g(i, w)
        for _ in range(K):
            w = w - ETA * BASE * g(i, w)
        s.mine[i] = OWN * w
        sent.append(BASE * w)
    s.w = mean(cohort, sent, uniform=True)
    return [s.w + OWN * s.mine[i] for i in (0, 1)]


def fedavg(s: State, cohort: Sequence[int]) -> None:
    sent: list[np.ndarray] = []
    for i in cohort:
        w = s.w
        for _ in range(K):
            w = w - ETA * g(i, w)
        sent.append(w)
    s.w = mean(cohort, sent)


def finetune(s: State, cohort: Sequence[int], steps: int = 4) -> list[np.ndarray]:
    fedavg(s, cohort)
    tuned: list[np.ndarray] = []
    for i in (0, 1):
        w = s.w
        for _ in range(steps):
            w = w - ETA * g(i, w)
        tuned.append(w)
    return tuned


def ditto(
    s: State, cohort: Sequence[int], lam: float = 0.7, steps: int = 2, lr: float = 0.2
) -> list[np.ndarray]:
    received = s.w
    fedavg(s, cohort)
    for i in cohort:
        for _ in range(steps):
            v = s.mine[i]
            s.mine[i] = v - lr * (g(i, v) + lam * (v - received))
    return s.mine


def pfedme(
    s: State,
    cohort: Sequence[int],
    lam: float = 2.0,
    inner_steps: int = 4,
    inner_lr: float = 0.05,
    beta: float = 0.8,
) -> list[np.ndarray]:
    sent: list[np.ndarray] = []
    for i in cohort:
        w = s.w
        for _ in range(K):
            for _ in range(inner_steps):
                theta = s.mine[i]
                s.mine[i] = theta - inner_lr * (g(i, theta) + lam * (theta - w))
            w = w - ETA * lam * (w - s.mine[i])
        sent.append(w)
    s.w = (1 - beta) * s.w + beta * mean(cohort, sent, uniform=True)
    return s.mine


def apfl(
    s: State, cohort: Sequence[int], alpha: float = 0.3, adaptive: bool = False
) -> list[np.ndarray]:
    sent: list[np.ndarray] = []
    for i in cohort:
        a = s.alpha[i] or alpha
        w, v, new = s.w, s.mine[i], a
        for k in range(K):
            slope = g(i, a * v + (1 - a) * w)
            if k == 0 and adaptive:
                new = min(1.0, max(0.0, a - ETA * float((v - w) @ slope)))
            w, v = w - ETA * g(i, w), v - ETA * a * slope
        s.mine[i], s.local[i], s.alpha[i] = v, w, new
        sent.append(w)
    s.w = mean(cohort, sent)
    mixed: list[np.ndarray] = []
    for i in (0, 1):
        a, own = s.alpha[i] or alpha, s.local[i]
        mixed.append(a * s.mine[i] + (1 - a) * (s.w if own is None else own))
    return mixed


def fedbn(s: State, cohort: Sequence[int]) -> list[np.ndarray]:
    fedavg(s, cohort)  # nothing here is normalised
    return [s.w, s.w]


METHODS: dict[str, Method] = {
    "localonly": localonly,
    "fedbn": fedbn,
    "fedper:what=own": fedper,
    "keep(fedavg):what=own": fedper,
    "fedrep:what=own,head_steps=2": fedrep,
    "finetune(fedavg):steps=4": finetune,
    "ditto(fedavg):lam=0.7,steps=2,lr=0.2": ditto,
    "pfedme:lam=2,inner_steps=4,inner_lr=0.05,beta=0.8": pfedme,
    "apfl:alpha=0.3": apfl,
    "apfl:alpha=0.3,adaptive=true": lambda s, cohort: apfl(s, cohort, adaptive=True),
}


def after(text: str, mode: str, rounds: int) -> list[list[float]]:
    """w, θ_0 and θ_1 after so many rounds; in mode A one client a round, in turn."""
    s, shown = State(), list[np.ndarray]()
    for t in range(rounds):
        shown = METHODS[text](s, (0, 1) if mode == "F" else (t % 2,))
    if text == "localonly":
        s.w = START
    if text.startswith(("fedper", "keep", "fedrep")):
        s.w = BASE * s.w + OWN * START  # the server knows no other head
    return [s.w.tolist(), *(theta.tolist() for theta in shown)]
