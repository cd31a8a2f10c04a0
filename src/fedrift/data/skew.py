"""Label skew by Dirichlet proportions: per class, per client, and times the class prior.

`dirichlet`: Yurochkin et al. 2019 as NIID-bench (Li et al. 2022) and Flower draw it. Both redraw
until every client has `min_size`, which need not end; here the best of a few draws is mended.
`dirichlet-client`: Acar et al. 2021 (FedDyn). `hsu`: Hsu, Qi, Brown 2019. In both the clients
fill up one after another; FedDyn's code lets them take turns sample by sample, which leaves
everybody with remnants of many classes (3.3 instead of 1.3 of 10 classes at hsu's α = 0.05).
All three at α = 0: sorted by label, one contiguous shard per client.
"""

from __future__ import annotations

import numpy as np

from fedrift.data.parts import Assignment, Floats, Ints, Request
from fedrift.data.pathological import seats
from fedrift.data.sizes import even, moved_note, normalised, raise_minimum, rounded

DRAWS = 10  # of `dirichlet`, before the best is mended
TINY = 1e-100  # concentrations below behave alike, and their logarithms would overflow
TOLERANCE = 0.25  # how far one-class shards may be from n/N before classes share a client


def dirichlet(request: Request) -> Assignment:
    """For each class in turn, proportions over the clients ~ Dir(α·1_N)."""
    alpha = _alpha(request)
    if alpha == 0:
        return _sorted_shards(request)
    labels, clients, minimum = request.labels, request.clients, request.minimum()
    best, least = None, 0
    for _ in range(DRAWS):
        counts = over_clients(labels.counts, clients, alpha, request.rng)
        missing = np.maximum(minimum - counts.sum(axis=1), 0).sum()
        if best is None or missing < least:
            best, least = counts, missing
        if least == 0:
            break
    assert best is not None
    moved = raise_minimum(best, minimum)
    return Assignment(labels.deal(best, request.rng), clients, moved_note(moved, minimum))


def dirichlet_client(request: Request) -> Assignment:
    """For each client, a mixture of the classes ~ Dir(α·1_Y); equal sizes."""
    return _balanced(request, prior=False)


def hsu(request: Request) -> Assignment:
    """For each client, a mixture of the classes ~ Dir(α·p), p the class prior; equal sizes."""
    return _balanced(request, prior=True)


def _alpha(request: Request) -> float:
    return request.parameter("alpha", f"{request.scheme.name}:0.5")


def _balanced(request: Request, prior: bool) -> Assignment:
    alpha = _alpha(request)
    if alpha == 0:
        return _sorted_shards(request)
    labels, clients = request.labels, request.clients
    request.minimum()  # an even share is the most any minimum can ask; this refuses more
    weight = labels.counts / request.samples if prior else np.ones(len(labels.counts))
    mixtures = log_dirichlet(np.tile(alpha * weight, (clients, 1)), request.rng)
    counts = fill(mixtures, even(request.samples, clients), labels.counts, request.rng)
    return Assignment(labels.deal(counts, request.rng), clients)


def _sorted_shards(request: Request) -> Assignment:
    """α = 0. Cuts fall between classes if all shards then stay within a quarter of n/N."""
    labels, clients, minimum = request.labels, request.clients, request.minimum()
    sizes = even(request.samples, clients)
    if clients >= len(labels.counts):
        pieces = seats(labels.counts, clients, labels.counts)
        whole = np.concatenate([even(n, k) for n, k in zip(labels.counts, pieces, strict=True)])
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


def over_clients(supply: Ints, clients: int, alpha: float, rng: np.random.Generator) -> Ints:
    """One draw of `dirichlet`: samples of each class (column) for each client (row).

    A client that already has n/N samples or more gets nothing of the later classes.
    """
    counts = np.zeros((clients, len(supply)), np.int64)
    share = supply.sum() / clients
    sizes = np.zeros(clients, np.int64)
    for label, available in enumerate(supply):
        log_share = log_dirichlet(np.full(clients, alpha), rng)
        hungry = np.flatnonzero(sizes < share)
        counts[hungry, label] = rounded(normalised(log_share[hungry]), int(available))
        sizes += counts[:, label]
    return counts


def fill(log_mixtures: Floats, sizes: Ints, supply: Ints, rng: np.random.Generator) -> Ints:
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
