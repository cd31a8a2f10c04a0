"""Studies in miniature: what they must find whatever the numbers, and that they go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace as Simple
from typing import Any

import numpy as np
import pytest
import torch

from fedrift.config.privacy import Guarantee, Privacy
from fedrift.core.sampling import Participation
from fedrift.errors import InputError
from fedrift.presets import studies
from fedrift.presets.findings import Findings, Table
from fedrift.presets.studies import (
    common,
    fed3r_finetune,
    flat_minima_table,
    large_scale,
    lora,
    privacy,
)
from fedrift.presets.studies.extractors import pooled_ridge
from fedrift.presets.studies.flat_minima_table import APART, CENTRAL, Seen, findings
from fedrift.presets.studies.large_scale import generated
from fedrift.presets.studies.permutation import WAYS
from fedrift.presets.synthetic import bag_of_words
from fedrift.storage.jsonl import load
from tests.support.product import dump

DATA = "digits:train=300,test=100"
TINY: dict[str, dict[str, Any]] = {
    "lora": {
        "data": DATA,
        "model": "mlp:hidden=8,depth=1",
        "base_epochs": 2,
        "clients": 4,
        "per_round": 2,
        "rounds": 2,
        "eval_every": 1,
        "methods": {"full": "", "LoRA": "lora:rank=2,alpha=4", "head": "head"},
    },
    "merging": {
        "data": DATA,
        "model": "mlp:hidden=8,depth=1",
        "start": 40,
        "start_epochs": 2,
        "every": [1, 2],
        "epochs": 2,
        "rules": ["mean", "ties:0.2", "regmean", "evolve:steps=3"],
    },
    "privacy": {
        "data": DATA,
        "federations": {
            "even": {"clients": 50, "partition": "iid"},
            "few": {"clients": 20, "partition": "dirichlet:0.1", "samples": 100},
        },
        "epsilons": [1.0, 20.0],
        "share": 0.2,
        "rounds": 10,
        "seeds": [0, 1],
    },
    "permutation": {
        "data": DATA,
        "models": ["mlp"],
        "clients": 3,
        "rounds": 2,
        "epochs": 8,
        "points": 3,
    },
    "flat-minima-table": {
        "data": DATA,
        "model": "mlp:hidden=8,depth=1",
        "rows": ["FedAvg", "SAM + SWA", "WiMA", "Mixup"],
        "clients": 10,
        "per_round": 2,
        "rounds": 8,
        "central_rounds": 4,
        "swa_cycle": 2,
        "eval_every": 2,
        "images": 30,
    },
    "fed3r-invariance": {
        "extractors": [
            {
                "name": "pretrained",
                "data": DATA,
                "model": "mlp",
                "classes": [5, 6, 7, 8, 9],
                "pretrained_on": DATA,
                "pretrained_classes": [0, 1, 2, 3, 4],
                "clients": 10,
            },
            {"name": "random", "data": DATA, "model": "random-conv:filters=4", "clients": 12},
            {"name": "MobileNetV2", "data": DATA, "model": "mobilenet-v2"},
        ],
        "rivals": ["fedavg"],
        "rival_rounds": 3,
        "per_round": 4,
    },
    "fed3r-finetune": {
        "extractor": {
            "name": "half",
            "data": DATA,
            "model": "mlp",
            "pretrained_on": DATA,
            "pretrained_classes": [0, 1, 2, 3, 4],
            "clients": 10,
        },
        "partitions": ["dirichlet:0"],
        "per_round": 5,
        "rounds": 4,
        "last": 2,
    },
    "large-scale": {"scale": 40.0, "width": 20, "tests": 200, "per_round": 10, "eval_every": 1},
    "classifier-bias": {
        "data": DATA,
        "model": "mlp",
        "partitions": ["dirichlet:0", "iid"],
        "algorithms": ["fedavg"],
        "clients": 10,
        "per_round": 2,
        "rounds": 8,
        "images": 50,
    },
}


Made = Callable[[str], tuple[Findings, list[str], Path]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """Every study is made once, however many tests look at it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDRIFT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.delenv("FEDRIFT_DATA", raising=False)  # one extractor must miss its weights
        known: dict[str, tuple[Findings, list[str], Path]] = {}

        def make(name: str) -> tuple[Findings, list[str], Path]:
            if name == "privacy":
                pytest.importorskip("dp_accounting", reason="the extra 'privacy' is not installed")
            if name not in known:
                folder, told = tmp_path_factory.mktemp(name), list[str]()
                settings = {**TINY[name], "workers": 0}
                known[name] = (
                    studies.find(name)(folder, settings, None, told.append),
                    told,
                    folder,
                )
            return known[name]

        yield make


