"""What must hold after every round, for every algorithm and for each of its own.

The trials have clients of unequal size, one of them without data, partial participation, a round
without anybody and a round with nobody but the client without data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from fedrift.adapters.averaging import LoraAveraging
from fedrift.conform import adapted, rules
from fedrift.conform.problem import Trial, classifier, uneven_quadratic
from fedrift.conform.report import Cell, sum_up
from fedrift.conform.rules import Ascents
from fedrift.conform.runs import refused
from fedrift.conform.subject import Subject
from fedrift.conform.watched_run import Inside, Invariant, Moment, differing_fields
from fedrift.core.composition import local_of, state_path
from fedrift.core.messages import pack
from fedrift.core.phases import owner_of

CONTROLS = (rules.mean_over_all("c"), rules.moves_by_mean)
DUALS = (rules.mean_over_all("h"), rules.subtracts_dual)
MEAN = (rules.moves_by_mean,)
MIME = (rules.moves_by_mean, rules.frozen_state)
KEPT = (rules.kept_start, rules.inner_moves_by_mean)

OF: dict[str, tuple[Invariant, ...]] = {
    "fedsgd": (rules.moves_by_gradient,),
    "fedavg": MEAN,
    "fedavgm": (rules.momentum,),
    "fedprox": MEAN,
    "fednova": (rules.moves_by_length,),
    "scaffold": CONTROLS,
    "fedadagrad": (rules.adaptive,),
    "fedadam": (rules.adaptive,),
    "fedyogi": (rules.adaptive,),
    "feddyn": DUALS,
    "fedsam": MEAN,
    "fedasam": MEAN,
    "fedcm": (*MEAN, rules.direction),
    "mofedsam": (*MEAN, rules.direction),
    "fedgamma": CONTROLS,
    "fedspeed": DUALS,
    "fedsmoo": (*DUALS, rules.perturbation),
    "fedgf": (*MEAN, rules.window),
    "ghbm": (*MEAN, rules.ring),
    "localghbm": (*MEAN, rules.anchor_received),
    "fedhbm": (*MEAN, rules.anchor_own),
    "mime": MIME,
    "mimemom": MIME,
    "mimelite": MIME,
    "mimelitemom": MIME,
    "fed3r": (rules.counted_once,),
    "fed3rft": (rules.leaves_the_rest,),
    "diloco": (rules.inner_steps,),
    "fedasync": (rules.sent_its_version, rules.mixes_arrival),
    "fedbuff": (rules.sent_its_version, rules.adds_buffer),
    "localonly": (rules.kept_start, rules.sends_nothing),
    "fedper": KEPT,
    "fedrep": KEPT,
    "fedbn": KEPT,
    "pfedme": (rules.moves_by_beta, rules.envelope),
    "apfl": (*MEAN, rules.mixture),
    "swa": (rules.average_of_captured,),
    "wima": (rules.average_of_last,),
    "sam": CONTROLS,
    "asam": MEAN,
    "serveradam": (rules.mean_over_all("c"), rules.adaptive),
    "keep": (*KEPT, rules.controls_inside),
    "ditto": (rules.inner_moves_by_mean, rules.controls_inside, rules.own_step),
    "finetune": (rules.inner_moves_by_mean,),
}

SHARP = ("fedsam", "fedasam", "mofedsam", "fedgamma", "fedspeed", "fedsmoo", "sam", "asam")


def absentees_keep(m: Moment) -> Iterator[str]:
    """Who did not take part keeps a bit-identical state."""
    seen = {visit.client for visit in m.inside.backend.visits if visit.call.round == m.t}
    for (path, client), row in m.inside.rows().items():
        visits = [v for v in m.inside.backend.visits if v.client == client]
        last = [v.new for v in visits if state_path(m.algorithm, owner_of(v.call.phase)) == path]
        node = m.inside.store.initial[path]
        if client not in seen and differing_fields(row, last[-1] if last else pack(node)):
            yield f"client {client} took no part in round {m.report.round}, but its state changed"


def void_changes_nothing(m: Moment) -> Iterator[str]:
    """A round in which nobody could answer leaves the server's state as it was."""
    if (
        m.is_void
        and m.algorithm.sampling(m.old) != "once"
        and differing_fields(pack(m.old), pack(m.new))
    ):
        yield f"round {m.report.round} was void, but the server's state changed"


GENERIC = (absentees_keep, void_changes_nothing)


def with_gaps(trial: Trial, empty: bool = True) -> Trial:
    """The trial with a client that has no data, and a schedule with void rounds."""
    x, y = trial.clients[0]
    none = len(trial.clients)
    everyone = tuple(range(none))
    cohorts = [(0, 2, none), (1, 3), (), (none,), everyone, (0, 1, none), (2, 4), (0, 3, 4)]
    kept = tuple(tuple(c for c in cohort if empty or c != none) for cohort in cohorts)
    return replace(
        trial,
        clients=(*trial.clients, (x[:0], y[:0])),
        rounds=len(kept),
        participants=kept,
        per_round=None,
        fraction=0.5,
        test=None,
    )


def check(subject: Subject, asked: Trial | None = None) -> Cell:
    """Everything that must hold after every round; `asked`: on that problem, not on the usual."""
    own = OF.get(subject.kind, ())
    is_sharp = subject.kind in SHARP and asked is None
    faults: list[str] = []
    number = 0
    for trial in trials(subject) if asked is None else (replace(asked, dtype="float64"),):
        inside = Inside(subject, with_gaps(trial))
        is_wrapped = isinstance(inside.algorithm, LoraAveraging)  # its state is another's then
        beside = (*GENERIC, *adapted.invariants(inside), *(() if is_wrapped else own))
        faults += failures(inside, beside)
        other = Inside(subject, with_gaps(trial, empty=False)).run()
        if not torch.equal(inside.reports[-1].weights, other.weights):
            faults.append("a client without data changes the result")
        if is_sharp:
            faults += ascent_failures(subject, trial)
        number = len(beside) + 1 + is_sharp
    return sum_up(dict.fromkeys(faults), number, "invariant")


def trials(subject: Subject) -> list[Trial]:
    """Where an algorithm can run: one that needs a classifier has no use for the quadratics."""
    return [t for t in (uneven_quadratic(), classifier()) if refused(subject, t) is None]


def failures(inside: Inside, invariants: tuple[Invariant, ...]) -> list[str]:
    """What does not hold after some round of a run, each invariant's first fault."""
    first_faults: dict[int, str] = {}
    old = [inside.algorithm.server(inside.problem)]

    def after(report: Any) -> None:
        moment = Moment(inside, report, old[0])
        for i, invariant in enumerate(invariants):
            for fault in invariant(moment):
                first_faults.setdefault(i, fault)
        old[0] = report.state

    inside.run(after)
    return list(first_faults.values())


def ascent_failures(subject: Subject, trial: Trial) -> list[str]:
    """Every step's second gradient is taken at distance ρ."""
    inside = Inside(subject, replace(trial, rounds=2))
    watch = Ascents(inside)
    inside.run()
    local = local_of(inside.algorithm)
    rule: Any = local.gradient if local is not None else None
    rho = inside.algorithm.r if subject.kind == "fedsmoo" else rule.rho  # type: ignore[attr-defined]
    return watch.failures(inside.problem, rule, rho)
