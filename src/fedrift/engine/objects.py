"""What users give, as torch has it: arrays as tensors, names as dtypes, modules as factories; and a
call in Python as a spec with its objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn

from fedrift import models
from fedrift.config import models as model_names
from fedrift.config.client_evaluation import OWN
from fedrift.config.own_code import IN_PYTHON
from fedrift.config.spec import FIELDS, Spec
from fedrift.core.algorithm import Algorithm
from fedrift.core.flat import map_tree
from fedrift.core.flat_model import copied
from fedrift.core.sampling import Chooser
from fedrift.data import arrays
from fedrift.data.shift import Domains
from fedrift.data.split import Split
from fedrift.engine import build, check_objects
from fedrift.engine.plan import UserMetric, bytes_of, free_memory
from fedrift.engine.recorder import GIVEN_AS_OBJECTS
from fedrift.errors import InputError, bytes_text
from fedrift.models import losses

DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Tensors:
    """Arrays as tensors, converted once however many runs use them."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, torch.dtype, bool], tuple[np.ndarray, Any]] = {}
        self._moved: dict[tuple[int, Domains], tuple[Any, Any]] = {}

    def of(self, array: np.ndarray, kind: torch.dtype, floats: bool = False) -> Any:
        """In the run's dtype; whole numbers stay what they are unless `floats` are wanted."""
        key = (id(array), kind, floats)
        if key not in self._held:
            tensor = arrays.tensors(torch.from_numpy(array), kind, "data")
            tensor = tensor.to(kind) if floats else tensor
            self._held[key] = (array, arrays.channels_last(tensor))
        return self._held[key][1]

    def tested_in(self, test: tuple[Any, Any], domains: Domains | None) -> tuple[Any, Any]:
        """As the function of that name, once for all runs that have the same."""
        if not are_tested(domains):
            return test
        key = id(test[0]), domains
        if key not in self._moved:
            self._moved[key] = tested_in(test, domains)
        return self._moved[key]


def are_tested(domains: Domains | None) -> TypeGuard[Domains]:
    return domains is not None and domains.is_tested


def tested_in(test: tuple[Any, Any], domains: Domains | None) -> tuple[Any, Any]:
    """The server's test data, in every domain one after the other if they are evaluated there."""
    if not are_tested(domains):
        return test
    x, y = test
    if not isinstance(x, Tensor):
        raise InputError("test: a shift with domains needs one tensor of images as x")
    needed, free = domains.number * bytes_of(test), free_memory()
    if free is not None and needed > free:
        raise InputError(
            f"shift: the test set in {domains.number} domains needs {bytes_text(needed)} of "
            f"memory, but {bytes_text(free)} are free; use fewer domains"
        )
    moved = torch.from_numpy(domains.of_test(x.numpy()))
    return arrays.channels_last(moved), map_tree(lambda t: torch.cat([t] * domains.number), y)


def factory_of(
    model: str | Callable[[], nn.Module] | nn.Module, split: Split, test: tuple[Any, Any] | None
) -> Callable[[], nn.Module]:
    """What makes the model; one by name is fitted to the samples and to the labels that occur."""
    if isinstance(model, str):
        targets = [split.y] if test is None else [split.y, test[1]]
        axes = 2 if model_names.choose_model(model).takes_tokens else 1
        if not isinstance(split.x, Tensor) or not all(_are_labels(y, axes) for y in targets):
            raise InputError(
                f"model='{model}': a model by name takes arrays of samples and of whole numbers "
                "as their labels; give a module or a function that returns one"
            )
        classes = max(int(y.max()) for y in targets) + 1
        return models.factory(model, tuple(split.x.shape[1:]), classes)
    if isinstance(model, nn.Module):
        return partial(copied, model)
    if not callable(model):
        raise InputError(
            f"model: {model!r} must be a module, a function that returns one, or a name"
        )
    return model


def _are_labels(y: Any, axes: int) -> bool:
    is_list = isinstance(y, Tensor) and y.dim() == axes and len(y) > 0
    return is_list and not y.is_floating_point()


