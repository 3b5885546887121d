"""Whole peers under a seeded simulator: safety under any fault, and liveness after the faults."""

from __future__ import annotations

import asyncio
from random import Random
from unittest.mock import patch

import pytest

from tests.peer.simulation.mutants import MUTANTS
from tests.peer.simulation.network import Network, Path, Pipe
from tests.peer.simulation.plan import Fault, Plan, Setup
from tests.peer.simulation.shrink import shrink
from tests.peer.simulation.simulator import plan_of, simulate
from tests.peer.simulation.virtual import VirtualLoop

SEEDS = 100
BLOCKS = 4
_SLOW = pytest.mark.slow


@pytest.mark.parametrize("block", [0, 1, *(pytest.param(n, marks=_SLOW) for n in (2, 3))])
def test_peers_keep_their_promises_under_the_faults_of_a_seed(block: int) -> None:
    for seed in range(block, SEEDS, BLOCKS):
        outcome = simulate(plan_of(seed))
        again = f"python -m tests.peer.simulation --seed {seed}"
        assert not outcome.failure, f"{outcome.failure}\n{outcome.plan}\nagain: {again}"


def test_a_failure_is_shrunk_to_the_faults_that_cause_it_and_repeated_exactly() -> None:
    faults = (
        Fault(3.0, "slow", "p0", "p1", seconds=4.0, number=2.0),
        Fault(4.0, "change_settings", "p1", "p2", seconds=1.0, number=1.0),
        Fault(5.0, "reset", "p2", "p0", number=1.0),
        Fault(6.0, "crash", "p0", "p1", seconds=1.0, number=1.0),
    )
    mutant = MUTANTS["ask nobody for a manifest"]
    with patch.object(mutant.owner, mutant.name, mutant.wrong):
        smallest = shrink(Plan(5, Setup(), faults, seconds=8.0))
        assert [fault.kind for fault in smallest.faults] == ["change_settings"]
        first = simulate(smallest)
        second = simulate(smallest)
    assert first.failure
    assert first.failure == second.failure
    assert first.log == second.log


def test_a_seed_has_one_course() -> None:
    first = simulate(plan_of(7))
    second = simulate(plan_of(7))
    assert first.digest
    assert first.digest == second.digest
    assert first.virtual_seconds == second.virtual_seconds
    assert first.log == second.log


def test_frames_of_a_stream_arrive_in_order_after_a_cut() -> None:
    loop = VirtualLoop()
    network = Network(loop, Random(0))
    pipe = Pipe(network, ("p0", "p1"))
    frames = [bytes([number]) for number in range(7)]

    async def exchange() -> list[bytes | None]:
        network.set_path("p0", "p1", Path(is_cut=True))
        for frame in frames:
            await pipe.write(frame)
            await asyncio.sleep(0.1)
        network.heal()
        return [await pipe.read() for _ in frames]

    received = loop.run_until_complete(exchange())
    loop.close()
    assert received == frames