def number(table: Table, row: str, column: str) -> float:
    found = table.cell(row, column)
    assert isinstance(found, int | float)
    return float(found)


@pytest.mark.parametrize("name", studies.NAMES)
def test_a_study_ends_and_its_findings_survive_json(name: str, made: Made) -> None:
    found, told, folder = made(name)
    assert found.tables and found.notes and told
    for table in found.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert len({str(row[0]) for row in table.rows}) == len(table.rows)
    for figure in found.figures:
        for ending in ("png", "svg"):
            assert (folder / f"{figure}.{ending}").stat().st_size > 1000
    assert Findings.of(load(dump(found.record()))).record() == load(dump(found.record()))


def test_a_study_goes_on_from_its_folder(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "flat-minima-table"
    first, _, folder = made(name)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("what is there is made again")

    monkeypatch.setattr("fedrift.engine.execute._execute", never)
    monkeypatch.setattr("fedrift.presets.studies.flat_minima_table.top_eigenvalues", never)
    again = studies.find(name)(folder, {**TINY[name], "workers": 0}, None, print)
    assert again.record() == first.record()


def test_the_noise_is_the_least_that_promises_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    def promised(own: Privacy, who: Participation, rounds: int) -> Guarantee:
        return Guarantee(rounds * who.share / own.noise, own.delta, "")

    monkeypatch.setattr("fedrift.presets.studies.privacy.guarantee", promised)
    assert privacy.noise_for(3.0, 1e-5, 0.1, 70) == 2.34  # 7/3, rounded up
    assert privacy.noise_for(200.0, 1e-5, 0.5, 4) == 0.0101  # 1/100, found within a thousandth


def test_privacy_costs_accuracy_and_keeps_its_promise(made: Made) -> None:
    accuracy, lost, promised = made("privacy")[0].tables
    assert accuracy.columns == ["privacy", "even", "few"]
    assert [row[0] for row in accuracy.rows] == [privacy.NONE, "ε = 20", "ε = 1"]
    assert [row[0] for row in lost.rows] == ["ε = 20", "ε = 1"]
    for way in (1.0, 20.0):
        assert 0.97 * way < number(promised, f"ε = {way:g}", "ε") <= way
    ends = [float(str(accuracy.cell(way, "even")).split(" ±")[0]) for way in ("ε = 20", "ε = 1")]
    assert ends[0] > ends[1] + 5


def test_renumbered_clients_are_repaired_by_alignment_and_only_by_it(made: Made) -> None:
    (table,) = made("permutation")[0].tables
    column, apart = "average after round 1 (%)", "distance of two"
    shared = number(table, "mlp, shared", column)
    assert number(table, "mlp, renumbered", column) < shared - 20
    assert abs(number(table, "mlp, renumbered, aligned", column) - shared) < 3
    assert number(table, "mlp, different, aligned", apart) < number(table, "mlp, different", apart)
    stayed = {way: number(table, f"mlp, {way}", "matched to themselves (%)") for way in WAYS}
    assert stayed["shared"] > 90 > 20 > max(stayed["renumbered"], stayed["different"])


def test_fed3r_is_the_pooled_solution_at_every_heterogeneity(made: Made) -> None:
    found, _, _ = made("fed3r-invariance")
    (table,) = found.tables
    rows = [row for row in table.rows if ", fed3r, " in str(row[0])]
    assert len(rows) == 2 * 4
    for row in rows:
        assert isinstance(row[2], float) and row[2] < 1e-7 and row[3] == 100.0
    assert any("mobilenet_v2-imagenet.safetensors" in note for note in found.notes)


def test_the_pooled_ridge_is_the_golden_one() -> None:
    phi = torch.tensor([[1.0, 2], [0, 1], [3, 1], [2, 2]], dtype=torch.float64)
    weight, bias = pooled_ridge(phi, torch.tensor([0, 1, 0, 1]), 2, 0.01, False)
    np.testing.assert_allclose(weight, [[0.200184, 0.002894], [-0.197275, 0.011535]], atol=1e-6)
    np.testing.assert_allclose(bias, [0.194895, 0.776669], atol=1e-6)
    weight, bias = pooled_ridge(phi, torch.tensor([0, 1, 0, 1]), 2, 0.01, True)
    np.testing.assert_allclose(weight[1], [-0.998295, 0.058370], atol=1e-6)
    np.testing.assert_allclose(bias, [0.973474, 3.930267], atol=1e-6)


def test_fine_tuning_starts_where_fed3r_ended(made: Made) -> None:
    (table,) = made("fed3r-finetune")[0].tables
    at = {
        row: number(table, f"{row}, dirichlet:0", "after round 2 (%)")
        for row in ("Fed3R", "Fed3R+FT", "Fed3R+FT_LP", "Fed3R+FT_FEAT")
    }
    assert len(set(at.values())) == 1


def test_fed3r_forgets_no_class(made: Made) -> None:
    _, classes = made("classifier-bias")[0].tables
    column = "lift of classes just seen"
    assert number(classes, "fedavg", column) > number(classes, "fed3r", column)


def test_a_generated_collection_has_the_published_shape() -> None:
    said = {**large_scale.USUAL, "width": 2, "tests": 10}
    found = generated("iNaturalist-User-120k", said, 0)
    assert len(np.unique(found.users)) == 9_275 and len(found.y) == 120_300
    assert found.classes == 1_203 and found.y.max() < 1_203
    held = [len(np.unique(found.y[found.users == user])) for user in range(50)]
    sizes = np.bincount(found.users)
    assert np.median(sizes) < sizes.mean() and np.mean(held) < 20


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("permutaton", {}, "did you mean 'permutation'"),
        ("permutation", {"model": "mlp"}, "unknown setting of the study 'model'"),
        ("permutation", {"models": "mlp"}, "must be a list"),
        ("flat-minima-table", {"rows": ["SWAP"]}, "unknown row of the flat-minima table"),
        ("fed3r-invariance", {"extractors": [{"name": "x", "data": DATA}]}, "setting 'model'"),
        ("large-scale", {"collections": ["iNaturalist"]}, "unknown collection"),
    ],
)
def test_wrong_settings_are_told(
    name: str, settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words):
        studies.find(name)(tmp_path, settings, None, print)


