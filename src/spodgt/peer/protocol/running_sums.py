"""Running sums with acknowledged rebase: the rules of one directed link, without sockets or clock.

A message holds no increment but the *total* mass that the sender has put on the link since a base. The
receiver adds the difference to the last total that it has, so loss, duplicates and reordering of messages
change nothing:

    sender      new = fl32(σ + b y);  y ← y - (new - σ);  σ ← new;  number + 1
    receiver    number > last:  y ← y + (Σ - ρ);  ρ ← Σ
    both        an acknowledged, quiet link starts again from zero: base = number, σ = ρ = 0

What is subtracted from y is exactly what entered the rounded σ, so float32 links lose nothing.
Every rule keeps L = y - g - Σρ + Σσ - z = 0 at each client (z takes what a rebase folds away).

An `Incarnation` identifies one run of a client's process. Two rules detect that the disk of a client was set
back to an older state, and late or replayed frames cannot trigger them: a neighbour acknowledges more than
was sent, or holds an acknowledgement that the client has not sent. The repair is an epoch reset: y = g, all
links zero.

Functions return what a frame means; `Refused` is raised for frames that an honest peer does not send.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

from spodgt.algorithms.compose.codecs import Int8Codec
from spodgt.tensors import NewRow, largest, new_row, slices, zero_row

MAX_NUMBER = 2**62  # of every counter: it must fit into a frame, also after many increments
MAX_ABS = 1e30  # of a number in a message: sums of some of these still fit into float32
MAX_JUMP = 2**20  # restarts that may have passed unseen; a frame that claims more is a lie


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
    """The frame from the sender of a link: its model and the total of mass since `base`."""

    epoch: int
    number: int
    base: int
    acked: int  # the highest acknowledgement the sender holds
    sender: Incarnation
    seen: Incarnation  # the newest incarnation of the receiver that the sender has met
    x: Tensor  # (n,) float32
    total: Tensor  # (n,) float32
    root: int = NO_ROOT  # the root's number in the sender's manifest
    has_ended: bool = False  # the sender has made all rounds of the manifest
    half_width: Tensor | None = None  # (n,): x is within this distance; None: it is exact

    @property
    def content(self) -> tuple[int, int, int, Incarnation]:
        """Identifies the mass of a message: of messages with equal content one is enough."""
        return self.epoch, self.number, self.base, self.sender

    def model(self, own: Tensor, part: slice = slice(None)) -> Tensor:
        """The sender's model; of a quantized one, the point of its interval nearest to `own`.

        Args:
            own: (n,) the receiver's model.
            part: The range of columns to return.
        """
        x = self.x[part]
        if self.half_width is None:
            return x
        off = x - own[part]
        return own[part] + off.sign() * (off.abs() - self.half_width[part]).clamp(min=0)


class Mass(NamedTuple):
    """What one vector is more than another, in double precision; computed in parts, never as a whole."""

    after: Tensor  # (n,)
    before: Tensor | None = None  # (n,); None: zero

    def part(self, columns: slice) -> Tensor:
        """Some columns, float64; the caller may change the result."""
        after = self.after[columns].to(torch.float64, copy=True)
        return after if self.before is None else after.sub_(self.before[columns])

    def norm(self) -> float:
        """The Euclidean norm."""
        return math.hypot(*(float(self.part(each).norm()) for each in slices(len(self.after))))


class Ack(NamedTuple):
    """The acknowledgement of a receiver: everything up to message `number` is on its disk."""

    epoch: int
    number: int
    sender: Incarnation
    seen: Incarnation  # the newest incarnation of the sender that the receiver has met
    root: int = NO_ROOT  # the root's number in the receiver's manifest
    has_ended: bool = False  # the receiver has made all rounds of the manifest


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


class FrameAge(Enum):
    """Whether a frame is of the client's epoch."""

    CURRENT = "current"
    EARLIER = "earlier"


class NewerEpoch(NamedTuple):
    """A frame is of a later epoch than the client's."""

    epoch: int


class RolledBack(NamedTuple):
    """A frame proves that the client's own state is older than one that it has sent frames of."""

    why: str
    incarnation: int = 0  # the latest one that a neighbour has met


def check_epoch(
    own: Incarnation, epoch: int, frame: Message | Ack
) -> FrameAge | NewerEpoch | RolledBack:
    """Compare a frame with the client's incarnation and epoch."""
    if frame.epoch > epoch:
        return NewerEpoch(frame.epoch)
    if frame.epoch < epoch:
        return FrameAge.EARLIER
    check_jump(own, frame.seen, "of this client")
    if frame.seen.supersedes(own):
        return RolledBack(
            f"a neighbour has met another incarnation {frame.seen.number} of this client, "
            f"this is incarnation {own.number}",
            frame.seen.number,
        )
    return FrameAge.CURRENT


