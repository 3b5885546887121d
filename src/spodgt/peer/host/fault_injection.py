"""Points at which a test can end a peer's process as by kill -9. Without a chosen point they cost nothing."""

from __future__ import annotations

import os
import signal

from spodgt.errors import InvalidInput

POINTS: tuple[str, ...] = ("frames taken", "vectors written", "before commit", "after commit")
POINTS += ("half sent", "message sent", "ack sent")
_armed: dict[str, int] = {}  # how often the crash point is reached until it kills


def arm(text: str) -> None:
    """Choose the crash point, as `name` or `name:count`; none if `text` is empty."""
    name, _, count = text.partition(":")
    if name and name not in POINTS:
        raise InvalidInput(f"{text!r} names no crash point; choose from {', '.join(POINTS)}.")
    _armed.clear()
    if name:
        _armed[name] = int(count or 1)


def crash_point(name: str) -> None:
    """End the process as by kill -9, if this is the chosen point for the chosen time."""
    if name in _armed:
        _armed[name] -= 1
        if _armed[name] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
