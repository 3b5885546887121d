"""Scripts that are killed at any line and started again: nothing is lost or counted twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from spodgt.peer.host.fault_injection import POINTS
from tests.sites.fleet_of_processes import math_error, quadratics, train_with_kills
from tests.sites.fleet_of_threads import Point

pytestmark = [pytest.mark.network, pytest.mark.slow]


def test_four_scripts_survive_kills_and_end_at_the_minimiser_of_the_average(tmp_path: Path) -> None:
    found = train_with_kills(
        tmp_path / "run", quadratics, Point(5), kills=20, steps=4000, pause=0.02, points=POINTS[:4]
    )
    assert found.kills > 6
    assert max(map(math_error, found.audits)) <= 1e-12
    assert max(found.results) < 1e-6
