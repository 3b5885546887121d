"""What carries frames: a narrow interface, so that the transport can be swapped, and two small ones.

A post takes the newest message of each out-link and gives back what arrives. It may lose, repeat and
reorder as it likes; the protocol above does not mind.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

from spodgt.errors import InvalidInput
from spodgt.peer.protocol import Ack, Message

Hear = Callable[[str, Message | Ack], None]  # (from whom, what)


class Post(Protocol):
    """Every link of one client."""

    def send_latest(self, target: str, message: Message) -> None:
        """Send on an out-link; what has not left yet is replaced."""
        ...

    def send_ack(self, target: str, ack: Ack) -> None:
        """Answer on an in-link."""
        ...


class MemoryPost:
    """Clients in one process, for tests: what is sent is heard at once, or not at all."""

    def __init__(self, name: str, hub: dict[str, Hear]) -> None:
        self.name, self.hub = name, hub

    def send_latest(self, target: str, message: Message) -> None:
        if target in self.hub:
            self.hub[target](self.name, message)

    def send_ack(self, target: str, ack: Ack) -> None:
        if target in self.hub:
            self.hub[target](self.name, ack)


class Chaos:
    """Bad weather above the transport: lost, repeated, late and replayed frames, drawn from a seed.

    `SPODGT_CHAOS="loss=0.3,twice=0.1,late=0.2,replay=0.05,seed=1"` puts it in front of a peer.
    """

    _KEPT = 16  # old frames of a link that may come again

    def __init__(
        self,
        hear: Hear,
        *,
        loss: float = 0.0,
        twice: float = 0.0,
        late: float = 0.0,
        replay: float = 0.0,
        seed: float = 0,
    ) -> None:
        self.hear, self.loss, self.twice, self.late, self.replay = hear, loss, twice, late, replay
        self.draw = random.Random(seed)
        self.waiting: list[tuple[str, Any]] = []
        self.old: dict[tuple[str, type], list[Any]] = {}

    @classmethod
    def of(cls, hear: Hear, text: str) -> Hear:
        """As the environment says; `hear` itself if it says nothing."""
        if not text:
            return hear
        try:
            return cls(
                hear, **{key: float(value) for key, value in (pair.split("=") for pair in text.split(","))}
            )
        except (ValueError, TypeError):
            raise InvalidInput(
                f"SPODGT_CHAOS={text!r} must be like loss=0.3,twice=0.1,late=0.2,seed=1."
            ) from None

    def __call__(self, source: str, frame: Message | Ack) -> None:
        past = self.old.setdefault((source, type(frame)), [])
        past.append(frame)
        del past[: -self._KEPT]
        if self.draw.random() < self.loss:
            return
        if self.draw.random() < self.late:
            self.waiting.append((source, frame))
        else:
            self.hear(source, frame)
        if self.draw.random() < self.twice:
            self.hear(source, frame)
        if self.draw.random() < self.replay:
            self.hear(source, self.draw.choice(past))
        if len(self.waiting) > self._KEPT or (self.waiting and self.draw.random() < 0.3):
            self.hear(*self.waiting.pop(self.draw.randrange(len(self.waiting))))
