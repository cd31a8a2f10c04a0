"""What every algorithm sends and computes: vectors each way, numbers beside them, gradients a step.

The literals are those of the papers' message sizes. Every client has 8 samples and makes three
full-batch steps, so one gradient is 8 examples; the last round is looked at, when everything that
starts empty is there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

import fedrift as fr
from fedrift.algorithms import NAMES
from fedrift.conform.problem import equal_sizes
from fedrift.core import SGD
from fedrift.core.messages import Size
from fedrift.engine.ledger import Entry
from tests.support.problems import small_run, uneven_clients
from tests.support.product import FedAvg, Trial, classifier, run_trial

N, STEPS, COHORT = 8, 3, 3
P = 8 * 12 + 12 + 12 * 4 + 4  # parameters of the model
HEAD = 12 * 4 + 4
BODY = (P - HEAD) / P
SMALL = 212  # parameters of problems.Net


@dataclass(frozen=True)
class Cost:
    """Per client and round: vectors of length P down and up, gradients a step, whole passes."""

    down: float
    up: float
    per_step: int
    """Gradients; 0: it makes no local steps."""
    passes: int = 0
    numbers_down: int = 0
    numbers_up: int = 0
    exchanges: int = 1
    trainings: int = 1
    """Of a visit; each makes the run's local steps."""

    def gradients(self, samples: int, epochs: int) -> int:
        """Examples differentiated; a full-batch step is an epoch."""
        return samples * (epochs * self.per_step + self.passes)


PLAIN, SHARP = Cost(1, 1, 1), Cost(1, 1, 2)
COSTS = {
    "fedsgd": Cost(1, 1, 0, passes=1),
    "fedavg": PLAIN,
    "fedavg:weights=uniform": PLAIN,
    "fedavgm": PLAIN,
    "fedprox": PLAIN,
    "fednova": Cost(1, 1, 1, numbers_up=2),
    "scaffold": Cost(2, 2, 1),
    "scaffold:option=I": Cost(2, 2, 1, passes=1),
    "fedadagrad": PLAIN,
    "fedadam": PLAIN,
    "fedyogi": PLAIN,
    "feddyn": PLAIN,
    "fedsam": SHARP,
    "fedasam": SHARP,
    "fedcm": Cost(2, 1, 1, numbers_up=1),
    "mofedsam": Cost(2, 1, 2, numbers_up=1),
    "fedgamma": Cost(2, 2, 2),
    "fedspeed": SHARP,
    "fedsmoo": Cost(2, 2, 2),
    "fedgf": Cost(2, 1, 2, numbers_down=1, numbers_up=1),
    "ghbm": Cost(2, 1, 1),
    "localghbm": PLAIN,
    "fedhbm": PLAIN,
    "mime": Cost(2, 2, 2, passes=1, numbers_down=1, exchanges=2),
    "mimemom": Cost(3, 2, 2, passes=1, numbers_down=1, exchanges=2),
    "mimelite": Cost(1, 1, 1, numbers_down=1),
    "mimelitemom": Cost(2, 2, 1, passes=1, numbers_down=1),
    "diloco": PLAIN,
    "fedbuff:buffer=3": PLAIN,
    "localonly": Cost(0, 0, 1),
    "fedper": Cost(BODY, BODY, 1),
    "fedper:what=hidden": Cost(HEAD / P, HEAD / P, 1),
    "fedrep": Cost(BODY, BODY, 2, trainings=2),
    "fedrep:head_steps=0": Cost(BODY, BODY, 1),
    "fedbn": PLAIN,
    "pfedme": Cost(1, 1, 5),
    "apfl": Cost(1, 1, 2),
    "swa(fedavg):cycle=2": PLAIN,
    "wima(fedsam)": SHARP,
    "sam(scaffold)": Cost(2, 2, 2),
    "asam(fedavg)": SHARP,
    "serveradam(scaffold)": Cost(2, 2, 1),
    "swa(serveradam(sam(scaffold)))": Cost(2, 2, 2),
    "keep(scaffold)": Cost(2 * BODY, 2 * BODY, 1),
    "keep(fedsam):what=none": SHARP,
    "ditto(fedavg)": Cost(1, 1, 2, trainings=2),
    "ditto(scaffold)": Cost(2, 2, 2, trainings=2),
    "finetune(fedavg)": PLAIN,
}


