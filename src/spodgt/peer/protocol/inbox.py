"""The frames that have arrived since the last local round."""

from __future__ import annotations

import threading
from collections.abc import Callable

from spodgt.peer.protocol.running_sums import Ack, Message

Frame = Message | Ack
Receive = Callable[[str, Frame], None]  # sender, frame


class Inbox:
    """The newest message and the newest acknowledgement of each link.

    Frames arrive in another thread than the one that makes local rounds.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.arrived = threading.Event()  # set by every frame, cleared by the thread that waits
        self.messages: dict[str, Message] = {}
        self.acks: dict[str, Ack] = {}

    def __len__(self) -> int:
        return len(self.messages) + len(self.acks)

    def add(self, name: str, frame: Frame) -> None:
        """Keep a frame of the client `name` unless a newer one of the same link is here."""
        with self._lock:
            if isinstance(frame, Message):
                if name not in self.messages or _order(frame) >= _order(self.messages[name]):
                    self.messages[name] = frame
            elif name not in self.acks or _order(frame) >= _order(self.acks[name]):
                self.acks[name] = frame
        self.arrived.set()

    def take_all(self) -> list[tuple[str, Frame]]:
        """Remove all frames and return them with their senders, acknowledgements first."""
        with self._lock:
            frames: list[tuple[str, Frame]] = [*self.acks.items(), *self.messages.items()]
            self.messages = {}
            self.acks = {}
        return frames


def _order(frame: Frame) -> tuple[int, int, int]:
    """A key by which frames of one link are ordered, older ones first."""
    return frame.epoch, frame.sender.number, frame.number
