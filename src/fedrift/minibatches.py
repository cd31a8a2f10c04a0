"""The minibatches of several clients side by side: which samples, and what each of them counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from fedrift.chain import Chain
from fedrift.data.batches import table
from fedrift.data.resident import pooled
from fedrift.flat import sent
from fedrift.requests import Request, room_of

AHEAD = 32  # steps whose targets are made ready at once


class Minibatches:
    """Chosen for all steps before the first one; clients with more steps come first."""

    def __init__(self, chain: Chain, requests: Sequence[Request], like: Tensor) -> None:
        first, most = requests[0], len(requests[0].rates)
        self._chain, self._room = chain, room_of(len(first.samples), first.local.batch_size)
        self._x, self._y, places = pooled([r.samples for r in requests])
        index = np.zeros((most, len(requests), self._room), dtype=np.int64)
        self.sizes = np.ones((most, len(requests)), dtype=np.int64)
        for i, r in enumerate(requests):
            k = len(r.rates)
            order, sizes = table(len(r.samples), r.local.batch_size, k, r.order, self._room)
            index[:k, i] = places[i][order]
            self.sizes[:k, i] = sizes
        counts = np.arange(self._room) < self.sizes[..., None]
        share = torch.from_numpy(counts / self.sizes[..., None]).unsqueeze(-1)
        self._share = sent(share.to(like.dtype), like.device)
        self._index = sent(torch.from_numpy(index), like.device)

    def some(self, which: range, rows: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Samples, what is wanted of them and what they count, step by step, of the first rows."""
        for begin in range(which.start, which.stop, AHEAD):
            steps = slice(begin, min(begin + AHEAD, which.stop))
            index, share = self._index[steps, :rows], self._share[steps, :rows]
            y = self._y(index.reshape(-1))
            wanted = self._chain.wanted(y.reshape(*index.shape, *y.shape[1:]), share)
            each = zip(index.flatten(1).unbind(), wanted.unbind(), share.unbind(), strict=True)
            for chosen, aim, counts in each:
                yield self._x(chosen).view(rows, self._room, -1), aim, counts
