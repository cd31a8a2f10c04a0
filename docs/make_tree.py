"""Draws the layers of the package and lists them in README.md: run by `make docs-pages`.

Both come from the table in tests/support/layers.py, by which imports are checked.
"""

from __future__ import annotations

import sys
import textwrap
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))

from tests.support.layers import FRONT_DOOR, LAYERS, PACKAGE, Graph, Layer, first  # noqa: E402

PICTURE, README = ROOT / "docs" / "images" / "layers.svg", ROOT / "README.md"
BEGIN = "<!-- Written by `make docs-pages` from tests/support/layers.py: do not edit. -->\n"
END = "<!-- End of what is written. -->\n"

WIDTH, MARGIN, GAP = 1000, 24, 10  # pixels
LINE, LETTER, NAME = 15, 6.1, 18  # of the sentences: height and mean width; height of a name
SANS = "-apple-system, Segoe UI, Helvetica, Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
INK, QUIET = "#1f2328", "#57606a"
WITH_TORCH, WITHOUT = ("#e8f1fb", "#0072B2"), ("#e6f5f0", "#009E73")  # as the other figures


def is_package(layer: Layer) -> bool:
    return (PACKAGE / layer.name).is_dir()


def file_of(layer: Layer) -> str:
    """As it is called in the folder."""
    if layer.name == FRONT_DOOR:
        return "__init__.py"
    return f"{layer.name}/" if is_package(layer) else f"{layer.name}.py"


def levels() -> list[list[Layer]]:
    """From the top down: each may import only what stands in a lower row."""
    height: dict[str, int] = {}
    for layer in LAYERS:  # in the order of imports
        height[layer.name] = 1 + max((height[n] for n in layer.may_import.split()), default=-1)
    found = sorted(set(height.values()), reverse=True)
    return [[layer for layer in LAYERS if height[layer.name] == level] for level in found]


def without_torch() -> set[str]:
    """Layers none of whose modules imports torch when it is imported itself."""
    graph = Graph(PACKAGE)
    heavy = {n for n in graph.modules if "torch" in graph.outside(n, eager=True)}
    return {layer.name for layer in LAYERS} - {
        first(name) for name in graph.modules if graph.needs(name) & heavy
    }


def picture() -> str:
    """The layers as boxes, users on top, what everything rests on at the bottom."""
    y, boxes, light = 62, list[str](), without_torch()
    for row in levels():
        width = (WIDTH - 2 * MARGIN - GAP * (len(row) - 1)) / len(row)
        texts = [textwrap.wrap(layer.about, int((width - 24) / LETTER)) for layer in row]
        lines = max(map(len, texts))
        is_wide = len(row) == 1  # the sentence stands beside the name
        height = NAME + LINE * lines + 14 - (NAME if is_wide else 0)
        for place, (layer, text) in enumerate(zip(row, texts, strict=True)):
            x = MARGIN + place * (width + GAP)
            colours = WITHOUT if layer.name in light else WITH_TORCH
            boxes += _box(layer, text, colours, (x, y, width, height), is_wide)
        y += height + GAP
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 14}" '
        f'width="{WIDTH}" height="{y + 14}" font-family="{SANS}" font-size="12" role="img">',
        "<title>The layers of fedrift: each imports only what stands below it</title>",
        f'<rect width="{WIDTH}" height="{y + 14}" rx="8" fill="#ffffff"/>',
        f'<text x="{MARGIN}" y="38" font-size="15" fill="{INK}">'
        "A package imports only what stands below it.</text>",
        *_legend("without torch", WITHOUT, WIDTH - MARGIN - 236),
        *_legend("with torch", WITH_TORCH, WIDTH - MARGIN - 96),
    ]
    return "\n".join([*head, *boxes, "</svg>"]) + "\n"


def _legend(text: str, colours: tuple[str, str], x: int) -> list[str]:
    fill, edge = colours
    return [
        f'<rect x="{x}" y="26" width="16" height="14" rx="3" fill="{fill}" stroke="{edge}"/>',
        f'<text x="{x + 24}" y="37" fill="{QUIET}">{text}</text>',
    ]


def _box(
    layer: Layer,
    text: list[str],
    colours: tuple[str, str],
    place: tuple[float, float, float, float],
    is_wide: bool,
) -> list[str]:
    (fill, edge), (x, y, width, height) = colours, place
    dashes = "" if is_package(layer) else ' stroke-dasharray="4 3"'
    beside = 150 if is_wide else 12
    top = y + 21 if is_wide else y + 21 + NAME
    return [
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" '
        f'stroke="{edge}"{dashes}/>',
        f'<text x="{x + 12:g}" y="{y + 21:g}" font-family="{MONO}" font-size="13" '
        f'font-weight="600" fill="{INK}">{escape(file_of(layer))}</text>',
        *(
            f'<text x="{x + beside:g}" y="{top + LINE * i:g}" fill="{QUIET}">'
            f"{escape(line.replace('`', ''))}</text>"
            for i, line in enumerate(text)
        ),
    ]


def tree() -> str:
    """The folder as a text, in the order of the picture."""
    rows = [(file_of(layer), layer.about) for row in levels() for layer in row]
    widest = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{widest}}  {about.replace('`', '')}" for name, about in rows]
    return "\n".join([f"{BEGIN}```", "src/fedrift/", *lines, f"```\n{END}"])


def readme() -> str:
    """README.md with the tree in its place."""
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    return before + tree() + rest.partition(END)[2]


def files() -> dict[Path, str]:
    """What is written, by path."""
    return {PICTURE: picture(), README: readme()}


if __name__ == "__main__":
    for path, content in files().items():
        path.write_text(content, encoding="utf-8")
