"""Test data of the clients' own: how many, which, and that nothing is in both halves."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import fedrift as fr
from fedrift.data.hold_out import held_positions, held_sizes, hold_out
from fedrift.errors import InputError
from tests.support.problems import Net, blobs


def test_how_many_samples_a_client_tests_on() -> None:
    sizes = held_sizes([0, 1, 2, 3, 4, 10, 12, 100], 0.2)
    assert sizes.tolist() == [0, 0, 1, 1, 1, 2, 2, 20]
    assert held_sizes([2, 3, 10], 0.99).tolist() == [1, 2, 9]  # something is left to train on


def test_classes_stay_in_proportion() -> None:
    y = np.repeat([0, 1, 2], [50, 30, 20])
    chosen = held_positions(y, 0.2, seed=0, client=3)
    assert np.bincount(y[chosen]).tolist() == [10, 6, 4]
    assert np.all(np.diff(chosen) > 0)


def test_remainders_are_given_by_chance_not_to_the_first_class() -> None:
    y = np.repeat(np.arange(10), 1)
    drawn = [held_positions(y, 0.2, seed=0, client=c) for c in range(200)]
    assert all(len(d) == 2 for d in drawn)
    assert np.bincount(np.concatenate(drawn), minlength=10).min() > 15


def test_it_depends_on_seed_and_client_alone() -> None:
    y = np.arange(40) % 4
    first = held_positions(y, 0.25, 1, 2)
    assert np.array_equal(first, held_positions(y, 0.25, 1, 2))
    assert not np.array_equal(first, held_positions(y, 0.25, 1, 3))
    assert not np.array_equal(first, held_positions(y, 0.25, 2, 2))


def test_both_halves_are_the_client() -> None:
    y = np.random.default_rng(0).integers(0, 5, 100)
    parts = np.split(np.random.default_rng(1).permutation(100), [3, 4, 50])
    train, test = hold_out(y, [np.sort(p) for p in parts], 0.3, seed=0)
    for part, one, other in zip(parts, train, test, strict=True):
        assert sorted([*one, *other]) == sorted(part)
    assert [len(t) for t in test] == [1, 0, 14, 15]


@pytest.mark.parametrize("y", [np.zeros((20, 2), np.float32), np.empty(20, dtype=object)])
def test_targets_that_are_no_labels_are_drawn_evenly(y: Any) -> None:
    assert len(held_positions(y, 0.25, 0, 0)) == 5


def test_split_holds_out() -> None:
    x, y = blobs(200)
    whole = fr.split(x, y, "dirichlet:0.5", clients=8, seed=3)
    half = fr.split(x, y, "dirichlet:0.5", clients=8, seed=3, test=0.25)
    assert half.test is not None and len(half.test) == 8
    assert "to test on" in repr(half)
    for client in range(8):
        both = {*half.parts[client].tolist(), *half.test.parts[client].tolist()}
        assert both == {*whole.parts[client].tolist()}
        assert len(half.parts[client]) + len(half.test.parts[client]) == len(both)


@pytest.mark.parametrize("share", [0, 1, -0.1, True, "half", float("nan")])
def test_a_share_is_between_none_and_all(share: Any) -> None:
    x, y = blobs(20)
    with pytest.raises(InputError, match="must be a share above 0 and below 1"):
        fr.split(x, y, clients=2, test=share)


def test_made_clients_hold_out_too() -> None:
    from fedrift.data.split import Split

    def make(client: int) -> tuple[np.ndarray, np.ndarray]:
        n = 5 + client
        return np.full((n, 3), client, np.float32), np.arange(n) % 2

    x, y = (torch.from_numpy(a) for a in make(0))
    held = Split(x, y, (), make=make, sizes=np.array([5, 6, 7])).held_out(0.4, 0)
    assert held.test is not None
    assert held.sizes.tolist() == [3, 4, 4] and held.test.sizes.tolist() == [2, 2, 3]
    for client in range(3):
        assert len(held.view(client)) == held.sizes[client]
        assert len(held.test.view(client)) == held.test.sizes[client]


class Endless(Dataset[Any]):
    """A map-style data set that never raises IndexError."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> Any:
        return torch.full((8,), float(i % 12)), i % 4


