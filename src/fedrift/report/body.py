"""The sections of the page: sentences, tables, places for charts."""

from __future__ import annotations

from fedrift.report import options, tables, words
from fedrift.report.inside import inside
from fedrift.report.markup import (
    chart,
    choices,
    escape,
    folded,
    html_table,
    items,
    said,
    section,
    select,
    tools,
)
from fedrift.report.provenance import Extras, provenance
from fedrift.report.workings import workings
from fedrift.statistics.findings import Findings

LINE = (
    '<svg width="22" height="8" aria-hidden="true">'
    '<line x1="0" y1="4" x2="22" y2="4" stroke-width="3"/></svg>'
)


def body(findings: Findings, extras: Extras) -> str:
    """Everything between <body> and </body> but the scripts."""
    sections = {
        "Summary": _summary(findings, extras),
        "Leaderboard": _leaderboard(findings),
        "Results": section("results", "Results by setting", html_table(tables.grid(findings))),
        "Curves": _curves(findings),
        "Data": _data(findings),
        "Classes": _classes(findings),
        "Clients": _clients(findings),
        "Inside": inside(findings, extras),
        "Workings": workings(extras.workings),
        "Communication": _ledger(findings),
        "Runs": provenance(findings, extras),
    }
    keys = {"Communication": "ledger"}
    links = "".join(
        f'<a href="#{keys.get(name, name.lower())}">{name}</a>'
        for name, content in sections.items()
        if content
    )
    theme = '<button type="button" class="plain" id="theme">Dark</button>'
    return "\n".join(
        (
            f'<header><nav aria-label="Sections">{links}</nav>{theme}</header><main>',
            *filter(None, sections.values()),
            "<footer>Made by fedrift. This page is one file and needs no network.</footer></main>",
        )
    )


def _summary(findings: Findings, extras: Extras) -> str:
    problems = ""
    if extras.problems:
        heading = "<h2>Not everything could be used</h2>"
        problems = f'<div class="problems" role="note">{heading}{items(extras.problems)}</div>'
    return (
        f'<section id="summary" aria-label="Summary"><h1>{escape(extras.title)}</h1>'
        f"<p>{escape(words.scope(findings))}</p>{problems}"
        f"<h3>What the numbers show</h3>{items(words.shown(findings))}"
        f"<h3>What they do not show</h3>{items(words.not_shown(findings))}"
        f"<h3>With which options</h3>{items([*options.sentences(findings), *extras.notes])}"
        "</section>"
    )


def _leaderboard(findings: Findings) -> str:
    table = tables.leaderboard(findings)
    labels = [setting.label for setting in findings.settings]
    if len(labels) == 1:
        return section("leaderboard", "Leaderboard", html_table(table, "leaders"))
    filters = tools(select("leader-setting", "Setting", labels, first="all", filters="leaders"))
    places = [labels.index(row[2].text) for row in table.rows]
    return section("leaderboard", "Leaderboard", filters, html_table(table, "leaders", places))


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
        f"{chart(kind, f'{about}, {setting.label}', setting=i)}</figure>"
        for i, setting in enumerate(findings.settings)
    )
    return f'<div class="panels">{panels}</div>'


def _curves(findings: Findings) -> str:
    axes = {"rounds": "rounds", "bytes": "bytes", "gradients": "gradients", "seconds": "time"}
    controls = [choices("x", "Horizontal axis", axes, "rounds")]
    if findings.has_accuracy:
        kinds = {"accuracy": "accuracy", "loss": "loss"}
        controls.append(choices("y", "Vertical axis", kinds, "accuracy"))
    if any(len(one.group.runs) > 1 for one in findings.all):
        kinds = {"false": "mean and range", "true": "single seeds"}
        controls.append(choices("seeds", "Seeds", kinds, "false"))
    about = (
        "A line is the mean of the seeds as far as all of them go, the band around it reaches "
        "from the lowest seed to the highest; a cross marks a seed that became infinite. "
        "Over bytes, gradient evaluations and time, a point stands at the mean cost of the seeds."
    )
    if findings.has_accuracy:
        about += " The dotted line is the share of the most frequent class."
    return section(
        "curves",
        "Convergence",
        said(about),
        tools(*controls),
        _legend(findings),
        _panels(findings, "curve", "Test result over rounds or cost"),
    )


def _data(findings: Findings) -> str:
    if all(run.clients is None for run in findings.grouped.runs):
        return ""
    return section(
        "data",
        "Data of the clients",
        said("How many samples each client holds, and which share of them is of which class."),
        tools(select("data-which", "Division")),
        f"<figure>{chart('clients', 'Classes and samples per client', size='tall')}</figure>",
    )


def _classes(findings: Findings) -> str:
    if all(run.classes is None for run in findings.grouped.runs):
        return ""
    about = (
        "Test accuracy per class. A dot marks a class that the clients of the round hold: the "
        "larger, the more of their samples. Below it, which clients took part. Where a class "
        "lights up when its clients took part and fades afterwards, the model leans towards "
        "those it saw last. With many rounds in view there are no dots; zoom in to see them."
    )
    return section(
        "classes",
        "Classes over rounds",
        said(about),
        tools(select("classes-which", "Method"), select("classes-seed", "Seed")),
        f"<figure>{chart('classes', 'Accuracy per class and round', size='tall')}</figure>",
    )


def _clients(findings: Findings) -> str:
    table = tables.clients(findings)
    if table is None:
        return ""
    about = (
        "Expected accuracy of every client, from the worst to the best: the model's test accuracy "
        "per class, weighted by the labels the client holds. It was not measured on the clients' "
        "own data."
    )
    return section(
        "clients",
        "Clients",
        said(about),
        _legend(findings),
        _panels(findings, "expected", "Expected accuracy of the clients"),
        html_table(table),
    )


def _ledger(findings: Findings) -> str:
    table = tables.ledger(findings)
    if table is None:
        return ""
    labels = [setting.label for setting in findings.settings]
    control = tools(select("ledger-setting", "Setting", labels)) if len(labels) > 1 else ""
    return section(
        "ledger",
        "Communication",
        control,
        f"<figure>{chart('ledger', 'Bytes per round by field', size='free')}</figure>",
        folded("All fields as a table", html_table(table)),
    )
