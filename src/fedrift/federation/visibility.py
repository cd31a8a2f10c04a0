"""What server and clients can see of each other, from the declared messages and nothing else."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from torch import Tensor

from fedrift.backends.codec import Refused, plain, unfit
from fedrift.core.algorithm import Algorithm
from fedrift.core.composition import arrivals_of, host_path, parts
from fedrift.core.exchange import Signature
from fedrift.core.messages import hints, reductions
from fedrift.core.phases import owner_of
from fedrift.federation.protocol import declared_signature

REDUCED_TO = {"mean": "a mean over the cohort", "sum": "a sum over the cohort"}


@dataclass(frozen=True)
class VisibleField:
    """One field of one exchange."""

    phase: str
    who: str
    """Who sees it: server or client; or nobody else: node."""
    field: str
    kind: str
    use: str
    """What the server's rule does with it."""


def phases(root: Algorithm[Any, Any]) -> dict[str, Signature]:
    """Every client method that the server may call, by its address."""
    signatures: dict[str, Signature] = {}
    for path, node in parts(root):
        for name, method in inspect.getmembers(type(node), inspect.isfunction):
            phase = f"{path}.{name}" if path else name
            if "site" not in method.__annotations__ or name.startswith("_"):
                continue
            try:
                signatures[phase] = declared_signature(root, phase)
            except Refused:
                continue
    return signatures


def visible_fields(root: Algorithm[Any, Any]) -> list[VisibleField]:
    """Everything that leaves one side for the other, and what stays."""
    rows: list[VisibleField] = []
    for phase, kinds in phases(root).items():
        for cls in (kinds.down, kinds.private):
            rows += [VisibleField(phase, "client", n, k, "") for n, k in _leaves(cls)]
        how = reductions(kinds.up)
        for name, kind in _leaves(kinds.up):
            rule = how.get(name.partition(".")[0], "")
            use = REDUCED_TO.get(
                rule, "each client's value" if rule else "each client's, to fold others"
            )
            if arrivals_of(root) is not None:
                use = "each client's, when it arrives"
            rows.append(VisibleField(phase, "server", name, kind, use))
        stays = "never leaves the node"
        around, inside = _around(root, phase), kinds.state
        own = [*_leaves(around), *_leaves(inside, "inner")] if around else _leaves(inside)
        rows += [VisibleField(phase, "node", n, k, stays) for n, k in own if n != "inner"]
    return rows


def _around(root: Algorithm[Any, Any], phase: str) -> Any:
    """What a wrapper keeps that is around the visits of a phase; None without one."""
    path = host_path(root, owner_of(phase))
    if path is None:
        return None
    host = next(node for where, node in parts(root) if where == path)
    return get_args(get_type_hints(type(host).around)["return"])[1]


def can_be_masked(root: Algorithm[Any, Any], phase: str) -> bool:
    """All that goes up is a mean or a sum over a cohort that is known before it starts: the server
    needs no single client's value."""
    return arrivals_of(root) is None and not unfit(declared_signature(root, phase).up)


def _leaves(cls: Any, path: str = "") -> Iterator[tuple[str, str]]:
    if not is_dataclass(cls):
        return
    own = hints(cls)  # type: ignore[arg-type]
    for f in fields(cls):
        if "derived" not in f.metadata:
            here = f"{path}.{f.name}" if path else f.name
            yield from _described(own[f.name], here, "shape" in f.metadata)


def _described(hint: Any, path: str, is_shaped: bool) -> Iterator[tuple[str, str]]:
    kind, optional = plain(hint)
    maybe = ", if there is one" if optional else ""
    if is_dataclass(kind):
        yield from _leaves(kind, path)
    elif get_origin(kind) is tuple:
        inner = get_args(kind)[0]
        yield path, ("vectors" if inner is Tensor else "numbers") + maybe
    elif kind is Tensor:
        yield path, ("array" if is_shaped else "vector") + maybe
    else:
        yield path, "number" + maybe
