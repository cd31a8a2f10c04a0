"""An algorithm and what it wraps: the paths of its parts, what runs at clients and whose state that
reads and writes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from fedrift.core.algorithm import Algorithm
from fedrift.core.codecs import Unsent, rules_of
from fedrift.core.exchange import Signature, signature
from fedrift.core.isolation import at_server, drawing_alone
from fedrift.core.local import Local
from fedrift.core.phases import owner_of
from fedrift.core.problem import Problem
from fedrift.errors import InputError


def parts(algorithm: Algorithm[Any, Any]) -> Iterator[tuple[str, Algorithm[Any, Any]]]:
    """The algorithm and everything it wraps, with their paths."""
    yield "", algorithm
    for f in fields(algorithm):  # type: ignore[arg-type]
        child = getattr(algorithm, f.name)
        if isinstance(child, Algorithm):
            for path, node in parts(child):  # type: ignore[reportUnknownArgumentType]
                yield (f"{f.name}.{path}" if path else f.name), node


def local_of(algorithm: Algorithm[Any, Any]) -> Local | None:
    """The local settings of an algorithm or of what it wraps."""
    for _, node in parts(algorithm):
        local = getattr(node, "local", None)
        if isinstance(local, Local):
            return local
    return None


def map_local(
    algorithm: Algorithm[Any, Any], change: Callable[[Local], Local]
) -> Algorithm[Any, Any]:
    """The algorithm with its local settings, or those of what it wraps, changed."""
    changes: dict[str, Any] = {}
    for f in fields(algorithm):  # type: ignore[arg-type]
        value = getattr(algorithm, f.name)
        if isinstance(value, Local):
            changes[f.name] = change(value)
        elif isinstance(value, Algorithm):
            changes[f.name] = map_local(value, change)
    return replace(algorithm, **changes)  # type: ignore[type-var]


def address(root: Algorithm[Any, Any], fn: Callable[..., Any]) -> str:
    """Where a client method is found: `train`, `inner.train`."""
    owner = getattr(fn, "__self__", None)
    for path, node in parts(root):
        if node is owner:
            return f"{path}.{fn.__name__}" if path else fn.__name__
    raise InputError(
        f"cohort.ask: '{getattr(fn, '__name__', fn)}' is not a method of the algorithm that runs"
    )


def resolve(
    root: Algorithm[Any, Any], p: Problem, path: str
) -> tuple[Algorithm[Any, Any], Problem]:
    """The algorithm at a path and its view of the task."""
    node = root
    for name in path.split(".") if path else ():
        node, p = getattr(node, name), node.view(name, p)
    return node, p


def arrivals_of(root: Algorithm[Any, Any]) -> int | None:
    """How many replies make a round of an asynchronous algorithm, or of one that wraps it."""
    return next((n for n in (node.arrivals() for _, node in parts(root)) if n is not None), None)


def personal_path(root: Algorithm[Any, Any], p: Problem) -> str | None:
    """Where the algorithm stands whose clients have models of their own: the outermost that
    writes `personal`; None if nobody does."""
    for path, node in parts(root):
        if type(node).personal is Algorithm.personal:
            continue
        if resolve(root, p, path)[1].layout.names != p.layout.names:
            raise InputError(
                f"{type(node).__name__} has models of the clients' own and is given a part of the "
                "model only; train all of it"
            )
        return path
    return None


def is_host(node: Algorithm[Any, Any]) -> bool:
    """Whether it does something around the visits of what it wraps."""
    return type(node).around is not Algorithm.around


def has_hosts(root: Algorithm[Any, Any]) -> bool:
    """Whether any wrapper does something around the visits of what it wraps."""
    return any(is_host(node) for _, node in parts(root))


def host_path(root: Algorithm[Any, Any], path: str) -> str | None:
    """Where the wrapper stands that is around the visits of what stands at a path."""
    node, way = root, path.split(".") if path else []
    for i, name in enumerate(way):
        if is_host(node):
            return ".".join(way[:i])
        node = getattr(node, name)
    return None


def state_path(root: Algorithm[Any, Any], path: str) -> str:
    """Where the state is kept that visits of what stands at a path read and write."""
    host = host_path(root, path)
    return path if host is None else host


def fed_back(root: Algorithm[Any, Any], p: Problem, path: str) -> tuple[tuple[str, str], ...]:
    """Phase and field of all that is packed with feedback in visits that use the state there."""
    if (how := p.compression) is None:
        return ()
    found: list[tuple[str, str]] = []
    for at, node in parts(root):
        if state_path(root, at) != path:
            continue
        for method in _methods(node):
            phase = f"{at}.{method.function.__name__}" if at else method.function.__name__
            rules = rules_of(how, "up", method.signature.up)
            found += [(phase, name) for name, packing in rules.items() if packing.has_feedback]
    return tuple(found)


def client_start(root: Algorithm[Any, Any], p: Problem, path: str) -> Any:
    """The state that every client begins with; None if nothing is kept there."""
    node, view = resolve(root, p, path)
    with drawing_alone(), at_server(0, "client start"):  # every process makes the same
        start = node.client(view)
    sent = fed_back(root, p, path)
    if not sent:
        return start
    views = (resolve(root, p, owner_of(phase))[1] for phase, _ in sent)
    return Unsent(inner=start, error=tuple(torch.zeros_like(view.w0) for view in views))


def inner_client(inner: Algorithm[Any, Any], p: Problem) -> Any:
    """The initial state that a wrapper around visits keeps for the algorithm inside."""
    if len({id(method.owner) for method in client_methods(inner)}) > 1:
        raise InputError("it wraps two algorithms that take turns; only one can be inside")
    if has_hosts(inner):
        raise InputError("what it wraps has models of the clients' own already; keep one of them")
    states = (node.client(view) for node, view in (resolve(inner, p, at) for at, _ in parts(inner)))
    return next((state for state in states if state is not None), None)


class ClientMethod(NamedTuple):
    """A method that runs at clients, and what it declares."""

    owner: Algorithm[Any, Any]
    function: Any
    signature: Signature


def client_methods(root: Algorithm[Any, Any]) -> list[ClientMethod]:
    """The client methods of an algorithm and of everything it wraps."""
    return [method for _, node in parts(root) for method in _methods(node)]


def _methods(node: Algorithm[Any, Any]) -> Iterator[ClientMethod]:
    for name in _client_names(type(node)):
        yield ClientMethod(node, getattr(type(node), name), signature(getattr(node, name)))


@lru_cache(maxsize=256)
def _client_names(kind: type) -> tuple[str, ...]:
    """Asked in every exchange; reading all signatures of a class costs more than a small visit."""
    return tuple(
        name
        for name, function in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
        and list(inspect.signature(function).parameters)[1:4] == ["site", "down", "mine"]
    )


def makes_steps(root: Algorithm[Any, Any]) -> bool:
    """Whether clients make local steps: FedSGD's, for one, only take a gradient."""
    methods = (inspect.unwrap(method.function) for method in client_methods(root))
    return any("train" in method.__code__.co_names for method in methods)
