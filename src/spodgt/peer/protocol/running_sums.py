"""Running sums with acknowledged rebase: the rules of one directed link, without sockets or clock.

A sender never sends mass, it sends the *total* it has ever put on the link since a base. The receiver
adds what the newest total exceeds the last one by, so drops, duplicates and reordering change nothing:

    sender      new = fl32(σ + b y);  y ← y - (new - σ);  σ ← new;  number + 1
    receiver    number > last:  y ← y + (Σ - ρ);  ρ ← Σ
    both        an acknowledged, quiet link starts again from zero: base = number, σ = ρ = 0

What is subtracted from y is exactly what entered the rounded σ, so float32 links lose nothing.
Every rule keeps L = y - g - Σρ + Σσ - z = 0 at each client (z takes what a rebase folds away).

An `Incarnation` identifies one run of a client's process. Two rules tell a client that its disk was set
back to an older state; late and replayed frames cannot trigger them: a neighbour acknowledges more than was
sent, or holds an acknowledgement that the client does not remember. The repair is an epoch reset: y = g, all
links zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from spodgt.algorithms.compose.codecs import Int8Codec
from spodgt.tensors import difference, is_finite, slices

BOUND = 2**62  # of every number: it must fit into a frame, also after many steps
LARGEST = 1e30  # of a number in a message: sums of some of these still fit into float32
JUMP = 2**20  # restarts or epochs that may have passed unseen; a frame that claims more is a lie


class Incarnation(NamedTuple):
    """One run of a client's process: a restart counter and a random nonce."""

    number: int = 0
    nonce: int = 0

    def supersedes(self, other: Incarnation) -> bool:
        """Whether this is later than `other`, or another process that claims the same number."""
        return self.number > other.number or (
            self.number == other.number and self.nonce != other.nonce
        )


UNKNOWN = Incarnation()
NO_ROOT = -1  # the place of the root of a method that has none


class Message(NamedTuple):
    """What a sender sends on a link: its model and the total of mass since `base`."""

    epoch: int
    number: int
    base: int
    acked: int  # the highest acknowledgement the sender holds
    sender: Incarnation
    seen: Incarnation  # the receiver's incarnation as the sender knows it
    x: Tensor  # (n,) float32
    total: Tensor  # (n,) float32
    root: int = NO_ROOT  # its place in the sender's manifest
    has_ended: bool = False  # the sender has made all rounds of the manifest
    half: Tensor | None = None  # (n,): x is known up to this much; None: exactly

    @property
    def content(self) -> tuple[int, int, int, Incarnation]:
        """Messages of one link that are equal here put the same mass on it: one of them is enough."""
        return self.epoch, self.number, self.base, self.sender

    def model(self, own: Tensor) -> Tensor:
        """The sender's model as a receiver with the model `own` takes it: the nearest that it can be."""
        if self.half is None:
            return self.x
        off = self.x - own
        return own + off.sign() * (off.abs() - self.half).clamp(min=0)


class Ack(NamedTuple):
    """What a receiver answers: everything up to `number` is on its disk."""

    epoch: int
    number: int
    sender: Incarnation
    seen: Incarnation  # the sender's incarnation as the receiver knows it
    root: int = NO_ROOT  # its place in the manifest of the client that answers
    has_ended: bool = False  # the client that answers has made all rounds of the manifest


@dataclass(frozen=True, eq=False)
class OutLink:
    """The sender's end."""

    weight: float  # b of the link
    total: Tensor  # σ, float32
    number: int = 0
    base: int = 0
    acked: int = 0
    seen: Incarnation = UNKNOWN


@dataclass(frozen=True, eq=False)
class InLink:
    """The receiver's end."""

    weight: float  # a of the link
    total: Tensor  # ρ, float32
    number: int = 0
    base: int = 0
    seen: Incarnation = UNKNOWN


class Refused(Exception):
    """A frame that an honest peer does not send; the link's state is untouched."""


class NewerEpoch(Exception):
    """The frame is from a later epoch than ours."""

    def __init__(self, frame: Message | Ack) -> None:
        super().__init__(f"epoch {frame.epoch} has begun")
        self.epoch = frame.epoch


class RolledBack(Exception):
    """The frame proves that our own state is older than what we have told others."""

    def __init__(self, why: str, incarnation: int) -> None:
        super().__init__(why)
        self.incarnation = incarnation


