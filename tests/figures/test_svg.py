"""Small pictures as SVG: what their labels say."""

from __future__ import annotations

import pytest

from fedrift.figures import svg


def test_a_table_says_which_depth_is_which_share() -> None:
    picture = svg.table_picture(
        [[0.0, 1.0], [0.5, 0.25]],
        about="Accuracy",
        x_title="round",
        y_title="class",
        columns=[1, 2],
        colour="blue",
        scale="accuracy",
    )
    assert ">accuracy 0 %<" in picture and ">100 %<" in picture
    deepest = 'fill="blue" fill-opacity="1.00"'
    assert picture.count(deepest) == 2, "the cell that is 1, and the end of the scale"


def test_what_is_below_nothing_has_the_sign_that_tables_have() -> None:
    assert svg.percent(-0.05) == "−5 %"
    assert svg.short(-1234) == "−1.23 k"
    assert svg.short(-0.5) == "−0.5"


@pytest.mark.parametrize(
    ("labels", "made"),
    [
        (["2", "2.2", "2.4"], ["2.0", "2.2", "2.4"]),
        (["−1 %", "−0.5 %", "0 %"], ["−1.0 %", "−0.5 %", "0.0 %"]),
        (["5", "10"], ["5", "10"]),
        (["500", "1 k"], ["500", "1 k"]),
        (["fc1", "fc2"], ["fc1", "fc2"]),
        ([], []),
    ],
)
def test_labels_of_an_axis_have_as_many_decimals(labels: list[str], made: list[str]) -> None:
    assert svg.even(labels) == made
