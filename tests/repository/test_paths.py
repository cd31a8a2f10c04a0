"""Files and folders of the repository that documents and the Makefile name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMING = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
# A path of the repository, not the end of a longer one such as `build/docs` or an address.
NAMED = re.compile(r"(?<![\w./~-])((?:tests|src|benchmarks|docs)/[\w./*-]*)")


def named(text: str) -> set[str]:
    """The paths in a text, without the full stop of a sentence."""
    return {found.rstrip(".") for found in NAMED.findall(text)}


def missing(text: str) -> list[str]:
    """A `*` stands for at least one file."""
    return sorted(path for path in named(text) if not any(ROOT.glob(path.rstrip("/"))))


@pytest.mark.parametrize("file", NAMING, ids=lambda file: str(file.relative_to(ROOT)))
def test_paths_are_there(file: Path) -> None:
    assert missing(file.read_text(encoding="utf-8")) == []


def test_no_merge_of_branches_is_left_half_done() -> None:
    texts = [*NAMING, ROOT / "CHANGELOG.md"]
    marks = re.compile(r"^(<{7}|={7}|>{7})( |$)", flags=re.MULTILINE)
    assert [file.name for file in texts if marks.search(file.read_text(encoding="utf-8"))] == []


def walk() -> list[str]:
    """The steps of one round as CONTRIBUTING tells them."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    part = text.partition("## One round")[2].partition("\n## ")[0]
    return re.findall(r"^\d+\. .+$", part, flags=re.MULTILINE)


@pytest.mark.parametrize("step", walk(), ids=lambda step: step.partition(".")[0])
def test_the_walk_names_what_is_there(step: str) -> None:
    """Every file of a step exists, and every name in it is one that its files define or use."""
    quoted = re.findall(r"`([\w./]+)`", step)
    sources = [ROOT / "src" / "fedrift" / name for name in quoted if name.endswith(".py")]
    assert sources and all(path.is_file() for path in sources)
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    names = [name for name in quoted if name.isidentifier()]
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []


def test_a_path_that_is_not_there_is_found() -> None:
    text = (
        "See `tests/core` and src/fedrift/api.py. Not `tests/gone.py`, docs/*.md or build/docs/x."
    )
    assert named(text) == {"tests/core", "src/fedrift/api.py", "tests/gone.py", "docs/*.md"}
    assert missing(text) == ["tests/gone.py"]
    assert missing("tests/*/gone_*.py") == ["tests/*/gone_*.py"]
