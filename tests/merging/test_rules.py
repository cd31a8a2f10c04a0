"""Merging against direct calculation, entry by entry, and what must hold exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrift.analysis.matching import Chain, align_all
from fedrift.core.flat import Layout, flatten
from fedrift.merging import rules

RANDOM = np.random.default_rng(0)
START = torch.tensor(RANDOM.normal(size=12))
MODELS = [START + torch.tensor(RANDOM.normal(size=12)) for _ in range(3)]


def changes() -> list[np.ndarray]:
    return [(w - START).numpy() for w in MODELS]


def test_mean_and_task_arithmetic() -> None:
    np.testing.assert_allclose(rules.mean(MODELS), np.mean([w.numpy() for w in MODELS], 0))
    expected = START.numpy() + 0.3 * sum(changes())
    np.testing.assert_allclose(rules.task_arithmetic(START, MODELS, 0.3), expected)


def by_hand_ties(keep: float, scale: float) -> np.ndarray:
    trimmed: list[list[float]] = []
    for change in changes():
        number = round(keep * len(change))
        kept = sorted(range(len(change)), key=lambda i: -abs(change[i]))[:number]
        trimmed.append([change[i] if i in kept else 0.0 for i in range(len(change))])
    merged = START.numpy().copy()
    for i in range(len(merged)):
        column = [row[i] for row in trimmed]
        sign = np.sign(sum(column))
        agree = [v for v in column if v != 0 and np.sign(v) == sign]
        merged[i] += scale * (sum(agree) / len(agree) if agree else 0.0)
    return merged


@pytest.mark.parametrize("keep", [0.25, 0.5, 1.0])
def test_ties(keep: float) -> None:
    np.testing.assert_allclose(rules.ties(START, MODELS, keep, 0.8), by_hand_ties(keep, 0.8))


def test_dare_drops_and_enlarges_and_is_unbiased() -> None:
    start, model = torch.zeros(4000, dtype=torch.float64), torch.ones(4000, dtype=torch.float64)
    merged = rules.dare(start, [model], 0.75, 1.0)
    assert set(merged.tolist()) == {0.0, 4.0}
    assert float(merged.mean()) == pytest.approx(1.0, abs=0.1)
    torch.testing.assert_close(rules.dare(START, MODELS, 0.0, 1 / 3), rules.mean(MODELS))
    again = rules.dare(start, [model, model], 0.75, 1.0)
    assert set(again.tolist()) == {0.0, 4.0, 8.0}, "every model drops entries of its own"


def test_fisher() -> None:
    known = [torch.tensor(RANDOM.uniform(size=12)) for _ in MODELS]
    for f in known:
        f[3] = 0.0
    merged = rules.fisher(MODELS, known)
    expected = sum(f * w for f, w in zip(known, MODELS, strict=True)) / sum(known)
    expected = torch.as_tensor(expected)
    expected[3] = rules.mean(MODELS)[3]
    torch.testing.assert_close(merged, expected)


def test_regmean_of_least_squares_is_the_pooled_solution() -> None:
    layout = Layout(("fc.weight", "fc.bias"), ((2, 4), (2,)))
    models: list[Tensor] = []
    grams: list[dict[str, Tensor]] = []
    inputs, outputs = [], []
    for _ in range(3):
        x = np.c_[RANDOM.normal(size=(30, 4)), np.ones(30)]
        y = RANDOM.normal(size=(30, 2))
        w = np.linalg.lstsq(x, y, rcond=None)[0]
        models.append(flatten([torch.tensor(w[:-1].T.copy()), torch.tensor(w[-1])]))
        grams.append({"fc.weight": torch.tensor(x.T @ x)})
        inputs.append(x)
        outputs.append(y)
    pooled = np.linalg.lstsq(np.concatenate(inputs), np.concatenate(outputs), rcond=None)[0]
    merged = layout.named(rules.regmean(layout, models, grams, shrink=1.0))
    np.testing.assert_allclose(merged["fc.weight"], pooled[:-1].T, rtol=1e-9)
    np.testing.assert_allclose(merged["fc.bias"], pooled[-1], rtol=1e-9)
    other = layout.named(rules.regmean(layout, models, grams, shrink=0.9))
    assert not np.allclose(other["fc.weight"], pooled[:-1].T)


def test_one_model_alone_gives_itself_and_equal_models_give_themselves() -> None:
    layout, one = Layout(("fc.weight",), ((3, 4),)), MODELS[0]
    chain = Layout(("0.weight", "0.bias", "1.weight", "1.bias"), ((2, 2), (2,), (2, 2), (2,)))
    x = RANDOM.normal(size=(20, 4))
    gram = {"fc.weight": torch.tensor(x.T @ x)}
    for models in ([one], [one, one.clone()]):
        scale = 1.0 / len(models)
        made = [
            rules.mean(models),
            rules.task_arithmetic(START, models, scale),
            rules.ties(START, models, 1.0),
            rules.dare(START, models, 0.0, scale),
            rules.mean(align_all(Chain.of(chain), models)),
            rules.weighted(START, models, torch.full((len(models), 1), scale), [slice(0, 12)]),
            rules.fisher(models, [torch.ones(12)] * len(models)),
            rules.regmean(layout, models, [gram] * len(models)),
        ]
        for merged in made:
            torch.testing.assert_close(merged, one, rtol=1e-9, atol=1e-12)


def test_the_order_of_the_models_does_not_matter() -> None:
    layout = Layout(("0.weight",), ((3, 4),))
    known = [torch.tensor(RANDOM.uniform(size=12)) for _ in MODELS]
    inputs = [torch.tensor(RANDOM.normal(size=(9, 4))) for _ in MODELS]
    grams = [{"0.weight": x.T @ x} for x in inputs]
    for order in ([2, 0, 1], [1, 0, 2]):
        models = [MODELS[i] for i in order]
        for mine, other in (
            (rules.mean(MODELS), rules.mean(models)),
            (rules.ties(START, MODELS, 0.5), rules.ties(START, models, 0.5)),
            (rules.fisher(MODELS, known), rules.fisher(models, [known[i] for i in order])),
            (
                rules.regmean(layout, MODELS, grams),
                rules.regmean(layout, models, [grams[i] for i in order]),
            ),
        ):
            torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-12)


def test_an_input_that_never_occurs_takes_the_mean() -> None:
    layout = Layout(("fc.weight", "fc.bias"), ((3, 4), (3,)))
    models = [torch.tensor(RANDOM.normal(size=15)) for _ in range(2)]
    grams: list[dict[str, Tensor]] = []
    for _ in models:
        x = np.c_[RANDOM.normal(size=(20, 4)), np.ones(20)]
        x[:, 1] = 0.0
        grams.append({"fc.weight": torch.tensor(x.T @ x)})
    for shrink in (0.9, 1.0):
        alone = rules.regmean(layout, models[:1], grams[:1], shrink)
        torch.testing.assert_close(alone, models[0], rtol=1e-9, atol=1e-12)
        both = layout.named(rules.regmean(layout, models, grams, shrink))["fc.weight"]
        mean = layout.named(rules.mean(models))["fc.weight"]
        torch.testing.assert_close(both[:, 1], mean[:, 1], rtol=1e-9, atol=1e-12)
        assert not torch.allclose(both[:, 0], mean[:, 0])


@pytest.mark.parametrize("name", rules.SEARCHES)
def test_search_finds_coefficients_without_gradients(name: str) -> None:
    wanted = torch.tensor([[0.7, 0.1], [-0.2, 0.4]], dtype=torch.float64)
    search, tried = rules.SEARCHES[name], list[Tensor]()

    def loss(coefficients: Tensor) -> float:
        tried.append(coefficients)
        return float((coefficients - wanted).square().sum())

    state = np.random.get_state(legacy=False)["state"]["key"]
    found = search(loss, 2, 2, 400)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.02)
    assert torch.equal(tried[0], torch.full((2, 2), 0.5, dtype=torch.float64)), "the mean first"
    assert len(tried) <= 401 and any(found is one for one in tried)
    assert torch.equal(found, search(loss, 2, 2, 400))
    assert not torch.equal(found, search(loss, 2, 2, 400, seed=1))
    after = np.random.get_state(legacy=False)["state"]["key"]
    np.testing.assert_array_equal(state, after, "no stream but its own")


@pytest.mark.parametrize("name", rules.SEARCHES)
@pytest.mark.parametrize("steps", [1, 3, 10])
def test_a_search_ends_with_the_best_it_has_tried(name: str, steps: int) -> None:
    losses: list[float] = []

    def loss(coefficients: Tensor) -> float:
        losses.append(float((coefficients - 0.2).square().sum()))
        return losses[-1]

    found = rules.SEARCHES[name](loss, 3, 1, steps)
    assert len(losses) == steps + 1 and float((found - 0.2).square().sum()) == min(losses)


def test_the_penalty_is_on_the_sum_of_the_coefficients_sizes() -> None:
    assert rules.penalised(1.0, torch.tensor([[0.4], [-0.6]])) == pytest.approx(1 + 0.05 * 1.0)
    two = torch.tensor([[0.4, 0.2], [-0.6, 0.2]])  # means over blocks: 0.3 and 0.4
    assert rules.penalised(1.0, two) == pytest.approx(1 + 0.05 * 0.7)
    same = torch.tensor([[0.4, 0.4], [-0.6, -0.6]])
    assert rules.penalised(1.0, same) == pytest.approx(1 + 0.05 * 1.0), "as without blocks"


def test_blocks_are_layers_or_what_a_stack_is_made_of() -> None:
    blocks = {
        "tokens.weight": "tokens",
        "blocks.0.norm1.weight": "blocks.0",
        "blocks.0.up.lora_A.weight": "blocks.0",
        "blocks.1.up.bias": "blocks.1",
        "distil.layer.0.attention.q.weight": "distil.layer.0",
        "body.up.lora_A.weight": "body.up",
        "body.up.lora_B.weight": "body.up",
        "body.up.bias": "body.up",
        "2.weight": "2",
        "scale": "scale",
        "tokens.bias": "tokens",
    }
    layout = Layout(tuple(blocks), ((2, 3),) * len(blocks))
    assert rules.blocks(layout) == list(blocks.values())
    spans = rules.spans(layout, list(blocks.values()))
    assert spans[:3] == [
        ("tokens", slice(0, 6)), ("blocks.0", slice(6, 18)), ("blocks.1", slice(18, 24)),
    ]  # fmt: skip
    assert [owner for owner, _ in spans].count("tokens") == 2 and spans[-1][1].stop == layout.size


def test_a_coefficient_for_every_model_and_block() -> None:
    weights = torch.tensor(RANDOM.normal(size=(3, 2)))
    spans = [slice(0, 4), slice(4, 9), slice(9, 12)]
    merged = rules.weighted(START, MODELS, weights[:, [1, 0, 1]], spans)
    for i, block in enumerate([1] * 4 + [0] * 5 + [1] * 3):
        expected = float(START[i]) + sum(
            float(weights[t, block]) * float(w[i] - START[i]) for t, w in enumerate(MODELS)
        )
        assert float(merged[i]) == pytest.approx(expected, rel=1e-12)
