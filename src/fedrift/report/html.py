"""The page of a report: its sections as HTML, and the one file they stand in."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from fedrift.errors import InputError
from fedrift.report import pictures, sentences, tables
from fedrift.report.at_clients import clients_section, is_measured
from fedrift.report.in_domains import domains_section
from fedrift.report.inside import models_section
from fedrift.report.logged import noted_section, training_section
from fedrift.report.markup import (
    bullet_list,
    chart,
    check_box,
    choices,
    escape,
    folded,
    html_table,
    methods_legend,
    paragraph,
    section,
    select,
    select_of,
    toolbar,
)
from fedrift.report.methods import workings_section
from fedrift.report.opening import findings_section, summary_section
from fedrift.report.provenance import Extras, runs_section
from fedrift.report.statistics.findings import Findings
from fedrift.report.statistics.grouping import Setting
from fedrift.report.statistics.measured import Measured, takes_part


def body(findings: Findings, extras: Extras) -> str:
    """Everything between <body> and </body> but the scripts."""
    several = len(findings.settings) > 1
    results = section("results", "Results by setting", html_table(tables.grid(findings)))
    sections = {
        "Summary": summary_section(findings, extras),
        "Curves": _curves(findings),
        "Findings": findings_section(findings, extras),
        "Leaderboard": _leaderboard(findings),
        "Results": results if several else "",
        "Training": training_section(findings),
        "Noted": noted_section(findings),
        "Data": _data(findings),
        "Classes": _classes(findings),
        "Clients": clients_section(findings) if is_measured(findings) else _clients(findings),
        "Domains": domains_section(findings),
        "Text": _text(findings),
        "Inside": models_section(findings, extras.analyses),
        "Workings": workings_section(extras.workings),
        "Communication": _ledger(findings),
        "Runs": runs_section(findings, extras),
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
            f'<header><nav aria-label="Sections">{links}</nav>{theme}</header>'
            f'<main style="{pictures.variables()}">',
            *filter(None, sections.values()),
            "<footer>Made by fedrift. This page is one file and needs no network.</footer></main>",
        )
    )


def _leaderboard(findings: Findings) -> str:
    table = tables.leaderboard(findings)
    labels = [setting.label for setting in findings.settings]
    if len(labels) == 1:
        return section("leaderboard", "Leaderboard", html_table(table, "leaders"))
    filters = toolbar(select("leader-setting", "Setting", labels, first="all", filters="leaders"))
    places = [labels.index(row[2].text) for row in table.rows]
    return section("leaderboard", "Leaderboard", filters, html_table(table, "leaders", places))


def _legend(findings: Findings) -> str:
    return methods_legend(findings.methods, pictures.colour, pictures.dash)


def _panels(
    findings: Findings, kind: str, about: str, still: Callable[[Setting], str], size: str = ""
) -> str:
    panels = "".join(
        f"<figure>{_caption(findings, setting)}"
        f"{chart(kind, f'{about}, {setting.label}', setting=i, still=still(setting), size=size)}"
        "</figure>"
        for i, setting in enumerate(findings.settings)
    )
    return f'<div class="panels">{panels}</div>'


def _caption(findings: Findings, setting: Setting) -> str:
    """Where there is one setting, the page's first sentence names it."""
    several = len(findings.settings) > 1
    return f"<figcaption>{escape(setting.label)}</figcaption>" if several else ""


SMOOTHING = {"1": "1 round", "3": "3 rounds", "5": "5 rounds", "10": "10 rounds", "25": "25 rounds"}