def trial(rounds: int = 4) -> Trial:
    few = equal_sizes(replace(classifier((N,) * 6), rounds=rounds))
    return few.working(steps=STEPS, batch_size=None)


def of_round(result: fr.Result, round: int) -> list[Entry]:
    return [entry for entry in result.ledger.entries if entry.round == round]


def vectors(entries: list[Entry], side: str) -> float:
    total = sum(size.tensors for e in entries for size in getattr(e, side).values())
    return total / (4 * P * COHORT)


def numbers(entries: list[Entry], side: str) -> float:
    total = sum(size.numbers for e in entries for size in getattr(e, side).values())
    return total / (8 * COHORT)


def test_every_name_has_a_row() -> None:
    names = {text.partition("(")[0].partition(":")[0] for text in COSTS}
    assert names == set(NAMES) - {"fed3r", "fed3rft", "fedasync"}  # they have tests of their own


@pytest.mark.parametrize("text", COSTS)
def test_cost(text: str) -> None:
    cost, result = COSTS[text], run_trial(text, trial())
    last = of_round(result, 4)
    assert len(last) == cost.exchanges
    assert vectors(last, "down") == cost.down
    assert vectors(last, "up") == cost.up
    assert numbers(last, "down") == cost.numbers_down
    assert numbers(last, "up") == cost.numbers_up
    assert sum(e.gradients for e in last) == cost.gradients(COHORT * N, STEPS)
    assert sum(e.steps for e in last) == (COHORT * STEPS * cost.trainings if cost.per_step else 0)
    assert sum(e.forwards for e in last) == 0
    total = result.ledger.of_round(4)
    assert total.bytes_down == COHORT * (4 * P * cost.down + 8 * cost.numbers_down)
    assert total.bytes_up == COHORT * (4 * P * cost.up + 8 * cost.numbers_up)
    others = {result.ledger.of_round(round) for round in (1, 2, 3)}
    assert others == {total} or text == "fedgf"  # no round is dearer than another


def test_fedgf_has_nothing_more_to_send_in_the_first_round() -> None:
    result = run_trial("fedgf", trial())
    assert [vectors(of_round(result, t), "down") for t in (1, 2, 3)] == [1, 2, 2]


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("mime", [("gradient", 1, 1, N), ("train", 1, 1, 2 * N * STEPS)]),
        ("mimemom", [("gradient", 2, 1, N), ("train", 1, 1, 2 * N * STEPS)]),
    ],
)
def test_mime_makes_two_exchanges(text: str, sent: list[tuple[str, int, int, int]]) -> None:
    entries = of_round(run_trial(text, trial()), 3)
    found = [
        (e.phase, vectors([e], "down"), vectors([e], "up"), e.gradients / COHORT) for e in entries
    ]
    assert found == sent


