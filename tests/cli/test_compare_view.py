"""The table of `fedrift compare`: the statistics of the report, in one screen."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fedrift.cli import code_of
from fedrift.cli.compare_view import Pace
from fedrift.report import write
from fedrift.report.statistics.findings import as_records

WORDS = ["--rounds", "4", "--clients", "4", "--workers", "0", "--model", "logistic"]
WORDS += ["--partition", "dirichlet", "--alpha", "0.5,5", "--quiet"]


def test_the_table_says_what_the_report_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs"
    words = [
        "compare",
        "fedavg",
        "fedsam",
        *WORDS,
        "--seeds",
        "3",
        "--lr",
        "0.5",
        "--out",
        str(out),
    ]
    assert code_of(words) == 0
    shown = capsys.readouterr().out
    written = write([out], tmp_path / "report.html")
    for one in written.findings.all:
        final = one.score.final
        assert f"{100 * final.mean:.2f} ± {100 * final.std:.2f}" in shown
    assert "95 % interval" in shown and "difference to fedavg" in shown
    assert "fedsam used 2.00 times the gradient evaluations of fedavg" in shown
    assert "dirichlet 0.5" in shown and "dirichlet 5" in shown
    assert code_of([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["baseline"] == "fedavg"
    assert told["results"] == json.loads(json.dumps(as_records(written.findings)))


def test_runs_that_fail_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["mlp" if word == "logistic" else word for word in WORDS]
    assert code_of(["compare", "fedavg", *words, "--lr", "1e15"]) == 0
    shown = capsys.readouterr().out
    assert "(X)" in shown
    assert "became infinite" in shown or "stays at chance" in shown


def test_the_time_left_counts_from_the_first_run_and_knows_that_methods_differ() -> None:
    pace, cheap, dear = Pace(), ("fedavg", ()), ("fedsam", ())
    assert pace.left({cheap: 30, dear: 30}, 500.0) is None
    pace.started((cheap, 0), 0, 100.0)  # data were loaded until then
    pace.reached((cheap, 0), 10)
    assert pace.left({cheap: 20, dear: 30}, 110.0) == pytest.approx(50)
    pace.ended((cheap, 0), 110.0)
    pace.started((dear, 0), 0, 110.0)
    pace.reached((dear, 0), 10)
    pace.ended((dear, 0), 210.0)
    assert pace.left({cheap: 20, dear: 20}, 210.0) == pytest.approx(20 * 1 + 20 * 10)
    pace.ended((cheap, 1), 210.0)  # it was read from its folder
    assert pace.left({cheap: 10, dear: 20}, 210.0) == pytest.approx(10 * 1 + 20 * 10)
    pace.started((cheap, 2), 5, 210.0)  # it goes on after its fifth round
    pace.reached((cheap, 2), 10)
    pace.ended((cheap, 2), 215.0)
    assert pace.left({dear: 20}, 215.0) == pytest.approx(20 * 10)


def test_tuning_says_what_it_makes_and_names_every_candidate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "spec.toml"
    file.write_text(
        'algorithms = [{ name = "fedavg", label = "plain" }, "fedprox"]\nmodel = "logistic"\n'
        "seeds = 2\nrounds = 2\nclients = 2\nworkers = 0\n",
        encoding="utf-8",
    )
    assert code_of(["compare", "--spec", str(file), "--tune", "lr=0.1,0.2"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "in all" in line] == [
        "tuning: 4 runs, 8 rounds in all",
        "4 runs, 8 rounds in all",
    ]
    named = [re.sub(r"^\d of 4: (.*), seed.*", r"\1", line) for line in lines if " of 4: " in line]
    assert named[:4] == [f"{name} (lr {lr})" for name in ("fedavg", "fedprox") for lr in (0.1, 0.2)]
    assert set(named[4:]) >= {"plain"}
