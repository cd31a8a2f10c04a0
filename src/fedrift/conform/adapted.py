"""What must hold of an adapter after every round: its base stands, and LoRA's means are as said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from fedrift.adapters.averaging import LoraAveraging
from fedrift.conform.watched_run import Inside, Invariant, Moment, largest


def invariants(inside: Inside) -> tuple[Invariant, ...]:
    """Those of the run's adapter, before its first round; none without an adapter."""
    if inside.trial.adapter is None:
        return ()
    lora = (means_of_products,) if isinstance(inside.algorithm, LoraAveraging) else ()
    return (base_stands(inside), *lora)


def base_stands(inside: Inside) -> Invariant:
    """What is not trained keeps its bits, where clients train and where they look it up."""
    start = {name: value.clone() for name, value in inside.problem.rest.items()}

    def invariant(m: Moment) -> Iterator[str]:
        module = m.inside.problem.model.module
        here = dict((*module.named_parameters(), *module.named_buffers()))
        sent = m.algorithm.frozen(m.new, m.inside.problem)
        for name, value in start.items():
            is_still = name not in sent and name not in m.inside.problem.moving
            places = (m.inside.problem.rest, here if is_still else {})
            if any(name in place and not torch.equal(place[name], value) for place in places):
                yield f"'{name}' of the base is frozen but has moved in round {m.report.round}"

    return invariant


def means_of_products(m: Moment) -> Iterator[str]:
    """LoRA, where the server takes the mean of the factors: the mean of the clients' models lies
    (α/r)·bias from the model, with `exact` upon it. Nothing is said where nobody could see them:
    what is sent has no `w`, or is for another part of the model."""
    trained = [seen for seen in m.visits() if "delta" in seen.up]
    logged = m.algorithm.log(m.new).get("lora_bias")
    if not trained or logged is None:
        return
    w, was = m.algorithm.model(m.new), m.algorithm.model(m.old)
    change = m.mean("delta", trained[0].call.phase)
    if change.shape != w.shape or largest(was + change - w) > m.rounding(w):
        return
    parts = _whole(m, w, m.algorithm.frozen(m.new, m.inside.problem))
    size = max(map(largest, parts.values()))
    sent = {seen.client: seen.down["w"] for seen in m.visits() if "w" in seen.down}
    for share, seen in zip(m.shares(trained), trained, strict=True):
        for name, value in _whole(m, sent[seen.client] + seen.up["delta"], seen.frozen).items():
            parts[name] -= share * value
    distance = torch.stack([part.square().sum() for part in parts.values()]).sum().sqrt()
    expected = 0.0 if m.algorithm.exact else m.algorithm.scale * logged
    what = "the distance of the model from the mean of the clients' models"
    yield from m.differ(distance[None], distance.new_tensor([expected]), what, size)


def _whole(m: Moment, w: Tensor, moved: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parameters of the model with the products added."""
    module = m.inside.problem.module(w, moved)
    return {name: p.detach().clone() for name, p in module.named_parameters()}
