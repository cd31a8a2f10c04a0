"""The story as one picture for papers and slides: a round under the lens, and the whole way."""

from __future__ import annotations

import math
import re
import textwrap
from typing import TYPE_CHECKING, Any

from fedrift.explain.captions import Texts, plain
from fedrift.explain.frames import climb, pieces, verdict
from fedrift.explain.story import Story, Turn
from fedrift.explain.terrain import Point, grid
from fedrift.figures.style import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


CLIENTS = COLOURS[:2]
TERMS = ("#AA3377", "#E69F00")  # first and further corrections
EXTRA = COLOURS[2]
INK, GREY, STAR = "#1b1f24", "#8a929b", "#f0b400"
SMALL = 9.0
WIDE, ABOVE, BELOW = 11, 0.95, 0.6  # inches: the figure, its heading, its keys
PIT = "narrow pit"
CLOSE = 0.25  # of the map's width: what is farther from the shown round is cut off


def draw(story: Story, texts: Texts) -> Figure:
    """Left one round with every local step taken apart, right all rounds and where they lead."""
    figure, (left, right) = new_figure(2, sharey=False)
    low, high = story.box()
    tall = 1.95 + 4.7 * (high[1] - low[1]) / (high[0] - low[0])
    figure.set_size_inches(WIDE, tall)
    rect = (0, BELOW / tall, 1, 1 - (BELOW + ABOVE) / tall)
    figure.set_layout_engine("constrained", rect=rect)
    turn = telling_turn(story)
    _map(left, story, *_lens(story, turn))
    _map(right, story, *story.box())
    _draw_round(left, story, texts, turn)
    _draw_path(right, story)
    left.set_title(f"Round {turn.number}, step by step", fontsize=11)
    right.set_title(f"{len(story.turns)} rounds, and where they lead", fontsize=11)
    _heading(figure, story, texts)
    _legend(figure, story, texts, turn)
    return figure


def telling_turn(story: Story) -> Turn:
    """The first round in which everything the algorithm adds is at work."""
    most = max(_variety(turn) for turn in story.turns)
    candidates = [turn for turn in story.turns if _variety(turn) == most]
    places = story.task.terrain.places
    if PIT in places and not _meet(candidates[0]):  # where it is decided whether it falls in
        return min(candidates, key=lambda turn: math.dist(turn.sent, places[PIT]))
    return candidates[0]


def _variety(turn: Turn) -> int:
    strides = [stride for visit in turn.visits for stride in visit.strides]
    pieces = {push.piece for stride in strides for push in stride.pushes if any(push.vector)}
    return len(pieces) + int(_meet(turn)) + int(math.dist(turn.mean, turn.end) > 1e-9)


def _meet(turn: Turn) -> bool:
    """Clients take gradients at a common point."""
    strides = [stride for visit in turn.visits for stride in visit.strides]
    return len({stride.looks[-1].at for stride in strides if stride.looks}) < len(strides)


def _lens(story: Story, turn: Turn) -> tuple[Point, Point]:
    """The part of the plane around a round, with the minimum if it is near; sides as the whole."""
    low, high = story.box()
    wide, tall = high[0] - low[0], high[1] - low[1]
    points = [turn.sent, turn.end, turn.mean]
    for visit in turn.visits:
        points += [stride.end for stride in visit.strides]
        points += [at for k in range(len(visit.strides)) if (at := climb(visit, k)) is not None]
    if min(math.dist(story.lowest, p) for p in points) < CLOSE * wide:
        points.append(story.lowest)
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    half = max((max(xs) - min(xs)) / wide, (max(ys) - min(ys)) / tall, 0.12) * 0.5 + 0.05
    x, y = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2
    return (x - half * wide, y - half * tall), (x + half * wide, y + half * tall)