def _curves(findings: Findings) -> str:
    axes = {"rounds": "rounds", "bytes": "bytes", "gradients": "gradients", "seconds": "time"}
    controls = [choices("x", "Horizontal axis", axes, "rounds")]
    if findings.has_accuracy:
        kinds = {"accuracy": "accuracy", "loss": "loss", "both": "both"}
        controls.append(choices("y", "Vertical axis", kinds, "accuracy"))
    if any(len(one.group.runs) > 1 for one in findings.all):
        kinds = {"false": "mean and range", "true": "single seeds"}
        controls.append(choices("seeds", "Seeds", kinds, "false"))
    more = [
        select_of("smooth", "Smooth over", SMOOTHING),
        check_box("log-x", "log x"),
        check_box("log-y", "log y"),
        check_box("target", "target line"),
    ]
    if findings.has_accuracy:
        more.append(
            '<label>at <input type="number" id="target-at" min="0" max="100" step="0.1" '
            'placeholder="auto" aria-label="Target in percent"> %</label>'
        )
    if len(findings.methods) > 2:
        more.append(
            '<label>Only <input type="search" id="only" placeholder="part of a name"></label>'
        )
    heights = pictures.common_range(findings)
    one = "wide" if len(findings.settings) == 1 else ""
    return section(
        "curves",
        "Convergence",
        toolbar(*controls),
        _legend(findings),
        _panels(
            findings,
            "curve",
            "Test result over rounds or cost",
            lambda setting: pictures.curve(findings, setting, heights),
            one,
        ),
        toolbar(*more),
        folded("How to read the curves", paragraph(_reading(findings))),
    )


def _reading(findings: Findings) -> str:
    about = (
        "A line is the mean of the seeds as far as all of them go, the band around it reaches "
        "from the lowest seed to the highest; a cross marks a seed that became infinite. "
        "Over bytes, gradient evaluations and time, a point stands at the mean cost of the seeds. "
        "Smoothing draws the mean of each round and those before it. The target line stands at "
        f"the target of the leaderboard unless it is given. {tables.target_text(findings)}"
    )
    if pictures.chance(findings) is not None and findings.has_accuracy:
        about += " The dotted line is the share of the most frequent class."
    return about


def _data(findings: Findings) -> str:
    first = next((run for run in findings.grouped.runs if run.clients is not None), None)
    if first is None:
        return ""
    place = chart(
        "clients",
        "Classes and samples per client",
        size="tall",
        still=_named(findings, first, pictures.clients(first), method=False),
    )
    what = "How many samples each client holds"
    if first.clients is not None and first.clients.shares is not None:
        what += ", and which share of them is of which class"
    return section(
        "data",
        "Data of the clients",
        paragraph(f"{what}."),
        toolbar(select("data-which", "Division")),
        f"<figure>{place}</figure>",
    )


def _classes(findings: Findings) -> str:
    first = next((run for run in findings.grouped.runs if run.classes is not None), None)
    if first is None:
        return ""
    more = ""
    if any(takes_part(run) for run in findings.grouped.runs):
        more = (
            "A dot marks a class that the clients of the round hold: the larger, the more of "
            "their samples. Below it, which clients took part. Where a class lights up when its "
            "clients took part and fades afterwards, the model leans towards those it saw last. "
            "With many rounds in view there are no dots; zoom in to see them."
        )
    place = chart(
        "classes",
        "Accuracy per class and round",
        size="tall",
        still=_named(findings, first, pictures.classes(first), method=True),
    )
    return section(
        "classes",
        "Classes over rounds",
        paragraph("Test accuracy per class."),
        f'<div class="screen">{paragraph(more)}</div>' if more else "",
        toolbar(select("classes-which", "Method"), select("classes-seed", "Seed")),
        f"<figure>{place}</figure>",
    )


def _named(findings: Findings, run: Measured, still: str, *, method: bool) -> str:
    """Whose still picture it is, where nothing can be chosen."""
    group = next(g for g in findings.grouped.groups if any(one is run for one in g.runs))
    words = [*([group.method] if method else []), group.setting.label, f"seed {run.seed}"]
    return f"<p>{escape(' · '.join(words))}</p>{still}" if still else ""


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
        paragraph(about),
        _legend(findings),
        _panels(
            findings,
            "expected",
            "Expected accuracy of the clients",
            lambda setting: pictures.expected(findings, setting),
        ),
        html_table(table),
        folded("Before you quote it: 1 caveat", bullet_list([sentences.EXPECTED])),
    )


