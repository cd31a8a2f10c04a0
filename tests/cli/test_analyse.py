"""`fedrift analyse`, and the section it adds to the report."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrift.analysis import classes, examine
from fedrift.cli import code_of
from fedrift.explain import workings
from fedrift.report import write
from tests.support.product import Spec, run_spec

FEW = ["--images", "40", "--clients", "2", "--steps", "5", "--figures", "svg"]


def kept(path: Path, algorithm: str, **options: Any) -> Path:
    settings = {"data": "digits", "model": "logistic", "clients": 4, "rounds": 2, "workers": 0}
    run_spec(Spec.of({**settings, "algorithm": algorithm, **options}), out=path)
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    kept(folder / "a", "fedavg")
    kept(folder / "b", "scaffold")
    assert code_of(["analyse", str(folder), "--what", "drift,classes", "-q", *FEW]) == 0
    return folder


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is not about the picture in an SVG, of which each takes most of a second."""
    drawn = examine.draw_file

    def touched(draw: Any, path: Path) -> Path:
        if path.suffix != ".svg":
            return drawn(draw, path)
        path.parent.mkdir(exist_ok=True)
        path.touch()
        return path

    monkeypatch.setattr(examine, "draw_file", touched)


def test_numbers_and_figures_stand_in_the_run_folders(runs: Path) -> None:
    for name in ("a", "b"):
        found = json.loads((runs / name / "analysis" / "drift.json").read_text())
        assert found["title"] == "Drift"
        assert found["options"]["images"] == 40
        assert (runs / name / "analysis" / "drift-updates.svg").is_file()
        assert (runs / name / "analysis" / "classes-confusion.svg").is_file()
    assert (runs / "analysis" / "drift-updates.svg").is_file()
    assert not list((runs / "a").rglob("*.tmp"))


def test_the_same_numbers_give_the_same_files(runs: Path, tmp_path: Path) -> None:
    before = {p: p.read_bytes() for p in (runs / "b" / "analysis").iterdir()}
    assert code_of(["analyse", str(runs / "b"), "--what", "drift,classes", "-q", *FEW]) == 0
    assert {p: p.read_bytes() for p in (runs / "b" / "analysis").iterdir()} == before


@pytest.mark.usefixtures("undrawn")
def test_figures_of_an_earlier_time_do_not_stay(tmp_path: Path) -> None:
    run = kept(tmp_path / "run", "fedavg")
    words = ["analyse", str(run), "--what", "classes", "-q", "--figures"]
    assert code_of([*words, "svg,png,pdf"]) == 0
    (run / "analysis" / "classes-recency.png").touch()  # had been drawn once
    assert code_of([*words, "png"]) == 0
    found = {p.suffix for p in (run / "analysis").glob("classes-confusion.*")}
    assert found == {".svg", ".png"}  # the svg is for the report
    names = json.loads((run / "analysis" / "classes.json").read_text())["figures"]
    shown = {p.stem for p in (run / "analysis").glob("classes-*.*")}
    assert shown == {f"classes-{name}" for name in names}


@pytest.mark.usefixtures("undrawn")
def test_recency_counts_rounds_that_were_not_evaluated(tmp_path: Path) -> None:
    split = {"partition": "classes:1", "clients": 10, "per_round": 3, "rounds": 6}
    often = kept(tmp_path / "often", "fedavg", **split)
    seldom = kept(tmp_path / "seldom", "fedavg", eval_every=3, **split)
    assert code_of(["analyse", str(tmp_path), "--what", "classes", "-q", *FEW]) == 0
    one, other = (
        json.loads((run / "analysis" / "classes.json").read_text())["numbers"]
        for run in (often, seldom)
    )
    last = dict(zip(one["rounds"], one["presence"], strict=True))[6]
    assert other["rounds"] == [3, 6] and other["presence"][-1] == last
    never = np.array(one["accuracy"])[[2, 5]][ages_of(one)[[2, 5]] < 0]
    assert other["recency"]["never"] == pytest.approx(
        never.mean() if never.size else np.nan, nan_ok=True
    )


def ages_of(numbers: Any) -> Any:
    return classes.ages(classes.held_classes(np.array(numbers["presence"])))


def test_densities_of_local_models_on_request(runs: Path) -> None:
    words = ["analyse", str(runs / "a"), "--what", "hessian", "-q", *FEW, "--curved", "1"]
    assert code_of([*words, "--local-density"]) == 0
    path = runs / "a" / "analysis" / "hessian.json"
    (local,) = json.loads(path.read_text())["numbers"]["clients"].values()
    assert local["nodes"] and local["trace"] > 0
    assert "local models" in (path.parent / "hessian-density.svg").read_text()
    assert code_of(words) == 0
    (local,) = json.loads(path.read_text())["numbers"]["clients"].values()
    assert set(local) == {"eigenvalues"}


