"""Faults of frames above the connection: some are lost, repeated, late or replayed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from spodgt.peer.protocol.inbox import Frame, Receive

_KEPT = 16  # frames: past ones of a link that may be replayed, and late ones of all links


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
