"""Pieces of HTML. Every argument that is text may come from a file and is escaped here."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterable, Mapping, Sequence

from fedrift.report.tables import Cell, Table

UNSEEN = "\N{REPLACEMENT CHARACTER}"


def escape(words: str) -> str:
    """For text and for attributes; what cannot be seen is replaced."""
    seen = (c if c.isprintable() or c in "\n\t" else UNSEEN for c in words)
    return html.escape("".join(seen), quote=True)


def prose(words: str) -> str:
    """For sentences: no line begins with a sign of percent."""
    return escape(words).replace(" %", "&nbsp;%")


def section(key: str, heading: str, *content: str) -> str:
    """`content` is HTML."""
    inside = "\n".join(filter(None, content))
    return f'<section id="{key}" aria-label="{heading}"><h2>{heading}</h2>\n{inside}</section>'


def bullet_list(sentences: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{prose(one)}</li>" for one in sentences) + "</ul>"


def paragraph(words: str) -> str:
    return f'<p class="soft">{prose(words)}</p>'


def toolbar(*pieces: str) -> str:
    """`pieces` are HTML."""
    return f'<div class="tools">{"".join(pieces)}</div>'


def folded(heading: str, *content: str, is_long: bool = False) -> str:
    """`content` is HTML that is shown on demand, and in print unless it is long."""
    kind = ' class="long"' if is_long else ""
    return f"<details{kind}><summary>{escape(heading)}</summary>{''.join(content)}</details>"


def methods_legend(
    methods: Sequence[str],
    colour: Callable[[int], str],
    dash: Callable[[int], str],
    *,
    switches: bool = True,
) -> str:
    """The line of each method, as a button that shows and hides it; nothing for a single one."""
    if len(methods) < 2:
        return ""
    lines = [
        '<svg width="22" height="8" aria-hidden="true"><line x1="0" y1="4" x2="22" y2="4" '
        f'stroke="{colour(i)}" stroke-dasharray="{dash(i)}" stroke-width="3"/></svg>'
        f"{escape(method)}"
        for i, method in enumerate(methods)
    ]
    if not switches:
        keys = "".join(f'<span class="key">{line}</span>' for line in lines)
        return f'<div class="legend">{keys}</div>'
    buttons = "".join(
        f'<button type="button" class="plain" data-method="{i}" aria-pressed="true">{line}</button>'
        for i, line in enumerate(lines)
    )
    return f'<div class="legend" role="group" aria-label="Methods shown">{buttons}</div>'


def choices(name: str, label: str, values: Mapping[str, str], chosen: str) -> str:
    """Buttons of which one is pressed."""
    buttons = "".join(
        f'<button type="button" class="choice" data-set="{name}" data-value="{escape(value)}" '
        f'aria-pressed="{str(value == chosen).lower()}">{escape(words)}</button>'
        for value, words in values.items()
    )
    return f'<span class="set" role="group" aria-label="{escape(label)}">{buttons}</span>'


def select(
    key: str, label: str, entries: Sequence[str] = (), *, first: str = "", filters: str = ""
) -> str:
    """A list to choose from; `filters` names the table whose rows it chooses."""
    listed = f'<option value="">{escape(first)}</option>' if first else ""
    listed += "".join(f'<option value="{i}">{escape(e)}</option>' for i, e in enumerate(entries))
    more = f' data-filters="{filters}"' if filters else ""
    return f'<label>{escape(label)} <select id="{key}"{more}>{listed}</select></label>'


def select_of(key: str, label: str, values: Mapping[str, str]) -> str:
    """A list of values with their words."""
    listed = "".join(f'<option value="{escape(v)}">{escape(w)}</option>' for v, w in values.items())
    return f'<label>{escape(label)} <select id="{key}">{listed}</select></label>'


def chart(
    kind: str, about: str, *, size: str = "", setting: int | None = None, still: str = ""
) -> str:
    """The place of a chart, which the page's script draws; `still` is a picture (HTML) that stands
    there until it has, and in print."""
    where = "" if setting is None else f' data-setting="{setting}"'
    kinds = f"chart {size}".strip()
    drawn = (
        f'<div class="{kinds}" data-chart="{kind}"{where} role="img" '
        f'aria-label="{escape(about)}"></div>'
    )
    return f'<div class="plot">{drawn}<div class="still">{still}</div></div>' if still else drawn


def check_box(key: str, label: str) -> str:
    """Something to switch on."""
    return f'<label><input type="checkbox" id="{key}"> {escape(label)}</label>'


def copyable(key: str, words: str, label: str = "Copy") -> str:
    """Text with a button that copies it."""
    button = f'<button type="button" class="plain" data-copies="{key}">{escape(label)}</button>'
    return f'{button}<pre><code id="{key}">{escape(words)}</code></pre>'


def html_table(table: Table, key: str = "", settings: Sequence[int] = ()) -> str:
    """A table that can be sorted; the names of the rows stay in view. Columns beyond the usual ones
    are shown when they are chosen."""
    fixed = 1 if table.columns[0] == "rank" else 0
    heads = "".join(_heading(table, i, i == fixed) for i in range(len(table.columns)))
    places = [f' data-setting="{place}"' for place in settings] or [""] * len(table.rows)
    rows = "".join(
        f"<tr{place}>{''.join(_cell(c, i, i == fixed, table) for i, c in enumerate(row))}</tr>"
        for row, place in zip(table.rows, places, strict=True)
    )
    name = f' id="{key}"' if key else ""
    return (
        f'{paragraph(table.caption)}{_chooser(table)}<div class="scroll" tabindex="0" '
        f'role="region" aria-label="{escape(f"Table: {table.name}")}"><table{name}>'
        f"<thead>{_over(table)}<tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _is_usual(table: Table, column: int) -> bool:
    return not table.usual or column in table.usual


def _chooser(table: Table) -> str:
    """Boxes that show and hide columns, where some are hidden."""
    if all(_is_usual(table, i) for i in range(len(table.columns))):
        return ""
    boxes = "".join(
        f'<label><input type="checkbox" data-column="{i}"'
        f"{' checked' if _is_usual(table, i) else ''}> {escape(words)}</label>"
        for i, words in enumerate(table.columns)
    )
    return f'<details class="pick"><summary>Columns</summary><div>{boxes}</div></details>'


def _over(table: Table) -> str:
    cells = [
        f'<th class="{"over" if words else "fix"}" colspan="{span}">{escape(words)}</th>'
        for words, span in table.over
    ]
    return f'<tr class="above">{"".join(cells)}</tr>' if cells else ""


def _heading(table: Table, column: int, is_fixed: bool) -> str:
    kinds = [*(["word"] if table.is_word(column) else []), *(["fix"] if is_fixed else [])]
    button = f'<button type="button">{escape(table.columns[column])}</button>'
    hidden = "" if _is_usual(table, column) else " hidden"
    return f'<th scope="col" class="{" ".join(kinds)}"{hidden}>{button}</th>'


def _cell(cell: Cell, column: int, is_fixed: bool, table: Table) -> str:
    kinds = [*(["word"] if table.is_word(column) else []), *(["best"] if cell.is_bold else [])]
    kind = f' class="{" ".join(kinds)}"' if kinds else ""
    value = "" if cell.value is None else f' data-v="{escape(str(cell.value))}"'
    hint = f' title="{escape(cell.hint)}"' if cell.hint else ""
    tag, more = ("th", ' scope="row"') if is_fixed else ("td", "")
    more += "" if _is_usual(table, column) else " hidden"
    return f"<{tag}{more}{kind}{value}{hint}>{escape(cell.text)}</{tag}>"


def image(content: bytes, kind: str, about: str) -> str:
    """A picture inside the page."""
    data = base64.b64encode(content).decode("ascii")
    return f'<figure><img alt="{escape(about)}" src="data:{kind};base64,{data}"></figure>'
