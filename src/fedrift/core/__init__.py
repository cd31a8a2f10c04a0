"""What an algorithm is made of: the one import for authors of algorithms.

Names are fetched from their modules when they are first used, because nearly all of them need
torch, and `core.sampling` and `core.faults` are imported where a second is too long to wait for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedrift.core.algorithm import (
        Algorithm,
        EvaluatedModel,
        InnerVisit,
        Redefine,
        Sampling,
        refuse_memory,
        refuse_rates,
        uniform_only,
    )
    from fedrift.core.composition import (
        has_hosts,
        inner_client,
        local_of,
        makes_steps,
        map_local,
        parts,
    )
    from fedrift.core.exchange import Cohort, Weights
    from fedrift.core.flat import Batch, Layout, Vec, cosine, dot, flatten, norm, unit
    from fedrift.core.flat_model import Forward, Objective
    from fedrift.core.local import Draw, Local, Run, clip_
    from fedrift.core.messages import Gather, Mean, Sum, derived, message, pack, shaped, state
    from fedrift.core.optim import (
        SGD,
        Adagrad,
        Adam,
        Cosine,
        Exponential,
        Momentum,
        Optimizer,
        OptState,
        Schedule,
        Staircase,
        advance,
        apply,
        rate,
    )
    from fedrift.core.pieces import (
        ASAM,
        SAM,
        SVRG,
        Addition,
        Blend,
        Correction,
        Extra,
        Gradient,
        GradientAt,
        Linear,
        Plain,
        Prox,
        Step,
    )
    from fedrift.core.problem import Part, Problem, define
    from fedrift.core.site import Site
    from fedrift.errors import InputError

_HOMES = {
    name: home
    for home, names in {
        "fedrift.core.algorithm": "Algorithm EvaluatedModel InnerVisit Redefine Sampling "
        "refuse_memory refuse_rates uniform_only",
        "fedrift.core.composition": "has_hosts inner_client local_of makes_steps map_local parts",
        "fedrift.core.exchange": "Cohort Weights",
        "fedrift.core.flat": "Batch Layout Vec cosine dot flatten norm unit",
        "fedrift.core.flat_model": "Forward Objective",
        "fedrift.core.local": "Draw Local Run clip_",
        "fedrift.core.messages": "Gather Mean Sum derived message pack shaped state",
        "fedrift.core.optim": "Adagrad Adam Cosine Exponential Momentum OptState Optimizer SGD "
        "Schedule Staircase advance apply rate",
        "fedrift.core.pieces": "ASAM Addition Blend Correction Extra Gradient GradientAt Linear "
        "Plain Prox SAM SVRG Step",
        "fedrift.core.problem": "Part Problem define",
        "fedrift.core.site": "Site",
        "fedrift.errors": "InputError",
    }.items()
    for name in names.split()
}

__all__ = [
    "ASAM",
    "SAM",
    "SGD",
    "SVRG",
    "Adagrad",
    "Adam",
    "Addition",
    "Algorithm",
    "Batch",
    "Blend",
    "Cohort",
    "Correction",
    "Cosine",
    "Draw",
    "EvaluatedModel",
    "Exponential",
    "Extra",
    "Forward",
    "Gather",
    "Gradient",
    "GradientAt",
    "InnerVisit",
    "InputError",
    "Layout",
    "Linear",
    "Local",
    "Mean",
    "Momentum",
    "Objective",
    "OptState",
    "Optimizer",
    "Part",
    "Plain",
    "Problem",
    "Prox",
    "Redefine",
    "Run",
    "Sampling",
    "Schedule",
    "Site",
    "Staircase",
    "Step",
    "Sum",
    "Vec",
    "Weights",
    "advance",
    "apply",
    "clip_",
    "cosine",
    "define",
    "derived",
    "dot",
    "flatten",
    "has_hosts",
    "inner_client",
    "local_of",
    "makes_steps",
    "map_local",
    "message",
    "norm",
    "pack",
    "parts",
    "rate",
    "refuse_memory",
    "refuse_rates",
    "shaped",
    "state",
    "uniform_only",
    "unit",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedrift.core' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
