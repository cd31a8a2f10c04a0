"""`fedrift explain`: what is drawn is what the algorithm did, for every algorithm that trains."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from fedrift.conform import runs
from fedrift.explain import choose_settings
from fedrift.explain.recording import Stride, point
from fedrift.explain.story import Turn
from fedrift.explain.terrain import Point
from tests.support.explained import ROUNDS, TRAINS, seen


def close(a: object, b: object) -> bool:
    return a == pytest.approx(b, abs=1e-12)


def steps(text: str) -> list[tuple[Turn, int, Stride]]:
    return [
        (turn, visit.client, stride)
        for turn in seen(text)
        for visit in turn.visits
        for stride in visit.strides
    ]


def pushed(stride: Stride, piece: str) -> Point:
    """What a piece moved the client by; nothing if it did not."""
    return dict(stride.arrows()).get(piece, (0.0, 0.0))


def scaled(scale: float, *terms: tuple[float, Point | list[float]]) -> Point:
    """Scale · Σ factor·vector."""
    sums = [sum(factor * vector[i] for factor, vector in terms) for i in range(2)]
    return scale * sums[0], scale * sums[1]


def slope(text: str, client: int, at: Point) -> Point:
    """The gradient of a client's loss, by autograd."""
    _, task, _ = choose_settings(text, None, ROUNDS, None, None, None)
    w = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    task.terrain.losses(w)[client].backward()
    assert w.grad is not None
    return point(w.grad)


@pytest.mark.parametrize("name", TRAINS)
def test_recorded_points_are_those_of_a_plain_run(name: str) -> None:
    _, task, _ = choose_settings(name, None, ROUNDS, None, None, None)
    plain = [point(w) for w in runs.path(task.text, task.trial())]
    # To the rounding of double precision: a step that is watched sums up what a plain one adds
    # to the model piece by piece.
    for turn, w in zip(seen(name), plain, strict=True):
        assert close(turn.shown, w)


@pytest.mark.parametrize("name", TRAINS)
def test_arrows_add_up_to_the_step(name: str) -> None:
    for _, _, stride in steps(name):
        total = [sum(vector[i] for _, vector in stride.arrows()) for i in range(2)]
        moved = [b - a for a, b in zip(stride.start, stride.end, strict=True)]
        assert close(total, moved)


@pytest.mark.parametrize("name", TRAINS)
def test_rounds_join(name: str) -> None:
    turns = seen(name)
    for turn, after in itertools.pairwise(turns):
        assert after.sent == turn.end
    for turn in turns:
        for visit in turn.visits:
            points = [s.start for s in visit.strides] + [s.end for s in visit.strides][-1:]
            assert points[:1] in ([], [turn.sent])
            assert points[-1:] == ([visit.end] if visit.strides else [])


def test_gradients_are_those_of_the_drawn_losses() -> None:
    for _, client, stride in steps("fedavg"):
        assert close(stride.gradient, slope("fedavg", client, stride.start))
        assert stride.pushes == ()


def test_scaffold_draws_c_minus_ci() -> None:
    turns = seen("scaffold")
    for before, turn in itertools.pairwise(turns):
        for visit in turn.visits:
            c, own = before.state["server.c"], before.state[f"client {visit.client + 1}.c"]
            for stride in visit.strides:
                assert close(pushed(stride, "Linear"), scaled(-stride.lr, (1, c), (-1, own)))
                assert math.hypot(*pushed(stride, "Linear")) > 1e-3
    assert all(not stride.pushes for _, _, stride in steps("scaffold")[:12])


def test_fedprox_draws_the_spring() -> None:
    for turn, _, stride in steps("fedprox:mu=0.7"):
        spring = scaled(-0.7 * stride.lr, (1, stride.start), (-1, turn.sent))
        assert close(pushed(stride, "Prox"), spring)


