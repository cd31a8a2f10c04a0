"""Messages as named arrays, or as one vector to be summed; checked where they leave and arrive."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from math import prod
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin

import numpy as np
import torch
from torch import Tensor

from fedrift.core.algorithm import Algorithm
from fedrift.core.codecs import Payload, packed_bytes, rules_of, unpacked
from fedrift.core.compression import Side
from fedrift.core.messages import hints, reductions
from fedrift.core.problem import Problem
from fedrift.errors import RunError
from fedrift.storage.shared_memory import name_of

MOST_ITEMS = 1024  # of a tuple whose length is not declared
NUMBERS: dict[Any, torch.dtype] = {float: torch.float64, int: torch.int64, bool: torch.bool}
LARGEST = 1 << 63


class Refused(RunError):
    """A message that is not what was declared; the sentence names the field."""


@dataclass(frozen=True)
class Piece:
    """One array as it travels: little-endian, row by row."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


Pieces: TypeAlias = dict[str, Piece]
"""Path of a leaf → array. What is None is not there; the length of a tuple stands under `path#`."""


@dataclass(frozen=True)
class Form:
    """What one array must be."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @staticmethod
    def like(tensor: Tensor) -> Form:
        return Form(tensor.dtype, tuple(tensor.shape))

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{name_of(self.dtype)} of shape {self.shape}"


def piece(tensor: Tensor) -> Piece:
    """A tensor as it travels."""
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return Piece(name_of(tensor.dtype), tuple(tensor.shape), flat.numpy().tobytes())


def tensor(given: Piece, form: Form, path: str) -> Tensor:
    """The tensor of a piece that is exactly of the declared form; anything else is refused."""
    if given.dtype != name_of(form.dtype) or tuple(given.shape) != form.shape:
        said = f"{str(given.dtype)[:20]} of shape {str(tuple(given.shape))[:60]}"
        raise Refused(f"field '{path}' is {said}, declared is {form}")
    if len(given.data) != form.nbytes:
        raise Refused(f"field '{path}' has {len(given.data)} bytes, declared are {form.nbytes}")
    if form.dtype is torch.bool and not set(given.data) <= {0, 1}:
        raise Refused(f"field '{path}' holds bytes that are neither true nor false")
    if not form.nbytes:
        return torch.empty(form.shape, dtype=form.dtype)
    made = torch.empty(form.shape, dtype=form.dtype)
    made.reshape(-1).view(torch.uint8).numpy()[:] = np.frombuffer(given.data, np.uint8)
    return made


def tensors(pieces: Mapping[str, Piece], forms: Mapping[str, Form]) -> dict[str, Tensor]:
    """Named tensors, every one of them declared."""
    strange(pieces, forms)
    return {path: tensor(given, forms[path], path) for path, given in pieces.items()}


def strange(paths: Iterable[str], known: Iterable[str]) -> None:
    """Refuse fields that nobody declared."""
    if extra := sorted(set(paths) - set(known)):
        raise Refused(f"field '{extra[0][:60]}' is not declared")


class Codec:
    """Turns the messages (or states) of one class into pieces and back.

    A tensor is a vector of the run's parameters, or what its field declares with `shaped`, or what
    it is in `like`, which also shows what a state inside another is. Fields of a message that goes
    up or down (`side`) may travel packed: their bytes stand under `path~`.
    """

    def __init__(
        self,
        cls: type,
        owner: Algorithm[Any, Any],
        problem: Problem,
        like: Any = None,
        side: Side | None = None,
    ) -> None:
        self.cls, self._owner, self._problem = cls, owner, problem
        self._like = like
        how = problem.compression
        self._packing = {} if how is None or side is None else rules_of(how, side, cls)
        self._vector = Form(problem.w0.dtype, (problem.layout.size,))

    def encode(self, value: Any, payload: Payload | None = None) -> Pieces:
        """The pieces of a message; refused if any field is not as declared."""
        pieces: Pieces = {}
        self._write(self.cls, value, "", self._vector, pieces, self._like)
        for path, data in (payload or {}).items():
            del pieces[path]
            pieces[f"{path}~"] = piece(data)
        return pieces

    def decode(self, pieces: Mapping[str, Piece]) -> Any:
        """The message of these pieces; refused if any field is not as declared."""
        seen: set[str] = set()
        pieces = self._unpacked(pieces)
        value = self._read(self.cls, pieces, "", self._vector, seen, self._like)
        strange(pieces, seen)
        return value

    def _unpacked(self, pieces: Mapping[str, Piece]) -> Mapping[str, Piece]:
        """The pieces with vectors in place of what stands for them."""
        found = [path for path in self._packing if f"{path}~" in pieces]
        if not found:
            return pieces
        pieces, (length,), dtype = dict(pieces), self._vector.shape, self._vector.dtype
        for path in found:
            how = self._packing[path]
            size = packed_bytes(how, length, dtype)
            data = tensor(pieces.pop(f"{path}~"), Form(torch.uint8, (size,)), path)
            try:
                pieces[path] = piece(unpacked(data, how, length, dtype))
            except ValueError as why:
                raise Refused(f"field '{path}' cannot be unpacked: {why}") from None
        return pieces

    def _form(self, metadata: Mapping[str, Any]) -> Form:
        if "shape" not in metadata:
            return self._vector
        return Form(metadata["dtype"], tuple(metadata["shape"](self._owner, self._problem)))

    def sent(self, cls: Any, path: str) -> Iterator[tuple[str, Any, str, Form]]:
        """Name, hint, path and form of every field that is sent."""
        own = hints(cls)
        for f in fields(cls):
            if "derived" not in f.metadata:
                here = f"{path}.{f.name}" if path else f.name
                yield f.name, own[f.name], here, self._form(f.metadata)

    def _write(self, hint: Any, value: Any, path: str, form: Form, out: Pieces, like: Any) -> None:
        hint, optional, form = _shown(hint, form, like)
        if value is None and optional:
            return
        if get_origin(hint) is tuple and isinstance(value, tuple):
            kinds = _kinds(hint, len(value), path)
            out[f"{path}#"] = piece(torch.tensor(len(value)))
            for i, (kind, item) in enumerate(zip(kinds, value, strict=True)):
                self._write(kind, item, f"{path}.{i}", form, out, _item(like, i))
        elif is_dataclass(hint) and type(value) is hint:
            for name, kind, here, own in self.sent(hint, path):
                self._write(kind, getattr(value, name), here, own, out, getattr(like, name, None))
        elif hint in NUMBERS:
            out[path] = piece(_number(hint, value, path))
        elif hint is Tensor and isinstance(value, Tensor):
            if Form.like(value) != form:
                raise Refused(f"field '{path}' is {Form.like(value)}, declared is {form}")
            out[path] = piece(value)
        else:
            raise Refused(f"field '{path}' is a {type(value).__name__}, declared is {hint}")

    def _read(
        self,
        hint: Any,
        pieces: Mapping[str, Piece],
        path: str,
        form: Form,
        seen: set[str],
        like: Any,
    ) -> Any:
        hint, optional, form = _shown(hint, form, like)
        if optional and not _is_there(pieces, path):
            return None
        if is_dataclass(hint):
            make: Any = hint
            values = {
                name: self._read(kind, pieces, here, own, seen, getattr(like, name, None))
                for name, kind, here, own in self.sent(hint, path)
            }
            return make(**values)
        is_tuple = get_origin(hint) is tuple
        here = f"{path}#" if is_tuple else path
        if here not in pieces:
            raise Refused(f"field '{path}' is missing")
        seen.add(here)
        if is_tuple:
            number = int(tensor(pieces[here], Form(torch.int64, ()), here))
            kinds = _kinds(hint, number, path)
            return tuple(
                self._read(kind, pieces, f"{path}.{i}", form, seen, _item(like, i))
                for i, kind in enumerate(kinds)
            )
        if hint in NUMBERS:
            return tensor(pieces[here], Form(NUMBERS[hint], ()), here).item()
        if hint is not Tensor:
            raise Refused(f"field '{path}' is declared as {hint}, which cannot be sent")
        return tensor(pieces[here], form, here)


def _shown(hint: Any, form: Form, like: Any) -> tuple[Any, bool, Form]:
    """The hint, whether None will do too, and the form, as an example shows them."""
    hint, optional = plain(hint)
    if isinstance(like, Tensor):
        form = Form.like(like)
    if hint is Any:
        return (type(like), False, form) if like is not None else (Any, True, form)
    return hint, optional, form


def _item(like: Any, i: int) -> Any:
    return like[i] if isinstance(like, tuple) and i < len(like) else None  # type: ignore[reportUnknownVariableType]


def through(
    cls: type | None,
    value: Any,
    owner: Algorithm[Any, Any],
    problem: Problem,
    like: Any = None,
    side: Side | None = None,
    payload: Payload | None = None,
) -> Any:
    """A message as it arrives at the other end; None stands for nothing said or kept."""
    if cls is None or cls is type(None) or value is None:
        return None
    codec = Codec(cls, owner, problem, like, side)
    return codec.decode(codec.encode(value, payload))


def plain(hint: Any) -> tuple[Any, bool]:
    """The hint without its reduction, and whether None will do too."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, types.UnionType):
        return next(a for a in get_args(hint) if a is not type(None)), True
    return hint, False


