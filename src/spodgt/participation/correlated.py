"""Clients and links that come and go in bursts: Markov chains, bad links, days and nights, outages.

All of them are stationary: p and p̂, which the clock and the methods use, are the exact frequencies of every
round (of days and nights: of a whole cycle), and round 0 is a round like any other. What happens in round k
is a pure function of (seed, k), as with independent draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Annotated, ClassVar

import numpy as np
from pydantic import BeforeValidator, ValidationInfo

from spodgt import rng
from spodgt._util.text import short_repr
from spodgt.errors import InvalidConfig, InvalidInput
from spodgt.network import Network
from spodgt.network.names import values_by_client, values_by_link
from spodgt.participation.availability import (
    AvailabilityTrace,
    BernoulliAvailability,
    HasProbabilities,
)
from spodgt.participation.recipes import (
    PARTICIPATIONS,
    Beta,
    Participation,
    check_participation,
    on_links,
    probabilities,
    spread,
)
from spodgt.types import ActiveLinks, Availability, Bools, Floats, Ints
from spodgt.validation import Field, FieldHint, Number, Whole, choices, from_table, recipe

Draws = Callable[
    [range], Bools
]  # what happens in some rounds: (rounds, clients) or (rounds, links)


# --- what is drawn -----------------------------------------------------------------------------------
@dataclass(frozen=True, eq=False)
class MarkovChains:
    """Independent chains of two states, up and down, stationary from round 0 on.

    Args:
        key: of the stream.
        up: (chains,) how often each is up.
        stay: (chains,) the chance to be up after a round up.
        come: (chains,) the chance to be up after a round down.
    """

    key: np.uint64
    up: Floats
    stay: Floats
    come: Floats
    # The last two rows that were asked for, by round: who goes on from there need not look back.
    _last: dict[int, Bools] = field(default_factory=dict)

    @staticmethod
    def of(seed: int, stream: str, up: Floats, down: Floats) -> MarkovChains:
        """Chains by the mean numbers of rounds that they stay up and down."""
        return MarkovChains(rng.key(seed, stream), up / (up + down), 1 - 1 / up, 1 / down)

    def __call__(self, rounds: range) -> Bools:
        found = rng.markov(
            self.key, rounds, self.up, self.stay, self.come, self._last.get(rounds.start - 1)
        )
        if len(rounds):
            self._last.clear()
            self._last.update(zip(rounds[-2:], found[-2:].copy(), strict=True))
        return found


@dataclass(frozen=True, eq=False)
class StateDependentBernoulli:
    """Independent draws with a chance that depends on a state: `high` where it is up, else `low`."""

    key: np.uint64
    state: Draws
    high: Floats
    low: Floats

    def __call__(self, rounds: range) -> Bools:
        high, low = (rng.bernoulli(self.key, rounds, chance) for chance in (self.high, self.low))
        return np.where(self.state(rounds), high, low)


@dataclass(frozen=True, eq=False)
class CorrelatedAvailability(HasProbabilities):
    """Clients and links by two functions of the rounds."""

    p: Floats
    p_hat: Floats
    seed: int
    clients: Draws
    wires: Draws
    length: int | None = None
    random: bool = True  # else some of it is a fixed pattern in time

    def computes(self, rounds: range) -> Bools:
        return self.clients(rounds)

    def links(self, rounds: range) -> ActiveLinks:
        return ActiveLinks(self.wires(rounds))


# --- fields ------------------------------------------------------------------------------------------
def _one_or_more(least: float, most: float, must: str, example: str) -> BeforeValidator:
    """A check of a field: one number from `least` to `most`, or one per client or link, by order or name."""

    def check(value: object, info: ValidationInfo) -> object:
        given = list(value.values()) if isinstance(value, Mapping) else value
        array = (
            np.asarray(given)
            if isinstance(given, int | float | list | tuple | np.ndarray)
            else np.empty(0)
        )
        good = array.dtype.kind in "iuf" and array.ndim < 2 and array.size > 0
        if not good or not ((array >= least) & (array <= most)).all():
            name = info.field_name
            raise ValueError(
                f"{name} must be {must}, got {short_repr(value)}; use {name}={example}."
            )
        if isinstance(value, Mapping):
            return dict(zip(value, array.tolist(), strict=True))
        return tuple(array.tolist()) if array.ndim else float(array)

    return BeforeValidator(check)


def _inner(value: object) -> object:
    """A participation itself, or the table of one."""
    if not isinstance(value, Mapping):
        check_participation(value)
        return value
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in PARTICIPATIONS:
        raise InvalidConfig(f"of.kind={kind!r} is not known; {choices(kind, PARTICIPATIONS)}")
    return from_table(
        PARTICIPATIONS[kind], {key: one for key, one in value.items() if key != "kind"}, "of"
    )


def _inners(value: object) -> object:
    if not isinstance(value, list | tuple) or len(value) < 2:
        raise InvalidConfig(
            f"of must be a list of at least two participations, got {short_repr(value)}; add one."
        )
    return tuple(_inner(each) for each in value)


def _phase(value: object) -> object:
    if isinstance(value, str) and value in _PHASES:
        return value
    array = np.asarray(value) if isinstance(value, list | tuple | np.ndarray) else np.empty(0)
    if (
        array.dtype.kind in "iuf"
        and array.ndim == 1
        and array.size
        and ((array >= 0) & (array < 1)).all()
    ):
        return tuple(array.tolist())
    raise ValueError(
        f"phase must be {' or '.join(map(repr, _PHASES))}, or numbers in [0, 1), one per client, got "
        f"{short_repr(value)}; use phase={_PHASES[0]!r}."
    )


def _groups(value: object) -> object:
    if value is None:
        return None
    given = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(given, Mapping):
        return dict(zip(given, _regions(list(given.values())), strict=True))
    return _regions(given)


def _regions(given: object) -> tuple[str | int, ...]:
    """Names or numbers of regions, one per client."""
    regions: list[str | int] = []
    for region in given if isinstance(given, list | tuple) else ():
        if isinstance(region, str):
            regions.append(region)
        elif isinstance(region, Integral):
            regions.append(int(region))
    if not regions or not isinstance(given, list | tuple) or len(regions) < len(given):
        raise ValueError(
            f"groups must be a list of names or numbers, one per client, got {short_repr(given)}; "
            "use groups=[0, 0, 1]."
        )
    return tuple(regions)


_PHASES = ("random", "east-west")
Lengths = Annotated[object, _one_or_more(1, 2.0**53, "numbers of rounds of at least 1", "20.0")]
Chances = Annotated[object, _one_or_more(0, 1, "numbers in [0, 1]", "0.5")]
Length = Annotated[
    Number, Field(ge=1, le=2.0**53), FieldHint("a number of rounds of at least 1", 20.0)
]
Chance = Annotated[Number, Field(ge=0, le=1), FieldHint("in [0, 1]", 0.5)]
Rounds = Annotated[Whole, Field(ge=1, le=2**53), FieldHint("a whole number of at least 1")]


def _always(count: int) -> Draws:
    return lambda rounds: np.ones((len(rounds), count), bool)


def _labels(network: Network) -> list[str]:
    return [network.label(client) for client in range(network.clients)]


def _per_client(value: object, network: Network, name: str, example: str = "0.5") -> Floats:
    """(clients,): the numbers of a field that is one number, a list or a dict by client."""
    if isinstance(value, Mapping):
        value = values_by_client(value, _labels(network), name)
    return spread(np.asarray(value, np.float64), network.clients, name, "client", example)


def _per_link(value: object, network: Network, name: str, example: str = "0.5") -> Floats:
    """(links,): the numbers of a field that is one number, a list or a dict by link."""
    if isinstance(value, Mapping):
        value = values_by_link(value, network, name)
    return spread(np.asarray(value, np.float64), network.links, name, "link", example)


def _positive(p_hat: Floats, network: Network) -> Floats:
    return probabilities(p_hat, network.links, "p_hat", "link", network.link_label)


# --- recipes -----------------------------------------------------------------------------------------
@recipe(InvalidInput, PARTICIPATIONS)
class Markov:
    """Clients, and links if told so, stay up and down for a while: a Markov chain each.

    A client that is up goes down with chance 1/on, and one that is down comes back with chance 1/off, so
    that times up and down are geometric. p = on/(on + off), and what a client does n rounds apart
    correlates as (1 - 1/on - 1/off)ⁿ.

    Args:
        on: How many rounds in a row a client computes, in the mean: one number for all, or one per client,
            as a list or a dict by client.
        off: How many rounds in a row it is away.
        links_on: How many rounds in a row a link works: one number, or one per link. None: always.
        links_off: How many rounds in a row it is down.
    """

    name: ClassVar[str] = "markov"
    on: Lengths = 20.0
    off: Lengths = 20.0
    links_on: Lengths | None = None
    links_off: Lengths | None = None

    def __post_init__(self) -> None:
        if (self.links_on is None) != (self.links_off is None):
            lacks = "links_on" if self.links_on is None else "links_off"
            raise InvalidInput(
                f"{lacks}=None lacks the number beside the other one; use {lacks}=20.0."
            )

    def draw(self, network: Network, seed: int) -> Availability:
        up = _per_client(self.on, network, "on", "20.0")
        down = _per_client(self.off, network, "off", "20.0")
        clients = MarkovChains.of(seed, "client chains", up, down)
        if self.links_on is None:
            return CorrelatedAvailability(
                clients.up, np.ones(network.links), seed, clients, _always(network.links)
            )
        links_up = _per_link(self.links_on, network, "links_on", "20.0")
        links_down = _per_link(self.links_off, network, "links_off", "20.0")
        links = MarkovChains.of(seed, "link chains", links_up, links_down)
        return CorrelatedAvailability(clients.up, links.up, seed, clients, links)


@recipe(InvalidInput, PARTICIPATIONS)
class Bursts:
    """The probabilities of another participation, such as Beta, but in bursts.

    In every round a client or link is drawn anew with chance 1/length, with its own p or p̂, and else goes on
    as it was: frequencies stay, and what it does n rounds apart correlates as (1 - 1/length)ⁿ.

    Args:
        of: A participation with independent draws: Bernoulli, Beta or Always.
        length: After how many rounds a client or link is drawn anew, in the mean; 1 is `of` itself.
    """

    name: ClassVar[str] = "bursts"
    of: Annotated[object, BeforeValidator(_inner)] = Beta()
    length: Length = 20.0

    def draw(self, network: Network, seed: int) -> Availability:
        assert isinstance(self.of, Participation)
        base = self.of.draw(network, seed)
        if not isinstance(base, BernoulliAvailability):
            raise InvalidInput(
                f"bursts are of independent draws, got {self.of.name}; use bernoulli or beta, or together."
            )
        clients, links = (
            MarkovChains(
                rng.key(seed, stream), p, p + (1 - p) * (1 - 1 / self.length), p / self.length
            )
            for stream, p in (("client chains", base.p), ("link chains", base.p_hat))
        )
        return CorrelatedAvailability(base.p, base.p_hat, seed, clients, links)


@recipe(InvalidInput, PARTICIPATIONS)
class GilbertElliott:
    """Links with good and bad times: a Markov chain decides with which chance a link works.

    p̂ = (good p_good + bad p_bad)/(good + bad). Clients compute independently.

    Args:
        good: How many rounds the good times of a link last, in the mean: one number, or one per link.
        bad: How many rounds its bad times last.
        p_good: The chance that a link works in a round of good times: one number, or one per link.
        p_bad: The same in bad times.
        p: That a client computes: one number, or one per client, above 0.
    """

    name: ClassVar[str] = "gilbert-elliott"
    good: Lengths = 20.0
    bad: Lengths = 5.0
    p_good: Chances = 1.0
    p_bad: Chances = 0.1
    p: Chances = 1.0

    def draw(self, network: Network, seed: int) -> Availability:
        good = _per_link(self.good, network, "good")
        bad = _per_link(self.bad, network, "bad")
        high = _per_link(self.p_good, network, "p_good")
        low = _per_link(self.p_bad, network, "p_bad")
        state = MarkovChains.of(seed, "link chains", good, bad)
        p_hat = _positive(state.up * high + (1 - state.up) * low, network)
        p = probabilities(self.p, network.clients, "p", "client", network.label)
        links = StateDependentBernoulli(rng.key(seed, "links"), state, high, low)
        return CorrelatedAvailability(
            p, p_hat, seed, BernoulliAvailability(p, p_hat, seed).computes, links
        )


@recipe(InvalidInput, PARTICIPATIONS)
class DayNight:
    """Every client has days and nights at its own times; a link has day while both its ends have.

    Args:
        day: How many rounds a day lasts.
        night: How many rounds a night lasts.
        p_day: The chance that a client computes in a round of its day.
        p_night: The same by night.
        p_hat_day: The chance that a link works while both its ends have day.
        p_hat_night: The same at other times.
        phase: Where in its cycle a client is in round 0: "random"; "east-west", by the network's positions,
            which one cycle spans; or a list of numbers in [0, 1), one per client. 0 is dawn.
    """

    name: ClassVar[str] = "day-night"
    day: Rounds = 50
    night: Rounds = 50
    p_day: Chance = 1.0
    p_night: Chance = 0.1
    p_hat_day: Chance = 1.0
    p_hat_night: Chance = 0.1
    phase: Annotated[object, BeforeValidator(_phase)] = "random"

    def draw(self, network: Network, seed: int) -> Availability:
        cycle, dawn = self.day + self.night, self._dawns(network, seed)
        apart = (dawn[network.receivers] - dawn[network.senders]) % cycle
        shared = np.maximum(0, self.day - apart) + np.maximum(0, self.day - (cycle - apart))
        mean = (self.day * self.p_day + self.night * self.p_night) / cycle
        p = probabilities(mean, network.clients, "p", "client", network.label)
        p_hat = (shared * self.p_hat_day + (cycle - shared) * self.p_hat_night) / cycle

        def days(rounds: range) -> Bools:
            return np.asarray((np.asarray(rounds)[:, None] + dawn) % cycle < self.day)

        def both(rounds: range) -> Bools:
            day = days(rounds)
            return np.asarray(day[:, network.receivers] & day[:, network.senders])

        high, low = (np.full(network.clients, chance) for chance in (self.p_day, self.p_night))
        clients = StateDependentBernoulli(rng.key(seed, "clients"), days, high, low)
        high, low = (
            np.full(network.links, chance) for chance in (self.p_hat_day, self.p_hat_night)
        )
        links = StateDependentBernoulli(rng.key(seed, "links"), both, high, low)
        return CorrelatedAvailability(
            p, _positive(p_hat, network), seed, clients, links, random=False
        )

    def _dawns(self, network: Network, seed: int) -> Ints:
        """(clients,): how many rounds before round 0 each client's day began."""
        if self.phase == "east-west":
            phases = _positions(network, "phase='east-west'", "phase='random'")[:, 0]
        elif self.phase == "random":
            phases = rng.uniform(rng.key(seed, "phases"), np.arange(network.clients))
        else:
            phases = spread(
                np.asarray(self.phase, np.float64), network.clients, "phase", "client", "'random'"
            )
        return np.asarray(np.floor(phases * (self.day + self.night)), np.int64)