def _map(axis: Axes, story: Story, low: Point, high: Point) -> None:
    terrain = story.task.terrain
    x, y = terrain.axes(low, high)
    losses = terrain.losses(grid(x, y))
    ours = terrain.losses(grid(*terrain.axes(*story.box())))
    across, up = x.numpy(), y.numpy()
    most = max(float(loss.quantile(0.9) - loss.min()) ** 0.5 for loss in ours)
    both = ((losses[0] + losses[1]) / 2 - float((ours[0] + ours[1]).min()) / 2).clamp_min(0).sqrt()
    levels = [most / 18 * k for k in range(24)]
    axis.contourf(across, up, both.numpy(), levels, cmap="Greys_r", alpha=0.22, extend="max")
    for loss, mine, colour in zip(losses, ours, CLIENTS, strict=True):
        roots = (loss - float(mine.min())).clamp_min(0).sqrt().numpy()
        size = min(0.28, float(mine.sub(mine.min()).quantile(0.9)) ** 0.5 / 8)
        rings = [size * (0.6 + k) for k in range(9)]
        axis.contour(across, up, roots, rings, colors=colour, linewidths=0.7, alpha=0.45)
    for bottom, colour in zip(story.bottoms, CLIENTS, strict=True):
        axis.plot(*bottom, "o", markersize=6, markerfacecolor="white", color=colour)
    axis.plot(*story.lowest, "*", markersize=17, color=STAR, markeredgecolor=INK, zorder=6)
    axis.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xlabel="$w_1$", ylabel="$w_2$")
    axis.set_aspect("equal")
    axis.tick_params(labelsize=SMALL)


def _arrow(axis: Axes, start: Point, end: Point, colour: str, width: float = 1.6) -> None:
    style: dict[str, Any] = {"arrowstyle": "-|>", "color": colour, "lw": width}
    style |= {"shrinkA": 0, "shrinkB": 0, "mutation_scale": 8 + 2 * width}
    axis.annotate("", end, start, arrowprops=style, zorder=5, annotation_clip=True)


def _draw_round(axis: Axes, story: Story, texts: Texts, turn: Turn) -> None:
    order = pieces(story, texts)
    for visit in turn.visits:
        colour, start = CLIENTS[visit.client], turn.sent
        for k, stride in enumerate(visit.strides):
            at = climb(visit, k)
            if at is not None:
                line = {"color": colour, "linestyle": ":", "linewidth": 1.1, "alpha": 0.8}
                axis.plot(*zip(start, at, strict=True), **line)  # type: ignore[arg-type]
                axis.plot(*at, "D", markersize=4, markerfacecolor="white", color=colour, alpha=0.8)
            _stride(axis, start, stride.arrows(), order, colour)
            axis.plot(*stride.end, "o", markersize=4.5, color=colour, zorder=6)
            start = stride.end
        for look in visit.looks[:1] if not visit.strides else []:
            _arrow(axis, look.at, _plus(look.at, look.gradient, -story.task.lr), colour)
    ends = [visit.strides[-1].end for visit in turn.visits if visit.strides]
    if len(ends) > 1:
        axis.plot(*zip(*ends, strict=True), color=GREY, linestyle="--", linewidth=1)
    moved = math.dist(turn.mean, turn.end) > 1e-9
    _arrow(axis, turn.sent, turn.mean, GREY if moved else INK, 2.2)
    if moved:
        _arrow(axis, turn.sent if texts.replaces else turn.mean, turn.end, EXTRA, 2.2)
    for place, name in ((turn.sent, "$w^t$"), (turn.end, "$w^{t+1}$")):
        axis.plot(*place, "o", markersize=7, color=INK, markeredgecolor="white", zorder=7)
        axis.annotate(name, place, (7, -13), textcoords="offset points", fontsize=12, zorder=8)


def _stride(
    axis: Axes, start: Point, arrows: list[tuple[str, Point]], order: list[str], colour: str
) -> None:
    """Head to tail: the gradient in the client's colour, each correction in its own."""
    for name, vector in arrows:
        end = _plus(start, vector)
        if math.hypot(*vector) > 1e-6:
            own = colour if name not in order else TERMS[min(order.index(name), 1)]
            _arrow(axis, start, end, own, 1.9 if name in order else 1.5)
        start = end


def _plus(a: Point, b: Point, scale: float = 1.0) -> Point:
    return a[0] + scale * b[0], a[1] + scale * b[1]