def _is_there(pieces: Mapping[str, Piece], path: str) -> bool:
    if path in pieces or f"{path}#" in pieces:
        return True
    return any(other.startswith(f"{path}.") for other in pieces)


def _kinds(hint: Any, number: int, path: str) -> tuple[Any, ...]:
    kinds = get_args(hint)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        if not 0 <= number <= MOST_ITEMS:
            raise Refused(f"field '{path}' has {number} items, at most are {MOST_ITEMS}")
        return (kinds[0],) * number
    if number != len(kinds):
        raise Refused(f"field '{path}' has {number} items, declared are {len(kinds)}")
    return kinds


def _number(kind: Any, value: Any, path: str) -> Tensor:
    fits = isinstance(value, (int, float) if kind is float else kind)
    if not fits or (isinstance(value, int) and not -LARGEST <= value < LARGEST):
        raise Refused(f"field '{path}' is {value!r:.40}, declared is a {kind.__name__}")
    return torch.tensor(kind(value), dtype=NUMBERS[kind])


# Messages of which only means and sums are needed: one vector each, so that masks can be added.


def unfit(cls: type) -> str:
    """Why a message needs to be seen by itself; empty if its sum over the cohort will do."""
    how, own = reductions(cls), hints(cls)
    if any("derived" in f.metadata for f in fields(cls)):
        return f"{cls.__name__} is folded with fields computed from single replies"
    for f in fields(cls):
        kind, optional = plain(own[f.name])
        if how.get(f.name) not in ("mean", "sum"):
            return f"field '{f.name}' is needed from each client by itself"
        if optional:
            return f"field '{f.name}' is not in every reply"
        if kind is not Tensor and kind not in NUMBERS:
            return f"field '{f.name}' is no array or number"
    return ""