@recipe(InvalidInput, PARTICIPATIONS)
class Outages:
    """Whole regions fail together: no client of a region that is down computes, no link from or to it works.

    Regions are up and down for geometric times, each by itself. With π = up/(up + down), a client computes
    with p π; a link works with p̂ π inside a region and with p̂ π² between two.

    Args:
        up: How many rounds in a row a region is up, in the mean.
        down: How many rounds in a row it is down.
        regions: How many regions of about equal size the network is cut into, by its positions.
        groups: The region of every client instead, by name or number: a list, or a dict by client.
        p: The chance that a client computes while its region is up: one number, or one per client.
        p_hat: The chance that a link works while the regions of both its ends are up, likewise.
    """

    name: ClassVar[str] = "outages"
    up: Length = 50.0
    down: Length = 10.0
    regions: Rounds = 4
    groups: Annotated[object, BeforeValidator(_groups)] = None
    p: Chances = 1.0
    p_hat: Chances = 1.0

    def draw(self, network: Network, seed: int) -> Availability:
        region = self._regions(network)
        count = int(region.max()) + 1
        state = MarkovChains.of(
            seed, "region chains", np.full(count, self.up), np.full(count, self.down)
        )
        into, out = region[network.receivers], region[network.senders]
        p = probabilities(self.p, network.clients, "p", "client", network.label)
        p_hat = _positive(on_links(self.p_hat, network), network)
        inside = BernoulliAvailability(p, p_hat, seed)

        def computes(rounds: range) -> Bools:
            return np.asarray(state(rounds)[:, region] & inside.computes(rounds))

        def links(rounds: range) -> Bools:
            up = state(rounds)
            return np.asarray(up[:, into] & up[:, out] & inside.links(rounds).pull)

        pi = state.up[0]
        return CorrelatedAvailability(
            p * pi, p_hat * np.where(into == out, pi, pi**2), seed, computes, links
        )

    def _regions(self, network: Network) -> Ints:
        """(clients,): the number of each client's region."""
        if self.groups is None:
            where = _positions(network, "regions", "groups=[0, 0, 1]")
            return _cut(where, min(self.regions, network.clients))
        if isinstance(self.groups, Mapping):
            groups = values_by_client(self.groups, _labels(network), "groups")
        else:
            groups = list(self.groups) if isinstance(self.groups, tuple) else []
        if len(groups) != network.clients:
            raise InvalidInput(
                f"groups must be {network.clients} regions, one per client, got {len(groups)}; list them all."
            )
        known = {group: number for number, group in enumerate(dict.fromkeys(groups))}
        return np.array([known[group] for group in groups], np.int64)


