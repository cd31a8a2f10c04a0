"""Clients chosen by presence, by reported loss, or by a function: the same bits everywhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedrift as fr
from fedrift.config.own_code import foreign_code
from fedrift.config.spec import Spec
from fedrift.core.devices import parse_devices
from fedrift.core.sampling import Choice, participation
from fedrift.engine.clock import Clock
from fedrift.engine.loop import Engine
from fedrift.federation.config import FederationConfig
from fedrift.federation.task import make_server_task
from fedrift.rng import generator
from tests.support.problems import small_run, uneven_clients

SIZES = uneven_clients().sizes
PEOPLE = len(SIZES)


def worst(choice: Choice) -> Sequence[int]:
    """Those with the largest loss, after some who have none yet, drawn."""
    new = [c for c in choice.clients if np.isnan(choice.losses[c]) and choice.samples[c]]
    if len(new) >= choice.size:
        return choice.random.choice(new, choice.size, replace=False).tolist()
    return sorted(choice.clients, key=lambda c: -np.nan_to_num(choice.losses[c]))[: choice.size]


def trace(folder: Path) -> str:
    """Two clients come every 200 seconds and stay for 60 or 90; then nobody is there."""
    rows = [f"{c},{20 + c // 2 * 200},{80 + c // 2 * 200 + c % 2 * 30}" for c in range(PEOPLE)]
    path = folder / "t.csv"
    path.write_text("client,start,end\n" + "\n".join(rows) + "\n")
    return f"trace:{path},period=1000,speed=1"


def losses_before(result: fr.Result, round: int) -> dict[int, float]:
    """What each client reported last before a round (from 0)."""
    last: dict[int, float] = {}
    for row in result.training:
        if row["round"] <= round:
            last |= dict(zip(row["client"], row["loss"], strict=True))
    return last


def check_power(result: fr.Result, candidates: int, size: int, seed: int = 0) -> None:
    """Every cohort against the rule, from the figures that the run has written."""
    chances = SIZES / SIZES.sum()
    for entry in result.ledger.entries:
        rng = generator(seed, "cohort", entry.round - 1)
        drawn = rng.choice(PEOPLE, candidates, replace=False, p=chances).tolist()
        known = losses_before(result, entry.round - 1)
        ranked = sorted(drawn, key=lambda c: (-known.get(c, math.inf), c))
        assert sorted(entry.asked) == sorted(ranked[:size])


def test_power_of_choice_takes_those_with_the_highest_reported_loss() -> None:
    result = small_run("fedavg", sampling="power:5", per_round=2, rounds=8)
    check_power(result, 5, 2)
    assert result.config is not None and result.config.sampling == "power:5"


def test_a_choice_by_the_lowest_loss_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Engine._draw

    def wrong(self: Engine, t: int) -> Any:
        self._losses *= -1
        try:
            return right(self, t)
        finally:
            self._losses *= -1

    monkeypatch.setattr(Engine, "_draw", wrong)
    with pytest.raises(AssertionError):
        test_power_of_choice_takes_those_with_the_highest_reported_loss()


def test_power_draws_by_samples_and_averages_uniformly() -> None:
    by_loss = small_run("fedavg", sampling="power:5", per_round=2)
    asked = [list(entry.asked) for entry in by_loss.ledger.entries]
    same = small_run("fedavg", participants=asked, per_round=None, weights="uniform")
    assert np.array_equal(by_loss.weights, same.weights)
    with pytest.raises(fr.InputError, match="count these twice"):
        small_run("fedavg", sampling="power:5", per_round=2, weights="samples")


def test_with_all_candidates_chosen_power_is_size() -> None:
    power = small_run("fedavg", sampling="power:3", per_round=3)
    size = small_run("fedavg", sampling="size", per_round=3)
    assert np.array_equal(power.weights, size.weights)


def test_ties_are_broken_by_number() -> None:
    who = participation(6, 1, per_round=2, sampling="power", candidates=6, samples=[1] * 6)
    assert who.draw(0, 0) == (0, 1), "nobody has reported"
    assert who.draw(0, 0, losses=np.array([2.0, 1, 3, 3, 3, 0])) == (2, 3)
    assert who.draw(0, 0, losses=np.array([2.0, 1, 3, 3, 3, math.nan])) == (2, 5)


WAYS: list[dict[str, Any]] = [
    {"sampling": "power:5"},
    {"sampling": worst},
    {"sampling": "tests.engine.test_selection:worst"},
    {"sampling": "available", "devices": "trace"},
    {"sampling": worst, "devices": "trace"},
    {"sampling": "power:5", "eval_every": 3},
]


@pytest.mark.parametrize("options", WAYS, ids=range(6))
def test_the_same_bits_with_workers_and_after_an_interruption(
    options: dict[str, Any], tmp_path: Path
) -> None:
    options = {**options, "per_round": 2, "rounds": 7}
    if "devices" in options:
        options["devices"] = trace(tmp_path)
    whole = small_run("fedavg", **options)
    there = small_run("fedavg", workers=2, **options)
    assert there.fingerprint == whole.fingerprint
    assert there.training == whole.training

    def stop(report: fr.RoundReport) -> None:
        if report.round == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small_run("fedavg", out=tmp_path / "a", on_round=stop, **options)
    again = small_run("fedavg", out=tmp_path / "a", workers=2, **options)
    assert again.fingerprint == whole.fingerprint
    assert again.ledger.rows() == whole.ledger.rows()


def test_losses_forgotten_on_resume_are_caught(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    right = Engine.__init__

    def wrong(self: Engine, *args: Any, **options: Any) -> None:
        right(self, *args, **options)
        self._losses[:] = math.nan

    monkeypatch.setattr(Engine, "__init__", wrong)
    with pytest.raises(AssertionError):
        test_the_same_bits_with_workers_and_after_an_interruption({"sampling": "power:5"}, tmp_path)


def test_losses_of_evaluated_rounds_alone_are_caught(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    right = Engine._draw

    def wrong(self: Engine, t: int) -> Any:
        self._losses[:] = math.nan
        for row in self.progress.training_rows:
            self._hear(row)
        return right(self, t)

    monkeypatch.setattr(Engine, "_draw", wrong)
    with pytest.raises(AssertionError):
        test_the_same_bits_with_workers_and_after_an_interruption({"sampling": "power:5"}, tmp_path)


def test_only_clients_that_are_there_are_asked(tmp_path: Path) -> None:
    text = trace(tmp_path)
    plan = parse_devices(text)
    assert plan is not None
    devices = plan.settle(PEOPLE, 0)
    result = small_run("fedavg", sampling="available", devices=text, late="drop:50", rounds=12)
    began: list[float] = []
    for entry in result.ledger.entries:
        assert entry.trips
        began.append(entry.trips[0].began)
        here = devices.present(began[-1])
        assert here is not None and set(entry.asked) <= set(here.tolist())
        able = [c for c in here.tolist() if SIZES[c]]
        assert len(entry.asked) == min(3, len(able))
    ends = [0.0, *(row["time"] for row in result.metrics)]
    waited = [b - e for b, e in zip(began, ends, strict=False)]
    assert sum(w > 0 for w in waited) > 3 and min(waited) >= 0, "the time goes on to the next one"


def test_asking_whoever_is_caught(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Clock, "present", lambda self, samples=None: None)
    with pytest.raises(AssertionError):
        test_only_clients_that_are_there_are_asked(tmp_path)


def test_a_function_sees_what_it_is_promised(tmp_path: Path) -> None:
    seen: list[Choice] = []

    def look(choice: Choice) -> list[int]:
        seen.append(choice)
        return [choice.round % 3, 3]

    result = small_run("fedavg", sampling=look, per_round=4, rounds=3)
    assert [choice.round for choice in seen] == [0, 1, 2]
    for choice, entry in zip(seen, result.ledger.entries, strict=True):
        assert choice.clients.tolist() == list(range(PEOPLE))
        assert choice.samples.tolist() == SIZES.tolist() and choice.size == 4
        known = losses_before(result, choice.round)
        wanted = [known.get(c, math.nan) for c in range(PEOPLE)]
        assert np.array_equal(choice.losses, wanted, equal_nan=True)
        assert set(entry.asked) == {c for c in {choice.round % 3, 3} if SIZES[c]}
    assert seen[0].random.random() == generator(0, "cohort", 0).random()
    assert result.config is not None and result.config.sampling == "python:function"


def first(choice: Choice) -> list[int]:
    return [0, 2]


def second(choice: Choice) -> list[int]:
    return [0, 1]


def test_another_function_is_another_run(tmp_path: Path) -> None:
    second.__name__ = second.__qualname__ = "first"
    small_run("fedavg", sampling=first, rounds=1, out=tmp_path / "a")
    with pytest.raises(fr.InputError, match="holds another run"):
        small_run("fedavg", sampling=second, rounds=1, out=tmp_path / "a")


BAD: list[tuple[Any, str]] = [
    ([], "chose nobody in round 1; at least one client is needed"),
    ([0, 0], "chose client 0 twice in round 1"),
    ([99], "chose client 99 in round 1, who is not one of choice.clients"),
    ([-1], "chose client -1"),
    ([0.5], "gave .* in round 1; a list of client numbers is wanted"),
    (None, ".*a list of client numbers is wanted"),
    ("ab", ".*a list of client numbers is wanted"),
    ([True], ".*a list of client numbers is wanted"),
    ([[0, 1]], ".*a list of client numbers is wanted"),
]


@pytest.mark.parametrize(("answer", "words"), BAD)
def test_a_function_that_answers_nonsense_is_refused(answer: Any, words: str) -> None:
    with pytest.raises(fr.InputError, match=f"^sampling '.*' {words}"):
        small_run("fedavg", sampling=lambda choice: answer)


def test_a_function_that_fails_is_named() -> None:
    def fails(choice: Choice) -> list[int]:
        raise ValueError("no idea")

    with pytest.raises(fr.InputError, match="failed in round 1: ValueError: no idea"):
        small_run("fedavg", sampling=fails)


def test_a_function_cannot_change_what_the_run_knows() -> None:
    def writes(choice: Choice) -> list[int]:
        choice.losses[0] = 7.0
        return [0]

    with pytest.raises(fr.InputError, match="read-only"):
        small_run("fedavg", sampling=writes)


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("fedavg", {"sampling": "available"}, "there is no clock; give devices"),
        ("fedavg", {"sampling": "power"}, "power:D"),
        ("fedavg", {"sampling": "power:x"}, "power:D"),
        ("fedavg", {"sampling": "power:0"}, "power:D"),
        ("fedavg", {"sampling": "power:2", "per_round": 3}, "at least 3"),
        ("fedavg", {"sampling": "power:99"}, f"only {PEOPLE} clients"),
        ("fedavg", {"sampling": "availble"}, "did you mean 'available'"),
        ("fedavg", {"sampling": "size:3"}, "takes no options"),
        ("fedavg", {"sampling": "nowhere_at_all:f"}, "cannot be imported"),
        ("fedavg", {"sampling": "math:pi"}, "not a function"),
        ("fedavg", {"sampling": 3}, "sampling"),
        ("fedavg", {"sampling": worst, "participants": [[0]] * 5, "per_round": None}, "no meaning"),
        ("fed3r", {"sampling": "power:5"}, "asks every client once"),
        ("fedavg", {"sampling": "power:5", "late": "over:1", "devices": "uniform"}, "sampling=fix"),
        ("fedbuff", {"sampling": "power:5"}, "whenever a place is free"),
        ("fedasync", {"sampling": worst}, "whenever a place is free"),
        ("fedbuff", {"sampling": "available", "devices": "uniform"}, "whenever a place is free"),
        (
            "fedavg:weights=uniform",
            {"sampling": worst, "privacy": "gaussian:1,clip=1"},
            "no bound is known for sampling",
        ),
        (
            "fedavg",
            {"sampling": "power:5", "privacy": "gaussian:1,clip=1"},
            "no bound is known for sampling",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(text: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(fr.InputError, match=words):
        small_run(text, **{"per_round": 2, **options})


def test_a_function_of_a_spec_is_foreign_code() -> None:
    spec = Spec(algorithm="fedavg", sampling="somebody.else:f")
    assert foreign_code(spec) == ["somebody.else:f"]
    for known in ("fixed", "available", "power:3"):
        assert foreign_code(Spec(algorithm="fedavg", sampling=known)) == []


@pytest.mark.parametrize("how", ["size", "power:3", "available", "nowhere_at_all:f"])
def test_a_federation_refuses_it_before_anything_is_imported(how: str) -> None:
    config = FederationConfig(Spec(algorithm="fedavg", sampling=how), (1, 8, 8), 10, 4, named=False)
    with pytest.raises(fr.InputError, match=f"^sampling '{how}': .*use fixed, bernoulli or cyclic"):
        make_server_task(config)


def test_a_run_that_diverges_ends_alike_with_workers() -> None:
    """No function is asked about a round that there will not be."""
    asked: dict[int, list[int]] = {0: [], 2: []}
    for workers, rounds in asked.items():

        def notes(choice: Choice, rounds: list[int] = rounds) -> list[int]:
            rounds.append(choice.round)
            return [0, 1]

        result = small_run("fedavg", sampling=notes, lr=1e38, rounds=6, workers=workers)
        assert result.status == "diverged"
    assert asked[0] == asked[2]
