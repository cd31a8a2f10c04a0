"""Statistics of runs: records, groups, intervals, differences, costs to a target, findings."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrift.errors import InputError
from fedrift.report import sentences
from fedrift.report.numbers import mean_std
from fedrift.report.statistics import costs, estimates
from fedrift.report.statistics.estimates import Estimate
from fedrift.report.statistics.findings import Findings, as_records, make_findings
from fedrift.report.statistics.grouping import Group, Setting, group_runs
from fedrift.report.statistics.measured import Measured, measure_run, until
from fedrift.storage import run_record as results
from fedrift.storage.jsonl import dump
from fedrift.storage.run_record import RunRecord
from tests.support.problems import small_run
from tests.support.product import Spec
from tests.support.run_folders import grid, run_folder


def run(values: list[float], name: str = "run", status: str = "done", **options: Any) -> Measured:
    """A run with the given accuracies on 100 samples of two classes."""
    lines: list[dict[str, Any]] = [
        {
            "round": t,
            "loss": 1 - value,
            "n": 100,
            "accuracy": value,
            "classes": [value, value / 2],
            "class_total": [50, 50],
            "cohort": [0],
            "bytes_down": 10 * t,
            "bytes_up": 10 * t,
            "gradients": 5 * t,
            "seconds": 0.5 * t,
        }
        for t, value in enumerate(values, start=1)
    ]
    spec = Spec.of({"rounds": len(values), **options})
    held = {"sizes": [4, 4, 0], "counts": [[4, 0], [1, 3], [0, 0]], "scheme": "x"}
    record = RunRecord(Path(name), spec, lines, [], {}, {"status": status}, (), held)
    return measure_run(record, name)


def seeds(*finals: float, algorithm: str = "fedavg", **options: Any) -> list[Measured]:
    """One run per number, which is the accuracy of its only two rounds."""
    return [
        run([value, value], f"{algorithm}-{s}", algorithm=algorithm, seed=s, **options)
        for s, value in enumerate(finals)
    ]


def only(runs: list[Measured]) -> Group:
    (found,) = group_runs(runs).groups
    return found


def loaded(root: Path) -> list[Measured]:
    return [measure_run(results.load(p), p.name) for p in sorted(root.iterdir())]


def found_in(root: Path, **options: Any) -> Findings:
    return make_findings(loaded(root), **options)


# What a run's records must be.


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


# Groups.


def test_groups_are_all_that_is_equal_but_the_seed() -> None:
    runs = seeds(0.5, 0.6) + seeds(0.7, 0.8, algorithm="scaffold") + seeds(0.9, lr=0.3)
    found = group_runs(runs)
    assert [(g.method, g.seeds) for g in found.groups] == [
        ("fedavg lr=as usual", (0, 1)),
        ("scaffold", (0, 1)),
        ("fedavg lr=0.3", (0,)),
    ]


def test_alpha_said_in_two_ways_is_one_setting() -> None:
    one = run([0.5], "a", partition="dirichlet:0.1", seed=0)
    other = run([0.5], "b", partition="dirichlet:0.5", alpha=0.1, seed=1)
    assert only([one, other]).seeds == (0, 1)
    assert only([one, other]).setting.partition == "dirichlet 0.1"


def test_workers_and_places_do_not_make_groups() -> None:
    runs = [run([0.5], "a", workers=2, seed=0), run([0.5], "b", data_dir="/x", seed=1)]
    assert only(runs).seeds == (0, 1)


def test_settings_are_named_by_what_differs_and_sorted_by_number() -> None:
    runs = [
        run([0.5], f"{a}", partition="dirichlet", alpha=a, per_round=p)
        for a in (10.0, 0.5, 2.0)
        for p in (2, 1)
    ]
    found = group_runs(runs).settings
    assert [s.label for s in found[:3]] == [
        "dirichlet 0.5 · 1 of 3 clients",
        "dirichlet 2 · 1 of 3 clients",
        "dirichlet 10 · 1 of 3 clients",
    ]
    assert [s.label for s in group_runs(runs[::2]).settings] == [
        "dirichlet 0.5",
        "dirichlet 2",
        "dirichlet 10",
    ]
    assert only(runs[:1]).setting.label == "dirichlet 10 · 2 of 3 clients"


def test_options_that_vary_with_the_setting_do_not_split_a_method() -> None:
    runs = [
        run([0.5], "a", algorithm="fedprox:mu=0.1", alpha=0.1, lr=0.1),
        run([0.5], "b", algorithm="fedprox:mu=1", alpha=1.0, lr=0.2),
    ]
    assert group_runs(runs).methods == ("fedprox (options by setting)",)


def test_what_a_comparison_gives_one_algorithm_for_itself_belongs_to_the_method() -> None:
    own = frozenset({"rounds", "late", "data_dir", "model"})
    devices: dict[str, Any] = {"devices": "uniform"}
    runs = [
        replace(run([0.5], "a", late="wait", **devices), own=own),
        replace(run([0.5, 0.6], "b", late="drop:3", **devices), own=own),
        replace(run([0.5, 0.6], "c", algorithm="scaffold", **devices), own=own),
    ]
    found = group_runs(runs)
    assert [s.label for s in found.settings] == ["dirichlet 0.5 · all 3 clients"]
    assert found.methods == ("fedavg late=wait rounds=1", "fedavg late=drop:3 rounds=2", "scaffold")
    labelled = [replace(one, label=name) for one, name in zip(runs, "xyz", strict=True)]
    assert group_runs(labelled).methods == ("x", "y", "z")
    elsewhere = [runs[0], replace(run([0.5], "d", model="cnn"), own=own)]
    assert len(group_runs(elsewhere).settings) == 2, "the task is never a method's own"
    assert len(group_runs([replace(r, own=frozenset()) for r in runs]).settings) == 3


def test_a_run_until_a_time_is_what_was_known_then() -> None:
    whole = run([0.1, 0.2, 0.3, 0.4])  # evaluated after 0.5, 1, 1.5 and 2 seconds
    cut = until(whole, 1.6)
    assert cut.rounds.tolist() == [1, 2, 3] and cut.accuracy is not None
    assert cut.accuracy.tolist() == [0.1, 0.2, 0.3] and cut.bytes.tolist() == [20, 40, 60]
    assert until(replace(whole, status="diverged"), 1.6).status == "stopped"
    assert until(replace(whole, status="diverged"), 2.0).status == "diverged"
    assert until(whole, 0.1).rounds.tolist() == [1]


def test_the_same_run_twice_counts_once() -> None:
    one, other = run([0.5], "a"), run([0.6], "b")
    found = group_runs([replace(one, fingerprint="1"), replace(other, fingerprint="2")])
    assert [r.name for r in found.runs] == ["a"]
    assert found.problems == (
        "'b' is left out: 'a' has the same options and seed, but another fingerprint",
    )
    waiting = replace(one, status="unfinished")
    assert [r.name for r in group_runs([waiting, other]).runs] == ["b"]


def test_different_data_sets_are_refused() -> None:
    with pytest.raises(InputError, match=r"different data sets \(digits, mnist\)"):
        group_runs([run([0.5], "a", data="digits"), run([0.5], "b", data="mnist")])
    other = replace(run([0.5], "b", seed=1), samples=99)
    with pytest.raises(InputError, match="'a' and 'b' were evaluated on different test sets"):
        group_runs([run([0.5], "a"), other])
    with pytest.raises(InputError, match="no run to report on"):
        group_runs([])


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


# Estimates.


def test_mean_standard_deviation_and_interval() -> None:
    found = estimates.estimate([1.0, 2.0, 4.0])
    assert found.mean == pytest.approx(7 / 3)
    assert found.std == pytest.approx(math.sqrt(7 / 3))  # 14/3 divided by n-1 = 2
    half = 4.302652729749464 * math.sqrt(7 / 3) / math.sqrt(3)  # t of 2 degrees of freedom
    assert (found.low, found.high) == pytest.approx((7 / 3 - half, 7 / 3 + half))


def test_the_interval_agrees_with_scipy_and_covers_95_percent() -> None:
    from scipy import stats

    samples = np.random.default_rng(0).standard_normal((2000, 4))
    found = [estimates.estimate(sample) for sample in samples]
    low, high = stats.t.interval(0.95, 3, samples[0].mean(), stats.sem(samples[0]))
    assert (found[0].low, found[0].high) == pytest.approx((low, high))
    covered = np.mean([one.low <= 0 <= one.high for one in found])
    assert 0.94 <= covered <= 0.96


def test_one_seed_has_no_spread() -> None:
    found = estimates.estimate([0.5])
    assert (found.n, found.mean) == (1, 0.5)
    assert math.isnan(found.std)
    assert not found.has_interval
    assert not found.is_free_of_zero
    assert math.isnan(estimates.estimate([]).mean)


def test_the_last_rounds_are_averaged() -> None:
    one = run([0.1, 0.2, 0.6, 0.8])
    assert estimates.final(one, 2) == pytest.approx(0.7)
    assert estimates.final(one, None) == pytest.approx(0.8)  # a tenth of four rounds is one
    assert estimates.best(run([0.1, 0.9, 0.3])) == pytest.approx(0.9)
    assert estimates.rounds_averaged(run([0.5] * 60), None) == 6
    assert estimates.rounds_averaged(run([0.5] * 2000), None) == 100


def test_more_rounds_than_there_are_is_refused() -> None:
    with pytest.raises(InputError, match="last is 5, but 'run' has only 2 evaluated rounds"):
        make_findings([run([0.1, 0.2])], last=5)
    with pytest.raises(InputError, match="last must be"):
        make_findings([run([0.1, 0.2])], last=0)


def test_differences_are_taken_seed_by_seed_over_common_seeds() -> None:
    mine, base = only(seeds(0.6, 0.7, 0.8, algorithm="scaffold")), only(seeds(0.5, 0.6))
    found = estimates.paired_difference(mine, base, 1)
    assert found is not None
    assert (found.n, found.mean) == (2, pytest.approx(0.1))
    assert found.std == pytest.approx(0, abs=1e-12)
    assert found.is_free_of_zero
    stranger = only([run([0.5], "x", seed=9)])
    assert estimates.paired_difference(mine, stranger, 1) is None


def test_a_run_at_chance_or_infinite_is_marked() -> None:
    fine = estimates.score(only(seeds(0.9, 0.9)), 1)
    assert not fine.failed
    assert fine.counts
    chance = estimates.score(only(seeds(0.52, 0.5)), 1)  # 0.5 and three standard errors: 0.65
    assert chance.is_at_chance
    assert chance.why == "accuracy stays at chance"
    part = [run([0.9], "a", seed=0), run([0.9], "b", seed=1, status="diverged")]
    infinite = estimates.score(only(part), 1)
    assert infinite.why == "1 of 2 seeds became infinite"
    assert math.isnan(infinite.final.mean)
    assert not infinite.counts


# Costs.


def test_costs_to_a_target() -> None:
    first, second = run([0.2, 0.6, 0.7], "a", seed=0), run([0.2, 0.3, 0.6], "b", seed=1)
    found = costs.to_target(only([first, second]), 0.6)
    assert found.is_met
    assert found.costs["rounds"].mean == 2.5
    assert found.costs["bytes"].mean == 50
    assert found.costs["gradients"].mean == 12.5
    assert found.costs["seconds"].mean == 1.25
    partly = costs.to_target(only([first, second]), 0.7)
    assert (partly.met, partly.is_met) == (1, False)


@pytest.mark.parametrize("target", [0.0, -1.0, 1.5, math.nan])
def test_a_target_that_is_no_accuracy_is_refused(target: float) -> None:
    with pytest.raises(InputError, match="target must be an accuracy"):
        make_findings([run([0.5])], target=target)


def test_without_a_target_it_is_what_the_baseline_ends_with() -> None:
    found = make_findings(seeds(0.70, 0.72) + seeds(0.8, 0.8, algorithm="scaffold"), last=1)
    (targets,) = [{one.target.value for one in found.all if one.target}]
    assert targets == {0.71}


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
    assert costs.fair_axes([scaffold, sam], has_clock=True) == ("seconds",)
    assert costs.fair_axes([], has_clock=True) == ("rounds",)


def test_settings_stand_in_the_order_of_their_cohorts_and_all_of_the_clients_last() -> None:
    told = ("all 60 clients", "20 of 60 clients", "5 of 60 clients")
    settings = [Setting("iid", one, ()) for one in told]
    ordered = sorted(settings, key=lambda setting: setting.order)
    assert [one.participation for one in ordered] == [*reversed(told)]


def test_under_a_clock_its_time_is_the_fair_axis() -> None:
    how: dict[str, Any] = {"devices": "uniform", "rounds": 2}
    time = "over the time of the simulated clock"
    for given, says in ((how, time), ({"rounds": 2}, "over bytes")):
        made = [small_run(name, **given) for name in ("fedavg", "scaffold")]
        findings = make_findings([measure_run(r.record(), "a") for r in made])
        assert says in " ".join(sentences.budgets(findings))
        of_clock = "simulated clock" in " ".join(sentences.of_all_figures(findings))
        assert of_clock == ("devices" in given)


def test_clients_that_differ_between_methods_are_noticed(tmp_path: Path) -> None:
    grid(tmp_path, ("fedavg", "scaffold"), (0.1,), 1)
    runs = loaded(tmp_path)
    assert costs.differing_cohorts(group_runs(runs).groups) == []
    moved = replace(runs[1], cohorts=runs[1].cohorts[::-1])
    assert costs.differing_cohorts(group_runs([runs[0], moved]).groups) == [
        ("fedavg", "scaffold", 0)
    ]


def test_expected_accuracy_of_clients_follows_their_labels() -> None:
    one = run([0.8])  # class accuracies 0.8 and 0.4
    found = costs.client_accuracy(one, 1)
    assert found is not None  # the empty client is not among them
    assert found.tolist() == pytest.approx([0.8, 0.25 * 0.8 + 0.75 * 0.4])
    spread = costs.spread([one], 1)
    assert spread is not None
    assert spread.worst.mean == pytest.approx(0.5)
    assert spread.std.mean == pytest.approx(0.15)
    assert costs.worst_tenth(np.arange(21.0)) == 1.0  # three of 21 clients


# Findings.


def test_the_baseline_is_fedavg_or_the_one_named() -> None:
    runs = seeds(0.5, algorithm="scaffold") + seeds(0.5) + seeds(0.5, algorithm="fedprox:mu=0.1")
    assert make_findings(runs).baseline == "fedavg"
    assert make_findings(runs).methods[0] == "fedavg"
    assert make_findings(runs, baseline="fedprox").baseline == "fedprox:mu=0.1"
    assert make_findings(runs[:1]).baseline == "scaffold"
    with pytest.raises(InputError, match="unknown baseline 'fedagv': did you mean 'fedavg'"):
        make_findings(runs, baseline="fedagv")


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


def test_loss_is_compared_where_there_is_no_accuracy(tmp_path: Path) -> None:
    found = found_in(grid(tmp_path, alphas=(0.1,), has_accuracy=False))
    assert not found.has_accuracy
    best = found.best(found.settings[0])
    assert best is not None
    means = [one.score.final.mean for one in found.all]
    assert best.score.final.mean == min(means)
    with pytest.raises(InputError, match=r"target 0\.9 is an accuracy, but these runs"):
        found_in(tmp_path, target=0.9)


# Runs that are judged at clients.


def _record(accuracy: list[float], own: list[float] | None, is_personal: bool) -> Any:
    from types import SimpleNamespace

    from fedrift.config.spec import Spec
    from fedrift.report.statistics.clients import FIGURES

    rounds: list[dict[str, Any]] = []
    for i, value in enumerate(accuracy):
        row: dict[str, Any] = {"round": i + 1, "loss": 1.0, "accuracy": value}
        row |= {"bytes_down": i, "bytes_up": i, "gradients": i, "seconds": i, "cohort": [0]}
        if own is not None and not i % 2:
            row |= dict.fromkeys(FIGURES, own[i // 2]) | {"clients_not_visited": 1}
            row["accuracy"] = own[i // 2] if is_personal else value
        rounds.append(row)
    return SimpleNamespace(
        folder=None,
        spec=Spec.of({"algorithm": "ditto(fedavg)" if is_personal else "fedavg", "rounds": 4}),
        rounds=rounds[::2] if is_personal else rounds,
        ledger=[],
        environment={},
        summary={"status": "done"},
        torn=(),
        clients={},
        client_rounds=[],
    )


def test_all_are_judged_at_clients_where_one_is() -> None:
    from fedrift.report.statistics.findings import make_findings
    from fedrift.report.statistics.measured import measure_run

    personal = measure_run(_record([0.1, 0.1, 0.1, 0.1], [0.8, 0.9], True), "a")
    both = measure_run(_record([0.5, 0.6, 0.7, 0.8], [0.3, 0.4], False), "b")
    alone = measure_run(_record([0.5, 0.6, 0.7, 0.8], None, False), "c")
    assert personal.is_judged_at_clients and not both.is_judged_at_clients
    known = {run.name: run for run in make_findings([personal, both]).grouped.runs}
    assert known["b"].accuracy is not None and known["b"].accuracy.tolist() == [0.3, 0.4]
    assert known["b"].rounds.tolist() == [1, 3] and known["b"].bytes.tolist() == [0, 4]
    assert known["a"].accuracy is not None and known["a"].accuracy.tolist() == [0.8, 0.9]
    with pytest.raises(InputError, match="by the server's; run it again with --eval-clients"):
        make_findings([personal, alone])
    plain = make_findings([both]).grouped.runs[0]
    assert plain.accuracy is not None and plain.accuracy.tolist() == [0.5, 0.6, 0.7, 0.8]


@pytest.mark.parametrize(
    ("used", "says"),
    [
        (("AVX512", "AVX512/0a", "AVX512/0a"), ""),  # an earlier version did not say how it rounds
        (("AVX512/0a", "AVX512/0b"), "different CPU arithmetic: AVX512/0a, AVX512/0b."),
        (("AVX2", "AVX512/0a"), "different CPU arithmetic: AVX2, AVX512/0a."),
    ],
)
def test_runs_that_were_rounded_otherwise_are_told(used: tuple[str, ...], says: str) -> None:
    from fedrift.report.statistics.findings import make_findings
    from fedrift.report.statistics.measured import measure_run

    runs: list[Any] = []
    for i, instructions in enumerate(used):
        record = _record([0.5, 0.6, 0.7, 0.8], None, False)
        record.spec = Spec.of({"algorithm": "fedavg", "rounds": 4, "seed": i})
        record.environment = {"instructions": instructions}
        runs.append(measure_run(record, str(i)))
    said = " ".join(sentences.of_all_figures(make_findings(runs)))
    assert says in said and ("arithmetic" in said) == bool(says)


@pytest.mark.parametrize(
    ("mean", "std", "text"),
    [
        (0.995, 0.001838, "0.9950 ± 0.0018"),
        (0.9968, 0.0009984, "0.9968 ± 0.0010"),
        (2.448, 0.0123456, "2.448 ± 0.012"),
        (1.5, 1.0, "1.5 ± 1.0"),
        (12345.6, 3.2, "12345.6 ± 3.2"),
        (0.0, 0.0, "0 ± 0"),
        (-0.5, 0.25, "-0.50 ± 0.25"),
        (1e-9, 1e-10, "1e-09 ± 1e-10"),
        (1e300, math.inf, "1e+300 ± inf"),
    ],
)
def test_a_mean_and_its_spread_have_the_same_decimals(mean: float, std: float, text: str) -> None:
    assert mean_std(Estimate(3, mean, std), has_accuracy=False) == text
