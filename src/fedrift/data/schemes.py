"""The partition schemes: sizes that differ, whole classes per client, Dirichlet proportions.

Of the three Dirichlet schemes:
`dirichlet`: Yurochkin et al. 2019 as NIID-bench (Li et al. 2022) and Flower draw it. Both redraw
until every client has `min_size`, which need not end; here the best of a few draws is mended.
`dirichlet-client`: Acar et al. 2021 (FedDyn). `hsu`: Hsu, Qi, Brown 2019. In both the clients
fill up one after another; FedDyn's code lets them take turns sample by sample, which leaves
everybody with remnants of many classes (3.3 instead of 1.3 of 10 classes at hsu's α = 0.05).
All three at α = 0: sorted by label, one contiguous shard per client.
"""

from __future__ import annotations

import heapq

import numpy as np

from fedrift.data.assignment import Assignment, Floats, Ints, PartitionRequest
from fedrift.grammar import number

# Labels iid, sizes equal, log-normal or by a power law: shares of a shuffled data set.


def iid(request: PartitionRequest) -> Assignment:
    """A shuffled data set cut into parts whose sizes differ by at most one."""
    return _shuffled_parts(request, even_sizes(request.samples, request.clients))


def lognormal(request: PartitionRequest) -> Assignment:
    """Sizes proportional to exp(σ·z), z standard normal per client; labels iid."""
    sigma = request.parameter("sigma", "lognormal:1", high=100)
    return _sized_by_weight(request, sigma * request.rng.standard_normal(request.clients))


def powerlaw(request: PartitionRequest) -> Assignment:
    """The k-th largest client gets a share proportional to k^-a; who is k-th is random."""
    exponent = request.parameter("a", "powerlaw:1.5", high=100)
    rank = 1 + request.rng.permutation(request.clients)
    return _sized_by_weight(request, -exponent * np.log(rank))


def _sized_by_weight(request: PartitionRequest, log_weight: Floats) -> Assignment:
    minimum = request.minimum()
    sizes, raised = sizes_above(log_weight, request.samples, minimum)
    return _shuffled_parts(
        request, sizes, f"{raised} clients raised to {minimum}" if raised else ""
    )


def sizes_above(log_weight: Floats, total: int, minimum: int) -> tuple[Ints, int]:
    """Sizes in proportion to the weights, but none below `minimum`; how many were raised to it.

    Those raised are taken out and the rest shared anew, so the large keep their proportions.
    """
    free = np.ones(len(log_weight), bool)
    while True:
        left = total - minimum * int((~free).sum())
        share = normalised(np.where(free, log_weight, -np.inf))
        low = free & (share * left < minimum)
        if not low.any() or (low == free).all():
            break
        free &= ~low
    sizes = np.full(len(log_weight), minimum, np.int64)
    sizes[free] = rounded_counts(share[free], left)
    raise_minimum(sizes[:, None], minimum)  # a share just at the minimum may round down
    return sizes, int((~free).sum())


def _shuffled_parts(request: PartitionRequest, sizes: Ints, note: str = "") -> Assignment:
    owner = np.empty(request.samples, np.int64)
    owner[request.rng.permutation(request.samples)] = np.repeat(np.arange(len(sizes)), sizes)
    return Assignment(owner, len(sizes), note)


# Label skew by whole classes: sorted shards, K classes per client, named classes per client.


def shards(request: PartitionRequest) -> Assignment:
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
    owner[order] = np.repeat(holder, even_sizes(request.samples, total))
    return Assignment(owner, request.clients)


def classes(request: PartitionRequest) -> Assignment:
    """K classes for each client, or the classes named for each client: `1,3|0,6`."""
    value = request.scheme.value or ""
    named = "|" in value or "," in value
    holds = _named_classes(request, value) if named else _drawn_classes(request)
    counts = _class_counts(holds, request.labels.counts, request.rng)
    return Assignment(request.labels.deal(counts, request.rng), len(holds))


def _drawn_classes(request: PartitionRequest) -> Ints:
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
    return _deal_classes(holders_per_class(supply, clients * k, most), clients, k, request.rng)


def _deal_classes(holders: Ints, clients: int, k: int, rng: np.random.Generator) -> Ints:
    """Deals each client k different classes so that class c is dealt `holders[c]` times.

    Always the classes with the most deals to go (ties at random): this never gets stuck.
    """
    left = holders.copy()
    holds = np.zeros((clients, len(holders)), np.int64)
    for client in range(clients):
        chosen = np.argsort(-(left + rng.random(len(left))), kind="stable")[:k]
        holds[client, chosen] = 1
        left[chosen] -= 1
    return holds