def _text(findings: Findings) -> str:
    """What models of text write themselves, one run of each method."""
    written = [one for one in findings.all if one.group.runs[0].continuations]
    if not written:
        return ""
    is_marked = all(one.group.runs[0].beginnings for one in written)
    about = (
        f"Beginnings of the test text{', in bold' if is_marked else ''}, and what the final model "
        "of the first seed writes after them, drawn at temperature 0.8."
    )
    parts = [
        f"<figure><figcaption>{escape(f'{one.group.method}, {one.group.setting.label}')}"
        f"</figcaption>{_continued(one.group.runs[0])}</figure>"
        for one in written
    ]
    return section("text", "Text", paragraph(about), f'<div class="panels">{"".join(parts)}</div>')


def _continued(run: Measured) -> str:
    """Every text, with what was given to the model in bold."""
    given = dict(enumerate(run.beginnings))
    cut = [(text, given.get(i, 0)) for i, text in enumerate(run.continuations)]
    return "".join(f"<pre><b>{escape(t[:end])}</b>{escape(t[end:])}</pre>" for t, end in cut)


def _ledger(findings: Findings) -> str:
    table = tables.ledger(findings)
    if table is None:
        return ""
    labels = [setting.label for setting in findings.settings]
    control = toolbar(select("ledger-setting", "Setting", labels)) if len(labels) > 1 else ""
    still = pictures.ledger(findings, findings.settings[0])
    place = chart("ledger", "Bytes per round by field", size="free", still=still)
    return section(
        "ledger",
        "Communication",
        paragraph(f"Fields below {100 * tables.SEEN:g} % are only in the table."),
        control,
        f"<figure>{place}</figure>",
        folded("All fields as a table", html_table(table)),
    )


# The whole file, which needs nothing else: no server, no network, no fonts.

HERE = Path(__file__).parent
SHELL = (HERE / "page.js", HERE / "charts.js")  # unpacks, switches theme, sets up charts
SCRIPTS = (*SHELL, HERE / "heatmaps.js")
STYLE = HERE / "page.css"
LEVEL = 6  # of gzip: 9 takes three times as long for one percent


def plotly_library() -> bytes:
    """plotly.js of the installed plotly, without importing it."""
    spec = find_spec("plotly")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    for folder in folders:
        file = Path(folder) / "package_data" / "plotly.min.js"
        if file.is_file():
            return file.read_bytes()
    raise InputError("the report needs plotly; install it with: pip install 'fedrift[report]'")


def page(
    title: str,
    body: str,
    numbers: object,
    scripts: Sequence[Path] = SCRIPTS,
    styles: Sequence[Path] = (STYLE,),
) -> str:
    """The whole file."""
    plotly = plotly_library()
    style = "".join(file.read_text(encoding="utf-8") for file in styles)
    script = "".join(file.read_text(encoding="utf-8") for file in scripts)
    policy = _policy(script.encode("utf-8"), plotly)
    data = json.dumps(numbers, separators=(",", ":"), allow_nan=False).encode("utf-8")
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="generator" content="fedrift">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style></head><body>",
            body,
            f'<script type="text/plain" id="numbers">{_zipped(data)}</script>',
            f'<script type="text/plain" id="library">{_zipped(plotly)}</script>',
            f"<script>{script}</script>",
            "</body></html>\n",
        )
    )


def _zipped(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, LEVEL, mtime=0)).decode("ascii")


def _policy(*scripts: bytes) -> str:
    """The browser runs these scripts only, and asks the network for nothing."""
    hashes = (base64.b64encode(hashlib.sha256(s).digest()).decode("ascii") for s in scripts)
    sources = " ".join(f"'sha256-{h}'" for h in hashes)
    return (
        f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
