"""Who computes and which links work in round k, as a pure function of (seed, k).

A participation is a recipe; `draw(network, seed)` gives the `Availability` of one run. Round 0 has
only computing clients; the links of round k ≥ 1 mix x[k-1] into x[k].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Protocol, runtime_checkable

import numpy as np

from spodgt import rng
from spodgt._util.text import short_repr
from spodgt.errors import InvalidInput
from spodgt.network import Network
from spodgt.network.names import values_by_client, values_by_link
from spodgt.participation.availability import (
    AvailabilityOverride,
    BernoulliAvailability,
    RandomEdge,
)
from spodgt.types import Availability, Floats
from spodgt.validation import Field, FieldHint, Number, Whole, recipe


@runtime_checkable
class Participation(Protocol):
    """A recipe for availability, drawn anew for every seed."""

    name: ClassVar[str]

    def draw(self, network: Network, seed: int) -> Availability: ...


PARTICIPATIONS: dict[str, type[Participation]] = {}  # all kinds a config knows, by name
Shape = Annotated[Number, Field(gt=0, allow_inf_nan=False), FieldHint("a number above 0")]


@recipe(InvalidInput, PARTICIPATIONS)
class Always:
    """Every client computes and every link works, in every round."""

    name: ClassVar[str] = "always"

    def draw(self, network: Network, seed: int) -> Availability:
        return AvailabilityOverride(
            BernoulliAvailability(np.ones(network.clients), np.ones(network.links), seed),
            True,
            True,
        )


@recipe(InvalidInput, PARTICIPATIONS)
class Bernoulli:
    """Given probabilities, in (0, 1].

    Args:
        p: That a client computes: one number for all, (clients,), or a dict by client.
        p_hat: That a link works: one number, (links,) in the network's order, (clients, clients) as
            [receiver, sender], or a dict by link: (sender, receiver), or in a config "sender:receiver".
    """

    name: ClassVar[str] = "bernoulli"
    p: object = 0.5
    p_hat: object = 0.5

    def draw(self, network: Network, seed: int) -> Availability:
        p = probabilities(self.p, network.clients, "p", "client", network.label)
        given = on_links(self.p_hat, network)
        p_hat = probabilities(given, network.links, "p_hat", "link", network.link_label)
        return BernoulliAvailability(p, p_hat, seed)


@recipe(InvalidInput, PARTICIPATIONS)
class Beta:
    """p and p̂ drawn from Beta(alpha, beta) for every client and link, never below `floor`.

    Beta(0.5, 0.5) is the paper's setting: most are near 0 or near 1, and 1/p has no mean.

    Args:
        alpha: First parameter of the distribution.
        beta: Second parameter.
        floor: The smallest probability, in [0, 1).
    """

    name: ClassVar[str] = "beta"
    alpha: Shape = 0.5
    beta: Shape = 0.5
    floor: Annotated[Number, Field(ge=0, lt=1), FieldHint("in [0, 1)", 0.05)] = 0.0

    def draw(self, network: Network, seed: int) -> Availability:
        least = max(self.floor, float(np.finfo(float).tiny))  # a draw may underflow to zero
        p = rng.generator(seed, "beta:p").beta(self.alpha, self.beta, network.clients)
        p_hat = rng.generator(seed, "beta:p_hat").beta(self.alpha, self.beta, network.links)
        return BernoulliAvailability(np.maximum(p, least), np.maximum(p_hat, least), seed)


@recipe(InvalidInput, PARTICIPATIONS)
class EveryK:
    """Every client computes in every round; links work only in every `rounds`-th.

    Args:
        rounds: How many rounds lie between two exchanges.
    """

    name: ClassVar[str] = "every-k"
    rounds: Annotated[Whole, Field(ge=1, le=2**62), FieldHint("a whole number of at least 1")] = 5

    def draw(self, network: Network, seed: int) -> Availability:
        return AvailabilityOverride(Always().draw(network, seed), every=self.rounds)


@recipe(InvalidInput, PARTICIPATIONS)
class OneLink:
    """Gossip: one link a round, drawn uniformly, and only its two ends compute.

    Args:
        pairs: A two-way link carries both ways at once.
    """

    name: ClassVar[str] = "one-link"
    pairs: bool = False

    def draw(self, network: Network, seed: int) -> Availability:
        if not network.links:
            raise InvalidInput(
                "one-link needs a network with at least one link, got one client; use always."
            )
        degree = network.in_degree + network.out_degree
        both = network.reverse is not None and self.pairs
        p_hat = np.full(network.links, (2 if both else 1) / network.links)
        return RandomEdge(degree / network.links, p_hat, network, seed, both)


def check_participation(participation: object) -> None:
    """Refuse what is no participation; a class of them is none."""
    if isinstance(participation, Participation) and not isinstance(participation, type):
        return
    got, fix = type(participation).__name__, "use spodgt.Beta(0.5, 0.5)."
    if isinstance(participation, type):
        got, fix = (
            f"the class {participation.__name__}",
            f"use spodgt.{participation.__name__}() instead.",
        )
    raise InvalidInput(
        f"participation must be one of {', '.join(PARTICIPATIONS)}, got {got}; {fix}"
    )


def as_availability(participation: Participation, network: Network, seed: int) -> Availability:
    """Draw a participation for one network and seed, or say that it is none."""
    check_participation(participation)
    return participation.draw(network, seed)


def _numbers(value: object, name: str) -> Floats:
    try:
        array = np.asarray(value)
        if array.dtype.kind in "iuf":  # text and truth values are none
            return array.astype(float)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise InvalidInput(
        f"{name} must be numbers in (0, 1], got {short_repr(value)}; use {name}=0.5."
    )


def on_links(p_hat: object, network: Network) -> Floats:
    """p̂ by links, also where it is given as a matrix [receiver, sender] or a dict by link."""
    if isinstance(p_hat, Mapping):
        p_hat = values_by_link(p_hat, network, "p_hat")
    array = _numbers(p_hat, "p_hat")
    if array.shape == (network.clients, network.clients) and array.ndim == 2:
        return np.asarray(array[network.receivers, network.senders])
    return array


def spread(array: Floats, count: int, name: str, each: str, example: str = "0.5") -> Floats:
    """(count,): one number for each client or link, or the same for all."""
    if array.shape not in ((), (count,)):
        raise InvalidInput(
            f"{name} must be one number or {count} (one per {each}), got shape {array.shape}; "
            f"use {name}={example}."
        )
    return np.broadcast_to(array, (count,)).copy()


def probabilities(
    value: object, count: int, name: str, each: str, label: Callable[[int], str]
) -> Floats:
    """One probability in (0, 1] for each client or link; `label` tells what one is called."""
    if isinstance(value, Mapping):
        value = values_by_client(value, [label(at) for at in range(count)], name)
    array = spread(_numbers(value, name), count, name, each)
    bad = ~((array > 0) & (array <= 1))
    if bad.any():
        where = int(np.argmax(bad))
        raise InvalidInput(
            f"{name} must be in (0, 1], but {each} {label(where)} has {array[where]:.3g}; "
            f"a {each} that never takes part does not belong to the network."
        )
    return array
