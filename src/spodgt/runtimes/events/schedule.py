"""The order of events in virtual time, planned without looking at a single model.

When a client's local round ends it sends what it has on the links that work, takes what has arrived, and
begins the next round: one *turn*. When turns happen and what they find depends on times and draws only, so
turns are planned first and computed afterwards, many at once:

    batch    turns of different clients, one after the other in time: all of them send, then all of them take
    tick     the batches between two multiples of the clock's tick, after which states may be looked at

In a batch a client takes only what had arrived at its own time, so computing its turns together is the same
as computing them one by one. Messages carry totals, as between peers: whoever takes a message has taken all
older ones of that link, also those that are still on their way.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from spodgt import rng
from spodgt.participation import delay
from spodgt.runtimes.events.durations import Clock
from spodgt.runtimes.world import Run

_NEVER = 2**62  # an arrival that does not come: a newer message has taken its place
_TABLE = 2**16  # draws made at once
_AHEAD, _TURNS = 16, 2**12  # ticks that are planned at once; fewer where that would be more turns


class Sent:
    """What a client sends when a round of its ends: one copy for all its messages."""

    __slots__ = ("batch", "mass_refs", "mass_slot", "refs", "row", "slot")

    def __init__(self, batch: int = -1, row: int = -1) -> None:
        self.batch, self.row = batch, row  # where it is sent
        self.refs, self.slot = (
            0,
            -1,
        )  # messages that nobody has taken yet, and where it is kept; -1: nowhere
        self.mass_refs, self.mass_slot = (
            0,
            -1,
        )  # the same of trackers, where they are kept apart from models


class Message:
    """A copy on its way along a link."""

    __slots__ = ("arrival", "direct", "k", "link", "sent")

    def __init__(self, link: int, sent: Sent, arrival: int, k: int) -> None:
        self.link, self.sent, self.arrival = link, sent, arrival
        self.k = k  # the sender's round that began when it was sent
        self.direct = (
            False  # taken by the receiver's next turn, in a later batch: mass may go there at once
        )


@dataclass(eq=False)
class Batch:
    """Turns of different clients; a row is a client's place in it."""

    number: int
    clients: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)  # that begin
    computes: list[bool] = field(default_factory=list)
    sent: list[Sent] = field(default_factory=list)  # of each row
    out: list[Message] = field(default_factory=list)  # sent
    got: list[tuple[int, Message, bool]] = field(
        default_factory=list
    )  # row, message, is it the newest?
    known: list[tuple[int, Message]] = field(
        default_factory=list
    )  # the last that a row took of each link
    forgotten: list[Sent] = field(default_factory=list)  # no longer the last that somebody knows
    partners: list[int] = field(default_factory=list)  # whom each client meets, where pairs do


@dataclass(eq=False)
class Tick:
    """What happens between two multiples of the tick."""

    batches: list[Batch] = field(default_factory=list)
    cost: float = 0.0  # by the paper's clock


