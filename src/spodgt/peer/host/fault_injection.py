"""Fault injection inside a peer's process, chosen by environment variables. Unset, it costs nothing.

SPODGT_CRASH="after commit:3"                              kill -9 the third time this point is reached
SPODGT_CHAOS="loss=0.3,twice=0.1,late=0.2,replay=0.05"     lose, repeat, delay and replay received frames
"""

from __future__ import annotations

import os
import random
import signal
from dataclasses import dataclass

from spodgt.errors import InvalidInput
from spodgt.peer.protocol.inbox import Frame, Receive

POINTS: tuple[str, ...] = ("frames taken", "vectors written", "before commit", "after commit")
POINTS += ("half sent", "message sent", "ack sent")
_armed: dict[str, int] = {}  # how often the crash point is reached until it kills
_KEPT = 16  # frames: past ones of a link that may be replayed, and late ones of all links


def arm(text: str) -> None:
    """Choose the crash point, as `name` or `name:count`; none if `text` is empty."""
    name, _, count = text.partition(":")
    if name and name not in POINTS:
        raise InvalidInput(
            f"SPODGT_CRASH={text!r} names no point; choose from {', '.join(POINTS)}."
        )
    _armed.clear()
    if name:
        _armed[name] = int(count or 1)


def crash_point(name: str) -> None:
    """End the process as by kill -9, if this is the chosen point for the chosen time."""
    if name in _armed:
        _armed[name] -= 1
        if _armed[name] == 0:
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Chaos:
    """Calls `receive` with frames, some lost, repeated, late or replayed, drawn from `seed`."""

    receive: Receive
    loss: float = 0.0
    twice: float = 0.0
    late: float = 0.0
    replay: float = 0.0
    seed: float = 0

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.late_frames: list[tuple[str, Frame]] = []
        self.past_frames: dict[tuple[str, type], list[Frame]] = {}  # by sender and kind

    @classmethod
    def parse(cls, receive: Receive, text: str) -> Receive:
        """`receive` behind the faults that `text` names; `receive` itself if it is empty."""
        if not text:
            return receive
        try:
            settings = {}
            for setting in text.split(","):
                key, value = setting.split("=")
                settings[key] = float(value)
            return cls(receive, **settings)
        except (ValueError, TypeError):
            like = "loss=0.3,twice=0.1,late=0.2,seed=1"
            raise InvalidInput(f"SPODGT_CHAOS={text!r} must be like {like}.") from None

    def __call__(self, source: str, frame: Frame) -> None:
        past = self.past_frames.setdefault((source, type(frame)), [])
        past.append(frame)
        del past[:-_KEPT]
        if self.draw.random() < self.loss:
            return
        if self.draw.random() < self.late:
            self.late_frames.append((source, frame))
        else:
            self.receive(source, frame)
        if self.draw.random() < self.twice:
            self.receive(source, frame)
        if self.draw.random() < self.replay:
            self.receive(source, self.draw.choice(past))
        count = len(self.late_frames)
        if count > _KEPT or (count and self.draw.random() < 0.3):
            self.receive(*self.late_frames.pop(self.draw.randrange(count)))


arm(os.environ.get("SPODGT_CRASH", ""))
