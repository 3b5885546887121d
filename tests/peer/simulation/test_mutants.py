"""Wrong versions of the program are found; docs/simulation.md says by how many seeds."""

from __future__ import annotations

import pytest

from tests.peer.simulation.mutants import MUTANTS, find

NOT_FOUND_YET = {  # by 80 seeds, or not measured
    "send before the commit",
    "acknowledge before the commit",
    "go on with a full disk",
    "keep one record",
    "connect once",
    "do not follow epochs",
    "accept an older manifest",
    "ask nobody for a manifest",
}


def test_mutants_not_found_yet_are_mutants() -> None:
    assert set(MUTANTS) >= NOT_FOUND_YET


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MUTANTS if name not in NOT_FOUND_YET])
def test_a_mutant_is_found(name: str) -> None:
    finding = find(MUTANTS[name])
    assert finding is not None
    print(f"{name}: {finding.seeds} seeds: {finding.failure}")
