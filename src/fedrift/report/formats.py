"""Tables as Markdown, LaTeX (booktabs) and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence

from fedrift.report.tables import Cell, Table

LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
    "–": "--",
    "·": r"$\cdot$",
    "α": r"$\alpha$",
    "…": r"\ldots{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def markdown(tables: Sequence[Table]) -> str:
    """GitHub's tables, one after the other; wider headings become part of the columns'."""
    return "\n".join(_markdown(table) for table in tables)


def _markdown(table: Table) -> str:
    headings = [_plain(h) for h in full_headings(table)]
    marks = ["---" if table.is_word(i) else "---:" for i in range(len(headings))]
    lines = [headings, marks, *([_strong(cell) for cell in row] for row in table.rows)]
    rows = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{_plain(table.caption)}\n\n{rows}\n"


def _strong(cell: Cell) -> str:
    return f"**{_plain(cell.text)}**" if cell.is_bold else _plain(cell.text)


def _plain(words: str) -> str:
    return re.sub(r"([\\`*_|<>\[\]])", r"\\\1", _one_line(words))


def full_headings(table: Table) -> list[str]:
    """The columns' headings, with the wider one above each if there are several of these."""
    if len(table.over) <= 2:
        return list(table.columns)
    above = [word for word, span in table.over for _ in range(span)]
    return [f"{a}: {c}" if a else c for a, c in zip(above, table.columns, strict=True)]


def latex(tables: Sequence[Table]) -> str:
    """Needs \\usepackage{booktabs}."""
    return "% needs \\usepackage{booktabs}\n" + "\n".join(_latex(table) for table in tables)


def _latex(table: Table) -> str:
    columns = "".join("l" if table.is_word(i) else "r" for i in range(len(table.columns)))
    lines = [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{_tex(table.caption)}}}",
        rf"  \label{{tab:{table.name}}}",
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        *_over(table),
        f"    {' & '.join(map(_tex, table.columns))} \\\\",
        r"    \midrule",
        *(f"    {' & '.join(map(_bold, row))} \\\\" for row in table.rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _over(table: Table) -> list[str]:
    if not table.over:
        return []
    cells = [rf"\multicolumn{{{span}}}{{c}}{{{_tex(word)}}}" for word, span in table.over]
    rules: list[str] = []
    column = 1
    for word, span in table.over:
        if word:
            rules.append(rf"\cmidrule(lr){{{column}-{column + span - 1}}}")
        column += span
    return [f"    {' & '.join(cells)} \\\\", f"    {' '.join(rules)}"]


def _bold(cell: Cell) -> str:
    return rf"\textbf{{{_tex(cell.text)}}}" if cell.is_bold else _tex(cell.text)


def _tex(words: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in _one_line(words))


def _one_line(words: str) -> str:
    """Names come from files: no line breaks, no control characters."""
    return "".join(letter for letter in " ".join(words.split()) if letter.isprintable())


def comma_separated(table: Table) -> str:
    """The texts of one table, with the full precision of every number in a column of its own."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    headings = full_headings(table)
    exact = [i for i in range(len(headings)) if _is_rounded(table, i)]
    writer.writerow([*headings, *(f"{headings[i]}, exact" for i in exact)])
    for row in table.rows:
        values = ["" if row[i].value is None else repr(row[i].value) for i in exact]
        writer.writerow([*(_harmless(cell.text) for cell in row), *values])
    return text.getvalue()


def _is_rounded(table: Table, column: int) -> bool:
    return any(
        isinstance(row[column].value, float) and row[column].text != str(row[column].value)
        for row in table.rows
    )


def _harmless(words: str) -> str:
    """A spreadsheet takes what starts with one of these signs for a formula."""
    line = _one_line(words)
    return f"'{line}" if line.startswith(("=", "@", "+", "-")) and not _is_number(line) else line


def _is_number(line: str) -> bool:
    return re.match(r"[+-]?[\d.]", line) is not None


WRITERS: dict[str, tuple[str, Callable[[Sequence[Table]], str]]] = {
    "md": (".md", markdown),
    "latex": (".tex", latex),
}
