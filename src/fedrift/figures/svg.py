"""Small pictures as SVG text: lines, bars and colour tables, in the colours of the page around."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 560.0, 320.0
LEFT, RIGHT, TOP, BOTTOM = 54.0, 16.0, 10.0, 44.0
ABOVE = 22.0  # more room at the top for what the vertical axis shows
LETTER = 7.4  # width of one at the size of the labels
MOST_POINTS = 240  # of one line
MINUS = "\N{MINUS SIGN}"
LABEL = re.compile(rf"({MINUS}?\d+(?:\.\d+)?)( ?[^\d.]*)")  # a number and its unit
MANY = 6  # bands of one picture, from which on they are fainter
UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Line:
    """Points with finite coordinates; `band` holds a lower and an upper value for each."""

    name: str
    colour: str
    x: Sequence[float]
    y: Sequence[float]
    band: tuple[Sequence[float], Sequence[float]] | None = None
    dash: str = ""
    opacity: float = 1.0


def percent(value: float) -> str:
    """`85 %`."""
    return f"{100.0 * value:.4g} %".replace("-", MINUS)


def short(value: float) -> str:
    """`12 k`, `0.25`."""
    for size, unit in UNITS:
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}".replace("-", MINUS)
    return f"{value:.3g}".replace("-", MINUS)


def even(labels: Sequence[str]) -> list[str]:
    """With as many decimals each: `2.0`, `2.2` for `2`, `2.2`, where all have the same unit."""
    found = [LABEL.fullmatch(label) for label in labels]
    if len({one[2] for one in found if one}) != 1 or None in found:
        return list(labels)
    places = max(len(one[1].partition(".")[2]) for one in found if one)
    return [
        f"{one[1]}{'' if '.' in one[1] or not places else '.'}"
        f"{'0' * (places - len(one[1].partition('.')[2]))}{one[2]}"
        for one in found
        if one
    ]


def ticks(low: float, high: float, most: int = 6, whole: bool = False) -> list[float]:
    """Round numbers between two others; only whole ones if there are no halves to speak of."""
    span = high - low
    if not span > 0:
        return [low]
    step = 10 ** math.floor(math.log10(span / most))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= most)
    step = max(1.0, step) if whole else step
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]


@dataclass(frozen=True)
class Frame:
    """From numbers to places in a picture."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    top: float = TOP

    def across(self, value: float) -> float:
        low, high = self.x
        return self.left + (value - low) / ((high - low) or 1) * (self.width - self.left - RIGHT)

    def down(self, value: float) -> float:
        low, high = self.y
        return (
            self.height
            - BOTTOM
            - (value - low) / ((high - low) or 1) * (self.height - self.top - BOTTOM)
        )

    def points(self, x: Sequence[float], y: Sequence[float]) -> str:
        return " ".join(
            f"{self.across(a):.1f},{self.down(b):.1f}" for a, b in zip(x, y, strict=True)
        )


def lines_picture(
    lines: Sequence[Line],
    *,
    about: str,
    x_title: str,
    y_title: str,
    whole: bool = False,
    x_marks: int = 6,
    x_text: Callable[[float], str] = short,
    y_text: Callable[[float], str] = short,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
    level: float | None = None,
    shaded: Sequence[tuple[float, float]] = (),
    width: float = WIDTH,
    height: float = HEIGHT,
) -> str:
    """Lines with their bands; `level` is a dotted line across, `shaded` are stretches of x;
    `whole`: only whole numbers on x, of which there are at most `x_marks`."""
    drawn = [thinned(line) for line in lines if len(line.x)]
    frame = Frame(
        x_range or _ends(value for line in drawn for value in line.x),
        y_range or _ends((v for line in drawn for v in _heights(line)), air=0.05),
        width,
        height,
        top=TOP + ABOVE,
    )
    tall = height - BOTTOM - frame.top
    parts = [
        f'<rect class="empty" x="{frame.across(low):.1f}" y="{frame.top}" '
        f'width="{frame.across(high) - frame.across(low):.1f}" height="{tall:.1f}"/>'
        for low, high in shaded
    ]
    parts += _axes(frame, x_title, y_title, x_text, y_text, whole, x_marks)
    if level is not None:
        at = f"{frame.down(level):.1f}"
        parts.append(
            f'<line class="level" x1="{frame.left}" x2="{width - RIGHT}" y1="{at}" y2="{at}"/>'
        )
    bands = sum(line.band is not None for line in drawn)
    strength = ".16" if bands < MANY else ".07"
    for line in drawn:
        if line.band is not None:
            low, high = line.band
            edge = frame.points([*line.x, *reversed(line.x)], [*high, *reversed(low)])
            parts.append(
                f'<polygon points="{edge}" fill="{line.colour}" fill-opacity="{strength}"/>'
            )
    for line in drawn:
        dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
        if line.opacity < 1:
            dash += f' stroke-opacity="{line.opacity:g}"'
        if len(line.x) == 1:
            at = frame.points(line.x, line.y).split(",")
            parts.append(f'<circle cx="{at[0]}" cy="{at[1]}" r="3" fill="{line.colour}"/>')
            continue
        parts.append(
            f'<polyline points="{frame.points(line.x, line.y)}" fill="none" '
            f'stroke="{line.colour}" stroke-width="2" stroke-linejoin="round"{dash}>'
            f"<title>{escape(line.name)}</title></polyline>"
        )
    return wrapped(parts, about, width, height)


