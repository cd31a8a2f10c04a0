"""A grid of runs: from flags or TOML, checked, every cell once, under names that do not collide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedrift.cli.compare import gathered
from fedrift.config import grid
from fedrift.config.grid import seeds_of
from fedrift.errors import InputError
from tests.support.product import Entrant, Grid, Spec


def test_every_combination_is_there_once() -> None:
    axes = {"alpha": [0.1, 1.0], "lr": [0.01, 0.1, 1.0]}
    made = Grid((Entrant("fedavg"), Entrant("scaffold")), Spec(rounds=3), axes, (0, 1)).cells()
    assert len(made) == 2 * 2 * 3 * 2
    assert len({cell.slug for cell in made}) == len(made)
    assert {(c.spec.alpha, c.spec.lr, c.spec.seed) for c in made} == {
        (a, lr, s) for a in (0.1, 1.0) for lr in (0.01, 0.1, 1.0) for s in (0, 1)
    }


def test_a_folder_is_named_after_what_decides_the_result_and_nothing_else() -> None:
    def slug(**changes: Any) -> str:
        return Grid((Entrant("fedavg"),), Spec(**changes)).cells()[0].slug

    assert slug(workers=2) == slug(workers=0) == slug(data_dir="elsewhere")
    assert len({slug(), slug(lr=0.2), slug(rounds=7), slug(seed=0, model="logistic")}) == 4


def test_a_grid_survives_its_file(tmp_path: Path) -> None:
    entrants = (Entrant("fedavg"), Entrant("fedprox:mu=0.3", {"lr": 0.5}, "mine"))
    one = Grid(entrants, Spec(rounds=4, partition="classes:2"), {"alpha": [0.1, 1.0]}, (3, 4))
    file = tmp_path / "compare.toml"
    file.write_text(
        Grid(entrants, Spec(rounds=4, partition="dirichlet"), one.axes, one.seeds).to_toml()
    )
    again = grid.from_toml(file)
    assert (again.entrants, again.seeds, dict(again.axes)) == (entrants, (3, 4), dict(one.axes))
    assert [c.slug for c in again.cells()] == [
        c.slug
        for c in Grid(entrants, Spec(rounds=4, partition="dirichlet"), one.axes, (3, 4)).cells()
    ]


def test_flags_with_several_values_become_axes() -> None:
    flags = {"alpha": ["0.1,1"], "partition": ["dirichlet"], "rounds": ["5"]}
    made = gathered(["fedavg"], flags, "2", None)
    assert dict(made.axes) == {"alpha": [0.1, 1.0]}
    assert (made.base.rounds, made.base.partition, made.seeds) == (5, "dirichlet", (0, 1))
    several = gathered(["fedavg"], {"partition": ["iid", "classes:2"]}, "0,7", None)
    assert dict(several.axes) == {"partition": ["iid", "classes:2"]} and several.seeds == (0, 7)


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "algorithms"),
    ({"algorithms": []}, "algorithms"),
    ({"algorithms": ["fedagv"]}, "did you mean 'fedavg'"),
    ({"algorithms": [{"lr": 1.0}]}, "algorithms"),
    ({"algorithms": [{"name": "fedavg", "colour": 1}]}, "colour"),
    ({"algorithms": ["fedavg"], "seeds": 0}, "seeds"),
    ({"algorithms": ["fedavg"], "seeds": [-1]}, "seeds"),
    ({"algorithms": ["fedavg"], "grid": {"seed": [1]}}, "seed"),
    ({"algorithms": ["fedavg"], "grid": {"lr": []}}, "grid.lr"),
    ({"algorithms": ["fedavg"], "lr": 0.1, "grid": {"lr": [0.1]}}, "lr"),
    ({"algorithms": ["fedavg"], "grid": {"lr": [-1.0]}}, "lr"),
    ({"algorithms": [{"name": "fedavg", "lr": 0.1}], "grid": {"lr": [0.1]}}, "lr"),
    ({"algorithms": ["fedavg"], "grid": {"lr": [0.1] * 101, "clip": [1.0] * 101}}, "runs"),
]


@pytest.mark.parametrize(("values", "says"), BAD)
def test_a_bad_grid_is_named(values: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        grid.from_values(values).cells()


def test_seeds() -> None:
    assert seeds_of(3) == (0, 1, 2) and seeds_of([5, 2]) == (5, 2)
    with pytest.raises(InputError, match="seeds"):
        seeds_of(True)


def test_the_same_run_twice_is_refused() -> None:
    twice = (Entrant("fedprox:mu=1,weights=uniform"), Entrant("fedprox:weights=uniform,mu=1"))
    with pytest.raises(InputError, match="is given twice; name it once"):
        Grid(twice, Spec()).cells()
    Grid((Entrant("fedavg"), Entrant("fedavg", {"lr": 0.5})), Spec()).cells()
    with pytest.raises(InputError, match=r"alpha has the value 0\.5 twice"):
        Grid((Entrant("fedavg"),), Spec(partition="dirichlet"), {"alpha": [0.5, 1, 0.5]}).cells()
    with pytest.raises(InputError, match="seeds has the value 3 twice"):
        Grid((Entrant("fedavg"),), Spec(), {}, (3, 3)).cells()
