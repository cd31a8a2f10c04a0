"""Reports: sections, sentences, tables, and what untrusted names cannot do."""

from __future__ import annotations

import csv
import html as escapes
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from fedrift.api import run_spec
from fedrift.data import datasets
from fedrift.data.sources.text import decode
from fedrift.report import (
    formats,
    html,
    inside,
    opening,
    pictures,
    provenance,
    sentences,
    tables,
    write,
)
from fedrift.report.analyses import read_analyses
from fedrift.report.markup import html_table
from fedrift.report.selection import Labelled
from fedrift.report.statistics.findings import Findings
from fedrift.report.tables import Cell, Table
from tests.support.product import RunRecord, Spec
from tests.support.product import run_record as results
from tests.support.report_pages import made
from tests.support.run_folders import grid, run_folder

NASTY = "<script>alert(1)</script>\"'&"


def test_a_page_has_every_section_and_its_numbers(tmp_path: Path) -> None:
    written, found = made(tmp_path)
    sections = [attrs["id"] for tag, attrs in found.tags if tag == "section"]
    assert sections == [
        *("summary", "curves", "findings", "leaderboard", "results", "data"),
        *("classes", "clients", "ledger", "runs"),
    ]
    assert written.problems == ()
    assert "3 methods in 2 settings (3 of 10 clients), 20 rounds, 3 seeds (0, 1, 2)" in found.text
    numbers = json.loads(found.unpacked("numbers"))
    assert numbers["methods"] == ["fedavg", "fedprox:mu=0.3", "scaffold"]
    assert len(numbers["groups"]) == 6
    run = numbers["groups"][0]["runs"][0]
    record = results.load(tmp_path / "runs" / "fedavg-0.1-0")
    summed = sum(run["accuracy"]) / numbers["scales"]["accuracy"]
    assert summed == pytest.approx(record.rounds[-1]["accuracy"], abs=1e-4)
    assert sum(run["gradients"]) == record.rounds[-1]["gradients"]
    assert len(numbers["cohorts"]) == 3  # one per seed, whatever the method


def test_a_page_asks_for_nothing_and_runs_only_its_own_scripts(tmp_path: Path) -> None:
    _, found = made(tmp_path)
    assert not [attrs for _, attrs in found.tags if "src" in attrs]
    links = [attrs["href"] for _, attrs in found.tags if "href" in attrs]
    assert all(link and link.startswith("#") for link in links)
    assert not [a for _, attrs in found.tags for a in attrs if a.startswith("on")]
    policy = next(
        str(attrs["content"])
        for tag, attrs in found.tags
        if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
    )
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy.split("style-src")[0]
    assert found.unpacked("library") == html.plotly_library()


def test_the_same_runs_give_the_same_file(tmp_path: Path) -> None:
    grid(tmp_path / "runs", seeds=1)
    texts = []
    for _ in range(2):
        write([tmp_path / "runs"], tmp_path / "report.html")
        texts.append((tmp_path / "report.html").read_bytes())
    assert texts[0] == texts[1]


def test_names_from_files_stay_names(tmp_path: Path) -> None:
    folder = tmp_path / f"runs {NASTY.replace('/', ':')}"
    grid(folder, seeds=1, environment={"torch": NASTY, "fedrift": NASTY})
    run_folder(folder / "cut", seed=7, status=NASTY)
    record = results.load(folder / "fedavg-0.1-0")
    _, found = made(
        tmp_path, folder, Labelled(record, label=f"mine {NASTY}"), title=NASTY, notes=[NASTY]
    )
    whole = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in whole
    assert f"mine {NASTY}" in found.text
    assert len([tag for tag, _ in found.tags if tag == "script"]) == 3


