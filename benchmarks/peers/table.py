"""Writes the table, the targets and the picture of results.json into docs/performance.md.

python benchmarks/peers/table.py [results.json]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import page
from peers.curves import TOLERANCE
from peers.environments import PEERS
from peers.figures import OURS, Figures
from peers.picture import draw
from peers.targets import NAMED, faster_than_all

DOCS = Path(__file__).resolve().parents[2] / "docs"


def main() -> None:
    given = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("results.json")
    figures = Figures.read(given)
    draw(figures, DOCS / "images" / "peers.png")
    page.write("peers", "\n".join(text(figures)))


def text(figures: Figures) -> Iterator[str]:
    yield "## fedrift and its peers\n"
    yield from _introduction(figures)
    yield "\n![Time per client visit and of the whole command](images/peers.png)\n"
    yield from _table(figures)
    yield "\n### Targets\n"
    yield from _targets(figures)


def _introduction(figures: Figures) -> Iterator[str]:
    machine, (usual, most) = figures.content["machine"], figures.others
    yield (
        f"Measured on {machine['cores']} cores ({machine['processor']}, "
        f"{machine['memory_bytes'] / 2**30:.0f} GB, {machine['system']}, "
        f"Python {machine['python']}) by `benchmarks/peers/run.py`, which makes each library's "
        "environment, runs all in turns and checks that they did the same work; "
        "`benchmarks/README.md` says how each is set up. During a run, other processes kept about "
        f"{100 * usual:.0f} % of a core busy (median; at most {100 * most:.0f} %). Versions: "
        + ", ".join(f"{name} {number}" for name, number in figures.content["versions"].items())
        + ".\n"
    )
    for row in figures.rows:
        work = figures.work(row)
        yield (
            f"- **({row})** {work['title']} (`{work['model']}`, "
            f"{'×'.join(map(str, work['shape']))}): {work['clients']:,} clients × "
            f"{work['samples']} samples, {work['cohort']} per round, batch {work['batch']}, "
            f"one epoch, {work['rounds']} rounds, each evaluated on 2,000 samples"
        )


def _table(figures: Figures) -> Iterator[str]:
    yield (
        "*Visit*: wall time of a round in steady state ÷ clients in it. *Start*: from the command "
        "to the first round. *Total*: the whole command, imports included. *Memory*: peak, "
        "anonymous and shared, of all processes. *Loss*: mean distance of the loss curve from "
        f"fedrift's, as a part of its descent (equal work: < {100 * TOLERANCE:.0f} %; in brackets "
        "what a fifth fewer local steps would give). Medians of the repeats, with least and most; "
        "without these there is one repeat.\n"
    )
    heads = "visit, ms", "÷ fedrift", "start, s", "total, s", "÷ fedrift", "memory, MB", "loss"
    yield f"| | library | {' | '.join(heads)} |"
    yield f"|---|---|{'--:|' * len(heads)}"
    for row in figures.rows:
        for peer in PEERS:
            yield (
                f"| {'(' + row + ')' if peer == next(iter(PEERS)) else ''} | "
                + " | ".join(_cells(figures, row, peer))
                + " |"
            )


def _cells(figures: Figures, row: str, peer: str) -> list[str]:
    about = PEERS[peer]
    title = f"**{about.title}**" if peer == OURS else about.title
    known = figures.known.get((row, peer))
    if known is None:
        missing = "not in it" if row in about.lacks else figures.errors.get((row, peer), "–")
        return [title, f"{missing.replace('|', '/')}", "", "", "", "", "", ""]
    spread = f" ({_ms(known.low)}–{_ms(known.high)})" if known.repeats > 1 else ""
    ratios = [figures.ratio(row, peer, what) for what in ("visit", "total")]
    return [
        f"{title}, {about.processes}",
        f"{_ms(known.visit)}{spread}",
        "–" if ratios[0] is None else f"{ratios[0]:.2f}",
        f"{known.start:.1f}",
        f"{known.total:.1f}",
        "–" if ratios[1] is None else f"{ratios[1]:.2f}",
        f"{known.peak_bytes / 1e6:,.0f}",
        _loss(figures, row, peer),
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"


def _loss(figures: Figures, row: str, peer: str) -> str:
    if peer == OURS:
        less = figures.distance(row, "a fifth less work")
        return "0" if less is None else f"0 ({100 * less:.1f} %)"
    distance = figures.distance(row, peer)
    if distance is None:
        return "–"
    text = f"{100 * distance:.1f} %"
    return text if distance < TOLERANCE else f"**{text}, differs**"


def _targets(figures: Figures) -> Iterator[str]:
    yield "| target | measured | |"
    yield "|---|--:|---|"
    for target in NAMED:
        measured = target.measured(figures)
        if measured is None:
            yield f"| {target.says} | – | not measured |"
            continue
        yield f"| {target.says} | {measured:.2f} | {_verdict(target.is_met(measured))} |"
    for says, ratio, closest in faster_than_all(figures):
        says = f"{says}: faster than every library; closest {closest}"
        yield f"| {says} | {ratio:.2f} | {_verdict(ratio > 1)} |"


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "**falls short**"


if __name__ == "__main__":
    main()
