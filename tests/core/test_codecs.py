"""Vectors packed into bytes: what comes out, how many bytes it is, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrift.core.codecs import largest, packed, packed_bytes, unpacked
from fedrift.core.compression import Packing, parse_compression
from fedrift.errors import InputError

TEXTS = ("topk:0.01", "topk:0.3", "topk:1", "qsgd:2", "qsgd:5", "qsgd:8", "qsgd:16", "sign")
HALVES = ("float16", "bfloat16")


def how(text: str) -> Packing:
    compression = parse_compression(f"up={text}")
    assert compression is not None
    packing = compression.of("up", "delta")
    assert packing is not None
    return packing


def there_and_back(v: torch.Tensor, text: str, seed: int = 0) -> torch.Tensor:
    data = packed(v, how(text), torch.Generator().manual_seed(seed))
    assert data.dtype == torch.uint8
    assert len(data) == packed_bytes(how(text), len(v), v.dtype)
    back = unpacked(data, how(text), len(v), v.dtype)
    assert back.dtype == v.dtype and back.shape == v.shape
    return back


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 70), st.sampled_from((*TEXTS, *HALVES)), st.booleans(), st.integers(0, 99))
def test_bytes_are_as_many_as_counted(size: int, text: str, double: bool, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    v = torch.randn(size, generator=random, dtype=torch.float64 if double else torch.float32)
    there_and_back(v, text, seed)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.25, 0.9, 1.0])
def test_topk_keeps_the_largest_and_of_equal_ones_the_first(share: float) -> None:
    v = torch.tensor([0.0, -3.0, 2.0, 2.0, -2.0, 1.0, 5.0, 0.0, 0.5, -0.5] * 7)
    number = math.ceil(share * len(v))
    order = sorted(range(len(v)), key=lambda i: (-abs(float(v[i])), i))
    expected = np.zeros(len(v), dtype=np.float32)
    for i in order[:number]:
        expected[i] = v[i]
    assert largest(v, number).tolist() == sorted(order[:number])
    assert there_and_back(v, f"topk:{share}").tolist() == expected.tolist()


def test_topk_keeps_one_entry_however_small_the_share() -> None:
    v = torch.tensor([1.0, -3.0, 2.0])
    assert there_and_back(v, "topk:1e-12").tolist() == [0.0, -3.0, 0.0]


def test_places_are_numbers_or_bits_whichever_is_shorter() -> None:
    few, many = how("topk:0.01"), how("topk:0.2")
    assert packed_bytes(few, 1000, torch.float32) == 10 * 4 + 10 * 4
    assert packed_bytes(many, 1000, torch.float32) == 200 * 4 + 125
    assert packed_bytes(how("topk:1"), 1000, torch.float32) == 4000


@pytest.mark.parametrize("bits", [2, 3, 8, 16])
def test_levels_are_right_on_average_and_within_one_level(bits: int) -> None:
    v = torch.randn(50, dtype=torch.float64)
    most = 2 ** (bits - 1) - 1
    ten = v.repeat(10)  # ten draws of every value at a time
    step = float(ten.norm()) / most
    packs = torch.stack([there_and_back(ten, f"qsgd:{bits}", seed) for seed in range(300)])
    draws = packs.reshape(3000, 50)
    assert float((draws - v).abs().max()) <= step * (1 + 1e-9)
    off = (draws.mean(dim=0) - v).abs()
    assert float(off.max()) < 5 * step / 2 / math.sqrt(3000)  # five deviations of a mean


def test_levels_of_a_vector_of_zeros_are_zeros() -> None:
    assert not there_and_back(torch.zeros(9), "qsgd:8").any()


def test_sign_sends_the_mean_size() -> None:
    v = torch.tensor([1.0, -2.0, 0.0, 5.0])
    assert there_and_back(v, "sign").tolist() == [2.0, -2.0, 2.0, 2.0]


@pytest.mark.parametrize("text", HALVES)
def test_halves_round_once(text: str) -> None:
    v = torch.randn(100)
    half = there_and_back(v, text)
    assert torch.equal(half, v.to(getattr(torch, text)).float())
    assert torch.equal(there_and_back(half, text), half)


def test_many_bits_come_near() -> None:
    v = torch.randn(64, dtype=torch.float64)
    assert float((there_and_back(v, "qsgd:16") - v).norm() / v.norm()) < 1e-3


@pytest.mark.parametrize("places", [[3, 2], [-1, 4], [0, 1000]])
def test_places_that_are_none_are_refused(places: list[int]) -> None:
    data = torch.cat(
        [torch.ones(2).view(torch.uint8), torch.tensor(places).int().view(torch.uint8)]
    )
    with pytest.raises(ValueError, match="places"):
        unpacked(data, how("topk:0.002"), 1000, torch.float32)


def test_marks_that_are_too_many_are_refused() -> None:
    data = torch.cat([torch.ones(2).view(torch.uint8), torch.tensor([255], dtype=torch.uint8)])
    with pytest.raises(ValueError, match="marked"):
        unpacked(data, how("topk:0.25"), 8, torch.float32)


def test_canonical_texts() -> None:
    for text, canonical in {
        "up=topk:0.01": "up=topk:0.01",
        " down = float16 , up=topk:0.010,feedback": "down=float16,up=topk:0.01",
        "up=sign,no-feedback": "up=sign,no-feedback",
        "up.dc=qsgd:8,up=sign": "up=sign,up.dc=qsgd:8",
    }.items():
        assert str(parse_compression(text)) == canonical
        assert str(parse_compression(canonical)) == canonical


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("topk:0.1", "up=topk:0.01,down=float16"),
        ("up=zip", "topk"),
        ("up=topk", "topk:SHARE"),
        ("up=sign:3", "write sign"),
        ("up=topk:0", "above 0"),
        ("up=topk:1.5", "1"),
        ("up=qsgd:1", "2"),
        ("up=qsgd:40", "16"),
        ("down=topk:0.1", "most of it missing"),
        ("up=float16,feedback", "feedback is for"),
        ("up=sign,up=topk:0.1", "twice"),
        ("feedback", "is not of the form"),
        ("", "is not of the form"),
        ("side=float16", "is not of the form"),
    ],
)
def test_wrong_texts(text: str, says: str) -> None:
    with pytest.raises(InputError) as error:
        parse_compression(text)
    assert says in str(error.value) and "\n" not in str(error.value)
