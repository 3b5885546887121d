"""Links of large batches in the order of rows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from spodgt.runtimes.arranged import _carry


@pytest.mark.parametrize("dtype", [np.bool_, np.float64])
@pytest.mark.parametrize("cuts", [(0, 300), (0, 1, 299, 300), (0, 150, 300)])
def test_links_follow_their_rows_wherever_threads_begin(dtype: type[Any], cuts: tuple[int, ...]) -> None:
    """The last part first: what is copied beyond a part would show in it."""
    draws = np.random.default_rng(len(cuts))
    counts, order = draws.integers(0, 70, 300), draws.permutation(300)
    begins = np.concatenate([[0], np.cumsum(counts)])
    given = (draws.random(begins[-1]) < 0.5).astype(dtype)
    pointers = np.concatenate([[0], np.cumsum(counts[order])])
    out = np.zeros_like(given)
    for first, last in reversed(list(pairwise(cuts))):
        _carry(given, begins[order], pointers, out, first, last)
    wanted = [given[begins[client] : begins[client + 1]] for client in order]
    np.testing.assert_array_equal(out, np.concatenate(wanted))
