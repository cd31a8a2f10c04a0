"""`fedrift report`: the files it writes, and one sentence for what it cannot show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedrift.cli import code_of
from tests.support.product import run_folder as results
from tests.support.report_pages import Page
from tests.support.run_folders import grid, run_folder


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = grid(tmp_path / "runs", seeds=2)
    out = tmp_path / "made" / "page.html"
    words = ["report", str(root), "-o", str(out), "--target", "60%", "--baseline", "scaffold"]
    assert code_of([*words, "--last", "3", "--format", "md"]) == 0
    assert out.exists()
    assert out.with_suffix(".md").exists()
    assert "page.html" in capsys.readouterr().out
    found = Page(out)
    assert "The target is 60.00 %." in found.text
    assert "mean of the last 3 evaluated rounds" in found.text
    assert "difference to scaffold" in found.text
    assert code_of([*words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["baseline"] == "scaffold"
    assert len(answer["results"]) == 6


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "high"], "target must be an accuracy such as 0.9 or 90%, not 'high'"),
        (["--target", "90"], "target must be an accuracy above 0 and at most 1"),
        (["--last", "x"], "last must be a whole number"),
        (["--last", "99"], "has only 20 evaluated rounds; use at most 20"),
        (["--baseline", "sgd"], "unknown baseline 'sgd'"),
        (["--format", "doc"], "unknown format 'doc'"),
        (["--figures", ""], "unknown figures ''"),
        (["-o", "report.txt"], "must end in .html"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    run = run_folder(tmp_path / "run")
    assert code_of(["report", str(run), "-o", str(tmp_path / "r.html"), *words]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: ")
    assert said in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize(
    ("made_of", "words", "said"),
    [
        ("empty", [], "there is no run to report on in"),
        ("foreign", [], "holds no run folder: neither spec.toml nor compare.toml"),
        ("nowhere", [], "does not exist; name run folders or comparison folders"),
        ("mixed", [], "the runs are on different data sets (digits, mnist)"),
        ("tests", [], "were evaluated on different test sets"),
        ("losses", ["--target", "0.9"], "target 0.9 is an accuracy, but these runs measured none"),
        ("cut", [], "holds no evaluated round"),
    ],
)
def test_nothing_to_show_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], made_of: str, words: list[str], said: str
) -> None:
    root = tmp_path / made_of
    if made_of != "nowhere":
        root.mkdir()
    if made_of == "foreign":
        (root / "photos").mkdir()
        (root / "photos" / "a.txt").write_text("nothing")
    if made_of in ("mixed", "tests", "losses", "cut"):
        run_folder(root / "a", has_accuracy=made_of != "losses")
    if made_of == "mixed":
        run_folder(root / "b", data="mnist")
    if made_of == "tests":
        run_folder(root / "b", classes=3, seed=1)
    if made_of == "cut":
        (root / "a" / results.ROUNDS).write_text('{"round": 1, "lo')
    assert code_of(["report", str(root), "-o", str(tmp_path / "r.html"), *words]) == 2
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "r.html").exists()
