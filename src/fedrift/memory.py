"""What memory a run will take, anonymous and shared, from what is known before it starts.

The constants are what processes were seen to hold; `tests/faults/room.py` compares the whole with
runs of all kinds.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrift.algorithm import Algorithm, local_of, parts
from fedrift.backends.evaluation import EVALUATION_CHUNK
from fedrift.backends.pool import PARKED_IN_MEMORY
from fedrift.data.given import has_images
from fedrift.data.resident import Split
from fedrift.exchange import Signature, signature
from fedrift.flat import count
from fedrift.flat_model import CHUNK
from fedrift.messages import hints, pack, reductions
from fedrift.problem import Problem
from fedrift.protection import Robustness

WAITING = 0.6  # of a cohort's replies, at most at once: what waits stays in the order of clients
MAIN = 165_000_000  # what the main process holds before it has any data
FORK_SERVER = 160_000_000  # the process that workers are forked from, and its helper
WORKER = 18_000_000  # what a worker holds besides what it shares with the fork server
KERNELS = 70_000_000  # what a worker's convolutions and its allocator keep between visits
KEPT_BELOW = 32 << 20  # bytes: what is freed goes back to the system from this size on, in glibc
CLIENT = 300  # what is kept of each client by name: size, place in lists, lines of its folder


@dataclass(frozen=True)
class Work:
    """What is trained where, as far as it decides about memory."""

    root: Algorithm[Any, Any]
    problem: Problem
    split: Split
    test: tuple[Any, Any] | None
    cohort: float
    workers: int
    robust: Robustness | None = None
    is_here: bool = True
    """Clients are trained on this machine."""

    def total(self) -> int:
        """Bytes of all processes together."""
        sizes = _Sizes.of(self.root, self.problem)
        data = bytes_of((self.split.x, self.split.y, self.test))
        copies = 2 if has_images(self.split.x) else 1  # as they came, and in the best order
        shared = visits = 0.0
        if self.is_here:
            visits = sizes.visit + self._passes()
        if self.workers:
            shared = data + sizes.down + sizes.shown + self._parked(sizes.up) + sizes.ahead
            own = WORKER + (KERNELS if _has_convolutions(self.problem) else 0)
            visits = self.workers * (own + visits) + FORK_SERVER
        held = copies * data + len(self.split) * CLIENT + sizes.server + self._gathered(sizes.up)
        return int(MAIN + held + shared + visits)

    def _parked(self, up: int) -> float:
        """Replies that wait until those of clients before them have come."""
        waiting = max(min(2 * self.workers, self.cohort), WAITING * self.cohort)
        return min(waiting, PARKED_IN_MEMORY * self.workers) * up

    def _gathered(self, up: int) -> float:
        """Replies that are kept until the last has come."""
        kinds = {how for _, s in client_methods(self.root) for how in reductions(s.up).values()}
        if self.robust is None:
            return 2 * self.cohort * up if "gather" in kinds else 0.0
        krum = self.robust.kind in ("krum", "multikrum")  # all at once, twice, in float64
        return self.cohort * up * (5 if krum else 1)

    def _passes(self) -> float:
        """Activations of a training step and of an evaluation."""
        kept, widest = passes(self.problem, few_samples(self.split, 2))
        evaluated = min(EVALUATION_CHUNK, count(self.test[0])) if self.test is not None else 0
        return kept * batch_of(self.root, self.split, self.problem) + widest * evaluated


@dataclass(frozen=True)
class _Sizes:
    """Bytes of vectors: in the main process, in a visit, sent, and shown for evaluation."""

    server: int
    ahead: int
    """What the main process holds more while workers evaluate a round and train for the next."""
    visit: int
    up: int
    down: int
    shown: int

    @staticmethod
    def of(root: Algorithm[Any, Any], problem: Problem) -> _Sizes:
        vector = problem.w0.nbytes
        state = sum(v.nbytes for v in pack(root.server(problem)).values() if isinstance(v, Tensor))
        kinds = [s for _, s in client_methods(root)]
        up = max((vectors(s.up) for s in kinds), default=1) * vector
        down = max((vectors(s.down) for s in kinds), default=1) * vector
        ahead = 6 * (state + up) if vector < KEPT_BELOW else 0
        # The old and the new state, sums in float64, the file of a checkpoint and its bytes.
        server = 9 * vector + 3 * (state + up)
        return _Sizes(server, ahead, 4 * vector + up, up, down, 3 * vector)


def _has_convolutions(problem: Problem) -> bool:
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return any(isinstance(layer, kinds) for layer in problem.model.module.modules())


def bytes_of(tree: Any) -> int:
    """Bytes of a tensor, or of all tensors of a tuple, list or dict."""
    if isinstance(tree, Tensor):
        return tree.nbytes
    inside = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, tuple) else ()
    return sum(map(bytes_of, inside))


def few_samples(split: Split, wanted: int) -> tuple[Any, Any]:
    """Some samples of the smallest client that has as many, or of the largest; samples may have to
    be made for this, so a small one is chosen."""
    enough = np.where(split.sizes >= wanted, split.sizes, np.iinfo(np.int64).max)
    client = int(enough.argmin() if split.sizes.max() >= wanted else split.sizes.argmax())
    return split.view(client).batch(np.arange(min(wanted, int(split.sizes[client]))))


def client_methods(root: Algorithm[Any, Any]) -> Iterator[tuple[Any, Signature]]:
    """The methods that run at clients, and what they declare."""
    for _, node in parts(root):
        for name, function in inspect.getmembers(type(node), inspect.isfunction):
            first = list(inspect.signature(function).parameters)[1:4]
            if not name.startswith("_") and first == ["site", "down", "mine"]:
                yield function, signature(getattr(node, name))


def vectors(cls: type | None) -> int:
    """Fields of a message that hold a vector of parameters."""
    return 0 if cls is None else sum("Tensor" in str(hint) for hint in hints(cls).values())


def batch_of(root: Algorithm[Any, Any], split: Split, problem: Problem) -> int:
    """Samples that are differentiated at once, at most."""
    local, largest = local_of(root), int(split.sizes.max())
    whole = any("full_grad" in function.__code__.co_names for function, _ in client_methods(root))
    wanted = local.batch_size if local is not None and not whole else None
    is_cut = problem.loss is nn.functional.cross_entropy and not problem.model.has_batch_norm
    most = min(largest, wanted or largest)
    return min(most, CHUNK) if is_cut else most


def passes(problem: Problem, batch: tuple[Any, Any]) -> tuple[float, float]:
    """Bytes per sample that a gradient keeps until it is done, and that the widest layer takes in
    a forward pass; tried on a few samples."""
    model, kept, widest = problem.model, dict[int, int](), [0]

    def keep(tensor: Tensor) -> Tensor:
        held = tensor.untyped_storage()
        kept[held.data_ptr()] = held.nbytes()
        return tensor

    def look(_: nn.Module, given: Any, output: Any) -> None:
        widest[0] = max(widest[0], bytes_of(given) + bytes_of(output))

    leaves = [m for m in model.module.modules() if not any(True for _ in m.children())]
    hooks = [m.register_forward_hook(look) for m in leaves]
    model.module.eval()  # moves no running statistics
    model.w.copy_(problem.w0)
    try:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model.gradients(batch)
    finally:
        for hook in hooks:
            hook.remove()
    kept.pop(model.w.untyped_storage().data_ptr(), None)
    samples = max(1, count(batch[0]))
    return sum(kept.values()) / samples, widest[0] / samples