def _draw_path(axis: Axes, story: Story) -> None:
    """All rounds: the server's models, FedAvg's, and where both come to rest."""
    for client, (bottom, colour) in enumerate(zip(story.bottoms, CLIENTS, strict=True), start=1):
        words: dict[str, Any] = {"color": colour, "ha": "center", "fontsize": SMALL}
        axis.annotate(
            f"minimum of client {client}", bottom, (0, 7), "data", "offset points", **words
        )
    for turn in story.turns:
        for visit in turn.visits:
            walked = [turn.sent, *(stride.end for stride in visit.strides)]
            colour = CLIENTS[visit.client]
            axis.plot(*zip(*walked, strict=True), color=colour, linewidth=0.9, alpha=0.35)
    if story.other is not None:
        points = story.other.points
        axis.plot(*zip(*points, strict=True), "o--", color=GREY, markersize=3.5, linewidth=1.5)
        if story.other.limit is not None:
            axis.plot(*story.other.limit, "s", markersize=9, markerfacecolor="white", color=GREY)
    server = [story.turns[0].sent, *(turn.end for turn in story.turns)]
    axis.plot(*zip(*server, strict=True), "o-", color=INK, markersize=4, linewidth=1.9, zorder=5)
    if any(math.dist(turn.shown, turn.end) > 1e-9 for turn in story.turns):
        axis.plot(*zip(*story.path.points, strict=True), "D:", color=EXTRA, markersize=4, zorder=6)
    if story.path.limit is not None:
        axis.plot(
            *story.path.limit, "o", markersize=10, markerfacecolor="none", color=INK, zorder=7
        )


def _heading(figure: Figure, story: Story, texts: Texts) -> None:
    """Title, rules and verdict, above the panels."""
    rules = typeset(f"client:  {plain(texts.step)}\nserver:  {plain(texts.server)}")
    tall = figure.get_figheight()
    title: dict[str, Any] = {"fontsize": 16, "fontweight": "bold", "color": INK}
    figure.text(0.012, 1 - 0.08 / tall, texts.title, va="top", **title)
    figure.text(0.012, 1 - 0.42 / tall, rules, fontsize=10.5, va="top", color=INK, linespacing=1.4)
    ends = "\n".join(textwrap.wrap(verdict(story, texts), 64))
    figure.text(0.99, 1 - 0.1 / tall, ends, fontsize=10, va="top", ha="right", color="#59636e")


HIGH, LOW = str.maketrans("ᵗ⁺⁻¹²", "t+-12"), str.maketrans("ᵢₐₛ₁₂", "ias12")


def typeset(rule: str) -> str:
    """Small letters as real indices: those of the font cannot be read in print."""
    rule = re.sub("[ᵗ⁺⁻¹²]+(?:(?<=⁻)τ)?", lambda m: f"$^{{{m[0].translate(HIGH)}}}$", rule)
    rule = re.sub("[ᵢₐₛ₁₂]+", lambda m: f"$_{{{m[0].translate(LOW)}}}$", rule)
    return re.sub(r"(?<=[a-zρ])_([a-z])\b", r"$_{\1}$", rule)


def _legend(figure: Figure, story: Story, texts: Texts, turn: Turn) -> None:
    from matplotlib.lines import Line2D

    def key(colour: str, label: str, **style: Any) -> Line2D:
        return Line2D([], [], color=colour, label=label, **style)

    keys = [key(c, f"client {i}") for i, c in enumerate(CLIENTS, start=1)]
    for i, piece in enumerate(pieces(story, texts)):
        keys.append(key(TERMS[min(i, 1)], typeset(texts.term(piece)[0]), linewidth=2.4))
    if any(climb(v, k) is not None for v in turn.visits for k in range(len(v.strides))):
        open_ = {"linestyle": ":", "marker": "D", "markersize": 4, "markerfacecolor": "white"}
        keys.append(key("#59636e", "where the gradient is taken", **open_))
    if any(math.dist(turn.mean, turn.end) > 1e-9 for turn in story.turns):
        keys.append(key(EXTRA, texts.extra or "server's own step", linewidth=2.4))
    if sum(bool(visit.strides) for visit in turn.visits) > 1:
        keys.append(key(GREY, "between the local models", linestyle="--", linewidth=1))
    keys.append(key(INK, "server", marker="o", markersize=4))
    if story.other is not None:
        keys.append(key(GREY, "FedAvg", linestyle="--", marker="o", markersize=3.5))
    rings = {"linestyle": "", "markerfacecolor": "none"}
    keys.append(key(INK, "where it ends", marker="o", markersize=9, **rings))
    if story.other is not None:
        keys.append(key(GREY, "where FedAvg ends", marker="s", markersize=8, **rings))
    star = {"marker": "*", "markersize": 13, "linestyle": "", "markeredgecolor": INK}
    keys.append(key(STAR, "common minimum", **star))
    figure.legend(
        handles=keys,
        loc="lower center",
        ncols=(len(keys) + 1) // 2,
        fontsize=9.5,
        frameon=False,
    )
