"""Models of text: nothing is seen before its time, sizes, and what they write."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import fedrift as fr
from fedrift.config.models import choose_model
from fedrift.errors import InputError
from fedrift.models import factory
from fedrift.models.text import continued

NAMES = ["gpt:layers=2,width=16,heads=4", "lstm:width=12,embedding=6"]


def tokens(n: int = 24, length: int = 10, alphabet: int = 7) -> torch.Tensor:
    return torch.randint(0, alphabet, (n, length), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", NAMES)
def test_a_position_depends_on_what_came_before_alone(name: str) -> None:
    torch.manual_seed(0)
    module, x = factory(name, (10,), 7)().eval(), tokens()
    other = x.clone()
    other[:, 6] = (other[:, 6] + 1) % 7
    before, after = module(x), module(other)
    assert before.shape == (24, 7, 10)
    torch.testing.assert_close(before[:, :, :6], after[:, :, :6])
    assert not torch.allclose(before[:, :, 6:], after[:, :, 6:])


def test_sizes() -> None:
    count = sum(p.numel() for p in factory("gpt", (128,), 96)().parameters())
    block = 2 * 2 * 64 + 64 * 192 + 192 + 64 * 64 + 64 + 2 * 64 * 256 + 256 + 64
    assert count == 2 * 96 * 64 + 128 * 64 + 2 * block + 2 * 64


@pytest.mark.parametrize("name", NAMES)
def test_learns_a_pattern_and_writes_it_on(name: str) -> None:
    x = (torch.arange(11)[None] + torch.arange(24)[:, None]) % 7
    clients = [(x[i::3, :-1], x[i::3, 1:]) for i in range(3)]
    result = fr.run(
        "fedavg", model=name, clients=clients, test=clients[0], rounds=40, batch_size=4, lr=0.05,
        optimizer="adam", eval_every=40, workers=0, seed=0,
    )  # fmt: skip
    assert result.accuracy[-1] > 0.95
    assert result.metrics[-1]["perplexity"] == math.exp(result.loss[-1])
    written = continued(result.module(), torch.tensor([2, 3]), 8, 10, seed=0)
    assert written.tolist() == [(2 + i) % 7 for i in range(10)]


def test_filled_up_positions_do_not_count() -> None:
    x, y = tokens(), tokens().roll(-1, 1)
    y[:, 5:] = -100
    half = fr.run(
        "fedavg", model=NAMES[0], clients=[(x, y)], test=(x, y), rounds=1, lr=1e-9, workers=0
    )
    module = half.module()
    expected = F.cross_entropy(module(x)[:, :, :5], y[:, :5]).detach()
    assert half.loss[-1] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(
    ("text", "is_text", "words"),
    [
        ("cnn", True, "the data are text; use gpt, lstm"),
        ("gpt", False, "the data are no text; use mlp, cnn"),
    ],
)
def test_a_model_for_other_data_is_refused(text: str, is_text: bool, words: str) -> None:
    with pytest.raises(InputError, match=words):
        choose_model(text, None, is_text)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="width=10 must be a multiple of heads=4"):
        factory("gpt:width=10", (8,), 5)()
    with pytest.raises(InputError, match="context=4 is shorter than the windows of the data, 8"):
        factory("gpt:context=4", (8,), 5)()
    with pytest.raises(InputError, match="needs windows of tokens"):
        factory("gpt", (1, 8, 8), 5)
