"""Whether a folder holds the beginning of a task: by everything that decides the result.

An identity has a part for each thing that a reader can name (its loss, its clients' data), so that
what differs can be said. Folders of earlier versions hold one short hash, which saw less; they are
compared by that.
"""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Mapping
from typing import Any, cast

import torch

from fedrift.config.models import choose_model
from fedrift.config.own_code import IN_PYTHON
from fedrift.core.problem import Problem
from fedrift.engine.digests import Digest
from fedrift.engine.plan import Task
from fedrift.engine.recorder import SETTINGS
from fedrift.storage.shared_memory import tensor_digest, tree_to_packed

VERSION = 2
Part = tuple[str, str]
"""Digest of values and of code."""
ORIGIN = "origin's "
"""Opens the names of parts that a fork shares with the run it comes from."""
NAMES = {
    "clients": "the clients' data",
    "test": "the test data",
    "client_test": "the clients' test data",
    "settings": SETTINGS,
    "origin": "the run it comes from",
}


def identity_of(task: Task, origin: tuple[Task, int] | None = None) -> dict[str, Any]:
    """What stands in a folder: a digest of each part of the task, and of a fork's origin."""
    parts = _parts(task)
    if origin is not None:
        parts |= {f"{ORIGIN}{name}": part for name, part in _parts(origin[0]).items()}
        parts["origin"] = Digest.of(origin[1])
    return {"version": VERSION, "parts": {name: list(part) for name, part in parts.items()}}


def differences(
    known: Mapping[str, Any], task: Task, origin: tuple[Task, int] | None = None
) -> tuple[str, ...]:
    """What of a task is not what an environment (of a folder) says it was, in words."""
    there = known.get("identity")
    if isinstance(there, str):
        now = hash_of_earlier_versions(task)
        if origin is not None:
            now = f"{now} from {hash_of_earlier_versions(origin[0])} at {origin[1]}"
        return () if now == there else ("its model, data or settings",)
    if not isinstance(there, dict):
        return ("what it was made from is not known",)
    if not (parts := known_parts(known)):
        return ("it is of a version that is not known",)
    now = identity_of(task, origin)["parts"]
    return tuple(_differing(parts, now, _sees_code(known)))


def known_parts(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The digests that an environment (of a folder) holds; empty if it is of another version."""
    there: Any = environment.get("identity")
    parts = there.get("parts") if isinstance(there, dict) else None  # type: ignore[reportUnknownMemberType]
    is_known = isinstance(parts, dict) and there.get("version") == VERSION
    return cast("dict[str, Any]", parts) if is_known else {}


def _sees_code(known: Mapping[str, Any]) -> bool:
    """Compiled functions can be compared within one version of Python and of torch."""
    python = str(known.get("python")).rpartition(".")[0]
    here = platform.python_version().rpartition(".")[0]
    return (python, known.get("torch")) == (here, torch.__version__)


def _differing(before: dict[str, Any], now: dict[str, Any], sees_code: bool) -> list[str]:
    found: list[str] = []
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        both = isinstance(old, list) and isinstance(new, list)
        is_code = both and cast("list[Any]", old)[:1] == cast("list[Any]", new)[:1]
        if is_code and not sees_code:
            continue
        told = NAMES.get(name, f"the {name}")
        found.append(f"the code of {told}" if is_code else told)
    return found


def _parts(task: Task) -> dict[str, Part]:
    problem, split = task.problem, task.split
    # Samples that are made on demand are decided by what makes them.
    sizes = split.sizes if split.make is not None else None
    clients = (sizes, split.x, split.y, split.parts, split.make)
    seen = ("loss", "metrics", "test")
    settings = {key: value for key, value in task.deciding().items() if key not in seen}
    own = split.test
    tests = {} if own is None else {"client_test": Digest.of(own.sizes, own.x, own.y, own.parts)}
    return tests | {
        "algorithm": Digest.of(task.algorithm),
        "model": model_part(task.problem, task.spec.model),
        "loss": Digest.of(problem.loss),
        "metrics": Digest.of(dict(task.metrics)),
        "clients": Digest.of(*clients),
        "test": Digest.of(task.test),
        "settings": Digest.of(settings),
    }


def model_part(problem: Problem, name: str | None) -> Part:
    """Weights, buffers and frozen parameters; of the reader's own model its layers and code."""
    digest = Digest()
    digest.add({name: tuple(t.shape) for name, t in problem.layout.named(problem.w0).items()})
    digest.add((problem.w0, dict(problem.rest), problem.moving, problem.head))
    if name is None or name == IN_PYTHON or choose_model(name).attribute is not None:
        problem.model.memory.put_back()  # it has been tried on a few samples
        digest.add_model(problem.model.module)
    else:
        digest.add(name)
    return digest.digests()


def hash_of_earlier_versions(task: Task) -> str:
    """Of initial weights, some rows of the data and what settings print."""
    problem, split = task.problem, task.split
    digest = hashlib.sha256(problem.w0.cpu().numpy().tobytes())
    digest.update(re.sub(r" at 0x[0-9a-f]+", "", repr(task.algorithm)).encode())
    digest.update(repr(sorted(task.deciding().items())).encode())
    digest.update(split.sizes.tobytes() if split.make is not None else b"")
    for part in split.parts:
        digest.update(len(part).to_bytes(8, "little") + part.tobytes())
    for leaf in (tree_to_packed(split.x, "x") | tree_to_packed(split.y, "y")).values():
        digest.update(tensor_digest(leaf).encode())
    return digest.hexdigest()[:16]
