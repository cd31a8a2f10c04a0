"""The picture of the comparison: bars on a logarithmic scale, fedrift = 1."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

from peers.environments import PEERS
from peers.figures import Figures

COLOURS = {
    "bare": "#9aa0a6", "flower": "#e6a100", "pfl": "#7b5ea7", "fedlab": "#c2543d",
    "fluke": "#3f7fbf",
}  # fmt: skip
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200)
HALVES = (("visit", "One client visit, steady state"), ("total", "Whole command"))


def draw(figures: Figures, path: Path) -> None:
    """One panel per measure; a group of bars per row of the table."""
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure, panels = plt.subplots(1, 2, figsize=(9, 5.2), sharey=True, layout="constrained")
    names = list(COLOURS)
    step = len(names) + 1.5
    for panel, (what, title) in zip(panels, HALVES, strict=True):
        for group, row in enumerate(figures.rows):
            for place, peer in enumerate(names):
                ratio = figures.ratio(row, peer, what)
                if ratio is None:
                    continue
                y = group * step + place
                panel.barh(
                    y, ratio - 1, left=1, height=0.85, color=COLOURS[peer],
                    label=PEERS[peer].title if group == 0 else None,
                )  # fmt: skip
                panel.text(max(ratio, 1) * 1.05, y, f"{ratio:.2g}", va="center", fontsize=7)
        panel.axvline(1, color="#00796b", linewidth=2, label="fedrift")
        panel.set_xscale("log")
        low, high = panel.get_xlim()
        low, high = min(low, 0.9), high * 1.3
        shown = [tick for tick in TICKS if low <= tick <= high]
        panel.set_xticks(shown, [f"{tick:g}" for tick in shown])
        panel.minorticks_off()
        panel.set_xlim(low, high)
        panel.set_xlabel("time ÷ fedrift's")
        panel.set_title(title, fontsize=10)
        panel.tick_params(axis="y", length=0)
    middle = (len(names) - 1) / 2
    panels[0].set_yticks(
        [group * step + middle for group in range(len(figures.rows))],
        [f"({row}) {figures.work(row)['title']}" for row in figures.rows],
    )
    panels[0].invert_yaxis()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
