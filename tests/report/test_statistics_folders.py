"""Statistics of whole folders: budgets, ranks, unfinished runs, records that are not numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrift.config.spec import Spec
from fedrift.errors import InputError
from fedrift.report.statistics import costs
from fedrift.report.statistics.findings import Findings, as_records, make_findings
from fedrift.report.statistics.grouping import group_runs
from fedrift.report.statistics.measured import Measured, measure_run
from fedrift.storage import run_folder as results
from fedrift.storage.jsonl import dump
from fedrift.storage.run_folder import RunRecord
from tests.support.run_folders import grid, run_folder


def loaded(root: Path) -> list[Measured]:
    return [measure_run(results.load(p), p.name) for p in sorted(root.iterdir())]


def found_in(root: Path, **options: Any) -> Findings:
    return make_findings(loaded(root), **options)


def test_unequal_budgets_and_the_axis_that_is_fair(tmp_path: Path) -> None:
    grid(tmp_path, ("fedavg", "scaffold"), (0.1,), 2)
    for seed in range(2):
        run_folder(tmp_path / f"sam{seed}", algorithm="fedsam", alpha=0.1, seed=seed, cost=2)
    found = {one.method: one.budget for one in found_in(tmp_path).all}
    assert found["fedavg"] is None
    sam, scaffold = found["fedsam"], found["scaffold"]
    assert sam is not None
    assert scaffold is not None
    assert (sam.unequal, sam.gradients) == (("gradients",), 2.0)
    assert (scaffold.unequal, scaffold.bytes) == (("bytes",), 2.0)
    assert costs.fair_axes([sam]) == ("gradients",)
    assert costs.fair_axes([scaffold, sam]) == ("bytes", "gradients")
    assert costs.fair_axes([]) == ("rounds",)


def test_clients_that_differ_between_methods_are_noticed(tmp_path: Path) -> None:
    grid(tmp_path, ("fedavg", "scaffold"), (0.1,), 1)
    runs = loaded(tmp_path)
    assert costs.differing_cohorts(group_runs(runs).groups) == []
    moved = replace(runs[1], cohorts=runs[1].cohorts[::-1])
    assert costs.differing_cohorts(group_runs([runs[0], moved]).groups) == [
        ("fedavg", "scaffold", 0)
    ]


def test_ranks_and_rows(tmp_path: Path) -> None:
    found = found_in(grid(tmp_path))
    assert [s.label for s in found.settings] == ["dirichlet 0.1", "dirichlet 1"]
    best = found.best(found.settings[0])
    assert best is not None
    assert best.method == "scaffold"
    assert best.difference is not None
    assert best.difference.n == 3
    listed = as_records(found)
    assert len(listed) == 6
    assert {row["rank"] for row in listed} == {1, 2, 3}
    assert dump(listed)  # plain values only


def test_unfinished_runs_take_no_part(tmp_path: Path) -> None:
    grid(tmp_path, ("fedavg", "scaffold"), (0.1,), 2)
    run_folder(tmp_path / "late", algorithm="fedavg", alpha=0.1, seed=2, status=None)
    run_folder(tmp_path / "only", algorithm="fedsam", alpha=0.1, seed=0, status=None, level=1.0)
    found = found_in(tmp_path)
    by_method = {one.method: one for one in found.all}
    assert by_method["fedavg"].group.seeds == (0, 1)
    assert [r.name for r in by_method["fedavg"].group.unfinished] == ["late"]
    assert by_method["fedsam"].rank is None
    assert by_method["fedsam"].difference is None


def test_loss_is_compared_where_there_is_no_accuracy(tmp_path: Path) -> None:
    found = found_in(grid(tmp_path, alphas=(0.1,), has_accuracy=False))
    assert not found.has_accuracy
    best = found.best(found.settings[0])
    assert best is not None
    means = [one.score.final.mean for one in found.all]
    assert best.score.final.mean == min(means)
    with pytest.raises(InputError, match=r"target 0\.9 is an accuracy, but these runs"):
        found_in(tmp_path, target=0.9)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"accuracy": 1.5}, "accuracy is not between 0 and 1"),
        ({"accuracy": "high"}, "accuracy must be a number"),
        ({"round": "one"}, "round must be a whole number"),
        ({"cohort": 3}, "not iterable"),
        ({"classes": [[0.1], [0.2]]}, "classes must be a list of numbers"),
        ({"classes": ["x", "y"]}, "could not convert"),
        ({"loss": True}, "loss must be a number"),
    ],
)
def test_what_is_no_number_is_refused_in_one_sentence(change: dict[str, Any], said: str) -> None:
    line = {"round": 1, "loss": 1.0, "n": 2, "accuracy": 0.5, "classes": [0.5, 0.5], **change}
    record = RunRecord(Path("r"), Spec(), [line], [], {}, {"status": "done"}, ())
    with pytest.raises(InputError, match=f"'r' is damaged.*{said}"):
        measure_run(record, "r")


def test_an_older_version_without_costs_is_told_and_used() -> None:
    line = {"round": 1, "loss": 1.0, "accuracy": 0.5}
    record = RunRecord(Path("r"), Spec(), [line], [], {}, {"status": "done"}, ())
    found = measure_run(record, "r")
    assert "an older version wrote it" in found.problems[0]
    assert np.isnan(found.bytes).all()
    assert make_findings([found]).all[0].score.final.mean == 0.5
    empty = RunRecord(Path("r"), Spec(), [], [], {}, {}, ())
    with pytest.raises(InputError, match="'r' holds no evaluated round"):
        measure_run(empty, "r")


def test_a_run_that_failed_before_its_first_evaluation_counts_as_failed(tmp_path: Path) -> None:
    """Leaving it out would leave the mean to the seeds that went well."""
    for seed in range(3):
        place = run_folder(tmp_path / f"a{seed}", seed=seed)
        run_folder(tmp_path / f"b{seed}", seed=seed, algorithm="fedsam")
        if seed == 1:
            (place / results.ROUNDS).write_text("")
            (place / results.SUMMARY).write_text('{"status": "diverged", "diverged_at": 1}')
    runs = [measure_run(results.load(p), p.name) for p in sorted(tmp_path.iterdir())]
    found = make_findings(runs)
    score = found.all[0].score
    assert found.all[0].method == "fedavg"
    assert score.why == "1 of 3 seeds became infinite"
    assert not score.counts
    alone = make_findings([run for run in runs if run.is_blank])
    assert alone.all[0].score.failed
