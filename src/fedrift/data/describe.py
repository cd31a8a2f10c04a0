"""How uneven a partition is, as numbers and as a picture: sizes, labels, distance to all labels."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedrift.core.plain_files import write_file
from fedrift.data.assignment import Floats, Ints, Partition
from fedrift.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


LARGEST = 4  # classes named in a client's row of the table


@dataclass(frozen=True, eq=False)
class Statistics:
    """`counts` is clients × classes; everything else follows from it."""

    name: str
    seed: int
    digest: str
    note: str
    counts: Ints

    @property
    def sizes(self) -> Ints:
        return self.counts.sum(axis=1)

    @property
    def classes_per_client(self) -> Ints:
        """How many classes each client has at least one sample of."""
        return (self.counts > 0).sum(axis=1)

    @property
    def shares(self) -> Floats:
        """Label distribution of each client; all zero for an empty one."""
        return self.counts / np.maximum(self.sizes, 1)[:, None]

    @property
    def distances(self) -> Floats:
        """Total variation between each client's labels and all labels: 0 = the same, 1 = disjoint.

        An empty client has no labels: nan.
        """
        overall = self.counts.sum(axis=0) / self.counts.sum()
        distance = np.abs(self.shares - overall).sum(axis=1) / 2
        return np.where(self.sizes > 0, distance, np.nan)

    @property
    def mean_distance(self) -> float:
        """Mean total variation distance of the clients that hold anything."""
        return float(np.nanmean(self.distances))

    @property
    def size_spread(self) -> float:
        """Standard deviation of the sizes over their mean: 0 = all equal."""
        return float(self.sizes.std() / self.sizes.mean())

    def summary(self) -> list[tuple[str, str]]:
        """Name and value of what describes the whole partition, for a two-column table."""
        sizes, classes = self.sizes, self.classes_per_client
        rows = [
            ("partition", self.name),
            ("seed", str(self.seed)),
            ("clients", f"{len(sizes):,}"),
            ("samples", f"{sizes.sum():,}"),
            (
                "samples per client",
                f"{sizes.min():,} to {sizes.max():,}, median {np.median(sizes):,.0f}, "
                f"spread {self.size_spread:.2f}",
            ),
            (
                "classes per client",
                f"{classes.min()} to {classes.max()}, mean {classes.mean():.2f}",
            ),
            ("mean label distance (TV)", f"{self.mean_distance:.3f}"),
            ("sha256", self.digest[:16]),
        ]
        return [*rows, ("note", self.note)] if self.note else rows

    def table(self, class_names: Sequence[str] = ()) -> tuple[list[str], list[list[str]]]:
        """Headings and one row of text per client."""
        names = class_names or [str(c) for c in range(self.counts.shape[1])]
        rows = [
            [
                str(client),
                f"{self.sizes[client]:,}",
                str(self.classes_per_client[client]),
                "–" if np.isnan(distance) else f"{distance:.2f}",
                _largest(self.counts[client], names),
            ]
            for client, distance in enumerate(self.distances)
        ]
        return ["client", "samples", "classes", "TV", "largest classes"], rows


def _largest(counts: Ints, names: Sequence[str]) -> str:
    order = np.argsort(-counts, kind="stable")
    present = order[counts[order] > 0]
    shown = ", ".join(f"{names[c]}: {counts[c]:,}" for c in present[:LARGEST])
    return f"{shown}, …" if len(present) > LARGEST else shown


def statistics(partition: Partition, y: npt.ArrayLike, classes: int) -> Statistics:
    """Counts the labels 0..classes-1 of each client; of a text, the tokens to predict."""
    labels = np.asarray(y)
    is_text = labels.ndim == 2 and labels.dtype.kind in "iu"
    fits = len(labels) == partition.samples and (labels.ndim == 1 or is_text)
    if not fits or labels.dtype.kind not in "iub":
        raise InputError(
            f"y must be one whole-number label for each of the {partition.samples} samples, "
            f"not {labels.dtype} of shape {labels.shape}"
        )
    if (labels.min() < 0 and not is_text) or labels.max() >= classes:
        raise InputError(
            f"classes={classes} allows labels 0 to {classes - 1}, "
            f"but y has {labels.min()} to {labels.max()}; use classes={labels.max() + 1}"
        )
    held = (labels[part].ravel() for part in partition.parts)
    counts = [np.bincount(own[own >= 0], minlength=classes) for own in held]
    return Statistics(
        partition.name,
        partition.seed,
        partition.digest,
        partition.note or ("samples are tokens to predict" if is_text else ""),
        np.array(counts, np.int64),
    )


# The picture of a partition: who holds how much of which label.

FORMATS = (".png", ".pdf", ".svg")
MOST_NUMBERED = 22  # clients and classes up to which every cell shows its count
MOST_NAMED = 40  # clients or classes up to which every one has its own tick
BAR = "#4c78a8"
DARK = 25  # percent above which a cell needs white figures


def save_picture(statistics: Statistics, path: str | Path, class_names: Sequence[str] = ()) -> Path:
    """Draws label × client as a heat map under the clients' sizes; png, pdf or svg."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"picture '{path}' must end in {', '.join(FORMATS)}")
    figure = draw(statistics, class_names)
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:].lower(), dpi=150)
    write_file(path, content.getvalue())
    return path


