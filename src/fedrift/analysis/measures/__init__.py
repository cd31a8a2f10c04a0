"""What `fedrift analyse --what` names: each takes a case and options and returns a finding."""

from __future__ import annotations

from fedrift.analysis.case import Measure
from fedrift.analysis.measures import (
    cka,
    classes,
    drift,
    hessian,
    landscape,
    predictions,
    sharpness,
)

MEASURES: dict[str, Measure] = {
    "hessian": hessian.measure,
    "sharpness": sharpness.measure,
    "cka": cka.measure,
    "drift": drift.measure,
    "classes": classes.measure,
    "landscape": landscape.measure,
    "predictions": predictions.measure,
}
