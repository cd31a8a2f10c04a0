"""The microscope: why an algorithm wins. Flatness, similarity, drift and bias of trained models."""

from __future__ import annotations

from fedrift.analysis.case import Case, Finding, NotMeasured, Options
from fedrift.analysis.cka import linear_cka
from fedrift.analysis.classes import confusion, drops, forgetting, presence, recency
from fedrift.analysis.drift import dissimilarity, geometry
from fedrift.analysis.examine import MEASURES
from fedrift.analysis.hessian import Density, spectral_density, top_eigenvalues, trace
from fedrift.analysis.objective import Objective
from fedrift.analysis.saved import load
from fedrift.analysis.sharpness import Sharpness, sharpness

__all__ = [
    "MEASURES",
    "Case",
    "Density",
    "Finding",
    "NotMeasured",
    "Objective",
    "Options",
    "Sharpness",
    "confusion",
    "dissimilarity",
    "drops",
    "forgetting",
    "geometry",
    "linear_cka",
    "load",
    "presence",
    "recency",
    "sharpness",
    "spectral_density",
    "top_eigenvalues",
    "trace",
]
