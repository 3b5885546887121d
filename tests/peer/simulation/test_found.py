"""Schedules that have found bugs, kept as they were; `docs/results/simulation.md` lists them."""

from __future__ import annotations

import pytest

from tests.peer.simulation.plan import Fault, Plan, Setup
from tests.peer.simulation.simulator import simulate

PAIRS_OF_CHANGES = []
for at in (4.0, 7.0, 10.0, 13.0):
    PAIRS_OF_CHANGES.append(Fault(at, "change_settings", "p0", "p1", number=2.0))
    PAIRS_OF_CHANGES.append(Fault(at + 0.9, "change_settings", "p1", "p2", number=1.0))

# Without its last in-link p0 cannot leave quarantine: all refuse its links, and nobody opens one to it.
LASTING_QUARANTINE = (
    Fault(2.172, "quarantine", "p0", "p1", seconds=25.0, number=8.0),
    Fault(3.15, "quarantine", "p2", "p1", seconds=25.0, number=13.0),
    Fault(6.255, "change_links", "p1", "p0", seconds=25.0, number=8.0),
)

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
    "a stream that was opened before a quarantine is reported as waiting after it": Plan(
        1047,
        Setup(rate=2.0, max_alone=6),
        (
            Fault(3.027, "quarantine", "p2", "p0", seconds=25.0, number=2.0),
            Fault(3.146, "bit_flip", "p0", "p1", seconds=4.0, number=3.0),
            Fault(3.499, "quarantine", "p1", "p2", seconds=25.0, number=2.0),
            Fault(5.757, "cut", "p0", "p1", seconds=4.0, number=3.0),
        ),
        8.0,
    ),
    "a manifest arrives after the last round: newcomers do not learn that the others have ended": Plan(
        1309,
        Setup(method="relay", rate=2.0, max_alone=6, commit_every=3, rounds=20),
        (
            Fault(6.47, "quarantine", "p1", "p0", seconds=0.2, number=13.0),
            Fault(6.834, "join", "p0", "p2", seconds=25.0, number=8.0),
        ),
        12.0,
    ),
    "a client that was down is refused by all neighbours and does not learn of its quarantine": Plan(
        3, Setup(), (Fault(2.0, "crash", "p0", "p1", seconds=25.0), *LASTING_QUARANTINE), 8.0
    ),
    "a client with protocol 1 is refused by all neighbours": Plan(
        1,
        Setup(
            layers={"compress": "int8", "local_steps": 3},
            rate=1.0,
            max_alone=0,
            p=0.4,
            dialled_by_receivers=True,
            has_old_release=True,
        ),
        (Fault(2.0, "crash", "p0", "p1", seconds=25.0), *LASTING_QUARANTINE),
        8.0,
    ),
    "a client without links does not learn of versions during its quarantine": Plan(
        2, Setup(), LASTING_QUARANTINE, 8.0
    ),
    "a client without an address does not learn of the end of its quarantine": Plan(
        1,
        Setup(has_no_address=True),
        (Fault(6.0, "quarantine", "p0", "p1", seconds=25.0, number=1.0),),
        32.0,
    ),
    "a link that is rarely used is called silent: both ends begin epochs without each other": Plan(
        12219,
        Setup(
            clients=4,
            graph="ring",
            layers={"local_steps": 3},
            rate=1.0,
            commit_every=3,
            drop_after=12.0,
            p_hat=0.6,
        ),
        (),
        8.0,
    ),
    "a client that has made all rounds begins an epoch without a neighbour, and ends at once": Plan(
        13457,
        Setup(
            graph="ring", rate=2.0, max_alone=6, commit_every=3, drop_after=12.0, p=0.4, rounds=20
        ),
        (
            Fault(3.632, "bad_frames", "p2", "p0", seconds=1.0, number=21.0),
            Fault(6.027, "bad_frames", "p2", "p1", seconds=0.2, number=8.0),
            Fault(6.566, "bad_frames", "p2", "p0", seconds=4.0, number=21.0),
        ),
        8.0,
    ),
    "a root whose disk was set back gets no model: its neighbours have only an earlier epoch's": Plan(
        20531,
        Setup(method="relay", graph="ring", rate=1.0, max_alone=6, drop_after=6.0, p=0.4),
        (
            Fault(10.40, "full_disk", "p2", "p1", 4.0, 3.0),
            Fault(13.14, "restore", "p0", "p1", 0.2, 13.0),
            Fault(26.69, "restore", "p0", "p1", 25.0, 5.0),
        ),
        30.0,
    ),
    "a rarely used link with a client of protocol 1 is called silent, epoch after epoch begins": Plan(
        32066,
        Setup(
            clients=4,
            graph="ring",
            layers={"local_steps": 3},
            rate=1.0,
            commit_every=3,
            drop_after=12.0,
            durability="process",
            p_hat=0.6,
            dialled_by_receivers=True,
            has_old_release=True,
        ),
        (),
        8.0,
    ),
    "all start at once and share commits of three rounds: each message is three rounds late": Plan(
        21689,
        Setup(clients=4, graph="ring", rate=1.0, commit_every=3, dialled_by_receivers=True),
        (Fault(5.491, "outage", "p3", "p0", seconds=4.0, number=5.0),),
        8.0,
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_schedule_that_once_failed_passes(name: str) -> None:
    outcome = simulate(FOUND[name])
    assert not outcome.failure, outcome.failure


def test_losses_of_power_in_commits_lose_no_commit() -> None:
    """The record that is being written is torn; the one before is still whole."""
    faults = tuple(
        Fault(2.0 + 1.5 * number, "power_point", f"p{number % 3}", "", 3.0, 1.0 + number % 4)
        for number in range(12)
    )
    for seed in range(2):
        outcome = simulate(Plan(seed, Setup(), faults, 24.0))
        assert not outcome.failure, outcome.failure
