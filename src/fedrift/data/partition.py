"""The divisions of a data set among clients, by name: labels → one index array per client."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedrift import grammar
from fedrift.data import manifest, schemes
from fedrift.data.assignment import Assignment, Partition, PartitionRequest
from fedrift.data.shift import shift
from fedrift.errors import InputError, no_option, unknown
from fedrift.rng import generator

__all__ = ["NAMES", "Partition", "Scheme", "partition", "shift"]


@dataclass(frozen=True)
class Scheme:
    """One way to divide; `parameter` is what its value is called."""

    make: Callable[[PartitionRequest], Assignment]
    about: str
    grammar: str
    parameter: str = ""
    options: tuple[str, ...] = ()


def natural(request: PartitionRequest) -> Assignment:
    """One client per user of the data; the number of clients asked for is not used."""
    users = request.users
    if users is None:
        raise request.error(
            "these data do not say which user a sample came from; synthetic, csv (column user) and "
            "npz (array users) do; otherwise use another scheme, for example dirichlet:0.5"
        )
    if users.shape != (request.samples,):
        raise request.error(
            f"users has shape {users.shape}, but there are {request.samples} samples"
        )
    names, owner = np.unique(users, return_inverse=True)
    wanted = request.wanted_clients
    note = "" if wanted in (None, len(names)) else f"clients={wanted} not used: one client per user"
    return Assignment(owner.astype(np.int64, copy=False), len(names), note)


def from_manifest(request: PartitionRequest) -> Assignment:
    """The division that was saved in a file, if it was made for these labels."""
    file = request.scheme.value
    if file is None:
        raise request.error("the file is missing; write manifest:FILE")
    saved = manifest.load(Path(file), request.y)
    if request.wanted_clients not in (None, saved.clients):
        raise request.error(
            f"it holds {saved.clients} clients, but clients={request.wanted_clients}; "
            f"use clients={saved.clients}"
        )
    owner = np.empty(saved.samples, np.int64)
    for client, part in enumerate(saved.parts):
        owner[part] = client
    return Assignment(owner, saved.clients, f"{saved.name}, seed {saved.seed}")


_MINIMUM = ("min_size",)

NAMES: dict[str, Scheme] = {
    "iid": Scheme(schemes.iid, "equal parts of the shuffled data", "iid"),
    "dirichlet": Scheme(
        schemes.dirichlet,
        "label skew: for each class, Dir(α) over the clients (NIID-bench, Flower); sizes vary",
        "dirichlet:ALPHA[,min_size=K]",
        "alpha",
        _MINIMUM,
    ),
    "dirichlet-client": Scheme(
        schemes.dirichlet_client,
        "label skew: for each client, Dir(α) over the classes (FedDyn); equal sizes",
        "dirichlet-client:ALPHA[,min_size=K]",
        "alpha",
        _MINIMUM,
    ),
    "hsu": Scheme(
        schemes.hsu,
        "label skew: for each client, Dir(α × class prior) over the classes (FedSAM); equal sizes",
        "hsu:ALPHA[,min_size=K]",
        "alpha",
        _MINIMUM,
    ),
    "classes": Scheme(
        schemes.classes,
        "label skew: K classes per client, or the classes named for each client",
        "classes:K  or  classes:1,3|0,6|2,5",
        "k",
    ),
    "shards": Scheme(
        schemes.shards,
        "label skew: sorted by label and cut, K shards per client (McMahan et al.)",
        "shards:K",
        "k",
    ),
    "lognormal": Scheme(
        schemes.lognormal,
        "size skew: log-normal sizes, labels iid",
        "lognormal:SIGMA[,min_size=K]",
        "sigma",
        _MINIMUM,
    ),
    "powerlaw": Scheme(
        schemes.powerlaw,
        "size skew: the k-th largest client has a share of k^-A, labels iid",
        "powerlaw:A[,min_size=K]",
        "a",
        _MINIMUM,
    ),
    "natural": Scheme(natural, "one client per user of the data", "natural"),
    "manifest": Scheme(from_manifest, "the division saved in a file", "manifest:FILE", "file"),
}


def partition(
    text: str,
    y: npt.ArrayLike,
    *,
    clients: int | None = None,
    seed: int,
    users: npt.ArrayLike | None = None,
    alpha: float | None = None,
) -> Partition:
    """Divides the samples with targets `y` among clients as `text` says.

    `alpha` overrides the value in a text that has an α. `clients` may be left out, or must agree,
    where the text fixes it (named classes, manifest); `natural` does not use it.
    """
    targets = np.asarray(y)
    if targets.ndim == 0 or len(targets) == 0:
        raise InputError(f"partition '{text}': y has no samples; give one target per sample")
    wanted = None if clients is None else _whole(clients, "clients")
    if _whole(seed, "seed") < 0:
        raise InputError(f"seed must be a whole number of at least 0, not {seed}")
    named, scheme = _scheme(text, alpha)
    rng = generator(seed, "partition")
    known = None if users is None else np.asarray(users)
    assignment = scheme.make(PartitionRequest(named, targets, wanted, rng, known))
    return Partition(str(named), assignment.parts(), seed, assignment.note)


def _scheme(text: str, alpha: float | None) -> tuple[grammar.Named, Scheme]:
    """The parsed text, its parameter always as the value: `dirichlet:alpha=1` → `dirichlet:1`."""
    named = grammar.parse(text, "partition")
    if named.name not in NAMES:
        raise unknown("partition", named.name, NAMES)
    scheme = NAMES[named.name]
    known = [key for key in (scheme.parameter, *scheme.options) if key]
    options = dict(named.options)
    value = options.pop(scheme.parameter, None)
    stray = [key for key in options if key not in scheme.options]
    if stray:
        raise no_option(f"partition '{text}'", stray[0], known, scheme.grammar)
    if named.inner is not None:
        raise InputError(f"partition '{text}' has parentheses; write {scheme.grammar}")
    if value is not None and named.value is not None:
        raise InputError(f"partition '{text}': {scheme.parameter} is given twice; keep one")
    if named.value is not None and not known:
        raise InputError(f"partition '{text}': {named.name} takes no value; write {scheme.grammar}")
    value = _override(named.name, scheme, alpha) or value or named.value
    return replace(named, value=value, options=options), scheme


def _override(name: str, scheme: Scheme, alpha: float | None) -> str | None:
    if alpha is None:
        return None
    if scheme.parameter != "alpha":
        fix = ", ".join(key for key, each in NAMES.items() if each.parameter == "alpha")
        raise InputError(f"alpha={alpha} has no meaning for partition '{name}'; it is for {fix}")
    if not isinstance(alpha, int | float | np.number) or not 0 <= float(alpha) < math.inf:
        raise InputError(f"alpha must be a number of at least 0, not {alpha}")
    return repr(float(alpha)).removesuffix(".0")


def _whole(number: int, field: str) -> int:
    if isinstance(number, bool) or not isinstance(number, int | np.integer):
        raise InputError(f"{field} must be a whole number, not {number!r}")
    return int(number)
