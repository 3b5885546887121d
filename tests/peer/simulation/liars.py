"""Members that lie: real peers that change what they send."""

from __future__ import annotations

from collections.abc import Callable

import torch

from spodgt.peer.membership import certificates
from spodgt.peer.membership.manifest import Manifest, SignedManifest
from spodgt.peer.membership.manifest_changes import apply_change
from spodgt.peer.options import Change
from spodgt.peer.process.main import Peer
from spodgt.peer.protocol.running_sums import Incarnation, Message

FAR = 2**20 - 1  # epochs
Lie = Callable[[Message], Message]


def lie(peer: Peer, change: Lie) -> None:
    """Let a peer send something else than it has committed."""
    honest = peer.node.message

    def message(name: str) -> Message | None:
        true = honest(name)
        return None if true is None else change(true)

    peer.node.message = message  # type: ignore[method-assign]
    peer.node.has_unacknowledged = lambda name: True  # type: ignore[method-assign]


class EpochStorm:
    """Every message begins another epoch."""

    def __init__(self, step: int = 1) -> None:
        self.step = step
        self.ahead = 0

    def __call__(self, message: Message) -> Message:
        self.ahead += self.step
        return message._replace(epoch=message.epoch + self.ahead)


class NewNumbers:
    """Messages with increasing numbers, so that each is taken."""

    def __init__(self, change: Lie) -> None:
        self.change = change
        self.number = 1000  # above those of messages that were sent before the lie

    def __call__(self, message: Message) -> Message:
        self.number += 1
        return self.change(message._replace(number=self.number, base=0, acked=0))


class HugeAtFirst:
    """Begins an epoch, in which the first messages hold a huge model.

    Args:
        epoch: the present one.
        messages: number of such messages, to all receivers together.
    """

    def __init__(self, epoch: int, messages: int = 33) -> None:
        self.epoch = epoch + 1
        self.messages = messages
        self.number = 0

    def __call__(self, message: Message) -> Message:
        self.number += 1
        if self.number > self.messages:
            return message
        early = message._replace(epoch=self.epoch, number=self.number, base=0, acked=0)
        return huge_model(early)


def huge_model(message: Message) -> Message:
    return message._replace(x=torch.full_like(message.x, 1e25))


def not_a_number(message: Message) -> Message:
    return message._replace(x=torch.full_like(message.x, torch.nan))


def other_root(place: int) -> Lie:
    """Names itself the root, with a model of its own."""

    def change(message: Message) -> Message:
        sevens = torch.full_like(message.x, 7.0)
        return message._replace(root=place, epoch=message.epoch + 1, x=sevens)

    return change


def largest_incarnation(message: Message) -> Message:
    return message._replace(sender=Incarnation(2**61, 1))


def later_version(message: Message) -> Message:
    """Claims to have a newer manifest."""
    return message._replace(epoch=message.epoch + 2**32)


def forge_manifest(peer: Peer, manifest: Manifest) -> None:
    """Answer with a manifest that another authority has signed."""
    key, _ = certificates.create_authority("forged")
    forged = SignedManifest.sign(apply_change(manifest, Change(max_alone=1)), key)
    peer.transport.calls.manifest = lambda name: forged.file
