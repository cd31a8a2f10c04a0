"""Models with parameters in one vector: the module, copies of it, and gradients at any point."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, NoReturn, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, is_lazy

from fedrift.core.flat import (
    NOTHING,
    Batch,
    Inputs,
    Layout,
    Loss,
    Rest,
    Vec,
    Watch,
    add_each,
    cloned,
    copy_each,
    count,
    map_tree,
    take,
)
from fedrift.core.isolation import Memory, drawing_alone
from fedrift.errors import InputError, describe

CHUNK = 1024  # examples differentiated at once; larger batches are accumulated


def fresh(make: Callable[[], nn.Module]) -> nn.Module:
    """A module of one's own, even if the factory gives the same one every time."""
    return copied(make())


def copied(module: nn.Module) -> nn.Module:
    """A deep copy, also of a lazy module: torch cannot copy buffers that have no shape yet."""
    if not isinstance(module, nn.Module):  # the caller says what is wrong with it
        return module
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            which = f"its '{name}'" if name else "it"
            raise InputError(
                f"model: {which} is compiled by TorchScript, and its weights cannot be bound; give "
                "the module that it was made of"
            )
    _refuse_hooks(module)
    kept: dict[int, Any] = {
        id(b): UninitializedBuffer(device=b.device, dtype=b.dtype)  # type: ignore[call-arg]
        for b in module.buffers()
        if is_lazy(b)
    }
    for p in module.parameters():
        if not is_lazy(p) and _is_hollow(p):  # as it is: a copy would take the memory
            kept[id(p)] = nn.Parameter(p.detach(), p.requires_grad)
    try:
        return copy.deepcopy(module, kept)
    except (RuntimeError, TypeError) as error:
        raise InputError(
            f"model: {type(module).__name__} cannot be copied, as a run does ({describe(error)}); "
            "keep files, locks and what was computed with gradients (as by the old weight_norm: "
            "torch.nn.utils.parametrizations has another) out of its attributes"
        ) from error


