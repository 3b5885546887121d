"""Routing over two spanning trees with one root: flooding of link costs, epochs, departures.

Each client has the costs 1/p̂ of its own in-links. In each round clients add all costs that they
have received to the messages that they send anyway: this flood takes rounds, which the clock
charges, but no additional messages. A client with all costs computes the trees and uses their links
only; until then it takes part in gradient tracking over all links. Senders weigh what they push and
receivers what they pull, so clients can switch one by one: columns of B̂ and rows of Â sum to one
in each round.

A client counts as departed after its links have been silent for the time of ten expected uses. This
message floods the links of the remaining clients, which take no steps meanwhile. When all of them
have received it, an epoch begins on the trees of the best root among them: each client
resets its tracker to its own gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from spodgt.network import Network
from spodgt.network.spanning_trees import SpanningTrees, cheapest_trees
from spodgt.participation.availability import NEVER, AvailabilityTrace, AvailabilityWrapper
from spodgt.participation.roles import Roles
from spodgt.types import ActiveLinks, Availability, Bools, Ints

_DEPARTURE_SILENCE = 10  # expected waiting times without a message after which a client has left
_FLOOD_ROUNDS = 256  # rounds of a flood that are sampled at once


@dataclass(eq=False)
class Flood:
    """Flooding of facts over active links; a client is ready once it has received all facts.

    Args:
        network: The links.
        trees: Links that a ready client uses; None: it continues to use all links.
        members: (clients,) clients that take part.
        has_fact: (clients, facts) which facts each client has before round `next_round`.
        next_round: The next round to process.
    """

    network: Network
    trees: SpanningTrees | None
    members: Bools
    has_fact: Bools
    next_round: int
    ready: Ints = field(init=False)  # (clients,) first round in which a client has all facts

    def __post_init__(self) -> None:
        is_ready = self.has_fact.all(1) & self.members
        self.ready = np.where(is_ready, self.next_round, NEVER)

    @property
    def is_complete(self) -> bool:
        """Whether all members are ready."""
        return bool((self.ready[self.members] < NEVER).all())

    def advance(self, end: int, base: Availability) -> None:
        """Process the rounds before `end`, or fewer if the flood completes earlier."""
        while self.next_round < end and not self.is_complete:
            rounds = range(self.next_round, min(end, self.next_round + _FLOOD_ROUNDS))
            for active in base.links(rounds).used:
                self._process_round(active)

    def _process_round(self, active: Bools) -> None:
        network = self.network
        used = active & self.members[network.receivers] & self.members[network.senders]
        if self.trees is not None:
            is_ready = self.ready <= self.next_round
            pulls = ~is_ready[network.receivers] | self.trees.down
            pushes = ~is_ready[network.senders] | self.trees.up
            used &= pulls | pushes
        has_fact = self.has_fact.copy()
        received = self.has_fact[network.senders[used]]
        np.logical_or.at(has_fact, network.receivers[used], received)
        self.has_fact = has_fact
        self.next_round += 1
        becomes_ready = has_fact.all(1) & self.members & (self.ready == NEVER)
        self.ready[becomes_ready] = self.next_round


@dataclass(frozen=True, eq=False)
class Epoch:
    """Consecutive rounds with one root.

    Args:
        first: First round.
        trees: The root and its trees.
        flood: Gives the round from which each client uses the trees.
        steps: Whether clients take steps before that round.
        restart: Round after which trackers are reset; -1: none.
    """

    first: int
    trees: SpanningTrees
    flood: Flood
    steps: bool
    restart: int = -1


class Departure(NamedTuple):
    """Departures of clients that are detected in the same round."""

    clients: Bools  # (clients,)
    detected: int


class EpochRows(NamedTuple):
    """The rows of a mask that belong to one epoch."""

    rows: slice
    epoch: Epoch
    on_trees: Bools  # (rows, clients) whether a client uses the trees


@dataclass(frozen=True, eq=False)
class TreeRouting(AvailabilityWrapper):
    """The links of two trees, once each client has all link costs; see the module docstring.

    Args:
        base: The wrapped availability.
        network: The links.
        leads: The root takes the steps of all clients. Else both trees are one tree of two-way
            links, and each of its clients takes its own step.
    """

    network: Network
    leads: bool = True
    idle_clients: bool = True
    idle_links: bool = True

    @cached_property
    def epochs(self) -> tuple[Epoch, ...]:
        """All epochs in order; the first one begins in round 1."""
        epochs = [self._first_epoch()]
        for departure in self._departures():
            remaining = epochs[-1].trees.members & ~departure.clients
            if not remaining.any():
                break
            epochs.append(self._epoch_after(departure, remaining))
        return tuple(epochs)

    def _first_epoch(self) -> Epoch:
        """All clients; each of them has the costs of its own in-links."""
        trees = self._trees(np.ones(self.network.clients, bool))
        own_costs = np.eye(self.network.clients, dtype=bool)[:, trees.members]
        flood = Flood(self.network, trees, trees.members, own_costs, next_round=1)
        return Epoch(0, trees, flood, steps=True)

    def _epoch_after(self, departure: Departure, remaining: Bools) -> Epoch:
        """The epoch of the remaining clients; it starts when all have received the departure."""
        network = self.network
        trees = self._trees(remaining)
        has_departure = np.zeros((network.clients, 1), bool)
        has_departure[network.senders[departure.clients[network.receivers]]] = True
        has_departure[network.receivers[departure.clients[network.senders]]] = True
        flood = Flood(network, None, trees.members, has_departure, departure.detected)
        flood.advance(self.length or 0, self.base)
        start = max(int(flood.ready[trees.members].max()), departure.detected + 1)
        flood.ready[:] = start  # all start together: Σy = Σg holds from the first round
        return Epoch(departure.detected, trees, flood, steps=False, restart=start - 1)

    @property
    def roots(self) -> tuple[int, ...]:
        """Roots of the epochs; none if each client takes its own step."""
        if not self.leads:
            return ()
        return tuple(epoch.trees.root for epoch in self.epochs)

    def _trees(self, present: Bools) -> SpanningTrees:
        costs = 1 / self.p_hat
        return cheapest_trees(self.network, costs, present, single_tree=not self.leads)

    @cached_property
    def _last_rounds(self) -> Ints:
        """(clients,) the last round in which a client is available."""
        base = self.base
        while isinstance(base, AvailabilityWrapper):
            base = base.base
        if isinstance(base, AvailabilityTrace):
            return base.last_rounds(self.network)
        return np.full(self.network.clients, NEVER)

    def _departures(self) -> list[Departure]:
        """Departures in the order of their detection."""
        best_link = np.zeros(self.network.clients)
        np.maximum.at(best_link, self.network.receivers, self.p_hat)
        np.maximum.at(best_link, self.network.senders, self.p_hat)
        silence = np.ceil(_DEPARTURE_SILENCE / np.maximum(best_link, 1e-9)).astype(np.int64)
        detected = self._last_rounds + silence + 1
        rounds = np.unique(detected[detected <= (self.length or 0)])
        return [Departure(detected == k, int(k)) for k in rounds]

    # --- rounds ----------------------------------------------------------------------------------
    def links(self, rounds: range) -> ActiveLinks:
        network = self.network
        active = self.base.links(rounds)
        pull = active.pull.copy()
        push = active.pushing.copy()
        for rows, epoch, on_trees in self._epoch_rows(rounds):
            trees = epoch.trees
            is_inside = trees.members[network.receivers] & trees.members[network.senders]
            pull[rows] &= is_inside & (~on_trees[:, network.receivers] | trees.down)
            push[rows] &= is_inside & (~on_trees[:, network.senders] | trees.up)
        return ActiveLinks(pull, push)

    def roles(self, rounds: range) -> Roles:
        """Weights of the links, and each client's share of the step."""
        network = self.network
        number = np.asarray(rounds)
        a = np.tile(network.a, (len(rounds), 1))
        b = np.tile(network.b, (len(rounds), 1))
        step_weight = np.zeros((len(rounds), network.clients))
        reset_tracker = np.zeros(step_weight.shape, bool)
        for rows, epoch, on_trees in self._epoch_rows(rounds):
            trees = epoch.trees
            if self.leads:
                a[rows][on_trees[:, network.receivers]] = 1.0
                b[rows][on_trees[:, network.senders]] = 1.0
                step_weight[rows] = ~on_trees & trees.members & epoch.steps
                step_weight[rows, trees.root] += on_trees[:, trees.root] / trees.members.sum()
            else:  # both ends must have the tree; until then links carry costs only
                both_ends = on_trees[:, network.receivers] & on_trees[:, network.senders]
                a[rows] = both_ends
                b[rows] = both_ends
                step_weight[rows] = on_trees & trees.members
            reset_tracker[rows] = (number[rows] == epoch.restart)[:, None]
        step_weight[number[:, None] > self._last_rounds] = 0.0
        return Roles(a, b, step_weight, reset_tracker)

    def _epoch_rows(self, rounds: range) -> Iterator[EpochRows]:
        """The epochs that these rounds belong to."""
        ends = [epoch.first for epoch in self.epochs[1:]]
        for epoch, end in zip(self.epochs, [*ends, NEVER], strict=True):
            first = max(rounds.start, epoch.first)
            stop = min(rounds.stop, end)
            if first < stop:
                epoch.flood.advance(stop, self.base)
                on_trees = np.arange(first, stop)[:, None] >= epoch.flood.ready
                yield EpochRows(slice(first - rounds.start, stop - rounds.start), epoch, on_trees)
