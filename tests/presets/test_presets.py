"""Presets: their files, how they run and go on, what they say of the literature, and the page."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import fedrift as fr
from fedrift import presets
from fedrift.cli.compare_view import Watcher
from fedrift.config import grid
from fedrift.conform.problem import GOLDEN_A, GOLDEN_B
from fedrift.errors import InputError
from fedrift.presets import preset as reading
from fedrift.presets import relations
from fedrift.presets.findings import BY_SEED, Findings, Table
from fedrift.presets.page import Measured, overview, plain, preset_page, section, table_text
from fedrift.presets.preset import Preset, read
from fedrift.presets.relations import TRENDS, Place, Relation, relation, spoken, value_of
from fedrift.presets.running import Order, cpu_seconds, folder_of, key_of, run
from fedrift.presets.variants import FlippedScaffold, SummedScaffold
from fedrift.report.statistics.grouping import Setting
from tests.support.problems import Net, blobs, trajectory

DOCS = Path(__file__).resolve().parents[2] / "docs"
WANTED = """mnist-alpha-sweep mnist-one-class heterogeneity-speed mnist-scaffold mnist-fedsam
mnist-digit-pairs fednova-uneven-work fedopt-servers fedgf-table fedhbm-table niid-bench
fedprox-synthetic feddyn-synthetic skew-sweep fednova-synthetic fedprox-stragglers stragglers
participation size-skew classics"""

TINY = """
title = "Tiny"
question = "Does it run?"
source = "Nobody."

[[published]]
what = "FedAvg"
setting = "two rounds"
figure = "50"
part = "main"
row = "fedavg"
column = "dirichlet 1"

[[relations]]
says = "the ablation is FedAvg"
part = "main"
left = "ablation"
sign = "="
right = "fedavg:weights=uniform"
column = "weights"
table = "Hash of the final weights, seed by seed, dirichlet 0.1"

[laptop]
minutes = 0.1
note = "Everything is small."

[[laptop.parts]]
name = "main"
tables = ["accuracy", "best", "rounds", "loss", "costs", "target", "same"]
figures = ["settings"]

[laptop.parts.compare]
algorithms = [
  "fedavg",
  "fedavg:weights=uniform",
  { name = "scaffold:freeze_controls=true", label = "ablation" },
]
data = "digits:train=200"
model = "logistic"
partition = "dirichlet"
clients = 4
rounds = 2
workers = 0
grid = { alpha = [0.1, 1.0] }

[full]
minutes = 1
note = "Larger."

[[full.parts]]
name = "main"
like_laptop = true
compare = { data = "digits", rounds = 3 }
"""


RECORD: dict[str, Any] = {
    "command": "fedrift preset run tiny",
    "date": "2026-01-01",
    "seconds": 1.0,
    "seeds": [0],
    "machine": {"cpu": "none", "cores": 2, "load": 0.0},
    "versions": {"fedrift": "0"},
    "findings": {},
}
"""What a part's folder holds, without any table."""


def written(folder: Path, text: str = TINY, name: str = "tiny") -> Path:
    path = folder / f"{name}.toml"
    path.write_text(text, encoding="utf-8")
    return path


@contextmanager
def unwatched() -> Any:
    yield Watcher(shows=False)


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_is_read_and_its_relations_name_its_parts(name: str) -> None:
    found = presets.find(name)
    assert found.title and found.question and found.relations
    assert found.sizes["laptop"].minutes <= 15


def test_the_experiments_of_the_literature_are_there() -> None:
    assert set(WANTED.split()) <= set(presets.names())


@pytest.mark.parametrize("name", WANTED.split())
def test_full_is_at_least_as_heterogeneous_as_published_and_laptop_never_less(name: str) -> None:
    """What a laptop version cuts is never the number of clients of a part that both have."""
    sizes = presets.find(name).sizes
    full = {part.name: part for part in sizes["full"].parts}
    for part in sizes["laptop"].parts:
        if part.name in full and part.compare is not None:
            base, other = part.grid.base, full[part.name].grid.base
            assert base.clients == other.clients
            axes = {*part.grid.axes, *full[part.name].grid.axes}
            assert base.partition == other.partition or "partition" in axes


def test_rates_of_the_full_momentum_table_belong_to_the_forms_they_were_tuned_for() -> None:
    """FedCM at η is GHBM with τ = 1 at αη; MimeMom's published rates are of the heavy-ball form,
    whose steps are 1/(1−β) times as long as those of the paper's form."""
    for part in presets.find("fedhbm-table").sizes["full"].parts:
        if part.name.startswith("cifar"):
            rates = {str(cell.spec.algorithm): cell.spec.lr or 0 for cell in part.grid.cells()}
            assert rates["fedcm"] == pytest.approx(rates["ghbm:tau=1"] / 0.1)
            mime = next(name for name in rates if name.startswith("mimemom"))
            assert "form=heavy_ball" in mime and "server_lr=0.1" in mime and rates[mime] == 0.1


