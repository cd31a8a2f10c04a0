"""The clients' data as resident tensors: one block, and for each client its own samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from fedrift.core.alignment import dense
from fedrift.core.flat import count, map_tree, sent
from fedrift.data.hold_out import HalfOf, held_sizes, hold_out
from fedrift.data.shift import Domains


class SamplePicker:
    """Picks samples of a tensor, a third of the time of indexing it, in the same memory format."""

    def __init__(self, t: Tensor) -> None:
        self.whole = t = dense(t)
        self._rows: Tensor | None = None
        if t.numel() and t.dim() > 1:
            size = t[0].numel()
            self._rows = t.as_strided((len(t), size), (size, 1))
            self._form = tuple(t.shape[1:]), (size, *t.stride()[1:])

    def __call__(self, index: Tensor) -> Tensor:
        index = index if index.device == self.whole.device else sent(index, self.whole.device)
        if self._rows is None:
            return self.whole[index]
        shape, strides = self._form
        return self._rows.index_select(0, index).as_strided((len(index), *shape), strides)

    def flat(self, index: Tensor) -> Tensor:
        """The same as rows of numbers."""
        if self._rows is not None and self.whole.is_contiguous():
            return self._rows.index_select(0, index)
        return self(index).flatten(1)


@dataclass(frozen=True)
class View:
    """One client's samples inside the resident tensors."""

    x: Any  # a SamplePicker, or a tuple or dict of them
    y: Any
    index: Tensor

    def __len__(self) -> int:
        return self.index.shape[0]

    def batch(self, positions: np.ndarray | None) -> tuple[Any, Any]:
        """Samples by position among the client's own; None takes all of them."""
        chosen = self.index if positions is None else self.index[torch.from_numpy(positions)]
        return _picked(self.x, chosen), _picked(self.y, chosen)


def _picked(rows: Any, index: Tensor) -> Any:
    return map_tree(lambda pick: pick(index), rows)


Pick = Callable[[Tensor], Tensor]


def backing_samples(client: Any) -> tuple[Any, Any]:
    """All that a client's samples are picked from: everybody's, or its own."""
    if (
        isinstance(client, View)
        and isinstance(client.x, SamplePicker)
        and isinstance(client.y, SamplePicker)
    ):
        return client.x.whole, client.y.whole
    return client.batch(None)


def pooled(clients: Sequence[Any]) -> tuple[Pick, Pick, list[np.ndarray]]:
    """Pick x (as rows of numbers) and y of several clients at once, and where each one's stand."""
    first = clients[0]
    views = [c for c in clients if isinstance(c, View) and c.x is first.x and c.y is first.y]
    if len(views) == len(clients):
        return first.x.flat, first.y, [v.index.numpy() for v in views]
    parts = [c.batch(None) for c in clients]
    x, y = (SamplePicker(torch.cat(tensors)) for tensors in zip(*parts, strict=True))
    ends = np.cumsum([len(c) for c in clients])
    return x.flat, y, np.split(np.arange(ends[-1]), ends[:-1])


Make = Callable[[int], tuple[np.ndarray, np.ndarray]]
"""The samples of a client, made anew and always the same."""


class Split(Sequence[tuple[Any, Any]]):
    """A list of clients' (x, y), held as one block of tensors and a list of indices.

    With `make` the block is only an example, and a client's samples are made when it is visited.
    """

    def __init__(
        self,
        x: Any,
        y: Any,
        parts: Sequence[np.ndarray],
        note: str = "",
        make: Make | None = None,
        sizes: np.ndarray | None = None,
        test: Split | None = None,
        domains: Domains | None = None,
    ) -> None:
        """`test` holds what each client tests on, in the order of the clients; `domains` says how
        their inputs differ."""
        self.x, self.y = map_tree(dense, x), map_tree(dense, y)
        self._rows = map_tree(SamplePicker, self.x), map_tree(SamplePicker, self.y)
        self.parts = tuple(np.ascontiguousarray(p, dtype=np.int64) for p in parts)
        self.note, self.make, self.test, self.domains = note, make, test, domains
        self.sizes: np.ndarray = (
            np.array([len(p) for p in self.parts], dtype=np.int64) if sizes is None else sizes
        )

    def with_data(self, x: Any, y: Any, test: Split | None = None) -> Split:
        """The same division of other tensors; so is that of the test data, unless it is given."""
        own = self.test
        if test is None and own is not None and own.x is self.x and own.y is self.y:
            test = own.with_data(x, y)
        return Split(x, y, self.parts, self.note, self.make, self.sizes, test, self.domains)

    def held_out(self, share: float, seed: int) -> Split:
        """The same clients, each of which keeps a share of its samples to test on."""
        if self.make is not None:
            train, test = (HalfOf(self.make, share, seed, is_test) for is_test in (False, True))
            tried = held_sizes(self.sizes, share)
            own = Split(self.x, self.y, (), make=test, sizes=tried)
            return Split(self.x, self.y, (), self.note, train, self.sizes - tried, own)
        y = self.y.numpy() if isinstance(self.y, Tensor) else np.empty(count(self.y), dtype=object)
        rest, held = hold_out(y, self.parts, share, seed)
        own = Split(self.x, self.y, held)
        return Split(self.x, self.y, rest, self.note, test=own, domains=self.domains)

    def first(self, number: int) -> np.ndarray:
        """Where the first samples of the first clients stand in x and y."""
        if self.make is not None:
            return np.arange(min(number, len(self.y)))
        return np.concatenate(self.parts)[:number]

    def flat(self) -> tuple[Tensor, Tensor]:
        """All indices in one tensor, and where each client's end: a form that can be shared."""
        ends = torch.from_numpy(np.cumsum(self.sizes))
        return torch.from_numpy(np.concatenate([*self.parts, np.empty(0, np.int64)])), ends

    @staticmethod
    def from_flat(
        x: Any,
        y: Any,
        parts: Tensor,
        ends: Tensor,
        make: Make | None = None,
        test: Split | None = None,
    ) -> Split:
        if make is not None:
            return Split(x, y, (), make=make, sizes=np.diff(ends.numpy(), prepend=0), test=test)
        return Split(x, y, np.split(parts.numpy(), ends.numpy()[:-1]), test=test)

    def view(self, client: int) -> View:
        if self.make is None:
            return View(*self._rows, torch.from_numpy(self.parts[client]))
        x, y = (torch.from_numpy(array) for array in self.make(client))
        there = self.y.device
        return View(
            SamplePicker(sent(x.to(self.x.dtype), there)),
            SamplePicker(sent(y, there)),
            torch.arange(len(y)),
        )

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, key: int) -> tuple[Any, Any]: ...
    @overload
    def __getitem__(self, key: slice) -> list[tuple[Any, Any]]: ...
    def __getitem__(self, key: int | slice) -> Any:
        if isinstance(key, slice):
            return [self[i] for i in range(*key.indices(len(self)))]
        return self.view(range(len(self))[key]).batch(None)

    def __repr__(self) -> str:
        note = f", {self.note}" if self.note else ""
        tried = "" if self.test is None else f" and {self.test.sizes.sum()} to test on"
        return f"<Split: {len(self)} clients, {self.sizes.sum()} samples{tried}{note}>"
