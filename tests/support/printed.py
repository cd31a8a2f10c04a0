"""The commands and the Python that README and documentation print, page by page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    str(file.relative_to(ROOT)): file
    for file in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
} | {str(file.relative_to(ROOT)): file for file in sorted((ROOT / "docs" / "guides").glob("*.md"))}
PROGRAMS = (
    "fedrift",
    "flower-superlink",
    "flower-supernode",
    "flwr",
    "make",
    "pip",
    "python",
    "ssh-keygen",
    "tensorboard",
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """What stands between two fences."""

    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """One text a command, without comments; empty if these are none."""
        if self.language not in ("", "bash", "sh", "console", "shell"):
            return []
        lines = self.text.replace("\\\n", " ").splitlines()
        found = [" ".join(re.sub(r"\s#.*", "", line).split()) for line in lines]
        found = [line.removeprefix("$ ") for line in found if line]
        is_shell = any(line.split()[0] in PROGRAMS for line in found)
        return found if is_shell else []


def blocks(page: str) -> list[Block]:
    text = PAGES[page].read_text(encoding="utf-8")
    return [Block(*found) for found in FENCE.findall(text)]


def commands(page: str) -> list[str]:
    return [command for block in blocks(page) for command in block.commands]


def texts(page: str, language: str) -> list[str]:
    """The blocks of a language."""
    return [block.text for block in blocks(page) if block.language == language]