def test_sentences_say_what_is_shown_and_what_is_not(tmp_path: Path) -> None:
    root = grid(tmp_path / "runs", alphas=(0.1,))
    for seed in range(3):
        run_folder(root / f"d{seed}", algorithm="fedavgm", alpha=0.1, seed=seed, status="diverged")
        run_folder(root / f"s{seed}", algorithm="fedsam", alpha=0.1, seed=seed, cost=2)
    _, found = made(tmp_path, root)
    said = found.text
    assert "Its difference to fedavg is" in said
    assert "over 3 common seeds" in said
    assert re.search("the interval (contains 0|is free of 0)", said)
    assert "fedavgm is marked (X): 3 of 3 seeds became infinite." in said
    assert "fedsam used 2.00 times the gradient evaluations of fedavg" in said
    assert "Look at the curves over gradient evaluations." in said
    assert "scaffold used 2.00 times the bytes of fedavg" in said
    assert "With 3 seeds an interval is wide" in said
    assert "Accuracy per client is expected, not measured" in said
    assert "Default options: fedavg, fedavgm, fedsam and scaffold; options given" in said
    assert "by default epochs 1, batch_size 64 and lr 0.1, unless the algorithm" in said
    assert "Nothing here was tuned" in said


def test_one_seed_says_nothing_about_chance(tmp_path: Path) -> None:
    _, found = made(tmp_path, grid(tmp_path / "runs", alphas=(0.1,), seeds=1))
    assert "in the one seed they share, which says nothing about chance" in found.text
    assert "ran with one seed only" in found.text


def test_a_page_of_one_run_compares_nothing(tmp_path: Path) -> None:
    run_folder(tmp_path / "run", level=0.9)
    _, found = made(tmp_path, tmp_path / "run")
    assert "1 run: dirichlet" in found.text and "1 method in" not in found.text
    assert "their difference" not in found.text and "the order may change" not in found.text
    assert "best, in round " in found.text


def test_a_run_without_a_figure_is_shown_where_it_stood(tmp_path: Path) -> None:
    run_folder(tmp_path / "run", level=0.1)
    written, found = made(tmp_path, tmp_path / "run")
    (only,) = opening.headlines(written.findings)
    assert only.figure.endswith(" %") and only.interval == "(X): no figure to compare"
    assert "No method has a figure." in found.text


def test_fields_have_no_colour_of_a_method(tmp_path: Path) -> None:
    written, _ = made(tmp_path)
    drawn = pictures.ledger(written.findings, written.findings.settings[0])
    assert "var(--f0)" in drawn and "var(--m" not in drawn and "B</text>" in drawn
    assert pictures.field_colours([("down", "w"), ("up", "delta"), ("down", "c")]) == [
        *("var(--f0)", "var(--f0)", "var(--f1)")
    ]


def test_runs_in_memory_are_reported_like_folders(tmp_path: Path) -> None:
    row = {"loss": 1.0, "n": 9, "cohort": [0, 4]}
    rows = [{**row, "round": t, "accuracy": t / 9} for t in (1, 2, 3)]

    def record(seed: int) -> RunRecord:
        spec = Spec.of({"algorithm": "mine", "seed": seed, "data": "python", "model": "python"})
        return RunRecord(Path("memory"), spec, rows, [], {}, {"status": "done"}, ())

    written, found = made(tmp_path, record(0), Labelled(record(1), "other", {"lr": 0.1}))
    assert written.findings.methods == ("mine", "other")
    assert "2 methods on data given in Python" in found.text
    assert "own clients, 2 clients a round" in found.text
    assert "are made again by the same calls" in found.text
    assert "fedrift run" not in found.text
    assert "Local work" not in found.text  # what was given in Python is not known


def test_tables_are_written_beside_the_page(tmp_path: Path) -> None:
    written, _ = made(tmp_path, format=["md", "latex", "csv"], figures=["svg"])
    names = {file.name for file in written.files}
    assert {"report.md", "report.tex", "report-results.csv", "report-runs.csv"} <= names
    assert {"report-over-rounds.svg", "report-over-bytes.svg", "report-differences.svg"} <= names
    markdown = (tmp_path / "report.md").read_text()
    assert re.search(r"\| scaffold \| \*\*[\d.]+ ± [\d.]+\*\* \|", markdown)
    latex = (tmp_path / "report.tex").read_text()
    for part in (r"\toprule", r"\midrule", r"\bottomrule", r"\textbf{", r"$\pm$", r"\cmidrule(lr)"):
        assert part in latex
    rows = list(csv.DictReader(io.StringIO((tmp_path / "report-leaderboard.csv").read_text())))
    assert len(rows) == 6
    exact = {one.score.final.mean for one in written.findings.all}
    assert {float(row["accuracy (%), exact"]) for row in rows} == exact