def check_jump(known: Incarnation, claimed: Incarnation, owner: str) -> None:
    """Refuse an incarnation that no process can have reached: accepted, it would use up the numbers."""
    if claimed.number > known.number + MAX_JUMP:
        raise Refused(f"incarnation {claimed.number} {owner} is claimed, {known.number} is known")


def check_vectors(message: Message) -> None:
    """Refuse vectors with numbers that are not finite, or so large that their sums would not be."""
    for vector in (message.total, message.x):
        if not largest(vector) <= MAX_ABS:
            raise Refused(f"the message holds NaN, infinite numbers or numbers above {MAX_ABS:.0e}")


# --- the sender's end ----------------------------------------------------------------------------
def add_mass(
    link: OutLink, y: Tensor, quantized: bool = False, new_row: NewRow = new_row
) -> tuple[OutLink, Mass]:
    """Put b·y on a link.

    Args:
        link: The sender's end.
        y: (n,) float64, the tracker.
        quantized: Round the total to int8; the rounding error stays in the tracker (error feedback).
        new_row: Makes the new total.

    Returns:
        The next state of the link, and the mass to subtract from y: exactly what the rounded total has
        gained.
    """
    total = new_row(len(y), link.total.dtype)
    for part in slices(len(y)):  # of whole blocks of the codec
        after = torch.add(link.total[part], y[part], alpha=link.weight).to(total.dtype)
        total[part] = Int8Codec().quantize(after[None])[0] if quantized else after
    return replace(link, total=total, number=link.number + 1), Mass(total, link.total)


def apply_ack(link: OutLink, ack: Ack) -> OutLink | RolledBack:
    """The next state of a link after an acknowledgement of this epoch."""
    check_jump(link.seen, ack.sender, "of the receiver")
    if ack.number > link.number:
        return RolledBack(
            f"a neighbour acknowledges message {ack.number}, but only {link.number} are known to be sent"
        )
    seen = ack.sender if ack.sender.number > link.seen.number else link.seen
    return replace(link, acked=max(link.acked, ack.number), seen=seen)


def rebase(link: OutLink) -> tuple[OutLink, Tensor] | None:
    """Start the totals of a link from zero, if the receiver has acknowledged every message.

    Returns:
        The next state and the total that was folded away; None if a message is unacknowledged or the link
        starts from zero already.
    """
    if link.acked != link.number or link.base == link.number:
        return None
    zero = zero_row(len(link.total), link.total.dtype)
    return replace(link, base=link.number, total=zero), link.total


# --- the receiver's end --------------------------------------------------------------------------
class MessageEffect(NamedTuple):
    """What a message changes at the receiver."""

    link: InLink
    mass: Mass | None = None  # to add to y; None if the message brings nothing new
    folded: Tensor | None = None  # (n,), the ρ that a rebase sets to zero


def apply_message(link: InLink, message: Message) -> MessageEffect | RolledBack:
    """Apply a message of this epoch; a message that was applied before has no effect."""
    check_jump(link.seen, message.sender, "of the sender")
    if message.acked > link.number:
        return RolledBack(
            f"a neighbour holds our acknowledgement {message.acked}, but we remember only {link.number}"
        )
    if message.sender.number < link.seen.number:
        # of an earlier incarnation: late, or of a disk that was set back, which the acknowledgement will show
        return MessageEffect(link)
    if link.seen.supersedes(message.sender):
        raise Refused(f"two processes claim to be incarnation {link.seen.number} of the sender")
    if message.number < link.number and message.sender != link.seen:
        # a restarted sender remembers all that it has sent, unless its disk was set back
        raise Refused(
            f"the sender restarts at message {message.number}, but had sent {link.number}"
        )
    link = replace(link, seen=message.sender)
    if message.number <= link.number:
        return MessageEffect(link)
    check_vectors(message)
    folded = None
    if message.base == link.base:
        mass = Mass(message.total, link.total)
    elif message.base == link.number:
        mass = Mass(message.total)
        folded = link.total
    else:
        raise Refused(
            f"message base {message.base} is neither the base {link.base} of the link nor its last "
            f"number {link.number}"
        )
    after = replace(link, number=message.number, base=message.base, total=message.total)
    return MessageEffect(after, mass, folded)
