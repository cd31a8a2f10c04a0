"""What `fedrift explain` tells of a recording: words, moments, pages and pictures."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from fedrift.errors import InputError
from fedrift.explain import captions, choose_settings, explain, write_file
from fedrift.explain.captions import Texts
from fedrift.explain.frames import frames, pieces, telling, verdict
from fedrift.explain.page import document, payload
from fedrift.explain.story import Story, make_story, record_turns
from fedrift.explain.terrain import TERRAINS
from tests.support.explained import ROUNDS, TRAINS, seen
from tests.support.product import parse, subject_of


@cache
def told(text: str) -> tuple[Story, Texts]:
    _, task, words = choose_settings(text, None, ROUNDS, None, None, None)
    return make_story(task), words


@pytest.mark.parametrize(
    ("name", "kind", "round"),
    [
        ("fedavg", "step", 1),
        ("scaffold", "step", 2),
        ("fedprox", "step", 1),
        ("fedsgd", "server", 1),
    ],
)
def test_a_page_opens_where_there_is_something_to_see(name: str, kind: str, round: int) -> None:
    story, texts = told(name)
    moments = frames(story, texts)
    opens = moments[telling(story, moments)]
    assert (opens.kind, story.turns[opens.turn].number) == (kind, round)
    steps = [one.step for one in moments if one.turn == opens.turn and one.kind == "step"]
    assert opens.step == (max(steps) if steps else 0)  # the whole way is in view


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
    _, task, words = choose_settings("fedavg", None, 9, 0.9, None, None)
    story = make_story(task)
    assert "became infinite" in verdict(story, words)
    assert 0 < len(story.turns) < 9
    document(story, words, [], "")
    for lr in (50.0, 1e90):  # the second is infinite at a client, before the server has anything
        with pytest.raises(InputError, match="too large"):
            make_story(choose_settings("scaffold", None, 2, lr, None, None)[1])
        with pytest.raises(InputError, match="too large"):
            make_story(replace(task, lr=lr))


def test_every_algorithm_that_trains_has_its_words() -> None:
    assert set(captions.read_texts()) == set(TRAINS)
    for name, entry in captions.read_texts().items():
        assert entry.idea and entry.look and entry.title, name
        used = captions.visible(parse(name, "algorithm"))
        text = captions.texts_of(used)
        assert "{g|" in text.step or name == "diloco", name
        assert text.server, name


@pytest.mark.parametrize("name", TRAINS)
def test_every_correction_has_a_name_of_its_own(name: str) -> None:
    turns, text = seen(name), captions.texts_of(captions.visible(parse(name, "algorithm")))
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


def test_states_have_the_minus_of_the_axes() -> None:
    turns = payload(*told("feddyn"))["turns"]
    spelled = [value for turn in turns for _, value in turn["state"]]
    assert any("−" in value for value in spelled)
    assert not any("-" in value for value in spelled)


@pytest.mark.parametrize("ending", ["png", "svg", "pdf", "html"])
def test_the_ending_decides(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "new" / f"explained.{ending}"
    write_file(*told("scaffold"), [], "", path)
    assert path.stat().st_size > 5_000
    if ending == "svg":
        ElementTree.parse(path)


def test_a_readers_own_algorithm_is_recorded() -> None:
    _, task, text = choose_settings(
        "fedrift.algorithms.fedavg:FedAvg", None, ROUNDS, None, None, None
    )
    assert text.title == "FedAvg"
    recorded = record_turns(task, subject_of(task.text))
    assert [turn.end for turn in recorded] == [turn.end for turn in seen("fedavg")]


def test_fed3rft_shows_its_second_stage() -> None:
    _, task, text = choose_settings(
        "swa(fed3rft(fedprox):train=head)", None, ROUNDS, None, None, None
    )
    assert task.text == "swa(fedprox:mu=1):start=0.3"
    assert "Fed3R+FT" in text.title and "μ" in text.step


@pytest.mark.parametrize("text", ["fed3r", "swa(fed3r)", "fed3rft(fed3r)"])
def test_what_has_no_steps_gets_a_sentence(text: str) -> None:
    with pytest.raises(InputError, match="closed form"):
        explain(text, "never.html")


@pytest.mark.parametrize("text", ["fedper", "keep(scaffold)", "swa(localonly)"])
def test_what_keeps_a_part_gets_a_sentence(text: str) -> None:
    with pytest.raises(InputError, match="a point in the plane has no parts"):
        explain(text, "never.html")


def test_fewer_steps_are_advised_only_where_they_could_help() -> None:
    said: list[str] = []
    for steps in (1, 5):
        _, task, words = choose_settings("fedavg", steps, 2, None, None, None)
        said.append(verdict(make_story(task), words))
    assert said[0] == "FedAvg comes to rest in the common minimum."
    assert said[1].endswith("Fewer local steps would bring it closer.")
