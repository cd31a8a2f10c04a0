"""Pages of reports, taken apart for tests."""

from __future__ import annotations

import base64
import gzip
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from fedrift.report import Written, write
from tests.support.run_folders import grid


class Page(HTMLParser):
    """The texts of a page, its tags, and the scripts that a browser would run."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[str | None, str]] = []
        self.inside = ""
        self.feed(path.read_text(encoding="utf-8"))
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts.append((self.tags[-1][1].get("id"), data))
        elif self.inside != "style":
            self.texts.append(data)

    def unpacked(self, key: str) -> bytes:
        (packed,) = [text for name, text in self.scripts if name == key]
        return gzip.decompress(base64.b64decode(packed))


def made(tmp_path: Path, *runs: Any, **options: Any) -> tuple[Written, Page]:
    path = tmp_path / "report.html"
    written = write(runs or [grid(tmp_path / "runs")], path, **options)
    return written, Page(path)
