"""Compiled loops for random draws; `rng` and `problems.samples` have the same in NumPy.

A draw is a function of its key and coordinates: a chain of SplitMix64 finalizers, see `rng`.
"""

from __future__ import annotations

import numpy as np

from spodgt.engine import compiled_loop


@compiled_loop
def random_word(state, coordinate):  # type: ignore[no-untyped-def]
    """64 random bits: one link of the chain of `rng.words`."""
    z = state + np.uint64(0x9E3779B97F4A7C15) * (np.uint64(coordinate) + np.uint64(1))
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@compiled_loop
def random_uniform(state, coordinate):  # type: ignore[no-untyped-def]
    """A number in [0, 1) with 53 random bits."""
    return np.float64(random_word(state, coordinate) >> np.uint64(11)) * 2.0**-53


@compiled_loop
def fill_bernoulli(key, first_round, probabilities, out):  # type: ignore[no-untyped-def]
    """out[r, i] ← uniform(key, first_round + r, i) < probabilities[i]."""
    for r in range(out.shape[0]):
        state = random_word(key, first_round + r)
        for i in range(out.shape[1]):
            out[r, i] = random_uniform(state, i) < probabilities[i]


@compiled_loop
def fill_markov(  # type: ignore[no-untyped-def]
    key, first_round, p_start, p_up_given_up, p_up_given_down, before, out
):
    """out[r, i] ← state of the two-state Markov chain i in round first_round + r; see `rng.markov`.

    `before` holds the states in the round before the first, or nothing where they are not known.
    """
    for i in range(out.shape[1]):
        low = min(p_up_given_up[i], p_up_given_down[i])
        high = max(p_up_given_up[i], p_up_given_down[i])
        start_row = 0
        if len(before):
            is_up = before[i]
        else:
            is_up = _state_in_round(
                key, first_round, i, p_start[i], low, high, p_up_given_down[i] > p_up_given_up[i]
            )
            out[0, i] = is_up
            start_row = 1
        for r in range(start_row, out.shape[0]):
            probability = p_up_given_up[i] if is_up else p_up_given_down[i]
            is_up = random_uniform(random_word(key, first_round + r), i) < probability
            out[r, i] = is_up


@compiled_loop
def _state_in_round(key, k, i, p_start, low, high, alternates):  # type: ignore[no-untyped-def]
    """State of chain i in round k, from the last draw that sets it whatever the state before.

    Draws between `low` and `high` keep the state, or turn it round where the chain `alternates`.
    """
    is_flipped = False
    while True:
        u = random_uniform(random_word(key, k), i)
        if k == 0:
            return (u < p_start) != is_flipped
        if u < low or u >= high:
            return (u < low) != is_flipped
        is_flipped = is_flipped != alternates
        k -= 1


@compiled_loop
def draw_without_replacement(key, k, client, population, chosen):  # type: ignore[no-untyped-def]
    """chosen ← distinct numbers below `population` by (key, k, client): Floyd's algorithm."""
    count = len(chosen)
    state = random_word(random_word(key, k), client)
    for n in range(count):
        if population == count:
            chosen[n] = n
            continue
        top = population - count + n
        candidate = np.int64(random_uniform(state, n) * (top + 1))
        for earlier in range(n):
            if chosen[earlier] == candidate:
                candidate = top
                break
        chosen[n] = candidate


@compiled_loop
def draw_minibatches(keys, k, clients, populations, chosen):  # type: ignore[no-untyped-def]
    """chosen[n] ← `draw_without_replacement` for client n of several."""
    for n in range(len(populations)):
        draw_without_replacement(keys[n], k, clients[n], populations[n], chosen[n])