def test_signs_with_a_meaning_are_escaped() -> None:
    cell = Cell("a_b & 5% #1 {x} ~^\\ $y$ <|>", is_bold=True)
    table = Table("t", "cap_tion", ("head|ing", "b"), ((cell, Cell("=1+1")),))
    latex = formats.latex([table])
    assert (
        r"\textbf{a\_b \& 5\% \#1 \{x\} \textasciitilde{}\textasciicircum{}\textbackslash{} "
        r"\$y\$ \textless{}\textbar{}\textgreater{}}" in latex
    )
    assert "head\\|ing" in formats.markdown([table])
    assert "'=1+1" in formats.comma_separated(table)
    broken = Table("t", "c", ("a",), ((Cell("one\ntwo\x07"),),))
    assert "| one two |" in formats.markdown([broken])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"algorithm": "fedprox:mu=0.3", "alpha": 0.1, "seed": 4},
            "fedrift run fedprox:mu=0.3 --alpha 0.1 --seed 4",
        ),
        (
            {"participants": [[0, 3], [1, 2]], "epochs": [1, 3], "augment": ["crop:4", "flip"]},
            "fedrift run fedavg --rounds 2 --participants '0,3|1,2' --epochs 1,3 "
            "--augment crop:4 --augment flip --seed 0",
        ),
        ({"data": "python"}, ""),
    ],
)
def test_the_command_makes_the_run_again(given: dict[str, Any], said: str) -> None:
    assert provenance.command(Spec.of(given)) == said


def test_it_opens_with_figures_then_curves_then_sentences(tmp_path: Path) -> None:
    _, found = made(tmp_path, grid(tmp_path / "runs", alphas=(0.1,)))
    text = found.text
    figures = [attrs for _, attrs in found.tags if attrs.get("class") == "headline"]
    assert len(figures) == 3
    order = ["scaffold: highest test accuracy", "scaffold against fedavg", "single seeds"]
    order += ["scaffold has the highest mean", "rank"]
    assert [text.index(words) for words in order] == sorted(text.index(words) for words in order)
    assert text.count("95 % interval") >= 3


@pytest.mark.parametrize("alphas", [(0.1,), (0.1, 0.3), (0.1, 0.3, 1.0), (0.1, 0.3, 0.5, 1.0)])
def test_there_are_three_figures_whatever_the_number_of_settings(
    tmp_path: Path, alphas: tuple[float, ...]
) -> None:
    written, _ = made(tmp_path, grid(tmp_path / "runs", alphas=alphas))
    figures = opening.headlines(written.findings)
    assert len(figures) == 3
    assert sum("95 % interval" in one.interval for one in figures) >= 2
    assert len(opening.headlines(_alone(tmp_path))) == 3


def test_a_figure_of_one_round_is_in_the_singular(tmp_path: Path) -> None:
    runs = [
        run_folder(tmp_path / "runs" / f"{name}{rounds}", algorithm=name, rounds=rounds)
        for name, rounds in (("fedavg", 1), ("fedprox", 1))
    ]
    figures = opening.headlines(write(runs, tmp_path / "one.html").findings)
    assert "1 round" in [one.figure for one in figures]


def _alone(tmp_path: Path) -> Findings:
    only = run_folder(tmp_path / "alone" / "one", seed=0)
    return write([only], tmp_path / "alone.html").findings


def test_a_caveat_stands_folded_below_the_finding_it_belongs_to(tmp_path: Path) -> None:
    root = grid(tmp_path / "runs", alphas=(0.1, 1.0))
    for seed in range(3):
        run_folder(root / f"s{seed}", algorithm="fedsam", alpha=1.0, seed=seed, cost=2)
    written, _ = made(tmp_path, root)
    first, second = sentences.findings_said(written.findings)
    assert not any("fedsam used" in words for words in first.caveats)
    assert any("fedsam used 2.00 times the gradient" in words for words in second.caveats)
    page = (tmp_path / "report.html").read_text()
    finding = page[page.index("<li>dirichlet 1: ") :]
    assert finding.index("<details>") < finding.index("fedsam used") < finding.index("</details>")


def test_a_leaderboard_shows_seven_columns_and_hides_none_for_good(tmp_path: Path) -> None:
    written, _ = made(tmp_path)
    table = tables.leaderboard(written.findings)
    assert len(table.usual) == 7 < len(table.columns)
    text = html_table(table)
    assert text.count('<th scope="col"') == text.count("data-column=") == len(table.columns)
    assert text.count("hidden><button") == len(table.columns) - 7
    assert text.count(" checked>") == 7


