"""`fedrift explain`: what is drawn is what the algorithm did, for every algorithm that trains."""

from __future__ import annotations

import itertools
import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from fedrift.algorithms import NAMES
from fedrift.cli import code_of
from fedrift.conform import runs
from fedrift.conform.subject import subject_of
from fedrift.errors import InputError
from fedrift.explain import explain, settle, words, write
from fedrift.explain.frames import frames, pieces, verdict
from fedrift.explain.page import document, payload
from fedrift.explain.story import Story, Turn, tell, watched
from fedrift.explain.terrain import TERRAINS, Point
from fedrift.explain.watch import Stride, point
from fedrift.explain.words import Told
from fedrift.grammar import parse

TRAINS = [name for name in NAMES if name != "fed3r"]
ROUNDS = 4


def close(a: object, b: object) -> bool:
    return a == pytest.approx(b, abs=1e-12)


@cache
def seen(text: str) -> tuple[Turn, ...]:
    _, task, _ = settle(text, None, ROUNDS, None, None, None)
    return watched(task, subject_of(task.text))


@cache
def told(text: str) -> tuple[Story, Told]:
    _, task, words = settle(text, None, ROUNDS, None, None, None)
    return tell(task), words


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
    _, task, _ = settle(text, None, ROUNDS, None, None, None)
    w = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    task.terrain.losses(w)[client].backward()
    assert w.grad is not None
    return point(w.grad)


@pytest.mark.parametrize("name", TRAINS)
def test_recorded_points_are_those_of_a_plain_run(name: str) -> None:
    _, task, _ = settle(name, None, ROUNDS, None, None, None)
    plain = [point(w) for w in runs.path(task.text, task.trial())]
    assert [turn.shown for turn in seen(name)] == plain


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
    _, task, _ = settle("fedsgd", None, ROUNDS, None, None, None)
    for turn in seen("fedsgd"):
        g = [visit.looks[0].gradient for visit in turn.visits]
        assert close(
            turn.end, scaled(1, (1, turn.sent), (-task.lr / 2, g[0]), (-task.lr / 2, g[1]))
        )


def test_swa_shows_the_average_of_the_servers_models() -> None:
    turns = seen("swa(fedavg):start=1")
    ends = [turn.end for turn in turns[1:]]
    assert close(turns[-1].shown, scaled(1 / 3, *((1, end) for end in ends)))


@pytest.mark.parametrize("name", TERRAINS)
def test_the_star_is_the_minimum(name: str) -> None:
    terrain = TERRAINS[name]
    w = torch.tensor(terrain.lowest(), dtype=torch.float64, requires_grad=True)
    one, two = terrain.losses(w)
    (one + two).backward()
    assert w.grad is not None and float(w.grad.norm()) < 1e-5


def test_the_default_terrain_makes_fedavg_drift_and_scaffold_not() -> None:
    story, words = told("scaffold")
    assert story.other is not None and story.other.limit is not None
    assert story.path.limit is not None
    assert math.dist(story.path.limit, story.lowest) < 1e-3
    assert math.dist(story.other.limit, story.lowest) > 0.5
    said = verdict(story, words)
    assert said == "SCAFFOLD comes to rest in the common minimum. FedAvg stops 0.82 away."


def test_fedsam_passes_the_pit_that_holds_fedavg() -> None:
    story, words = told("fedsam")
    assert verdict(story, words) == (
        "FedSAM comes to rest in the wide valley. FedAvg stays in the narrow pit."
    )


def test_a_run_that_diverges_is_told() -> None:
    _, task, words = settle("fedavg", None, 9, 0.9, None, None)
    story = tell(task)
    assert "became infinite" in verdict(story, words)
    assert 0 < len(story.turns) < 9
    document(story, words, [], "")
    with pytest.raises(InputError, match="too large"):
        tell(replace(task, lr=50.0))