def draw(statistics: Statistics, class_names: Sequence[str] = ()) -> Figure:
    """The figure itself, for a notebook."""
    from matplotlib.figure import Figure  # slow to import, and only pictures need it

    clients, classes = statistics.counts.shape
    names = list(class_names) or [str(c) for c in range(classes)]
    width = float(np.clip(1.9 + 0.42 * clients, 6.4, 12))
    height = float(np.clip(2.3 + 0.3 * classes, 4, 10))
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.add_gridspec(2, 1, height_ratios=(1, height - 2))
    labels = figure.add_subplot(grid[1])
    sizes = figure.add_subplot(grid[0], sharex=labels)
    _sizes(sizes, statistics)
    _labels(figure, labels, statistics, names)
    figure.suptitle(_title(statistics), fontsize=11, parse_math=False)
    return figure


def _title(statistics: Statistics) -> str:
    clients, distance = len(statistics.counts), statistics.mean_distance
    name = statistics.name if len(statistics.name) <= 40 else f"{statistics.name[:39]}…"
    noun = "client" if clients == 1 else "clients"
    return f"{name} · {clients:,} {noun} · mean label distance (TV) {distance:.2f}"


def _sizes(axes: Axes, statistics: Statistics) -> None:
    from matplotlib.ticker import MaxNLocator

    clients = len(statistics.counts)
    # Bars thinner than a dot vanish: without gaps they form an outline.
    axes.bar(range(clients), statistics.sizes, width=0.8 if clients <= 150 else 1, color=BAR)
    axes.set_ylabel("samples")
    axes.tick_params(axis="x", which="both", labelbottom=False, length=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))


def _labels(figure: Figure, axes: Axes, statistics: Statistics, names: Sequence[str]) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap, PowerNorm

    clients, classes = statistics.counts.shape
    share = 100 * statistics.shares.T
    # White is nothing at all; one sample in a hundred must still differ from it.
    blues = ListedColormap(colormaps["Blues"](np.linspace(0.15, 1, 256)))
    visible_share = np.ma.masked_equal(share, 0)
    image = axes.imshow(visible_share, cmap=blues, norm=PowerNorm(0.5, 0, 100), aspect="auto")
    axes.set_xlabel("client")
    axes.set_ylabel("class")
    if clients <= MOST_NAMED:
        axes.set_xticks(range(clients))
    if classes <= MOST_NAMED:
        axes.set_yticks(range(classes), names, parse_math=False)
    if clients <= MOST_NAMED and classes <= MOST_NAMED:
        _separate(axes, clients, classes)
    if clients <= MOST_NUMBERED and classes <= MOST_NUMBERED:
        _numbers(axes, statistics.counts.T, share)
    bar = figure.colorbar(image, ax=axes, label="% of the client's samples", pad=0.01)
    bar.set_ticks([0, 1, 5, 10, 25, 50, 75, 100])


def _separate(axes: Axes, clients: int, classes: int) -> None:
    """Thin lines between the cells, so that equal neighbours do not run together."""
    axes.set_xticks(np.arange(clients + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(classes + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.tick_params(which="minor", length=0)


def _numbers(axes: Axes, counts: Ints, share: Floats) -> None:
    for (label, client), count in np.ndenumerate(counts):
        if count:
            colour = "white" if share[label, client] > DARK else "black"
            axes.text(client, label, str(count), ha="center", va="center", fontsize=7, color=colour)