def test_every_chart_has_a_picture_behind_it(tmp_path: Path) -> None:
    made(tmp_path)
    page = (tmp_path / "report.html").read_text()
    charts = page.count("data-chart=")
    assert charts == len(re.findall(r'<div class="still">(?:<p>[^<]+</p>)?<svg', page)) > 4
    assert "<p>fedavg · dirichlet 0.1" in page  # a still picture says whose it is


def test_who_took_part_is_shown_only_where_it_differs(tmp_path: Path) -> None:
    def shown(per_round: int) -> bool:
        folder = tmp_path / str(per_round)
        run_folder(folder / "one", algorithm="fedavg", per_round=per_round, clients=10)
        _, found = made(tmp_path, folder)
        run = json.loads(found.unpacked("numbers"))["groups"][0]["runs"][0]
        assert (run["cohorts"] is not None) == ("which clients took part" in found.text)
        return run["cohorts"] is not None

    assert shown(3)
    assert not shown(10)


@pytest.mark.parametrize(("alphabet", "context"), [("characters", 30), ("bytes", 9)])
def test_what_a_model_writes_begins_where_the_given_text_ends(
    alphabet: str, context: int, tmp_path: Path
) -> None:
    file, folder = tmp_path / "text.txt", tmp_path / "run"
    file.write_text("Ein <b>Häuschen</b> & ein Baum. " * 40)
    data = f"text:{file},shards=2,alphabet={alphabet},context={context}"
    spec = {"data": data, "model": "lstm:width=4,embedding=2", "rounds": 1, "workers": 0}
    result = run_spec(Spec.of({**spec, "partition": "natural", "clients": 2}), out=folder)
    test = datasets.load(data)
    lengths = (test.y_test >= 0).sum(1).clip(max=24)
    ends = [(i, int(lengths[i])) for i in (0, len(lengths) - 1)]
    given = [decode(test.x_test[i, :end], test.class_names) for i, end in ends]
    assert 0 < ends[1][1] < 24, "the last window is filled up"
    written = result.info["continuations"]
    assert all(text.startswith(begun) for text, begun in zip(written, given, strict=True))
    assert all(len(text) > len(begun) for text, begun in zip(written, given, strict=True))
    page = write([folder], tmp_path / "report.html").files[0].read_text()
    shown = [escapes.unescape(t) for t in re.findall("<pre><b>(.*?)</b>", page, re.DOTALL)]
    assert shown == given and "in bold, and what the final model" in page

    summary = json.loads((folder / "summary.json").read_text())
    del summary["beginnings"]  # as an earlier version wrote it
    (folder / "summary.json").write_text(json.dumps(summary))
    page = write([folder], tmp_path / "older.html").files[0].read_text()
    assert page.count("<pre><b></b>") == 2 and "in bold, and what" not in page


def test_what_was_analysed_is_shown_over_all_seeds(tmp_path: Path) -> None:
    root = grid(tmp_path / "runs")
    length = {"fedavg": 0.5, "scaffold": 0.1}
    for folder in root.iterdir():
        method, _, seed = folder.name.split("-")
        if method not in length:
            continue
        (folder / "analysis").mkdir()
        numbers = {"distance": length[method] + int(seed), "distances": [0.1, 0.2, 0.3]}
        record = {"numbers": {**numbers, "to_average": "no numbers"}, "said": ["Said."]}
        (folder / "analysis" / "drift.json").write_text(json.dumps({**record, "title": "Drift"}))
    written, found = made(tmp_path, root)
    analyses, problems = read_analyses(written.findings)
    assert len(analyses) == 12 and not problems
    table = inside.over_seeds("drift", analyses, several=True)
    assert table is not None
    assert [cell.text for cell in table.rows[0]][2:] == ["1.5 ± 1.0", "–", "–", "3"]
    page = (tmp_path / "report.html").read_text()
    section = page[page.index('<section id="inside"') :].partition("</section>")[0]
    assert section.count("<circle") == 2 * 2 * 3 * 3  # settings, methods, seeds, clients
    place = written.findings.methods.index("scaffold")
    assert section.count(f'fill="var(--m{place})"') == 2 * 3 * 3  # its colour in the curves, too
    assert "cosine of updates" not in found.text  # what cannot be drawn leaves no empty frame


