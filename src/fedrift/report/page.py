"""The report as one HTML file that needs nothing else: no server, no network, no fonts.

Tables and sentences stand in the page as text; only the charts need a script. Every text that
comes from a run folder is escaped, and a policy in the page allows no script but its own.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from fedrift.errors import InputError
from fedrift.report.markup import escape

HERE = Path(__file__).parent
SHELL = (HERE / "page.js", HERE / "charts.js")  # unpacks, switches theme, sets up charts
SCRIPTS = (*SHELL, HERE / "heatmaps.js")
STYLE = HERE / "page.css"
LEVEL = 6  # of gzip: 9 takes three times as long for one percent


def library() -> bytes:
    """plotly.js of the installed plotly, without importing it."""
    found = find_spec("plotly")
    places = list(found.submodule_search_locations or ()) if found is not None else []
    for place in places:
        file = Path(place) / "package_data" / "plotly.min.js"
        if file.is_file():
            return file.read_bytes()
    raise InputError("the report needs plotly; install it with: pip install 'fedrift[report]'")


def page(
    title: str,
    body: str,
    numbers: object,
    scripts: Sequence[Path] = SCRIPTS,
    styles: Sequence[Path] = (STYLE,),
) -> str:
    """The whole file."""
    plotly = library()
    style = "".join(file.read_text(encoding="utf-8") for file in styles)
    script = "".join(file.read_text(encoding="utf-8") for file in scripts)
    policy = _policy(script.encode("utf-8"), plotly)
    data = json.dumps(numbers, separators=(",", ":"), allow_nan=False).encode("utf-8")
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="generator" content="fedrift">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)}</title>",
            f"<style>{style}</style></head><body>",
            body,
            f'<script type="text/plain" id="numbers">{_zipped(data)}</script>',
            f'<script type="text/plain" id="library">{_zipped(plotly)}</script>',
            f"<script>{script}</script>",
            "</body></html>\n",
        )
    )


def _zipped(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, LEVEL, mtime=0)).decode("ascii")


def _policy(*scripts: bytes) -> str:
    """The browser runs these scripts only, and asks the network for nothing."""
    hashes = (base64.b64encode(hashlib.sha256(s).digest()).decode("ascii") for s in scripts)
    sources = " ".join(f"'sha256-{h}'" for h in hashes)
    return (
        f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
