"""What travels and what is kept: declared fields, their bytes, and how replies become one message,
folded one by one, each field as it declares."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import cache
from typing import (
    Annotated,
    Any,
    Protocol,
    TypeAlias,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

import torch
from torch import Tensor

from fedrift.core.flat import is_finite, sent
from fedrift.errors import InputError

T = TypeVar("T")
Mean: TypeAlias = Annotated[T, "mean"]
"""Σ weight·x / Σ weight, the weight of a client being the algorithm's option `weights`."""
Sum: TypeAlias = Annotated[T, "sum"]
Gather: TypeAlias = Annotated[T, "gather"]
"""Stacked in client-id order; only for rules that need every value."""

Packed: TypeAlias = dict[str, Any]
"""Path of a leaf → tensor, number or None; the length of a tuple stands under `path#`."""


def derived(compute: Callable[[Any], Any]) -> Any:
    """A field that is folded but not sent: computed from the reply where it is folded."""
    return field(init=False, default=None, metadata={"derived": compute})


def shaped(dtype: torch.dtype, shape: Callable[[Any, Any], tuple[int, ...]]) -> Any:
    """A tensor that is no vector of parameters: its dtype, and its shape from the algorithm and
    the task. A message with a tensor of any other form is refused where it leaves and arrives."""
    return field(metadata={"dtype": dtype, "shape": shape})


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def message(cls: type[T]) -> type[T]:
    """A message down or up: frozen, keyword-only."""
    return dataclass(frozen=True, kw_only=True, eq=False)(_own_fields(cls))


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def state(cls: type[T]) -> type[T]:
    """What a server or a client keeps between rounds: frozen, keyword-only."""
    return dataclass(frozen=True, kw_only=True, eq=False)(_own_fields(cls))


def _own_fields(cls: type[T]) -> type[T]:
    """A `shaped(…)` may be written at several fields: each gets its own, since it takes a name."""
    for name, value in list(vars(cls).items()):
        if isinstance(value, Field):
            setattr(cls, name, copy(value))  # type: ignore[reportUnknownArgumentType]
    return cls


@cache
def hints(cls: type) -> dict[str, Any]:
    """Field → annotation, with the reductions."""
    return get_type_hints(cls, include_extras=True)


@cache
def reductions(cls: type) -> dict[str, str]:
    """Field → "mean", "sum" or "gather", for the fields that are reduced."""
    return {
        name: hint.__metadata__[0]
        for name, hint in hints(cls).items()
        if get_origin(hint) is Annotated
    }


