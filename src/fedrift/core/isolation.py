"""What a visit may depend on, and how everything else is kept out of it.

A visit, and the evaluation of one chunk, is a function of
- the weights, messages and client state it is given,
- the buffers it is given (running statistics) and the parameters frozen during the run,
- the samples of its client or chunk,
- the seed, purpose, round and client from which every random number is drawn,
- torch's own settings (`TorchSettings`), which are the same in every process of a run.

It may not depend on who was visited before in the same process. A module can remember more than
its parameters: buffers, frozen parameters that `forward` moves, counters and hidden states kept as
attributes, a generator of its own. `Memory` puts all of that back before every visit and chunk.
"""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrift.rng import torch_seed

INTERNAL = frozenset(vars(nn.Module()))  # what every module has: its tables, hooks, mode
CONSTANT = (int, float, complex, str, bytes, bool, type(None), type, torch.dtype, torch.device)
CONTAINER = (list, dict, set, tuple)


class _Slot:
    """A tensor in one of a module's tables: the object and the value that it begins with."""

    def __init__(
        self, table: dict[str, Any], key: str, is_buffer: bool, known: Tensor | None = None
    ) -> None:
        """`known` holds the value already and is never written."""
        self.table, self.key, self._is_buffer = table, key, is_buffer
        self.tensor: Tensor = table[key]
        self.value = self.tensor.detach().clone() if known is None else known
        self._version = self.tensor._version

    @property
    def _may_differ(self) -> bool:
        # Batch normalisation moves its buffers without telling torch's version counter; frozen
        # parameters can be many, and whoever writes to them is counted.
        is_other = self.table.get(self.key) is not self.tensor
        return is_other or self._is_buffer or self.tensor._version != self._version

    def put_back(self) -> None:
        if self._may_differ:
            self.table[self.key] = self.tensor
            self.tensor.copy_(self.value)
            self._version = self.tensor._version

    @property
    def has_moved(self) -> bool:
        """It holds other values than in the beginning."""
        now = self.table.get(self.key)
        return self._may_differ and not (isinstance(now, Tensor) and _equal(now, self.value))

    @property
    def is_reshaped(self) -> bool:
        now = self.table.get(self.key)
        return isinstance(now, Tensor) and now.shape != self.value.shape


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.nan_to_num(), b.nan_to_num())


class Memory:
    """All that a module remembers besides the parameters it trains."""

    def __init__(
        self, module: nn.Module, trained: set[str], known: Mapping[str, Tensor] | None = None
    ) -> None:
        """`trained` are the names of the parameters that the run moves itself; `known` are values
        of frozen ones that somebody keeps, so that no copy is made."""
        self._slots: dict[str, _Slot] = {}
        self._again: list[_Slot] = []
        """Further places of a tensor that has a name already, as `named_buffers` counts."""
        self._tables: list[tuple[dict[str, Any], frozenset[str]]] = []
        self._attributes: list[tuple[dict[str, Any], dict[str, Callable[[], Any]]]] = []
        moved = {id(p) for name, p in module.named_parameters() if name in trained}
        named = set[int]()
        for prefix, part in module.named_modules(remove_duplicate=True):
            at = f"{prefix}." if prefix else ""
            for table, is_buffer in ((part._buffers, True), (part._parameters, False)):
                self._tables.append((table, frozenset(table)))
                for key, tensor in table.items():
                    if tensor is None or id(tensor) in moved:  # tied: trained under another name
                        continue
                    value = None if is_buffer else (known or {}).get(f"{at}{key}")
                    slot = _Slot(table, key, is_buffer, value)
                    if id(tensor) in named:
                        self._again.append(slot)
                    else:
                        self._slots[f"{at}{key}"] = slot
                    named.add(id(tensor))
            own = {k: v for k, v in vars(part).items() if k not in INTERNAL}
            self._attributes.append((vars(part), {k: _keeper(v) for k, v in own.items()}))

    @torch.no_grad()
    def put_back(self) -> None:
        """The module is as it was before its first visit, the trained parameters excepted."""
        for table, keys in self._tables:
            if len(table) != len(keys):  # a buffer that `forward` has made
                for key in table.keys() - keys:
                    del table[key]
        for slot in (*self._slots.values(), *self._again):
            slot.put_back()
        for now, kept in self._attributes:
            if len(now) - len(INTERNAL & now.keys()) != len(kept):
                for key in now.keys() - kept.keys() - INTERNAL:
                    del now[key]
            for key, keep in kept.items():
                value = keep()
                if now.get(key, keep) is not value:
                    now[key] = value

    def tensor(self, name: str) -> Tensor:
        """A buffer as the module holds it now, also when `forward` has put another in its place."""
        slot = self._slots[name]
        return slot.table[slot.key]

    @torch.no_grad()
    def load(self, name: str, value: Tensor) -> None:
        slot = self._slots[name]
        slot.table[slot.key] = slot.tensor
        slot.tensor.copy_(value)

    def moved(self) -> tuple[str, ...]:
        """Names of what has other values than in the beginning."""
        return tuple(name for name, slot in self._slots.items() if slot.has_moved)

    def reshaped(self) -> tuple[str, ...]:
        """Names of buffers that have another shape than in the beginning."""
        return tuple(name for name, slot in self._slots.items() if slot.is_reshaped)