def test_every_algorithm_that_trains_has_its_words() -> None:
    assert set(words.table()) == set(NAMES) - {"fed3r"}
    for name, entry in words.table().items():
        assert entry.idea and entry.look and entry.title, name
        used = words.visible(parse(name, "algorithm"))
        text = words.told(used)
        assert "{g|" in text.step or name == "diloco", name
        assert text.server, name


@pytest.mark.parametrize("name", TRAINS)
def test_every_correction_has_a_name_of_its_own(name: str) -> None:
    turns, text = seen(name), words.told(words.visible(parse(name, "algorithm")))
    found = {
        push.piece for turn in turns for v in turn.visits for s in v.strides for push in s.pushes
    }
    assert found <= set(text.terms), found


def test_frames_go_through_every_step_once() -> None:
    story, words = told("scaffold")
    kinds = [frame.kind for frame in frames(story, words)]
    one = ["send", *["step"] * 6, "average"]
    assert kinds == [*one * ROUNDS, "end"]
    assert pieces(story, words) == ["Linear"]
    first = next(f for f in frames(story, words) if f.kind == "step")
    assert "still 0" in first.words


def test_the_page_holds_the_recorded_numbers() -> None:
    story, words = told("scaffold")
    data = payload(story, words)
    stride = story.turns[1].visits[0].strides[2]
    drawn = data["turns"][1]["visits"][0]["strides"][2]
    assert drawn["end"] == pytest.approx(stride.end, abs=1e-5)
    assert [a[0] for a in drawn["arrows"]] == ["Plain", "Linear"]
    page = document(story, words, ["a note & more"], "fedrift explain scaffold")
    assert "a note &amp; more" in page and "http-equiv" in page
    assert "https://" not in page.partition('<script type="text/plain"')[0]


@pytest.mark.parametrize("ending", ["png", "svg", "pdf", "html"])
def test_the_ending_decides(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "new" / f"explained.{ending}"
    write(*told("scaffold"), [], "", path)
    assert path.stat().st_size > 5_000
    if ending == "svg":
        ElementTree.parse(path)


def test_a_readers_own_algorithm_is_recorded() -> None:
    _, task, text = settle("fedrift.algorithms.fedavg:FedAvg", None, ROUNDS, None, None, None)
    assert text.title == "FedAvg"
    recorded = watched(task, subject_of(task.text))
    assert [turn.end for turn in recorded] == [turn.end for turn in seen("fedavg")]


def test_fed3rft_shows_its_second_stage() -> None:
    _, task, text = settle("swa(fed3rft(fedprox):train=head)", None, ROUNDS, None, None, None)
    assert task.text == "swa(fedprox:mu=1):start=0.3"
    assert "Fed3R+FT" in text.title and "μ" in text.step


@pytest.mark.parametrize("text", ["fed3r", "swa(fed3r)", "fed3rft(fed3r)"])
def test_what_has_no_steps_gets_a_sentence(text: str) -> None:
    with pytest.raises(InputError, match="closed form"):
        explain(text, "never.html")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fedavgg"], "fedavg"),
        (["fedprox:nu=1"], "mu"),
        (["fedavg", "--steps", "x"], "steps"),
        (["fedavg", "--steps", "1,2,3"], "steps"),
        (["fedavg", "--steps", "0"], "steps"),
        (["fedavg", "--rounds", "0"], "rounds"),
        (["fedavg", "--lr", "-1"], "lr"),
        (["fedavg", "--terrain", "hills"], "bowls"),
        (["fedavg", "-o", "x.gif"], "ending"),
        (["fed3r"], "closed form"),
    ],
)
def test_wrong_input_is_one_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = arguments if "-o" in arguments else [*arguments, "-o", str(tmp_path / "x.html")]
    assert code_of(["explain", *given]) == 2
    error = capsys.readouterr().err
    assert said.replace("ending", "end in") in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.html"
    assert code_of(["explain", "fedavg", "--rounds", "2", "--steps", "3,5", "-o", str(path)]) == 0
    assert "common minimum" in capsys.readouterr().out
    assert "--steps 3,5" in path.read_text(encoding="utf-8")
