"""Whole peers under a seeded simulator: safety under any fault, and liveness after the faults."""

from __future__ import annotations

import pytest

from tests.peer.simulation.simulator import plan_of, simulate

SEEDS = 100
BLOCKS = 4


@pytest.mark.parametrize("block", range(BLOCKS))
def test_peers_keep_their_promises_under_the_faults_of_a_seed(block: int) -> None:
    for seed in range(block, SEEDS, BLOCKS):
        outcome = simulate(plan_of(seed))
        again = f"python -m tests.peer.simulation --seed {seed}"
        assert not outcome.failure, f"{outcome.failure}\n{outcome.plan}\nagain: {again}"


def test_a_seed_has_one_course() -> None:
    first = simulate(plan_of(7))
    second = simulate(plan_of(7))
    assert first.digest
    assert first.digest == second.digest
    assert first.virtual_seconds == second.virtual_seconds
    assert first.log == second.log