def test_the_report_has_a_section_with_them(runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    written = write([runs], page)
    assert written.problems == ()
    text = page.read_text()
    assert '<section id="inside"' in text
    assert 'aria-label="distance of local models to the global one"' in text  # of both runs
    assert 'alt="Drift of scaffold: updates"' not in text  # the page has drawn it
    assert 'alt="Drift of scaffold: controls"' in text
    assert "data:image/svg+xml;base64," in text


def test_the_report_shows_how_the_algorithms_work(runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert code_of(["report", str(runs), "-o", str(page), "--explain"]) == 0
    text = page.read_text()
    assert '<section id="workings"' in text and "fedrift report" in text and "--explain" in text
    for name in ("FedAvg", "SCAFFOLD"):
        assert f'alt="One round of {name}" src="data:image/png;base64,' in text
    write([runs], page)
    assert 'id="workings"' not in page.read_text()


def test_code_of_strangers_is_not_run_for_a_picture() -> None:
    assert workings(["evil:Thing", "swa(evil:Thing)", "fed3r"]) == []


def test_a_report_without_analysis_has_no_such_section(tmp_path: Path) -> None:
    kept(tmp_path / "run", "fedavg")
    write([tmp_path / "run"], tmp_path / "report.html")
    assert 'id="inside"' not in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("name", ["model.safetensors", "rounds.jsonl", "clients.json"])
def test_a_damaged_run_is_named_before_the_work(
    name: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = shutil.copytree(runs, tmp_path / "runs")
    shutil.rmtree(both / "a" / "analysis")
    (both / "b" / name).write_text('{"sizes": "x", "round": 1, "loss": "y"}\n')
    assert code_of(["analyse", str(both), "--what", "drift", "-q", *FEW]) in (1, 2)
    said = capsys.readouterr().err
    assert name in said and "FEDRIFT_DEBUG" not in said, said


def test_damaged_numbers_are_told_of_or_left_out(runs: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(runs, tmp_path / "runs")
    inside = tmp_path / "runs" / "a" / "analysis"
    (inside / "drift.json").write_text(
        '{"numbers": {}, "said": ["<b>bold</b>"], "figures": ["../x"]}'
    )
    (inside / "classes.json").write_text("{")
    written = write([tmp_path / "runs"], tmp_path / "report.html")
    assert any("classes.json" in problem for problem in written.problems)
    text = (tmp_path / "report.html").read_text()
    assert "&lt;b&gt;bold" in text
    assert "<b>bold" not in text


def test_json_is_one_object(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["analyse", str(runs / "a"), "--what", "drift", "--json", *FEW]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["numbers"]["drift"]) == {"fedavg"}
    assert all(Path(file).is_file() for file in found["files"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--what", "drfit"], "unknown what 'drfit': did you mean 'drift'?"),
        (["--data", "all"], "data must be train or test, not 'all'"),
        (["--images", "-1"], "images must be a whole number of at least 0, not '-1'"),
        (["--rho", "0"], "rho must be a number above 0, not '0'"),
        (["--figures", "gif"], "unknown figures 'gif'"),
    ],
)
def test_wrong_input_is_refused_in_a_sentence(
    runs: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(["analyse", str(runs / "a"), *arguments]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == 1


def test_folders_without_runs_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(["analyse", str(tmp_path)]) == 2
    assert "holds no run folder" in capsys.readouterr().err
    assert code_of(["analyse", str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("link", ["runs", "runs/a"])
def test_nothing_is_written_through_links(
    link: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "both" / "runs").mkdir(parents=True)
    if link == "runs":
        (tmp_path / "both" / "runs").rmdir()
    (tmp_path / "both" / link).symlink_to(runs if link == "runs" else runs / "a")
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*")}
    assert code_of(["analyse", str(tmp_path / "both"), "--what", "classes", *FEW]) == 2
    assert "is a link to elsewhere; name the runs themselves" in capsys.readouterr().err
    words = f"compare fedavg scaffold --rounds 1 --clients 2 --workers 0 --out {tmp_path}/both -q"
    assert code_of(words.split()) == 2
    assert "is a link, and runs would be written elsewhere" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("*")} == before


@pytest.mark.usefixtures("undrawn")
def test_what_cannot_be_measured_is_a_note_or_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = kept(tmp_path / "run", "fedsgd")
    assert code_of(["analyse", str(run), "--what", "cka,classes", *FEW]) == 0
    assert "no cka: FedSGD trains no local models" in capsys.readouterr().err
    assert code_of(["analyse", str(run), "--what", "cka", *FEW]) == 2
    assert "nothing could be measured" in capsys.readouterr().err


@pytest.mark.usefixtures("undrawn")
def test_an_interruption_keeps_what_is_finished(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(case: Any, options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setitem(examine.MEASURES, "classes", stopped)
    (runs / "a" / "analysis" / "drift.json").unlink()
    assert code_of(["analyse", str(runs / "a"), "--what", "drift,classes", *FEW]) == 130
    assert "interrupted; kept: drift of fedavg" in capsys.readouterr().err
    assert (runs / "a" / "analysis" / "drift.json").is_file()


def test_long_work_is_announced(capsys: pytest.CaptureFixture[str]) -> None:
    from fedrift.cli.progress import Watch

    watch = Watch(silent=False)
    watch.turn("fedavg", "hessian")
    watch.begin("Hessian products", 45, 90.0)
    watch.begin("gradients", 10, 1.0)  # short work is not worth a word
    told = capsys.readouterr().err
    assert told.splitlines() == ["fedavg: hessian: 45 Hessian products, about 1 min 30 s"]


def test_work_of_unknown_length_is_announced_from_its_pace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedrift.cli import progress

    now = [0.0]
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now[0])
    watch = progress.Watch(silent=False)
    watch.turn("fedavg", "drift")
    watch.begin("local models", 10, 0.0)
    for _ in range(10):
        now[0] += 0.6
        watch.step()
    watch.begin("client gradients", 3, 0.0)  # 1.8 s in all
    for _ in range(3):
        now[0] += 0.6
        watch.step()
    assert capsys.readouterr().err.splitlines() == ["fedavg: drift: 10 local models, about 6.0 s"]


def test_analyse_needs_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["run", "fedavg", "--analyse", "every=2"]) == 2
    assert "give --out FOLDER" in capsys.readouterr().err
    assert code_of(["run", "fedavg", "--analyse", "every=two"]) == 2
    assert "every of analyse must be a whole number" in capsys.readouterr().err


def test_help_does_not_import_torch() -> None:
    code = "import sys; from fedrift.cli import code_of; code_of(['analyse', '--help']); "
    code += "sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True)
    assert done.returncode == 0
