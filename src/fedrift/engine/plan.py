"""A task before it starts: what it is, how long and how large it will be, how many workers."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrift import backends
from fedrift.backends.pool import PARKED_IN_MEMORY
from fedrift.config.backends import MOST_WORKERS, backend_kind
from fedrift.config.client_evaluation import ClientEvaluation
from fedrift.config.privacy import Robustness
from fedrift.config.spec import Spec
from fedrift.core.algorithm import Algorithm
from fedrift.core.composition import client_methods, local_of, personal_path
from fedrift.core.evaluation import EVALUATION_CHUNK
from fedrift.core.faults import Faults
from fedrift.core.flat import count
from fedrift.core.flat_model import CHUNK
from fedrift.core.isolation import drawing_alone
from fedrift.core.messages import hints, pack, reductions
from fedrift.core.pieces import passes_of
from fedrift.core.problem import Problem
from fedrift.core.sampling import Participation
from fedrift.core.site import Augment
from fedrift.data.arrays import has_images
from fedrift.data.split import Split
from fedrift.engine.aggregation import Aggregation
from fedrift.engine.callbacks import Plan
from fedrift.engine.clock import ClockPlan
from fedrift.engine.domains import TestDomains
from fedrift.errors import InputError, bytes_text
from fedrift.storage.client_state import States, Store
from fedrift.storage.shared_memory import tensor_digest

# What memory a run will take, anonymous and shared, from what is known before it starts.

WAITING = 0.6  # of a cohort's replies, at most at once: what waits stays in the order of clients
MAIN = 165_000_000  # what the main process holds before it has any data
FORK_SERVER = 160_000_000  # the process that workers are forked from, and its helper
WORKER = 18_000_000  # what a worker holds besides what it shares with the fork server
KERNELS = 70_000_000  # what a worker's convolutions and its allocator keep between visits
KEPT_BELOW = 32 << 20  # bytes: what is freed goes back to the system from this size on, in glibc
CLIENT = 300  # what is kept of each client by name: size, place in lists, lines of its folder


@dataclass(frozen=True)
class MemoryEstimate:
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
        ups = [m.signature.up for m in client_methods(self.root)]
        kinds = {how for up in ups for how in reductions(up).values()}
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
        kinds = [method.signature for method in client_methods(root)]
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


def vectors(cls: type | None) -> int:
    """Fields of a message that hold a vector of parameters."""
    return 0 if cls is None else sum("Tensor" in str(hint) for hint in hints(cls).values())


def batch_of(root: Algorithm[Any, Any], split: Split, problem: Problem) -> int:
    """Samples that are differentiated at once, at most."""
    local, largest = local_of(root), int(split.sizes.max())
    whole = any("full_grad" in m.function.__code__.co_names for m in client_methods(root))
    wanted = local.batch_size if local is not None and not whole else None
    is_cut = problem.loss is nn.functional.cross_entropy and not problem.model.has_batch_norm
    most = min(largest, wanted or largest)
    return min(most, CHUNK) if is_cut else most


def passes(problem: Problem, batch: tuple[Any, Any]) -> tuple[float, float]:
    """Bytes per sample that a gradient keeps until it is done, and that the widest layer takes in
    a forward pass; tried on a few samples."""
    model, kept, widest = problem.model, dict[int, int](), [0]

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    def look(_: nn.Module, given: Any, output: Any) -> None:
        widest[0] = max(widest[0], bytes_of(given) + bytes_of(output))

    leaves = [m for m in model.module.modules() if not any(True for _ in m.children())]
    hooks = [m.register_forward_hook(look) for m in leaves]
    model.module.eval()  # moves no running statistics
    model.w.copy_(problem.w0)
    try:
        saved = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
        with drawing_alone(), saved:
            model.gradients(batch)
    finally:
        for hook in hooks:
            hook.remove()
    kept.pop(model.w.untyped_storage().data_ptr(), None)
    samples = max(1, count(batch[0]))
    return sum(kept.values()) / samples, widest[0] / samples


WORTH_WORKERS = 3.0  # seconds of work below which starting workers costs more than they save

UserMetric = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Task:
    """A run with everything settled but where it is computed."""

    algorithm: Algorithm[Any, Any]
    problem: Problem
    split: Split
    test: tuple[Any, Any] | None
    participation: Participation
    rounds: int
    seed: int
    eval_every: int
    spec: Spec
    about: Mapping[str, Any]
    augment: Augment | None = None
    metrics: Mapping[str, UserMetric] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    faults: Faults | None = None
    aggregation: Aggregation | None = None
    alphabet: tuple[str, ...] = ()
    """What the tokens of a text stand for; empty for other data."""
    eval_clients: ClientEvaluation | None = None
    clock: ClockPlan | None = None
    domains: TestDomains | None = None
    """The test data in every domain of the shift; `test` is then in those that clients have."""

    @property
    def evaluated(self) -> tuple[Any, Any] | None:
        """All that the server evaluates."""
        return self.test if self.domains is None else (self.domains.x, self.domains.y)

    @property
    def at_clients(self) -> bool:
        """The run is judged by what clients find on test data of their own: by personal models,
        and where the server has none."""
        if self.eval_clients is None:
            return False
        return self.test is None or personal_path(self.algorithm, self.problem) is not None

    def deciding(self) -> dict[str, Any]:
        """What decides the result beside algorithm, model and client data, in a stable form."""
        stack = None if self.problem.stack == "auto" else self.problem.stack
        how = self.problem.compression
        options: dict[str, Any] = {
            "faults": self.faults,
            "aggregation": self.aggregation,
            "stack": stack,
            "adapter": self.spec.adapter,
            "eval_clients": self.eval_clients,
            "compression": None if how is None else str(how),
            "clock": self.clock,
            "domains": None if self.domains is None else self.domains.layout.names,
            "unseen": None if self.domains is None else self.domains.layout.unseen,
        }
        return {k: v for k, v in options.items() if v is not None} | {
            "rounds": self.rounds,
            "seed": self.seed,
            "eval_every": self.eval_every,
            "participation": self.participation,
            "augment": self.augment,
            "loss": _name(self.problem.loss),
            "metrics": sorted(self.metrics),
            "test": None if self.test is None else [tensor_digest(t) for t in _leaves(self.test)],
        }


def _name(function: Any) -> str:
    inner = getattr(function, "func", function)  # a partial: of what
    return f"{getattr(inner, '__module__', '')}.{getattr(inner, '__qualname__', repr(inner))}"


def workers_for(task: Task, workers: int | str, backend: str) -> int:
    """How many workers the run gets; 0: it is computed in this process."""
    kind, device = backend_kind(backend), task.problem.device
    if isinstance(workers, bool) or (workers != "auto" and not isinstance(workers, int)):
        raise InputError(f"workers={workers!r} must be 'auto' or a whole number of at least 0")
    if isinstance(workers, int) and not 0 <= workers <= MOST_WORKERS:
        raise InputError(f"workers={workers} must be from 0 to {MOST_WORKERS}")
    if kind.needs_workers and (workers == 0 or device != "cpu"):
        where = f"workers={workers}" if workers == 0 else f"device={device}"
        raise InputError(f"backend '{backend}' and {where}: drop one; its workers use the cpu")
    if kind.workers == "none" or workers == 0 or device != "cpu":
        return 0
    if isinstance(workers, int):
        return workers
    if kind.workers == "cores":
        return backends.cores()
    number = min(backends.cores(), task.participation.size)
    if kind.workers == "cohort":
        return max(1, number)
    return number if number > 1 and _seconds(task) > WORTH_WORKERS else 0


def _seconds(task: Task) -> float:
    """A guess at the time the whole run would take in one process."""
    batch = few_samples(task.split, 32)
    size = count(batch[0])
    model = task.problem.model
    model.module.eval()  # moves no running statistics
    model.w.copy_(task.problem.w0)
    model.gradients(batch)
    start = time.perf_counter()
    model.gradients(batch)
    seconds = (time.perf_counter() - start) / size
    cost = cost_of(task)
    mean = sum(cost(c, 0) for c in range(0, len(task.split), max(1, len(task.split) // 100)))
    visits = mean / len(range(0, len(task.split), max(1, len(task.split) // 100)))
    looked_at = 0 if task.evaluated is None else count(task.evaluated[0])
    tests = looked_at / task.eval_every / 3
    return seconds * task.rounds * (visits * task.participation.size + tests)


def cost_of(task: Task) -> Callable[[int, int], float]:
    """Examples a visit will differentiate, to start the longest first."""
    local, sizes = local_of(task.algorithm), task.split.sizes

    def cost(client: int, round: int) -> float:
        n = int(sizes[client])
        if local is None:
            return n
        batch = min(n, local.batch_size or n)
        return local.steps_for(n, task.seed, round, client) * batch

    return cost


def gradients_of(task: Task) -> Callable[[int, int], float]:
    """Examples a visit will differentiate, each as often as the gradient rule asks."""
    cost, local = cost_of(task), local_of(task.algorithm)
    passes = 1 if local is None else passes_of(local.gradient)
    return lambda client, round: passes * cost(client, round)


def plan(
    task: Task, store: States, workers: int, resumed_from: int, remarks: tuple[str, ...] = ()
) -> Plan:
    """What the run will hold in memory and on disk."""
    who = task.participation
    robust = None if task.aggregation is None else task.aggregation.robust
    work = MemoryEstimate(
        task.algorithm,
        task.problem,
        task.split,
        task.evaluated,
        cohort=who.size,
        workers=workers,
        robust=robust,
        is_here=isinstance(store, Store) and task.problem.device == "cpu",
    )
    return Plan(
        parameters=task.problem.layout.size,
        clients=task.problem.population,
        samples=int(task.split.sizes.sum()),
        cohort=who.size,
        workers=workers,
        memory_bytes=work.total(),
        disk_bytes=store.row_bytes() * rows_of(task),
        resumed_from=resumed_from,
        notes=(*task.notes, *remarks),
        states=store if isinstance(store, Store) else None,
    )


ROUNDS_HELD = 20  # that pass between the two checkpoints which are kept, on average


def rows_of(task: Task) -> int:
    """Rows of client state that a run needs: clients that come, and those kept for checkpoints."""
    who, rounds = task.participation, task.rounds
    if who.kind in ("fixed", "bernoulli"):
        came = who.population * (1.0 - (1.0 - min(1.0, who.share)) ** rounds)
    else:
        came = min(float(len(who.everybody())), who.size * rounds)
    again = max(0.0, who.size * rounds - came)
    window = ROUNDS_HELD * who.size * came / who.population
    exchanges = sum(1 for _ in client_methods(task.algorithm))  # each writes rows of its own
    return math.ceil(came + who.size * exchanges + min(again, window, 2 * came))


def _leaves(tree: Any) -> list[Tensor]:
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [leaf for v in tree.values() for leaf in _leaves(v)]
    return [leaf for v in tree for leaf in _leaves(v)] if isinstance(tree, tuple) else []


# What a machine has left, and whether a run fits: said before it starts.

CGROUP = Path("/sys/fs/cgroup")


def free_memory() -> int | None:
    """Bytes of memory that processes may still take, by the system and by a container's limit."""
    limits: list[int] = []
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        limits += [int(s.split()[1]) * 1024 for s in lines if s.startswith("MemAvailable:")]
    with suppress(OSError, ValueError):
        limit = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        if limit != "max":  # what files occupy in memory can be had back
            limits.append(int(limit) - used + int(stat.get("file", "0")))
    return min(limits) if limits else None


def free_disk(place: Path) -> int:
    """Bytes free where a folder is or will be."""
    there = next(path for path in (place, *place.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free


def bytes_in(folder: Path) -> int:
    """Bytes that a folder holds already."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(root) / name).lstat().st_blocks * 512
    return total


def check_fits(plan: Plan, place: Path, out: bool) -> None:
    """Refuses a run that cannot fit; `place` is where client states go."""
    memory = free_memory()
    if memory is not None and plan.memory_bytes > memory:
        fix = "use fewer workers or a smaller model" if plan.workers else "use a smaller model"
        raise InputError(
            f"workers={plan.workers}: the run needs about {bytes_text(plan.memory_bytes)} of "
            f"memory, but {bytes_text(memory)} are free; {fix}"
        )
    disk = free_disk(place) if plan.disk_bytes else 0
    if out and plan.disk_bytes > disk:  # what the run has written already is its own
        disk += bytes_in(place)
    if plan.disk_bytes > disk:
        fix = "name an out folder on a larger disk" if out else "set TMPDIR to a larger disk"
        raise InputError(
            f"out: the run needs about {bytes_text(plan.disk_bytes)} of disk for client states, "
            f"but '{place}' has {bytes_text(disk)} free; {fix}"
        )
