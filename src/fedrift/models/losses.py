"""The losses themselves: functions of output and target that give the mean over the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from fedrift.config import own_code
from fedrift.errors import InputError
from fedrift.grammar import parse

Loss = Callable[[Any, Any], Tensor]
NAMES: dict[str, Loss] = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "bce": F.binary_cross_entropy_with_logits,
}


def loss_by_name(text: str | None) -> Loss | None:
    """The function a text names; None for the usual one, cross-entropy."""
    if text is None or text == "cross_entropy":
        return None
    if text in NAMES:
        return NAMES[text]
    named = parse(text, "loss")
    loss: Any = own_code.load(named.name, named.value or "", "loss")
    if not callable(loss):
        raise InputError(f"loss '{text}' is a {type(loss).__name__}, not a function")
    return loss  # type: ignore[reportReturnType]


def name_of(loss: Any) -> str | None:
    """What a text can say of a function; None for the usual loss and for one without a name."""
    known = next((name for name, function in NAMES.items() if function is loss), None)
    if known is not None or loss is None:
        return known
    name, home = str(getattr(loss, "__qualname__", "")), str(getattr(loss, "__module__", ""))
    return f"{home}:{name}" if name.isidentifier() and home else None
