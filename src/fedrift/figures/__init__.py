"""Figures of what an analysis found, drawn from its numbers alone: no torch, no run needed.

`style` holds what all figures of the package share, curves over rounds included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fedrift.figures import classes, clients, curvature
from fedrift.storage.jsonl import Record

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Picture = Callable[["Figure", Mapping[str, Record]], None]
"""Draws one run or several, from their names and numbers."""


COMMON_FIGURES: dict[str, dict[str, Picture]] = {
    "hessian": {"eigenvalues": curvature.eigenvalues, "density": curvature.density},
    "sharpness": {"rises": curvature.rises, "discrepancy": curvature.discrepancy},
    "cka": {"layers": clients.by_layer},
    "drift": {"updates": clients.updates},
    "classes": {
        "over-rounds": classes.over_rounds,
        "recency": classes.recency,
        "forgetting": classes.forgetting,
    },
    "landscape": {"lines": curvature.lines, "around": curvature.around},
    "during": {"drift": clients.drift, "recency": clients.recency},
}
"""Figures that compare several runs, by what was examined."""