@cache
def _sent(cls: type) -> tuple[str, ...]:
    """The fields of a message that travel."""
    return tuple(f.name for f in fields(cls) if "derived" not in f.metadata)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every tensor, number and None of a message, with its dotted path; derived fields are not."""
    if value is None or isinstance(value, (Tensor, bool, int, float)):
        yield path, value
    elif isinstance(value, tuple):
        yield f"{path}#", len(value)
        for i, item in enumerate(value):
            yield from leaves(item, f"{path}.{i}")
    elif is_dataclass(value) and not isinstance(value, type):
        for name in _sent(type(value)):
            here, own = f"{path}.{name}" if path else name, getattr(value, name)
            if isinstance(own, Tensor):
                yield here, own
            else:
                yield from leaves(own, here)
    else:
        raise TypeError(
            f"field '{path}' holds a {type(value).__name__}: messages and states are made of "
            "tensors, numbers, tuples, other states and None"
        )


def pack(value: Any) -> Packed:
    """A message or state as named leaves: the one form in which it is moved or stored."""
    return {} if value is None else dict(leaves(value))


def unpack(cls: type[T] | None, packed: Mapping[str, Any], like: Any = None) -> T | None:
    """The inverse of `pack`; None stands for a method that sends or keeps nothing.

    A wrapper's state does not say in its hints what the state inside is: `like` shows it.
    """
    if cls is None or cls is type(None):
        return None
    return _build(cls, packed, "", like)


def _build(hint: Any, packed: Mapping[str, Any], path: str, like: Any) -> Any:
    if isinstance(hint, type) and is_dataclass(hint):
        return _filled(hint, packed, path, like)
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, types.UnionType):
        if path in packed and packed[path] is None:
            return None
        hint = next(a for a in get_args(hint) if a is not type(None))
        return _build(hint, packed, path, like)
    if get_origin(hint) is tuple:
        number, kinds = packed[f"{path}#"], get_args(hint)
        if len(kinds) == 2 and kinds[1] is Ellipsis:
            kinds = (kinds[0],) * number
        return tuple(_build(kinds[i], packed, f"{path}.{i}", None) for i in range(number))
    if hint is Any and is_dataclass(like):
        hint = type(like)
    return _filled(hint, packed, path, like) if is_dataclass(hint) else packed[path]


def _filled(cls: Any, packed: Mapping[str, Any], path: str, like: Any) -> Any:
    values: dict[str, Any] = {}
    for name in _sent(cls):
        here = f"{path}.{name}" if path else name
        if here in packed:  # a leaf; anything else has only leaves of its own
            values[name] = packed[here]
        else:
            values[name] = _build(hints(cls)[name], packed, here, getattr(like, name, None))
    return cls(**values)


def outline(value: T) -> T:
    """The same message or state without its values: `like` for others of its kind."""
    packed = {p: v if p.endswith("#") else None for p, v in leaves(value)}
    return _build(type(value), packed, "", value)


def placed(value: T, device: str) -> T:
    """The same message or state with its vectors on a device; single numbers stay here."""
    if value is None:
        return value
    there = torch.device(device)
    packed = {p: sent(v, there) if _is_vector(v) else v for p, v in leaves(value)}
    return _build(type(value), packed, "", value)


def cloned(value: T) -> T:
    """The same message or state in memory of its own."""
    if value is None:
        return value
    packed = {p: v.clone() if isinstance(v, Tensor) else v for p, v in leaves(value)}
    return _build(type(value), packed, "", value)


def _is_vector(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0


@dataclass(frozen=True)
class Size:
    """Bytes of a message: vectors and other tensors, and the numbers beside them."""

    tensors: int = 0
    numbers: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.tensors + other.tensors, self.numbers + other.numbers)

    @property
    def total(self) -> int:
        return self.tensors + self.numbers


def nbytes(packed: Mapping[str, Any]) -> dict[str, Size]:
    """Field → bytes. Lengths and absent values are structure and cost nothing."""
    tensors: dict[str, int] = {}
    numbers: dict[str, int] = {}
    for path, leaf in packed.items():
        if leaf is None or path.endswith("#"):
            continue
        name = path.partition(".")[0]
        is_vector = _is_vector(leaf)
        tensors[name] = tensors.get(name, 0) + (leaf.nbytes if is_vector else 0)
        numbers[name] = numbers.get(name, 0) + (0 if is_vector else 8)
    return {name: Size(tensors[name], numbers[name]) for name in tensors}


def all_finite(packed: Mapping[str, Any]) -> bool:
    """False if any leaf of a reply is NaN or infinite: such a reply is dropped whole."""
    for leaf in packed.values():
        if isinstance(leaf, Tensor):
            if not is_finite(leaf):
                return False
        elif isinstance(leaf, float) and not (-float("inf") < leaf < float("inf")):
            return False
    return True


@cache
def _derivations(cls: type) -> dict[str, Callable[[Any], Any]]:
    return {f.name: f.metadata["derived"] for f in fields(cls) if "derived" in f.metadata}


def check_reduced(cls: Any) -> None:
    """Refuses a reply with a field that nothing is made of."""
    if not isinstance(cls, type) or not is_dataclass(cls) or _derivations(cls):
        return
    for f in fields(cls):
        if f.name not in reductions(cls):
            raise InputError(
                f"{cls.__qualname__}.{f.name} does not say what becomes of the replies of several "
                f"clients; write {f.name}: Mean[…], Sum[…] or Gather[…] around its type"
            )


def reduced_values(cls: type, up: Any) -> dict[str, Any]:
    """The fields of a reply that are reduced, derived ones included, absent ones not."""
    derivations = _derivations(cls)
    values = {
        name: derivations[name](up) if name in derivations else getattr(up, name)
        for name in reductions(cls)
    }
    return {name: value for name, value in values.items() if value is not None}


def rebuilt(cls: type, values: Mapping[str, Any]) -> Any:
    """A reduced message; fields without a value are None in it."""
    reduced = object.__new__(cls)
    for f in fields(cls):
        object.__setattr__(reduced, f.name, values.get(f.name))
    return reduced


class Folding(Protocol):
    """Takes in the replies of an exchange one by one and reduces them."""

    replies: int
    weight: float

    def fold(self, up: Any, weight: float) -> None: ...
    def result(self) -> Any: ...


class Reducer:
    """Folds replies one by one, in client-id order, in float64, by the declared reductions."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.replies = 0
        self.weight = 0.0
        self._sums: dict[str, Any] = {}
        self._weights: dict[str, float] = {}
        self._like: dict[str, Any] = {}

    def fold(self, up: Any, weight: float) -> None:
        """Add one reply."""
        self.replies += 1
        self.weight += weight
        for name, value in reduced_values(self.cls, up).items():
            self._fold_field(name, reductions(self.cls)[name], value, weight)

    def _fold_field(self, name: str, how: str, value: Any, weight: float) -> None:
        if how == "gather":
            kept = value.clone() if isinstance(value, Tensor) else value  # a slot is reused
            self._sums.setdefault(name, []).append(kept)
            return
        scale = weight if how == "mean" else 1.0
        self._weights[name] = self._weights.get(name, 0.0) + weight
        if not isinstance(value, Tensor):
            self._sums[name] = self._sums.get(name, 0.0) + scale * value
            return
        if name not in self._sums:
            self._like[name] = value.dtype
            self._sums[name] = torch.zeros(value.shape, dtype=torch.float64, device=value.device)
        self._sums[name].add_(value, alpha=scale)

    def result(self) -> Any:
        """The reduced message; fields without a reduction are None in it."""
        values: dict[str, Any] = {}
        for name, how in reductions(self.cls).items():
            total = self._sums.get(name)
            if how == "gather":
                total = _stack(total or [])
            elif how == "mean" and total is not None:
                total = total / self._weights[name]
            if isinstance(total, Tensor) and name in self._like:
                total = total.to(self._like[name])
            values[name] = total
        return rebuilt(self.cls, values)


def _stack(values: list[Any]) -> Tensor:
    if values and isinstance(values[0], Tensor):
        return torch.stack(values)
    return torch.tensor(values, dtype=torch.float64)