@dataclass(frozen=True)
class Objects:
    """What a spec can only name: the model, the clients' data, functions, perhaps the algorithm."""

    model: Callable[[], nn.Module]
    clients: Split
    test: tuple[Any, Any] | None = None
    """In every domain, where the clients' are evaluated."""
    loss: Callable[[Any, Any], Tensor] | None = None
    metrics: Mapping[str, UserMetric] = field(default_factory=dict[str, UserMetric])
    algorithm: Algorithm[Any, Any] | None = None
    """In place of the spec's."""
    black: tuple[float, ...] = ()
    """What black has become in each channel of the samples, for crops."""
    notes: tuple[str, ...] = ()
    alphabet: tuple[str, ...] = ()
    """What the tokens of a text stand for; empty for other data."""
    sampling: Chooser | None = None
    """What the spec's names, if it is given as an object."""


def objects_from_call(
    algorithm: build.AlgorithmLike,
    dtype: str,
    *,
    model: str | Callable[[], nn.Module] | nn.Module,
    clients: Any,
    test: Any = None,
    client_test: Any = None,
    loss: str | Callable[[Any, Any], Tensor] | None = None,
    metrics: Mapping[str, UserMetric] | None = None,
    sampling: str | Chooser = "fixed",
    seed: int = 0,
) -> Objects:
    """The user's objects, checked, in the run's dtype; `seed` decides what clients hold out."""
    if isinstance(loss, str):
        model_names.check_loss(loss)
        loss = losses.loss_by_name(loss)
    check_objects.check_functions(loss, metrics or {})
    given = None if isinstance(algorithm, str) else build.instance(algorithm)
    split, field = arrays.gather(clients, DTYPES[dtype]), "client_test"
    if arrays.is_per_client(test):
        if client_test is not None:
            raise InputError("test has one set per client, and client_test is given too; keep one")
        client_test, test, field = test, None, "test"
    if client_test is not None:
        split = _with_tests(split, client_test, DTYPES[dtype], field, seed)
    tried = None
    if test is not None:
        tried = tested_in(arrays.pair(test, DTYPES[dtype], "test"), split.domains)
    chooser = sampling if callable(sampling) else None
    made = factory_of(model, split, tried)
    return Objects(made, split, tried, loss, metrics or {}, given, sampling=chooser)


def _with_tests(held: Split, given: Any, dtype: torch.dtype, field: str, seed: int) -> Split:
    """The clients with test data of their own: a share of what they have, or what is given."""
    if held.test is not None:
        raise InputError(f"{field}: the clients have test data of their own already; keep one")
    if not arrays.is_per_client(given):
        if given == OWN:
            raise InputError("client_test='own' is for named data; give a list with one per client")
        return held.held_out(arrays.checked_share(given, field), seed)
    tests = arrays.gather_tests(given, len(held), dtype, field)
    check_objects.check_tested(tests.sizes, held.sizes, field)
    return held.with_data(held.x, held.y, tests)


def spec_from_call(algorithm: build.AlgorithmLike, settings: Mapping[str, Any]) -> Spec:
    """The settings of a call in Python as a spec; what is None was not said."""
    options: dict[str, Any] = {**GIVEN_AS_OBJECTS, "partition": IN_PYTHON}
    for key, value in {**settings, "algorithm": algorithm}.items():
        value = plain(value)
        if key == "sampling" and callable(value):
            value = losses.name_of(value) or f"{IN_PYTHON}:function"
        if key == "batch_size":
            value = "full" if value is None else None if value == USUAL else value
        if isinstance(value, str) and FIELDS[key].is_list:
            value = [value]
        if value is not None and (key != "algorithm" or isinstance(value, str)):
            options[key] = value
    return Spec.of(options)


USUAL = "default"  # the batch size that the algorithm has of its own


def plain(value: Any) -> Any:
    """numpy's and torch's numbers, arrays and names as Python's own."""
    if isinstance(value, (np.ndarray, np.generic, Tensor)):
        return value.tolist()
    if isinstance(value, (torch.dtype, torch.device)):
        return str(value).removeprefix("torch.")
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(one) for one in value]  # type: ignore[reportUnknownVariableType]
    return value