def _named_classes(request: PartitionRequest, value: str) -> Ints:
    """Which classes each client holds, as the text says: one group per client."""
    groups = value.split("|")
    wanted = request.wanted_clients
    if wanted is not None and wanted != len(groups):
        raise request.error(
            f"{len(groups)} groups of classes for clients={wanted}; "
            f"give one group per client or clients={len(groups)}"
        )
    values = request.labels.values
    holds = np.zeros((len(groups), len(values)), np.int64)
    for client, group in enumerate(groups):
        for text in group.split(","):
            label = number(
                text, f"partition '{request.scheme}': class of client {client}", kind=int
            )
            at = np.flatnonzero(values == label)
            if len(at) == 0:
                known = ", ".join(map(str, values[:20]))
                raise request.error(f"class {label} is not in the data; classes: {known}")
            if holds[client, at[0]]:
                raise request.error(f"class {label} stands twice in client {client}'s group")
            holds[client, at[0]] = 1
    _check_named(request, holds)
    return holds


def _check_named(request: PartitionRequest, holds: Ints) -> None:
    labels, holders = request.labels, holds.sum(axis=0)
    if (left_over := labels.values[holders == 0]).size:
        names = ", ".join(map(str, left_over))
        raise request.error(f"no client has class {names}; every sample needs one, so add it")
    for label, available, wanted in zip(labels.values, labels.counts, holders, strict=True):
        if wanted > available:
            raise request.error(
                f"{wanted} clients claim class {label}, which has {available} samples; "
                "let fewer claim it"
            )


def _class_counts(holds: Ints, supply: Ints, rng: np.random.Generator) -> Ints:
    """Each class in equal shares for those who hold it; who gets the odd ones is random."""
    counts = np.zeros(holds.shape, np.int64)
    for label, available in enumerate(supply.tolist()):
        holders = np.flatnonzero(holds[:, label])
        counts[rng.permutation(holders), label] = even_sizes(available, len(holders))
    return counts


# Label skew by Dirichlet proportions: per class, per client, times the class prior.

DRAWS = 10  # of `dirichlet`, before the best is mended
TINY = 1e-100  # concentrations below behave alike, and their logarithms would overflow
TOLERANCE = 0.25  # how far one-class shards may be from n/N before classes share a client


def dirichlet(request: PartitionRequest) -> Assignment:
    """For each class in turn, proportions over the clients ~ Dir(α·1_N)."""
    alpha = _alpha(request)
    if alpha == 0:
        return _sorted_shards(request)
    labels, clients, minimum = request.labels, request.clients, request.minimum()
    best, least = None, 0
    for _ in range(DRAWS):
        counts = dirichlet_counts(labels.counts, clients, alpha, request.rng)
        missing = np.maximum(minimum - counts.sum(axis=1), 0).sum()
        if best is None or missing < least:
            best, least = counts, missing
        if least == 0:
            break
    assert best is not None
    moved = raise_minimum(best, minimum)
    return Assignment(labels.deal(best, request.rng), clients, moved_note(moved, minimum))


def dirichlet_client(request: PartitionRequest) -> Assignment:
    """For each client, a mixture of the classes ~ Dir(α·1_Y); equal sizes."""
    return _balanced(request, prior=False)


def hsu(request: PartitionRequest) -> Assignment:
    """For each client, a mixture of the classes ~ Dir(α·p), p the class prior; equal sizes."""
    return _balanced(request, prior=True)


def _alpha(request: PartitionRequest) -> float:
    return request.parameter("alpha", f"{request.scheme.name}:0.5")


def _balanced(request: PartitionRequest, prior: bool) -> Assignment:
    alpha = _alpha(request)
    if alpha == 0:
        return _sorted_shards(request)
    labels, clients = request.labels, request.clients
    request.minimum()  # an even share is the most any minimum can ask; this refuses more
    weight = labels.counts / request.samples if prior else np.ones(len(labels.counts))
    mixtures = log_dirichlet(np.tile(alpha * weight, (clients, 1)), request.rng)
    counts = draw_without_replacement(
        mixtures, even_sizes(request.samples, clients), labels.counts, request.rng
    )
    return Assignment(labels.deal(counts, request.rng), clients)


