"""Cached features: what an extractor computes before its head, kept under a hash of everything."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fedrift.errors import InputError
from fedrift.models import factory
from fedrift.presets.studies import extractors
from fedrift.presets.studies.extractors import (
    Extractor,
    cached,
    extract,
    extractor,
    fingerprint,
)

SHAPE = (1, 8, 8)


def images(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, *SHAPE)).astype(np.float32)


def some(seed: int = 0, text: str = "random-conv:filters=3") -> Extractor:
    return extractor(text, factory(text, SHAPE, 4), torch.from_numpy(images(2)), seed=seed)


def test_features_are_the_heads_input() -> None:
    made, caught = factory("mlp:hidden=6", SHAPE, 4)(), []
    source = extractor("own", lambda: made, torch.from_numpy(images(2)))
    made.get_submodule("fc3").register_forward_pre_hook(lambda _, args: caught.append(args[0]))
    x = images(40)
    made(torch.from_numpy(x))
    found = extract(source, x)
    assert found.shape == (40, 6) and source.width == 6
    torch.testing.assert_close(found, caught[0].detach())
    assert isinstance(made.get_submodule("fc3"), nn.Linear), "the reader's module is not touched"


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    source, x = some(), images(70)
    assert torch.equal(extract(source, x, 1), extract(source, x, 3))


def test_a_factory_is_drawn_from_the_seed() -> None:
    x = images(5)
    assert torch.equal(extract(some(3), x), extract(some(3), x))
    assert not torch.equal(extract(some(3), x), extract(some(4), x))


def test_a_model_without_a_head_is_refused() -> None:
    make = partial(nn.Sequential, nn.Flatten(), nn.Linear(64, 4), nn.Tanh())
    with pytest.raises(InputError, match="classifier head"):
        extractor("own", make, torch.from_numpy(images(2)))


def test_features_are_computed_once_and_blocks_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extractors, "BLOCK", 20)
    source, x, told = some(), images(50), list[str]()
    first = cached(source, x, folder=tmp_path, tell=told.append)
    assert len(told) == 3 and torch.equal(first, extract(source, x))
    files = sorted(tmp_path.rglob("*.safetensors"))
    assert len(files) == 3
    files[1].write_bytes(files[1].read_bytes()[:-9])  # a torn file is made again, the rest is read
    told.clear()
    assert torch.equal(cached(source, x, folder=tmp_path, tell=told.append), first)
    assert told == ["features of random-conv:filters=3: 20 of 50 samples"]
    assert not [f for f in tmp_path.rglob("*") if f.name.endswith(".tmp")]


def test_every_change_has_another_name() -> None:
    x = images(10)
    moved = x.copy()
    moved[3, 0, 2, 2] += 1e-6
    names = {
        fingerprint(some(), x),
        fingerprint(some(1), x),
        fingerprint(some(), moved),
        fingerprint(some(text="random-conv:filters=4"), x),
        fingerprint(some(text="mlp:hidden=5"), x),
    }
    assert len(names) == 5
    assert fingerprint(some(), x) == fingerprint(some(), x.copy())


def test_the_size_images_are_brought_to_is_part_of_the_name() -> None:
    x = np.zeros((2, 3, 32, 32), np.float32)
    found = set()
    for size in (32, 48):
        torch.manual_seed(0)
        net = factory(f"mobilenet-v2:size={size}", (3, 32, 32), 4)()
        found.add(fingerprint(Extractor("m", net, 1280), x))
    assert len(found) == 2
