"""What users give, as torch has it: arrays as tensors, names as dtypes, modules as factories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrift import models
from fedrift.data import given
from fedrift.data.resident import Split
from fedrift.errors import InputError
from fedrift.flat_model import copied

DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Tensors:
    """Arrays as tensors, converted once however many runs use them."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, torch.dtype, bool], tuple[np.ndarray, Any]] = {}

    def of(self, array: np.ndarray, kind: torch.dtype, floats: bool = False) -> Any:
        """In the run's dtype; whole numbers stay what they are unless `floats` are wanted."""
        key = (id(array), kind, floats)
        if key not in self._held:
            tensor = given.tensors(torch.from_numpy(array), kind, "data")
            tensor = tensor.to(kind) if floats else tensor
            self._held[key] = (array, given.channels_last(tensor))
        return self._held[key][1]


def factory_of(
    model: str | Callable[[], nn.Module] | nn.Module, held: Split, test: tuple[Any, Any] | None
) -> Callable[[], nn.Module]:
    """What makes the model; one by name is fitted to the samples and to the labels that occur."""
    if isinstance(model, str):
        targets = [held.y] if test is None else [held.y, test[1]]
        if not isinstance(held.x, Tensor) or not all(map(_are_labels, targets)):
            raise InputError(
                f"model='{model}': a model by name takes arrays of samples and of whole numbers "
                "as their labels; give a module or a function that returns one"
            )
        classes = max(int(y.max()) for y in targets) + 1
        return models.factory(model, tuple(held.x.shape[1:]), classes)
    if isinstance(model, nn.Module):
        return partial(copied, model)
    if not callable(model):
        raise InputError(
            f"model: {model!r} must be a module, a function that returns one, or a name"
        )
    return model


def _are_labels(y: Any) -> bool:
    is_list = isinstance(y, Tensor) and y.dim() == 1 and len(y) > 0
    return is_list and not y.is_floating_point()


def dtype_of(dtype: str | torch.dtype) -> torch.dtype:
    if isinstance(dtype, torch.dtype) and dtype in DTYPES.values():
        return dtype
    if dtype not in DTYPES:
        raise InputError(f"dtype={dtype!r} must be 'float32' or 'float64'")
    return DTYPES[dtype]  # type: ignore[index]


def plain(value: Any) -> Any:
    """numpy's numbers as Python's own."""
    return value.item() if isinstance(value, np.generic) else value


def lists(schedule: Any) -> Any:
    """A schedule of participants as plain lists."""
    if isinstance(schedule, (np.ndarray, Tensor)):
        return schedule.tolist()
    if not isinstance(schedule, Sequence) or isinstance(schedule, str):
        return schedule
    return [_list(ids) for ids in schedule]


def _list(ids: Any) -> Any:
    if isinstance(ids, (np.ndarray, Tensor)):
        return ids.tolist()
    return (
        [i.item() if isinstance(i, Tensor) else i for i in ids]
        if isinstance(ids, Sequence)
        else ids
    )