def _heights(line: Line) -> Iterable[float]:
    return (*line.y, *(value for side in line.band or () for value in side))


def _ends(values: Iterable[float], air: float = 0.0) -> tuple[float, float]:
    listed = list(values)
    low, high = (min(listed), max(listed)) if listed else (0.0, 1.0)
    room = (high - low or abs(high) or 1.0) * air
    return low - room, high + room


def thinned(line: Line) -> Line:
    """At most so many points, the first and the last among them."""
    number = len(line.x)
    if number <= MOST_POINTS:
        return line
    kept = sorted({round(i * (number - 1) / (MOST_POINTS - 1)) for i in range(MOST_POINTS)})
    band = (
        None
        if line.band is None
        else ([line.band[0][i] for i in kept], [line.band[1][i] for i in kept])
    )
    return Line(
        line.name,
        line.colour,
        [line.x[i] for i in kept],
        [line.y[i] for i in kept],
        band,
        line.dash,
        line.opacity,
    )


def _axes(
    frame: Frame,
    x_title: str,
    y_title: str,
    x_text: Callable[[float], str],
    y_text: Callable[[float], str],
    whole: bool,
    x_marks: int,
) -> Iterable[str]:
    right, bottom = frame.width - RIGHT, frame.height - BOTTOM
    marks = ticks(*frame.y)
    for mark, label in zip(marks, even([y_text(mark) for mark in marks]), strict=True):
        at = frame.down(mark)
        yield f'<line class="rule" x1="{frame.left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'
        yield words(label, frame.left - 8, at + 4, "end")
    marks = ticks(*frame.x, x_marks, whole)
    for mark, label in zip(marks, even([x_text(mark) for mark in marks]), strict=True):
        yield words(label, frame.across(mark), bottom + 18, "middle")
    yield f'<line class="axis" x1="{frame.left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
    yield words(x_title, (frame.left + right) / 2, frame.height - 6, "middle")
    yield words(y_title, 8, 16)


