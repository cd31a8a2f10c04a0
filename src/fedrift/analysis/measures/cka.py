"""Similarity of the client models' layers after local work."""

from __future__ import annotations

from functools import partial

import numpy as np

from fedrift.analysis.case import Case, Finding, NotMeasured, Options
from fedrift.analysis.cka import CHUNK, alike, grams, layers
from fedrift.flat import count
from fedrift.pictures import cka as pictures
from fedrift.pictures.gallery import TOGETHER
from fedrift.records import Record

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
    found: Record = {}
    for name in server:
        pairs, to_global = alike(clients, server, name)
        upper = np.array(pairs)[np.triu_indices(len(clients), 1)]
        found[name] = {
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
        "layers": found,
    }
    first, last = next(iter(found)), list(found)[-1]
    about = (
        f"Linear CKA of {len(local)} client models after their work in the round that follows "
        f"round {case.round}, on the same {count(x):,} test samples, layer outputs flattened.",
        f"Between clients it is {found[first]['between']:.3f} in the first layer ({first}) and "
        f"{found[last]['between']:.3f} in the last ({last}); 1 means the same up to rotation.",
    )
    drawn = {"layers": pictures.by_layer, "last-layer": pictures.last_layer}
    figures = {name: partial(draw, runs={case.name: numbers}) for name, draw in drawn.items()}
    return Finding("Similarity of client models", about, numbers, figures, TOGETHER["cka"])
