"""What a report is made of: good, damaged, older and foreign folders, and comparisons."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fedrift.errors import InputError
from fedrift.report import html, write
from tests.support.product import run_folder as results
from tests.support.report_pages import made
from tests.support.run_folders import grid, run_folder

COMPARISON = """
algorithms = ["fedavg", {name = "fedprox:mu=0.3", lr = 0.2, label = "prox", tuned = ["lr"]}]
seeds = [0, 1]
data = "digits"
model = "mlp"
clients = 10
per_round = 3
rounds = 20
tuning = {seed = 0, runs = 2, rounds = 40, gradients = 10000, options = {lr = ["0.1", "0.2"]}}
"""


def test_damaged_foreign_and_cut_off_folders_are_told_and_the_rest_shown(tmp_path: Path) -> None:
    root = grid(tmp_path / "runs", alphas=(0.1,), seeds=3)
    (root / "notes").mkdir()
    with (root / "fedavg-0.1-0" / results.ROUNDS).open("a") as file:
        file.write('{"round": 21, "accu')
    (root / "fedavg-0.1-1" / results.ROUNDS).write_text("nothing\n{}\n")
    (root / "fedprox-0.1-0" / results.SPEC).write_text('algorithm = "fedavg"\ncolour = "red"\n')
    (root / "fedprox-0.1-1" / results.SUMMARY).unlink()
    (root / "scaffold-0.1-0" / results.ROUNDS).write_text('{"round": 1, "loss": "much"}\n')
    (root / "scaffold-0.1-1" / results.CLIENTS).write_text('{"sizes": [1], "counts": [["x"]]}')
    written, found = made(tmp_path, root)
    said = " ".join(written.problems)
    for part in (
        "'notes' is no run folder",
        "the last line of rounds.jsonl was cut off",
        "line 1 of",
        "unknown key 'colour'",
        "is unfinished and left out of every figure",
        "'loss' is 'much'",
        "clients.json' is damaged",
    ):
        assert part in said
        assert part in found.text
    assert len(written.findings.grouped.runs) == 4
    assert "Not everything could be used" in found.text


def test_what_cannot_be_reported_is_refused_in_one_sentence(tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"there is no run to report on in '.*empty'"):
        write([tmp_path / "empty"], out)
    with pytest.raises(InputError, match=r"'.*nowhere' does not exist"):
        write([tmp_path / "nowhere"], out)
    with pytest.raises(InputError, match="no run to report on in nothing"):
        write([], out)
    run = run_folder(tmp_path / "a")
    with pytest.raises(InputError, match="different data sets"):
        write([run, run_folder(tmp_path / "b", data="mnist")], out)
    with pytest.raises(InputError, match=r"must end in \.html"):
        write([run], tmp_path / "report.pdf")
    with pytest.raises(InputError, match="unknown format 'word'"):
        write([run], out, format=["word"])
    with pytest.raises(InputError, match="unknown figures 'gif'"):
        write([run], out, figures=["gif"])
    assert not out.exists()


def test_without_plotly_the_fix_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "find_spec", lambda _: None)  # pyright: ignore[reportUnknownLambdaType]
    with pytest.raises(InputError, match=r"pip install 'fedrift\[report\]'"):
        write([run_folder(tmp_path / "a")], tmp_path / "report.html")


def comparison(root: Path) -> Path:
    """A comparison folder with one run of four missing and one of another grid."""
    from fedrift.config import grid as grids

    root.mkdir()
    (root / "compare.toml").write_text(COMPARISON)
    cells = grids.from_toml(root / "compare.toml").cells()
    for cell in cells[1:]:
        run_folder(root / "runs" / cell.slug, **cell.spec.to_dict())
    run_folder(root / "runs" / "older", algorithm="fedsam")
    return root


def test_a_comparison_folder_is_read_by_its_grid(tmp_path: Path) -> None:
    root = comparison(tmp_path / "compare")
    written, found = made(tmp_path, root)
    assert written.findings.methods == ("fedavg", "prox")
    assert [len(g.runs) for g in written.findings.grouped.groups] == [2, 1]
    said = " ".join(written.problems)
    assert "lacks 1 of 4 runs" in said
    assert "also holds 1 run that compare.toml does not name" in said
    assert "Found by tuning: lr=0.2 for prox." in found.text
    assert "Not tuned: fedavg." in found.text
    assert "2 runs, 40 rounds and 10 k gradient evaluations" in found.text
    assert f"fedrift compare --spec {root / 'compare.toml'} --out {root}" in found.text
    (root / "compare.toml").write_text("algorithms = 3")
    written, _ = made(tmp_path, root)
    assert "cannot be read, so all its runs are shown" in written.problems[0]
    assert len(written.findings.grouped.runs) == 4


def older(path: Path) -> Path:
    """A run as an early version wrote it: no costs, no cohorts, no ledger, no clients."""
    lines = [json.loads(line) for line in (path / results.ROUNDS).read_text().splitlines()]
    kept = ("round", "loss", "n", "accuracy", "class_total")
    text = "".join(json.dumps({k: row[k] for k in kept}) + "\n" for row in lines)
    (path / results.ROUNDS).write_text(text)
    for name in (results.LEDGER, results.CLIENTS, results.ENVIRONMENT):
        (path / name).unlink()
    return path


def test_runs_of_an_older_version_are_shown_as_far_as_they_go(tmp_path: Path) -> None:
    root = grid(tmp_path / "runs", alphas=(0.1,), seeds=2)
    older(root / "fedavg-0.1-0")
    written, found = made(tmp_path, root)
    said = "an older version wrote it, without gradients, bytes_up, seconds, cohort"
    assert said in " ".join(written.problems) and said in found.text
    assert len(written.findings.grouped.runs) == 6
    alone, page_ = made(tmp_path, root / "fedavg-0.1-0")
    assert len(alone.findings.all) == 1
    assert not re.search(r"\bnan\b", page_.text)
