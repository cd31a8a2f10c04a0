"""What only the data can tell: refused before torch is imported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrift.errors import InputError
from tests.support.product import Spec, prepare


def test_digits_divided_and_shifted() -> None:
    plain, noisy = prepare(Spec()), prepare(Spec(shift="noise:0.5"))
    assert plain.model == "mlp"
    assert plain.partition.clients == 10
    assert plain.x is plain.data.x
    assert noisy.x.shape == plain.x.shape
    assert not np.array_equal(noisy.x, plain.x)


def test_alpha_takes_the_place_of_the_value() -> None:
    assert prepare(Spec(alpha=0.0)).partition.name == "dirichlet:0"


def test_named_classes_bring_their_clients() -> None:
    spec = Spec(partition="classes:1,3|0,6|2,5|4,7|8,9", per_round=5, epochs=(1, 2, 3, 4, 5))
    spec.validate()
    assert prepare(spec).partition.clients == 5


@pytest.fixture
def images(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    x = rng.random((60, 1, 28, 28), dtype=np.float32)
    users = np.repeat(np.arange(6), 10)
    np.savez(tmp_path / "d.npz", x=x, y=np.arange(60) % 3, users=users)
    return f"npz:{tmp_path / 'd.npz'}"


def test_images_get_a_cnn_and_users_their_own_client(images: str) -> None:
    made = prepare(Spec(data=images, partition="natural"))
    assert made.model == "cnn"
    assert made.partition.clients == 6


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"partition": "dirichlet:-1"}, "-1"),
        ({"partition": "dirichlet:0.5,min_size=x"}, "min_size"),
        ({"partition": "iid", "alpha": 1.0}, "alpha=1.0"),
        ({"partition": "iid", "clients": 100_000}, "clients=100000"),
        ({"partition": "natural"}, "natural"),
        ({"partition": "manifest:none.json"}, "none.json"),
        ({"partition": "classes:0,1|2,3,4,5,6,7,8,9", "per_round": 3}, "per_round is 3 but"),
        ({"partition": "classes:0,1|2,3,4,5,6,7,8,9", "epochs": (1, 2, 3)}, "epochs lists 3"),
        (
            {"partition": "classes:0,1|2,3,4,5,6,7,8,9", "participants": ((2,),), "rounds": 1},
            "participants[0] names client 2",
        ),
        ({"data": "npz:none.npz"}, "none.npz"),
        ({"data": "digits:size=3"}, "size"),
        ({"data": "no.such.module:load"}, "no.such.module"),
        ({"model": "cnn"}, "8×8"),
    ],
    ids=str,
)
def test_refused(changes: dict[str, Any], says: str) -> None:
    spec = Spec(**changes)
    spec.validate()
    with pytest.raises(InputError) as caught:
        prepare(spec)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_test_data_of_the_clients_own_are_shifted_as_their_training_data(tmp_path: Path) -> None:
    """Without noise the shift of a sample does not depend on which half it is in."""
    from fedrift.engine.task import task_from_spec

    x = np.random.default_rng(0).normal(size=(12, 1, 6, 6)).astype(np.float32)
    y, users = np.arange(12) % 3, np.repeat([0, 1, 2], 4)
    arrays: Any = {"x": x, "y": y, "users": users, "x_test": x, "y_test": y, "users_test": users}
    np.savez(tmp_path / "own.npz", **arrays)
    given = {"data": f"npz:{tmp_path / 'own.npz'}", "partition": "natural", "model": "logistic"}
    for text, alike in (("rotation:45", True), ("noise:0.5", False)):
        spec = Spec.of({**given, "client_test": "own", "shift": text})
        task = task_from_spec(spec, prepare(spec))
        assert task.split.test is not None and task.test is not None
        for client in (0, 2) if alike else (2,):  # the first has noise of deviation 0
            train, test = task.split[client][0], task.split.test[client][0]
            assert bool((train == test).all()) is alike
            server = task.test[0][users == client]
            assert not bool((test == server).all())  # the server's test set stays as it is
