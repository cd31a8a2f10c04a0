"""What each side can see: read from the declarations, and the page in the docs is up to date."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from fedrift.engine.build import build
from fedrift.federation.visibility import can_be_masked, phases, visible_fields

DOCS = Path(__file__).resolve().parents[2] / "docs"


def maker() -> Any:
    at = importlib.util.spec_from_file_location("make_visible", DOCS / "make_visible.py")
    assert at is not None and at.loader is not None
    module = importlib.util.module_from_spec(at)
    at.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date() -> None:
    made = maker().page()
    assert (DOCS / "visible.md").read_text(encoding="utf-8") == made, "run `make docs-pages`"


def test_scaffold_shows_two_vectors_and_keeps_one() -> None:
    rows = {(r.who, r.field): r for r in visible_fields(build("scaffold", {}, 1))}
    assert set(rows) == {
        ("client", "w"),
        ("client", "c"),
        ("server", "delta"),
        ("server", "dc"),
        ("node", "c"),
    }
    assert rows["server", "delta"].use == "a mean over the cohort"
    assert {r.use for r in visible_fields(build("fedgf", {}, 1)) if r.field == "drift"} == {
        "a sum over the cohort"
    }


@pytest.mark.parametrize(
    ("text", "phase", "masked"),
    [
        ("fedavg", "train", True),
        ("fedcm", "train", False),  # the server divides each update by its span
        ("swa(scaffold)", "inner.train", True),
        ("fed3r", "statistics", True),
        ("mime", "gradient", True),
        ("mimelite", "train", False),  # a gradient that only some replies have
        ("fedasync", "train", False),  # taken in one by one, as they arrive
        ("swa(fedbuff)", "inner.train", False),
    ],
)
def test_what_could_be_masked(text: str, phase: str, masked: bool) -> None:
    root = build(text, {}, 8)
    assert phase in phases(root), list(phases(root))
    assert can_be_masked(root, phase) is masked


@pytest.mark.parametrize("text", ["fedasync", "fedbuff"])
def test_replies_that_are_taken_in_as_they_arrive_are_seen_one_by_one(text: str) -> None:
    uses = {r.use for r in visible_fields(build(text, {}, 1)) if r.who == "server"}
    assert uses == {"each client's, when it arrives"}


def test_no_method_of_the_server_is_a_phase() -> None:
    for text in ("fedavg", "mime", "fed3rft(scaffold)", "diloco"):
        names = {phase.rpartition(".")[2] for phase in phases(build(text, {}, 8))}
        assert not names & {"server", "client", "round", "model", "check", "view", "prepare"}
