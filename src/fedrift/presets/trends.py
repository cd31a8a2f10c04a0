"""Trends that runs much smaller than the published ones can be asked for: shape, not value."""

from __future__ import annotations

TRENDS = {
    "sam": "one class per client: FedASAM ≥ FedSAM ≥ FedAvg − 1 point",
    "swa": "SWA ≥ the same without it in the last quarter of the rounds, and calmer",
    "ghbm": "one class per client: GHBM with τ = 1/C > FedCM ≈ FedAvg",
    "augmentation": "Mixup and Cutout help a centralised run, but not one class per client",
    "fed3r": "Fed3R is the same at every α",
    "alpha": "accuracy grows with α",
    "recency": "FedAvg's accuracy per class swings with the cohort, Fed3R's does not",
}
"""By the name that a relation gives as its `trend`."""
