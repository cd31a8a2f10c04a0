"""What every command prints with: consoles, errors in one line, readable quantities."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


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