@pytest.mark.slow
def test_two_hundred_runs_of_five_hundred_rounds(tmp_path: Path) -> None:
    algorithms = ["fedavg", "fedprox:mu=0.3", "scaffold", "fedsam", "fednova"]
    root = grid(tmp_path / "runs", algorithms, (0.1, 0.3, 0.5, 1.0, 2.0), 8, rounds=500, classes=10)
    written = write([root], tmp_path / "report.html")
    assert len(written.findings.grouped.runs) == 200
    assert written.files[0].stat().st_size < 6_000_000


# What clients found on test data of their own.


def at_clients(tmp_path: Path, *algorithms: str, **options: Any) -> str:
    import fedrift as fr
    from tests.support.problems import Net, blobs

    x, y = blobs(200, seed=2)
    given: dict[str, Any] = {
        "model": Net,
        "clients": fr.split(x, y, "dirichlet:0.4", clients=16, seed=1, test=0.3),
        "test": blobs(60, seed=5),
        "rounds": 4,
        "per_round": 3,
        "workers": 0,
        "lr": 0.1,
        "eval_clients": "every=2",
    }
    runs = [fr.run(one, **(given | options)) for one in algorithms]
    fr.report(runs, tmp_path / "report.html")
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def test_measured_clients_take_the_place_of_expected_ones(tmp_path: Path) -> None:
    page = at_clients(tmp_path, "fedavg", "fedper")
    assert "not visited yet" in page and "Jain&#x27;s index" in page
    assert "Every client over the rounds" in page
    assert "Expected accuracy of every client" not in page
    assert "the clients&#x27; own test data, mean over clients" in page
    assert page.count('aria-label="Accuracy of each client over rounds') == 2
    assert "the darker the better" in page and "a line each" not in page
    assert "dotted line" not in page, "accuracy at clients has no level of chance"


def test_a_run_of_few_clients_has_a_line_for_each(tmp_path: Path) -> None:
    import fedrift as fr
    from tests.support.problems import blobs

    few = fr.split(*blobs(80, seed=2), clients=4, seed=1, test=0.3)
    page = at_clients(tmp_path, "fedavg", clients=few)
    picture = page.split('aria-label="Accuracy of each client over rounds')[1].split("</svg>")[0]
    assert picture.count("<path") + picture.count("<polyline") >= 4
    assert "a line each" in page and "the darker the better" not in page
    assert set(re.findall(r'stroke="(var[^"]+)"', picture)) == {"var(--m0)"}  # of the method


def test_without_evaluation_at_clients_they_are_expected(tmp_path: Path) -> None:
    page = at_clients(tmp_path, "fedavg", eval_clients=None)
    assert "Expected accuracy of every client" in page and "not visited yet" not in page


def test_the_figures_of_the_table_are_those_of_the_runs() -> None:
    import numpy as np

    import fedrift as fr
    from fedrift.report.at_clients import clients_table
    from fedrift.report.selection import select
    from fedrift.report.statistics.findings import make_findings
    from fedrift.report.tables import leaderboard
    from tests.support.problems import Net, blobs

    clients = fr.split(*blobs(200, seed=2), "dirichlet:0.4", clients=16, seed=1, test=0.3)
    results = [
        fr.run("fedper", model=Net, clients=clients, rounds=3, per_round=2, workers=0, seed=seed)
        for seed in (0, 1)
    ]
    findings = make_findings(select([r.record() for r in results]).runs, last=1)
    table = clients_table(findings)
    (row,) = table.rows
    value = {name: cell.value for name, cell in zip(table.columns, row, strict=True)}

    def mean(column: str) -> float:
        return float(np.mean([result.metrics[-1][column] for result in results]))

    assert value["worst tenth"] == pytest.approx(mean("client_accuracy_worst"))
    assert value["Jain's index"] == pytest.approx(mean("client_accuracy_jain"))
    assert value["not visited yet"] == mean("clients_not_visited")
    board = leaderboard(findings)
    cell = board.rows[0][board.columns.index("worst tenth of clients")]
    assert cell.value == pytest.approx(value["worst tenth"])
