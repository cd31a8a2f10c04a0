"""The sections of the page: sentences, tables, places for charts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedrift.report import options, tables, words
from fedrift.report.page import escape
from fedrift.report.spelling import figure
from fedrift.report.tables import Cell, Table
from fedrift.statistics.costs import AXES
from fedrift.statistics.estimates import final
from fedrift.statistics.findings import Findings

SECTIONS = {
    "summary": "Summary",
    "leaderboard": "Leaderboard",
    "results": "Results",
    "curves": "Curves",
    "data": "Data",
    "classes": "Classes",
    "clients": "Clients",
    "ledger": "Communication",
    "runs": "Runs",
}
LINE = '<svg width="22" height="8" aria-hidden="true"><line x1="0" y1="4" x2="22" y2="4" stroke-width="3"/></svg>'


@dataclass(frozen=True)
class Extras:
    """What a report says besides its statistics."""

    title: str
    problems: Sequence[str] = ()
    notes: Sequence[str] = ()
    commands: Sequence[str] = ()
    """That make the comparison and the report again."""
    specs: Sequence[tuple[str, str]] = ()
    """Names and texts of comparison files."""


def body(findings: Findings, extras: Extras) -> str:
    """Everything between <body> and </body> but the scripts."""
    links = "".join(f'<a href="#{key}">{name}</a>' for key, name in SECTIONS.items())
    theme = '<button type="button" class="plain" id="theme">Dark</button>'
    parts = [
        f'<header><nav aria-label="Sections">{links}</nav>{theme}</header><main>',
        _summary(findings, extras),
        _leaderboard(findings),
        _section("results", "Results by setting", html_table(tables.grid(findings))),
        _curves(findings),
        _data(findings),
        _classes(findings),
        _clients(findings),
        _ledger(findings),
        _runs(findings, extras),
        "<footer>Made by fedrift. This page is one file and works without a network.</footer>",
        "</main>",
    ]
    return "\n".join(part for part in parts if part)


def _section(key: str, heading: str, *content: str) -> str:
    inside = "\n".join(content)
    return f'<section id="{key}" aria-label="{heading}"><h2>{heading}</h2>\n{inside}</section>'


def _items(sentences: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(one)}</li>" for one in sentences) + "</ul>"


def _said(text: str) -> str:
    return f'<p class="soft">{text}</p>'


def _summary(findings: Findings, extras: Extras) -> str:
    problems = ""
    if extras.problems:
        heading = "<h2>Not everything could be used</h2>"
        problems = f'<div class="problems" role="note">{heading}{_items(extras.problems)}</div>'
    with_what = [*options.sentences(findings), *extras.notes]
    return (
        f'<section id="summary" aria-label="Summary"><h1>{escape(extras.title)}</h1>'
        f"<p>{escape(words.scope(findings))}</p>{problems}"
        f"<h3>What the numbers show</h3>{_items(words.shown(findings))}"
        f"<h3>What they do not show</h3>{_items(words.not_shown(findings))}"
        f"<h3>With which options</h3>{_items(with_what)}</section>"
    )


def html_table(table: Table, key: str = "", settings: Sequence[str] = ()) -> str:
    """A table that can be sorted; the words of a row's first name stay in view."""
    fixed = min(table.texts - 1, 1) if table.columns[0] == "rank" else 0
    heads = "".join(_heading(table, i, i == fixed) for i in range(len(table.columns)))
    over = ""
    if table.over:
        spans = (
            f'<th class="over{" fix" if not word else ""}" colspan="{n}">{escape(word)}</th>'
            for word, n in table.over
        )
        over = f"<tr>{''.join(spans)}</tr>"
    places = settings or [""] * len(table.rows)
    rows = "".join(
        f"<tr{f' data-setting="{escape(place)}"' if place else ''}>"
        + "".join(_cell(cell, i, i == fixed, table.texts) for i, cell in enumerate(row))
        + "</tr>"
        for row, place in zip(table.rows, places, strict=True)
    )
    name = f' id="{key}"' if key else ""
    return (
        f'{_said(escape(table.caption))}<div class="scroll" tabindex="0" role="region" '
        f'aria-label="Table: {escape(table.name)}"><table{name}><thead>{over}<tr>{heads}</tr>'
        f"</thead><tbody>{rows}</tbody></table></div>"
    )


def _heading(table: Table, column: int, is_fixed: bool) -> str:
    kind = " ".join([*(["word"] if column < table.texts else []), *(["fix"] if is_fixed else [])])
    button = f'<button type="button">{escape(table.columns[column])}</button>'
    return f'<th scope="col" class="{kind}">{button}</th>'


def _cell(cell: Cell, column: int, is_fixed: bool, texts: int) -> str:
    kinds = [*(["word"] if column < texts else []), *(["best"] if cell.is_bold else [])]
    value = "" if cell.value is None else f' data-v="{escape(str(cell.value))}"'
    hint = f' title="{escape(cell.hint)}"' if cell.hint else ""
    kind = f' class="{" ".join(kinds)}"' if kinds else ""
    tag = 'th scope="row"' if is_fixed else "td"
    return f"<{tag}{kind}{value}{hint}>{escape(cell.text)}</{tag.split()[0]}>"


def _choices(name: str, label: str, choices: dict[str, str], chosen: str) -> str:
    buttons = "".join(
        f'<button type="button" class="choice" data-set="{name}" data-value="{value}" '
        f'aria-pressed="{str(value == chosen).lower()}">{escape(text)}</button>'
        for value, text in choices.items()
    )
    return f'<span class="set" role="group" aria-label="{label}">{buttons}</span>'