class Tables:
    """Durations, latencies and draws of local rounds as plain numbers, some rounds at a time."""

    def __init__(self, run: Run, clock: Clock, size: int, pairs: bool) -> None:
        self.run, self.clock, self.size, self.pairs = run, clock, size, pairs
        width = run.network.clients + run.network.links
        self.rows = max(1, min(64, _TABLE // max(1, width)))
        self.known: dict[int, Rows] = {}

    def at(self, k: int) -> tuple[Rows, int]:
        """The table with local round k, and its row there."""
        part, row = divmod(k, self.rows)
        found = self.known.get(part)
        if found is None:
            if (
                len(self.known) > 64
            ):  # clients are in different rounds, but old ones are not asked for again
                del self.known[min(self.known)]
            found = self.known[part] = self._made(range(part * self.rows, (part + 1) * self.rows))
        return found, row

    def _made(self, rounds: range) -> Rows:
        clock, availability = self.clock, self.run.availability
        computes, links = availability.computes(rounds), availability.links(rounds).pull
        if (
            self.pairs
        ):  # everybody computes in its own rounds; who meets whom is drawn when they meet
            computes, links = np.ones_like(computes), np.zeros_like(links)
        transfers = clock.transfers(rounds, self.size)
        return Rows(
            clock.durations(rounds).tolist(),
            clock.latencies(rounds).tolist(),
            None if transfers is None else transfers.tolist(),
            computes.tolist(),
            links.tolist(),
        )


@dataclass(frozen=True, eq=False, slots=True)
class Rows:
    """Some local rounds: one list per round, of clients or links."""

    durations: list[list[int]]
    latencies: list[list[int]]
    transfers: list[list[int]] | None
    computes: list[list[bool]]
    links: list[list[bool]]  # that are used when the round begins


class Plan:
    """The turns of one run: `window` plans the next ticks.

    Args:
        run: the run.
        clock: its times.
        size: bytes of a message.
        waits: clients begin a round together, when the last message of the round before has arrived.
        remembers: clients go on with the last message they know of a link, not with new ones only.
        pairs: a client that ends its round meets a neighbour; nothing else is sent.
        overlap: by how many rounds a client may be ahead of its in-neighbours; None: by any number.
    """

    def __init__(
        self,
        run: Run,
        clock: Clock,
        size: int,
        *,
        waits: bool,
        remembers: bool,
        pairs: bool,
        overlap: int | None,
    ) -> None:
        net = run.network
        self.run, self.clock, self.tables = run, clock, Tables(run, clock, size, pairs)
        self.waits, self.remembers, self.pairs, self.overlap = waits, remembers, pairs, overlap
        self.into: list[list[int]] = [[] for _ in range(net.clients)]
        self.out: list[list[int]] = [[] for _ in range(net.clients)]
        self.receivers, self.senders = net.receivers.tolist(), net.senders.tolist()
        for link, (i, j) in enumerate(zip(self.receivers, self.senders, strict=True)):
            self.into[i].append(link)
            self.out[j].append(link)
        costs = delay.costs(net, run.availability)
        self.price, self.link_price = costs.clients.tolist(), costs.links.tolist()
        self.ahead = max(1, min(_AHEAD, _TURNS // net.clients))
        self.tick, self.number, self.opened = 0, 0, 0
        self.last = [-1] * net.clients  # the batch of each client's last turn
        self.meetings = rng.key(run.seed, "meet")
        rows, _ = self.tables.at(0)
        self.k = [1] * net.clients  # the round that begins next
        self.times = list(rows.durations[0])  # when
        self.flights: list[list[Message]] = [[] for _ in range(net.links)]
        self.memory: list[Message | None] = [None] * net.links
        self.begun, self.busy = (
            [0] * net.links,
            [0] * net.links,
        )  # of the last message put on a link
        self.heard = [0] * net.links  # the sender's round of the last message taken
        if waits:
            self.times = [self._together(1, 0)] * net.clients
        elif pairs:
            self.times = [self._meeting(i, 0, 0) for i in range(net.clients)]
        self._enqueue()

    def _enqueue(self) -> None:
        self.queue = [(time, i, self.k[i]) for i, time in enumerate(self.times)]
        heapq.heapify(self.queue)

    # --- planning --------------------------------------------------------------------------------
    def window(self) -> list[Tick]:
        """The next ticks."""
        found, self.opened = [], self.number + 1
        for _ in range(self.ahead):
            self.tick += 1
            found.append(self._until(self.tick * self.clock.tick))
        for flight in self.flights:
            for message in flight:
                i = self.receivers[message.link]
                message.direct |= message.arrival <= self.times[i] and self._next(message, i)
        return found

    def _next(self, message: Message, i: int) -> bool:
        """Whether a message of this window was sent after, or in the batch of, the last turn of client i."""
        return self.opened <= message.sent.batch and self.last[i] <= message.sent.batch

    def _until(self, end: int) -> Tick:
        tick, batch, inside = Tick(), self._batch(), set[int]()
        queue = self.queue
        while queue[0][0] <= end:
            now = queue[0][0]
            group = []
            while queue and queue[0][0] == now:
                _, i, k = heapq.heappop(queue)
                if k == self.k[i] and i not in group and self._may(i, now):
                    group.append(i)
            if not group:
                continue
            for some in [[i] for i in group] if self.pairs else [group]:
                involved = [*some, self._partner(some[0])] if self.pairs else some
                if not inside.isdisjoint(involved):
                    tick.batches.append(batch)
                    batch, inside = self._batch(), set()
                inside.update(involved)
                self._turns(batch, tick, some, now)
            for i in group:
                heapq.heappush(queue, (self.times[i], i, self.k[i]))
        if batch.clients:
            tick.batches.append(batch)
        return tick

    def _batch(self) -> Batch:
        self.number += 1
        return Batch(self.number)

    def _turns(self, batch: Batch, tick: Tick, group: list[int], now: int) -> None:
        """The turns of one moment: everybody sends, then everybody takes."""
        first = len(batch.clients)
        for i in group:
            k = self.k[i]
            rows, at = self.tables.at(k)
            before, was = self.tables.at(k - 1)
            batch.clients.append(i)
            batch.rounds.append(k)
            batch.computes.append(rows.computes[at][i])
            if before.computes[was][i]:
                tick.cost += self.price[i]
            if self.pairs:
                self._meet(batch, tick, i)
            else:
                self._send(batch, tick, i, rows, at, now)
        if not self.pairs:
            for row, i in enumerate(group, first):
                self._take(batch, row, i, now)
        for i in group:
            self.last[i] = batch.number
        if self.waits:
            then = self._together(self.k[0] + 1, now)
            for i in group:
                self.times[i], self.k[i] = then, self.k[i] + 1
            return
        for i in group:
            rows, at = self.tables.at(self.k[i])
            self.times[i] = (
                self._meeting(i, self.k[i], now) if self.pairs else now + rows.durations[at][i]
            )
            self.k[i] += 1

    def _send(self, batch: Batch, tick: Tick, i: int, rows: Rows, at: int, now: int) -> None:
        sent = Sent(batch.number, len(batch.sent))
        batch.sent.append(sent)
        active, latency = rows.links[at], rows.latencies[at]
        for link in self.out[i]:
            if active[link]:
                arrival = now
                if not self.waits:
                    begin = (
                        now
                        if rows.transfers is None
                        else self._transmit(link, rows.transfers[at], now)
                    )
                    arrival = begin + latency[link]
                message = Message(link, sent, arrival, self.k[i])
                self.flights[link].append(message)
                if self.overlap is not None:  # the receiver may wait for it
                    to = self.receivers[link]
                    heapq.heappush(self.queue, (max(arrival, self.times[to]), to, self.k[to]))
                batch.out.append(message)
                sent.refs += 1
                tick.cost += self.link_price[link]

    def _transmit(self, link: int, transfers: list[int], now: int) -> int:
        """When the last byte of a new message has left; what still waits to be sent is replaced by it."""
        if now >= self.busy[link]:
            self.begun[link] = now
        elif now >= self.begun[link]:  # the last one is being sent
            self.begun[link] = self.busy[link]
        else:
            self.flights[link][-1].arrival = _NEVER
        self.busy[link] = self.begun[link] + transfers[link]
        return self.busy[link]

    def _take(self, batch: Batch, row: int, i: int, now: int) -> None:
        for link in self.into[i]:
            flight = self.flights[link]
            count = len(flight)
            while count and flight[count - 1].arrival > now:
                count -= 1
            for message in flight[:count]:
                batch.got.append((row, message, False))
                message.direct |= message.sent.batch != batch.number and self._next(message, i)
            if count:
                newest = flight[count - 1]
                self.heard[link] = newest.k
                batch.got[-1] = (row, newest, True)
                del flight[:count]
                if self.remembers:
                    if (old := self.memory[link]) is not None:
                        batch.forgotten.append(old.sent)
                    self.memory[link] = newest
                    newest.sent.refs += 1
            if self.remembers and (last := self.memory[link]) is not None:
                batch.known.append((row, last))

    # --- clients that wait, clients that meet ----------------------------------------------------
    def _may(self, i: int, now: int) -> bool:
        """Whether client i may begin its next round: no in-neighbour is too far behind."""
        if self.overlap is None:
            return True
        late = False
        for link in self.into[i]:
            needed = self._used(link, self.k[i] - self.overlap)
            coming = [m.arrival for m in self.flights[link] if m.k >= needed]
            if self.heard[link] < needed and min(coming, default=_NEVER) > now:
                late = True
                for (
                    arrival
                ) in coming:  # it looks again then; messages that are still to be sent will wake it
                    heapq.heappush(self.queue, (arrival, i, self.k[i]))
        return not late

    def _together(self, k: int, now: int) -> int:
        """When round k begins for all: everybody's round is over, and all messages have come."""
        before, was = self.tables.at(k - 1)
        rows, at = self.tables.at(k)
        durations, active, latency = before.durations[was], rows.links[at], rows.latencies[at]
        longest = max(durations)
        for link, j in enumerate(self.senders):
            if active[link]:
                transfer = 0 if rows.transfers is None else rows.transfers[at][link]
                longest = max(longest, durations[j] + transfer + latency[link])
        return now + longest

    def _used(self, link: int, k: int) -> int:
        """The last round until k in which a link works; nobody waits for what is never sent."""
        while k > 0:
            rows, at = self.tables.at(k)
            if rows.links[at][link]:
                return k
            k -= 1
        return 0

    def _partner(self, i: int) -> int:
        link = self._chosen(i, self.k[i])
        return i if link is None else self.senders[link]

    def _chosen(self, i: int, k: int) -> int | None:
        """The in-link of the neighbour that client i meets when its round k begins."""
        if not self.into[i]:
            return None
        return self.into[i][int(rng.uniform(self.meetings, k, i) * len(self.into[i]))]

    def _meeting(self, i: int, k: int, now: int) -> int:
        """When client i has ended round k and heard from the neighbour it asked."""
        before, was = self.tables.at(k)
        rows, at = self.tables.at(k + 1)
        link = self._chosen(i, k + 1)
        then = now + before.durations[was][i]
        reverse = self.run.network.reverse
        for way in () if link is None or reverse is None else (link, int(reverse[link])):
            then += rows.latencies[at][way] + (rows.transfers[at][way] if rows.transfers else 0)
        return then

    def _meet(self, batch: Batch, tick: Tick, i: int) -> None:
        link = self._chosen(i, self.k[i])
        batch.partners.append(i if link is None else self.senders[link])
        reverse = self.run.network.reverse
        if link is not None and reverse is not None:
            sent = Sent()
            for way in (link, int(reverse[link])):
                batch.out.append(Message(way, sent, 0, 0))
                tick.cost += self.link_price[way]

    # --- keeping ---------------------------------------------------------------------------------
    def pack(self) -> dict[str, Tensor]:
        """Where the plan stands, between two windows."""
        messages = [message for flight in self.flights for message in flight]
        kept = [message for message in self.memory if message is not None]
        copies = {id(message.sent): message.sent for message in (*messages, *kept)}
        number = {key: n for n, key in enumerate(copies)}
        places = [[s.refs, s.slot, s.mass_refs, s.mass_slot] for s in copies.values()]
        return {
            "clients": torch.tensor([self.times, self.k]),
            "links": torch.tensor([self.begun, self.busy, self.heard]),
            "copies": torch.tensor(places).reshape(-1, 4),
            "messages": _rows(messages, number),
            "memory": _rows(kept, number),
            "tick": torch.tensor(self.tick),
        }

    def unpack(self, found: Mapping[str, Tensor]) -> None:
        """Go on from what `pack` gave."""
        self.times, self.k = found["clients"][:2].tolist()  # older checkpoints have a third row
        self.begun, self.busy, self.heard = found["links"].tolist()
        self.tick = int(found["tick"])
        copies = [Sent() for _ in found["copies"]]
        for sent, numbers in zip(copies, found["copies"].tolist(), strict=True):
            sent.refs, sent.slot, sent.mass_refs, sent.mass_slot = numbers
        for link, copy, arrival, k, direct in found["messages"].tolist():
            message = Message(link, copies[copy], arrival, k)
            message.direct = bool(direct)
            self.flights[link].append(message)
        for link, copy, arrival, k, _ in found["memory"].tolist():
            self.memory[link] = Message(link, copies[copy], arrival, k)
        self._enqueue()

    def slots(self) -> tuple[set[int], set[int]]:
        """Where copies are kept that somebody is still going to take: of all, and of trackers apart."""
        messages = [m for m in (*chain(*self.flights), *self.memory) if m is not None]
        return {m.sent.slot for m in messages}, {m.sent.mass_slot for m in messages}


def _rows(messages: list[Message], number: Mapping[int, int]) -> Tensor:
    rows = [[m.link, number[id(m.sent)], m.arrival, m.k, m.direct] for m in messages]
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, 5)
