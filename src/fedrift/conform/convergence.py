"""Where an algorithm ends on two heterogeneous quadratics: at the minimiser, or where it drifts to.

The sum of the two functions is least at (−0.2, 4/3). Several local steps pull FedAvg to
(0.229991, 1.378535) instead. Limits are those of the exact recursions after thousands of rounds;
here fewer rounds are run, and each row says how close it must come.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedrift.conform.problem import DRIFTED, MINIMISER, Trial, alternating, golden
from fedrift.conform.report import Cell, not_checked
from fedrift.conform.runs import path
from fedrift.conform.subject import Subject, subject_of
from fedrift.errors import InputError

Place = tuple[float, float]
NEAR = 1e-3
ROUNDS = 40
PERTURBED: Place = (-0.258413, 1.327562)


@dataclass(frozen=True)
class Limit:
    """A setting, and the point it must come within `tolerance` of, if one is known."""

    text: str
    point: Place | None = None
    rounds: int = ROUNDS
    tolerance: float = 2e-6
    alternates: bool = False
    local: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def trial(self, rounds: int | None = None) -> Trial:
        trial = replace(golden(), rounds=rounds or self.rounds).working(**self.local)
        return alternating(trial) if self.alternates else trial


LIMITS = {
    "fedsgd": Limit("fedsgd", MINIMISER, 100),
    "fedavg": Limit("fedavg", DRIFTED),
    "fedavgm": Limit("fedavgm", DRIFTED, 150, 1e-3),
    "fedprox": Limit("fedprox:mu=1", (0.210123, 1.377377)),
    "fednova": Limit("fednova", local={"steps": (2, 8)}),
    "scaffold": Limit("scaffold", MINIMISER),
    "fedadagrad": Limit("fedadagrad", DRIFTED, 150, 0.1),
    "fedadam": Limit("fedadam", DRIFTED, 150, 1e-3),
    "fedyogi": Limit("fedyogi", DRIFTED, 150, 1e-3),
    "feddyn": Limit("feddyn:alpha=1", MINIMISER),
    "fedsam": Limit("fedsam:rho=0.1", (0.205752, 1.382380)),
    "fedasam": Limit("fedasam"),
    "fedcm": Limit("fedcm", (-0.160922, 1.337792), 150, 1e-3),
    "mofedsam": Limit("mofedsam:rho=0.1", rounds=150),
    "fedgamma": Limit("fedgamma:rho=0.1", PERTURBED),
    "fedspeed": Limit("fedspeed:gamma=1,a=0.9,rho=0.1"),
    "fedsmoo": Limit("fedsmoo:r=0.1,gamma=1"),
    "fedgf": Limit("fedgf:rho=0.1,rho_g=0.1,threshold=0.9,window=3"),
    "ghbm": Limit("ghbm:tau=2", DRIFTED, 100),
    "localghbm": Limit("localghbm", alternates=True),
    "fedhbm": Limit("fedhbm", alternates=True),
    "mime": Limit("mime", MINIMISER),
    "mimemom": Limit("mimemom", MINIMISER, 150, 1e-3),
    "mimelite": Limit("mimelite", DRIFTED),
    "mimelitemom": Limit("mimelitemom", (-0.196156, 1.333778), 150, 1e-3),
    "diloco": Limit("diloco", local={"lr": 0.01}),
    "fedasync": Limit("fedasync"),
    "fedbuff": Limit("fedbuff:buffer=2", DRIFTED),
    "localonly": Limit("localonly", (0.0, 0.0)),  # nothing is sent: the server stays where it was
    "fedper": Limit("fedper:what=none", DRIFTED),
    "fedrep": Limit("fedrep:what=none", DRIFTED),
    "fedbn": Limit("fedbn", DRIFTED),
    "pfedme": Limit("pfedme:lam=2,inner_lr=0.1"),
    "apfl": Limit("apfl", DRIFTED),
    "swa": Limit("swa(fedavg)", DRIFTED),
    "wima": Limit("wima(scaffold)", MINIMISER),
    "sam": Limit("sam(scaffold):rho=0.1", PERTURBED),
    "asam": Limit("asam(scaffold):rho=0.1"),
    "serveradam": Limit("serveradam(scaffold)", MINIMISER, 150, 1e-3),
    "keep": Limit("keep(scaffold):what=none", MINIMISER),
    "ditto": Limit("ditto(scaffold)", MINIMISER),
    "finetune": Limit("finetune(fedavg)", DRIFTED),
}


def check(subject: Subject) -> Cell:
    """Runs the setting of the algorithm's name, or the reader's own as it is."""
    if subject.kind in ("fed3r", "fed3rft"):
        return not_checked("needs a classifier: see golden and identities")
    limit = LIMITS.get(subject.kind, Limit(subject.name))
    whose = subject_of(limit.text) if subject.kind else subject
    try:
        points = [w.tolist() for w in path(whose, limit.trial())]
    except InputError as error:
        return not_checked(str(error))
    return judged(limit, points)


def judged(limit: Limit, points: list[list[float]]) -> Cell:
    """Where a path ends, in words; a failure only if it is known where it should."""
    if len(points) < limit.rounds or not all(map(math.isfinite, points[-1])):
        return Cell(limit.point is None, f"diverges after {len(points)} rounds")
    end = points[-1]
    where = f"{_words(points)} ({end[0]:.4f}, {end[1]:.4f})"
    if limit.point is not None and distance(end, limit.point) > limit.tolerance:
        x, y = limit.point
        away = f"not within {limit.tolerance:g} of ({x:.6f}, {y:.6f})"
        return Cell(False, f"{limit.text} ends after {limit.rounds} rounds at {where}, {away}")
    return Cell(True, where)


def distance(a: list[float], b: Place) -> float:
    return max(abs(p - q) for p, q in zip(a, b, strict=True))


def _words(points: list[list[float]]) -> str:
    end, size = points[-1], max(map(abs, points[-1]))
    if size > 1e3:
        return "diverges:"
    if distance(end, MINIMISER) < NEAR:
        return "minimiser"
    if distance(end, DRIFTED) < NEAR:
        return "FedAvg's point"
    moved = max(distance(end, (w[0], w[1])) for w in points[-10:])
    away = f"{distance(end, MINIMISER):.2g} off"
    return away if moved < NEAR else f"moving, {away}"
