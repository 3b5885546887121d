"""Commit before send: frames leave only after the state that they are made of is on disk."""

from __future__ import annotations

import math
from collections.abc import Iterable

from spodgt.peer.protocol.node import Node
from spodgt.peer.transport.links import Transport

_SEND_AGAIN = 1.0  # seconds between two sends of a state that does not change


class Publisher:
    """Commits the state of a node, then sends messages and acknowledgements."""

    def __init__(self, node: Node, transport: Transport) -> None:
        self.node = node
        self.transport = transport
        self.clock = transport.local.host.clock
        self.sent_at = -math.inf  # monotonic time of the last send

    def publish(self) -> None:
        """Commit, then send what is unacknowledged, and acknowledge what was received."""
        self.send_committed(self.node.commit())

    def send_committed(self, pending_acks: Iterable[str]) -> None:
        """Send what is unacknowledged, and acknowledge messages of `pending_acks`, after a commit."""
        self.send_unacknowledged()
        for sender in sorted(pending_acks):
            ack = self.node.ack(sender)
            if ack is not None:
                self.transport.send_ack(sender, ack)

    def send_unacknowledged(self) -> None:
        """Send the committed message of each out-link whose receiver has not acknowledged it."""
        self.sent_at = self.clock.monotonic()
        for receiver in self.node.state.out:
            message = self.node.message(receiver)
            if message is not None and self.node.has_unacknowledged(receiver):
                self.transport.send_latest(receiver, message)

    def send_again(self) -> None:
        """Repeat what is unacknowledged, at most once a second."""
        if self.clock.monotonic() - self.sent_at >= _SEND_AGAIN:
            self.send_unacknowledged()
