"""Schedules that have found bugs, kept as they were; `docs/results/simulation.md` lists them."""

from __future__ import annotations

import pytest

from tests.peer.simulation.plan import Fault, Plan, Setup
from tests.peer.simulation.simulator import simulate

PAIRS_OF_CHANGES = []
for at in (4.0, 7.0, 10.0, 13.0):
    PAIRS_OF_CHANGES.append(Fault(at, "change_settings", "p0", "p1", number=2.0))
    PAIRS_OF_CHANGES.append(Fault(at + 0.9, "change_settings", "p1", "p2", number=1.0))

FOUND = {
    "an outage, then a restart of all: nobody sends first": Plan(
        1,
        Setup(max_alone=6),
        (Fault(8.0, "outage", "p0", "p1", seconds=12.0, number=5.0),),
    ),
    "of two versions within a second the later one is overwritten by a fetched one": Plan(
        2, Setup(rate=1.0), tuple(PAIRS_OF_CHANGES), 16.0
    ),
    "a client in quarantine does not learn of its end": Plan(
        4,
        Setup(),
        (Fault(6.0, "quarantine", "p0", "p1", seconds=12.0, number=1.0),),
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_schedule_that_once_failed_passes(name: str) -> None:
    outcome = simulate(FOUND[name])
    assert not outcome.failure, outcome.failure
