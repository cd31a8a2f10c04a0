"""A digest of any Python value by its content: the same in every process, never an address.

Two digests are kept apart. `values` is of numbers, texts, tensors and what the reader's own objects
hold: it does not depend on the versions of Python or torch. `code` is of compiled functions and of
what objects of libraries hold, which such versions may change.
"""

from __future__ import annotations

import dis
import enum
import functools
import hashlib
import random
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path, PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedrift.core.isolation import INTERNAL

HOME = Path(__file__).parents[1]
MOST = 200_000  # objects that are looked into; what else hangs on them decides nothing
ATOMS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format, np.dtype, PurePath, range)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Of a class: what Python or a decorator puts there, and what says nothing about what it does.
UNTOLD = frozenset(
    "__dict__ __weakref__ __doc__ __module__ __qualname__ __annotations__ __firstlineno__ "
    "__static_attributes__ __abstractmethods__ _abc_impl __dataclass_fields__ __match_args__ "
    "__dataclass_params__ __parameters__ __orig_bases__ __annotate__ __annotations_cache__ "
    "__annotate_func__ __slots__ __slotnames__".split()
)

# Bytes at memory speed: sums of words with odd factors, block by block, then a real hash of these.

BLOCK = 8192  # words
_FACTORS = np.random.Generator(np.random.PCG64(0)).integers(0, 1 << 63, BLOCK, np.uint64) * 2 + 1
ROWS = 4 << 20  # bytes brought into one order at a time