def _sorted_shards(request: PartitionRequest) -> Assignment:
    """α = 0. Cuts fall between classes if all shards then stay within a quarter of n/N."""
    labels, clients, minimum = request.labels, request.clients, request.minimum()
    sizes = even_sizes(request.samples, clients)
    if clients >= len(labels.counts):
        pieces = holders_per_class(labels.counts, clients, labels.counts)
        whole = np.concatenate(
            [even_sizes(n, k) for n, k in zip(labels.counts, pieces, strict=True)]
        )
        apart = np.abs(whole * clients / request.samples - 1).max()
        if apart <= TOLERANCE and whole.min() >= minimum:
            sizes = whole
    owner = np.empty(request.samples, np.int64)
    owner[labels.shuffled_order(request.rng)] = np.repeat(np.arange(clients), sizes)
    return Assignment(owner, clients)


def log_dirichlet(concentration: Floats, rng: np.random.Generator) -> Floats:
    """Logarithms, up to a constant per row, of Dirichlet draws with these concentrations.

    Gamma(a) is Gamma(a+1)·U^(1/a), whose logarithm is finite where the number itself is 0.
    """
    a = np.maximum(concentration, TINY)
    return np.log(rng.standard_gamma(a + 1)) - rng.standard_exponential(a.shape) / a


def dirichlet_counts(supply: Ints, clients: int, alpha: float, rng: np.random.Generator) -> Ints:
    """One draw of `dirichlet`: samples of each class (column) for each client (row).

    A client that already has n/N samples or more gets nothing of the later classes.
    """
    counts = np.zeros((clients, len(supply)), np.int64)
    share = supply.sum() / clients
    sizes = np.zeros(clients, np.int64)
    for label, available in enumerate(supply):
        log_share = log_dirichlet(np.full(clients, alpha), rng)
        hungry = np.flatnonzero(sizes < share)
        counts[hungry, label] = rounded_counts(normalised(log_share[hungry]), int(available))
        sizes += counts[:, label]
    return counts


def draw_without_replacement(
    log_mixtures: Floats, sizes: Ints, supply: Ints, rng: np.random.Generator
) -> Ints:
    """Draws `sizes[i]` class labels from mixture i, without replacement of samples.

    Clients fill up one after another in random order. Draws from a class that has run out are
    repeated among the others: the same law as renormalising at each draw, but many at a time.
    """
    counts = np.zeros(log_mixtures.shape, np.int64)
    left = supply.copy()
    for client in rng.permutation(len(sizes)):
        wanted = int(sizes[client])
        while wanted:
            # A pass that leaves something wanted has emptied a class: at most Y passes.
            there = np.flatnonzero(left)
            drawn = rng.multinomial(wanted, normalised(log_mixtures[client, there]))
            taken = np.minimum(drawn, left[there])
            counts[client, there] += taken
            left[there] -= taken
            wanted -= int(taken.sum())
    return counts


# Whole numbers from shares, used by all of them.


def even_sizes(total: int, pieces: int) -> Ints:
    """`total` in `pieces` whole numbers that differ by at most one."""
    return np.diff(np.arange(pieces + 1, dtype=np.int64) * total // pieces)


def normalised(log_weight: Floats) -> Floats:
    """Shares that sum to one. From logarithms: some share survives however small all are."""
    weight = np.exp(log_weight - log_weight.max())
    return weight / weight.sum()


def rounded_counts(share: Floats, total: int) -> Ints:
    """`total` in whole numbers next to the shares, by rounding the running sum.

    To the nearest: rounded down, as NIID-bench does, the last client gets one too many each time.
    """
    ends = np.rint(np.cumsum(share) * total).astype(np.int64)
    ends[-1] = total
    return np.diff(np.minimum(ends, total), prepend=0)


def raise_minimum(counts: Ints, minimum: int) -> int:
    """Gives every client (row) at least `minimum` samples, in place; how many were moved.

    They come from the largest class of whichever client is largest at the time. The total must
    allow it: then the largest client is above the minimum while any is below, so this ends.
    """
    sizes = counts.sum(axis=1)
    moved = 0
    for poor in np.flatnonzero(sizes < minimum):
        while sizes[poor] < minimum:
            rich = sizes.argmax()
            label = counts[rich].argmax()
            some = min(minimum - sizes[poor], sizes[rich] - minimum, counts[rich, label])
            counts[rich, label] -= some
            counts[poor, label] += some
            sizes[rich] -= some
            sizes[poor] += some
            moved += int(some)
    return moved


def moved_note(moved: int, minimum: int) -> str:
    return f"{moved} samples moved so that every client has at least {minimum}" if moved else ""


def holders_per_class(supply: Ints, total: int, most: Ints) -> Ints:
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
