"""Draws the pictures of the documentation from real runs: run it as `make docs-images`.

    python docs/make_images.py [front|explain|timeline|microscope ...]

The picture of a report needs Chromium, those of the microscope MNIST in the folder FEDRIFT_DATA;
without them the old ones stay. The microscope's runs take long: they are kept in build/microscope,
and one that was interrupted goes on.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path

from PIL import Image

from fedrift.cli import code_of
from fedrift.explain import explain
from fedrift.report import write
from fedrift.watch.server import WatchServer

IMAGES = Path(__file__).resolve().parent / "images"
KEPT = IMAGES.parents[1] / "build" / "microscope"
COMPARISON = """fedavg fedprox:mu=0.3 scaffold --data digits --partition dirichlet --alpha 0.1,1
    --clients 20 --per-round 10 --rounds 60 --epochs 5 --batch-size 32 --seeds 3 --quiet --out"""
WIDTH, HEIGHT = 1160, 940  # of the picture of a report
EXPLAINED = ("fedavg", "scaffold", "fedprox", "fedsam", "fedgf", "fedhbm")
COLOURS, PAGE, MOST = 80, 1160, 120_000  # of a shrunk picture: colours, pixels across, bytes

# One class per client, a tenth of them in each round; docs/analysis.md shows these lines.
TASK = """--data mnist:train=10000,test=1000 --partition hsu:0 --model cnn --clients 100
    --per-round 10 --batch-size 20 --lr 0.05 --rounds 60 --workers 0 --quiet --out"""
# FedGF's threshold is a distance, and local models end some 0.6 away here: 0.2 is passed always
FLAT = ("fedavg", "fedsam", "fedasam", "fedgf:threshold=0.7")
LOOKED_AT = {
    "hessian,sharpness --images 256 --clients 3 --steps 80": (
        FLAT,
        ("hessian-eigenvalues", "hessian-density", "sharpness-rises", "sharpness-discrepancy"),
    ),
    "classes": (("fedavg", "fed3r"), ("classes-recency", "classes-over-rounds")),
}


def front() -> None:
    split = ["partition", "dirichlet:0.1", "--data", "digits", "--clients", "10"]
    _call([*split, "--picture", str(IMAGES / "partition.png")])
    with tempfile.TemporaryDirectory() as place:
        runs, page = Path(place) / "runs" / "compared", Path(place) / "report.html"
        _call(["compare", *COMPARISON.split(), str(runs)])
        write([runs], page, figures=["png"])
        shutil.copy(page.with_name("report-over-rounds.png"), IMAGES / "compared.png")
        shutil.copy(page.with_name("report-differences.png"), IMAGES / "differences.png")
        _screenshot(page.as_uri(), IMAGES / "report.png")
        with WatchServer(runs) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            _screenshot(server.address, IMAGES / "watch.png", height=850)
            server.shutdown()


def explained() -> None:
    for name in EXPLAINED:
        path = IMAGES / f"explain-{name}.png"
        print(explain(name, path).words)
        shrink(path, path)


def timelines() -> None:
    """The pictures of docs/guides/time.md."""
    runs = {
        "drop": ["fedavg", "--rounds", "12", "--late", "drop:1.2"],
        "fedbuff": ["fedbuff:buffer=3", "--rounds", "20"],
    }
    for name, words in runs.items():
        with tempfile.TemporaryDirectory() as folder:
            out, picture = str(Path(folder) / "run"), str(IMAGES / f"timeline-{name}.png")
            task = ["--clients", "12", "--per-round", "5", "--devices", "lognormal:1"]
            _call(["run", *words, *task, "--workers", "0", "--quiet", "--out", out])
            _call(["timeline", out, "--rounds", "1-3", "--out", picture])


def microscope() -> None:
    if "FEDRIFT_DATA" not in os.environ:
        print("no FEDRIFT_DATA: the microscope's pictures stay as they are", file=sys.stderr)
        return
    for name in (*FLAT, "fed3r"):
        _call(["run", name, *TASK.split(), str(KEPT / _plain(name))])
    for i, (what, (names, figures)) in enumerate(LOOKED_AT.items()):
        out = KEPT / f"figures-{i}"
        folders = [str(KEPT / _plain(name)) for name in names]
        options = ["--figures", "png", "--out", str(out)]
        _call(["analyse", *folders, "--what", *what.split(), *options])
        for figure in figures:
            shrink(out / f"{figure}.png", IMAGES / f"{figure}.png")


def _plain(name: str) -> str:
    return name.partition(":")[0]


def shrink(path: Path, to: Path) -> None:
    """Few colours and at most a page's width: the picture has no more to say."""
    picture = Image.open(path).convert("RGB")
    wide = min(PAGE, picture.width)
    size = wide, round(wide * picture.height / picture.width)
    picture = picture.resize(size, Image.Resampling.LANCZOS)
    # an octree keeps rare colours, which are the arrows; the median cut would grey them out
    small = picture.quantize(COLOURS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    content = io.BytesIO()
    small.save(content, "PNG", optimize=True)
    if content.tell() > MOST:
        raise SystemExit(f"{path} has {content.tell():,} bytes; at most {MOST:,} are wanted")
    to.write_bytes(content.getvalue())


def _call(words: list[str]) -> None:
    if code_of(words):
        sys.exit(1)


def _screenshot(page: str, picture: Path, height: int = HEIGHT) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        print(f"no chromium: {picture.name} stays as it is", file=sys.stderr)
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        opened = browser.new_page(viewport={"width": WIDTH, "height": height})
        opened.goto(page)
        opened.wait_for_selector("html[data-ready=true]")
        opened.wait_for_timeout(2000)  # charts are drawn when they are near
        opened.screenshot(path=picture)
        browser.close()
    shrink(picture, picture)


PARTS = {
    "front": front,
    "explain": explained,
    "timeline": timelines,
    "microscope": microscope,
}

if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for chosen in sys.argv[1:] or PARTS:
        PARTS[chosen]()