def array_digest(array: np.ndarray) -> bytes:
    """Of dtype, shape and every element; ten times as fast as SHA-256 of its bytes."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
    if array.dtype.hasobject:
        raise TypeError("an array of objects has no bytes of its own")
    step = max(1, ROWS // max(1, array[:1].nbytes)) if array.ndim else 1
    parts = range(0, len(array), step) if array.ndim else range(1)
    for start in parts:
        some = array[start : start + step] if array.ndim else array
        words = np.ascontiguousarray(some).reshape(-1).view(np.uint8)
        whole = len(words) // (8 * BLOCK) * 8 * BLOCK
        blocks = words[:whole].view(np.uint64).reshape(-1, BLOCK)
        digest.update(np.einsum("ij,j->i", blocks, _FACTORS).tobytes())
        digest.update(words[whole:].tobytes())
    return digest.digest()


def tensor_digest(x: Tensor) -> bytes:
    """The same for any memory format and device: images always with their channels last."""
    x = x.detach().cpu()
    if x.is_sparse or x.is_quantized:
        x = x.to_dense() if x.is_sparse else x.dequantize()
    x = x.permute(0, 2, 3, 1) if x.dim() == 4 else x
    plain = x.resolve_conj().resolve_neg()
    if plain.dtype in (torch.bfloat16, *_TINY):
        plain = plain.contiguous().view(torch.int16 if x.itemsize == 2 else torch.int8)
    return array_digest(plain.numpy()) + str(x.dtype).encode()


_TINY = tuple(kind for name, kind in vars(torch).items() if name.startswith("float8_"))


def is_library(name: str | None) -> bool:
    """Whether a module is of Python, of fedrift, or installed: its version says what it does."""
    top = (name or "builtins").partition(".")[0]
    if top == "__main__":
        return False
    if top in sys.stdlib_module_names or top == "fedrift":
        return True
    file = getattr(sys.modules.get(name or ""), "__file__", None)
    if file is None:
        return name not in sys.modules or top in sys.builtin_module_names
    return any(Path(file).is_relative_to(place) for place in _places())


@functools.cache
def _places() -> tuple[Path, ...]:
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    return (HOME, *(Path(sysconfig.get_paths()[kind]) for kind in kinds))


class Digest:
    """What has been added so far, as two digests."""

    def __init__(self) -> None:
        self._values, self._code = hashlib.sha256(), hashlib.sha256()
        self._seen: dict[int, tuple[int, Any]] = {}  # keeps them, so that no address is used twice
        self._weighs = True

    @staticmethod
    def of(*values: Any) -> tuple[str, str]:
        """The digests of values and of code."""
        digest = Digest()
        for value in values:
            digest.add(value)
        return digest.digests()

    def digests(self) -> tuple[str, str]:
        return self._values.hexdigest()[:16], self._code.hexdigest()[:16]

    def _put(self, soft: bool, *words: Any) -> None:
        (self._code if soft else self._values).update(repr(words).encode("utf-8", "replace"))

    def add(self, value: Any, soft: bool = False) -> None:
        """Put in a value; `soft` if a library holds it."""
        if isinstance(value, ATOMS) and not isinstance(value, enum.Enum):
            self._put(soft, type(value).__name__, value)
        elif isinstance(value, (Tensor, np.ndarray, np.generic)):
            self._add_array(value, soft)
        elif isinstance(value, NAMED):
            self._put(soft, type(value).__name__, str(value))
        elif isinstance(value, ModuleType):
            self._put(soft, "module", value.__name__)
        elif not self._is_known(value, soft):
            self._add_object(value, soft)

    def _is_known(self, value: Any, soft: bool) -> bool:
        """It has been put in before, or too much has."""
        if id(value) in self._seen or len(self._seen) >= MOST:
            self._put(soft, "again", self._seen.get(id(value), (-1, None))[0])
            return True
        self._seen[id(value)] = len(self._seen), value
        return False

    def _add_array(self, value: Any, soft: bool) -> None:
        if isinstance(value, nn.Parameter) and not self._weighs:
            self._put(soft, "parameter", tuple(value.shape))
        elif isinstance(value, Tensor):
            known = b"lazy" if is_lazy(value) or value.is_meta else tensor_digest(value)
            self._put(soft, "tensor", known)
        elif value.dtype.hasobject:
            self._put(soft, "objects", value.shape)
            self._add_all(value.reshape(-1).tolist(), soft)
        else:
            self._put(soft, "array", array_digest(np.asarray(value)))

    def _add_all(self, values: Sequence[Any], soft: bool) -> None:
        self._put(soft, len(values))
        for value in values:
            self.add(value, soft)

    def _add_object(self, value: Any, soft: bool) -> None:
        if isinstance(value, type):
            self._add_class(value, soft)
        elif isinstance(value, enum.Enum):
            self._put(soft, type(value).__qualname__, value.name)
        elif isinstance(value, FunctionType):
            self._add_function(value, soft)
        elif isinstance(value, MethodType):
            self._put(soft, "method")
            self._add_all((value.__func__, value.__self__), soft)
        elif isinstance(value, functools.partial):
            self._put(soft, "partial")
            self._add_all((value.func, value.args, value.keywords), soft)
        elif isinstance(value, CodeType):
            self._add_code(value)
        elif isinstance(value, (staticmethod, classmethod)):
            self.add(value.__func__, soft)
        elif isinstance(value, property):
            self._add_all((value.fget, value.fset), soft)
        elif isinstance(value, (torch.Generator, np.random.Generator, random.Random)):
            self._put(soft, "generator")
            self.add(_state_of(value), soft)
        elif isinstance(value, Mapping):
            self._add_mapping(value, soft)
        elif isinstance(value, Set):
            members = sorted(Digest.of(member) for member in value)
            self._put(soft, "set", members)
        elif isinstance(value, Sequence) and not hasattr(value, "__dict__"):
            self._put(soft, type(value).__name__)
            self._add_all(value, soft)
        elif hasattr(value, "__wrapped__"):
            self.add(getattr(value, "__wrapped__"), soft)  # noqa: B009
        elif isinstance(value, BuiltinFunctionType) or not hasattr(type(value), "__dict__"):
            self._put(soft, getattr(value, "__module__", ""), getattr(value, "__qualname__", ""))
        else:
            self._add_instance(value, soft)

    def _add_mapping(self, value: Mapping[Any, Any], soft: bool) -> None:
        self._put(soft, "mapping", len(value))
        keys = list(value)
        for key in sorted(keys) if all(isinstance(k, str) for k in keys) else keys:
            self.add(key, soft)
            self.add(value[key], soft)

    def _add_function(self, value: FunctionType, soft: bool) -> None:
        is_own = not is_library(value.__module__)
        self._put(soft, "function", value.__name__ if is_own else value.__qualname__)
        self._add_all(value.__defaults__ or (), soft)
        self._add_mapping(value.__kwdefaults__ or {}, soft)
        memory = Memory.of(value.__code__) if is_own else Memory()
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            self._put(soft, "holds", name)
            try:
                held = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            if not memory.has(name, held):
                self.add(held, soft)
        if is_own:
            self._add_code(value.__code__, value.__doc__)
            for name in sorted(memory.reads & value.__globals__.keys()):
                self._put(soft, "uses", name)
                if not memory.has(name, value.__globals__[name]):
                    self.add(value.__globals__[name], soft)

    def _add_code(self, code: CodeType, doc: str | None = None) -> None:
        self._put(True, code.co_code, code.co_names, code.co_exceptiontable)
        constants = code.co_consts
        if doc is not None and constants and constants[0] == doc:
            constants = constants[1:]
        for constant in constants:
            if isinstance(constant, CodeType):
                self._add_code(constant)
            else:
                self._put(True, Digest.of(constant))

    def _add_class(self, value: type, soft: bool) -> None:
        is_own = not is_library(value.__module__)
        self._put(soft, "class", value.__qualname__ if not is_own else value.__name__)
        if not is_own:
            return
        for base in value.__bases__:
            self.add(base, soft)
        for name, held in sorted(vars(value).items()):
            if name not in UNTOLD:
                self._put(soft, name)
                self.add(held, soft)

    def _add_instance(self, value: Any, soft: bool) -> None:
        cls = type(value)
        soft = soft or (is_library(cls.__module__) and not cls.__module__.startswith("fedrift"))
        self._put(soft, "object")
        self.add(cls, soft)
        if cls.__module__.partition(".")[0] in sys.stdlib_module_names:
            shown = repr(value)
            self._put(soft, "" if " at 0x" in shown else shown)
        elif isinstance(value, nn.Module):
            self._add_module(value, soft)
        elif is_dataclass(value):
            for name, held in _told_fields(value):
                self._put(soft, name)
                self.add(held, soft)
        else:
            slots = [s for base in cls.__mro__ for s in getattr(base, "__slots__", ())]
            held = {s: getattr(value, s) for s in slots if isinstance(s, str) and hasattr(value, s)}
            held |= getattr(value, "__dict__", {})
            forgets = _counters(cls)
            self._add_mapping({k: v for k, v in held.items() if k not in forgets}, soft)

    def _add_module(self, module: nn.Module, soft: bool) -> None:
        """Everything it holds, parameters and buffers by value."""
        for part, tensors in (("weights", module._parameters), ("buffers", module._buffers)):
            self._put(False, part)
            self._add_mapping(tensors, False)
        self.add_form(module, soft)
        for name, inner in module._modules.items():
            self._put(soft, name)
            self.add(inner, soft)

    def add_form(self, module: nn.Module, soft: bool) -> None:
        """What a module holds besides weights, buffers and other modules; their hooks."""
        self._add_mapping({k: v for k, v in vars(module).items() if k not in INTERNAL}, soft)
        for hooks in HOOKS:
            self._add_all(list(getattr(module, hooks, {}).values()), soft)

    def add_model(self, module: nn.Module) -> None:
        """A model whose weights and buffers are put in elsewhere: its layers and their code."""
        self._weighs = False
        for name, part in module.named_modules():
            soft = is_library(type(part).__module__)
            self._put(soft, name)
            self.add(type(part), soft)
            self.add_form(part, soft)


def _state_of(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state


# What a function counts or collects while it is called is its memory, not what it was made from:
# the same call, made once more in the same process, finds it changed.

CHANGES = frozenset("append extend add update pop popitem clear insert remove setdefault".split())


@dataclass(frozen=True)
class Memory:
    """What a function, and those inside it, look up in their module, and what they change."""

    reads: frozenset[str] = frozenset()
    sets: frozenset[str] = frozenset()
    """Variables outside it that it gives another value."""
    writes: bool = False
    """It changes lists, dicts or sets, whichever they are."""

    @staticmethod
    def of(code: CodeType) -> Memory:
        reads, sets, writes = set[str](), set[str](), False
        for step in _steps(code):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                reads.add(step.argval)
            elif step.opname in ("STORE_GLOBAL", "STORE_DEREF"):
                sets.add(step.argval)
            changes = step.opname.startswith("LOAD_") and step.argval in CHANGES
            writes = writes or changes or step.opname == "STORE_SUBSCR"
        return Memory(frozenset(reads), frozenset(sets), writes)

    def has(self, name: str, value: Any) -> bool:
        return name in self.sets or (self.writes and isinstance(value, (list, dict, set)))


def _steps(code: CodeType) -> Iterator[dis.Instruction]:
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _steps(constant)


def _counters(cls: type) -> set[str]:
    """Attributes that an object of the reader's gives another value when it is called."""
    calls = [getattr(cls, name, None) for name in ("__call__", "forward")]
    codes = [f.__code__ for f in calls if isinstance(f, FunctionType)]
    own = [] if is_library(cls.__module__) else codes
    return {s.argval for code in own for s in _steps(code) if s.opname == "STORE_ATTR"}


def _told_fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Fields of a dataclass that are not at their default: a new field changes no old digest."""
    for field in fields(value):
        held = getattr(value, field.name, None)
        usual = field.default
        if field.default_factory is not MISSING:
            usual = field.default_factory()
        if usual is MISSING or Digest.of(held) != Digest.of(usual):
            yield field.name, held
