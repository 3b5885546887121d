"""Randomness is a pure function of (seed, stream, round, client), and looks random."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from spodgt import rng
from spodgt.errors import InvalidInput

U64 = st.integers(0, 2**64 - 1)


@given(U64, st.integers(0, 10**9), st.integers(0, 10**6))
def test_one_by_one_as_all_at_once(key: int, k: int, client: int) -> None:
    """Batches of draws are the draws themselves: no order, no state."""
    rounds, clients = np.array([k, k + 1, k + 7]), np.array([client, client + 3])
    table = rng.uniform(np.uint64(key), rounds[:, None], clients[None])
    for i, j in np.ndindex(table.shape):
        assert table[i, j] == rng.uniform(np.uint64(key), rounds[i], clients[j])


def test_same_numbers_in_every_process() -> None:
    line = (
        "from spodgt import rng; print(rng.uniform(rng.key(7, 'links'), 3, 4), "
        "rng.generator(7, 'graph', 1).random(), rng.torch_generator(7, 'start').initial_seed())"
    )
    other = subprocess.run(
        [sys.executable, "-c", line], capture_output=True, text=True, check=True
    ).stdout
    ours = (
        rng.uniform(rng.key(7, "links"), 3, 4),
        rng.generator(7, "graph", 1).random(),
        rng.torch_generator(7, "start").initial_seed(),
    )
    assert other.split() == [str(number) for number in ours]


def test_pinned_draws() -> None:
    """Whoever changes these changes every published number."""
    assert int(rng.words(rng.key(0, "clients"), 0, 0)) == 16976133629648338283
    assert rng.generator(0, "graph").random() == 0.17196489915258473


@pytest.mark.parametrize("axis", ["rounds", "clients", "seeds"])
def test_uniform_along_every_coordinate(axis: str) -> None:
    n = np.arange(20_000)
    draws = {
        "rounds": lambda: rng.uniform(rng.key(1, "links"), n, 0),
        "clients": lambda: rng.uniform(rng.key(1, "links"), 0, n),
        "seeds": lambda: rng.uniform(np.array([rng.key(s, "links") for s in range(4000)]), 0, 0),
    }[axis]()
    assert draws.min() >= 0
    assert draws.max() < 1
    assert stats.kstest(draws, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 4 / np.sqrt(len(draws))


def test_streams_and_neighbours_are_independent() -> None:
    n = np.arange(20_000)
    one = rng.uniform(rng.key(1, "links"), n, 0)
    others = [
        rng.uniform(rng.key(1, "clients"), n, 0),
        rng.uniform(rng.key(2, "links"), n, 0),
        rng.uniform(rng.key(1, "links"), n, 1),
        rng.uniform(rng.key(1, "links"), 0, n),
    ]
    for other in others:
        assert abs(np.corrcoef(one, other)[0, 1]) < 4 / np.sqrt(len(n))


@given(U64, st.integers(0, 2**40))
def test_coordinates_do_not_commute(key: int, k: int) -> None:
    """(round, client) and (client, round) are different names."""
    assert rng.words(np.uint64(key), k, k + 1) != rng.words(np.uint64(key), k + 1, k)


@pytest.mark.parametrize("seed", [-1, 2.5, "zero"])
def test_bad_seed(seed: object) -> None:
    with pytest.raises(
        InvalidInput, match=r"seed must be a whole number of at least 0, got .*; use 0\."
    ):
        rng.generator(seed, "graph")  # type: ignore[arg-type]
