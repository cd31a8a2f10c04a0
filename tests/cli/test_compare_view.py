"""The table of `fedrift compare`: the statistics of the report, in one screen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedrift.cli import code_of
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
