"""Randomness as a pure function of (seed, stream, round, client).

Any process, any resumed run and any batch of runs draws the same numbers, because nothing is
ever advanced: a draw is computed from its name. Two tools:

- `generator(seed, stream, ...)` for draws made once (a graph, a partition, an initial model);
- `words`, `uniform`, `bernoulli` and `markov` for draws made in every round, vectorised over rounds and
  clients (`random_draws` has the same in compiled loops).

The per-round words come from a chain of SplitMix64 finalisers [steele2014splittable], one link
for each coordinate; the finaliser is a bijection of 64 bits that passes the usual test batteries.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from spodgt.engine import loops_enabled
from spodgt.errors import InvalidInput

Words = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴/φ, the increment of SplitMix64
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)


def _entropy(seed: int, stream: str, index: Sequence[int]) -> list[int]:
    try:
        number = operator.index(seed)
    except TypeError:
        number = -1
    if number < 0:
        raise InvalidInput(f"seed must be a whole number of at least 0, got {seed!r}; use 0.")
    return [number, zlib.crc32(stream.encode()), *map(int, index)]


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
            state = _finalise(
                state + _GOLDEN * (np.asarray(coordinate).astype(np.uint64) + np.uint64(1))
            )
    return state


def uniform(keys: ArrayLike, *coordinates: ArrayLike) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) with 53 random bits, one for every (key, coordinates...)."""
    return np.asarray((words(keys, *coordinates) >> np.uint64(11)) * 2.0**-53, np.float64)


def distinct(
    sizes: NDArray[np.int64], count: int, pick: Callable[[int, NDArray[np.int64]], ArrayLike]
) -> NDArray[np.int64]:
    """(rows, count) whole numbers below each row's size, none twice in a row: Floyd's sampling.

    Args:
        sizes: (rows,) at least `count` each.
        count: how many numbers to draw for every row.
        pick: `pick(column, tops)` gives a uniform number from 0 to tops[row] for every row.
    """
    chosen = np.empty((len(sizes), count), np.int64)
    for column in range(count):
        tops = sizes - count + column
        picked = np.asarray(pick(column, tops))
        taken = (chosen[:, :column] == picked[:, None]).any(1)
        chosen[:, column] = np.where(taken, tops, picked)
    return chosen


def _finalise(z: Words) -> Words:
    z = (z ^ (z >> np.uint64(30))) * _MIX1
    z = (z ^ (z >> np.uint64(27))) * _MIX2
    return z ^ (z >> np.uint64(31))


def bernoulli(key: np.uint64, rounds: range, chances: NDArray[np.float64]) -> NDArray[np.bool_]:
    """(rounds, chances): true with its chance, the same as `uniform(key, round, i) < chances[i]`."""
    out = np.empty((len(rounds), len(chances)), np.bool_)
    if not loops_enabled():
        for row, k in enumerate(rounds):
            out[row] = uniform(key, k, np.arange(len(chances))) < chances
        return out
    from spodgt.random_draws import fill_bernoulli

    fill_bernoulli(key, rounds.start, np.array(chances, np.float64), out)
    return out


def markov(
    key: np.uint64,
    rounds: range,
    start: NDArray[np.float64],
    stay: NDArray[np.float64],
    come: NDArray[np.float64],
    known: NDArray[np.bool_] | None = None,
) -> NDArray[np.bool_]:
    """(rounds, chains): chains of two states, up or down, which begin in round 0.

    A chain is up in round k if uniform(key, k, i) lies below `stay` where it was up in the round before, and
    below `come` where it was down. Numbers below both or above both decide without the past, so any round
    is found by going back to the last of these.

    Args:
        key: of the stream.
        rounds: which rounds.
        start: (chains,) the chance to be up in round 0.
        stay: (chains,) the chance to be up after a round up.
        come: (chains,) the chance to be up after a round down.
        known: (chains,) the states in the round before the first, which saves going back.
    """
    out = np.empty((len(rounds), len(start)), np.bool_)
    if not out.size:
        return out
    if not loops_enabled():
        return _markov(key, rounds, start, stay, come, known)
    from spodgt.random_draws import fill_markov

    before = np.empty(0, np.bool_) if known is None else np.array(known, np.bool_)
    probabilities = [np.array(each, np.float64) for each in (start, stay, come)]
    fill_markov(key, rounds.start, *probabilities, before, out)
    return out


def _markov(
    key: np.uint64,
    rounds: range,
    start: NDArray[np.float64],
    stay: NDArray[np.float64],
    come: NDArray[np.float64],
    known: NDArray[np.bool_] | None,
) -> NDArray[np.bool_]:
    """`markov` in NumPy."""
    chains = np.arange(len(start))
    state = known
    states: list[NDArray[np.bool_]] = []
    for k in rounds:
        if state is None:
            state = _markov_state(key, k, start, stay, come)
        else:
            state = uniform(key, k, chains) < np.where(state, stay, come)
        states.append(state)
    return np.stack(states)


def _markov_state(
    key: np.uint64,
    k: int,
    start: NDArray[np.float64],
    stay: NDArray[np.float64],
    come: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """(chains,): the states in round k, found by going back from there."""
    low = np.minimum(stay, come)
    high = np.maximum(stay, come)
    is_flipped = np.zeros(len(start), np.bool_)
    state = np.zeros(len(start), np.bool_)
    undecided = np.arange(len(start))
    while len(undecided):
        u = uniform(key, k, undecided)
        threshold = start[undecided] if k == 0 else low[undecided]
        is_decided = (k == 0) | (u < low[undecided]) | (u >= high[undecided])
        state[undecided] = (u < threshold) != is_flipped[undecided]
        is_flipped[undecided] ^= come[undecided] > stay[undecided]
        undecided = undecided[~is_decided]
        k -= 1
    return state