def test_feddyn_draws_its_term_its_spring_and_the_servers_step() -> None:
    turns = seen("feddyn:alpha=0.8")
    for before, turn in itertools.pairwise(turns):
        for visit in turn.visits:
            h = before.state[f"client {visit.client + 1}.h"]
            for stride in visit.strides:
                spring = scaled(-0.8 * stride.lr, (1, stride.start), (-1, turn.sent))
                assert close(pushed(stride, "Linear"), scaled(stride.lr, (1, h)))
                assert close(pushed(stride, "Prox"), spring)
        assert close(turn.end, scaled(1, (1, turn.mean), (-1 / 0.8, turn.state["server.h"])))


def test_fedsam_takes_gradients_at_distance_rho_uphill() -> None:
    for _, client, stride in steps("fedsam:rho=0.3"):
        here = slope("fedsam", client, stride.start)
        top = scaled(1, (1, stride.start), (0.3 / math.hypot(*here), here))
        assert close(stride.looks[-1].at, top)
        assert close(stride.gradient, slope("fedsam", client, stride.looks[-1].at))


def test_fedgf_takes_gradients_between_its_climb_and_the_common_point() -> None:
    turns = seen("fedgf")
    mixed = 0
    for before, turn in itertools.pairwise(turns):
        (c,), common = before.state["server.c"], before.state["server.up"]
        mixed += c > 0
        for visit in turn.visits:
            for stride in visit.strides:
                here = slope("fedgf", visit.client, stride.start)
                top = scaled(1, (1, stride.start), (0.8 / math.hypot(*here), here))
                assert close(stride.looks[-1].at, scaled(1, (1 - c, top), (c, common)))
    assert mixed


def test_fedhbm_draws_the_push_from_the_clients_last_model() -> None:
    turns = seen("fedhbm:beta=0.9")
    found = 0
    for before, turn in itertools.pairwise(turns):
        (visit,) = turn.visits
        anchor = before.state.get(f"client {visit.client + 1}.w")
        for stride in visit.strides:
            push = pushed(stride, "Prox")
            if anchor is None:
                assert push == (0.0, 0.0)
                continue
            found += 1
            strength = 0.9 * 0.5 / (stride.lr * len(visit.strides))
            assert close(push, scaled(stride.lr * strength, (1, stride.start), (-1, anchor)))
    assert found


def test_fedcm_draws_its_share_of_the_common_direction() -> None:
    turns = seen("fedcm:alpha=0.4")
    for before, turn in itertools.pairwise(turns):
        for visit in turn.visits:
            for stride in visit.strides:
                m = before.state["server.m"]
                assert close(pushed(stride, "Blend"), scaled(-0.6 * stride.lr, (1, m)))
                plain = slope("fedcm", visit.client, stride.start)
                assert close(dict(stride.arrows())["Plain"], scaled(-0.4 * stride.lr, (1, plain)))


def test_mime_replaces_the_clients_gradient_by_the_mean() -> None:
    for turn in seen("mime"):
        gradients = [slope("mime", client, turn.sent) for client in (0, 1)]
        for visit in turn.visits:
            assert close(visit.looks[0].gradient, gradients[visit.client])
            own = gradients[visit.client]
            for stride in visit.strides:
                mean = (0.5, gradients[0]), (0.5, gradients[1]), (-1.0, own)
                assert close(pushed(stride, "SVRG"), scaled(-stride.lr, *mean))


def test_fedsgd_steps_along_the_mean_gradient() -> None:
    _, task, _ = choose_settings("fedsgd", None, ROUNDS, None, None, None)
    for turn in seen("fedsgd"):
        g = [visit.looks[0].gradient for visit in turn.visits]
        assert close(
            turn.end, scaled(1, (1, turn.sent), (-task.lr / 2, g[0]), (-task.lr / 2, g[1]))
        )


def test_swa_shows_the_average_of_the_servers_models() -> None:
    turns = seen("swa(fedavg):start=1")
    ends = [turn.end for turn in turns[1:]]
    assert close(turns[-1].shown, scaled(1 / 3, *((1, end) for end in ends)))
