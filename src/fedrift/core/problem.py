"""The task as everyone may know it: the model's shape and start, its loss, who takes part."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedrift.core.compression import Compression
from fedrift.core.embeddings import EMBEDDINGS, beyond
from fedrift.core.flat import (
    NOTHING,
    Batch,
    Inputs,
    Layout,
    Loss,
    Rest,
    Vec,
    cloned,
    count,
    flatten,
    map_tree,
)
from fedrift.core.flat_model import FlatModel, call, copied, fresh
from fedrift.core.isolation import Memory, drawing_alone, seed_all
from fedrift.core.local import LocalStep
from fedrift.errors import InputError

TRIED = 32
"""Samples of the batch that a model is tried on before the first round."""
Part = Literal["all", "head", "features"]
Stack = Literal["auto", "off", "on"]


@dataclass(frozen=True)
class Problem:
    """What server and clients agree on before the first round. It holds no data."""

    make: Callable[[], nn.Module]  # makes the model; called once in every process
    loss: Loss  # of an output and its targets
    w0: Vec  # initial weights of what is trained, one vector
    layout: Layout  # names and shapes of the parameters in w
    rest: Rest  # frozen parameters and buffers by name
    population: int  # number of clients
    participation: float
    """C of the papers, as configured: the fraction, or clients a round ÷ all clients."""
    rounds: int  # of the run as configured
    samples: int = 0
    """Of all clients together."""
    is_full: bool = False
    """Everybody takes part in every round."""
    moving: tuple[str, ...] = ()
    """Names of the buffers that training moves: running statistics."""
    own: Layout = NOTHING
    """Parameters that are trained with the others but stay at the client."""
    own_moving: tuple[str, ...] = ()
    """Buffers that training moves and that stay at the client."""
    part: Part = "all"  # which part of the model is trained
    classes: int | None = None  # of the labels; None where targets are none
    head: str | None = None  # name of the last layer, where the model has one
    feature_dim: int | None = None  # width of what enters the head
    device: str = "cpu"  # where training happens
    stack: Stack = "auto"
    """Whether clients are trained in stacks: where it pays, never, or wherever it can be."""
    example: Inputs | None = None
    """Two inputs, for a lazy module that takes its shapes from them."""
    writes_input: bool = False
    """The module changes what it is given, so it is given copies."""
    compression: Compression | None = None
    """How vectors are packed where they travel."""
    is_base_still: bool = False
    """Running statistics belong to what is frozen: layers that have them do not move them."""
    sent_once: int = 0
    """Bytes of what is frozen that every client is sent before its first visit."""
    base: Callable[[], Rest] | None = None
    """Gives a model what is frozen as its own without a copy: memory that is everybody's until it
    is written. Each process has its own way to it, so it is not sent."""
    finished: Callable[[nn.Module], nn.Module] | None = None
    """Makes the module that is handed out of the one that was trained."""
    tried: tuple[str, str] = ("", "")
    """What was tried (`trial`) and the hash of the gradient of the first samples, as the process
    that made the task has it; empty where it was not tried."""
    _bound: list[tuple[FlatModel, LocalStep]] = field(default_factory=list, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bound": [], "base": None}  # each process binds its own model

    def _bind(self) -> tuple[FlatModel, LocalStep]:
        if not self._bound:
            model = FlatModel(
                self.make,
                self.layout,
                self.rest,
                self.loss,
                dtype=self.w0.dtype,
                device=self.device,
                moving=self.moving,
                own=self.own,
                own_moving=self.own_moving,
                head=self.head,
                example=self.example,
                writes_input=self.writes_input,
                base=None if self.base is None else self.base(),
            )
            self._bound.append((model, LocalStep(model)))
        return self._bound[0]

    @property
    def model(self) -> FlatModel:
        """This process's model, bound on first use."""
        return self._bind()[0]

    @property
    def step(self) -> LocalStep:
        return self._bind()[1]

    def first_gradient(self, batch: Batch) -> Vec:
        """At w0, as a visit has it: nothing is remembered, every generator begins anew."""
        model = self.model
        model.w.copy_(self.w0)
        model.module.train()
        model.begin((), {}, 1.0)
        seed_all(0, "probe")
        try:
            return model.grad(batch).clone()
        finally:
            model.begin((), {}, 1.0)

    def first_outputs(self, x: Inputs) -> list[str]:
        """Hashes of what it gives at w0 when it is evaluated, under the same conditions."""
        model = self.model
        model.begin((), {}, 1.0)
        seed_all(0, "probe")
        try:
            found: list[Any] = []
            map_tree(found.append, model.logits(self.w0, x))
            return [hash_of(leaf.reshape(-1)) for leaf in found if isinstance(leaf, Tensor)]
        finally:
            model.begin((), {}, 1.0)

    def trial(self) -> str:
        """What the first gradient belongs to: the weights, and what is done with them."""
        view = (self.layout.names, self.own.names, self.moving, self.is_base_still, self.part)
        return f"{hash_of(self.w0)} {view}"

    def check_tried(self, x: Inputs, y: Any) -> None:
        """Refuses to compute where the same samples give another gradient than where the task was
        made: something there is not what it is here."""
        trial, gave = self.tried
        if not gave or trial != self.trial():  # it was another view of the task
            return
        if hash_of(self.first_gradient((x, y))) != gave:
            raise InputError(
                f"model: {type(self.model.module).__name__} gives other gradients in a worker than "
                "in the process that started it; what was changed there while it ran (a method put "
                "in the place of another, a setting of a library) is not known to workers: use "
                "workers=0, or make the change in the module that defines the model"
            )

    def module(self, w: Vec, moved: Mapping[str, Tensor]) -> nn.Module:
        """A fresh module with the weights w and what else a run has moved, free of any view."""
        with drawing_alone():
            module = fresh(self.make).to(dtype=self.w0.dtype)
        if self.example is not None:
            call(module.eval(), self.example)
        tensors = {**self.rest, **moved, **self.layout.named(w)}
        with torch.no_grad():
            for name, value in (*module.named_parameters(), *module.named_buffers()):
                if name in tensors:
                    value.copy_(tensors[name])
        return module if self.finished is None else self.finished(module)

    def head_names(self) -> tuple[str, str]:
        """Names of the head's weight and bias."""
        if self.head is None or self.classes is None:
            raise InputError(
                "this algorithm needs a classifier head whose input are the features of a sample, "
                "and the model's output is not that of its last Linear, one row for each sample: "
                "name the layer with head='…'; what stays at clients can be said by its "
                "parameters' names instead, such as keep(fedavg):what=fc.*"
            )
        prefix = f"{self.head}." if self.head else ""  # the module itself may be the layer
        return f"{prefix}weight", f"{prefix}bias"

    def put_head(self, w: Vec, head: Tensor) -> Vec:
        """w with the classifier replaced: head is features(+1 for the bias) × classes."""
        weight, bias = self.head_names()
        new = w.clone()
        views = self.layout.named(new)
        views[weight].copy_(head[: self.feature_dim].T)
        if bias in views:
            has_bias = len(head) > (self.feature_dim or 0)
            views[bias].copy_(head[-1] if has_bias else torch.zeros_like(head[-1]))
        return new

    def view(self, part: Part) -> Problem:
        """The same task with only a part of the model trained."""
        seen = self.cut(lambda name: self._belongs(name, part))
        if not seen.layout.names:
            raise InputError(
                f"train={part}: nothing of the model is trained there, which has its head alone; "
                "use train=all, or a model with layers before its head"
            )
        return replace(seen, part=part)

    def keeping(self, names: Collection[str]) -> Problem:
        """The same task with some parameters and buffers that stay at the client."""
        if not names:
            return self
        return replace(
            self.cut(lambda name: name not in names),
            own=self.layout.select(lambda name: name in names),
            moving=tuple(name for name in self.moving if name not in names),
            own_moving=tuple(name for name in self.moving if name in names),
            stack="off",  # rows hold one vector each
        )

    def matching(self, pattern: str) -> list[str]:
        """Trained parameters and moving buffers that are meant: `head`, `norm` (BatchNorm layers),
        `all`, `none`, or a name with * and ?; a layer's name stands for all that is in it."""
        return [n for n in (*self.layout.names, *self.moving) if self._matches(pattern, n)]

    def _matches(self, pattern: str, name: str) -> bool:
        if pattern in ("all", "none"):
            return pattern == "all"
        if pattern == "head":
            return self._is_in_head(name)
        layer, _, _ = name.rpartition(".")
        if pattern == "norm":
            owner = self.model.module.get_submodule(layer)
            return isinstance(owner, nn.modules.batchnorm._BatchNorm)
        return fnmatchcase(name, pattern) or fnmatchcase(layer, pattern)

    def own_start(self) -> tuple[Vec, tuple[Tensor, ...]]:
        """What a client begins with of that which stays there: parameters, and buffers."""
        values = [self.rest[name] for name in self.own.names]
        own = flatten(values) if values else self.w0.new_empty(0)
        return own, tuple(self.rest[name] for name in self.own_moving)

    def cut(self, travels: Callable[[str], bool]) -> Problem:
        """The task with fewer parameters in the vector; the others begin as they are in w0."""
        layout, named = self.layout.select(travels), self.layout.named(self.w0)
        rest = {**self.rest, **{n: v for n, v in named.items() if n not in layout.names}}
        w0 = flatten([named[name] for name in layout.names]) if layout.names else self.w0[:0]
        return replace(self, w0=w0, layout=layout, rest=rest, _bound=[])

    def _belongs(self, name: str, part: Part) -> bool:
        return part == "all" or self._is_in_head(name) == (part == "head")

    def _is_in_head(self, name: str) -> bool:
        """Also of the factors that an adapter gives the head."""
        weight, _ = self.head_names()  # refuses a model without one
        return name.startswith(weight.removesuffix("weight"))