def check_epoch(own: Incarnation, epoch: int, frame: Message | Ack) -> bool:
    """Whether the frame is of this epoch; raises if it is of a later one or knows a later incarnation."""
    if frame.epoch > epoch:
        raise NewerEpoch(frame)
    if frame.epoch < epoch:
        return False
    check_jump(own, frame.seen, "of this client")
    if frame.seen.supersedes(own):
        raise RolledBack(
            f"a neighbour has met another incarnation {frame.seen.number} of this client, "
            f"this is incarnation {own.number}",
            frame.seen.number,
        )
    return True


def check_jump(known: Incarnation, claimed: Incarnation, whose: str) -> None:
    """Refuse an incarnation that nobody can have reached: believed, it would use up the numbers."""
    if claimed.number > known.number + JUMP:
        raise Refused(f"incarnation {claimed.number} {whose} is claimed, {known.number} is known")


def check_vectors(message: Message) -> None:
    """Refuse numbers that are not finite, or so large that sums of them would not be."""
    if not all(
        is_finite(part) and float(part.abs().max()) <= LARGEST
        for part in (message.total, message.x)
    ):
        raise Refused(f"the message holds NaN, infinite numbers or numbers above {LARGEST:.0e}")


# --- the sender's end ----------------------------------------------------------------------------
def put(link: OutLink, y: Tensor, short: bool = False) -> tuple[OutLink, Tensor]:
    """Put b·y on the link: its next state, and the mass (float64) to take from y.

    With `short` the total stays one that 8 bits a number can say; what they cannot say stays with the sender.
    """
    if short:
        wish = torch.add(link.total, y, alpha=link.weight).to(link.total.dtype)
        new = Int8Codec().quantize(wish[None])[0]
        return replace(link, total=new, number=link.number + 1), difference(new, link.total)
    new = torch.empty_like(link.total)
    for part in slices(len(y)):
        new[part] = torch.add(link.total[part], y[part], alpha=link.weight)
    mass = difference(new, link.total)  # exactly the rounded amount that entered σ leaves y
    return replace(link, total=new, number=link.number + 1), mass


def take_ack(link: OutLink, ack: Ack) -> OutLink:
    """Note an acknowledgement of this epoch."""
    check_jump(link.seen, ack.sender, "of the receiver")
    if ack.number > link.number:
        raise RolledBack(
            f"a neighbour acknowledges message {ack.number}, but only {link.number} are known to be sent",
            0,
        )
    seen = ack.sender if ack.sender.number > link.seen.number else link.seen
    return replace(link, acked=max(link.acked, ack.number), seen=seen)


def rebase(link: OutLink) -> tuple[OutLink, Tensor] | None:
    """Start from zero if the receiver has everything: the next state, and the total folded away."""
    if link.acked != link.number or link.base == link.number:
        return None
    return replace(link, base=link.number, total=torch.zeros_like(link.total)), link.total


# --- the receiver's end --------------------------------------------------------------------------
class Taken(NamedTuple):
    """What a message does to the receiver."""

    link: InLink
    mass: Tensor | None = None  # float64, to add to y; None if the message brings nothing new
    folded: Tensor | None = None  # ρ that a rebase sets to zero


def take(link: InLink, message: Message) -> Taken:
    """Take a message of this epoch at most once."""
    check_jump(link.seen, message.sender, "of the sender")
    if message.acked > link.number:
        raise RolledBack(
            f"a neighbour holds our acknowledgement {message.acked}, but we remember only {link.number}",
            0,
        )
    if message.sender.number < link.seen.number:
        return Taken(
            link
        )  # from an earlier incarnation: late, or a disk set back, which our ack will reveal
    if link.seen.supersedes(message.sender):
        raise Refused(f"two processes claim to be incarnation {link.seen.number} of the sender")
    if message.number < link.number and message.sender != link.seen:
        # a restart never knows less than it has sent: its disk was set back, and our ack will reveal it
        raise Refused(
            f"the sender restarts at message {message.number}, but had sent {link.number}"
        )
    link = replace(link, seen=message.sender)
    if message.number <= link.number:
        return Taken(link)
    check_vectors(message)
    if message.base == link.base:
        mass, folded = difference(message.total, link.total), None
    elif message.base == link.number:
        mass, folded = message.total.double(), link.total
    else:
        raise Refused(
            f"it counts from {message.base}, but we stand at {link.base} and {link.number}"
        )
    return Taken(
        replace(link, number=message.number, base=message.base, total=message.total), mass, folded
    )
