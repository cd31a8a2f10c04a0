"""Experiments that are more than a comparison of algorithms; each is one module with a `study`."""

from __future__ import annotations

from importlib import import_module

from fedrift.errors import unknown
from fedrift.presets.findings import Study

NAMES = (
    "classifier-bias",
    "fed3r-finetune",
    "fed3r-invariance",
    "flat-minima-table",
    "large-scale",
    "lora",
    "merging",
    "permutation",
    "privacy",
)


def find(name: str) -> Study:
    """The study of that name; imports what it needs."""
    if name not in NAMES:
        raise unknown("study", name, NAMES)
    return import_module(f"fedrift.presets.studies.{name.replace('-', '_')}").study