class Bare:
    """The same without a base class."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int) -> Any:
        return torch.zeros(8), 0


run = partial(fr.run, "fedavg", model=Net, rounds=1, lr=0.1, workers=0)


@pytest.mark.timeout(60)
def test_a_list_of_data_sets_is_one_per_client() -> None:
    result = run(clients=[Endless(), Endless()], test=[Endless(), Endless()])
    assert result.client_frame().n.tolist() == [12, 12]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", [Endless, Bare])
def test_a_data_set_is_no_array(kind: Any) -> None:
    with pytest.raises(InputError, match=r"a Dataset is no array|Bare cannot become a tensor"):
        run(clients=[Endless(), Endless()], test=(kind(), kind()))
    with pytest.raises(InputError, match=r"a Dataset is no array|Bare cannot become a tensor"):
        run(clients=[(kind(), kind())])


def test_two_arrays_in_a_list_are_one_pair() -> None:
    x, y = blobs(40)
    result = run(clients=[(x, y), (x, y)], test=[x, y])
    assert result.accuracy and not result.client_rounds


def test_what_is_given_for_clients() -> None:
    x, y = blobs(60)
    clients = [(x[:20], y[:20]), (x[20:40], y[20:40])]
    own = [(x[40:50], y[40:50]), TensorDataset(x[50:], y[50:])]
    alone, both = run(clients=clients, test=own), run(clients=clients, test=(x, y), client_test=own)
    assert alone.accuracy == alone.client_accuracy and alone.client_accuracy
    assert both.accuracy and not both.client_rounds  # nobody asked for it
    both = run(clients=clients, test=(x, y), client_test=own, eval_clients=1)
    assert both.client_accuracy == alone.client_accuracy
    assert torch.equal(both.weights, alone.weights)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"test": [(0, 0)] * 3}, "test has test data of 3 clients, but there are 2"),
    (
        {"client_test": 1.5},
        "client_test must be a share above 0 and below 1",
    ),
    ({"client_test": "own"}, "'own' is for named data"),
    ({"eval_clients": "every=2"}, "eval_clients 'every=2': clients have no test data of their own"),
    ({"eval_clients": "every=0", "client_test": 0.5}, "every of eval_clients"),
    ({"eval_clients": "often", "client_test": 0.5}, "not of the form every=10,sample=200"),
    ({"eval_clients": "every=1,every=2", "client_test": 0.5}, "gives 'every' twice"),
    ({"eval_clients": "each=1", "client_test": 0.5}, "key of eval_clients 'each'"),
]


@pytest.mark.parametrize(("given", "why"), REFUSED, ids=lambda v: str(v)[:40])
def test_what_is_refused(given: dict[str, Any], why: str) -> None:
    x, y = blobs(40)
    with pytest.raises(InputError, match=why):
        run(clients=[(x[:20], y[:20]), (x[20:], y[20:])], **given)


def test_test_data_for_a_client_without_data_are_refused() -> None:
    x, y = blobs(40)
    none = x[:0], y[:0]
    with pytest.raises(InputError, match="test: client 1 has 10 samples to test on and none to"):
        run(clients=[(x, y), none], test=[(x[:10], y[:10])] * 2)
    assert run(clients=[(x, y), none], test=[(x[:10], y[:10]), none]).client_accuracy


def test_test_data_twice_are_refused() -> None:
    x, y = blobs(40)
    clients = fr.split(x, y, clients=2, test=0.2)
    with pytest.raises(InputError, match="have test data of their own already"):
        run(clients=clients, client_test=0.2)
    with pytest.raises(InputError, match="and client_test is given too"):
        run(clients=[(x, y)], client_test=0.2, test=[(x, y)])


def test_a_client_without_test_data_is_told_of() -> None:
    x, y = blobs(21)
    result = run(clients=[(x[:20], y[:20]), (x[20:], y[20:])], client_test=0.2)
    assert any("1 client of 2 has no test data" in note for note in result.notes)
    assert result.client_frame().client.tolist() == [0]
    assert result.clients["test_sizes"] == [4, 0] and result.clients["sizes"] == [16, 1]


def test_training_is_on_the_rest_alone() -> None:
    x, y = blobs(60)
    held = fr.split(x, y, clients=3, seed=1, test=0.3)
    rest = [held[i] for i in range(3)]
    one = run(clients=held, seed=4)
    other = run(clients=rest, seed=4)
    assert torch.equal(one.weights, other.weights)
