"""Settles the options `faults`, `aggregate` and `privacy`, and refuses what would be a lie."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from fedrift.aggregation import Aggregation, check_uploads
from fedrift.algorithm import Algorithm, local_of, parts
from fedrift.errors import InputError
from fedrift.exchange import Signature, signature
from fedrift.faults import Faults
from fedrift.participation import Participation
from fedrift.problem import Problem
from fedrift.protection import Guarantee, guarantee, parse_aggregate, parse_privacy


def check_faults(faults: Faults, algorithm: Algorithm[Any, Any]) -> None:
    late = faults.stragglers
    if late is not None and late.late == "partial" and local_of(algorithm) is None:
        raise InputError("faults: late=partial needs local steps to leave out; use late=drop")


def settle(
    aggregate: str | None,
    privacy: str | None,
    algorithm: Algorithm[Any, Any],
    problem: Problem,
    who: Participation,
    rounds: int,
) -> tuple[Participation, Aggregation | None, Guarantee | None]:
    """Who takes part, how replies are reduced, and what is guaranteed."""
    robust, private = parse_aggregate(aggregate), parse_privacy(privacy)
    if robust is None and private is None:
        return who, None, None
    what = "privacy" if private is not None else "aggregate"
    if robust is not None and private is not None:
        raise InputError("privacy and aggregate: noise is made for sums; keep one of them")
    for _, node in parts(algorithm):
        if client_methods(node) and node.weighting() != "uniform":
            raise InputError(f"{what}: every client must count alike; set weights=uniform")
    if problem.moving:
        raise InputError(
            f"{what}: running statistics of batch normalisation are sent as they are; use a model "
            "with group normalisation or none"
        )
    if private is None:
        return who, Aggregation(robust=robust), None
    methods = [s for _, node in parts(algorithm) for s in client_methods(node)]
    check_uploads([s.up for s in methods], "privacy")
    if algorithm.sampling(algorithm.server(problem)) != "uniform":
        raise InputError("privacy: its clients are not drawn at random, each is asked once")
    promise = guarantee(private, who, rounds)
    expected = who.share * who.population if who.kind == "bernoulli" else float(who.size)
    private = replace(private, expected=expected)
    return replace(who, redraws=False), Aggregation(private=private), promise


def client_methods(node: Algorithm[Any, Any]) -> list[Signature]:
    """What the methods of an algorithm that run at clients declare."""
    found: list[Signature] = []
    for name, function in inspect.getmembers(type(node), inspect.isfunction):
        if not name.startswith("_") and list(inspect.signature(function).parameters)[1:4] == [
            "site",
            "down",
            "mine",
        ]:
            found.append(signature(getattr(node, name)))
    return found
