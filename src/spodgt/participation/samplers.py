"""Samplers of correlated availability: functions of a range of rounds that return masks.

A sampler is a pure function of (seed, round): the mask of a round does not depend on the rounds
that were sampled before. The recipes of `correlated` combine them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from spodgt import rng
from spodgt.network import Network
from spodgt.participation.availability import BernoulliAvailability, HasProbabilities
from spodgt.types import ActiveLinks, Availability, Bools, Floats, Ints

Sampler = Callable[[range], Bools]  # (rounds, clients) or (rounds, links) mask of some rounds


@dataclass(frozen=True, eq=False)
class MarkovChains:
    """Independent two-state Markov chains, stationary from round 0.

    Args:
        key: Of the random stream.
        p_up: (chains,) stationary probability of the state up.
        p_up_given_up: (chains,) probability of up after a round up.
        p_up_given_down: (chains,) probability of up after a round down.
    """

    key: np.uint64
    p_up: Floats
    p_up_given_up: Floats
    p_up_given_down: Floats
    # States in the last two rounds that were sampled, by round: the next rounds continue from them.
    _last_states: dict[int, Bools] = field(default_factory=dict)

    @staticmethod
    def from_durations(seed: int, stream: str, up: Floats, down: Floats) -> MarkovChains:
        """Chains with these mean durations up and down, (chains,) in rounds."""
        return MarkovChains(rng.key(seed, stream), up / (up + down), 1 - 1 / up, 1 / down)

    def __call__(self, rounds: range) -> Bools:
        states = rng.markov(
            self.key,
            rounds,
            self.p_up,
            self.p_up_given_up,
            self.p_up_given_down,
            self._last_states.get(rounds.start - 1),
        )
        if len(rounds):
            self._last_states.clear()
            self._last_states.update(zip(rounds[-2:], states[-2:].copy(), strict=True))
        return states


@dataclass(frozen=True, eq=False)
class StateDependentBernoulli:
    """Independent draws with probability `p_up` where the state is up, else `p_down`."""

    key: np.uint64
    state: Sampler
    p_up: Floats
    p_down: Floats

    def __call__(self, rounds: range) -> Bools:
        if_up = rng.bernoulli(self.key, rounds, self.p_up)
        if_down = rng.bernoulli(self.key, rounds, self.p_down)
        return np.where(self.state(rounds), if_up, if_down)


def always_up(count: int, rounds: range) -> Bools:
    return np.ones((len(rounds), count), bool)


@dataclass(frozen=True, eq=False)
class CorrelatedAvailability(HasProbabilities):
    """Clients and links by two samplers.

    Args:
        p: (clients,) frequencies of the clients.
        p_hat: (links,) frequencies of the links.
        seed: Of a method's own draws.
        sample_clients: Gives the (rounds, clients) mask.
        sample_links: Gives the (rounds, links) mask.
        length: Number of rounds that can be sampled; None: no limit.
        has_fixed_times: Whether times of day are fixed, so that frequencies do not multiply.
    """

    p: Floats
    p_hat: Floats
    seed: int
    sample_clients: Sampler
    sample_links: Sampler
    length: int | None = None
    has_fixed_times: bool = False

    def computes(self, rounds: range) -> Bools:
        return self.sample_clients(rounds)

    def links(self, rounds: range) -> ActiveLinks:
        return ActiveLinks(self.sample_links(rounds))


@dataclass(frozen=True, eq=False)
class DayCycle:
    """Day or night of each client and link; a link has day while both its ends have day."""

    network: Network
    day: int  # rounds
    night: int  # rounds
    dawn: Ints  # (clients,) how many rounds before round 0 the client's day began

    def of_clients(self, rounds: range) -> Bools:
        """(rounds, clients) whether a client has day."""
        hour = (np.asarray(rounds)[:, None] + self.dawn) % (self.day + self.night)
        return np.asarray(hour < self.day)

    def of_links(self, rounds: range) -> Bools:
        """(rounds, links) whether both ends of a link have day."""
        is_day = self.of_clients(rounds)
        return np.asarray(is_day[:, self.network.receivers] & is_day[:, self.network.senders])

    def link_day_rounds(self) -> Ints:
        """(links,) number of rounds of a cycle in which both ends have day."""
        cycle = self.day + self.night
        shift = (self.dawn[self.network.receivers] - self.dawn[self.network.senders]) % cycle
        overlap = np.maximum(0, self.day - shift) + np.maximum(0, self.day - (cycle - shift))
        return np.asarray(overlap)


@dataclass(frozen=True, eq=False)
class RegionalOutages:
    """Samplers of clients and links that work while the regions of their ends are up."""

    network: Network
    region: Ints  # (clients,)
    is_up: MarkovChains  # of the regions
    within: BernoulliAvailability  # while regions are up

    def computes(self, rounds: range) -> Bools:
        return np.asarray(self.is_up(rounds)[:, self.region] & self.within.computes(rounds))

    def links(self, rounds: range) -> Bools:
        is_up = self.is_up(rounds)[:, self.region]
        both_up = is_up[:, self.network.receivers] & is_up[:, self.network.senders]
        return np.asarray(both_up & self.within.links(rounds).pull)


@dataclass(frozen=True, eq=False)
class AllOf:
    """Samplers of clients and links that are active in each of several availabilities."""

    parts: Sequence[Availability]

    def computes(self, rounds: range) -> Bools:
        return np.asarray(np.all([part.computes(rounds) for part in self.parts], axis=0))

    def links(self, rounds: range) -> Bools:
        return np.asarray(np.all([part.links(rounds).pull for part in self.parts], axis=0))


def split_into_regions(positions: Floats, count: int) -> Ints:
    """(clients,) numbers of `count` regions of about equal size, by halving the longer side."""
    region = np.zeros(len(positions), np.int64)
    if count < 2:
        return region
    longer_side = int(np.argmax(np.ptp(positions, axis=0)))
    order = np.argsort(positions[:, longer_side], kind="stable")
    low_count = count // 2
    low, high = np.split(order, [round(len(order) * low_count / count)])
    region[low] = split_into_regions(positions[low], low_count)
    region[high] = low_count + split_into_regions(positions[high], count - low_count)
    return region