def hash_of(v: Vec) -> str:
    """Of the bits of a vector."""
    return hashlib.sha256(v.detach().cpu().contiguous().view(torch.uint8).numpy().data).hexdigest()


def _made(make: Callable[[], nn.Module]) -> nn.Module:
    """What the reader's function makes; one that wants arguments is refused."""
    try:
        inspect.signature(make).bind()
    except TypeError as error:
        name = getattr(make, "__name__", type(make).__name__)
        raise InputError(
            f"model: {name} cannot be called without arguments ({error}); give a function that "
            f"makes it, such as lambda: {name}(…)"
        ) from None
    except ValueError:  # its arguments are not known
        pass
    return make()


def define(
    make: Callable[[], nn.Module],
    loss: Loss,
    probe: Batch,
    *,
    init_seed: int,
    population: int,
    participation: float,
    rounds: int,
    samples: int = 0,
    is_full: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    stack: Stack = "auto",
    head: str | None = None,
    classification: bool = True,
    more: Inputs | None = None,
) -> Problem:
    """Build the model once, look at it with a probe batch (and `more` inputs), and describe it."""
    with drawing_alone(init_seed):
        original = _made(make)
        module = copied(original)
        if not isinstance(module, nn.Module):
            raise InputError(f"model: the factory returned a {type(module).__name__}, not a module")
        _check_real(module)
        module = module.to(dtype=dtype)
        lazy = any(map(is_lazy, (*module.parameters(), *module.buffers())))
        if lazy:
            _probe_output(module.eval(), probe[0])
        before = {n: b.detach().clone() for n, b in module.named_buffers()}
        layout = Layout.of(module)
        if not layout.size:
            raise InputError(f"model: {type(module).__name__} has no trainable parameters")
        memory = Memory(module, set(layout.names))
        named = {name for name, _ in module.named_parameters()}
        given = cloned(probe[0])
        output = _probe_output(module.train(), given, loss)
        writes = not same(given, probe[0])
        _check_settled(module, named)
        w0 = flatten([p for p in module.parameters() if p.requires_grad])
        if more is not None:
            _perturb(module)  # some buffers move only when weights do, some for larger batches
            _probe_output(module, cloned(more))
    moving = memory.moved()
    if grown := memory.reshaped():
        raise InputError(
            f"model: the buffer '{grown[0]}' of {type(module).__name__} gets another shape in "
            "forward, and what clients send has one: register it in the shape that it will have"
        )
    memory.put_back()
    parameters = dict(module.named_parameters())
    frozen = {n: p.detach().clone() for n, p in parameters.items() if n not in layout.names}
    classes = _classes(output) if classification else None
    head = _find_head(module) if head is None else head
    width = None
    if classes and head is not None:
        width = _feature_width(module, head, cloned(probe[0]), loss)
    return Problem(
        make=make,
        loss=loss,
        w0=w0,
        layout=layout,
        rest={**frozen, **before},
        population=population,
        participation=participation,
        rounds=rounds,
        samples=samples,
        is_full=is_full,
        moving=moving,
        classes=classes,
        head=head if width else None,
        feature_dim=width,
        device=device,
        stack=stack,
        example=probe[0] if lazy else None,
        writes_input=writes,
    )