def test_classes_are_numbered_from_zero() -> None:
    found = common.load("digits", None, [7, 2])
    assert found.classes == 2 and set(found.y.tolist()) == {0, 1}
    assert found.class_names == ("7", "2")
    whole = common.load("digits", None)
    assert (found.y == 0).sum() == (whole.y == 7).sum()


def test_eigenvalues_that_did_not_converge_leave_a_gap(tmp_path: Path) -> None:
    """ARPACK may give fewer than were asked for; the rest of the table stands."""
    said = {
        **common.COMMON,
        **flat_minima_table.USUAL,
        "rows": ["FedAvg", "ASAM"],
        "eigenvalues": 2,
    }
    seen = {
        "FedAvg": [Seen((0.5, 0.6), ((1, 2), (0.5, 0.6)), (9.0, 4.0))],
        "ASAM": [Seen((0.4, 0.5), ((1, 2), (0.4, 0.5)), (3.0,))],
    }
    made = findings(tmp_path, {CENTRAL: seen, APART: seen}, said)
    table, spectra = made.tables
    assert table.cell("ASAM", "top eigenvalue one class") == 3.0
    assert spectra.cell(f"FedAvg, {APART}", "eigenvalue 2") == 4.0
    assert spectra.cell(f"ASAM, {CENTRAL}", "eigenvalue 2") is None
    assert table.cell("ASAM", "unrest one class") == pytest.approx(0.1)
    assert "ASAM's η is 0.2, centralised 0.01." in made.notes[0]


