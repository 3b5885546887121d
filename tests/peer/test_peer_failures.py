"""Every row of the failure table; `python -m tests.peer.failures` prints it with its figures."""

from __future__ import annotations

import pytest
from tests.peer import netns
from tests.peer.failures import ROWS, Skipped

ALL = {
    **ROWS,
    **{name.removeprefix("row_"): getattr(netns, name) for name in dir(netns) if name.startswith("row_")},
}


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.parametrize("row", ALL)
def test_row(row: str) -> None:
    try:
        print(ALL[row]())
    except Skipped as why:
        pytest.skip(str(why))
