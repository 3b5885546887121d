"""Which clients compute and which links work in round k, for one network and one seed.

Availabilities are pure functions of the round. Masks are (rounds, clients) and (rounds, links).
Recipes draw them (`recipes`, `correlated`, `traces`); methods wrap them to change the active
clients.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from spodgt import rng
from spodgt.network import Network
from spodgt.participation.roles import Roles
from spodgt.types import ActiveLinks, Availability, Bools, Floats, Ints

MAX_RATE_FACTOR = 10.0  # participation rate of a client that is waited for, relative to p
NEVER = 2**62  # a round that no run reaches


class HasProbabilities:
    """Mixin: derives `idle_clients` and `idle_links` from the probabilities."""

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
    """Independent Bernoulli draws for each client and link."""

    p: Floats
    p_hat: Floats
    seed: int
    length: int | None = None

    def computes(self, rounds: range) -> Bools:
        """(rounds, clients) mask of active clients."""
        return rng.bernoulli(rng.key(self.seed, "clients"), rounds, self.p)

    def links(self, rounds: range) -> ActiveLinks:
        """(rounds, links) mask of active links."""
        return ActiveLinks(rng.bernoulli(rng.key(self.seed, "links"), rounds, self.p_hat))


@dataclass(frozen=True, eq=False)
class AvailabilityTrace:
    """Replays a recorded availability trace.

    Args:
        p: (clients,) probabilities that the delay clock charges.
        p_hat: (links,) probabilities that the delay clock charges.
        client_table: (rounds + 1, clients) mask of active clients; row k is round k.
        link_table: (rounds, links) mask of active links; row k is round k + 1. With `repeat`
            (rounds + 1, links); row k is round k.
        seed: Of a method's own draws.
        repeat: Start again at the end.
    """

    p: Floats
    p_hat: Floats
    client_table: Bools
    link_table: Bools
    seed: int = 0
    repeat: bool = False

    @property
    def length(self) -> int | None:
        if self.repeat:
            return None
        return min(len(self.client_table) - 1, len(self.link_table))

    @property
    def idle_clients(self) -> bool:
        return not self.client_table.all()

    @property
    def idle_links(self) -> bool:
        return not self.link_table.all()

    def computes(self, rounds: range) -> Bools:
        """(rounds, clients) mask of active clients."""
        return self._rows(self.client_table, rounds, first_round=0)

    def links(self, rounds: range) -> ActiveLinks:
        """(rounds, links) mask of active links."""
        return ActiveLinks(self._rows(self.link_table, rounds, first_round=1))

    def _rows(self, table: Bools, rounds: range, first_round: int) -> Bools:
        """Rows of a table; before the first round and after the last one nothing is active."""
        if self.repeat:
            return table[np.asarray(rounds, np.int64) % len(self.client_table)]
        rows = np.asarray(rounds) - first_round
        is_recorded = (rows >= 0) & (rows < len(table))
        mask = np.zeros((len(rounds), table.shape[1]), bool)
        mask[is_recorded] = table[rows[is_recorded]]
        return mask

    def last_rounds(self, network: Network) -> Ints:
        """(clients,) last round in which a client computes or one of its links works.

        `NEVER` with `repeat`: each client returns when the trace starts again.
        """
        if self.length is None:
            return np.full(network.clients, NEVER)
        is_active = self.client_table[: self.length + 1].copy()
        k, link = np.nonzero(self.link_table[: self.length])
        is_active[k + 1, network.receivers[link]] = True
        is_active[k + 1, network.senders[link]] = True
        return np.asarray(self.length - is_active[::-1].argmax(0))


@dataclass(frozen=True, eq=False)
class RandomEdge:
    """Randomized gossip: one random link per round; only its two endpoints compute."""

    p: Floats
    p_hat: Floats
    network: Network
    seed: int
    pairs: bool  # the reverse link is active, too
    length: int | None = None
    idle_clients: bool = True
    idle_links: bool = True

    def computes(self, rounds: range) -> Bools:
        """(rounds, clients) mask of active clients."""
        link = self._sample_link(rounds)
        senders = self.network.senders[link]
        return _one_per_round(self.network.clients, self.network.receivers[link], senders)

    def links(self, rounds: range) -> ActiveLinks:
        """(rounds, links) mask of active links."""
        link = self._sample_link(rounds)
        if self.pairs and self.network.reverse is not None:
            reverse = self.network.reverse[link]
            return ActiveLinks(_one_per_round(self.network.links, link, reverse))
        return ActiveLinks(_one_per_round(self.network.links, link))

    def _sample_link(self, rounds: range) -> Ints:
        """(rounds,) index of the active link."""
        draw = rng.uniform(rng.key(self.seed, "links"), np.asarray(rounds))
        return np.asarray((draw * self.network.links).astype(np.int64))


def _one_per_round(count: int, *columns: Ints) -> Bools:
    """(rounds, count) mask that is true at columns[…][k] in row k."""
    mask = np.zeros((len(columns[0]), count), bool)
    for column in columns:
        mask[np.arange(len(column)), column] = True
    return mask


# --- wrappers ------------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class AvailabilityWrapper:
    """Base of wrappers; keeps `p` and `p_hat` of the wrapped one, which the clock charges."""

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
        """(rounds, clients) mask of active clients."""
        return self.base.computes(rounds)

    def links(self, rounds: range) -> ActiveLinks:
        """(rounds, links) mask of active links."""
        return self.base.links(rounds)


@dataclass(frozen=True, eq=False)
class AvailabilityOverride(AvailabilityWrapper):
    """Full participation, always-on links, periodic or symmetric links.

    Args:
        base: The wrapped availability.
        all_clients: All clients compute in each round.
        all_links: All links work in each round.
        every: Links are used in rounds divisible by this number only.
        pairs: (links,) reverse of each link: both work when the lower-numbered one works.
    """

    all_clients: bool = False
    all_links: bool = False
    every: int = 1
    pairs: Ints | None = None

    @property
    def p_hat(self) -> Floats:
        if self.pairs is None or self.all_links:
            return self.base.p_hat
        return self.base.p_hat[self._lower_link]  # a pair has one draw, so it has one probability

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
    def _lower_link(self) -> Ints:
        """(links,) the lower-numbered link of each pair."""
        assert self.pairs is not None
        return np.minimum(np.arange(len(self.pairs)), self.pairs)

    def computes(self, rounds: range) -> Bools:
        if self.all_clients:
            return np.ones((len(rounds), len(self.p)), bool)
        return self.base.computes(rounds)

    def links(self, rounds: range) -> ActiveLinks:
        if self.all_links:
            links = ActiveLinks(np.ones((len(rounds), len(self.p_hat)), bool))
        elif self.pairs is not None:
            links = ActiveLinks(self.base.links(rounds).pull[:, self._lower_link])
        else:
            links = self.base.links(rounds)
        if self.every == 1:
            return links
        is_exchange = (np.asarray(rounds) % self.every == 0)[:, None]
        push = None if links.push is None else links.push & is_exchange
        return ActiveLinks(links.pull & is_exchange, push)


def symmetric_links(availability: Availability, network: Network) -> Availability:
    """One draw for each pair of clients: a symmetric exchange needs both directions or none."""
    return AvailabilityOverride(availability, pairs=network.reverse)


@dataclass(frozen=True, eq=False)
class WaitForClients(AvailabilityWrapper):
    """Waits for clients and links, so that they participate more often than they are available.

    The participation rate is p^(1 - patience), at most `MAX_RATE_FACTOR` * p. The simulated clock
    charges 1/p for each participation, so waiting costs time.
    """

    patience: float = 0.5  # 0: never wait
    length: int | None = None
    idle_clients: bool = True
    idle_links: bool = True

    def computes(self, rounds: range) -> Bools:
        return self._sample("clients", rounds, self.p)

    def links(self, rounds: range) -> ActiveLinks:
        return ActiveLinks(self._sample("links", rounds, self.p_hat))

    def _sample(self, stream: str, rounds: range, probability: Floats) -> Bools:
        rate = np.minimum(probability ** (1 - self.patience), MAX_RATE_FACTOR * probability)
        return rng.bernoulli(rng.key(self.seed, stream), rounds, rate)


def wait_for_clients(availability: Availability, patience: float) -> Availability:
    """The availability with waiting, if its draws are independent; others are left unchanged."""
    if isinstance(availability, BernoulliAvailability) and patience:
        return WaitForClients(availability, patience)
    return availability


@dataclass(frozen=True, eq=False)
class ActiveDegreeWeights(AvailabilityWrapper):
    """Mixing weights 1/(1 + number of active links), per round."""

    network: Network
    roots: tuple[int, ...] = ()

    def roles(self, rounds: range) -> Roles:
        """Weights of the links; all clients take the full step."""
        links = self.base.links(rounds)
        shape = (len(rounds), self.network.clients)
        a = self._weights(links.pull, self.network.receivers)
        b = self._weights(links.pushing, self.network.senders)
        return Roles(a, b, np.ones(shape), np.zeros(shape, bool))

    def _weights(self, active: Bools, ends: Ints) -> Floats:
        """(rounds, links) weights by the number of active links with the same end."""
        degree = np.zeros((self.network.clients, len(active)))
        np.add.at(degree, ends, active.T)
        return np.asarray(1 / (1 + degree[ends].T))


@dataclass(frozen=True, eq=False)
class RandomActivation(AvailabilityWrapper):
    """One random client per round, with a random in- and out-neighbour.

    The client pulls from the in-neighbour and pushes to the out-neighbour; with `pairs` it
    exchanges both ways with the in-neighbour. All clients compute in round 0, later only those
    involved. The clock charges the time to wait for the neighbours.

    Args:
        base: The wrapped availability.
        network: The links.
        pairs: Exchange both ways with one neighbour.
        computing: Clients compute at all.
        partner: The in-neighbour computes, too.
    """

    network: Network
    pairs: bool = False
    computing: bool = True
    partner: bool = True
    length: int | None = None
    idle_clients: bool = True
    idle_links: bool = True

    def computes(self, rounds: range) -> Bools:
        network = self.network
        if not self.computing:
            return np.zeros((len(rounds), network.clients), bool)
        if not network.links:
            return np.ones((len(rounds), network.clients), bool)
        client, pull, push = self._sample(rounds)
        involved = [client]
        if self.partner:
            involved.append(network.senders[pull])
        if not self.pairs:
            involved.append(network.receivers[push])
        active = _one_per_round(network.clients, *involved)
        active[np.asarray(rounds) == 0] = True
        return active

    def links(self, rounds: range) -> ActiveLinks:
        network = self.network
        if not network.links:
            return ActiveLinks(np.zeros((len(rounds), 0), bool))
        _, pull, push = self._sample(rounds)
        if self.pairs and network.reverse is not None:
            return ActiveLinks(_one_per_round(network.links, pull, network.reverse[pull]))
        pulling = _one_per_round(network.links, pull)
        return ActiveLinks(pulling, _one_per_round(network.links, push))

    def _sample(self, rounds: range) -> tuple[Ints, Ints, Ints]:
        """(rounds,) the active client, its in-link and its out-link."""
        key = rng.key(self.seed, "wake")
        u = rng.uniform(key, np.asarray(rounds)[:, None], np.arange(3)[None, :])
        client = (u[:, 0] * self.network.clients).astype(np.int64)
        pull = _random_entry(self.network.in_degree, client, u[:, 1])
        push = self._links_by_sender[_random_entry(self.network.out_degree, client, u[:, 2])]
        return client, pull, push

    @cached_property
    def _links_by_sender(self) -> Ints:
        """(links,) links sorted by sender; the network has them by receiver."""
        return np.argsort(self.network.senders, kind="stable")


def _random_entry(degree: Ints, client: Ints, u: Floats) -> Ints:
    """Position of a random link of each client in a list of links sorted by client."""
    first = np.cumsum(degree) - degree
    return np.asarray(first[client] + (u * degree[client]).astype(np.int64))


@dataclass(frozen=True, eq=False)
class NoLinks(AvailabilityWrapper):
    """No peer-to-peer links: models are aggregated on a server, which the clock does not charge.

    Args:
        base: The wrapped availability.
        alone: One machine computes the gradients of all clients, in each round, at p = 1.
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
        if self.alone:
            return np.ones((len(rounds), len(self.p)), bool)
        return self.base.computes(rounds)

    def links(self, rounds: range) -> ActiveLinks:
        return ActiveLinks(np.zeros((len(rounds), len(self.p_hat)), bool))
