"""Every random choice of a run, derived from (seed, purpose, round, client) and nothing else."""

from __future__ import annotations

import zlib

import numpy as np


def entropy(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.SeedSequence:
    """The root of one stream. Purposes are words, so a new one never disturbs the others."""
    words = seed, zlib.crc32(purpose.encode()), round, client
    if max(words) < 1 << 32:  # the same numbers, read in a third of the time
        return np.random.SeedSequence(np.array(words, dtype=np.uint32))
    return np.random.SeedSequence(words)


def generator(seed: int, purpose: str, round: int = 0, client: int = 0) -> np.random.Generator:
    """A numpy generator for one purpose, round and client."""
    return np.random.Generator(np.random.PCG64(entropy(seed, purpose, round, client)))


def torch_seed(seed: int, purpose: str, round: int = 0, client: int = 0) -> int:
    """A 63-bit seed for torch's generator."""
    high, low = entropy(seed, purpose, round, client).generate_state(2, np.uint32)
    return (int(high) << 31) ^ int(low)
