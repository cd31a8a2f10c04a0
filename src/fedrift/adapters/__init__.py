"""Few trained parameters on a frozen base: the same task, seen through an adapter."""

from __future__ import annotations

from typing import Any

from fedrift.adapters.averaging import Factored, LoraAveraging
from fedrift.adapters.layers import adapted_layers, is_transposed
from fedrift.adapters.view import adapted, without_factors
from fedrift.config.adapters import parse_adapter
from fedrift.config.spec import Spec
from fedrift.core.algorithm import Algorithm
from fedrift.core.flat import Inputs
from fedrift.core.problem import Problem
from fedrift.errors import InputError, bytes_text
from fedrift.rng import torch_seed


def with_adapter(
    spec: Spec, algorithm: Algorithm[Any, Any], problem: Problem, probe: Inputs
) -> tuple[Algorithm[Any, Any], Problem]:
    """The algorithm and the task of a spec that names an adapter; `probe` are two samples."""
    adapter = parse_adapter(spec.adapter or "")
    view = adapted(problem, adapter, probe, torch_seed(spec.seed, "adapter"))
    if adapter.kind != "lora" or adapter.how == "freeze-A":
        return algorithm, view
    if adapter.how == "exact" and (spec.aggregate or spec.privacy):
        what = "aggregate" if spec.aggregate else "privacy"
        raise InputError(
            f"adapter how=exact needs every client's factors as they are, and {what} hides or "
            "changes them; use how=freeze-A, whose mean is exact anyway"
        )
    factored = tuple(
        Factored(name, tuple(layer.weight.shape), is_transposed(layer))
        for name, layer in adapted_layers(view.model.module)
    )
    exact = adapter.how == "exact"
    for one in factored:
        if exact and one.weight not in view.rest:
            raise InputError(
                f"adapter how=exact cannot move the weight of '{one.name}', which is tied to "
                "another; leave it out with on=…"
            )
    return LoraAveraging(algorithm, factored, adapter.scale, exact), view


def adapted_note(text: str, view: Problem) -> str:
    """What is trained, and how large the base is."""
    base = sum(value.nbytes for value in view.rest.values())
    whole = view.w0.numel() + sum(value.numel() for value in view.rest.values())
    sent = "is sent once to every client" if view.sent_once else "is at the clients and never sent"
    adapter = parse_adapter(text)
    if adapter.how == "exact":
        sent = "moves, and is sent in every round"
    note = (
        f"adapter {text}: {view.w0.numel():,} of {whole:,} parameters are trained and sent; the "
        f"frozen base, {bytes_text(base)}, {sent}"
    )
    if adapter.kind != "lora":
        return note
    left = without_factors(view.model.module, adapter, view.layout.names)
    return f"{note}; LoRA knows no factors for {left}, which stay as they are" if left else note
