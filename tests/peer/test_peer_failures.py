"""Every row of the failure table; `python -m tests.peer.failures` prints it with its figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.peer import netns
from tests.peer.failures import ROWS, Skipped, fleet
from tests.peer.soak import soak

ALL = {
    **ROWS,
    **{
        name.removeprefix("row_"): getattr(netns, name)
        for name in dir(netns)
        if name.startswith("row_")
    },
}


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("row", ALL)
def test_row(row: str) -> None:
    try:
        print(ALL[row]())
    except Skipped as why:
        pytest.skip(str(why))


@pytest.mark.slow
@pytest.mark.network
def test_a_client_that_has_done_its_rounds_still_takes_and_acknowledges() -> None:
    with fleet(clients=3) as f:
        done = replace(f.options, rounds=30, linger=True)
        f.start("p0", options=done)
        f.start("p1", "p2", options=replace(f.options, rounds=400))
        f.wait(lambda: not f.alive("p1") and not f.alive("p2"), 120, "the others finish")
        f.wait(lambda: f.status("p0").get("k", 0) >= 30, 20)
        f.stop()
        heard = {
            x["name"]: x["messages"] for x in f.status("p0")["neighbours"] if x["way"] == "from"
        }
        assert min(heard.values()) > 50, heard  # long after its own thirty rounds
        found = f.audit()
        assert found.error is not None
        assert found.error <= 1e-12


@pytest.mark.slow
@pytest.mark.network
def test_a_short_soak() -> None:
    """`python -m tests.peer.soak` has the long form."""
    measured = soak(40, 4, 5)
    assert measured["failed"] == []
