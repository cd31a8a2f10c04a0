"""Weight matching: renumbering keeps the function, and a renumbered network is recognised."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrift.analysis.matching import Chain, align, align_all, match_neurons, unmoved
from fedrift.core import Layout, Vec, flatten
from fedrift.errors import InputError
from fedrift.models import factory

CASES = [("mlp:hidden=12", (1, 6, 6)), ("cnn", (1, 28, 28)), ("niid-cnn", (3, 32, 32))]


def made(text: str, shape: tuple[int, ...], seed: int) -> tuple[Chain, Vec]:
    torch.manual_seed(seed)
    module = factory(text, shape, 5)()
    layout = Layout.of(module)
    return Chain.of(layout), flatten([p for _, p in module.named_parameters()])


def output(text: str, shape: tuple[int, ...], chain: Chain, w: Vec) -> Tensor:
    module = factory(text, shape, 5)()
    with torch.no_grad():
        for name, value in module.named_parameters():
            value.copy_(chain.layout.named(w)[name])
    x = torch.randn(3, *shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return module(x)


def shuffled(chain: Chain, seed: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {layer: rng.permutation(width) for layer, width in chain.widths().items()}


@pytest.mark.parametrize(("text", "shape"), CASES)
def test_renumbering_keeps_the_function_and_moves_the_weights(
    text: str, shape: tuple[int, ...]
) -> None:
    chain, w = made(text, shape, 0)
    other = chain.renumbered(w, shuffled(chain))
    assert not torch.equal(w, other)
    torch.testing.assert_close(
        output(text, shape, chain, other), output(text, shape, chain, w), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(("text", "shape"), CASES)
def test_a_renumbered_network_is_recognised(text: str, shape: tuple[int, ...]) -> None:
    chain, w = made(text, shape, 0)
    other = chain.renumbered(w, shuffled(chain))
    assert torch.equal(align(chain, w, other), w)


def test_matching_brings_another_network_nearer_but_keeps_what_it_computes() -> None:
    text, shape = CASES[0]
    (chain, a), (_, b) = made(text, shape, 0), made(text, shape, 1)
    found = align(chain, a, b)
    assert (found - a).norm() < (b - a).norm()
    torch.testing.assert_close(
        output(text, shape, chain, found), output(text, shape, chain, b), rtol=1e-4, atol=1e-5
    )
    assert all(sorted(order) == list(range(12)) for order in match_neurons(chain, a, b).values())


def test_several_renumbered_copies_become_one() -> None:
    chain, w = made(*CASES[0], 0)
    copies = [chain.renumbered(w, shuffled(chain, seed)) for seed in range(4)]
    found = align_all(chain, copies)
    for one in found[1:]:
        assert torch.equal(one, found[0])


def test_a_network_that_is_no_chain_is_refused() -> None:
    layout = Layout.of(factory("resnet20", (3, 8, 8), 5)())
    with pytest.raises(InputError, match="layer 'norm' does not follow"):
        Chain.of(layout)


def test_neurons_that_stay_are_counted_over_all_layers() -> None:
    orders = {"a": np.array([0, 2, 1, 3]), "b": np.array([1, 0])}
    assert unmoved(orders) == 2 / 6
    chain, w = made(*CASES[0], 0)
    assert unmoved(match_neurons(chain, w, w)) == 1.0
    two = {layer: np.r_[1, 0, np.arange(2, n)] for layer, n in chain.widths().items()}
    moved = match_neurons(chain, w, chain.renumbered(w, two))
    width = sum(chain.widths().values())
    assert unmoved(moved) == 1 - 2 * len(two) / width