class SummedMessage:
    """The fields of a message as one vector of which the server needs the weighted mean only."""

    def __init__(self, cls: type, owner: Algorithm[Any, Any], problem: Problem) -> None:
        self._cls, how = cls, reductions(cls)
        self._parts: list[tuple[str, str, Form | None]] = []
        if why := unfit(cls):
            raise Refused(why)
        for name, hint, _, form in Codec(cls, owner, problem).sent(cls, ""):
            self._parts.append((name, how[name], form if plain(hint)[0] is Tensor else None))

    @property
    def size(self) -> int:
        return sum(1 if form is None else prod(form.shape) for _, _, form in self._parts)

    def vector(self, up: Any, weight: float) -> np.ndarray:
        """What is masked: a sum is divided by the weight that the mean will multiply it with."""
        pieces: list[np.ndarray] = []
        for name, how, form in self._parts:
            value = getattr(up, name)
            if form is not None and Form.like(value) != form:
                raise Refused(f"field '{name}' is {Form.like(value)}, declared is {form}")
            flat = torch.as_tensor(value).detach().double().reshape(-1).numpy()
            pieces.append(flat / weight if how == "sum" else flat)
        return np.concatenate(pieces)

    def message(self, mean: np.ndarray, weight: float) -> Any:
        """The reduced message of a weighted mean; `weight` is that of all who are in it."""
        if mean.shape != (self.size,):
            raise Refused(f"the sum has shape {mean.shape}, declared are {self.size} numbers")
        reduced, end = object.__new__(self._cls), 0
        for name, how, form in self._parts:
            length = 1 if form is None else prod(form.shape)
            part = mean[end : end + length] * (weight if how == "sum" else 1.0)
            end += length
            value: Any = float(part[0])
            if form is not None:
                value = torch.from_numpy(part.copy()).reshape(form.shape).to(form.dtype)
            object.__setattr__(reduced, name, value)
        return reduced
