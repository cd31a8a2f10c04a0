"""Shared memory: any message written by one process is read the same by another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedrift.core.alignment import is_channels_last
from fedrift.core.messages import Packed
from fedrift.storage.shared_memory import (
    DTYPES,
    Block,
    Ref,
    anonymous_file,
    packed_to_tree,
    skeleton,
    tree_to_packed,
)

SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)
TENSORS = st.builds(
    lambda shape, name: (
        torch.arange(int(torch.Size(shape).numel())).reshape(shape).to(DTYPES[name])
    ),
    SHAPES,
    st.sampled_from(sorted(DTYPES)),
)
LEAVES = TENSORS | st.none() | st.integers() | st.booleans() | st.floats(allow_nan=False)
PACKED = st.dictionaries(st.text("abc.#", min_size=1, max_size=4), LEAVES, max_size=5)


def reader(block: Block) -> Block:
    """What another process would open: its own descriptor and its own map."""
    return Block(os.dup(block.descriptor))


def check(sent: Packed, received: Packed) -> None:
    assert list(sent) == list(received)
    for path, leaf in sent.items():
        other = received[path]
        if isinstance(leaf, Tensor):
            assert other.dtype == leaf.dtype and other.shape == leaf.shape
            assert torch.equal(other, leaf)
        else:
            assert other == leaf and type(other) is type(leaf)


@settings(max_examples=60, deadline=None)
@given(st.lists(PACKED, min_size=1, max_size=3))
def test_messages_of_any_form_follow_one_another(messages: list[Packed]) -> None:
    block = Block()
    other = reader(block)
    for packed in messages:
        where = block.put(packed)
        assert not any(isinstance(leaf, Tensor) for leaf in where.values())
        check(packed, other.get(where))
    other.close()
    block.close()


def test_a_block_grows_and_old_views_stay_valid() -> None:
    block = Block()
    other = reader(block)
    small = other.get(block.put({"x": torch.ones(3)}))["x"]
    big = torch.arange(1e6)
    check({"y": big}, other.get(block.put({"y": big})))
    assert small.shape == (3,), "readable, though overwritten: one message at a time"
    other.close()
    block.close()


def test_what_one_side_writes_the_other_sees() -> None:
    block = Block()
    where = block.put({"x": torch.zeros(4)})
    here, there = block.get(where)["x"], reader(block).get(where)["x"]
    there[2] = 5.0
    assert here.tolist() == [0, 0, 5, 0]


@pytest.mark.parametrize("channels", [1, 3])
def test_the_memory_format_of_images_is_kept(channels: int) -> None:
    x = torch.rand(5, channels, 4, 6).to(memory_format=torch.channels_last)
    plain = torch.rand(5, channels, 4, 6)
    assert is_channels_last(x) and not is_channels_last(plain)
    block = Block()
    received = block.get(block.put({"x": x, "plain": plain}))
    assert received["x"].stride() == x.stride() and torch.equal(received["x"], x)
    assert received["plain"].is_contiguous() and torch.equal(received["plain"], plain)


def test_strided_tensors_are_written_as_they_read() -> None:
    x = torch.arange(12.0).reshape(3, 4).T[::2]
    block = Block()
    check({"x": x}, block.get(block.put({"x": x})))


def test_nothing_with_a_name_is_left_on_disk(tmp_path: Path) -> None:
    block = Block(folder=str(tmp_path))
    check({"x": torch.ones(100)}, block.get(block.put({"x": torch.ones(100)})))
    assert list(tmp_path.iterdir()) == []
    block.close()
    descriptor = anonymous_file()
    assert os.fstat(descriptor).st_nlink == 0
    os.close(descriptor)


def test_tensors_start_where_vector_instructions_like_it() -> None:
    where = Block().put({"a": torch.ones(3), "b": torch.ones(1), "c": torch.ones(2, 2)})
    offsets = [ref.offset for ref in where.values() if isinstance(ref, Ref)]
    assert len(offsets) == 3 and all(offset % 64 == 0 for offset in offsets)


@pytest.mark.parametrize(
    "tree",
    [
        torch.ones(2),
        (torch.ones(2), torch.zeros(2, 3)),
        {"a": torch.ones(2), "b c": torch.zeros(2, 3)},
        (torch.ones(2),),
    ],
)
def test_inputs_of_any_structure_travel(tree: object) -> None:
    packed = tree_to_packed(tree, "x")
    again = packed_to_tree(skeleton(tree), packed, "x")
    assert type(again) is type(tree)
    assert list(tree_to_packed(again, "x")) == list(packed)
