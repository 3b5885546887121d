"""Crash points: a test names one in the environment and the process kills itself there.

`SPODGT_CRASH="after commit:3"` dies at the third time this point is reached. Unset, it costs one test.
"""

from __future__ import annotations

import os
import signal

from spodgt.errors import InvalidInput

POINTS = (
    "frames taken",
    "vectors written",
    "before commit",
    "after commit",
    "half sent",
    "message sent",
    "ack sent",
)
_armed: list[tuple[str, int]] = []


def arm(text: str) -> None:
    """Choose a point, as `name` or `name:count`; nothing if empty."""
    name, _, count = text.partition(":")
    if name and name not in POINTS:
        raise InvalidInput(f"SPODGT_CRASH={text!r} names no point; choose from {', '.join(POINTS)}.")
    _armed[:] = [(name, int(count or 1))] if name else []


def crash_point(name: str) -> None:
    """Die here, as by kill -9, if it is the point and the time."""
    if _armed and _armed[0][0] == name:
        left = _armed[0][1] - 1
        _armed[0] = (name, left)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


arm(os.environ.get("SPODGT_CRASH", ""))