def _keeper(value: Any) -> Callable[[], Any]:
    """What gives an attribute the value it had, whatever was done to it in between."""
    if isinstance(value, torch.Generator):
        return _kept_generator(value)
    if (
        isinstance(value, Tensor)
        and not isinstance(value, nn.Parameter)
        and not value.requires_grad
    ):
        return _kept_tensor(value)
    if isinstance(value, np.ndarray):
        return _kept_array(value)
    if isinstance(value, (np.random.Generator, np.random.RandomState, random.Random)) or (
        isinstance(value, CONTAINER) and not isinstance(value, tuple) and _is_plain(value)
    ):
        with suppress(Exception):
            return _kept_copy(value)
    return lambda: value


def _is_plain(value: Any) -> bool:
    """Holds neither modules nor parameters, which must stay the same objects."""
    if isinstance(value, dict):
        return all(_is_plain(v) for pair in value.items() for v in pair)
    if isinstance(value, CONTAINER):
        return all(map(_is_plain, value))
    return isinstance(value, CONSTANT) or (
        isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and value.is_leaf
    )


def _kept_generator(value: torch.Generator) -> Callable[[], Any]:
    state = value.get_state()

    def keep() -> torch.Generator:
        if not torch.equal(value.get_state(), state):
            value.set_state(state)
        return value

    return keep


def _kept_tensor(value: Tensor) -> Callable[[], Any]:
    first, version = value.clone(), [value._version]

    def keep() -> Tensor:
        if value._version != version[0]:
            value.copy_(first)
            version[0] = value._version
        return value

    return keep


def _kept_array(value: np.ndarray) -> Callable[[], Any]:
    first = value.copy()

    def keep() -> np.ndarray:
        if not np.array_equal(value, first):
            np.copyto(value, first)
        return value

    return keep


def _kept_copy(value: Any) -> Callable[[], Any]:
    """A container or generator: compared where that is cheap and safe, else made anew."""
    first = copy.deepcopy(value)
    simple = isinstance(value, CONTAINER) and not _holds_tensors(value)

    def keep() -> Any:
        nonlocal value
        if not simple or value != first:
            value = copy.deepcopy(first)
        return value

    return keep


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_tensors, value.values()))
    if isinstance(value, CONTAINER):
        return any(map(_holds_tensors, value))
    return isinstance(value, Tensor)


