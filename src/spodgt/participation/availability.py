"""Who computes and which links work, drawn for one network and one seed: a pure function of the round.

Arrays are (rounds, clients) and (rounds, links).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from spodgt import rng
from spodgt.network import Network
from spodgt.participation.roles import Roles
from spodgt.types import ActiveLinks, Availability, Bools, Floats, Ints

_MOST_PATIENT = 10.0  # times as often as it is there
NEVER = 2**62  # a round that no run reaches


class HasProbabilities:
    """Who may be idle, told by the probabilities."""

    p: Floats
    p_hat: Floats

    @property
    def idle_clients(self) -> bool:
        return bool((self.p < 1).any())

    @property
    def idle_links(self) -> bool:
        return bool((self.p_hat < 1).any())


@dataclass(frozen=True, eq=False)
class BernoulliAvailability(HasProbabilities):
    """Every client computes with its own p, every link works with its own p̂, all independent."""

    p: Floats
    p_hat: Floats
    seed: int
    length: int | None = None

    def computes(self, rounds: range) -> Bools:
        return rng.bernoulli(rng.key(self.seed, "clients"), rounds, self.p)

    def links(self, rounds: range) -> ActiveLinks:
        return ActiveLinks(rng.bernoulli(rng.key(self.seed, "links"), rounds, self._link_chances))

    @cached_property
    def _link_chances(self) -> Floats:
        """p̂; where it is the same for all, one number that is read again and again."""
        alike = len(self.p_hat) > 0 and bool((self.p_hat == self.p_hat[0]).all())
        return np.broadcast_to(self.p_hat[:1], self.p_hat.shape) if alike else self.p_hat


@dataclass(frozen=True, eq=False)
class AvailabilityTrace:
    """Availability read from arrays, round by round; `repeat` begins again at the end."""

    p: Floats
    p_hat: Floats
    client_table: Bools  # (rounds + 1, clients)
    link_table: Bools  # (rounds, links), or (rounds + 1, links) to be repeated
    seed: int = 0
    repeat: bool = False

    @property
    def length(self) -> int | None:
        return None if self.repeat else min(len(self.client_table) - 1, len(self.link_table))

    def last_rounds(self, network: Network) -> Ints:
        """(clients,): the last round in which a client computes or one of its links works.

        `NEVER` with `repeat`: every client returns with the next pass.
        """
        if self.length is None:
            return np.full(network.clients, NEVER)
        there = self.client_table[: self.length + 1].copy()
        for ends in (network.receivers, network.senders):
            k, link = np.nonzero(self.link_table[: len(there) - 1])
            there[k + 1, ends[link]] = True
        return np.asarray(len(there) - 1 - there[::-1].argmax(0))

    @property
    def idle_clients(self) -> bool:
        return not self.client_table.all()

    @property
    def idle_links(self) -> bool:
        return not self.link_table.all()

    def computes(self, rounds: range) -> Bools:
        return (
            self.client_table[self._row(rounds)]
            if self.repeat
            else at(self.client_table, rounds, 0)
        )

    def links(self, rounds: range) -> ActiveLinks:
        return ActiveLinks(
            self.link_table[self._row(rounds)] if self.repeat else at(self.link_table, rounds, 1)
        )

    def _row(self, rounds: range) -> Ints:
        return np.asarray(rounds, np.int64) % len(self.client_table)


@dataclass(frozen=True, eq=False)
class RandomEdge:
    """One link a round, drawn uniformly; only its two ends compute. A two-way link carries both ways."""

    p: Floats
    p_hat: Floats
    network: Network
    seed: int
    pairs: bool  # the reverse link works too
    length: int | None = None
    idle_clients: bool = True
    idle_links: bool = True

    def _link(self, rounds: range) -> Ints:
        draw = rng.uniform(rng.key(self.seed, "links"), np.asarray(rounds))
        return np.asarray((draw * self.network.links).astype(np.int64))

    def computes(self, rounds: range) -> Bools:
        link = self._link(rounds)
        active = np.zeros((len(rounds), self.network.clients), bool)
        active[np.arange(len(rounds)), self.network.receivers[link]] = True
        active[np.arange(len(rounds)), self.network.senders[link]] = True
        return active

    def links(self, rounds: range) -> ActiveLinks:
        link = self._link(rounds)
        active = np.zeros((len(rounds), self.network.links), bool)
        active[np.arange(len(rounds)), link] = True
        if self.pairs and self.network.reverse is not None:
            active[np.arange(len(rounds)), self.network.reverse[link]] = True
        return ActiveLinks(active)


@dataclass(frozen=True, eq=False)
class AvailabilityWrapper:
    """What a method makes of an availability; `p` and `p_hat` stay, so the clock still charges them."""

    base: Availability

    @property
    def p(self) -> Floats:
        return self.base.p

    @property
    def p_hat(self) -> Floats:
        return self.base.p_hat

    @property
    def seed(self) -> int:
        return self.base.seed


@dataclass(frozen=True, eq=False)
class AvailabilityOverride(AvailabilityWrapper):
    """Everybody computes, all links work, or links only now and then or both ways at once."""

    all_clients: bool = False
    all_links: bool = False
    every: int = 1  # links are used only in rounds divisible by it
    pairs: Ints | None = None  # every link's reverse: both work as the lower-numbered one does

    @property
    def p_hat(self) -> Floats:
        if self.pairs is None or self.all_links:
            return self.base.p_hat
        return self.base.p_hat[self._lower]  # a pair has one draw, so it has one probability

    @property
    def length(self) -> int | None:
        return None if self.all_clients and self.all_links else self.base.length

    @property
    def idle_clients(self) -> bool:
        return not self.all_clients and self.base.idle_clients

    @property
    def idle_links(self) -> bool:
        return self.every > 1 or (not self.all_links and self.base.idle_links)

    @cached_property
    def _lower(self) -> Ints:
        assert self.pairs is not None
        return np.minimum(np.arange(len(self.pairs)), self.pairs)

    def computes(self, rounds: range) -> Bools:
        if self.all_clients:
            return np.ones((len(rounds), len(self.p)), bool)
        return self.base.computes(rounds)

    def links(self, rounds: range) -> ActiveLinks:
        if self.all_links:
            links = ActiveLinks(np.ones((len(rounds), len(self.p_hat)), bool))
        else:
            links = self.base.links(rounds)
            if self.pairs is not None:
                links = ActiveLinks(links.pull[:, self._lower])
        if self.every == 1:
            return links
        now = (np.asarray(rounds) % self.every == 0)[:, None]
        return ActiveLinks(links.pull & now, None if links.push is None else links.push & now)


@dataclass(frozen=True, eq=False)
class WaitForClients(AvailabilityWrapper):
    """Clients and links take part more often than they are there, by waiting: at the rate p^(1 - patience).

    The clock charges 1/p for every use, waited for or not. Nobody is used more than ten times as often.
    """

    patience: float = 0.5
    length: int | None = None
    idle_clients: bool = True
    idle_links: bool = True

    def _rates(self, p: Floats) -> Floats:
        return np.minimum(p ** (1 - self.patience), _MOST_PATIENT * p)

    def computes(self, rounds: range) -> Bools:
        return rng.bernoulli(rng.key(self.seed, "clients"), rounds, self._rates(self.p))

    def links(self, rounds: range) -> ActiveLinks:
        return ActiveLinks(
            rng.bernoulli(rng.key(self.seed, "links"), rounds, self._rates(self.p_hat))
        )


def wait_for_clients(availability: Availability, patience: float) -> Availability:
    """The availability with waiting, where clients and links come by themselves; a record is what it is."""
    return (
        WaitForClients(availability, patience)
        if isinstance(availability, BernoulliAvailability) and patience
        else availability
    )


def symmetric_links(availability: Availability, network: Network) -> Availability:
    """One draw for each pair of clients: a symmetric exchange needs both directions or none."""
    return AvailabilityOverride(availability, pairs=network.reverse)


@dataclass(frozen=True, eq=False)
class ActiveDegreeWeights(AvailabilityWrapper):
    """The same clients and links with weights 1/(1 + links that work) at the end that weighs."""

    network: Network
    roots: tuple[int, ...] = ()

    @property
    def length(self) -> int | None:
        return self.base.length

    @property
    def idle_clients(self) -> bool:
        return self.base.idle_clients

    @property
    def idle_links(self) -> bool:
        return self.base.idle_links

    def computes(self, rounds: range) -> Bools:
        return self.base.computes(rounds)

    def links(self, rounds: range) -> ActiveLinks:
        return self.base.links(rounds)

    def roles(self, rounds: range) -> Roles:
        links, shape = self.base.links(rounds), (len(rounds), self.network.clients)
        a = self._weights(links.pull, self.network.receivers)
        b = self._weights(links.pushing, self.network.senders)
        return Roles(a, b, np.ones(shape), np.zeros(shape, bool))

    def _weights(self, working: Bools, end: Ints) -> Floats:
        count = np.zeros((self.network.clients, len(working)))
        np.add.at(count, end, working.T)
        return np.asarray(1 / (1 + count[end].T))


@dataclass(frozen=True, eq=False)
class RandomActivation(AvailabilityWrapper):
    """One client wakes in every round, drawn uniformly, and draws one in- and one out-neighbour.

    It pulls from the first and pushes to the second; as a pair, it and the first exchange both ways.
    Only the clients involved compute, and all of them in round 0. It waits for whom it has drawn.
    """

    network: Network
    pairs: bool = False
    computing: bool = True
    partner: bool = True  # whoever is drawn computes, too, not only the client that wakes
    length: int | None = None
    idle_clients: bool = True
    idle_links: bool = True

    @cached_property
    def _out(self) -> Ints:
        """Links by sender; the network keeps them by receiver."""
        return np.argsort(self.network.senders, kind="stable")

    def _drawn(self, rounds: range) -> tuple[Ints, Ints, Ints]:
        """Who wakes, and its in- and out-link, in every round."""
        u = rng.uniform(
            rng.key(self.seed, "wake"), np.asarray(rounds)[:, None], np.arange(3)[None, :]
        )
        into, out = self.network.in_degree, self.network.out_degree
        i = (u[:, 0] * self.network.clients).astype(np.int64)
        pull = (np.cumsum(into) - into)[i] + (u[:, 1] * into[i]).astype(np.int64)
        push = self._out[(np.cumsum(out) - out)[i] + (u[:, 2] * out[i]).astype(np.int64)]
        return i, pull, push

    def computes(self, rounds: range) -> Bools:
        active = np.zeros((len(rounds), self.network.clients), bool)
        if not self.computing:
            return active
        if self.network.links:
            i, pull, push = self._drawn(rounds)
            active[np.arange(len(rounds)), i] = True
            if self.partner:
                active[np.arange(len(rounds)), self.network.senders[pull]] = True
            if not self.pairs:
                active[np.arange(len(rounds)), self.network.receivers[push]] = True
        active[(np.asarray(rounds) == 0) | (not self.network.links)] = True
        return active

    def links(self, rounds: range) -> ActiveLinks:
        pulled = np.zeros((len(rounds), self.network.links), bool)
        if not self.network.links:
            return ActiveLinks(pulled)
        _, pull, push = self._drawn(rounds)
        pulled[np.arange(len(rounds)), pull] = True
        if self.pairs and self.network.reverse is not None:
            pulled[np.arange(len(rounds)), self.network.reverse[pull]] = True
            return ActiveLinks(pulled)
        pushed = np.zeros_like(pulled)
        pushed[np.arange(len(rounds)), push] = True
        return ActiveLinks(pulled, pushed)


@dataclass(frozen=True, eq=False)
class NoLinks(AvailabilityWrapper):
    """No links are used: models meet at a server, which the clock does not charge for.

    With `alone` one machine that never idles does all the work, so every client computes at p = 1.
    """

    alone: bool = False
    idle_links: bool = True

    @property
    def p(self) -> Floats:
        return np.ones_like(self.base.p) if self.alone else self.base.p

    @property
    def length(self) -> int | None:
        return None if self.alone else self.base.length

    @property
    def idle_clients(self) -> bool:
        return not self.alone and self.base.idle_clients

    def computes(self, rounds: range) -> Bools:
        return (
            np.ones((len(rounds), len(self.p)), bool) if self.alone else self.base.computes(rounds)
        )

    def links(self, rounds: range) -> ActiveLinks:
        return ActiveLinks(np.zeros((len(rounds), len(self.p_hat)), bool))


def at(table: Bools, rounds: range, first: int) -> Bools:
    """Rows of a recorded table; before its first and after its last round nothing happens."""
    rows = np.asarray(rounds) - first
    known = (rows >= 0) & (rows < len(table))
    out = np.zeros((len(rounds), table.shape[1]), bool)
    out[known] = table[rows[known]]
    return out