def _check_real(module: nn.Module) -> None:
    """Refuses what a change of the dtype would cut in two: torch forgets the imaginary part."""
    for kind, named in (
        ("parameter", module.named_parameters()),
        ("buffer", module.named_buffers()),
    ):
        for name, tensor in named:
            if tensor.is_complex():
                raise InputError(
                    f"model: the {kind} '{name}' of {type(module).__name__} is complex, and "
                    "weights and buffers of a run are real: keep torch.view_as_real of it and turn "
                    "it back in forward"
                )


def _check_settled(module: nn.Module, named: set[str]) -> None:
    """Refuses parameters that a first pass has made or replaced, and gradients that are sparse."""
    now = {name for name, _ in module.named_parameters()}
    if now != named:
        raise InputError(
            f"model: forward of {type(module).__name__} makes or replaces the parameter "
            f"'{min(now ^ named)}': make it in __init__; nn.LazyLinear and the like find their "
            "sizes themselves"
        )
    for name, layer in module.named_modules():
        if isinstance(layer, EMBEDDINGS) and layer.sparse:
            raise InputError(
                f"model: '{name}' of {type(module).__name__} gives sparse gradients, and those of "
                "a run are dense: make it with sparse=False"
            )


def _perturb(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.01)


def same(a: Any, b: Any) -> bool:
    """Whether two inputs hold the same numbers."""
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    keys = a if isinstance(a, dict) else range(len(a))
    return all(torch.equal(a[key], b[key]) for key in keys)


