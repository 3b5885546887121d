"""The two clocks of a host."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds of a clock that is never set, and of one that is set by people and by NTP."""

    def monotonic(self) -> float: ...
    def wall(self) -> float: ...


class SystemClock:
    """The clocks of the operating system."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


SYSTEM_CLOCK = SystemClock()
