"""Statistics of a partition by hand-made numbers, and pictures that can be opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from fedrift.data.describe import Statistics, draw, save_picture, statistics
from fedrift.data.partition import partition
from fedrift.errors import InputError
from tests.support.product import Partition

Y = np.array([0, 0, 0, 1, 1, 2, 0, 1])
MADE = Partition("mine", (np.array([0, 1, 3]), np.array([2, 4, 5, 6, 7]), np.array([], int)), 4)


@pytest.fixture
def found() -> Statistics:
    return statistics(MADE, Y, 4)


def test_counts_and_distances(found: Statistics) -> None:
    assert found.counts.tolist() == [[2, 1, 0, 0], [2, 2, 1, 0], [0, 0, 0, 0]]
    assert found.sizes.tolist() == [3, 5, 0]
    assert found.classes_per_client.tolist() == [2, 3, 0]
    # All labels: 4/8, 3/8, 1/8. Client 0: 2/3, 1/3, 0; half the sum of the differences is 1/6.
    assert found.distances[:2] == pytest.approx([1 / 6, 1 / 10])
    assert np.isnan(found.distances[2])
    assert found.mean_distance == pytest.approx((1 / 6 + 1 / 10) / 2)
    assert found.size_spread == pytest.approx(np.std([3, 5, 0]) / (8 / 3))


def test_tables(found: Statistics) -> None:
    heads, rows = found.table(["a", "b", "c", "d"])
    assert len(heads) == 5
    assert rows[0] == ["0", "3", "2", "0.17", "a: 2, b: 1"]
    assert rows[2] == ["2", "0", "0", "–", ""]
    summary = dict(found.summary())
    assert summary["samples per client"] == "0 to 5, median 3, spread 0.77"
    assert summary["classes per client"] == "0 to 3, mean 1.67"
    assert summary["mean label distance (TV)"] == "0.133"
    assert "note" not in summary
    many = statistics(partition("iid", np.arange(40) % 8, clients=1, seed=0), np.arange(40) % 8, 8)
    assert many.table()[1][0][-1] == "0: 5, 1: 5, 2: 5, 3: 5, …"


@pytest.mark.parametrize(
    ("y", "says"),
    [
        (Y - 1, "but y has -1 to 1"),
        (Y + 2, "use classes=5"),
        (Y[1:], "8 samples"),
        (Y / 2, "y must"),
    ],
)
def test_labels_that_do_not_fit(y, says) -> None:
    with pytest.raises(InputError, match=says):
        statistics(MADE, y, 4)


@pytest.mark.parametrize(
    ("suffix", "start"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")]
)
def test_pictures_in_each_format(found: Statistics, tmp_path: Path, suffix, start) -> None:
    path = save_picture(found, tmp_path / "new" / f"p{suffix}", ["$a", "b$", "c", "<d>"])
    assert path.read_bytes().startswith(start)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_what_the_picture_says() -> None:
    y = np.arange(400) % 10
    few = statistics(partition("dirichlet:0.3", y, clients=5, seed=0), y, 10)
    sizes, labels = sorted(draw(few).axes[:2], key=lambda axes: axes.get_ylabel(), reverse=True)
    bars = [bar.get_height() for bar in sizes.patches if isinstance(bar, Rectangle)]
    assert bars == few.sizes.tolist()
    shown = {text.get_text() for text in labels.texts}
    assert shown == {str(n) for n in few.counts[few.counts > 0]}
    assert labels.get_xlabel() == "client" and labels.get_ylabel() == "class"
    title = draw(few).get_suptitle()
    assert title == f"dirichlet:0.3 · 5 clients · mean label distance (TV) {few.mean_distance:.2f}"
    many = statistics(partition("hsu:0.3", y, clients=100, seed=0), y, 10)
    assert not any(axes.texts for axes in draw(many).axes), "100 clients: no room for numbers"


def test_a_picture_of_an_unknown_kind(found: Statistics, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"must end in \.png, \.pdf, \.svg"):
        save_picture(found, tmp_path / "p.txt")
