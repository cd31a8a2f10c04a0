"""The section about the models themselves: what an analysis found, as sentences and figures."""

from __future__ import annotations

import io
from collections.abc import Sequence

from fedrift.pictures import Picture
from fedrift.report.analyses import ENDINGS, Analysed
from fedrift.report.markup import escape, folded, image, items, said, section
from fedrift.report.provenance import Extras
from fedrift.statistics.findings import Findings

ORDER = (
    "hessian",
    "sharpness",
    "landscape",
    "cka",
    "drift",
    "classes",
    "predictions",
    "during",
)
MOST_RUNS = 12  # in one figure, and whose own figures are in the page
WRONG = (KeyError, TypeError, ValueError, IndexError, AttributeError)


def inside(findings: Findings, extras: Extras) -> str:
    """Empty if no run was looked at."""
    if not extras.analyses:
        return ""
    names = dict.fromkeys(one.what for one in extras.analyses)
    ordered = sorted(names, key=lambda n: (ORDER.index(n) if n in ORDER else len(ORDER), n))
    parts = [_part(what, [a for a in extras.analyses if a.what == what]) for what in ordered]
    about = "Made by fedrift analyse from saved weights. Of several seeds the first is shown."
    return section("inside", "Inside the models", said(about), *parts)


def _part(what: str, found: Sequence[Analysed]) -> str:
    shown = found[:MOST_RUNS]
    left = len(found) - len(shown)
    pieces = [f"<h3>{escape(found[0].title)}</h3>"]
    if len(shown) == 1:
        pieces += [items(shown[0].said), _own(shown[0])]
        return "".join(pieces)
    compared = _together(what, shown)
    pieces.append(compared)
    for one in shown:
        pieces.append(folded(one.run, items(one.said), _own(one)))
    if left:
        pieces.append(said(f"{left} more runs were analysed; their figures are in their folders."))
    return "".join(pieces)


def _own(one: Analysed) -> str:
    """The figures that stand in the run's folder."""
    made: list[str] = []
    for name, path in one.figures.items():
        try:
            content = path.read_bytes()
        except OSError:
            continue
        about = f"{one.title} of {one.run}: {name.replace('-', ' ')}"
        made.append(image(content, ENDINGS[path.suffix], about))
    return f'<div class="pictures">{"".join(made)}</div>' if made else ""


def _together(what: str, found: Sequence[Analysed]) -> str:
    """Figures with all runs in them, drawn now from their numbers."""
    from fedrift.pictures.gallery import TOGETHER

    made = [
        drawn
        for name, draw in TOGETHER.get(what, {}).items()
        if (drawn := _drawn(draw, found, f"{found[0].title}: {name.replace('-', ' ')}"))
    ]
    return f'<div class="pictures">{"".join(made)}</div>' if made else ""


def _drawn(draw: Picture, found: Sequence[Analysed], about: str) -> str:
    from matplotlib import rc_context

    from fedrift.pictures.style import sheet

    figure, content = sheet(), io.BytesIO()
    try:
        draw(figure, {one.run: one.numbers for one in found})
        with rc_context({"svg.hashsalt": "fedrift"}):
            figure.savefig(content, format="svg", metadata={"Date": None})
    except WRONG:  # numbers of another version, or not measured in every run
        return ""
    return image(content.getvalue(), ENDINGS[".svg"], about)
