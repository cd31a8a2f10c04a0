"""Lines and planes between models, on losses whose every value is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedrift.analysis import MEASURES, Case, Options, landscape
from fedrift.cli import code_of
from fedrift.core import EvaluatedModel, Layout, norm
from fedrift.errors import InputError
from tests.support.curved import net, quadratic
from tests.support.product import Loader, dump

LAYOUT = Layout(("a.weight", "a.bias", "b.weight"), ((2, 3), (2,), (2, 1, 2, 2)))


def drawn(seed: int, layout: Layout = LAYOUT) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(layout.size, generator=generator, dtype=torch.float64)


def filters(w: torch.Tensor) -> list[float]:
    views = LAYOUT.views(w)
    return [float(norm(row.flatten())) for i in (0, 2) for row in views[i]]


def test_a_line_meets_the_quadratic_at_every_point() -> None:
    problem, _ = quadratic(np.diag([2.0, 6.0]))

    def score(w: torch.Tensor) -> tuple[float, None]:
        return float(problem.loss(w, torch.zeros(())).item()), None

    a, b = torch.tensor([1.0, 0.0]).double(), torch.tensor([-1.0, 1.0]).double()
    found = landscape.line(score, a, b, [-0.5, 0.0, 0.5, 1.0])
    assert found.loss == pytest.approx([4.0 + 0.75, 1.0, 0.75, 4.0])
    assert found.accuracy == ()
    assert found.barrier() == 0.0


def test_a_barrier_is_what_rises_above_the_straight_line() -> None:
    found = landscape.Line((-1.0, 0.0, 0.5, 1.0, 2.0), (9.0, 1.0, 5.0, 2.0, 9.0), ())
    assert found.barrier() == pytest.approx(3.5)


def test_a_score_is_what_the_run_would_log() -> None:
    problem, (x, y) = net(600)
    loss, accuracy = landscape.scorer(problem, (x, y), EvaluatedModel(problem.w0))(problem.w0)
    output = problem.model.logits(problem.w0, x)
    assert loss == pytest.approx(float(torch.nn.functional.cross_entropy(output, y)), rel=1e-5)
    assert accuracy == pytest.approx(float((output.argmax(1) == y).double().mean()))


def test_a_plane_goes_through_its_three_models() -> None:
    a, b, c = drawn(0), drawn(1), drawn(2)
    made = landscape.plane(LAYOUT, a, b, c)
    assert made.place(a) == pytest.approx((0, 0, 0), abs=1e-9)
    x, y, _ = made.place(b)
    assert x > 0 and y == pytest.approx(0, abs=1e-9)
    for model in (a, b, c):
        x, y, outside = made.place(model)
        assert torch.allclose(made.point(x, y), model, atol=1e-9)
        assert outside == pytest.approx(0, abs=1e-6)


def test_lengths_do_not_depend_on_the_scale_of_a_filter_and_ignore_biases() -> None:
    models = [drawn(seed) for seed in range(4)]
    stretch = torch.ones(LAYOUT.size, dtype=torch.float64)
    LAYOUT.views(stretch)[0][1] = 7.0
    LAYOUT.views(stretch)[2][0] = 0.01
    before = landscape.plane(LAYOUT, *models[:3])
    after = landscape.plane(LAYOUT, *(w * stretch for w in models[:3]))
    for w in models:
        assert after.place(w * stretch) == pytest.approx(before.place(w), rel=1e-9, abs=1e-7)
    moved = models[0].clone()
    LAYOUT.views(moved)[1].add_(5.0)
    assert before.place(moved)[:2] == pytest.approx((0, 0), abs=1e-9)


def test_what_leaves_the_plane_is_told() -> None:
    plain = Layout(("w",), ((3,),))
    e = torch.eye(3, dtype=torch.float64)
    made = landscape.plane(plain, torch.zeros(3).double(), e[0], e[0] + 2 * e[1])
    assert made.place(3 * e[2]) == pytest.approx((0, 0, 1))
    path = landscape.project_snapshots(made, {4: e[1] + e[2], 2: e[0]})
    assert path[0] == pytest.approx((2, 1, 0, 0))
    assert path[1] == pytest.approx((4, 0, 1, 0.5**0.5))


def test_three_models_on_one_line_have_no_plane() -> None:
    a, b = drawn(0), drawn(1)
    with pytest.raises(InputError, match="on one line"):
        landscape.plane(LAYOUT, a, b, torch.lerp(a, b, 2.0))


def test_random_directions_are_as_long_as_the_filters() -> None:
    w = drawn(0)
    found = landscape.filter_normalised(LAYOUT, w, drawn(5))
    assert filters(found) == pytest.approx(filters(w))
    assert float(LAYOUT.views(found)[1].abs().max()) == 0.0


def test_random_directions_of_a_model_of_vectors_are_as_long_as_it() -> None:
    """It has no filters, and what is zeroed would be everything."""
    layout = Layout(("a.weight", "a.bias"), ((5,), (2,)))
    w = drawn(0, layout)
    found = landscape.filter_normalised(layout, w, drawn(5, layout))
    assert float(norm(found)) == pytest.approx(float(norm(w)))


def test_rows_of_a_chart_go_up_and_columns_to_the_right() -> None:
    def score(w: torch.Tensor) -> tuple[float, float]:
        return float(10 * w[0] + w[1]), 0.5

    found = landscape.measure_surface(score, lambda x, y: torch.tensor([x, y]), [0, 1, 2], [3, 4])
    assert found.loss == ((3, 13, 23), (4, 14, 24))
    assert found.accuracy == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def test_the_grid_shows_every_point() -> None:
    x, y = landscape.grid_around([(0, 0), (2, 0), (1, 4)], 9)
    assert x[0] < 0 and x[-1] > 2 and y[0] < 0 and y[-1] > 4
    assert np.ptp(x) == pytest.approx(np.ptp(y))


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("runs") / "run"
    text = (
        "run fedavg --data digits --model logistic --partition dirichlet:0.3 --clients 6 --quiet "
        "--per-round 3 --rounds 4 --workers 0 --analyse every=1,what=weights --out"
    )
    assert code_of([*text.split(), str(folder)]) == 0
    return Loader().case(folder, "fedavg")


def test_a_saved_run_is_measured(case: Case) -> None:
    found = MEASURES["landscape"](case, Options(images=60))
    one, two = case.few(2)
    numbers = found.numbers
    assert list(numbers["lines"]) == [
        f"global to client {one}",
        f"global to client {two}",
        f"client {one} to client {two}",
    ]
    data, _ = case.data(Options(images=60))
    here = float(case.model().loss(case.weights, data))
    line = numbers["lines"][f"global to client {one}"]
    assert np.interp(0.0, line["at"], line["loss"]) == pytest.approx(here, rel=1e-5)
    middle = len(numbers["around"]["x"]) // 2
    assert numbers["around"]["loss"][middle][middle] == pytest.approx(here, rel=1e-5)
    assert numbers["plane"]["models"]["global"] == pytest.approx((0, 0), abs=1e-6)
    assert [row[0] for row in numbers["plane"]["path"]] == [1, 2, 3, 4]
    assert set(found.figures) == {"lines", "plane", "around"}
    dump(numbers)


def test_figures_are_drawn(case: Case, tmp_path: Path) -> None:
    from fedrift.analysis.examine import draw_file

    found = MEASURES["landscape"](case, Options(images=30))
    for name, draw in found.figures.items():
        assert draw_file(draw, tmp_path / f"{name}.png").stat().st_size > 5_000
    both = {"one": found.numbers, "other": found.numbers}
    for name, draw in found.together.items():
        path = draw_file(lambda figure, d=draw: d(figure, both), tmp_path / f"all-{name}.svg")
        assert path.stat().st_size > 5_000


def test_a_run_without_local_models_has_its_surroundings(case: Case) -> None:
    from dataclasses import replace

    bare = replace(case, state=None, store=None, _trained={})
    found = MEASURES["landscape"](bare, Options(images=30))
    assert set(found.figures) == {"around"}
    assert any("not shown" in sentence for sentence in found.sentences)


def test_clients_that_end_at_one_point_have_lines_but_no_plane(case: Case) -> None:
    from dataclasses import replace

    one, two = sorted(case.few(2))
    seen = case.trained((one, two))[one]
    alike = replace(case, _trained={(one, two): {one: seen, two: replace(seen, client=two)}})
    found = MEASURES["landscape"](alike, Options(images=30))
    assert set(found.figures) == {"lines", "around"} and found.numbers["plane"] is None
    assert any("on one line" in sentence for sentence in found.sentences)


def test_what_is_registered_is_what_can_be_asked_for() -> None:
    from fedrift.config.analyses import WHAT

    assert set(MEASURES) == set(WHAT)


def test_a_filter_of_zeros_does_not_swallow_the_others() -> None:
    a, b, c = drawn(0), drawn(1), drawn(2)
    LAYOUT.views(a)[0][1] = 0.0
    scale = landscape.filter_scale(LAYOUT, a)
    assert bool((LAYOUT.views(scale)[0][1] == 0).all()) and float(scale.max()) < 100
    x, _, outside = landscape.plane(LAYOUT, a, b, c).place(b)
    assert x > 0 and outside == pytest.approx(0, abs=1e-6)
