"""Centred kernel alignment: how alike two models represent the same inputs, layer by layer.

Kornblith, Norouzi, Lee, Hinton, ICML 2019, linear kernel; between clients as Luo et al., NeurIPS
2021. Outputs are flattened whole; no spatial mean is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from fedrift.analysis.case import Case, Finding, NotMeasured, Options
from fedrift.analysis.next_round import Unwatched, Watch
from fedrift.core.flat import Inputs, Vec, count, take
from fedrift.core.flat_model import FlatModel
from fedrift.figures import COMMON_FIGURES
from fedrift.figures import clients as pictures
from fedrift.storage.jsonl import Record

CHUNK = 250


def gram(x: Tensor) -> Tensor:
    """Centred n×n Gram matrix of n rows, of length 1; zeros if all rows are the same."""
    flat = x.flatten(1).double()
    flat = flat - flat.mean(0)
    if not float(flat.abs().max()):
        return torch.zeros(len(flat), len(flat), dtype=torch.float64)
    flat = flat / flat.abs().max()  # its squares must not overflow
    k = flat @ flat.T
    return k / k.norm()


def linear_cka(x: Tensor, y: Tensor) -> float:
    """‖YᵀX‖² / (‖XᵀX‖ ‖YᵀY‖) of two representations of the same n inputs; 0 if one is constant."""
    if len(x) != len(y):
        raise ValueError(f"{len(x)} and {len(y)} rows do not represent the same inputs")
    return float((gram(x) * gram(y)).sum())


def layers(model: FlatModel) -> list[str]:
    """The layers that have parameters of their own, in the order they were defined."""
    return [
        name
        for name, module in model.module.named_modules()
        if next(module.parameters(recurse=False), None) is not None
    ]


@torch.no_grad()
def grams(
    model: FlatModel, w: Vec, x: Inputs, names: Sequence[str], watch: Watch | None = None
) -> dict[str, Tensor]:
    """The Gram matrix of every layer's output for the inputs, in evaluation mode."""
    watch, caught = watch or Unwatched(), dict[str, list[Tensor]]()

    def keep(name: str, output: object) -> None:
        if isinstance(output, Tensor):
            caught.setdefault(name, []).append(output.detach().flatten(1).clone())

    hooks = [
        model.module.get_submodule(name).register_forward_hook(
            lambda _m, _x, out, name=name: keep(name, out)
        )
        for name in names
    ]
    passes = range(0, count(x), CHUNK)
    try:
        for start in passes:
            model.logits(w, take(x, slice(start, start + CHUNK)))
            watch.step()
    finally:
        for hook in hooks:
            hook.remove()
    # a layer that is used twice in a pass, or for other things than samples, has no one output
    whole = {n: parts for n, parts in caught.items() if len(parts) == len(passes)}
    return {
        n: gram(torch.cat(parts)) for n, parts in whole.items() if sum(map(len, parts)) == count(x)
    }


def layer_similarity(
    clients: Sequence[Mapping[str, Tensor]], server: Mapping[str, Tensor], name: str
) -> tuple[list[list[float]], list[float]]:
    """CKA of one layer between all clients (a symmetric table), and of each to the server's."""
    stack = torch.stack([c[name].flatten() for c in clients])
    return (stack @ stack.T).tolist(), (stack @ server[name].flatten()).tolist()


# The measurement: the layers of the client models after local work.

IMAGES = 500  # the same for all models; a table of pairs of images is kept for every layer


def measure(case: Case, options: Options) -> Finding:
    """CKA per layer between client models and to the global one, on the same test images."""
    limit = min(options.images or IMAGES, IMAGES)
    x = case.test(limit)[0]
    local = case.trained(case.few(options.clients), options.watch)
    if len(local) < 2:
        raise NotMeasured("the coming round has a single client, so there is no pair to compare")
    names = layers(case.model())
    passes = -(-count(x) // CHUNK)
    options.watch.begin("batches of test samples", (1 + len(local)) * passes, 0.0)
    server = grams(case.model(), case.weights, x, names, options.watch)
    if not server:
        raise NotMeasured("no layer of its model is called once for each sample")
    clients = [
        grams(case.model(seen.buffers), seen.w, x, names, options.watch) for seen in local.values()
    ]
    by_layer: Record = {}
    for name in server:
        pairs, to_global = layer_similarity(clients, server, name)
        upper = np.array(pairs)[np.triu_indices(len(clients), 1)]
        by_layer[name] = {
            "between": float(upper.mean()),
            "lowest": float(upper.min()),
            "highest": float(upper.max()),
            "to_global": float(np.mean(to_global)),
            "pairs": pairs,
        }
    numbers: Record = {
        "round": case.round,
        "samples": count(x),
        "clients": list(local),
        "layers": by_layer,
    }
    first, last = next(iter(by_layer)), list(by_layer)[-1]
    about = (
        f"Linear CKA of {len(local)} client models after their work in the round that follows "
        f"round {case.round}, on the same {count(x):,} test samples, layer outputs flattened.",
        f"Between clients it is {by_layer[first]['between']:.3f} in the first layer ({first}) and "
        f"{by_layer[last]['between']:.3f} in the last ({last}); 1 means the same up to rotation.",
    )
    drawn = {"layers": pictures.by_layer, "last-layer": pictures.last_layer}
    figures = {name: partial(draw, runs={case.name: numbers}) for name, draw in drawn.items()}
    return Finding("Similarity of client models", about, numbers, figures, COMMON_FIGURES["cka"])