def _select(key: str, label: str, entries: Sequence[str] = (), first: str = "", more: str = "") -> str:
    listed = f'<option value="">{first}</option>' if first else ""
    listed += "".join(f'<option value="{i}">{escape(e)}</option>' for i, e in enumerate(entries))
    return f'<label>{label} <select id="{key}"{more}>{listed}</select></label>'


def _tools(*tools: str) -> str:
    return f'<div class="tools">{"".join(tools)}</div>'


def _legend(findings: Findings) -> str:
    if len(findings.methods) < 2:
        return ""
    buttons = "".join(
        f'<button type="button" class="plain" data-method="{i}" aria-pressed="true">{LINE}'
        f"{escape(method)}</button>"
        for i, method in enumerate(findings.methods)
    )
    return f'<div class="legend" role="group" aria-label="Methods shown">{buttons}</div>'


def _panels(findings: Findings, kind: str, about: str) -> str:
    panels = "".join(
        f"<figure><figcaption>{escape(setting.label)}</figcaption>"
        f'<div class="chart" data-chart="{kind}" data-setting="{i}" role="img" '
        f'aria-label="{about}, {escape(setting.label)}"></div></figure>'
        for i, setting in enumerate(findings.settings)
    )
    return f'<div class="panels">{panels}</div>'


def _leaderboard(findings: Findings) -> str:
    table = tables.leaderboard(findings)
    labels = [setting.label for setting in findings.settings]
    tools, places = "", list[str]()
    if len(labels) > 1:
        more = ' data-filters="leaders"'
        tools = _tools(_select("leader-setting", "Setting", labels, "all", more))
        places = [str(labels.index(row[2].text)) for row in table.rows]
    return _section("leaderboard", "Leaderboard", tools, html_table(table, "leaders", places))


def _curves(findings: Findings) -> str:
    axes = {**AXES, "seconds": "time"}
    tools = [_choices("x", "Horizontal axis", axes, "rounds")]
    if findings.has_accuracy:
        tools.append(_choices("y", "Vertical axis", {"accuracy": "accuracy", "loss": "loss"}, "accuracy"))
    if any(len(one.group.runs) > 1 for one in findings.all):
        kinds = {"false": "mean and range", "true": "single seeds"}
        tools.append(_choices("seeds", "Seeds", kinds, "false"))
    said = (
        "A line is the mean of the seeds as far as all of them go, the band around it reaches "
        "from the lowest seed to the highest; a cross marks a seed that became infinite. "
        "Over bytes, gradient evaluations and time, a point stands at the seeds&#x27; mean cost."
    )
    if findings.has_accuracy:
        said += " The dotted line is the share of the most frequent class."
    panels = _panels(findings, "curve", "Test result over rounds or cost")
    return _section("curves", "Convergence", _said(said), _tools(*tools), _legend(findings), panels)


def _data(findings: Findings) -> str:
    if all(run.clients is None for run in findings.grouped.runs):
        return ""
    said = "How many samples each client holds, and which share of them is of which class."
    chart = (
        '<figure><div class="chart tall" data-chart="clients" role="img" '
        'aria-label="Classes and samples per client"></div></figure>'
    )
    return _section("data", "Data of the clients", _said(said), _tools(_select("data-which", "Division")), chart)


def _classes(findings: Findings) -> str:
    if all(run.classes is None for run in findings.grouped.runs):
        return ""
    said = (
        "Test accuracy per class. A dot marks a class that the clients of the round hold; the "
        "larger, the more of their samples. Below: which clients took part. Where a class shines "
        "up when its clients took part and fades afterwards, the model leans to whom it saw last. "
        "With many rounds in view dots are left out; zoom in to see them."
    )
    tools = _tools(_select("classes-which", "Method"), _select("classes-seed", "Seed"))
    chart = (
        '<figure><div class="chart tall" data-chart="classes" role="img" '
        'aria-label="Accuracy per class and round"></div></figure>'
    )
    return _section("classes", "Classes over rounds", _said(said), tools, chart)


def _clients(findings: Findings) -> str:
    table = tables.clients(findings)
    if table is None:
        return ""
    said = (
        "Expected accuracy of every client, from the worst to the best: the model&#x27;s test "
        "accuracy per class, weighted by the labels the client holds. It was not measured on the "
        "clients&#x27; data."
    )
    panels = _panels(findings, "expected", "Expected accuracy of the clients")
    return _section("clients", "Clients", _said(said), _legend(findings), panels, html_table(table))


def _ledger(findings: Findings) -> str:
    table = tables.ledger(findings)
    if table is None:
        return ""
    labels = [setting.label for setting in findings.settings]
    tools = _tools(_select("ledger-setting", "Setting", labels)) if len(labels) > 1 else ""
    chart = (
        '<figure><div class="chart" data-chart="ledger" role="img" '
        'aria-label="Bytes per round by field"></div></figure>'
    )
    listed = f"<details><summary>All fields as a table</summary>{html_table(table)}</details>"
    return _section("ledger", "Communication", tools, chart, listed)


def _runs(findings: Findings, extras: Extras) -> str:
    rows = [
        (
            *map(tables.text, (group.method, group.setting.label)),
            Cell(str(run.seed), run.seed),
            tables.text(run.status),
            Cell(figure(final(run, findings.last), findings.has_accuracy)),
            *map(tables.text, (run.fingerprint, *_versions(run.environment), run.name)),
        )
        for group in findings.grouped.groups
        for run in (*group.runs, *group.unfinished)
    ]
    headings = ("method", "setting", "seed", "status", tables.measure(findings), "fingerprint")
    headings += ("fedrift", "torch", "instructions", "folder")
    said = "Equal fingerprints: the same weights and the same curve, bit for bit."
    listed = html_table(Table("runs", said, headings, tuple(rows), texts=2))
    return _section("runs", "Runs", listed, _option_table(findings), _again(findings, extras))
