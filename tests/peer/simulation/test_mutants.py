"""Every wrong version of the program is found."""

from __future__ import annotations

import pytest

from tests.peer.simulation.mutants import MUTANTS, find


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    finding = find(MUTANTS[name])
    assert finding is not None
    print(f"{name}: {finding.seeds} seeds: {finding.failure}")
