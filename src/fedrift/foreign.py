"""Which code of somebody's own a spec would import, and which machines it would give work to."""

from __future__ import annotations

from fedrift import catalogue, loss_names
from fedrift.data.datasets import NAMES as DATA
from fedrift.experiment import Spec
from fedrift.grammar import parse
from fedrift.model_names import choose

IN_PYTHON = "python"  # stands for data and model that were given as objects


def foreign(spec: Spec) -> list[str]:
    """`module:name` of the algorithm, the data, the model and the loss, where they are foreign.

    So is a cluster by its address: whoever owns it sends pickled replies.
    """
    found = catalogue.own_code(parse(spec.algorithm, "algorithm"))
    data = parse(spec.data, "data")
    found += [spec.data] if data.name not in DATA and spec.data != IN_PYTHON else []
    if spec.model is not None and spec.model != IN_PYTHON:
        model = choose(spec.model)
        found += [] if model.attribute is None else [model.text]
    found += [spec.loss] if spec.loss is not None and spec.loss not in loss_names.NAMES else []
    return found + ([spec.backend] if spec.backend.startswith("ray:") else [])
