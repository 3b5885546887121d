"""Correlated availability: Markov chains, Gilbert-Elliott links, days and nights, outages.

All of these are stationary: p and p̂, which the clock and the methods use, are the exact
frequencies in each round (for days and nights: over a whole cycle), also in round 0. The state in
round k is a pure function of (seed, k), as with independent draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
from pydantic import BeforeValidator, SkipValidation

from spodgt import rng
from spodgt.errors import InvalidInput
from spodgt.network import Network
from spodgt.network.names import values_by_client
from spodgt.participation.availability import AvailabilityTrace, BernoulliAvailability
from spodgt.participation.fields import (
    Count,
    Duration,
    Durations,
    Groups,
    Probabilities,
    Probability,
    check_groups,
    check_inner_participation,
    check_participations,
    check_phase,
)
from spodgt.participation.recipes import (
    PARTICIPATIONS,
    Beta,
    Participation,
    broadcast,
    by_client,
    by_link,
    client_labels,
    client_probabilities,
    link_probabilities,
)
from spodgt.participation.samplers import (
    AllOf,
    CorrelatedAvailability,
    DayCycle,
    MarkovChains,
    RegionalOutages,
    StateDependentBernoulli,
    always_up,
    split_into_regions,
)
from spodgt.types import Availability, Floats, Ints
from spodgt.validation import recipe


@recipe(InvalidInput, PARTICIPATIONS)
class Markov:
    """A two-state Markov chain for each client and, optionally, for each link.

    Durations up and down are geometric. p = on/(on + off), and the autocorrelation at a lag of n
    rounds is (1 - 1/on - 1/off)ⁿ.

    Args:
        on: Mean number of consecutive rounds in which a client computes: one number for all, or one
            per client, as a list or a dict by client.
        off: Mean number of consecutive rounds in which it is unavailable.
        links_on: Mean number of consecutive rounds in which a link works: one number, or one per
            link. None: links always work.
        links_off: Mean number of consecutive rounds in which it is down.
    """

    name: ClassVar[str] = "markov"
    on: Durations = 20.0
    off: Durations = 20.0
    links_on: Durations | None = None
    links_off: Durations | None = None

    def __post_init__(self) -> None:
        if (self.links_on is None) != (self.links_off is None):
            missing = "links_on" if self.links_on is None else "links_off"
            raise InvalidInput(
                f"{missing}=None lacks the number beside the other one; use {missing}=20.0."
            )

    def draw(self, network: Network, seed: int) -> Availability:
        up = by_client(self.on, network, "on", "20.0")
        down = by_client(self.off, network, "off", "20.0")
        clients = MarkovChains.from_durations(seed, "client chains", up, down)
        if self.links_on is None or self.links_off is None:
            links = partial(always_up, network.links)
            return CorrelatedAvailability(
                clients.p_up, np.ones(network.links), seed, clients, links
            )
        up = by_link(self.links_on, network, "links_on", "20.0")
        down = by_link(self.links_off, network, "links_off", "20.0")
        chains = MarkovChains.from_durations(seed, "link chains", up, down)
        return CorrelatedAvailability(clients.p_up, chains.p_up, seed, clients, chains)


@recipe(InvalidInput, PARTICIPATIONS)
class Bursts:
    """The probabilities of another participation, such as Beta, with correlated rounds.

    In each round a client or link is drawn anew with probability 1/length, with its own p or p̂,
    and else keeps its state: frequencies do not change, and the autocorrelation at a lag of n
    rounds is (1 - 1/length)ⁿ.

    Args:
        of: A participation with independent draws: Bernoulli, Beta or Always.
        length: Mean number of rounds until a client or link is drawn anew; 1 is `of` itself.
    """

    name: ClassVar[str] = "bursts"
    of: Annotated[Participation, SkipValidation, BeforeValidator(check_inner_participation)] = (
        Beta()
    )
    length: Duration = 20.0

    def draw(self, network: Network, seed: int) -> Availability:
        base = self.of.draw(network, seed)
        if not isinstance(base, BernoulliAvailability):
            raise InvalidInput(
                f"bursts are of independent draws, got {self.of.name}; "
                "use bernoulli or beta, or together."
            )
        clients = self._chains(rng.key(seed, "client chains"), base.p)
        links = self._chains(rng.key(seed, "link chains"), base.p_hat)
        return CorrelatedAvailability(base.p, base.p_hat, seed, clients, links)

    def _chains(self, key: np.uint64, p: Floats) -> MarkovChains:
        return MarkovChains(key, p, p + (1 - p) * (1 - 1 / self.length), p / self.length)


@recipe(InvalidInput, PARTICIPATIONS)
class GilbertElliott:
    """Links with good and bad states: a Markov chain selects the probability that a link works.

    p̂ = (good p_good + bad p_bad)/(good + bad). Clients compute independently.

    Args:
        good: Mean duration of the good state of a link, in rounds: one number, or one per link.
        bad: Mean duration of the bad state.
        p_good: Probability that a link works in the good state: one number, or one per link.
        p_bad: Probability that it works in the bad state.
        p: Probability that a client computes, above 0: one number, or one per client.
    """

    name: ClassVar[str] = "gilbert-elliott"
    good: Durations = 20.0
    bad: Durations = 5.0
    p_good: Probabilities = 1.0
    p_bad: Probabilities = 0.1
    p: Probabilities = 1.0

    def draw(self, network: Network, seed: int) -> Availability:
        good = by_link(self.good, network, "good")
        bad = by_link(self.bad, network, "bad")
        p_good = by_link(self.p_good, network, "p_good")
        p_bad = by_link(self.p_bad, network, "p_bad")
        state = MarkovChains.from_durations(seed, "link chains", good, bad)
        p_hat = link_probabilities(state.p_up * p_good + (1 - state.p_up) * p_bad, network)
        p = client_probabilities(self.p, network)
        clients = BernoulliAvailability(p, p_hat, seed).computes
        links = StateDependentBernoulli(rng.key(seed, "links"), state, p_good, p_bad)
        return CorrelatedAvailability(p, p_hat, seed, clients, links)


@recipe(InvalidInput, PARTICIPATIONS)
class DayNight:
    """Each client has days and nights at its own times; a link has day while both its ends have.

    Args:
        day: Number of rounds of a day.
        night: Number of rounds of a night.
        p_day: Probability that a client computes in a round of its day.
        p_night: Probability that it computes in a round of its night.
        p_hat_day: Probability that a link works while both its ends have day.
        p_hat_night: Probability that it works at other times.
        phase: Where in its cycle a client is in round 0: "random"; "east-west", by the network's
            positions, which one cycle spans; or numbers in [0, 1), one per client. 0 is dawn.
    """

    name: ClassVar[str] = "day-night"
    day: Count = 50
    night: Count = 50
    p_day: Probability = 1.0
    p_night: Probability = 0.1
    p_hat_day: Probability = 1.0
    p_hat_night: Probability = 0.1
    phase: Annotated[str | Sequence[float], SkipValidation, BeforeValidator(check_phase)] = "random"

    def draw(self, network: Network, seed: int) -> Availability:
        rounds = self.day + self.night
        cycle = DayCycle(network, self.day, self.night, self._dawn(network, seed))
        p = (self.day * self.p_day + self.night * self.p_night) / rounds
        day_rounds = cycle.link_day_rounds()
        night_rounds = rounds - day_rounds
        p_hat = (day_rounds * self.p_hat_day + night_rounds * self.p_hat_night) / rounds
        clients = StateDependentBernoulli(
            rng.key(seed, "clients"),
            cycle.of_clients,
            np.full(network.clients, self.p_day),
            np.full(network.clients, self.p_night),
        )
        links = StateDependentBernoulli(
            rng.key(seed, "links"),
            cycle.of_links,
            np.full(network.links, self.p_hat_day),
            np.full(network.links, self.p_hat_night),
        )
        return CorrelatedAvailability(
            client_probabilities(p, network),
            link_probabilities(p_hat, network),
            seed,
            clients,
            links,
            has_fixed_times=True,
        )

    def _dawn(self, network: Network, seed: int) -> Ints:
        """(clients,) how many rounds before round 0 each client's day began."""
        if self.phase == "east-west":
            phases = _positions(network, "phase='east-west'", "phase='random'")[:, 0]
        elif self.phase == "random":
            phases = rng.uniform(rng.key(seed, "phases"), np.arange(network.clients))
        else:
            given = np.asarray(self.phase, np.float64)
            phases = broadcast(given, network.clients, "phase", "client", "'random'")
        return np.asarray(np.floor(phases * (self.day + self.night)), np.int64)


