"""Numbers that embeddings look up: which inputs they are, and those that no row answers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from fedrift.core.flat import Inputs, Vec
from fedrift.core.flat_model import FlatModel

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def beyond(module: nn.Module, call: Callable[[], object]) -> str | None:
    """What is wrong with a call whose embeddings cannot look a number up; None if nothing is."""
    found: list[str] = []

    def look(name: str, layer: nn.Embedding | nn.EmbeddingBag, tokens: Tensor) -> None:
        size = layer.num_embeddings
        wrong = tokens[(tokens < 0) | (tokens >= size)]
        if wrong.numel() and not found:
            found.append(outside(int(wrong[0]), name, size, int(tokens.max())))

    with suppress(Exception), _looking(module, look):
        call()
    return found[0] if found else None


def outside(token: int, layer: str, size: int, top: int) -> str:
    """The sentence for a number that an embedding does not have."""
    more = f", or the embedding {top + 1} rows" if token >= 0 else ""
    return (
        f"{token} is outside the {size} rows of the embedding '{layer}' (0 to {size - 1}); give "
        f"numbers that count from 0{more}"
    )


def embedded(model: FlatModel, w: Vec, x: Inputs) -> list[tuple[Any, str, int]]:
    """The embeddings that are given the inputs as they come: which input (None: the only one),
    the layer's name, its rows."""
    parts: dict[Any, Tensor] = {None: x} if isinstance(x, Tensor) else dict(_items(x))
    whole = {key: part for key, part in parts.items() if not part.is_floating_point()}
    if not whole or not any(isinstance(part, EMBEDDINGS) for part in model.module.modules()):
        return []
    found: list[tuple[Any, str, int]] = []

    def look(name: str, layer: nn.Embedding | nn.EmbeddingBag, tokens: Tensor) -> None:
        for key, part in whole.items():
            if tokens.shape == part.shape and torch.equal(tokens, part):
                found.append((key, name, layer.num_embeddings))

    with suppress(RuntimeError, TypeError, ValueError, IndexError), _looking(model.module, look):
        model.logits(w, x)
    return found


def _items(x: Any) -> Iterable[tuple[Any, Tensor]]:
    return x.items() if isinstance(x, dict) else enumerate(x)


@contextmanager
def _looking(module: nn.Module, look: Callable[[str, Any, Tensor], None]) -> Generator[None]:
    """Shows what every embedding of a module is given."""

    def shown(name: str) -> Callable[[Any, Any], None]:
        return lambda layer, args: look(name, layer, args[0])

    hooks = [
        layer.register_forward_pre_hook(shown(name))
        for name, layer in module.named_modules()
        if isinstance(layer, EMBEDDINGS)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
