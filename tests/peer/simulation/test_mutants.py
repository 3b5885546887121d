"""Wrong versions of the program are found; docs/results/simulation.md lists by how many seeds."""

from __future__ import annotations

import pytest

from tests.peer.simulation.mutants import MUTANTS, find


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    finding = find(MUTANTS[name])
    assert finding is not None
    print(f"{name}: {finding.seeds} seeds: {finding.failure}")


@pytest.mark.parametrize("name", ["send before the commit", "keep the tracker in a new epoch"])
def test_a_mutant_is_found_by_few_seeds(name: str) -> None:
    assert find(MUTANTS[name], 10) is not None
