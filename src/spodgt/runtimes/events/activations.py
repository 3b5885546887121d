"""Activations and messages of a discrete-event simulation, as data.

An *activation* is the end of a client's local round: the client sends its rows on the active links,
receives the messages that have arrived, and starts the next round.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class PoolReference:
    """The slot of a row in a pool, and the number of messages that still need it."""

    __slots__ = ("count", "slot")

    def __init__(self) -> None:
        self.count = 0
        self.slot = -1  # no slot


class SentCopy:
    """The rows that a client sends at an activation: one copy for all its messages."""

    __slots__ = ("batch", "model", "row", "tracker")

    def __init__(self, batch: int = -1, row: int = -1) -> None:
        self.batch = batch  # number of the batch in which it is sent
        self.row = row  # of the sender in that batch
        self.model = PoolReference()
        self.tracker = PoolReference()  # used if trackers have a pool of their own


class LinkMessage:
    """A copy in flight on a link."""

    __slots__ = ("arrival", "copy", "link", "round_number", "uses_inbox")

    def __init__(self, link: int, copy: SentCopy, arrival: int, round_number: int) -> None:
        self.link = link
        self.copy = copy
        self.arrival = arrival  # nanoseconds
        self.round_number = round_number  # the sender's round that starts when it is sent
        # The next activation of the receiver, in a later batch, receives the message: its tracker
        # may be added to the receiver's inbox at once.
        self.uses_inbox = False


class Receipt(NamedTuple):
    """A message and the row of a batch that receives it."""

    row: int
    message: LinkMessage
    is_newest: bool = True  # of its link


@dataclass(eq=False)
class ActivationBatch:
    """Activations of different clients; a row is the position of a client in the batch."""

    number: int
    clients: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)  # that start
    computes: list[bool] = field(default_factory=list)
    partners: list[int] = field(default_factory=list)  # of each client, in pairwise exchanges
    copies: list[SentCopy] = field(default_factory=list)  # of each row
    messages: list[LinkMessage] = field(default_factory=list)  # sent
    received: list[Receipt] = field(default_factory=list)
    remembered: list[Receipt] = field(default_factory=list)  # the last message of each in-link
    forgotten: list[SentCopy] = field(default_factory=list)  # replaced in memory by newer ones


@dataclass(eq=False)
class Tick:
    """The batches between two multiples of the tick."""

    batches: list[ActivationBatch] = field(default_factory=list)
    cost: float = 0.0  # delay by the paper's clock
