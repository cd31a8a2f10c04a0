"""The pages of the site: all in the navigation, links and pictures there, commands understood."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import pytest

import fedrift
import fedrift.core
from fedrift.cli import tree

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
NAVIGATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
LISTED = re.findall(r"([\w/-]+\.md)$", NAVIGATION, flags=re.MULTILINE)
PAGES = sorted(p for p in DOCS.rglob("*.md") if "text" not in p.relative_to(DOCS).parts)
WRITTEN = [p for p in PAGES if "algorithms" not in p.relative_to(DOCS).parts]


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(LISTED) == sorted(p.relative_to(DOCS).as_posix() for p in PAGES)


@pytest.mark.parametrize("page", WRITTEN, ids=lambda p: p.stem)
def test_links_and_pictures_are_there(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), target


def commands(page: Path) -> list[list[str]]:
    """Of the blocks of code that have no language."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = "\n".join(re.findall(r"^```\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL))
    found = re.findall(r"^fedrift .+$", blocks, flags=re.MULTILINE)
    return [shlex.split(line, comments=True)[1:] for line in found]


@pytest.mark.parametrize("page", [*WRITTEN, ROOT / "README.md"], ids=lambda p: p.stem)
def test_commands_are_understood(page: Path) -> None:
    known = tree()
    for name, *words in commands(page):
        command = known.commands[name]  # type: ignore[attr-defined]
        command.make_context(name, words, resilient_parsing=False)


def test_every_argument_and_every_name_of_the_core_has_a_section() -> None:
    page, core = ((DOCS / name).read_text("utf-8") for name in ("api.md", "api-core.md"))
    own = page.partition("\n### run\n")[2].partition("\n### compare\n")[0]
    for name in inspect.signature(fedrift.run).parameters:
        said = own.partition(f"\n##### `{name}`\n")[2]
        assert len(said.strip().split("\n")[0].split()) > 3, name
    sections = re.findall(r"^### (\w+)$", core, flags=re.MULTILINE)
    assert sorted(sections) == sorted(fedrift.core.__all__)
    documented = re.findall(r"^### (\w+)$", page, flags=re.MULTILINE)
    assert {*documented} - {"report"} <= {*fedrift.__all__}
    assert ":::" not in page + core and "--8<--" not in page + core