def words(text: str, x: float, y: float, anchor: str = "start") -> str:
    """A label."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def wrapped(parts: Iterable[str], about: str, width: float, height: float) -> str:
    """The whole picture, which says what it shows to those who cannot see it."""
    return (
        f'<svg class="picture" role="img" aria-label="{escape(about, quote=True)}" '
        f'viewBox="0 0 {width:g} {height:g}" xmlns="http://www.w3.org/2000/svg">'
        f"{''.join(parts)}</svg>"
    )


HATCH = (
    '<pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><line class="hatch" x1="1" x2="1" y1="0" y2="6"/></pattern>'
)


def bars_picture(
    rows: Mapping[str, Sequence[tuple[float, str, str]]],
    *,
    about: str,
    x_title: str,
    x_text: Callable[[float], str] = short,
) -> str:
    """A bar per name, of pieces as (length, colour, class); the class `up` is hatched."""
    left = min(220.0, 12 + LETTER * max((len(name) for name in rows), default=0))
    height = 26.0 * len(rows) + BOTTOM + TOP
    longest = max((sum(size for size, *_ in pieces) for pieces in rows.values()), default=1.0)
    frame = Frame((0, longest or 1.0), (0, 1), WIDTH, height, left)
    parts: list[str] = [HATCH] if any(k == "up" for own in rows.values() for *_, k in own) else []
    for mark in ticks(0, longest or 1.0, 5):
        at = frame.across(mark)
        parts.append(
            f'<line class="rule" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>'
        )
        parts.append(words(x_text(mark), at, height - BOTTOM + 16, "middle"))
    for place, (name, pieces) in enumerate(rows.items()):
        top, so_far = TOP + 26 * place + 4, 0.0
        fits = int((left - 12) / LETTER)
        parts.append(
            words(name if len(name) <= fits else f"{name[: fits - 1]}…", left - 8, top + 13, "end")
        )
        for size, colour, kind in pieces:
            begin, end = frame.across(so_far), frame.across(so_far + size)
            size_of = f'x="{begin:.1f}" y="{top}" width="{max(0.0, end - begin):.1f}" height="18"'
            parts.append(f'<rect {size_of} fill="{colour}"/>')
            if kind == "up":
                parts.append(f'<rect {size_of} fill="url(#hatch)"/>')
            so_far += size
    parts.append(words(x_title, (left + WIDTH - RIGHT) / 2, height - 6, "middle"))
    return wrapped(parts, about, WIDTH, height)


MOST_CELLS = 90  # columns or rows of a table of colours; of more, some are left out


def table_picture(
    cells: Sequence[Sequence[float]],
    *,
    about: str,
    x_title: str,
    y_title: str,
    columns: Sequence[float],
    colour: str,
    scale: str,
) -> str:
    """Shares from 0 to 1 as depths of one colour, a row for each list; `scale` says of what."""
    across = kept(len(columns))
    rows = kept(len(cells))
    top = TOP + ABOVE
    height = min(420.0, 18.0 * len(rows)) + top + BOTTOM
    frame = Frame((0, len(across)), (0, len(rows)), WIDTH, height, top=top)
    wide = (WIDTH - LEFT - RIGHT) / max(1, len(across))
    tall = (height - top - BOTTOM) / max(1, len(rows))
    parts = [
        f'<rect class="empty" x="{LEFT}" y="{top}" width="{WIDTH - LEFT - RIGHT}" '
        f'height="{height - top - BOTTOM:.1f}"/>'
    ]
    for j, row in enumerate(rows):
        for i, column in enumerate(across):
            share = cells[row][column]
            if not share > 0:
                continue
            at = f'x="{frame.across(i):.1f}" y="{top + tall * j:.1f}"'
            size = f'width="{wide + 0.3:.1f}" height="{tall + 0.3:.1f}"'
            parts.append(f"<rect {at} {size} {_depth(colour, share)}/>")
    for i in range(0, len(across), max(1, -(-len(across) // 12))):
        label = f"{columns[across[i]]:g}"
        parts.append(words(label, frame.across(i) + wide / 2, height - BOTTOM + 16, "middle"))
    for j in range(0, len(rows), max(1, -(-len(rows) // 20))):
        parts.append(words(str(rows[j]), LEFT - 8, top + tall * (j + 0.5) + 4, "end"))
    parts.append(words(x_title, (LEFT + WIDTH - RIGHT) / 2, height - 6, "middle"))
    parts += [words(y_title, 8, 16), *_scale(scale, colour)]
    return wrapped(parts, about, WIDTH, height)


def _depth(colour: str, share: float) -> str:
    return f'fill="{colour}" fill-opacity="{0.1 + 0.9 * share:.2f}"'


def _scale(name: str, colour: str) -> list[str]:
    """Which depth is which share, above a table at its right end."""
    steps, size, end = 10, 9.0, WIDTH - RIGHT - 46.0
    start = end - steps * size
    parts = [words(f"{name} {percent(0)}", start - 6, 16, "end"), words(percent(1), end + 6, 16)]
    for i in range(steps + 1):
        at = f'x="{start + i * size * steps / (steps + 1):.1f}" y="6"'
        shade = 'class="empty"' if i == 0 else _depth(colour, i / steps)
        parts.append(f'<rect {at} width="{size:.1f}" height="11" {shade}/>')
    return parts


def kept(number: int, most: int = MOST_CELLS) -> list[int]:
    """Which of so many are shown."""
    if number <= most:
        return list(range(number))
    return sorted({round(i * (number - 1) / (most - 1)) for i in range(most)})


def strips_picture(
    rows: Sequence[tuple[str, str, Sequence[float]]],
    *,
    about: str,
    x_title: str,
    x_text: Callable[[float], str] = short,
    zero: bool = False,
) -> str:
    """A row of dots for each (name, colour, values), with a mark at their mean."""
    left = min(200.0, 16 + LETTER * max((len(name) for name, *_ in rows), default=0))
    row = 34.0
    height = row * len(rows) + TOP + BOTTOM
    values = [value for *_, own in rows for value in own]
    low, high = _ends([*values, *([0.0] if zero else [])], air=0.06)
    frame = Frame((low, high), (0, 1), WIDTH, height, left)
    bottom = height - BOTTOM
    parts: list[str] = []
    for mark in ticks(low, high, 5):
        at = f"{frame.across(mark):.1f}"
        kind = "axis" if zero and mark == 0 else "rule"
        parts.append(f'<line class="{kind}" x1="{at}" x2="{at}" y1="{TOP}" y2="{bottom}"/>')
        parts.append(words(x_text(mark), frame.across(mark), bottom + 16, "middle"))
    fits = int((left - 12) / LETTER)
    for place, (name, colour, own) in enumerate(rows):
        middle = TOP + row * (place + 0.5)
        named = name if len(name) <= fits else f"{name[: fits - 1]}…"
        parts.append(words(named, left - 8, middle + 4, "end"))
        for number, value in enumerate(own):
            lift = (number % 5 - 2) * 2.4 if len(own) > 1 else 0.0
            parts.append(
                f'<circle cx="{frame.across(value):.1f}" cy="{middle + lift:.1f}" r="4" '
                f'fill="{colour}" fill-opacity=".55"/>'
            )
        if len(own) > 1:
            at = f"{frame.across(sum(own) / len(own)):.1f}"
            parts.append(
                f'<line class="mark" x1="{at}" x2="{at}" y1="{middle - 12}" y2="{middle + 12}"/>'
            )
    parts.append(
        f'<line class="axis" x1="{left}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>'
    )
    parts.append(words(x_title, (left + WIDTH - RIGHT) / 2, height - 6, "middle"))
    return wrapped(parts, about, WIDTH, height)
