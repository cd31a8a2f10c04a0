"""A Markdown extension: LaTeX becomes MathML, which browsers show without a script.

Formulas are written as GitHub reads them: ``$`x_i`$`` in a line, otherwise a fence
```` ```math ```` of its own. What is not LaTeX ends the build.
"""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor
from math_core import LatexError, LatexToMathML

INLINE = r"\$`([^`]+)`\$"
FENCE = re.compile(r"^```math\n(.+?)\n```$", flags=re.MULTILINE | re.DOTALL)
CONVERTER = LatexToMathML(fancy_error=False)


def mathml(latex: str, display: bool) -> str:
    """The formula as MathML; an error names it."""
    try:
        return CONVERTER.convert_with_local_state(latex, displaystyle=display)
    except LatexError as error:
        raise ValueError(f"not a formula: {latex}\n{error}") from error


class Fences(Preprocessor):
    """Before code fences are read."""

    def run(self, lines: list[str]) -> list[str]:
        def shown(found: re.Match[str]) -> str:
            html = f'<div class="math">{mathml(found[1], display=True)}</div>'
            return f"\n{self.md.htmlStash.store(html)}\n"

        return FENCE.sub(shown, "\n".join(lines)).split("\n")


class Inline(InlineProcessor):
    """Before code spans are read."""

    def handleMatch(self, m: re.Match[str], data: str) -> tuple[Element | str, int, int]:
        return self.md.htmlStash.store(mathml(m[1], display=False)), m.start(0), m.end(0)


class Formulas(Extension):
    """`markdown_extensions: [mathml]`, with this folder on the path."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(Fences(md), "math-fence", 27)
        md.inlinePatterns.register(Inline(INLINE, md), "math-inline", 195)


def makeExtension(**settings: object) -> Formulas:
    """What Markdown asks an extension's module for."""
    return Formulas(**settings)