@recipe(InvalidInput, PARTICIPATIONS)
class Outages:
    """Outages of whole regions: their clients do not compute, and links from or to them are down.

    Durations up and down are geometric and independent for each region. With π = up/(up + down), a
    client computes with p π; a link works with p̂ π inside a region and with p̂ π² between two.

    Args:
        up: Mean number of consecutive rounds in which a region is up.
        down: Mean number of consecutive rounds in which it is down.
        regions: Number of regions of about equal size, by the network's positions.
        groups: Region of each client instead, by name or number: a list, or a dict by client.
        p: Probability that a client computes while its region is up: one number, or one per client.
        p_hat: Probability that a link works while the regions of both its ends are up, likewise.
    """

    name: ClassVar[str] = "outages"
    up: Duration = 50.0
    down: Duration = 10.0
    regions: Count = 4
    groups: Annotated[Groups | None, SkipValidation, BeforeValidator(check_groups)] = None
    p: Probabilities = 1.0
    p_hat: Probabilities = 1.0

    def draw(self, network: Network, seed: int) -> Availability:
        region = self._regions(network)
        up = np.full(int(region.max()) + 1, self.up)
        down = np.full(len(up), self.down)
        is_up = MarkovChains.from_durations(seed, "region chains", up, down)
        p = client_probabilities(self.p, network)
        p_hat = link_probabilities(self.p_hat, network)
        within = BernoulliAvailability(p, p_hat, seed)
        outages = RegionalOutages(network, region, is_up, within)
        p_region = is_up.p_up[0]
        is_inside = region[network.receivers] == region[network.senders]
        p_both_ends = np.where(is_inside, p_region, p_region**2)
        return CorrelatedAvailability(
            p * p_region, p_hat * p_both_ends, seed, outages.computes, outages.links
        )

    def _regions(self, network: Network) -> Ints:
        """(clients,) number of each client's region."""
        if self.groups is None:
            positions = _positions(network, "regions", "groups=[0, 0, 1]")
            return split_into_regions(positions, min(self.regions, network.clients))
        if isinstance(self.groups, Mapping):
            groups = values_by_client(self.groups, client_labels(network), "groups")
        else:
            groups = list(self.groups)
        if len(groups) != network.clients:
            raise InvalidInput(
                f"groups must be {network.clients} regions, one per client, got {len(groups)}; "
                "list them all."
            )
        number_of = {group: number for number, group in enumerate(dict.fromkeys(groups))}
        return np.array([number_of[group] for group in groups], np.int64)


