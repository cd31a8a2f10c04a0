"""Pictures of runs: the right lines in a file of the right kind, without a screen or a warning."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes

import fedrift as fr
from fedrift.figures import style
from fedrift.figures.style import COLOURS, curves, new_figure
from fedrift.figures.style import curve_panels as panels
from fedrift.figures.svg import percent
from tests.support.problems import small_run

SIGNATURES = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}


@dataclass
class Line:
    rounds: list[int] = field(default_factory=lambda: [1, 2, 3])
    accuracy: list[float] = field(default_factory=lambda: [0.1, 0.5, 0.9])
    loss: list[float] = field(default_factory=lambda: [2.0, 1.0, 0.5])
    status: str = "done"
    metrics: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


def drawn(runs: style.Panel, metric: str | None = None) -> Axes:
    _, (axis,) = new_figure(1)
    style._draw(axis, runs, metric)
    return axis


def values(axis: Axes) -> list[list[float]]:
    return [[float(y) for y in line.get_ydata()] for line in axis.lines]  # type: ignore[union-attr]


@pytest.mark.parametrize("ending", SIGNATURES)
def test_the_ending_decides_the_format(ending: str, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / f"curve{ending}"
    assert curves({"fedavg": [Line()]}, path) == path
    assert path.read_bytes().startswith(SIGNATURES[ending])


@pytest.mark.parametrize("name", ["curve.jpg", "curve", "curve.txt"])
def test_another_ending_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(fr.InputError, match="ending"):
        curves({"fedavg": [Line()]}, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_one_line_per_name_in_colours_of_its_own() -> None:
    axis = drawn({"fedavg": [Line()], "scaffold": [Line(accuracy=[0.2, 0.3, 0.4])]})
    assert values(axis) == [[0.1, 0.5, 0.9], [0.2, 0.3, 0.4]]
    assert [line.get_label() for line in axis.lines] == ["fedavg", "scaffold"]
    assert [line.get_color() for line in axis.lines] == list(COLOURS[:2])
    assert axis.get_xlabel() == "round"


def test_several_seeds_are_a_mean_and_a_band() -> None:
    axis = drawn({"fedavg": [Line(), Line(accuracy=[0.3, 0.7, 0.9])]})
    assert values(axis)[0] == pytest.approx([0.2, 0.6, 0.9])
    assert len(axis.collections) == 1


def test_without_accuracy_there_is_the_loss() -> None:
    assert values(drawn({"fedavg": [Line(accuracy=[])]})) == [[2.0, 1.0, 0.5]]


def test_a_run_that_diverged_ends_in_a_cross() -> None:
    axis = drawn({"fedavg": [Line(status="diverged")]})
    assert values(axis)[1] == [0.9] and axis.lines[1].get_marker() == "x"


def test_runs_of_different_length_are_drawn_as_far_as_all_go() -> None:
    short = Line(rounds=[1, 2], accuracy=[0.3, 0.3])
    assert values(drawn({"fedavg": [Line(), short]}))[0] == pytest.approx([0.2, 0.4])


def test_seeds_that_were_evaluated_at_other_rounds_are_not_mixed() -> None:
    """A diverged seed stops early; what is drawn at round 4 must be measured at round 4."""
    sparse = Line(rounds=[2, 4, 5], accuracy=[0.2, 0.4, 0.5])
    axis = drawn({"fedavg": [Line(rounds=[2, 4, 5]), sparse]})
    assert [float(x) for x in axis.lines[0].get_xdata()] == [2, 4, 5]  # type: ignore[union-attr]


def test_rounds_are_marked_at_whole_numbers() -> None:
    ticks = drawn({"fedavg": [Line(rounds=[1, 2, 3])]}).get_xticks()
    assert all(float(tick).is_integer() for tick in ticks)


def test_a_metric_is_drawn_by_its_name(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"f1": 0.1, "classes": []}, {}, {"f1": 0.3}]
    drawn_at = values(drawn({"fedavg": [Line(metrics=rows)]}, "f1"))[0]
    assert drawn_at[0] == 0.1 and drawn_at[1] != drawn_at[1] and drawn_at[2] == 0.3
    result = small_run("fedavg", metrics={"f1": lambda output, target: 0.5})
    assert result.plot(tmp_path / "f1.png", "f1").exists()
    with pytest.raises(fr.InputError, match=r"metric='f2' is none of .*accuracy.*f1"):
        result.plot(tmp_path / "f2.png", metric="f2")


def test_panels_share_their_axis(tmp_path: Path) -> None:
    path = panels({"even": {"a": [Line()]}, "skewed": {"a": [Line()]}}, tmp_path / "two.png")
    assert path.stat().st_size > 1000


def test_a_result_draws_itself(tmp_path: Path) -> None:
    result = small_run("fedavg")
    path = result.plot(tmp_path / "curve.png")
    assert path.read_bytes().startswith(SIGNATURES[".png"])
    assert result.plot(str(tmp_path / "curve.svg")).exists()


def test_a_result_without_test_data_draws_without_a_murmur(tmp_path: Path) -> None:
    """Nothing was measured: an empty picture or a refusal, but no warning from matplotlib."""
    result = small_run("fedavg", test=None)
    try:
        assert result.plot(tmp_path / "curve.png").exists()
    except fr.InputError as error:
        assert "test" in str(error)


@pytest.mark.parametrize(("value", "text"), [(0.5, "50 %"), (-0.5, "−50 %"), (10**308, "inf %")])
def test_shares_of_any_size_are_written(value: float, text: str) -> None:
    assert percent(value) == text


def test_names_of_signs_that_the_font_lacks_are_drawn_without_a_word() -> None:
    figure, (axis,) = new_figure(1)
    axis.set_title("\u6f22\x1b\n\u0e01")
    assert style.drawn(figure, "png").startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("longest", "marks"),
    [
        (4, ["0", "1 s", "2 s", "3 s", "4 s"]),
        (150, ["0", "30 s", "60 s", "90 s", "120 s", "150 s"]),
        (2250, ["0", "10 min", "20 min", "30 min"]),
        (3600, ["0", "10 min", "20 min", "30 min", "40 min", "50 min", "60 min"]),
        (5 * 3600, ["0", "1 h", "2 h", "3 h", "4 h", "5 h"]),
        (6 * 86400, ["0", "1 d", "2 d", "3 d", "4 d", "5 d", "6 d"]),
        (1001 * 86400, ["0", "200 d", "400 d", "600 d", "800 d", "1000 d"]),
        (9e28, ["0", "2e+23 d", "4e+23 d", "6e+23 d", "8e+23 d", "1e+24 d"]),
    ],
)
def test_time_is_marked_as_clocks_are_read(longest: float, marks: list[str]) -> None:
    figure, (axis,) = new_figure(1)
    axis.set_xlim(0, longest)
    style.time_ticks(axis)
    figure.draw_without_rendering()
    low, high = axis.get_xlim()
    seen = [t.get_text() for t in axis.get_xticklabels() if low <= t.get_position()[0] <= high]
    assert seen == marks


@pytest.mark.parametrize("heights", [(2.1, 2.4), (0.8, 4.0), (0.3, 20.0), (1e-5, 3.0)])
def test_a_logarithmic_axis_has_several_marks_in_plain_figures(
    heights: tuple[float, float],
) -> None:
    _, (axis,) = new_figure(1)
    axis.plot([1, 2], heights)
    style.log_heights(axis)
    axis.figure.canvas.draw()
    low, high = axis.get_ylim()
    ticks = zip(axis.get_yticks(), axis.get_yticklabels(), strict=True)
    words = [label.get_text() for at, label in ticks if low <= at <= high]
    assert 2 <= len(words) <= 9 and all("10^" not in one for one in words)


@pytest.mark.parametrize(
    ("share", "text"), [(0.85, "85 %"), (0.925, "92.5 %"), (0.0, "0 %"), (0.07, "7 %")]
)
def test_marks_that_are_close_differ(share: float, text: str) -> None:
    assert style.percent_mark(share, 0) == text
