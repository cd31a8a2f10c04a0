"""Which figures compare several runs, by what was examined."""

from __future__ import annotations

from fedrift.pictures import Picture, cka, classes, drift, during, hessian, landscape, sharpness

TOGETHER: dict[str, dict[str, Picture]] = {
    "hessian": {"eigenvalues": hessian.eigenvalues, "density": hessian.density},
    "sharpness": {"rises": sharpness.rises, "discrepancy": sharpness.discrepancy},
    "cka": {"layers": cka.by_layer},
    "drift": {"updates": drift.updates},
    "classes": {
        "over-rounds": classes.over_rounds,
        "recency": classes.recency,
        "forgetting": classes.forgetting,
    },
    "landscape": {"lines": landscape.lines, "around": landscape.around},
    "during": {"drift": during.drift, "recency": during.recency},
}
