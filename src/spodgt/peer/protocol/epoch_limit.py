"""How far and how often a client follows its neighbours into later epochs.

Every epoch sets trackers back to the own gradients, so a member that begins epochs all the time would keep
the others from learning. Each neighbour is therefore followed a few times, and then once a minute. An epoch
far ahead is approached in steps: a member cannot lead one client so far that the other honest clients, which
follow that client in steps of the same size, never reach it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from spodgt.peer.host.clock import SYSTEM_CLOCK

STEP = 64  # epochs by which a client goes forward at once
AT_ONCE = 4  # epochs of one neighbour that are followed without a pause
PAUSE = 60.0  # seconds, after which one more is followed


class EpochRateLimiter:
    """Counts the epochs of each neighbour that were followed, and those that were not; `clock` in seconds."""

    def __init__(self, clock: Callable[[], float] = SYSTEM_CLOCK.monotonic) -> None:
        self.clock = clock
        self.ignored: Counter[str] = Counter()  # later epochs that were not followed, by neighbour
        self.ahead: dict[str, int] = {}  # epochs by which a neighbour was ahead at its last frame
        self._left: dict[
            str, tuple[float, float]
        ] = {}  # how many more are followed, and when that was counted
        self._last: dict[str, int] = {}  # the epoch of the last frame that was not followed

    def next(self, name: str, current: int, claimed: int) -> int | None:
        """The epoch in which to go on after a frame of `name`; None: stay in the current one."""
        self.ahead[name] = claimed - current
        now = self.clock()
        left, counted_at = self._left.get(name, (float(AT_ONCE), now))
        left = min(float(AT_ONCE), left + (now - counted_at) / PAUSE)
        follows = left >= 1
        self._left[name] = (left - follows, now)
        if follows:
            return min(claimed, current + STEP)
        if self._last.get(name) != claimed:
            self._last[name] = claimed
            self.ignored[name] += 1
        return None

    def reached(self, name: str) -> None:
        """Note a frame of `name` that is not of a later epoch."""
        self.ahead.pop(name, None)
        if self.ignored[name] <= AT_ONCE:  # more than that is no accident
            del self.ignored[name]
