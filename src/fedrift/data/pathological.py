"""Label skew by whole classes: K classes per client, named classes per client, sorted shards.

`classes`: as many holders per class as its size deserves, so that sizes stay close.
`shards`: McMahan et al. 2017: sort by label, cut, K shards per client.
"""

from __future__ import annotations

import heapq

import numpy as np

from fedrift.data.parts import Assignment, Ints, Request
from fedrift.data.sizes import even
from fedrift.grammar import number


def shards(request: Request) -> Assignment:
    """Sorted by label and cut into N·K shards; each client gets K of them at random."""
    per_client = int(request.parameter("k", "shards:2", kind=int, low=1))
    total = request.clients * per_client
    if total > request.samples:
        raise request.error(
            f"{total} shards are more than the {request.samples} samples; "
            f"use at most shards:{request.samples // request.clients}"
        )
    holder = request.rng.permutation(np.repeat(np.arange(request.clients), per_client))
    owner = np.empty(request.samples, np.int64)
    order = request.labels.shuffled_order(request.rng)
    owner[order] = np.repeat(holder, even(request.samples, total))
    return Assignment(owner, request.clients)


def classes(request: Request) -> Assignment:
    """K classes for each client, or the classes named for each client: `1,3|0,6`."""
    value = request.scheme.value or ""
    named = "|" in value or "," in value
    held = _named(request, value) if named else _drawn(request)
    counts = _shared(held, request.labels.counts, request.rng)
    return Assignment(request.labels.deal(counts, request.rng), len(held))


def _drawn(request: Request) -> Ints:
    """Which classes each client holds: K of them, every class held by somebody."""
    k = int(request.parameter("k", "classes:2", kind=int, low=1))
    clients, supply = request.clients, request.labels.counts
    if k > len(supply):
        raise request.error(f"k={k} is more than the {len(supply)} classes in the data; use fewer")
    if clients * k < len(supply):
        raise request.error(
            f"{clients} clients of {k} classes leave out some of the {len(supply)} classes; "
            f"use classes:{-(-len(supply) // clients)} or clients={-(-len(supply) // k)}"
        )
    most = np.minimum(supply, clients)
    if most.sum() < clients * k:
        raise request.error(
            f"the smaller classes have too few samples for {clients} clients of {k} classes; "
            f"use at most classes:{max(1, most.sum() // clients)} or fewer clients"
        )
    return _hands(seats(supply, clients * k, most), clients, k, request.rng)


def _hands(holders: Ints, clients: int, k: int, rng: np.random.Generator) -> Ints:
    """Deals each client k different classes so that class c is dealt `holders[c]` times.

    Always the classes with the most deals to go (ties at random): this never gets stuck.
    """
    left = holders.copy()
    held = np.zeros((clients, len(holders)), np.int64)
    for client in range(clients):
        chosen = np.argsort(-(left + rng.random(len(left))), kind="stable")[:k]
        held[client, chosen] = 1
        left[chosen] -= 1
    return held


def _named(request: Request, value: str) -> Ints:
    """Which classes each client holds, as the text says: one group per client."""
    groups = value.split("|")
    wanted = request.wanted_clients
    if wanted is not None and wanted != len(groups):
        raise request.error(
            f"{len(groups)} groups of classes for clients={wanted}; "
            f"give one group per client or clients={len(groups)}"
        )
    values = request.labels.values
    held = np.zeros((len(groups), len(values)), np.int64)
    for client, group in enumerate(groups):
        for text in group.split(","):
            label = number(
                text, f"partition '{request.scheme}': class of client {client}", kind=int
            )
            at = np.flatnonzero(values == label)
            if len(at) == 0:
                known = ", ".join(map(str, values[:20]))
                raise request.error(f"class {label} is not in the data; classes: {known}")
            if held[client, at[0]]:
                raise request.error(f"class {label} stands twice in client {client}'s group")
            held[client, at[0]] = 1
    _check_named(request, held)
    return held


def _check_named(request: Request, held: Ints) -> None:
    labels, holders = request.labels, held.sum(axis=0)
    if (left_over := labels.values[holders == 0]).size:
        names = ", ".join(map(str, left_over))
        raise request.error(f"no client has class {names}; every sample needs one, so add it")
    for label, available, wanted in zip(labels.values, labels.counts, holders, strict=True):
        if wanted > available:
            raise request.error(
                f"{wanted} clients claim class {label}, which has {available} samples; "
                "let fewer claim it"
            )


def seats(supply: Ints, total: int, most: Ints) -> Ints:
    """`total` holders shared among the classes: at least 1 each, at most `most`.

    The next holder goes where there are most samples per holder (D'Hondt's rule).
    """
    taken = np.ones(len(supply), np.int64)
    queue = [(-n, c) for c, n in enumerate(supply.tolist()) if most[c] > 1]
    heapq.heapify(queue)
    for _ in range(total - len(supply)):
        _, c = queue[0]
        taken[c] += 1
        if taken[c] < most[c]:
            heapq.heapreplace(queue, (-int(supply[c]) / int(taken[c]), c))
        else:
            heapq.heappop(queue)
    return taken


def _shared(held: Ints, supply: Ints, rng: np.random.Generator) -> Ints:
    """Each class in equal shares for those who hold it; who gets the odd ones is random."""
    counts = np.zeros(held.shape, np.int64)
    for label, available in enumerate(supply.tolist()):
        holders = np.flatnonzero(held[:, label])
        counts[rng.permutation(holders), label] = even(available, len(holders))
    return counts
