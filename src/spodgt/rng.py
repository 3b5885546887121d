"""Randomness as a pure function of (seed, stream, round, client).

Any process, any resumed run and any batch of runs draws the same numbers, because nothing is
ever advanced: a draw is computed from its name. Two tools:

- `generator(seed, stream, ...)` for draws made once (a graph, a partition, an initial model);
- `words` and `uniform` for draws made in every round, vectorised over rounds and clients.

The per-round words come from a chain of SplitMix64 finalisers [steele2014splittable], one link
for each coordinate; the finaliser is a bijection of 64 bits that passes the usual test batteries.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

Words = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴/φ, the increment of SplitMix64
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


def _entropy(seed: int, stream: str, index: Sequence[int]) -> list[int]:
    return [int(seed), zlib.crc32(stream.encode()), *map(int, index)]


def generator(seed: int, stream: str, *index: int) -> np.random.Generator:
    """`generator(7, "graph", 0)` gives the same draws in every process and every run."""
    return np.random.default_rng(_entropy(seed, stream, index))


def torch_generator(seed: int, stream: str, *index: int) -> torch.Generator:
    """As `generator`, for torch: used for initial models."""
    (word,) = np.random.SeedSequence(_entropy(seed, stream, index)).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(word >> np.uint64(1)))


def key(seed: int, stream: str) -> np.uint64:
    """The 64-bit key of one stream of one run; the first argument of `words` and `uniform`."""
    (word,) = np.random.SeedSequence(_entropy(seed, stream, ())).generate_state(1, np.uint64)
    return np.uint64(word)


def words(keys: ArrayLike, *coordinates: ArrayLike) -> Words:
    """64 random bits for every (key, coordinates...), all broadcast against each other."""
    state = np.asarray(keys, dtype=np.uint64)
    with np.errstate(over="ignore"):  # arithmetic modulo 2⁶⁴ is the point
        for coordinate in coordinates:
            state = _finalise(state + _GOLDEN * (np.asarray(coordinate).astype(np.uint64) + np.uint64(1)))
    return state


def uniform(keys: ArrayLike, *coordinates: ArrayLike) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) with 53 random bits, one for every (key, coordinates...)."""
    return (words(keys, *coordinates) >> np.uint64(11)) * 2.0**-53


def _finalise(z: Words) -> Words:
    z = (z ^ (z >> np.uint64(30))) * _MIX1
    z = (z ^ (z >> np.uint64(27))) * _MIX2
    return z ^ (z >> np.uint64(31))
