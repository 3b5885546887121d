"""Running sums with acknowledged rebase: the rules of one directed link, without sockets or clock.

A sender never sends mass, it sends the *total* it has ever put on the link since a base. The receiver
adds what the newest total exceeds the last one by, so drops, duplicates and reordering change nothing:

    sender      new = fl32(σ + b y);  y ← y - (new - σ);  σ ← new;  number + 1
    receiver    number > last:  y ← y + (Σ - ρ);  ρ ← Σ
    both        an acknowledged, quiet link starts again from zero: base = number, σ = ρ = 0

What is subtracted from y is exactly what entered the rounded σ, so float32 links lose nothing.
Every rule keeps L = y - g - Σρ + Σσ - z = 0 at each client (z takes what a rebase folds away).

A `Stamp` names one life of a process. Two rules tell a client that its disk was set back, both
immune to late and replayed frames: somebody acknowledges more than it has sent, or somebody has an
acknowledgement it does not remember giving. The cure is an epoch reset: y = g, all links zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spodgt.compiled import finite, jit


class Stamp(NamedTuple):
    """One life of a process: a number that grows with every start, and a random word."""

    incarnation: int = 0
    boot: int = 0

    def outlives(self, other: Stamp) -> bool:
        """Is this a later life than `other`, or another process that claims the same one?"""
        return self.incarnation > other.incarnation or (
            self.incarnation == other.incarnation and self.boot != other.boot
        )


NOBODY = Stamp()


class Message(NamedTuple):
    """All a sender says on a link: its model and the total of mass since `base`."""

    epoch: int
    number: int
    base: int
    acked: int  # the highest acknowledgement the sender holds
    sender: Stamp
    seen: Stamp  # the receiver's life as the sender knows it
    x: Tensor  # (n,) float32
    total: Tensor  # (n,) float32


class Ack(NamedTuple):
    """All a receiver says: everything up to `number` is on its disk."""

    epoch: int
    number: int
    sender: Stamp
    seen: Stamp  # the sender's life as the receiver knows it


@dataclass(frozen=True, eq=False)
class OutLink:
    """The sender's end."""

    weight: float  # b of the link
    total: Tensor  # σ, float32
    number: int = 0
    base: int = 0
    acked: int = 0
    seen: Stamp = NOBODY


@dataclass(frozen=True, eq=False)
class InLink:
    """The receiver's end."""

    weight: float  # a of the link
    total: Tensor  # ρ, float32
    number: int = 0
    base: int = 0
    seen: Stamp = NOBODY


class Refused(Exception):
    """A frame that an honest peer does not send; the link's state is untouched."""


class NewerEpoch(Exception):
    """The frame is from a later epoch than ours."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"epoch {epoch} has begun")
        self.epoch = epoch


class RolledBack(Exception):
    """The frame proves that our own state is older than what we have told others."""

    def __init__(self, why: str, incarnation: int) -> None:
        super().__init__(why)
        self.incarnation = incarnation


def check_life(own: Stamp, epoch: int, frame: Message | Ack) -> bool:
    """Is the frame of this epoch? Raises if it is of a later one or knows a later life of ours."""
    if frame.epoch > epoch:
        raise NewerEpoch(frame.epoch)
    if frame.epoch < epoch:
        return False
    if frame.seen.outlives(own):
        raise RolledBack(
            f"a neighbour has met another life {frame.seen.incarnation} of this client, "
            f"this is life {own.incarnation}",
            frame.seen.incarnation,
        )
    return True


# --- the sender's end ----------------------------------------------------------------------------
def put(link: OutLink, y: Tensor) -> tuple[OutLink, Tensor]:
    """Put b·y on the link: its next state, and the mass (float64) to take from y."""
    new, mass = torch.empty_like(link.total), torch.empty_like(y)
    _put(link.total.numpy(), y.numpy(), link.weight, new.numpy(), mass.numpy())
    return replace(link, total=new, number=link.number + 1), mass


@jit
def _put(total, y, weight, new, mass):  # type: ignore[no-untyped-def]
    for c in range(len(y)):
        new[c] = total[c] + weight * y[c]
        # exactly the rounded amount that entered σ leaves y; the rest stays with the sender
        mass[c] = np.float64(new[c]) - np.float64(total[c])


def take_ack(link: OutLink, ack: Ack, own: Stamp) -> OutLink:
    """Note an acknowledgement of this epoch."""
    if ack.number > link.number:
        raise RolledBack(
            f"a neighbour acknowledges message {ack.number}, but only {link.number} are known to be sent", 0
        )
    seen = (
        ack.sender
        if ack.sender.outlives(link.seen) and ack.sender.incarnation > link.seen.incarnation
        else link.seen
    )
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


def take(link: InLink, message: Message, own: Stamp) -> Taken:
    """Take a message of this epoch at most once."""
    if message.acked > link.number:
        raise RolledBack(
            f"a neighbour holds our acknowledgement {message.acked}, but we remember only {link.number}", 0
        )
    if message.sender.incarnation < link.seen.incarnation:
        return Taken(link)  # from a life that is over: late, or a disk set back, which our ack will tell
    if link.seen.outlives(message.sender):
        raise Refused(f"two processes claim to be life {link.seen.incarnation} of the sender")
    if message.number < link.number and message.sender != link.seen:
        # a new life never knows less than it has sent: its disk was set back, and our ack will tell it so
        raise Refused(f"the sender restarts at message {message.number}, but had sent {link.number}")
    link = replace(link, seen=message.sender)
    if message.number <= link.number:
        return Taken(link)
    if not (finite(message.total) and finite(message.x)):
        raise Refused("the message holds NaN or infinite numbers")
    if message.base == link.base:
        mass, folded = torch.sub(message.total.double(), link.total), None
    elif message.base == link.number:
        mass, folded = message.total.double(), link.total
    else:
        raise Refused(
            f"the message counts from {message.base}, but we stand at {link.base} and {link.number}"
        )
    return Taken(replace(link, number=message.number, base=message.base, total=message.total), mass, folded)