def _probe_output(module: nn.Module, x: Inputs, loss: Loss | None = None) -> Any:
    try:
        return call(module, x, loss)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        why = (
            beyond(module, lambda: call(module, x, loss)) if isinstance(error, IndexError) else None
        ) or error
        raise InputError(
            f"model: {type(module).__name__} cannot be called with {_inputs(x)}: {why}"
            f"{_kind(x, error)}"
        ) from error


def _kind(x: Inputs, error: Exception) -> str:
    """What to do about whole numbers where a layer wants others."""
    is_whole = isinstance(x, Tensor) and not x.is_floating_point()
    said = str(error).lower()
    is_meant = "dtype" in said or "scalar type" in said or "should be the same" in said
    return "; the inputs are whole numbers: give x.float()" if is_whole and is_meant else ""


def _inputs(x: Inputs) -> str:
    """A batch in words."""
    number = count(x)
    samples = "two samples" if number == 2 else f"{number} samples"
    if isinstance(x, Tensor):
        return f"{samples}, a batch of shape {tuple(x.shape)}"
    if isinstance(x, dict):
        named = ", ".join(f"{key} {tuple(part.shape)}" for key, part in x.items())
        return f"the keyword arguments {named} (the keys of the dict x, {samples})"
    shapes = ", ".join(str(tuple(part.shape)) for part in x)
    return f"{len(x)} arguments of shape {shapes} (the tuple x, {samples})"


def _classes(output: Any) -> int | None:
    return int(output.shape[1]) if isinstance(output, Tensor) and output.dim() >= 2 else None


def _find_head(module: nn.Module) -> str | None:
    named = getattr(module, "head", None)
    if isinstance(named, str):
        return named
    linear = [name for name, m in module.named_modules() if isinstance(m, nn.Linear)]
    return linear[-1] if linear else None


def _feature_width(module: nn.Module, head: str, x: Inputs, loss: Loss) -> int | None:
    """Width of the head's input if head(features) is the output, else None."""
    try:
        layer = module.get_submodule(head)
    except AttributeError:
        raise InputError(f"head: the model has no layer '{head}'") from None
    if not isinstance(layer, nn.Linear):
        return None
    caught: list[tuple[Any, Any]] = []

    def look(_: nn.Module, args: Any, named: Any, out: Any) -> None:
        caught.append(((*args, *named.values())[0], out))

    hook = layer.register_forward_hook(look, with_kwargs=True)
    with torch.no_grad():
        output = call(module.eval(), x, loss)
    hook.remove()
    if len(caught) != 1 or caught[0][0].dim() != 2 or not torch.equal(caught[0][1], output):
        return None
    return int(caught[0][0].shape[1])
