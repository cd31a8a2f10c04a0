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