def hollow(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """The factory without the values of the parameters of a module that it copies: where they are
    sent apart, they need not be sent with it too."""
    if not isinstance(make, partial):
        return make
    if make.func is copied:
        return partial(copied, _without_values(make.args[0]))
    args = (hollow(one) if isinstance(one, partial) else one for one in make.args)
    return partial(make.func, *args, **make.keywords)


def _without_values(module: nn.Module) -> nn.Module:
    """A copy whose parameters are one zero each, seen in every entry."""
    memo = {
        id(p): nn.Parameter(p.detach().new_zeros(()).expand(p.shape), p.requires_grad)
        for p in module.parameters()
        if type(p) is nn.Parameter and p.is_contiguous()
    }
    return copy.deepcopy(module, dict(memo))


def _is_hollow(p: Tensor) -> bool:
    return p.numel() > 1 and not any(p.stride())


def _are_alike(a: Tensor, b: Tensor) -> bool:
    """The second can stand in the place of the first, and every product comes out the same."""
    same = a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
    return same and (a.stride() == b.stride() or _is_hollow(a))


def _refuse_hooks(module: nn.Module) -> None:
    """Hooks of a tensor do not survive copies, and every process has a copy of its own."""
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise InputError(
                f"model: '{name}' has a hook (register_hook), which copies of the model lose; use "
                "register_full_backward_hook of its module, or a gradient rule of the algorithm"
            )


def call(module: nn.Module, x: Inputs, loss: Loss | None = None) -> Any:
    """The module's output for one input, several, or named ones.

    Of an object that holds `logits`, cross-entropy is given these; where they have three axes,
    classes are the last of them in such objects, and the second for cross-entropy. A loss of one's
    own gets what the module returns.
    """
    one = (x,) if isinstance(x, Tensor) else x
    out = module(**one) if isinstance(one, dict) else module(*one)
    if loss is not nn.functional.cross_entropy or isinstance(out, Tensor):
        return out
    logits = getattr(out, "logits", out)
    return logits.transpose(1, 2) if isinstance(logits, Tensor) and logits.dim() == 3 else logits


class Forward:
    """What the model says of a minibatch: its output, the head's input, the task's mean loss."""

    def __init__(self, output: Any, caught: Sequence[Tensor], target: Any, loss: Loss) -> None:
        self.output = output
        """The module's output; logits where there are classes."""
        self._caught, self._target, self._loss = caught, target, loss

    @property
    def features(self) -> Tensor:
        """The input of the head, a row for each sample."""
        if not self._caught:
            raise InputError(NO_HEAD)
        return self._caught[0].flatten(1)

    @cached_property
    def loss(self) -> Tensor:
        """The task's mean loss over the minibatch."""
        return self._loss(self.output, self._target)


NO_HEAD = "this model names no head, so it has no features: give head='name of its last layer'"
Objective: TypeAlias = Callable[[Forward], Tensor]
"""What is to become small on a minibatch, from what the model says of it: one number."""


class FlatModel:
    """A module whose trainable parameters are views of one vector `w`: training moves `w` itself.

    Views survive neither pickling nor deep copies (training would silently do nothing), so a
    bound model refuses both: every process builds its own from the factory.
    """

    def __init__(
        self,
        make: Callable[[], nn.Module],
        layout: Layout,
        rest: Rest,
        loss: Loss,
        *,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        moving: tuple[str, ...] = (),
        own: Layout = NOTHING,
        own_moving: tuple[str, ...] = (),
        head: str | None = None,
        example: Inputs | None = None,
        writes_input: bool = False,
        base: Rest | None = None,
    ) -> None:
        """`own` are parameters that are trained too but stay at the client: a second vector. `base`
        are frozen values once more, which the module may take as its own."""
        with drawing_alone():
            module = fresh(make)
        if example is not None:  # a lazy module takes its shapes from a batch
            inputs = map_tree(lambda t: t.to(device), example)
            call(module.to(device=device, dtype=dtype).eval(), inputs)
        self.module = module.to(device=device, dtype=dtype)
        self.layout, self.loss_of, self.temperature = layout, loss, 1.0
        parameters = dict(module.named_parameters())
        buffers = dict(module.named_buffers())
        with torch.no_grad():
            for name, value in rest.items():
                here = (parameters if name in parameters else buffers)[name]
                given = None if base is None or name not in parameters else base.get(name)
                if given is not None and _are_alike(here, given):
                    here.data = given
                    continue
                if _is_hollow(here):
                    here.data = torch.empty(here.shape, dtype=here.dtype, device=here.device)
                here.copy_(value)
        self.w: Vec = torch.zeros(layout.size, dtype=dtype, device=device)
        self.g: Vec = torch.zeros_like(self.w)
        self._saved: Vec = torch.empty_like(self.w)
        for parameter in parameters.values():
            parameter.requires_grad_(False)
        self.own: Vec = torch.zeros(own.size, dtype=dtype, device=device)
        self.own_g: Vec = torch.zeros_like(self.own)
        self._own_views = own.views(self.own_g)
        self.parameters = [parameters[name] for name in (*layout.names, *own.names)]
        views = (*layout.views(self.w), *own.views(self.own))
        for parameter, view in zip(self.parameters, views, strict=True):
            parameter.data = view
            parameter.requires_grad_(True)
        self.moving, self.own_moving = moving, own_moving
        known = {n: v for n, v in rest.items() if v.device == self.w.device and v.dtype == dtype}
        self.memory = Memory(module, {*layout.names, *own.names}, known)
        self.has_batch_norm = any(
            isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules()
        )
        self._head, self._writes_input = head, writes_input
        self.watch: Watch | None = None
        """Sees what gradients are taken of."""
        self._all = {**buffers, **parameters}
        self._views: dict[int, tuple[Vec, list[Tensor]]] = {}

    def __reduce__(self) -> NoReturn:
        raise TypeError("a bound model cannot be copied or pickled: send the Problem instead")

    def output(self, x: Inputs) -> Any:
        """The module's output at the bound w, logits divided by the temperature."""
        out = call(self.module, cloned(x) if self._writes_input else x, self.loss_of)
        return out if self.temperature == 1.0 else out / self.temperature

    def gradients(self, batch: Batch) -> Sequence[Tensor]:
        """Gradients of the mean loss at the bound w, one tensor per parameter, freshly made; those
        of the client's own come last."""
        n = count(batch[0])
        target = batch[1]
        is_mean = self.loss_of is nn.functional.cross_entropy  # another may weigh its samples
        if n <= CHUNK or self.has_batch_norm or not is_mean or not isinstance(target, Tensor):
            return self._gradients(batch)
        labelled = int((target >= 0).sum())
        if not labelled:  # nothing to learn from: what PyTorch makes of that, on fewer samples
            return self._gradients((take(batch[0], slice(CHUNK)), target[:CHUNK]))
        total: list[Tensor] = []
        for start in range(0, n, CHUNK):  # weighted by size: the mean of chunk means is biased
            some = slice(start, start + CHUNK)
            part = (take(batch[0], some), target[some])
            share = int((part[1] >= 0).sum()) / labelled
            if not share:
                continue
            if total:
                add_each(total, self._gradients(part), share)
            else:
                total = [g.mul_(share) for g in self._gradients(part)]
        return total

    @torch.enable_grad()
    def _gradients(self, batch: Batch) -> Sequence[Tensor]:
        output = self.output(batch[0])
        loss = self.loss_of(output, batch[1])
        if self.watch is not None:
            self.watch(output, batch[1], loss)
        return torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)

    @torch.enable_grad()
    def _objective_gradients(self, batch: Batch, objective: Objective) -> Sequence[Tensor]:
        here = self._forward(batch)
        value = objective(here)
        if self.watch is not None:
            self.watch(here.output, batch[1], here.loss)
        return torch.autograd.grad(
            value, self.parameters, allow_unused=True, materialize_grads=True
        )

    def _forward(self, batch: Batch) -> Forward:
        with self._caught(self._head) as caught:
            output = self.output(batch[0])
        return Forward(output, caught, batch[1], self.loss_of)

    @contextmanager
    def _caught(self, layer: str | None) -> Generator[list[Tensor]]:
        """What a layer is given meanwhile; nothing without a layer."""
        caught: list[Tensor] = []
        if layer is None:
            yield caught
            return
        hook = self.module.get_submodule(layer).register_forward_pre_hook(
            lambda _, args, named: caught.append((*args, *named.values())[0]), with_kwargs=True
        )
        try:
            yield caught
        finally:
            hook.remove()

    @torch.no_grad()
    def forward_at(self, at: Vec, batch: Batch, statistics: Sequence[Tensor] | None) -> Forward:
        """The forward pass of a frozen model: at another point, in evaluation mode, with running
        statistics of its own if they are given. All is as before when it is done."""
        modes = [(part, part.training) for part in self.module.modules()]
        before = self.all_buffers()
        w = self.w.clone()  # not in `_saved`, which is `grad_at`'s, and that may look here
        try:
            self.load(at)
            with self._with_statistics(statistics or ()):
                return self._forward(batch)
        finally:
            self.w.copy_(w)
            # Written only where they moved: a gradient under way may hold on to them.
            names = (*self.moving, *self.own_moving)
            for name, value in zip(names, before, strict=True):
                if not torch.equal(self._all[name], value):
                    self._all[name].copy_(value)
            for part, mode in modes:
                part.training = mode

    @contextmanager
    def _with_statistics(self, values: Sequence[Tensor]) -> Generator[None]:
        """Others in the place of the running statistics, which are not written to."""
        places: list[tuple[dict[str, Any], str, Any]] = []
        try:
            for name, value in zip(self.moving, values, strict=True) if values else ():
                layer, _, key = name.rpartition(".")
                table = self.module.get_submodule(layer)._buffers
                places.append((table, key, table[key]))
                table[key] = value.clone()
            yield
        finally:
            for table, key, tensor in places:
                table[key] = tensor

    def grad(self, batch: Batch, out: Vec | None = None, objective: Objective | None = None) -> Vec:
        """The same as one vector, into `out` (by default the bound g); of another objective than
        the task's loss if one is given, over the whole batch at once."""
        into = self.g if out is None else out
        if objective is None:
            made = self.gradients(batch)
        else:
            made = self._objective_gradients(batch, objective)
        shared = len(self.layout.names)
        copy_each(self._views_of(into), made[:shared])
        copy_each(self._own_views, made[shared:])
        return into

    def grad_at(
        self,
        at: Vec,
        batch: Batch,
        out: Vec | None = None,
        objective: Objective | None = None,
    ) -> Vec:
        """The gradient at another point; w comes back from a copy, so bit for bit."""
        if at is self.w:
            return self.grad(batch, out, objective)
        with self._moved(at):
            return self.grad(batch, out, objective)

    def gradients_at(self, at: Vec, batch: Batch) -> Sequence[Tensor]:
        """The same as `gradients` gives it, one tensor per parameter."""
        if at is self.w:
            return self.gradients(batch)
        with self._moved(at):
            return self.gradients(batch)

    @contextmanager
    def _moved(self, at: Vec) -> Generator[None]:
        self._saved.copy_(self.w)
        self.w.copy_(at)
        try:
            yield
        finally:
            self.w.copy_(self._saved)

    def _views_of(self, vector: Vec) -> list[Tensor]:
        # a step works in a handful of buffers that live as long as the model: cut them up once
        known, views = self._views.get(id(vector), (None, []))
        if known is not vector:
            views = self.layout.views(vector)
            self._views[id(vector)] = vector, views
        return views

    def loss(self, w: Vec, batch: Batch) -> Tensor:
        """The mean loss at w in evaluation mode."""
        x, target = batch
        return self.loss_of(self.logits(w, x), target)

    @torch.no_grad()
    def load(self, w: Vec) -> None:
        """Move to w and into evaluation mode."""
        self.module.eval()
        self.w.copy_(w)

    @torch.no_grad()
    def logits(self, w: Vec, x: Inputs) -> Any:
        """The output at w in evaluation mode."""
        self.load(w)
        return self.output(x)

    @torch.no_grad()
    def freeze(self, values: Mapping[str, Tensor]) -> None:
        """Set parameters that are not trained but were decided during the run."""
        for name, value in values.items():
            self._all[name].copy_(value)

    @torch.no_grad()
    def features(self, w: Vec, x: Inputs, layer: str | None = None) -> Tensor:
        """The input of the head (or of another layer) at w, in evaluation mode."""
        name = layer if layer is not None else self._head
        if name is None:
            raise ValueError(NO_HEAD)
        with self._caught(name) as caught:
            self.logits(w, x)
        return caught[0].detach().flatten(1)

    def buffers(self) -> tuple[Tensor, ...]:
        """Copies of the buffers that training moves (running statistics)."""
        return self._buffers(self.moving)

    def load_buffers(self, values: Sequence[Tensor]) -> None:
        self._load(self.moving, values)

    def own_buffers(self) -> tuple[Tensor, ...]:
        """Copies of those that stay at the client."""
        return self._buffers(self.own_moving)

    def load_own_buffers(self, values: Sequence[Tensor]) -> None:
        self._load(self.own_moving, values)

    def all_buffers(self) -> tuple[Tensor, ...]:
        return self._buffers((*self.moving, *self.own_moving))

    def load_all_buffers(self, values: Sequence[Tensor]) -> None:
        self._load((*self.moving, *self.own_moving), values)

    def _buffers(self, names: Sequence[str]) -> tuple[Tensor, ...]:
        return tuple(self.memory.tensor(name).detach().clone() for name in names)

    @torch.no_grad()
    def _load(self, names: Sequence[str], values: Sequence[Tensor]) -> None:
        for name, value in zip(names, values, strict=True):
            self.memory.load(name, value)

    def begin(self, buffers: Sequence[Tensor], frozen: Mapping[str, Tensor], heat: float) -> None:
        """Forget whatever was computed before; what may be known comes from the arguments.

        Without buffers, those that training moves are as they were in the beginning.
        """
        self.memory.put_back()
        if buffers:
            self.load_buffers(buffers)
        self.freeze(frozen)
        self.temperature = heat

    def check_memory(self, frozen: Mapping[str, Tensor]) -> None:
        """Refuses a model that remembers, after a visit, what nobody knew of beforehand."""
        known = {*self.moving, *self.own_moving, *frozen}
        for name in self.memory.moved():
            if name not in known:
                raise InputError(
                    f"model: '{name}' of {type(self.module).__name__} changes while training, but "
                    "did not in the first batches that were tried, so it was not announced as "
                    "something that clients send; let it change in every training pass, or not"
                )
