"""Randomness as a pure function of (seed, stream, round, client).

Each process, each resumed run and each batch of runs draws the same numbers, because there is no
state: a draw is a function of its coordinates.

- `generator(seed, stream, ...)` is for draws made once (a graph, a partition, an initial model);
- `words`, `uniform`, `bernoulli` and `markov` are for draws made in each round, vectorised over
  rounds and clients (`random_draws` has the same in compiled loops).

The words of a round are a chain of SplitMix64 finalisers [steele2014splittable], one for each
coordinate; the finaliser is a bijection of 64 bits that passes the usual test batteries.
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
    with np.errstate(over="ignore"):  # arithmetic modulo 2⁶⁴ is intended
        for coordinate in coordinates:
            state = _finalise(
                state + _GOLDEN * (np.asarray(coordinate).astype(np.uint64) + np.uint64(1))
            )
    return state


def uniform(keys: ArrayLike, *coordinates: ArrayLike) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) with 53 random bits, one for every (key, coordinates...)."""
    return np.asarray((words(keys, *coordinates) >> np.uint64(11)) * 2.0**-53, np.float64)


def sample_without_replacement(
    sizes: NDArray[np.int64], count: int, pick: Callable[[int, NDArray[np.int64]], ArrayLike]
) -> NDArray[np.int64]:
    """(rows, count) distinct whole numbers below each row's size: Floyd's algorithm.

    Args:
        sizes: (rows,) at least `count` each.
        count: How many numbers to draw for each row.
        pick: `pick(column, tops)` gives a uniform number from 0 to tops[row] for each row.
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


def bernoulli(
    key: np.uint64, rounds: range, probabilities: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """(rounds, n) draws: uniform(key, round, i) < probabilities[i].

    Args:
        key: Of the stream.
        rounds: The rounds to sample.
        probabilities: (n,).
    """
    out = np.empty((len(rounds), len(probabilities)), np.bool_)
    if not loops_enabled():
        for row, k in enumerate(rounds):
            out[row] = uniform(key, k, np.arange(len(probabilities))) < probabilities
        return out
    from spodgt.random_draws import fill_bernoulli

    fill_bernoulli(key, rounds.start, np.array(probabilities, np.float64), out)
    return out


def markov(
    key: np.uint64,
    rounds: range,
    p_start: NDArray[np.float64],
    p_up_given_up: NDArray[np.float64],
    p_up_given_down: NDArray[np.float64],
    previous: NDArray[np.bool_] | None = None,
) -> NDArray[np.bool_]:
    """(rounds, chains) states, up or down, of two-state Markov chains that begin in round 0.

    A chain is up in round k if uniform(key, k, i) is below `p_up_given_up` after a round up, and
    below `p_up_given_down` after a round down. Draws below both or above both do not depend on the
    past, so the state in any round follows from the last round with such a draw.

    Args:
        key: Of the stream.
        rounds: The rounds to sample.
        p_start: (chains,) probability of up in round 0.
        p_up_given_up: (chains,) probability of up after a round up.
        p_up_given_down: (chains,) probability of up after a round down.
        previous: (chains,) states in the round before the first; saves the search for it.
    """
    out = np.empty((len(rounds), len(p_start)), np.bool_)
    if not out.size:
        return out
    if not loops_enabled():
        return _markov_in_numpy(key, rounds, p_start, p_up_given_up, p_up_given_down, previous)
    from spodgt.random_draws import fill_markov

    before = np.empty(0, np.bool_) if previous is None else np.array(previous, np.bool_)
    fill_markov(
        key,
        rounds.start,
        np.array(p_start, np.float64),
        np.array(p_up_given_up, np.float64),
        np.array(p_up_given_down, np.float64),
        before,
        out,
    )
    return out


def _markov_in_numpy(
    key: np.uint64,
    rounds: range,
    p_start: NDArray[np.float64],
    p_up_given_up: NDArray[np.float64],
    p_up_given_down: NDArray[np.float64],
    previous: NDArray[np.bool_] | None,
) -> NDArray[np.bool_]:
    chains = np.arange(len(p_start))
    state = previous
    states: list[NDArray[np.bool_]] = []
    for k in rounds:
        if state is None:
            state = _markov_state(key, k, p_start, p_up_given_up, p_up_given_down)
        else:
            state = uniform(key, k, chains) < np.where(state, p_up_given_up, p_up_given_down)
        states.append(state)
    return np.stack(states)


def _markov_state(
    key: np.uint64,
    k: int,
    p_start: NDArray[np.float64],
    p_up_given_up: NDArray[np.float64],
    p_up_given_down: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """(chains,) states in round k, by going back to a round in which the draw decides."""
    low = np.minimum(p_up_given_up, p_up_given_down)
    high = np.maximum(p_up_given_up, p_up_given_down)
    is_flipped = np.zeros(len(p_start), np.bool_)
    state = np.zeros(len(p_start), np.bool_)
    undecided = np.arange(len(p_start))
    while len(undecided):
        u = uniform(key, k, undecided)
        threshold = p_start[undecided] if k == 0 else low[undecided]
        is_decided = (k == 0) | (u < low[undecided]) | (u >= high[undecided])
        state[undecided] = (u < threshold) != is_flipped[undecided]
        is_flipped[undecided] ^= p_up_given_down[undecided] > p_up_given_up[undecided]
        undecided = undecided[~is_decided]
        k -= 1
    return state
