"""Draws the pictures of docs/explain.md: `python docs/make_explain.py`."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from fedrift.explain import explain

IMAGES = Path(__file__).parent / "images"
NAMES = ("fedavg", "scaffold", "fedprox", "fedsam", "fedgf", "fedhbm")
COLOURS, WIDTH, MOST = 80, 1000, 80_000  # bytes


def shrink(path: Path) -> None:
    """Few colours and a page's width: the picture has no more to say."""
    picture = Image.open(path).convert("RGB")
    picture = picture.resize(
        (WIDTH, round(WIDTH * picture.height / picture.width)), Image.Resampling.LANCZOS
    )
    # an octree keeps rare colours, which are the arrows; the median cut would grey them out
    small = picture.quantize(COLOURS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    content = io.BytesIO()
    small.save(content, "PNG", optimize=True)
    if content.tell() > MOST:
        raise SystemExit(f"{path} has {content.tell():,} bytes; at most {MOST:,} are wanted")
    path.write_bytes(content.getvalue())


def main() -> None:
    for name in NAMES:
        path = IMAGES / f"explain-{name}.png"
        print(explain(name, path).words)
        shrink(path)


if __name__ == "__main__":
    main()