def _positions(network: Network, key: str, instead: str) -> Floats:
    if network.positions is None:
        raise InvalidInput(f"{key} needs a network whose clients have positions; use {instead}.")
    return network.positions


def _cut(positions: Floats, count: int) -> Ints:
    """(clients,): numbers of `count` regions of about equal size, by halving the longer side."""
    region = np.zeros(len(positions), np.int64)
    if count < 2:
        return region
    order = np.argsort(positions[:, int(np.argmax(np.ptp(positions, axis=0)))], kind="stable")
    first = count // 2
    here, there = np.split(order, [round(len(order) * first / count)])
    region[here] = _cut(positions[here], first)
    region[there] = first + _cut(positions[there], count - first)
    return region


@recipe(InvalidInput, PARTICIPATIONS)
class Intersection:
    """Several participations at once: a client computes and a link works where all of them let it.

    Their draws are independent of each other, so that frequencies multiply.

    Args:
        of: The participations. At most one of them may be a trace or day-night, whose times are fixed.
    """

    name: ClassVar[str] = "together"
    of: Annotated[Sequence[object], BeforeValidator(_inners)]

    def draw(self, network: Network, seed: int) -> Availability:
        words = rng.words(rng.key(seed, "together"), np.arange(len(self.of)))
        recipes = [each for each in self.of if isinstance(each, Participation)]
        parts = [each.draw(network, int(word)) for each, word in zip(recipes, words, strict=True)]
        fixed = [
            each.name
            for each, part in zip(recipes, parts, strict=True)
            if isinstance(part, AvailabilityTrace)
            or (isinstance(part, CorrelatedAvailability) and not part.random)
        ]
        if len(fixed) > 1:
            raise InvalidInput(
                f"together knows p of at most one participation with fixed times, got {' and '.join(fixed)}; "
                "drop one."
            )
        lengths = [part.length for part in parts if part.length is not None]
        return CorrelatedAvailability(
            np.prod([part.p for part in parts], axis=0),
            np.prod([part.p_hat for part in parts], axis=0),
            seed,
            lambda rounds: np.logical_and.reduce([part.computes(rounds) for part in parts]),
            lambda rounds: np.logical_and.reduce([part.links(rounds).pull for part in parts]),
            min(lengths, default=None),
            not fixed,
        )
