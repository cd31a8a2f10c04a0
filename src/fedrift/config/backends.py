"""The backends by name: what each needs, what it refuses, which module makes it; without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedrift.errors import unknown

MOST_WORKERS = 512


@dataclass(frozen=True)
class BackendKind:
    """Where visits run. A backend of one's own is one module and one line of `BACKENDS`."""

    module: str
    """Has `make(RunParts)`; `opened(address, workers)` if several runs can share something."""
    workers: Literal["none", "worth", "cohort", "cores"]
    """What `auto` means: none at all, some if the run is long enough, at most one for each client
    of a cohort, or one for each core."""
    needs_workers: bool = False
    """Refuses workers=0 and devices; others are in this process then."""
    forks: bool = False
    """Its workers are processes of this machine, which may be started before they are needed."""
    takes_address: bool = False
    """`name:address` is a cluster, which somebody else may own."""
    is_timed: bool = True
    """Its visits can be profiled."""
    is_public: bool = True
    """Specs and the command line may name it."""


IN_PROCESS, POOL = "fedrift.backends.in_process", "fedrift.backends.processes"

BACKENDS: dict[str, BackendKind] = {
    "auto": BackendKind(POOL, "worth", forks=True),
    "in-process": BackendKind(IN_PROCESS, "none"),
    "processes": BackendKind(POOL, "cohort", forks=True),
    "wire": BackendKind("fedrift.backends.wire", "none", is_public=False),
    "ray": BackendKind(
        "fedrift.backends.ray_tasks",
        "cores",
        needs_workers=True,
        takes_address=True,
        is_timed=False,
    ),
}


def backend_kind(text: object) -> BackendKind:
    """The backend that `name` or `name:address` means."""
    name, colon, _ = str(text).partition(":")
    kind = BACKENDS.get(name)
    if kind is None or (colon and not kind.takes_address):
        raise unknown("backend", str(text), BACKENDS)
    return kind


def address_of(text: str) -> str:
    """The cluster that is named, if any."""
    return text.partition(":")[2]


def public_names() -> tuple[str, ...]:
    """The backends that a spec may name."""
    return tuple(name for name, kind in BACKENDS.items() if kind.is_public)


def starts_workers(text: str, workers: int | str) -> bool:
    """Whether the fork server may begin before the run is known."""
    return workers != 0 and backend_kind(text).forks
