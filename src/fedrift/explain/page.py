"""The story as one HTML page with buttons to step through it; built like the report's page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path as File
from typing import Any

import torch
from torch import Tensor

from fedrift.explain.captions import Texts
from fedrift.explain.frames import Frame, climb, frames, pieces, state, telling
from fedrift.explain.recording import Visit
from fedrift.explain.story import Path, Story, Turn
from fedrift.explain.terrain import Point, grid
from fedrift.figures.svg import MINUS
from fedrift.report.html import SHELL, STYLE, page
from fedrift.report.markup import bullet_list, chart, copyable, escape, folded, section

HERE = File(__file__).parent
CLASSES = {"g": "gradient", "c": "first", "d": "second", "s": "extra"}
READ = (
    "Thin coloured rings are the contour lines of each client's own loss, the shading is their "
    "mean, which the server wants to minimise; the star is its minimum.",
    "A coloured path is a client's local training: one dot for each step. The arrows take the "
    "current step apart: first the gradient, then every correction the algorithm added.",
    "The heavy line is the server's model from round to round, the grey dashed one FedAvg's from "
    "the same start.",
    "Every point and arrow was recorded from the algorithm itself while it ran: nothing is drawn "
    "from a formula.",
)


def document(story: Story, texts: Texts, about: Sequence[str], command: str) -> str:
    """The whole file."""
    title = f"{texts.title}, step by step"
    scripts = (*SHELL, HERE / "stage.js", HERE / "explain.js")
    styles = (STYLE, HERE / "explain.css")
    return page(title, _body(story, texts, about, command), payload(story, texts), scripts, styles)


def coloured(rule: str) -> str:
    """A rule as HTML, its terms in the colours of their arrows."""
    pieces = re.split(r"\{(\w)\|([^}]*)\}", rule)
    out = [escape(pieces[0])]
    for kind, term, rest in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        out.append(f'<b class="{CLASSES[kind]}">{escape(term)}</b>{escape(rest)}')
    return "".join(out)


def _body(story: Story, texts: Texts, about: Sequence[str], command: str) -> str:
    ends = frames(story, texts)[-1].words
    header = (
        '<header><nav aria-label="Sections"><a href="#stage">Step by step</a>'
        '<a href="#progress">Round by round</a><a href="#settings">Settings</a></nav>'
        '<button type="button" class="plain" id="theme">Dark</button></header>'
    )
    rules = (
        f'<div class="rules"><p id="rule-step"><span>client</span>{coloured(texts.step)}</p>'
        f'<p id="rule-server"><span>server</span>{coloured(texts.server)}</p></div>'
    )
    stage = (
        f'<section id="stage" aria-label="Step by step"><div class="stage"><figure>'
        f"{chart('stage', 'Two clients and the server in the plane', size='square')}"
        f"{_controls()}</figure><aside>"
        '<h2 id="heading" aria-live="polite"></h2><p id="words"></p>'
        f'{rules}<div id="legend" class="legend"></div><table id="state" hidden></table>'
        f'<p class="look">{escape(texts.look)} <b>{escape(ends)}</b></p>'
        "</aside></div></section>"
    )
    progress = section(
        "progress",
        "Round by round",
        f'<p class="soft">{escape(PROGRESS)}</p>',
        f"<figure>{chart('progress', 'Loss above the minimum after every round')}</figure>",
    )
    settings = section(
        "settings",
        "How to read it, and how to make it again",
        bullet_list(READ),
        bullet_list(about),
        copyable("command", command),
        folded("The state after every round", _states(story, texts)) if texts.state else "",
    )
    return (
        f"{header}<main><h1>{escape(texts.title)}, step by step</h1>"
        f'<p class="idea">{escape(texts.idea)}</p>{stage}{progress}{settings}</main>'
    )


PROGRESS = (
    "How far the common loss F = ½(F₁ + F₂) is above its minimum after every round. A line that "
    "levels off has come to rest at the wrong place."
)


def _icon(*shapes: str) -> str:
    drawn = "".join(f'<path d="{shape}"/>' for shape in shapes)
    return f'<svg viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">{drawn}</svg>'


BACK, ON = "M11 2v12L3 8z", "M5 2v12l8-6z"
BUTTONS = (
    ("first", _icon(BACK, "M2 2h2v12H2z"), "To the start"),
    ("back", _icon(BACK), "One step back"),
    ("play", "Play", "Play"),
    ("next", _icon(ON), "One step on"),
    ("round", _icon(ON, "M12 2h2v12h-2z"), "To the next round"),
)


def _controls() -> str:
    buttons = "".join(
        f'<button type="button" class="plain" data-go="{key}" aria-label="{words}" '
        f'title="{words}">{mark}</button>'
        for key, mark, words in BUTTONS
    )
    return (
        f'<div class="controls" role="group" aria-label="Steps">{buttons}</div>'
        '<input type="range" id="slider" min="0" value="0" step="1" aria-label="Moment">'
    )


def _states(story: Story, texts: Texts) -> str:
    rows: list[str] = []
    for turn in story.turns:
        cells = "; ".join(f"{name} = {_numbers(x)}" for name, x in state(turn, texts.state))
        rows.append(f"<li>round {turn.number}: {escape(cells)}</li>")
    return f"<ul>{''.join(rows)}</ul>"


def _numbers(values: Sequence[float]) -> str:
    spelled = ", ".join(f"{value:.3f}".replace("-", MINUS) for value in values)
    return spelled if len(values) == 1 else f"({spelled})"


def payload(story: Story, texts: Texts) -> dict[str, Any]:
    """Everything the page draws, in numbers."""
    low, high = story.box()
    x, y = story.task.terrain.axes(low, high)
    one, two = story.task.terrain.losses(grid(x, y))
    moments = frames(story, texts)
    return {
        "measure": "distance",
        "span": story.task.lr,
        "x": _rounded(x),
        "y": _rounded(y),
        "maps": {
            "one": _heights(one),
            "two": _heights(two),
            "both": _heights((one + two) / 2),
        },
        "title": texts.title,
        "lowest": story.lowest,
        "bottoms": story.bottoms,
        "places": [[name, *at] for name, at in story.task.terrain.places.items()],
        "path": _path(story, story.path),
        "other": None if story.other is None else _path(story, story.other),
        "terms": [
            {"piece": piece, "symbol": texts.term(piece)[0]} for piece in pieces(story, texts)
        ],
        "extra": texts.extra or "server's own step",
        "replaces": texts.replaces,
        "turns": [_turn(turn, texts) for turn in story.turns],
        "frames": [_frame(frame) for frame in moments],
        "opens": telling(story, moments),
    }


def _path(story: Story, path: Path) -> dict[str, Any]:
    points = torch.tensor(path.points, dtype=torch.float64)
    one, two = story.task.terrain.losses(points)
    first, second = story.task.terrain.losses(torch.tensor(story.lowest, dtype=torch.float64))
    least = float(first + second) / 2
    above = ((one + two) / 2 - least).clamp_min(1e-12)
    return {
        "points": [_short(point) for point in path.points],
        "limit": None if path.limit is None else _short(path.limit),
        "rests": path.rests,
        "above": [float(f"{value:.3e}") for value in above.tolist()],
    }


def _turn(turn: Turn, texts: Texts) -> dict[str, Any]:
    return {
        "number": turn.number,
        "sent": _short(turn.sent),
        "mean": _short(turn.mean),
        "end": _short(turn.end),
        "shown": _short(turn.shown),
        "visits": [_visit(visit, turn) for visit in turn.visits],
        "state": [[name, _numbers(x)] for name, x in state(turn, texts.state)],
    }


def _visit(visit: Visit, turn: Turn) -> dict[str, Any]:
    strides = [
        {
            "end": _short(stride.end),
            "arrows": [[name, *_short(vector)] for name, vector in stride.arrows()],
            "climb": None if (at := climb(visit, k)) is None else _short(at),
        }
        for k, stride in enumerate(visit.strides)
    ]
    looks = [list(_short(look.gradient)) for look in visit.looks if look.at == turn.sent]
    return {"client": visit.client, "strides": strides, "gradient": looks[:1]}


def _frame(frame: Frame) -> Mapping[str, Any]:
    return {
        "turn": frame.turn,
        "kind": frame.kind,
        "step": frame.step,
        "heading": frame.heading,
        "words": frame.words,
        "rule": frame.rule,
    }


def _short(point: Point) -> Point:
    return round(point[0], 5), round(point[1], 5)


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


def _heights(values: Tensor) -> list[list[float]]:
    """Roots of heights above the lowest: rings at equal distances in a round bowl."""
    roots = (values - values.min()).sqrt()
    return [_rounded(row) for row in roots]