def test_an_unknown_name_or_key_is_told_with_what_was_meant(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'mnist-scaffold'"):
        presets.find("mnist-scafold")
    for wrong, said in (
        (f'caveatt = "a"\n{TINY}', "unknown key of .*did you mean 'caveat'"),
        (TINY.replace("question", "questoin"), "lacks the key 'question'"),
        (TINY.replace('tables = ["accuracy"', 'tables = ["acuracy"'), "did you mean 'accuracy'"),
        (TINY.replace("minutes = 0.1", 'minutes = "1"'), "minutes must be a number"),
        (TINY.replace('part = "main"\nleft', 'part = "man"\nleft'), "did you mean 'main'"),
        (TINY.replace('sign = "="', 'sign = "~"'), "sign must be one of"),
        (
            TINY.replace('tables = ["acc', 'target = 85\ntables = ["acc'),
            "accuracy such as 0.9, not 85",
        ),
        (TINY.replace("rounds = 2", "round = 2"), "did you mean 'rounds'"),
        (TINY.replace("[laptop.parts.compare]", "[laptop.parts.settings]"), "compare or study"),
    ):
        with pytest.raises(InputError, match=said):
            read(written(tmp_path, wrong))


def test_full_says_only_what_differs(tmp_path: Path) -> None:
    found = read(written(tmp_path))
    full = found.sizes["full"].parts[0].grid
    assert (full.base.data, full.base.rounds, full.base.clients) == ("digits", 3, 4)
    assert [e.name for e in full.entrants][-1] == "ablation"


def tables(**cells: float | str) -> dict[str, Findings]:
    rows = [[name, value] for name, value in cells.items()]
    return {"main": Findings([Table("t", ["method", "accuracy"], rows)])}


@pytest.mark.parametrize(
    ("left", "sign", "right", "slack", "held"),
    [
        (80.0, ">", 70.0, 0.0, True),
        (70.0, ">", 80.0, 0.0, False),
        ("80.5 ± 3.0", ">", "79.0 ± 1.0", 0.0, True),
        (69.5, ">=", 70.0, -1.0, True),
        (68.5, ">=", 70.0, -1.0, False),
        ("abc", "=", "abc", 0.0, True),
        ("abc", "=", "abd", 0.0, False),
        ("12ab", "=", "12ac", 0.0, False),
        (71.0, "=", 70.0, 2.0, True),
        (73.0, "=", 70.0, 2.0, False),
        (10.0, ">", "diverged (1 of 2 seeds)", 0.0, True),
    ],
)
def test_relations_are_decided_from_the_cells(
    left: float | str, sign: str, right: float | str, slack: float, held: bool
) -> None:
    a, b = (Place("main", name, "accuracy") for name in "ab")
    verdict = Relation("a and b", a, sign, b, slack).decide(tables(a=left, b=right))
    assert verdict is not None and verdict.held is held


# With three seeds the interval of the paired difference decides.


def seeded(settings: dict[str, dict[str, dict[str, Any]]]) -> dict[str, Findings]:
    """A part whose runs had so many seeds; the tables hold the mean alone."""
    for by_row in settings.values():
        for quantities in by_row.values():
            quantities["seed"] = list(range(len(next(iter(quantities.values())))))
    facts = {BY_SEED: {"usual": "accuracy", "settings": settings}}
    return {"main": Findings([Table("t", ["method"], [["a"], ["b"]])], facts=facts)}


def compared(
    a: Sequence[float | None], b: Sequence[float | None], sign: str = ">", slack: float = 0.0
) -> tuple[str, str]:
    parts = seeded({"even": {"a": {"accuracy": a}, "b": {"accuracy": b}}})
    places = [Place("main", name, "even") for name in "ab"]
    verdict = Relation("?", places[0], sign, places[1], slack).decide(parts)
    return spoken(verdict), "" if verdict is None else verdict.numbers


def test_an_interval_beyond_the_margin_is_seen_within_undecided_and_before_it_refuted() -> None:
    # Differences 4, 5, 6: mean 5, deviation 1, and Student's t for two degrees is 4.303.
    half = 4.3027 / 3**0.5
    low, high = f"+{5 - half:.2f}", f"+{5 + half:.2f}"
    a, b = [14.0, 25.0, 36.0], [10.0, 20.0, 30.0]
    assert compared(a, b) == ("seen", f"+5.00 ({low} to {high}), claimed > 0")
    assert compared(a, b, ">", 2.4)[0] == "seen"
    assert compared(a, b, ">", 2.6) == (
        "undecided",
        f"+5.00 ({low} to {high}), claimed > 2.6; could have told {half:.3g} apart",
    )
    assert compared(a, b, ">", 7.6)[0] == "refuted"
    assert compared(b, a)[0] == "refuted" and compared(b, a, "<")[0] == "seen"
    assert compared(b, a, ">=", -7.6)[0] == "seen", "not more than so much below"
    assert compared(a, b, "=", 7.6)[0] == "seen" and compared(a, b, "=", 2.0)[0] == "refuted"
    assert compared(a, b, "=", 5.0)[0] == "undecided"


def test_differences_are_taken_seed_by_seed() -> None:
    """The seeds differ by far more than the methods."""
    assert compared([10.5, 50.6, 90.7], [10.0, 50.0, 90.0])[0] == "seen"
    assert compared([10.5, 90.7, 50.6], [10.0, 50.0, 90.0])[0] == "undecided"


def test_two_seeds_decide_nothing_and_an_infinite_one_is_not_left_out() -> None:
    cases: tuple[Sequence[float | None], ...] = ([14.0, 25.0], [14.0, 25.0, None])
    for values in cases:
        assert compared(values, [10.0, 20.0, 30.0][: len(values)]) == ("not measured", "")


def test_what_became_infinite_in_every_seed_is_worse_than_what_did_not() -> None:
    known = {
        "a": {"accuracy": [None, None, None]},
        "b": {"accuracy": [1.0, 2.0, 3.0]},
        "c": {"accuracy": [4.0, None, 5.0]},
    }
    cells = [["a", "diverged (3 of 3 seeds)"], ["b", "2 ± 1"], ["c", "diverged (1 of 3 seeds)"]]
    made = seeded({"one": known})["main"]
    table = Table("t", ("method", "accuracy"), cells)
    parts = {"main": replace(made, tables=[table])}
    says: dict[str, Any] = {"says": "s", "part": "main", "column": "accuracy"}

    def said(left: str, sign: str, right: str) -> str:
        asked = relation({**says, "left": left, "sign": sign, "right": right}, "h", ["main"])
        return spoken(asked.decide(parts))

    assert (said("a", ">", "b"), said("a", "<", "b")) == ("refuted", "seen")
    assert (said("b", ">", "a"), said("b", "<", "a")) == ("seen", "refuted")
    assert said("c", ">", "b").startswith("undecided: too few seeds")


def test_a_target_that_is_never_met_costs_more_than_any_that_is() -> None:
    known: dict[str, dict[str, Any]] = {
        "a": {"accuracy": [9.0, 9.0, 9.0], "seconds to target": [3.0, 4.0, 5.0]},
        "b": {"accuracy": [1.0, 1.0, 1.0], "seconds to target": [None, None, None]},
        "c": {"accuracy": [5.0, 5.0, 5.0], "seconds to target": [7.0, None, 9.0]},
    }
    made = seeded({"one": known})["main"]
    table = Table("t", ("method", "one"), [["a", 9.0], ["b", 1.0], ["c", 5.0]])
    parts = {"main": replace(made, tables=[table])}
    says: dict[str, Any] = {"says": "s", "part": "main", "column": "one"}
    says |= {"measure": "seconds to target", "slack": -50}

    def said(left: str, sign: str, right: str) -> str:
        asked = relation({**says, "left": left, "sign": sign, "right": right}, "h", ["main"])
        return spoken(asked.decide(parts))

    assert (said("a", "<", "b"), said("a", ">", "b")) == ("seen", "refuted")
    assert (said("b", ">", "a"), said("b", "<", "a")) == ("seen", "refuted")
    assert said("a", "<", "c") == said("c", "<", "b") == said("b", "<", "b") == "undecided"
    asked = relation({**says, "left": "a", "sign": "<", "right": "c"}, "h", ["main"])
    verdict = asked.decide(parts)
    assert verdict is not None and verdict.numbers == "met by 3 of 3 and 2 of 3 seeds"


def test_a_refuted_claim_stands_with_the_test_of_a_reason(tmp_path: Path) -> None:
    known = {"a": {"accuracy": [1.0, 1.1, 1.2]}, "b": {"accuracy": [5.0, 5.3, 5.1]}}
    record = {**RECORD, "findings": seeded({"one": known})["main"].record()}
    says = '\n[[relations]]\npart = "main"\ncolumn = "one"\n'
    more = f'{says}says = "a wins"\nleft = "a"\nsign = ">"\nright = "b"\nwhy = "b is ahead"\n'
    more += f'{says}says = "b is ahead"\nleft = "b"\nsign = ">"\nright = "a"\nwhy = "a wins"\n'
    head, rest = TINY.split("[[relations]]", 1)
    text = f"{head}{more}[laptop]{rest.split('[laptop]', 1)[1]}"
    one = Measured(read(written(tmp_path, text)), "laptop", {"main": record})
    for page in (section(one), overview([one], "")):
        assert page.count("Why: b is ahead, seen: +4.03") == 1
        assert "Why: a wins" not in page, "what was seen needs no reason"
    with pytest.raises(InputError, match=r"unknown why .*did you mean 'b is ahead'"):
        read(written(tmp_path, text.replace('why = "b is ahead"', 'why = "b is ahaed"')))


def test_after_a_reason_that_was_not_seen_stands_the_next_one(tmp_path: Path) -> None:
    known = {"a": {"accuracy": [1.0, 1.1, 1.2]}, "b": {"accuracy": [5.0, 5.3, 5.1]}}
    record = {**RECORD, "findings": seeded({"one": known})["main"].record()}
    says = '\n[[relations]]\npart = "main"\ncolumn = "one"\nsign = ">"\n'
    more = f'{says}says = "a wins"\nleft = "a"\nright = "b"\nwhy = "a is two"\n'
    more += f'{says}says = "a is two"\nleft = "a"\nright = 2\nwhy = "b is four"\n'
    more += f'{says}says = "b is four"\nleft = "b"\nright = 4\nwhy = "a is ten"\n'
    more += f'{says}says = "a is ten"\nleft = "a"\nright = 10\nwhy = "a is ten"\n'
    head, rest = TINY.split("[[relations]]", 1)
    text = f"{head}{more}[laptop]{rest.split('[laptop]', 1)[1]}"
    one = Measured(read(written(tmp_path, text)), "laptop", {"main": record})
    for page in (section(one), overview([one], "")):
        assert (
            "Why: a is two, refuted: 1.10 (0.85 to 1.35), claimed \\> 2. Another reason: b" in page
        )
        assert "Another reason: b is four, seen: 5.13 (4.75 to 5.51), claimed \\> 4" in page
        assert "reason: a is ten" not in page and "Why: a is ten" not in page
    assert "Of 4 claims: 1 seen, 3 refuted, 0 undecided." in overview([one], "")
    assert "Of the 3 refuted 2 have a tested reason that was seen, 0 only" in overview([one], "")
    assert "and 1 none." in overview([one], "")


def test_a_figure_that_is_held_against_a_number_is_shown_itself() -> None:
    parts = seeded({"even": {"a": {"accuracy": [61.0, 62.0, 63.0]}}})

    def numbers(sign: str, right: float, slack: float = 0.0) -> str:
        verdict = Relation("?", Place("main", "a", "even"), sign, right, slack).decide(parts)
        assert verdict is not None
        return verdict.numbers

    assert numbers("<", 50.0) == "62.00 (59.52 to 64.48), claimed < 50"
    assert numbers(">=", 70.0, -5.0).startswith("62.00 (59.52 to 64.48), claimed ≥ 65")
    assert numbers("=", 62.7, 5.0) == "62.00 (59.52 to 64.48), claimed 62.7 ± 5"
    assert numbers(">", 0.0) == "+62.00 (+59.52 to +64.48), claimed > 0", "a difference"


def test_differences_of_costs_have_their_unit_and_tables_of_them_one_decimal() -> None:
    cost = {"a": {"accuracy": [1.0] * 3, "MB to target": [5000.0, 9000.0, 7000.0]}}
    cost["b"] = {"accuracy": [1.0] * 3, "MB to target": [5000.0, 5000.0, 5000.0]}
    parts = seeded({"accuracy": cost})
    a, b = (Place("main", name, "accuracy", measure="MB to target") for name in "ab")
    asked = Relation("?", a, "<", b)
    verdict = asked.decide(parts)
    assert verdict is not None and asked.rule == "MB to target: a < b"
    assert verdict.numbers.startswith("+2,000 MB (\N{MINUS SIGN}2,968 to +6,968), claimed < 0;")
    assert verdict.numbers.endswith("could have told 4,968 apart")
    than = (Place("other", "a", "even"), Place("other", "b", "even"))
    between = Relation("?", Place("main", "a", "even"), ">", Place("main", "b", "even"), than=than)
    assert between.rule == "(a \N{MINUS SIGN} b, even) > (a \N{MINUS SIGN} b, even in other)"
    rows = [["a", 333.33, 1099.104, 0.005, "0.999 ± 0.0003872", "1.415 ± 0.07003", 2.5]]
    columns = ("method", "rounds to target", "MB sent", "MB up", "loss", "index", "times")
    text = table_text(Table("t", columns, rows))
    assert "| a | 333.3 | 1,099.1 | 0.005 | 0.999 ± 0.0004 | 1.415 ± 0.070 | 2.50 |" in text


def test_a_reason_may_be_tested_by_another_size(tmp_path: Path) -> None:
    known = {"a": {"accuracy": [1.0, 1.1, 1.2]}, "b": {"accuracy": [5.0, 5.3, 5.1]}}
    record = {**RECORD, "findings": seeded({"one": known})["main"].record()}
    says = '\n[[relations]]\npart = "main"\ncolumn = "one"\n'
    more = f'{says}says = "a wins"\nleft = "a"\nsign = ">"\nright = "b"\nwhy = "b is ahead"\n'
    more += f'{says}says = "b is ahead"\nleft = "b"\nsign = ">"\nright = "a"\nonly = "full"\n'
    head, rest = TINY.split("[[relations]]", 1)
    text = f"{head}{more}[laptop]{rest.split('[laptop]', 1)[1]}"
    preset = read(written(tmp_path, text))
    laptop, full = (Measured(preset, size, {"main": record}) for size in ("laptop", "full"))
    assert "Why: b is ahead, not measured" in overview([laptop], "")
    for page in (overview([laptop, full], ""), section(laptop, [laptop, full])):
        assert "Why: b is ahead, seen in the size full: +4.03" in page
    assert "Why: b is ahead, seen: +4.03" in section(full, [laptop, full])


def test_what_a_source_says_of_its_figures_is_a_main_claim(tmp_path: Path) -> None:
    known = {"a": {"accuracy": [1.0, 1.1, 1.2]}, "b": {"accuracy": [5.0, 5.3, 5.1]}}
    record = {**RECORD, "findings": seeded({"one": known})["main"].record()}
    says = '\n[[relations]]\npart = "main"\ncolumn = "one"\nleft = "a"\nright = "b"\n'
    more = f'{says}says = "a loses"\nsign = "<"\npublished = "8 against 9"\n'
    more += f'{says}says = "a wins"\nsign = ">"\n'
    head, rest = TINY.split("[[relations]]", 1)
    text = f"{head}{more}[laptop]{rest.split('[laptop]', 1)[1]}"
    one = Measured(read(written(tmp_path, text)), "laptop", {"main": record})
    main, others = overview([one], "").split("## All presets")
    assert "| a loses | 8 against 9 | −4.03 (" in main
    assert "a wins" not in main
    assert "| a wins |" in others


def test_two_differences_can_be_compared_and_any_quantity() -> None:
    parts = seeded(
        {
            "skewed": {"a": {"accuracy": [9.0, 9.1, 9.2], "c": [0.9, 1.0, 1.0]},
                       "b": {"accuracy": [1.0, 1.2, 1.1], "c": [0.0, 0.0, 0.1]}},
            "even": {"a": {"accuracy": [5.0, 5.1, 5.2], "c": [0.1, 0.0, 0.0]},
                     "b": {"accuracy": [4.0, 4.2, 4.1], "c": [0.0, 0.0, 0.1]}},
        }
    )  # fmt: skip
    table: dict[str, Any] = {
        "says": "grows",
        "part": "main",
        "left": "a",
        "sign": ">",
        "right": "b",
    }
    table |= {"column": "other | skewed", "than": {"column": "even"}}
    grows = relation(table, "here", ["main"])
    verdict = grows.decide(parts)
    assert verdict is not None and spoken(verdict) == "seen"
    assert verdict.numbers.startswith("+7.00 ")
    assert grows.rule == "(a − b, other) > (a − b, even)"
    moved = {key: value for key, value in table.items() if key != "than"}
    moved |= {"right": "a", "right_column": "even", "measure": "c", "slack": 0.5}
    nearer = relation(moved, "here", ["main"])
    assert spoken(nearer.decide(parts)) == "seen"
    assert nearer.rule == "c, other: a > a at even + 0.5"
    with pytest.raises(InputError, match="right must be the name of a row"):
        relation({**table, "right": 3}, "here", ["main"])


def test_quantities_of_every_seed_are_kept_with_the_findings(tmp_path: Path) -> None:
    text = TINY.replace("workers = 0", "workers = 0\nseeds = 3")
    found = read(written(tmp_path, text.replace('  "fedavg",', '  "fedavg",\n  "fedgf",')))
    records = run(Order(found, found.sizes["laptop"], tmp_path / "out"), unwatched, lambda _: None)
    findings = Findings.of(json.loads(json.dumps(records["main"]["findings"])))
    kept = findings.by_seed("fedavg", "dirichlet 0.1")
    assert list(kept) == [0, 1, 2] and all(0 <= (v or 0) <= 100 for v in kept.values())
    mean = value_of(findings.tables[0].cell("fedavg", "dirichlet 0.1"), 0.0)
    assert mean == pytest.approx(sum(v or 0 for v in kept.values()) / 3, abs=0.01)
    for measure in ("best", "loss", "rounds to target"):
        assert len(findings.by_seed("fedavg", "dirichlet 1", measure)) == 3
    assert findings.by_seed("fedavg", "dirichlet 7") == {}
    logged = findings.by_seed("fedgf", "dirichlet 1", "dist")
    assert len(logged) == 3 and all(value and value > 0 for value in logged.values())
    assert findings.by_seed("fedavg", "dirichlet 1", "dist") == {}, "only FedGF notes it"
    verdict = found.relations[0].decide({"main": findings})
    assert spoken(verdict, certain=True) == "held", "hashes are no quantities"


def test_methods_are_compared_after_equal_time_of_the_clock(tmp_path: Path) -> None:
    text = TINY.replace("workers = 0", 'workers = 0\nseeds = 3\ndevices = "uniform:speed=100"')
    text = text.replace('  "fedavg",', '  { name = "fedavg", rounds = 9, label = "longer" },')
    text = text.replace(
        'figures = ["settings"]', 'figures = ["time"]\nseconds = 1.5\ntarget = 0.01'
    )
    found = read(written(tmp_path, text))
    records = run(Order(found, found.sizes["laptop"], tmp_path / "out"), unwatched, lambda _: None)
    findings = Findings.of(records["main"]["findings"])
    costs = next(t for t in findings.tables if t.title.startswith("Cost of the whole run"))
    assert findings.tables[0].columns == ["method", "dirichlet 0.1", "dirichlet 1"], "one method"
    assert 0 < (value_of(costs.cell("longer", "seconds"), 0.0) or 0) <= 1.5
    assert any("ends after" in note and "fedavg:weights" in note for note in findings.notes)
    spent = findings.by_seed("longer", "dirichlet 1", "seconds to target")
    assert len(spent) == 3 and all(value and 0 < value <= 1.5 for value in spent.values())
    reached = next(t for t in findings.tables if t.title.startswith("Until the target"))
    assert reached.columns[-1] == "seconds to target"
    assert (tmp_path / "out" / "main" / "time.png").is_file()


def test_rates_are_tuned_before_the_comparison_and_rows_keep_their_names(tmp_path: Path) -> None:
    text = TINY.replace('figures = ["settings"]', 'figures = ["settings"]\ntune = ["lr=1e-9,0.5"]')
    for name in ("fedavg", "fedavg:weights=uniform"):
        text = text.replace(f'  "{name}",', f'  {{ name = "{name}", label = "{name}" }},')
    found = read(written(tmp_path, text))
    order = Order(found, found.sizes["laptop"], tmp_path / "out")
    records = run(order, unwatched, lambda _: None)
    made = grid.from_values(tomllib.loads((tmp_path / "out/main/compare.toml").read_text("utf-8")))
    assert [one.settings["lr"] for one in made.entrants] == [0.5] * 3
    rows = [row[0] for row in Findings.of(records["main"]["findings"]).tables[0].rows]
    assert rows == ["fedavg", "fedavg:weights=uniform", "ablation"]
    assert records["main"]["findings"]["notes"] == [
        "Chosen on held-out training data of seed 0: fedavg lr 0.5; "
        "fedavg:weights=uniform lr 0.5; ablation lr 0.5."
    ]
    untuned = replace(found.sizes["laptop"].parts[0], tune=())
    assert key_of(untuned, order) != key_of(found.sizes["laptop"].parts[0], order)
    with pytest.raises(InputError, match="tune 'rho' is an option of no algorithm here"):
        read(written(tmp_path, text.replace("lr=1e-9,0.5", "rho=1,2")))


# Sizes.


def test_an_evening_is_a_size_of_its_own_and_laptop_the_usual_one(tmp_path: Path) -> None:
    evening = TINY.replace("[full]", "[evening]", 1) + "\n[full]" + TINY.split("[full]")[1]
    evening = evening.replace("[[full.parts]]", "[[evening.parts]]", 1)
    found = read(written(tmp_path, evening))
    assert list(found.sizes) == ["laptop", "evening", "full"]
    order = Order(found, found.size("evening"), tmp_path)
    assert order.command == "fedrift preset run tiny --size evening"
    assert folder_of(found, found.size("evening")).name == "tiny-evening"
    assert folder_of(found, found.size("laptop")).name == "tiny"
    plain_one = read(written(tmp_path))
    with pytest.raises(InputError, match=r"unknown size of preset 'tiny' 'evening'"):
        plain_one.size("evening")
    with pytest.raises(InputError, match="lacks the key 'laptop'"):
        read(
            written(tmp_path, TINY.replace("[laptop]", "[evening]").replace("laptop.", "evening."))
        )


def test_the_old_flag_and_the_size_agree(capsys: pytest.CaptureFixture[str]) -> None:
    from fedrift.cli import code_of

    shown: list[str] = []
    for words in (["--full"], ["--size", "full"]):
        assert code_of(["preset", "show", "fedopt-servers", *words]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]
    assert code_of(["preset", "show", "fedopt-servers", "--full", "--size", "laptop"]) == 2
    assert "say two things" in capsys.readouterr().err
    assert code_of(["preset", "show", "fedopt-servers", "--size", "night"]) == 2


def test_cells_of_a_published_table_stand_beside_ours(tmp_path: Path) -> None:
    table = """[[published_tables]]
setting = "their task"
part = "main"
columns = [{ says = "α = 1", column = "x | dirichlet 1" }, { says = "α = 2", column = "none" }]
rows = [{ what = "FedAvg", row = "fedavg", figures = ["50.1", "X"] }]

"""
    text = TINY.replace("[[relations]]", table + "[[relations]]", 1)
    found = read(written(tmp_path, text))
    findings = Findings([Table("t", ["method", "dirichlet 1"], [["fedavg", 61.5]])])
    record = {**RECORD, "findings": findings.record()}
    shown = preset_page([Measured(found, "laptop", {"main": record})], "")
    assert "### Published and, in bold, ours: their task" in shown
    assert "| FedAvg | 50.1 **61.50** | X |" in shown
    with pytest.raises(InputError, match="'FedAvg' has 1 figures for 2 heads"):
        read(written(tmp_path, text.replace(', "X"]', "]")))


def test_a_relation_without_its_numbers_is_not_decided() -> None:
    relation = Relation("?", Place("main", "a", "accuracy"), ">", Place("main", "c", "accuracy"))
    assert relation.decide(tables(a=1.0)) is None
    assert value_of("0123abcd", 0.0) is None
    assert value_of("\u22121.5 ± 2", 0.0) == -1.5


@pytest.mark.parametrize(
    ("cell", "text"),
    [(-0.25, "\u22120.25"), ("-0.03 ± 0.07", "\u22120.03 ± 0.07"), (-3, "\u22123"), ("a-b", "a-b")],
)
def test_what_is_below_zero_has_a_minus(cell: float | str, text: str) -> None:
    assert relations.shown(cell) == text


def test_a_run_that_learned_too_little_decides_nothing() -> None:
    a, b = (Place("main", name, "accuracy") for name in "ab")
    asked = Relation("?", a, ">", b, needs=(b, 20.0))
    for low, held in ((19.0, None), (20.0, None), (21.0, True), (40.0, False)):
        verdict = asked.decide(tables(a=30.0, b=low))
        assert verdict is not None and verdict.held is held
        assert ("not above 20" in verdict.numbers) is (held is None)
    diverged = asked.decide(tables(a=30.0, b="diverged (1 of 1 seeds)"))
    assert diverged is not None
    assert spoken(diverged) == "undecided: too few seeds (this size cannot say)"
    assert spoken(None) == "not measured"


def test_every_expected_trend_is_asked_for_and_stands_on_the_page() -> None:
    asked = {
        relation.trend for name in presets.names() for relation in presets.find(name).relations
    }
    assert asked - {""} == set(TRENDS)
    text = (DOCS / "results.md").read_text(encoding="utf-8")
    table = text.split("## Trends")[1]
    for words in TRENDS.values():
        assert f"| {plain(words)} |" in table


def test_what_was_expected_only_afterwards_is_marked(tmp_path: Path) -> None:
    text = TINY.replace('says = "the ablation', 'afterwards = true\nsays = "the ablation')
    found = read(written(tmp_path, text))
    shown = section(Measured(found, "laptop", {"main": RECORD}))
    assert "| the ablation is FedAvg (added when the figures were known) |" in shown
    assert "| weights: ablation = fedavg:weights=uniform |" in shown, "the rule stands beside it"
    with pytest.raises(InputError, match="afterwards must be true or false, not 'yes'"):
        read(written(tmp_path, text.replace("afterwards = true", 'afterwards = "yes"')))
    with pytest.raises(InputError, match=r"unknown trend .*did you mean 'alpha'"):
        read(written(tmp_path, text.replace("afterwards = true", 'trend = "alhpa"')))


def test_text_of_a_page_is_shown_as_it_is() -> None:
    assert plain("a_b < c | d > [e]") == "a\\_b &lt; c \\| d \\> \\[e\\]"


def test_what_is_true_by_definition_is_marked_and_counted_apart(tmp_path: Path) -> None:
    table = Table("t", ("method", "accuracy"), [["fedavg", 50.0], ["scaffold", 60.0]])
    record = {**RECORD, "findings": Findings(tables=[table]).record()}
    says = '\n[[relations]]\npart = "main"\nleft = "scaffold"\ncolumn = "accuracy"\n'
    cases = (
        ("sure", ">", "fedavg", "certain = true"),
        ("held", ">", "fedavg", ""),
        ("failed", "<", "fedavg", ""),
        ("open", ">", "absent", ""),
        ("later", ">", "fedavg", 'only = "full"'),
    )
    more = "".join(
        f'{says}says = "{name}"\nsign = "{sign}"\nright = "{right}"\n{flag}\n'
        for name, sign, right, flag in cases
    )
    head, rest = TINY.split("[[relations]]", 1)
    text = f"{head}{more}[laptop]{rest.split('[laptop]', 1)[1]}"
    one = Measured(read(written(tmp_path, text)), "laptop", {"main": record})
    line = next(s for s in section(one).split("\n") if s.startswith("| sure (true by definition)"))
    assert line.endswith("| 60 \\> 50 | **held** |")
    assert "later" not in section(one)
    text = overview([one], "")
    assert text.split("| ---: |\n")[1].split("\n")[0].endswith("| 0 | 0 | 3 | 1 of 1 |")
    assert "Of 2 claims: 0 seen, 0 refuted, 2 undecided." in text, "one seed decides nothing"
    assert "| 60 \\> 50: held, with too few seeds |" in text


def test_a_figure_of_another_task_is_not_put_beside_the_published_one(tmp_path: Path) -> None:
    place = 'part = "main"\nrow = "fedavg"\ncolumn = "accuracy"\n'
    published = f'[[published]]\nwhat = "w"\nsetting = "s"\nfigure = "9"\nonly = "full"\n{place}\n'
    text = TINY.replace("[[relations]]", published + "[[relations]]", 1)
    found = read(written(tmp_path, text)).published[-1]
    findings = {"main": Findings(tables=[Table("t", ("method", "accuracy"), [["fedavg", 50.0]])])}
    assert (found.ours(findings, "laptop"), found.ours(findings, "full")) == (None, 50.0)
    with pytest.raises(InputError, match=r"unknown only .*did you mean 'full'"):
        read(written(tmp_path, text.replace('"full"', '"fulll"', 1)))


def test_processor_time_counts_what_was_started_too() -> None:
    before = cpu_seconds()
    if before is None:
        pytest.skip("needs /proc")
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    subprocess.run([sys.executable, "-c", burn], check=True)
    alive = subprocess.Popen(
        [sys.executable, "-c", f"{burn}\nprint(flush=True)\ninput()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with alive:
        assert alive.stdout is not None and alive.stdout.readline()
        after = cpu_seconds()
        alive.communicate(b"\n")
    assert after is not None and 0.5 < after - before < 5


def test_the_wheel_holds_every_preset(tmp_path: Path) -> None:
    """Without them an installed fedrift would know no preset at all."""
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="needs hatchling")
    (made,) = wheel.WheelBuilder(str(DOCS.parent)).build(directory=str(tmp_path))
    with zipfile.ZipFile(made) as packed:
        files = {name for name in packed.namelist() if name.endswith(".toml")}
    assert {f"fedrift/presets/{name}.toml" for name in presets.names()} <= files


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Preset, Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("presets")
    found = read(written(folder))
    order = Order(found, found.sizes["laptop"], folder / "tiny", seeds=(0, 1))
    return found, folder / "tiny", run(order, unwatched, lambda _: None)


def test_a_preset_runs_and_keeps_tables_figures_and_surroundings(
    tiny: tuple[Preset, Path, dict[str, Any]],
) -> None:
    found, folder, records = tiny
    record = json.loads((folder / "main" / "findings.json").read_text(encoding="utf-8"))
    assert record == records["main"]
    assert (record["seeds"], record["command"]) == ([0, 1], "fedrift preset run tiny --seeds 0,1")
    assert record["machine"]["cores"] >= 1 and record["versions"]["torch"]
    assert (folder / "main" / "settings.png").is_file()
    parts = {"main": Findings.of(record["findings"])}
    accuracy = parts["main"].tables[0]
    assert accuracy.columns == ["method", "dirichlet 0.1", "dirichlet 1"]
    assert "±" in str(accuracy.cell("fedavg", "dirichlet 1"))
    assert str(folder.parent) not in json.dumps(record)
    verdict = found.relations[0].decide(parts)
    assert verdict is not None and verdict.held
    place = found.published[0].place
    assert place is not None and place.cell(parts) == accuracy.cell("fedavg", "dirichlet 1")


def test_what_is_finished_is_not_made_again(
    tiny: tuple[Preset, Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, folder, records = tiny
    said: list[str] = []

    def refuse(*_: Any) -> Any:
        raise AssertionError("it was made again")

    order = Order(found, found.sizes["laptop"], folder, seeds=(0, 1))
    with monkeypatch.context() as patch:
        patch.setattr("fedrift.presets.running._compare", refuse)
        assert run(order, unwatched, said.append) == records
        assert said == ["part 1 of 1, main: done before"]
        other = Order(found, found.sizes["laptop"], folder, seeds=(0,))
        with pytest.raises(AssertionError, match="made again"):
            run(other, unwatched, said.append)


def test_the_flipped_sign_diverges_as_it_should_and_the_ablation_is_fedavg() -> None:
    """The published mistake, with the numbers it must give on the two quadratics."""
    work: dict[str, Any] = {"lr": 0.1, "steps": 5, "batch_size": None}
    last = trajectory(FlippedScaffold(), rounds=10, **work)[-1]
    assert last == pytest.approx((36.73, 4.39), abs=5e-3)
    right = trajectory("scaffold", rounds=10, **work)[-1]
    assert right == pytest.approx((-0.200098, 1.333162), abs=2e-6)


def test_a_server_that_adds_controls_without_dividing() -> None:
    """c ← c + Σ Δc_i, step by step on the two quadratics; everything else is SCAFFOLD."""
    a, b = torch.tensor(GOLDEN_A).double(), torch.tensor(GOLDEN_B).double()
    w, c, own = torch.zeros(2).double(), torch.zeros(2).double(), torch.zeros(2, 2).double()
    for found in trajectory(SummedScaffold(), rounds=3, lr=0.1, steps=5, batch_size=None):
        local = w.repeat(2, 1)
        for _ in range(5):
            local = local - 0.1 * (a * (local - b) - own + c)
        change = (w - local) / 0.5 - c
        w, c, own = local.mean(0), c + change.sum(0), own + change
        assert found == pytest.approx(w.tolist(), abs=1e-6)


def test_controls_that_stay_equal_are_fedavg_with_uniform_weights_bit_for_bit() -> None:
    clients = [blobs(n, seed=i) for i, n in enumerate((20, 35, 50))]
    shared: dict[str, Any] = {"model": Net, "clients": clients, "test": blobs(40, seed=9)}
    shared |= {"rounds": 4, "lr": 0.1, "epochs": 2, "batch_size": 8, "workers": 0}
    frozen = fr.run("scaffold:freeze_controls=true", **shared)
    plain = fr.run("fedavg:weights=uniform", **shared)
    assert torch.equal(frozen.weights, plain.weights)
    assert (frozen.accuracy, frozen.loss) == (plain.accuracy, plain.loss)
    assert not torch.equal(fr.run("scaffold", **shared).weights, plain.weights)


def test_the_files_that_show_prints_are_comparisons(capsys: pytest.CaptureFixture[str]) -> None:
    from fedrift.cli import code_of

    assert code_of(["preset", "show", "mnist-scaffold", "--part", "main"]) == 0
    text = capsys.readouterr().out
    again = grid.from_values(tomllib.loads(text))
    assert again.cells() == presets.find("mnist-scaffold").sizes["laptop"].parts[0].grid.cells()
    assert code_of(["preset", "show", "mnist-scaffold"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["rounds"] == 3
    assert code_of(["preset", "list"]) == 0
    assert "fedgf-table" in capsys.readouterr().out
    for words in (["show", "no"], ["run", "fedgf-tabel"], ["show", "niid-bench", "--part", "x"]):
        assert code_of(["preset", *words]) == 2
    assert code_of(["preset", "run", "niid-bench", "--data-dir", "/no/such/folder"]) == 2
    assert "data_dir '/no/such/folder'" in capsys.readouterr().err


@cache
def maker() -> Any:
    at = importlib.util.spec_from_file_location("make_results", DOCS / "make_results.py")
    assert at is not None and at.loader is not None
    module = importlib.util.module_from_spec(at)
    at.loader.exec_module(module)
    return module


def test_the_pages_of_results_are_what_the_kept_figures_give() -> None:
    made = maker().made()
    for path, text in made.items():
        assert path.read_text(encoding="utf-8") == text, path
    assert {p for p in made if p.parent == DOCS / "results"} == set((DOCS / "results").glob("*.md"))


@pytest.mark.parametrize("file", sorted((DOCS / "results" / "data").glob("*.json")))
def test_kept_figures_are_of_the_preset_as_it_is_now(file: Path) -> None:
    """Else the page would describe another size than the one that was run."""
    kept = json.loads(file.read_text(encoding="utf-8"))
    preset = presets.find(kept["preset"])
    size = preset.sizes[kept["size"]]
    now = {part.name: key_of(part, Order(preset, size, file.parent)) for part in size.parts}
    assert {name: record["key"] for name, record in kept["parts"].items()} == now


def test_every_picture_of_the_page_is_there_and_no_other() -> None:
    pages = [p.read_text(encoding="utf-8") for p in (DOCS / "results").glob("*.md")]
    shown = {name for text in pages for name in re.findall(r"\]\(([^)]+\.png)\)", text)}
    assert shown == {file.name for file in (DOCS / "results").glob("*.png")}


def test_marks_of_bytes_do_not_run_into_each_other() -> None:
    """In six panels, where an axis is shortest for its labels, at sizes of all lengths."""
    from types import SimpleNamespace as Simple

    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from fedrift.presets.figures import FIGURES

    def one(most: float) -> Any:
        sent, accuracy = np.linspace(most / 20, most, 20), np.linspace(0.3, 0.8, 20)
        run = Simple(is_blank=False, accuracy=accuracy, loss=accuracy, bytes=sent)
        return Simple(method="fedavg", group=Simple(runs=[run]))

    sizes = (4.1e8, 3.2e8, 1.1e9, 9.6e6, 770.0, 2e12)
    by_setting = {Setting(f"{n:g} bytes", "", ()): [one(n)] for n in sizes}
    found: Any = Simple(
        settings=list(by_setting), by_setting=by_setting, methods=["fedavg"], has_accuracy=True
    )
    figure = FIGURES["bytes"](found)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for axis in figure.axes:
        labels = [text for text in axis.get_xticklabels() if text.get_text()]
        boxes = [text.get_window_extent(canvas.get_renderer()) for text in labels]
        assert len(boxes) >= 3
        assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes)), axis.get_title()


def test_a_single_evaluation_is_a_point_and_a_short_loss_axis_has_plain_numbers() -> None:
    from types import SimpleNamespace as Simple

    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from fedrift.presets.figures import FIGURES

    def one(method: str, number: int) -> Any:
        rounds = np.arange(1, number + 1)
        run = Simple(is_blank=False, rounds=rounds, bytes=1e6 * rounds, gradients=16 * rounds)
        run.loss = np.linspace(3.3, 2.1, number)
        return Simple(method=method, group=Simple(runs=[run]))

    setting, methods = Setting("iid", "", ()), ["often", "once"]
    by_setting = {setting: [one("often", 20), one("once", 1)]}
    found: Any = Simple(
        settings=[setting], by_setting=by_setting, methods=methods, has_accuracy=True
    )
    for name in ("loss", "loss-bytes", "loss-gradients"):
        figure = FIGURES[name](found)
        FigureCanvasAgg(figure).draw()
        (axis,) = figure.axes
        line, point = axis.get_lines()
        assert (line.get_marker(), point.get_marker()) == ("None", "o")
        low, high = axis.get_ylim()
        marks = [float(text.get_text()) for text in axis.get_yticklabels() if text.get_text()]
        assert len([mark for mark in marks if low <= mark <= high]) >= 3


def test_methods_of_diloco_are_evaluated_after_equal_work() -> None:
    """A picture of their curves shows all of them, and all end with an evaluation."""
    preset = presets.find("diloco-text")
    spans = {"main": 50, "longer": 150, "noise": 50}
    parts = [part for size in preset.sizes.values() for part in size.parts]
    assert {part.name for part in parts} == set(spans)
    for part in parts:
        for cell in part.grid.cells():
            spec = cell.spec
            assert isinstance(spec.steps, int)
            assert spec.steps * spec.eval_every == max(spans[part.name], spec.steps)
            assert spec.rounds % spec.eval_every == 0


def test_known_tables_and_figures_can_be_made() -> None:
    from fedrift.presets.figures import FIGURES
    from fedrift.presets.tables import TABLES

    assert (tuple(TABLES), tuple(FIGURES)) == (reading.TABLES, reading.FIGURES)


@pytest.mark.slow
@pytest.mark.parametrize("name", WANTED.split())
def test_every_method_of_a_preset_starts_with_its_settings(name: str) -> None:
    """On eight clients of digits: nothing is refused after hours in a queue."""
    from fedrift import comparison

    small: dict[str, Any] = {"data": "digits:train=80,test=20", "model": "mlp", "clients": 8}
    small |= {"partition": "iid", "alpha": None, "rounds": 1, "eval_every": 1, "augment": ()}
    small |= {"per_round": None, "fraction": None, "workers": 0}
    known: dict[str, grid.Cell] = {}
    for size in presets.find(name).sizes.values():
        for part in size.parts:
            for cell in part.grid.cells() if part.compare is not None else ():
                epochs = 1 if isinstance(cell.spec.epochs, int) else cell.spec.epochs
                spec = replace(cell.spec, **small, epochs=epochs, seed=0)
                known[spec.to_toml()] = grid.Cell(cell.entrant, {}, spec)
    made = comparison.run_grid(list(known.values()), None, 0, None)
    assert [o.error for o in made.outcomes if o.result is None] == []
