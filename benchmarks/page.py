"""Puts generated parts into docs/performance.md, each between its two markers."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
HEAD = "# Performance\n"


def write(name: str, part: str) -> None:
    """Replace the part of this name on the page, or add it at the end."""
    old = PAGE.read_text() if PAGE.exists() else HEAD
    PAGE.write_text(placed(old, name, part))


def placed(page: str, name: str, part: str) -> str:
    begin, end = f"<!-- {name}: begin, generated -->", f"<!-- {name}: end -->"
    before, found, rest = page.partition(begin)
    after = rest.partition(end)[2] if found else "\n"
    return f"{before.rstrip()}\n\n{begin}\n{part.strip()}\n{end}{after}"
