"""What every command prints with: consoles, errors in one line, readable quantities."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


WIDE = 160  # columns when nobody says otherwise, so that lines in a pipe stay whole


def console(*, errors: bool = False) -> Console:
    """Standard output, or standard error for everything that is not the answer."""
    from rich.console import Console
    from rich.segment import Segment

    class Screen(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterator[Segment]:
            """Colours and movements are ours; what the text itself holds of them is shown."""
            for one in super().render(renderable, options):
                is_ours = one.control or one.text.replace("\n", "").isprintable()
                yield one if is_ours else Segment(visible(one.text), one.style)

        def on_broken_pipe(self) -> None:
            """Without a reader the answer is at its end; without one of the rest, work goes on."""
            if not errors:
                raise BrokenPipeError
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())

    stream = sys.stderr if errors else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else WIDE
    return Screen(file=stream, width=width, highlight=False, markup=False, emoji=False)


def fitting(table: Table, screen: Console, names: int = 1) -> list[Table]:
    """The table if the terminal has room for it; else several below each other, each with the
    first columns, which name the rows: a number that is cut off is none."""
    from rich.measure import Measurement

    options = screen.options.update(max_width=10_000)  # as wide as it wants to be
    if Measurement.get(screen, options, table).maximum <= screen.width:
        return [table]
    groups: list[list[int]] = [[]]
    for place in range(names, len(table.columns)):
        longer = _part(table, [*range(names), *groups[-1], place])
        if groups[-1] and Measurement.get(screen, options, longer).maximum > screen.width:
            groups.append([])
        groups[-1].append(place)
    parts = [_part(table, [*range(names), *group]) for group in groups]
    parts[0].title, parts[0].title_justify = table.title, "left"
    return parts


def _part(table: Table, shown: Sequence[int]) -> Table:
    """Some columns, as wide as their cells and without lines between them."""
    from rich.box import SIMPLE_HEAD
    from rich.cells import cell_len
    from rich.table import Table as Made

    made = Made(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    cells = [[str(cell) for cell in table.columns[place].cells] for place in shown]
    for place, own in zip(shown, cells, strict=True):
        column = table.columns[place]
        longest = max(map(cell_len, (*str(column.header).split(), *own)))
        made.add_column(column.header, justify=column.justify, width=longest, overflow="fold")
    for number, row in enumerate(table.rows):
        made.add_row(*(own[number] for own in cells), end_section=row.end_section)
    return made


def loss_text(loss: float) -> str:
    """Four digits after the point; a loss too large or small for that as a power of ten."""
    return f"{loss:.4f}" if loss == 0 or 1e-3 <= abs(loss) < 1e6 else f"{loss:.3e}"


def complain(message: str, code: int, error: BaseException | None = None) -> int:
    """One line on standard error; the traceback only for those who ask for it."""
    if error is not None and os.environ.get("FEDRIFT_DEBUG") == "1":
        traceback.print_exception(error)
    print(f"error: {one_line(message)}", file=sys.stderr)
    return code


def one_line(text: str) -> str:
    """No line breaks and no control characters: what the user typed may hold any."""
    return visible(" ".join(text.split()))


def visible(text: str) -> str:
    """Text of strangers: what would move the cursor or change colours is spelled instead."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
