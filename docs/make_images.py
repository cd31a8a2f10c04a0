"""Draws the pictures of the documentation from real runs: run it as `make docs-images`.

The picture of a report needs Chromium; without it the old one stays.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from fedrift.cli import code_of
from fedrift.report import write

IMAGES = Path(__file__).resolve().parent / "images"
COMPARISON = """fedavg fedprox:mu=0.3 scaffold --data digits --partition dirichlet --alpha 0.1,1
    --rounds 30 --lr 0.1 --seeds 3 --workers 0 --quiet --out"""
WIDTH, HEIGHT = 1100, 760  # of the picture of a report


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    split = ["partition", "dirichlet:0.1", "--data", "digits", "--clients", "10"]
    _call([*split, "--picture", str(IMAGES / "partition.png")])
    with tempfile.TemporaryDirectory() as place:
        runs, page = Path(place) / "runs" / "compared", Path(place) / "report.html"
        _call(["compare", *COMPARISON.split(), str(runs)])
        write([runs], page, figures=["png"])
        shutil.copy(page.with_name("report-over-rounds.png"), IMAGES / "compared.png")
        shutil.copy(page.with_name("report-differences.png"), IMAGES / "differences.png")
        _screenshot(page, IMAGES / "report.png")


def _call(words: list[str]) -> None:
    if code_of(words):
        sys.exit(1)


def _screenshot(page: Path, picture: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print(f"no chromium: {picture.name} stays as it is", file=sys.stderr)
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        opened.goto(page.as_uri())
        opened.wait_for_selector("html[data-ready=true]")
        opened.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    main()