@pytest.mark.parametrize("text", COSTS)
def test_batches_of_unequal_clients_are_counted_one_by_one(text: str) -> None:
    """An epoch differentiates every sample once for each gradient of a step, in any batches."""
    epochs = 2
    unequal = classifier().working(epochs=epochs, batch_size=None if text == "fedsgd" else 8)
    sizes = [len(y) for _, y in unequal.clients]
    cost, result = COSTS[text], run_trial(text, unequal)
    for round in range(1, unequal.rounds + 1):
        entries = of_round(result, round)
        who = entries[-1].replied if text.startswith("fedbuff") else entries[-1].asked
        asked = [sizes[client] for client in who]
        assert sum(e.gradients for e in entries) == cost.gradients(sum(asked), epochs)
        steps = epochs * cost.trainings * sum(-(-n // 8) for n in asked)
        assert sum(e.steps for e in entries) == (steps if cost.per_step else 0)
        assert sum(e.forwards for e in entries) == 0
    assert result.ledger.gradients == sum(e.gradients for e in result.ledger.entries)


def test_a_stochastic_fedsgd_differentiates_one_batch_each() -> None:
    result = small_run("fedsgd", batch_size=16)
    for entry in result.ledger.entries:
        assert entry.gradients == sum(
            min(16, int(n)) for n in uneven_clients().sizes[list(entry.asked)]
        )


FIELDS = [
    ("fedsgd", {"w": 1}, {"g": 1}),
    ("fedavg", {"w": 1}, {"delta": 1}),
    ("fedavg:weights=uniform", {"w": 1}, {"delta": 1}),
    ("scaffold", {"w": 1, "c": 1}, {"delta": 1, "dc": 1}),
    ("scaffold:option=I", {"w": 1, "c": 1}, {"delta": 1, "dc": 1}),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "down", "up"), FIELDS)
def test_vectors_are_counted_under_their_fields(
    name: str, down: dict[str, int], up: dict[str, int], dtype: str
) -> None:
    """Per client and round: FedSGD and FedAvg 1 + 1 vectors, SCAFFOLD 2 + 2."""
    one = SMALL * (4 if dtype == "float32" else 8) * COHORT
    result = small_run(name, dtype=dtype)
    assert len(result.ledger.entries) == 5
    for t, entry in enumerate(result.ledger.entries):
        assert entry.round == t + 1 and len(entry.asked) == COHORT
        assert entry.asked == entry.replied and entry.nonfinite == ()
        assert entry.down == {field: Size(tensors=k * one) for field, k in down.items()}
        assert entry.up == {field: Size(tensors=k * one) for field, k in up.items()}
    assert result.ledger.bytes_down == 5 * one * sum(down.values())
    assert result.ledger.bytes_up == 5 * one * sum(up.values())


def test_server_optimizers_cost_no_bytes() -> None:
    heavy = small_run(FedAvg(outer=SGD(momentum=0.9)))
    assert heavy.ledger.bytes_up == small_run("fedavg").ledger.bytes_up


def test_fed3r_sends_a_triangle_once() -> None:
    """m(m+1)/2 + m·Y double-precision numbers up, the model down, one forward pass, no gradient."""
    m, classes = 12 + 1, 4
    result = run_trial("fed3r", trial(5))
    assert [e.round for e in result.ledger.entries] == [1, 2]  # six clients, three a round
    for entry in result.ledger.entries:
        assert vectors([entry], "down") == 1
        floats = {name: size.tensors / 8 / COHORT for name, size in entry.up.items()}
        assert floats == {"a": m * (m + 1) / 2, "b": m * classes}
        assert (entry.gradients, entry.forwards, entry.steps) == (0, COHORT * N, 0)
    assert sorted(c for e in result.ledger.entries for c in e.replied) == [0, 1, 2, 3, 4, 5]


def test_random_features_have_a_triangle_of_their_own_width() -> None:
    m, classes = 64 + 1, 4
    entries = run_trial("fed3r:features=64", trial(5)).ledger.entries
    last = [e for e in entries if e.phase == "statistics"]
    assert len(last) == 2
    assert last[-1].up["a"].tensors == 8 * COHORT * m * (m + 1) // 2
    assert last[-1].up["b"].tensors == 8 * COHORT * m * classes
    assert [e.phase for e in entries] == ["measure", "statistics", "statistics"]


@pytest.mark.parametrize(("part", "trained"), [("all", P), ("head", HEAD), ("features", P - HEAD)])
def test_fine_tuning_sends_the_trained_part(part: str, trained: int) -> None:
    result = run_trial(f"fed3rft(fedavg):train={part}", trial(7))
    tuning = [e for e in result.ledger.entries if e.phase == "second.train"]
    assert [e.round for e in tuning] == [3, 4, 5, 6, 7]
    for entry in tuning:
        assert entry.down["w"].tensors == 4 * trained * COHORT
        assert entry.up["delta"].tensors == 4 * trained * COHORT
    told = sum(e.down["frozen"].tensors for e in tuning if "frozen" in e.down)
    everyone = {c for e in tuning for c in e.asked}
    assert told == (4 * HEAD * len(everyone) if part == "features" else 0)  # once to each