def seed_all(seed: int, purpose: str, round: int = 0, client: int = 0) -> None:
    """Every generator that user code may draw from begins anew: torch's, numpy's, Python's."""
    seed_alike(torch_seed(seed, purpose, round, client) >> 1)


def seed_alike(number: int) -> None:
    """The same with a number that is known."""
    torch.default_generator.manual_seed(number)
    np.random.seed(number & 0xFFFFFFFF)
    random.seed(number)


_turn = threading.RLock()
_has_turn = threading.local()


@contextmanager
def own_turn() -> Generator[None]:
    """Calls in several threads wait for each other: torch, numpy and Python have one generator for
    a whole process, and each of two runs would draw what is the other's."""
    if getattr(_has_turn, "is_shared", False):
        yield
        return
    with _turn:
        yield


@contextmanager
def shared_turn() -> Generator[None]:
    """A thread that works for the one whose turn it is."""
    _has_turn.is_shared = True
    try:
        yield
    finally:
        _has_turn.is_shared = False


@contextmanager
def borrowed_generators() -> Generator[None]:
    """The caller's generators are given back as they were."""
    ours, numbers, words = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(ours)
        np.random.set_state(numbers)
        random.setstate(words)


_drawing = threading.RLock()


@contextmanager
def drawing_alone(seed: int | None = None) -> Generator[None]:
    """The generators borrowed to make or try a model, torch's from a seed: nobody else draws
    meanwhile. Runs of a comparison are made in threads, and the generators are everybody's."""
    with _drawing, borrowed_generators():
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def at_server(seed: int, purpose: str = "server", round: int = 0) -> Generator[None]:
    """What the server does, and what functions of the reader's do there: the generators begin anew
    and no other thread draws, so what is drawn depends neither on workers nor on other runs."""
    with _drawing:
        seed_all(seed, purpose, round)
        yield


@contextmanager
def away_from_server(seed: int, round: int, number: int) -> Generator[None]:
    """The `number`-th exchange of a round: visits may draw in this process meanwhile."""
    try:
        _drawing.release()
        yield
    finally:
        _drawing.acquire()
        seed_all(seed, "server", round, number)


@contextmanager
def one_thread() -> Generator[None]:
    """Results depend on the number of threads, so there is one. The caller's number of threads
    and generators, which models draw from, are restored."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with borrowed_generators():
            yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class TorchSettings:
    """Switches of torch that decide the last bits; workers take them over from their parent."""

    values: Mapping[str, Any]

    @staticmethod
    def current() -> TorchSettings:
        return TorchSettings({name: read() for name, (read, _) in SWITCHES.items()})

    def apply(self) -> None:
        for name, value in self.values.items():
            read, write = SWITCHES[name]
            if read() != value:
                write(value)


def _flushes() -> bool:
    """Whether numbers too small to be normal become 0: torch has no way to ask but to try."""
    return bool(torch.full((1,), 1e-40).mul(0.5).item() == 0.0)


def _set_mkldnn(is_on: bool) -> None:
    torch.backends.mkldnn.set_flags(is_on)


def _set_deterministic(mode: int) -> None:
    torch.use_deterministic_algorithms(mode > 0, warn_only=mode == 1)


SWITCHES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "default_dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "flush_denormal": (_flushes, torch.set_flush_denormal),
    "mkldnn": (lambda: torch.backends.mkldnn.enabled, _set_mkldnn),
    "matmul_precision": (
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    "deterministic": (torch.get_deterministic_debug_mode, _set_deterministic),
    "attention_fastpath": (
        torch.backends.mha.get_fastpath_enabled,
        torch.backends.mha.set_fastpath_enabled,
    ),
    "autocast": (
        lambda: torch.is_autocast_enabled("cpu"),
        lambda on: torch.set_autocast_enabled("cpu", on),
    ),
    "autocast_dtype": (
        lambda: torch.get_autocast_dtype("cpu"),
        lambda kind: torch.set_autocast_dtype("cpu", kind),
    ),
}