def test_of_one_evaluation_there_is_no_unrest(tmp_path: Path) -> None:
    said = {**common.COMMON, **flat_minima_table.USUAL, "rows": ["FedAvg"]}
    seen = {"FedAvg": [Seen((0.5,), ((5,), (0.5,)), (9.0,))]}
    made = findings(tmp_path, {CENTRAL: seen, APART: seen}, said)
    assert made.tables[0].cell("FedAvg", "unrest one class") is None
    assert "ASAM" not in made.notes[0]


def test_a_change_that_only_rises_is_calmer_than_one_that_swings() -> None:
    rounds = tuple(range(8))
    rising = Seen((0.7,), (rounds, tuple(10.0 * t for t in rounds)), ())
    swinging = Seen((0.7,), (rounds, tuple(70.0 + 30.0 * (t % 2) for t in rounds)), ())
    assert rising.unrest == 10 and swinging.unrest == 30


def test_a_study_keeps_its_quantities_seed_by_seed_so_that_relations_can_be_decided() -> None:
    options = {"seeds": [4, 5, 6]}
    rows = [["one", common.percent([0.1, 0.2, 0.3]), 7], ["two", common.percent([0.5]), None]]
    draft = common.Draft("t", ("method", "accuracy (%)", "users"), rows)
    found = common.findings_of([draft], options, [], [], {"curve": [1]})
    assert found.by_seed("one", "accuracy (%)") == pytest.approx({4: 10, 5: 20, 6: 30})
    assert found.by_seed("two", "accuracy (%)") == {}  # one seed of three: nothing to pair
    assert found.by_seed("one", "users") == {}
    assert found.tables[0].cell("one", "accuracy (%)") == "20.00 ± 10.00"
    assert found.tables[0].cell("two", "accuracy (%)") == 50.0
    assert found.facts["curve"] == [1]


def test_a_rate_from_the_length_of_features_is_the_largest_that_surely_descends() -> None:
    """The cross-entropy of logits/ϑ has curvature at most ½·‖φ‖²/ϑ² along the head."""
    options = {"lr": "auto", "fresh_lr": 0.1, "temperature": 0.1}
    rated = fed3r_finetune.with_rates(options, 8.0)
    assert rated["lr"] == pytest.approx(2 / (8.0 / (2 * 0.1**2))) and rated["fresh_lr"] == 0.1
    assert fed3r_finetune.with_rates({**options, "fresh_lr": "auto"}, 8.0)["fresh_lr"] == 0.5


def test_bags_of_words_are_shares_of_few_words_and_readers_differ() -> None:
    data = bag_of_words()
    assert np.allclose(data.x.sum(1), 1) and (data.x > 0).sum(1).max() <= 20
    assert data.users is not None
    held = [len(np.unique(data.y[data.users == reader])) for reader in range(5)]
    assert max(held) < data.classes


def test_a_quantity_that_all_seeds_share_has_no_spread() -> None:
    same, other = common.over_seeds([1.5, 1.5, 1.5], 3), common.over_seeds([1.0, 2.0], 1)
    assert (same.cell(3), other.cell(1)) == (1.5, "1.5 ± 0.7")


def test_curves_of_adapters_are_means_over_seeds_on_an_axis_for_both_ends() -> None:
    from fedrift.figures.style import empty_figure

    runs = [
        Simple(rounds=[2, 4, 6], accuracy=[0.2, 0.4, 0.5]),
        Simple(rounds=[2, 4], accuracy=[0.4, 0.8]),
    ]
    curve = lora._curve(runs, lambda one: one.rounds)  # type: ignore[arg-type]
    assert curve[0] == [2, 4] and curve[1] == pytest.approx([30, 60])
    figure = empty_figure()
    common.curves(figure, {"": {"some": ([0.1, 100], [1, 2])}}, "MB sent", "accuracy", log=True)
    (axis,) = figure.axes
    assert axis.get_xscale() == "log"
    assert axis.xaxis.get_major_formatter()(0.1) == "0.1"
