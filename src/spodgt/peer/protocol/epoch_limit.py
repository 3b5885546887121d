"""Rate limit on following neighbours into later epochs.

Every epoch sets trackers back to the own gradients, so a member that begins epochs all the time would keep
the others from learning. Each neighbour is therefore followed a few times, and then once a minute. An epoch
far ahead is approached in steps: a member cannot lead one client so far that the other honest clients, which
follow that client in steps of the same size, never reach it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from spodgt.peer.host.clock import SYSTEM_CLOCK

STEP = 64  # epochs by which a client moves ahead at once
AT_ONCE = 4  # epochs of one neighbour that are followed without a pause
PAUSE = 60.0  # seconds, after which one more is followed


class _Budget(NamedTuple):
    """A token bucket: how many more epochs of a neighbour are followed, at a time of the clock."""

    tokens: float
    time: float


class EpochRateLimiter:
    """Counts the epochs of each neighbour that were followed, and those that were not.

    Args:
        clock: Seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = SYSTEM_CLOCK.monotonic) -> None:
        self.clock = clock
        self.ignored: Counter[str] = Counter()  # later epochs that were not followed, by neighbour
        self._budgets: dict[str, _Budget] = {}
        self._last_ignored: dict[str, int] = {}  # the last epoch that was not followed

    def next_epoch(self, name: str, current: int, claimed: int) -> int | None:
        """The epoch to begin after a frame of `name`; None: stay in the current one."""
        now = self.clock()
        budget = self._budgets.get(name, _Budget(AT_ONCE, now))
        tokens = min(float(AT_ONCE), budget.tokens + (now - budget.time) / PAUSE)
        if tokens >= 1:
            self._budgets[name] = _Budget(tokens - 1, now)
            return min(claimed, current + STEP)
        self._budgets[name] = _Budget(tokens, now)
        if self._last_ignored.get(name) != claimed:
            self._last_ignored[name] = claimed
            self.ignored[name] += 1
        return None

    def note_common_epoch(self, name: str) -> None:
        """Note a frame of `name` that is not of a later epoch."""
        if self.ignored[name] <= AT_ONCE:  # more than that is no accident
            del self.ignored[name]
