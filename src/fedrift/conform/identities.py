"""What each algorithm equals in special cases: the same path, bit for bit or up to rounding.

Every row is run on both trials, with clients of unequal size, minibatches and partial
participation unless the equality needs otherwise: the quadratics in float64, the classifier in
float32 where the paths are equal in every bit, in float64 where they agree to 1e-12.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from fedrift.conform import closed_form
from fedrift.conform.problem import (
    Trial,
    classifier,
    equal_sizes,
    nameless,
    pooled,
    uneven_quadratic,
)
from fedrift.conform.report import Cell, not_checked, sum_up
from fedrift.conform.runs import path
from fedrift.conform.subject import Subject
from fedrift.conform.watched_run import Inside
from fedrift.core.flat import Vec
from fedrift.engine.callbacks import RoundReport

ROUNDING = 1e-12
Shape = Callable[[Trial], Trial]


def as_it_is(trial: Trial) -> Trial:
    return trial


def everyone(trial: Trial) -> Trial:
    return trial.everyone()


def in_turns(trial: Trial) -> Trial:
    """Four clients in two groups that take turns."""
    return replace(trial, clients=trial.clients[:4], per_round=2, sampling="cyclic", rounds=6)


def once_each(trial: Trial) -> Trial:
    """Everybody only once: no client comes back."""
    return replace(
        trial,
        rounds=len(trial.clients),
        per_round=None,
        participants=tuple((i,) for i in range(len(trial.clients))),
    )


def mixed_with_nothing(trial: Trial) -> Trial:
    return replace(trial, augment=("mixup:alpha=0",))


@dataclass(frozen=True)
class Row:
    """`left` = `right`; the shape holds for both sides, then each has its own changes."""

    left: str
    right: str
    exact: bool = True
    shape: Shape = as_it_is
    local: Mapping[str, Any] = field(default_factory=dict[str, Any])
    left_local: Mapping[str, Any] = field(default_factory=dict[str, Any])
    left_shape: Shape = as_it_is
    right_shape: Shape = as_it_is
    personal: bool = False
    """Compare what every client is evaluated with."""
    inner: bool = False
    """Compare the path of the algorithm inside the left side."""
    also: tuple[str, ...] = ()
    """Names besides the left one that the row speaks about."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.left.partition("(")[0].partition(":")[0], *self.also)

    def __str__(self) -> str:
        return f"{self.left} {'=' if self.exact else '≈'} {self.right}"

    def sides(self, trial: Trial) -> tuple[Trial, Trial]:
        both = self.shape(trial.working(**self.local))
        return self.left_shape(both.working(**self.left_local)), self.right_shape(both)


def alone(trial: Trial) -> Trial:
    """One client out at a time: nothing is ever stale."""
    return replace(trial, per_round=1, rounds=8)


def one_by_one(trial: Trial) -> Trial:
    """No stacks, whose last bits differ from those of a client by itself."""
    return replace(trial, stack="off")


WHOLE = {"steps": 3, "batch_size": None}
ONE_STEP = {"steps": 1, "batch_size": None}
FEDAVG, UNIFORM = "fedavg", "fedavg:weights=uniform"
SAM, UNIFORM_SAM = "fedsam:rho=0.1", "fedsam:rho=0.1,weights=uniform"
FOUR = {"steps": 4}
DIFFERENCES = "fedasync:alpha=1,staleness=constant,rho=0,form=difference"
DIFFERENCES_60 = "fedbuff:buffer=1,staleness=none,server_lr=0.6"

ROWS = (
    Row("fedavg", "fedsgd", exact=False, local=ONE_STEP, also=("fedsgd",)),
    Row("fedsgd", "fedsgd", exact=False, local=ONE_STEP, shape=everyone, right_shape=pooled),
    Row("fedavg:weights=uniform", FEDAVG, exact=False, shape=equal_sizes),
    Row("fedavg", FEDAVG, left_shape=mixed_with_nothing),
    Row("fedavgm:beta=0,server_lr=1", FEDAVG),
    Row("diloco:inner=sgd,inner_wd=0,server_lr=1,server_momentum=0", UNIFORM),
    Row("fedprox:mu=0", FEDAVG),
    Row("fednova", FEDAVG, exact=False, local=FOUR),
    Row("fednova:mu=0.5,tau_eff=a", "fedprox:mu=0.5", exact=False, local=FOUR),
    Row("scaffold:freeze_controls=true", UNIFORM),
    Row("scaffold", "fedsgd:weights=uniform", exact=False, local=ONE_STEP, shape=everyone),
    Row("scaffold:option=I,freeze_controls=true", UNIFORM),
    Row("fedsam:rho=0", FEDAVG),
    Row("fedasam:rho=0", FEDAVG),
    Row("fedgf:rho=0,threshold=1e9", FEDAVG),
    Row("fedasam:rho=0.1", SAM, shape=nameless),
    Row("fedgf:rho=0.1,rho_g=0.3,threshold=1e9", SAM),
    Row("fedgf:rho=0.1,rho_g=0.3,threshold=auto,window=1000", SAM),
    Row("mofedsam:alpha=1,rho=0.1", UNIFORM_SAM),
    Row("sam(scaffold:freeze_controls=true):rho=0.1", UNIFORM_SAM, also=("fedgamma",)),
    Row("mofedsam:rho=0", "fedcm"),
    Row("fedgamma:rho=0", "scaffold:option=II"),
    Row("fedsmoo:r=0,gamma=0.3", "feddyn:alpha=0.3", also=("feddyn",)),
    Row("fedspeed:a=0,gamma=0.3", "feddyn:alpha=0.3", exact=False, also=("feddyn",)),
    Row("fedspeed:rho=0,gamma=0.3,a=0.5", "feddyn:alpha=0.3", exact=False),
    Row("fedcm:alpha=1", UNIFORM),
    Row("ghbm:beta=0", FEDAVG),
    Row("localghbm:beta=0", FEDAVG),
    Row("fedhbm:beta=0", FEDAVG),
    Row("fedhbm", FEDAVG, shape=once_each),
    Row("mimelite", FEDAVG),
    Row(
        "fedcm:alpha=0.1",
        "ghbm:tau=1,beta=0.9,weights=uniform",
        exact=False,
        local={"steps": 4, "lr": 0.01, "weight_decay": 0.03},
        left_local={"lr": 0.1, "weight_decay": 0.003},
        also=("ghbm",),
    ),
    Row("localghbm", "ghbm:tau=1", shape=everyone, also=("ghbm",)),
    Row("localghbm", "ghbm:tau=2", exact=False, shape=in_turns, also=("ghbm",)),
    Row("localghbm:rate=elapsed", "localghbm", exact=False, shape=in_turns),
    Row("mimemom:beta=0", "mime"),
    Row("mimemom:beta=0,form=heavy_ball", "mime"),
    Row("mimelitemom:beta=0", "mimelite"),
    Row("mimelitemom:beta=0,form=heavy_ball", "mimelite"),
    Row("mime", "fedsgd", exact=False, local=ONE_STEP),
    Row(
        "fedadagrad:server_lr=0.5,v_init=0",
        "fedadam:server_lr=0.5,v_init=0,beta1=0,beta2=0",
        exact=False,
        shape=lambda trial: replace(trial, rounds=1),
    ),
    Row(
        "fedyogi:beta2=0.99,v_init=0",
        "fedadam:beta2=0.99,v_init=0",
        exact=False,
        shape=lambda trial: replace(trial, rounds=1),
        also=("fedadam",),
    ),
    Row("serveradam(fedavg)", "fedadam", also=("fedadam",)),
    Row("sam(scaffold):rho=0.1", "fedgamma:rho=0.1"),
    Row("sam(fedcm):rho=0.1", "mofedsam:rho=0.1"),
    Row("asam(fedavg):rho=0.3,eta_a=0.1", "fedasam:rho=0.3,eta_a=0.1"),
    Row("swa(fedavg):start=0.2", FEDAVG, inner=True),
    Row("swa(scaffold):start=1,cycle=1", "scaffold", inner=True),
    Row("swa(fedavg):start=99", FEDAVG),
    Row("wima(fedsam):window=2", "fedsam", inner=True),
    Row("wima(fedsam):window=1", "fedsam"),
    Row("fedbuff:buffer=3", UNIFORM, shape=equal_sizes),
    Row("fedbuff:buffer=1,staleness=none", DIFFERENCES, also=("fedasync",)),
    Row("fedasync:alpha=1,rho=0", DIFFERENCES, exact=False, shape=alone),
    Row("fedasync:rho=0,staleness=constant,form=difference", DIFFERENCES_60, exact=False),
    Row("keep(fedavg):what=none", FEDAVG),
    Row("keep(scaffold):what=none", "scaffold"),
    Row("keep(fedavg):what=all", "localonly", personal=True, also=("localonly",)),
    Row("keep(fedsam):what=none", "fedsam"),
    Row("fedper:what=none", FEDAVG),
    Row("fedper:what=all", "localonly", personal=True),
    Row("fedrep:what=none", UNIFORM),
    Row("fedbn", FEDAVG),
    Row("ditto(fedavg)", FEDAVG),
    Row("ditto(scaffold)", "scaffold"),
    Row("ditto(mimemom)", "mimemom"),
    Row("ditto(fedavg):lam=0", "localonly", local=WHOLE, shape=one_by_one, personal=True),
    Row("apfl:alpha=0", FEDAVG, shape=one_by_one),
    Row("apfl:alpha=1", "localonly", shape=one_by_one, personal=True),
    Row("finetune(fedavg):steps=0", FEDAVG, personal=True),
    Row("finetune(scaffold)", "scaffold"),
    Row(
        "pfedme:lam=10,inner_steps=1,inner_lr=0.1",
        "fedsgd:weights=uniform",
        exact=False,
        local=ONE_STEP,
        shape=lambda trial: replace(trial, rounds=1),
    ),
)


def rows_of(kind: str) -> list[Row]:
    """The rows that speak about one name."""
    return [row for row in ROWS if kind in row.names]


def check(subject: Subject) -> Cell:
    """All rows of the algorithm's name, on both trials."""
    if subject.kind == "fed3r":
        return sum_up(closed_form.ridge_failures(), 1, "row")
    rows = rows_of(subject.kind)
    if not rows:
        return not_checked("no row in the table of identities")
    return sum_up([fault for row in rows for fault in failures(row)], len(rows), "row")


def failures(row: Row) -> list[str]:
    """Where the two sides of a row part, on either trial."""
    faults: list[str] = []
    for trial in (uneven_quadratic(), classifier()):
        if not row.exact:
            trial = replace(trial, dtype="float64")
        mine, other = row.sides(trial)
        if row.personal:
            left, right = thetas(row.left, mine), thetas(row.right, other)
        else:
            left, right = path(row.left, mine, row.inner), path(row.right, other)
        faults += [f"{row} {fault}" for fault in _parting(left, right, row.exact)]
    return faults


def thetas(text: str, trial: Trial) -> list[Vec]:
    """What all clients would be evaluated with after every round, one after another."""
    inside, found = Inside(text, trial), list[Vec]()
    clients = range(len(inside.split))

    def look(report: RoundReport) -> None:
        found.append(torch.cat([inside.evaluated(client, report).w for client in clients]))

    inside.run(look)
    return found


def _parting(left: list[Vec], right: list[Vec], exact: bool) -> list[str]:
    for round, (a, b) in enumerate(zip(left, right, strict=True), start=1):
        distance = float((a - b).abs().max())
        allowed = 0.0 if exact else ROUNDING * max(1.0, float(b.abs().max()))
        if not distance <= allowed:
            return [f"differs by {distance:.1e} after round {round}"]
    return []
