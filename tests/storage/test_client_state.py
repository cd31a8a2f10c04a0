"""Client state: slots, commits and discards; dropped visits leave the old row."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedrift.core import (
    Algorithm,
    Cohort,
    Local,
    Mean,
    OptState,
    Problem,
    Site,
    Sum,
    Vec,
    message,
    state,
)
from fedrift.storage.client_state import RowLayout, Store, Table
from tests.support.problems import small_run
from tests.support.product import Scaffold, checkpoint

W = torch.arange(5.0)


@state
class Kept:
    v: Vec
    maybe: Vec | None
    opt: OptState
    k: int = 0
    share: float = 0.0
    is_old: bool = False
    later: float | None = None


def kept(x: float, **changes: Any) -> Kept:
    opt = OptState(slots=(torch.full((5,), x), torch.full((5,), -x)), count=torch.tensor(3))
    return Kept(v=torch.full((5,), x, dtype=torch.float64), maybe=None, opt=opt, **changes)


def table(file: Path | None = None, keeps: bool = False, population: int = 4) -> Table:
    return Table(RowLayout.of(kept(0.0), W), population, file, keeps)


def put(t: Table, client: int, value: Kept) -> int:
    slot = t.reserve()
    t.rows.write(slot, value)
    t.keep(client, slot)
    return slot


def test_a_row_holds_vectors_numbers_and_what_is_absent() -> None:
    t = table()
    full = kept(2.0, k=-7, share=0.25, is_old=True, later=1e300)
    slot = put(t, 0, full)
    read: Kept = t.rows.read(slot)
    assert torch.equal(read.v, full.v) and read.v.dtype == torch.float64
    assert torch.equal(read.opt.slots[1], full.opt.slots[1])
    assert int(read.opt.count) == 3 and read.opt.count.shape == ()
    assert (read.k, read.share, read.is_old, read.later) == (-7, 0.25, True, 1e300)
    assert (type(read.k), type(read.is_old)) == (int, bool)
    assert read.maybe is None
    t.rows.write(slot, kept(3.0))
    assert t.rows.read(slot).later is None, "what was there may go again"


def test_an_optional_vector_has_room_for_the_parameters() -> None:
    t = table()
    slot = put(t, 0, Kept(v=kept(1.0).v, maybe=W * 2, opt=kept(1.0).opt))
    assert torch.equal(t.rows.read(slot).maybe, W * 2)


def test_a_state_that_changes_its_form_is_refused() -> None:
    t = table()
    slot = t.reserve()
    base = kept(0.0)
    with pytest.raises(TypeError, match="'v'"):
        t.rows.write(slot, Kept(v=torch.zeros(4, dtype=torch.float64), maybe=None, opt=base.opt))
    with pytest.raises(TypeError, match="'v'"):
        t.rows.write(slot, Kept(v=torch.zeros(5), maybe=None, opt=base.opt))


@pytest.mark.parametrize("length", [1, 3])
def test_a_tuple_that_changes_its_length_is_not_lost_silently(length: int) -> None:
    t = table()
    slot = t.reserve()
    opt = OptState(slots=(torch.ones(5),) * length, count=torch.tensor(1))
    try:
        t.rows.write(slot, Kept(v=kept(0.0).v, maybe=None, opt=opt))
    except (TypeError, KeyError):
        return  # refused
    assert len(t.rows.read(slot).opt.slots) == length


def test_a_new_row_counts_when_the_round_is_committed() -> None:
    t = table()
    assert t.slot(2) == -1
    first = put(t, 2, kept(1.0))
    assert t.slot(2) == first and t.index[2] == -1, "seen within the round, not yet for good"
    t.commit()
    assert t.index[2] == first
    second = put(t, 2, kept(2.0))
    assert second != first
    t.discard()
    assert t.slot(2) == first and torch.equal(t.rows.read(first).v, kept(1.0).v)
    assert t.reserve() == second, "free again"


def test_rows_of_two_checkpoints_stay(tmp_path: Path) -> None:
    t = table(tmp_path / "clients" / "root.rows", keeps=True)
    old = put(t, 0, kept(1.0))
    t.commit()
    t.saved()
    new = put(t, 0, kept(2.0))
    t.commit()
    taken = {t.reserve() for _ in range(3)}
    assert old not in taken and new not in taken
    t.saved()
    assert t.reserve() not in (old, new), "the one before may still be needed"
    assert torch.equal(t.rows.read(old).v, kept(1.0).v)
    t.saved()
    assert t.reserve() == old


def test_rows_that_no_checkpoint_saw_are_reused_at_once(tmp_path: Path) -> None:
    t = table(tmp_path / "root.rows", keeps=True)
    for x in range(20):
        put(t, 1, kept(float(x)))
        t.commit()
        if x in (5, 9):
            t.saved()
    assert t.high <= 4, "two of checkpoints, the last, and the next"


def test_a_damaged_row_is_noticed(tmp_path: Path) -> None:
    t = table(tmp_path / "root.rows", keeps=True)
    for client in (0, 2):
        put(t, client, kept(float(client)))
    t.commit()
    t.sync()
    t.check(t.index, t.sums)
    size, slot = t.rows.layout.nbytes, int(t.index[2])
    with (tmp_path / "root.rows").open("r+b") as file:
        file.seek(slot * size + size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 4]))
    with pytest.raises(ValueError, match="client 2"):
        t.check(t.index, t.sums)


BAD_INDEX = {
    "too few": [0, 1],
    "outside the file": [0, 1, 2, 10**15],
    "negative": [0, 1, 2, -2],
    "twice": [0, 1, 1, -1],
}


@pytest.mark.parametrize("index", BAD_INDEX.values(), ids=BAD_INDEX)
def test_an_index_nobody_vouches_for_is_checked(index: list[int], tmp_path: Path) -> None:
    t = table(tmp_path / "root.rows", keeps=True)
    for client in range(3):
        put(t, client, kept(float(client)))
    t.commit()
    t.sync()
    with pytest.raises(ValueError, match=r"clients|missing|damaged"):
        t.check(np.array(index), t.sums)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="no such call here")
def test_room_is_certain_before_it_is_written_to(tmp_path: Path) -> None:
    """A hole of a full disk would kill the process that writes to it."""
    t = table(tmp_path / "root.rows")
    t.reserve()
    held = (tmp_path / "root.rows").stat()
    assert held.st_blocks * 512 >= held.st_size > 0


def test_without_checkpoints_old_rows_are_reused_at_once() -> None:
    t = table()
    for x in range(10):
        put(t, 1, kept(float(x)))
        t.commit()
    assert t.high <= 2
    assert torch.equal(t.rows.read(t.slot(1)).v, kept(9.0).v)


def test_a_table_is_restored_from_an_index(tmp_path: Path) -> None:
    file = tmp_path / "root.rows"
    t = table(file, keeps=True)
    slots = [put(t, client, kept(float(client))) for client in (3, 1, 0)]
    t.commit()
    index = t.index.copy()
    t.sync()
    sums = t.sums.copy()
    t.saved()
    put(t, 3, kept(99.0))
    t.commit()
    t.close()
    again = table(file, keeps=True)
    again.check(index, sums)
    again.restore(index, sums)
    for client, slot in zip((3, 1, 0), slots, strict=True):
        assert torch.equal(again.rows.read(again.slot(client)).v, kept(float(client)).v)
        assert again.slot(client) == slot
    assert again.slot(2) == -1
    assert again.reserve() not in slots


def test_the_file_grows_with_the_clients_that_came() -> None:
    t = table(population=10_000)
    for client in range(0, 600, 2):
        put(t, client, kept(float(client)))
    t.commit()
    assert all(float(t.rows.read(t.slot(c)).v[0]) == c for c in range(0, 600, 2))


@message
class Down:
    w: Vec


@message
class Seen:
    k: Sum[float]
    total: Mean[Vec]


@state
class Server:
    w: Vec
    seen: tuple[float, ...] = ()


@state
class Visits:
    k: int = 0
    v: Vec | None = None


@dataclass(frozen=True)
class TwoSteps(Algorithm[Server, Visits]):
    """Counts its visits in one exchange and reports the count in the next."""

    local: Local = Local()

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0)

    def client(self, p: Problem) -> Visits:
        return Visits()

    def round(self, s: Server, cohort: Cohort) -> Server:
        cohort.ask(self.count, Down(w=s.w))
        up = cohort.ask(self.report, Down(w=s.w))
        return Server(w=s.w, seen=(*s.seen, up.k))

    def count(self, site: Site, down: Down, mine: Visits) -> tuple[Seen, Visits]:
        v = down.w if mine.v is None else mine.v + down.w
        return Seen(k=0.0, total=down.w), Visits(k=mine.k + 1, v=v)

    def report(self, site: Site, down: Down, mine: Visits) -> tuple[Seen, Visits]:
        assert mine.v is not None
        torch.testing.assert_close(mine.v, mine.k * down.w)
        return Seen(k=float(mine.k), total=mine.v), mine


@pytest.mark.parametrize("how", [{}, {"backend": "wire"}, {"workers": 2}], ids=str)
def test_the_second_exchange_sees_what_the_first_left(how: dict[str, Any]) -> None:
    seen: list[Any] = []
    schedule = [[0, 1], [1], [1, 2]]
    small_run(
        TwoSteps(),
        rounds=3,
        per_round=None,
        participants=schedule,
        test=None,
        on_round=lambda r: seen.append(r.state.seen),
        **how,
    )
    assert seen[-1] == (2.0, 2.0, 4.0)


def test_the_states_of_a_run_can_be_read_from_its_folder(tmp_path: Path) -> None:
    """c = mean of c_i, with the c_i as they stand in the file."""
    result = small_run("scaffold", out=tmp_path / "run", dtype="float64")
    algorithm, problem = Scaffold(), result.problem
    point = checkpoint.read(tmp_path / "run" / checkpoint.FILE, algorithm.server(problem))
    assert point.round == 5
    store = Store(algorithm, problem, tmp_path / "run" / "clients")
    store.restore(point.rows, point.sums)
    mean = torch.stack([store.read("", c).c for c in range(7)]).mean(0)
    torch.testing.assert_close(point.server.c, mean, rtol=0, atol=1e-12)
    assert {c for e in result.ledger.entries for c in e.replied} == set(
        np.flatnonzero(point.rows[""] >= 0)
    )
    store.close()


def test_a_client_that_never_came_has_the_initial_state() -> None:
    problem = small_run("fedavg", rounds=1).problem
    store = Store(Scaffold(), problem)
    assert store.row_bytes() >= 4 * problem.layout.size
    assert torch.equal(store.read("", 3).c, torch.zeros_like(problem.w0))
    store.close()
