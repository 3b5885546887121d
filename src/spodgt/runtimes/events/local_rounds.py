"""Local rounds of clients: durations, active links, and when a client starts its next round."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spodgt import rng
from spodgt.algorithms.base import HasOverlap
from spodgt.algorithms.registry import unwrap
from spodgt.network import Network
from spodgt.runtimes.events.activations import ActivationBatch, LinkMessage, SentCopy
from spodgt.runtimes.events.durations import DurationClock
from spodgt.runtimes.world import Run
from spodgt.types import Ints

_TABLE_SIZE = 2**16  # entries drawn at once
_CACHED_TABLES = 64


@dataclass(frozen=True)
class Coordination:
    """When the clients of a method start a round, and which messages they use."""

    synchronous: bool  # all at once, after the last message of the round before has arrived
    pairwise: bool  # a client averages with one neighbour; nothing else is sent
    uses_stale_models: bool  # the last message of a link is used until a newer one arrives
    max_lead: int | None  # rounds a client may be ahead of its in-neighbours; None: any number

    @staticmethod
    def of(run: Run) -> Coordination:
        """The coordination that the method of a run declares."""
        traits = run.algorithm.traits
        pairwise = traits.activation == "edge-initiator" and run.network.links > 0
        method, _ = unwrap(run.algorithm)
        return Coordination(
            synchronous=traits.waits and not pairwise,
            pairwise=pairwise,
            uses_stale_models=traits.uses_stale_models,
            max_lead=method.overlap if isinstance(method, HasOverlap) else None,
        )


@dataclass(frozen=True, eq=False, slots=True)
class LocalRound:
    """Local round k of all clients; times in nanoseconds."""

    durations: list[int]  # of each client
    computes: list[bool]
    links: list[bool]  # active when a client starts the round
    latencies: list[int]  # of the messages sent then, by link
    transfers: list[int] | None  # time of their bytes on each link; None: no limit


class RoundTable:
    """Local rounds as plain numbers, drawn many rounds at a time.

    Args:
        run: the run.
        clock: its durations.
        message_size: bytes.
        pairwise: whether clients exchange models in pairs, drawn by `PairwiseMeetings`.
    """

    def __init__(self, run: Run, clock: DurationClock, message_size: int, pairwise: bool) -> None:
        self.availability = run.availability
        self.clock = clock
        self.message_size = message_size
        self.pairwise = pairwise
        width = run.network.clients + run.network.links
        self.length = max(1, min(64, _TABLE_SIZE // max(1, width)))  # rounds of a table
        self.rounds: dict[int, LocalRound] = {}

    def __getitem__(self, k: int) -> LocalRound:
        if k not in self.rounds:
            if len(self.rounds) > _CACHED_TABLES * self.length:
                self._drop_oldest()
            first = k - k % self.length
            self.rounds |= self._draw(range(first, first + self.length))
        return self.rounds[k]

    def _drop_oldest(self) -> None:
        """Drop the oldest table: even the slowest client has passed it."""
        first = min(self.rounds)
        for k in range(first, first + self.length):
            del self.rounds[k]

    def _draw(self, rounds: range) -> dict[int, LocalRound]:
        computes = self.availability.computes(rounds)
        links = self.availability.links(rounds).pull
        if self.pairwise:  # clients compute in every round, and links are drawn at a meeting
            computes = np.ones_like(computes)
            links = np.zeros_like(links)
        durations = self.clock.durations(rounds).tolist()
        latencies = self.clock.latencies(rounds).tolist()
        transfers = self.clock.transfers(rounds, self.message_size)
        drawn = {}
        for n, k in enumerate(rounds):
            transfer = None if transfers is None else transfers[n].tolist()
            active = computes[n].tolist()
            links_active = links[n].tolist()
            drawn[k] = LocalRound(durations[n], active, links_active, latencies[n], transfer)
        return drawn


def links_of_clients(ends: Ints, clients: int) -> list[list[int]]:
    """The links of every client, in ascending order; `ends` (links,) are receivers or senders."""
    links: list[list[int]] = [[] for _ in range(clients)]
    for link, client in enumerate(ends.tolist()):
        links[client].append(link)
    return links


class PairwiseMeetings:
    """The random neighbour of a client, for averaging in pairs at the start of a round.

    Args:
        network: the network.
        seed: of the draws.
    """

    def __init__(self, network: Network, seed: int) -> None:
        self.network = network
        self.in_links = links_of_clients(network.receivers, network.clients)
        self.key = rng.key(seed, "meet")

    def links(self, client: int, k: int) -> list[int]:
        """The links from and to the neighbour; none where the network has no two-way links."""
        link = self._in_link(client, k)
        if link is None or self.network.reverse is None:
            return []
        return [link, int(self.network.reverse[link])]

    def partner(self, client: int, k: int) -> int:
        """The neighbour; the client itself if it has none."""
        link = self._in_link(client, k)
        return client if link is None else int(self.network.senders[link])

    def meet(self, batch: ActivationBatch, client: int, k: int) -> None:
        """Add the exchange of a client to a batch: two messages, which are not queued."""
        batch.partners.append(self.partner(client, k))
        for link in self.links(client, k):
            batch.messages.append(LinkMessage(link, SentCopy(), arrival=0, round_number=0))

    def _in_link(self, client: int, k: int) -> int | None:
        links = self.in_links[client]
        if not links:
            return None
        return links[int(rng.uniform(self.key, k, client) * len(links))]


class ClientRounds:
    """The round that each client starts next, and when.

    Args:
        run: the run.
        table: durations and active links of its rounds.
        coordination: of its method.
    """

    def __init__(self, run: Run, table: RoundTable, coordination: Coordination) -> None:
        self.table = table
        self.coordination = coordination
        self.senders: list[int] = run.network.senders.tolist()
        self.meetings = PairwiseMeetings(run.network, run.seed)
        clients = run.network.clients
        self.next_round = [0] * clients
        self.next_time = [0] * clients  # nanoseconds
        self.start(list(range(clients)), 0)

    def start(self, clients: list[int], now: int) -> None:
        """Let clients start their next round at time `now`."""
        if self.coordination.synchronous:
            ends = [self._synchronous_end(now)] * len(clients)
        elif self.coordination.pairwise:
            ends = [self._meeting(client, now) for client in clients]
        else:
            ends = [now + self.table[self.next_round[i]].durations[i] for i in clients]
        for client, end in zip(clients, ends, strict=True):
            self.next_time[client] = end
            self.next_round[client] += 1

    def last_active_round(self, link: int, k: int) -> int:
        """The last round up to k in which a link is active; 0 if there is none."""
        while k > 0 and not self.table[k].links[link]:
            k -= 1
        return max(k, 0)

    def _synchronous_end(self, now: int) -> int:
        """When all clients have ended the round, and the messages sent then have arrived."""
        k = self.next_round[0]
        durations = self.table[k].durations
        following = self.table[k + 1]
        longest = max(durations)
        for link, sender in enumerate(self.senders):
            if following.links[link]:
                transfer = 0 if following.transfers is None else following.transfers[link]
                longest = max(longest, durations[sender] + transfer + following.latencies[link])
        return now + longest

    def _meeting(self, client: int, now: int) -> int:
        """When a client has ended the round and exchanged models with its next neighbour."""
        k = self.next_round[client]
        following = self.table[k + 1]
        end = now + self.table[k].durations[client]
        for link in self.meetings.links(client, k + 1):
            end += following.latencies[link]
            if following.transfers is not None:
                end += following.transfers[link]
        return end
