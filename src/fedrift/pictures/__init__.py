"""Figures of what an analysis found, drawn from its numbers alone: no torch, no run needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fedrift.records import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Picture = Callable[["Figure", Mapping[str, Record]], None]
"""Draws one run or several, from their names and numbers."""
