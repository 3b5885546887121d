"""Links as two trees with one root: how the trees come about, and what happens when a client leaves.

Every client knows the prices 1/p̂ of its own in-links. In every round clients send all prices they know
along with what they send anyway: this flood takes rounds, which the clock charges, and no more messages.
A client that knows all prices computes the trees and uses their links only; until then it takes part in
gradient tracking over all links. Senders weigh what they push and receivers what they pull, so clients
change over one by one: columns of B̂ and rows of Â sum to one in every round.

A client that has left for good is noticed once its links have been silent for as long as ten uses would
take. The news floods the links of those that remain, and nobody steps meanwhile. When all have heard it, an
epoch begins on the trees of the best root among them: every tracker starts from its own client's gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from spodgt.network import Network
from spodgt.network.spanning_trees import SpanningTrees, cheapest_trees
from spodgt.participation.availability import NEVER, AvailabilityTrace, AvailabilityWrapper
from spodgt.participation.roles import Roles
from spodgt.types import ActiveLinks, Availability, Bools, Ints

_SILENCE = 10  # expected waiting times of silence after which a client counts as gone
_STEP = 256  # rounds of a flood looked at together


@dataclass(eq=False)
class Flood:
    """Facts on their way over working links; each client acts once it knows them all.

    Args:
        network: who can talk.
        trees: what a client that knows everything uses; None: it goes on with all links.
        among: (clients,) who takes part.
        knows: (clients, facts) who knows what before round `at`.
        at: the next round to look at.
    """

    network: Network
    trees: SpanningTrees | None
    among: Bools
    knows: Bools
    at: int
    ready: Ints = field(
        init=False
    )  # (clients,): the first round in which a client knows everything

    def __post_init__(self) -> None:
        self.ready = np.where(self.knows.all(1) & self.among, self.at, NEVER)

    @property
    def over(self) -> bool:
        return bool((self.ready[self.among] < NEVER).all())

    def until(self, end: int, base: Availability) -> None:
        """Look at the rounds before `end`, unless it is over earlier."""
        network = self.network
        while self.at < end and not self.over:
            for working in base.links(range(self.at, min(end, self.at + _STEP))).used:
                used = working & self.among[network.receivers] & self.among[network.senders]
                if self.trees is not None:
                    on = self.ready <= self.at
                    used &= (~on[network.receivers] | self.trees.down) | (
                        ~on[network.senders] | self.trees.up
                    )
                heard = self.knows.copy()
                np.logical_or.at(heard, network.receivers[used], self.knows[network.senders[used]])
                self.knows, self.at = heard, self.at + 1
                self.ready[heard.all(1) & self.among & (self.ready == NEVER)] = self.at


@dataclass(frozen=True, eq=False)
class Epoch:
    """Some rounds with one root.

    Args:
        first: the first of them.
        trees: the root and its trees.
        flood: tells from which round each client uses the trees.
        steps: whether clients step before that.
        restart: the round whose trackers start anew; -1 for none.
    """

    first: int
    trees: SpanningTrees
    flood: Flood
    steps: bool
    restart: int = -1


@dataclass(frozen=True, eq=False)
class TreeRouting(AvailabilityWrapper):
    """The links of two trees, once every client knows all prices; see the head of this file."""

    network: Network
    leads: bool = (
        True  # the root steps for all; else the trees are one, two-way, and everybody on it steps
    )
    idle_clients: bool = True
    idle_links: bool = True

    @property
    def length(self) -> int | None:
        return self.base.length

    @cached_property
    def epochs(self) -> tuple[Epoch, ...]:
        """All epochs in order; the first begins in round 1."""
        everyone = np.ones(self.network.clients, bool)
        trees = self._trees(everyone)
        own = np.eye(self.network.clients, dtype=bool)[:, trees.members]
        epochs = [Epoch(0, trees, Flood(self.network, trees, trees.members, own, 1), steps=True)]
        for gone, noticed in self._departures():
            alive = epochs[-1].trees.members & ~gone
            if not alive.any():
                break
            trees = self._trees(alive)
            network = self.network
            heard = np.zeros((network.clients, 1), bool)
            heard[network.senders[gone[network.receivers]]] = heard[
                network.receivers[gone[network.senders]]
            ] = True
            news = Flood(network, None, trees.members, heard, noticed)
            news.until(self.length or 0, self.base)
            start = max(int(news.ready[trees.members].max()), noticed + 1)
            news.ready[:] = (
                start  # all begin together: Σy = Σg holds from the first round of the epoch
            )
            epochs.append(Epoch(noticed, trees, news, steps=False, restart=start - 1))
        return tuple(epochs)

    @property
    def roots(self) -> tuple[int, ...]:
        return tuple(epoch.trees.root for epoch in self.epochs) if self.leads else ()

    def _trees(self, alive: Bools) -> SpanningTrees:
        return cheapest_trees(self.network, 1 / self.p_hat, alive, single_tree=not self.leads)

    @cached_property
    def _last(self) -> Ints:
        """(clients,): the last round in which a client is there."""
        base = self.base
        while isinstance(base, AvailabilityWrapper):
            base = base.base
        if isinstance(base, AvailabilityTrace):
            return base.last_rounds(self.network)
        return np.full(self.network.clients, NEVER)

    def _departures(self) -> list[tuple[Bools, int]]:
        """Who leaves for good, and the round in which that is noticed; in order."""
        often = np.zeros(self.network.clients)
        for ends in (self.network.receivers, self.network.senders):
            np.maximum.at(often, ends, self.p_hat)
        noticed = self._last + np.ceil(_SILENCE / np.maximum(often, 1e-9)).astype(np.int64) + 1
        left = np.unique(noticed[noticed <= (self.length or 0)])
        return [(noticed == k, int(k)) for k in left]

    # --- rounds ----------------------------------------------------------------------------------
    def computes(self, rounds: range) -> Bools:
        return self.base.computes(rounds)

    def links(self, rounds: range) -> ActiveLinks:
        working, network = self.base.links(rounds), self.network
        pull, push = working.pull.copy(), working.pushing.copy()
        for rows, epoch, on in self._spans(rounds):
            trees = epoch.trees
            inside = trees.members[network.receivers] & trees.members[network.senders]
            pull[rows] &= inside & (~on[:, network.receivers] | trees.down)
            push[rows] &= inside & (~on[:, network.senders] | trees.up)
        return ActiveLinks(pull, push)

    def roles(self, rounds: range) -> Roles:
        network = self.network
        a, b = np.tile(network.a, (len(rounds), 1)), np.tile(network.b, (len(rounds), 1))
        step_weight = np.zeros((len(rounds), network.clients))
        reset_tracker = np.zeros(step_weight.shape, bool)
        for rows, epoch, on in self._spans(rounds):
            trees = epoch.trees
            if self.leads:
                a[rows][on[:, network.receivers]] = 1.0
                b[rows][on[:, network.senders]] = 1.0
                step_weight[rows] = ~on & trees.members & epoch.steps
                step_weight[rows, trees.root] += on[:, trees.root] / trees.members.sum()
            else:  # both ends of an edge must know the tree; until then links carry prices only
                a[rows] = b[rows] = on[:, network.receivers] & on[:, network.senders]
                step_weight[rows] = on & trees.members
            reset_tracker[rows] = (np.asarray(rounds)[rows] == epoch.restart)[:, None]
        step_weight[np.asarray(rounds)[:, None] > self._last] = 0.0
        return Roles(a, b, step_weight, reset_tracker)

    def _spans(self, rounds: range) -> Iterator[tuple[slice, Epoch, Bools]]:
        """The epochs of these rounds: which rows, and (rows, clients) who uses the trees."""
        firsts = [*(epoch.first for epoch in self.epochs), NEVER]
        for epoch, end in zip(self.epochs, firsts[1:], strict=True):
            low, high = max(rounds.start, epoch.first), min(rounds.stop, end)
            if low < high:
                epoch.flood.until(high, self.base)
                on = np.arange(low, high)[:, None] >= epoch.flood.ready
                yield slice(low - rounds.start, high - rounds.start), epoch, on
