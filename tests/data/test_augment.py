"""Augmentation: against naive versions, memory formats, determinism, and the oracles of mixup."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedrift.data.augment import (
    GRAMMAR,
    NAMES,
    Augment,
    Crop,
    Cutout,
    Flip,
    Mixed,
    Mixup,
    mixed_loss,
    parse_augment,
)
from fedrift.errors import InputError

FORMATS = [torch.contiguous_format, torch.channels_last]
CHANGES = [Crop(4), Flip(), Cutout(16)]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def images(n: int = 32, channels: int = 3, side: int = 32, wide: int | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(n, channels, side, wide or side, generator=generator) + 1.0  # never 0


@pytest.mark.parametrize("padding", [0, 1, 4, 11])
@pytest.mark.parametrize(("channels", "side", "wide"), [(3, 32, 32), (1, 28, 28), (2, 5, 9)])
@pytest.mark.parametrize("layout", FORMATS)
def test_crop_is_the_naive_one(
    padding: int, channels: int, side: int, wide: int, layout: torch.memory_format
) -> None:
    x = images(40, channels, side, wide).to(memory_format=layout)
    down, right = rng(5).integers(0, 2 * padding + 1, size=(2, 40))
    padded = F.pad(x, (padding,) * 4)
    expected = torch.stack(
        [p[:, a : a + side, b : b + wide] for p, a, b in zip(padded, down, right, strict=True)]
    )
    assert torch.equal(Crop(padding)(x, rng(5)), expected)
    if padding:
        assert len({*zip(down.tolist(), right.tolist(), strict=True)}) > 5


def test_crop_reaches_every_shift() -> None:
    x = torch.zeros(2000, 1, 7, 7)
    x[:, :, 3, 3] = 1.0
    places = {tuple(p[1:]) for p in Crop(2)(x, rng()).squeeze(1).nonzero().tolist()}
    assert places == {(a, b) for a in range(1, 6) for b in range(1, 6)}


def test_flip_mirrors_half_of_the_images() -> None:
    x = images(400, 2, 4, 6)
    out = Flip()(x, rng(3))
    mirrored = [torch.equal(a, b.flip(2)) for a, b in zip(out, x, strict=True)]
    same = [torch.equal(a, b) for a, b in zip(out, x, strict=True)]
    assert all(a != b for a, b in zip(mirrored, same, strict=True))
    assert 160 < sum(mirrored) < 240
    assert mirrored == (rng(3).random(400) < 0.5).tolist()


def test_cutout_zeroes_a_clipped_square_around_a_uniform_centre() -> None:
    x = images(1000)
    out = Cutout(16)(x, rng(1))
    zero = out == 0
    assert torch.equal(zero.all(1), zero.any(1)), "the same square in every channel"
    assert torch.equal(out[~zero], x[~zero])
    counts = zero[:, 0].sum((1, 2))
    assert counts.max() == 256 and counts.min() >= 64
    generator = rng(1)
    rows, columns = generator.integers(0, 32, 1000), generator.integers(0, 32, 1000)
    for i in range(200):
        square = torch.zeros(32, 32, dtype=torch.bool)
        y, z = int(rows[i]), int(columns[i])
        square[max(0, y - 8) : y + 8, max(0, z - 8) : z + 8] = True
        assert torch.equal(zero[i, 0], square)
    assert {*rows.tolist()} == {*range(32)}


def test_cutout_of_odd_length() -> None:
    zero = Cutout(3)(images(500, 1, 9), rng()) == 0
    assert zero.sum((1, 2, 3)).max() == 9


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("layout", FORMATS)
def test_strides_survive_and_the_input_is_not_written_to(
    change: Crop | Flip | Cutout, channels: int, layout: torch.memory_format
) -> None:
    x = images(16, channels).to(memory_format=layout)
    before = x.clone()
    out = change(x, rng())
    assert out.stride() == x.stride()
    assert out.dtype == x.dtype
    assert torch.equal(x, before)
    assert out.data_ptr() != x.data_ptr()
    assert torch.equal(out, change(before.contiguous(), rng())), "the format changes no value"
    mixed, _ = Mixup()(x, torch.arange(16), rng())
    assert mixed.stride() == x.stride()
    assert torch.equal(x, before)


@pytest.mark.parametrize("change", CHANGES)
def test_double_precision_and_single_images(change: Crop | Flip | Cutout) -> None:
    assert change(images(3).double(), rng()).dtype == torch.float64
    assert change(images(1), rng()).shape == (1, 3, 32, 32)


def test_mixup_with_alpha_0_changes_no_bit() -> None:
    x, y = images(8), torch.arange(8)
    generator = rng()
    out, target = Mixup(0.0)(x, y, generator)
    assert out is x and target is y
    assert generator.random() == rng().random(), "it draws nothing"


def test_mixup_blends_with_one_share_and_one_permutation() -> None:
    x, y = images(64, 1, 4), torch.arange(64)
    out, target = Mixup(1.0)(x, y, rng(2))
    assert isinstance(target, Mixed)
    draws = rng(2)
    share, order = draws.beta(1.0, 1.0), draws.permutation(64)
    assert target.share == share and 0 < share < 1
    assert torch.equal(target.y, y)
    assert torch.equal(target.y_perm, y[torch.from_numpy(order)])
    torch.testing.assert_close(out, share * x + (1 - share) * x[torch.from_numpy(order)])


def test_mixed_loss() -> None:
    output = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    y, other = torch.tensor([0, 1, 2, 0, 1, 2]), torch.tensor([2, 2, 1, 0, 0, 1])
    loss = pickle.loads(pickle.dumps(mixed_loss(F.cross_entropy)))
    assert torch.equal(loss(output, y), F.cross_entropy(output, y))
    expected = 0.3 * F.cross_entropy(output, y) + 0.7 * F.cross_entropy(output, other)
    torch.testing.assert_close(loss(output, Mixed(y, other, 0.3)), expected)


def test_a_single_class_makes_mixup_the_plain_loss_of_the_mixed_batch() -> None:
    x, y = images(16, 1, 4), torch.full((16,), 2)
    mixed, target = Mixup(1.0)(x, y, rng())
    output = mixed.flatten(1)[:, :5]
    assert not torch.equal(mixed, x)
    torch.testing.assert_close(
        mixed_loss(F.cross_entropy)(output, target), F.cross_entropy(output, y)
    )


def test_order_streams_and_determinism() -> None:
    """Crop, flip, cutout from the first generator, then mixup from the second, on that batch."""
    x, y = images(16), torch.arange(16)
    augment = parse_augment(["mixup:alpha=1", "cutout:length=8", "flip", "crop:4"])
    out, target = augment.apply(x, y, rng(1), rng(2))
    first = rng(1)
    expected, mixed = Mixup(1.0)(Cutout(8)(Flip()(Crop(4)(x, first), first), first), y, rng(2))
    assert torch.equal(out, expected)
    assert isinstance(target, Mixed) and isinstance(mixed, Mixed)
    assert torch.equal(target.y_perm, mixed.y_perm) and target.share == mixed.share
    again, _ = pickle.loads(pickle.dumps(augment))(x, y, rng(1), rng(2))
    assert torch.equal(again, out)
    assert not torch.equal(augment.apply(x, y, rng(1), rng(3))[0], out)
    assert not torch.equal(augment.apply(x, y, rng(3), rng(2))[0], out)


def test_parsing() -> None:
    everything = parse_augment(["crop:4", "flip", "mixup:alpha=1", "cutout:length=16"])
    assert everything == Augment(Crop(4), Flip(), Cutout(16), Mixup(1.0))
    assert parse_augment(["crop", "cutout", "mixup"]) == Augment(
        Crop(4), None, Cutout(16), Mixup(1)
    )
    assert parse_augment(["crop:padding=2", "mixup:0.2"]) == Augment(Crop(2), mixup=Mixup(0.2))
    assert parse_augment("flip") == Augment(flip=Flip())
    assert everything and not parse_augment([]) and not parse_augment(None)
    assert [*GRAMMAR] == [*NAMES]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["crpo:4"], "unknown augment 'crpo': did you mean 'crop'"),
        (["flip", "flip"], "augment names 'flip' twice"),
        (["flip:0.5"], "flip takes no value"),
        (["crop:x"], "option padding of augment crop must be a whole number .* not 'x'"),
        (["crop:-1"], "of at least 0, not '-1'"),
        (["crop:4,padding=3"], "gives padding twice"),
        (["cutout:length=0"], "option length of augment cutout .* at least 1"),
        (["cutout:size=3"], "unknown option of cutout 'size'.*known: length"),
        (["mixup:alpha=-1"], "option alpha of augment mixup must be a number of at least 0"),
        (["mixup:alpha=nan"], "not 'nan'"),
        (["crop(flip)"], "wraps nothing"),
    ],
)
def test_mistakes_in_the_text(texts: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_augment(texts)


def test_samples_that_cannot_be_augmented() -> None:
    y = torch.arange(4)
    with pytest.raises(InputError, match=r"'flip' needs images N×C×H×W, and x is \(4, 7\)"):
        Augment(flip=Flip()).check(torch.zeros(4, 7), y)
    with pytest.raises(InputError, match="'crop' needs images N×C×H×W, and x is dict"):
        Augment(crop=Crop()).check({"a": torch.zeros(4, 7)}, y)
    with pytest.raises(InputError, match=r"'mixup' needs x .* torch.int64 and Tensor"):
        Augment(mixup=Mixup()).check(torch.zeros(4, 7, dtype=torch.int64), y)
    with pytest.raises(InputError, match=r"'mixup' .* tuple and Tensor"):
        Augment(mixup=Mixup()).check((torch.zeros(4, 7),), y)
    Augment(mixup=Mixup()).check(torch.zeros(4, 7), y)
    Augment(Crop(), Flip(), Cutout(), Mixup()).check(images(4), y)


def test_parsing_needs_no_torch() -> None:
    code = (
        "import sys; from fedrift.data.augment import parse_augment; parse_augment(['crop:4']);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