def _positions(network: Network, key: str, instead: str) -> Floats:
    if network.positions is None:
        raise InvalidInput(f"{key} needs a network with positions of clients; use {instead}.")
    return network.positions


@recipe(InvalidInput, PARTICIPATIONS)
class Intersection:
    """Several participations at once: a client or link is active if it is active in all of them.

    Their draws are independent of each other, so that frequencies multiply.

    Args:
        of: The participations. At most one of them may be a trace or day-night, which have
            fixed times.
    """

    name: ClassVar[str] = "together"
    of: Annotated[Sequence[Participation], SkipValidation, BeforeValidator(check_participations)]

    def draw(self, network: Network, seed: int) -> Availability:
        seeds = rng.words(rng.key(seed, "together"), np.arange(len(self.of)))
        parts = []
        fixed = []
        for participation, part_seed in zip(self.of, seeds, strict=True):
            part = participation.draw(network, int(part_seed))
            parts.append(part)
            if _has_fixed_times(part):
                fixed.append(participation.name)
        if len(fixed) > 1:
            raise InvalidInput(
                "together takes at most one participation with fixed times, "
                f"got {' and '.join(fixed)}; drop one."
            )
        lengths = [part.length for part in parts if part.length is not None]
        sampler = AllOf(parts)
        return CorrelatedAvailability(
            np.prod([part.p for part in parts], axis=0),
            np.prod([part.p_hat for part in parts], axis=0),
            seed,
            sampler.computes,
            sampler.links,
            min(lengths, default=None),
            has_fixed_times=bool(fixed),
        )


def _has_fixed_times(availability: Availability) -> bool:
    if isinstance(availability, CorrelatedAvailability):
        return availability.has_fixed_times
    return isinstance(availability, AvailabilityTrace)
