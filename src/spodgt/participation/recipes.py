"""Participation recipes: which clients compute and which links work, as a function of (seed, k).

A participation is a recipe; `draw(network, seed)` gives the `Availability` of one run. Round 0 has
computing clients only; the links of round k ≥ 1 mix x[k-1] into x[k].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from pydantic import SkipValidation

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

# One number for all clients or links, one number for each, or numbers by name.
Numbers = float | Sequence[float] | Floats | Mapping[Any, float]


@runtime_checkable
class Participation(Protocol):
    """A recipe for availability, drawn for each seed."""

    name: ClassVar[str]

    def draw(self, network: Network, seed: int) -> Availability: ...


PARTICIPATIONS: dict[str, type[Participation]] = {}  # kinds in a config, by name
Shape = Annotated[Number, Field(gt=0, allow_inf_nan=False), FieldHint("a number above 0")]


@recipe(InvalidInput, PARTICIPATIONS)
class Always:
    """Each client computes and each link works, in every round."""

    name: ClassVar[str] = "always"

    def draw(self, network: Network, seed: int) -> Availability:
        base = BernoulliAvailability(np.ones(network.clients), np.ones(network.links), seed)
        return AvailabilityOverride(base, all_clients=True, all_links=True)


@recipe(InvalidInput, PARTICIPATIONS)
class Bernoulli:
    """Independent draws with given probabilities, in (0, 1].

    Args:
        p: Probability that a client computes: one number, (clients,), or a dict by client.
        p_hat: Probability that a link works: one number, (links,) in the network's order,
            (clients, clients) as [receiver, sender], or a dict by link: (sender, receiver), or in a
            config "sender:receiver".
    """

    name: ClassVar[str] = "bernoulli"
    p: Annotated[Numbers, SkipValidation] = 0.5
    p_hat: Annotated[Numbers, SkipValidation] = 0.5

    def draw(self, network: Network, seed: int) -> Availability:
        p = client_probabilities(self.p, network)
        return BernoulliAvailability(p, link_probabilities(self.p_hat, network), seed)


@recipe(InvalidInput, PARTICIPATIONS)
class Beta:
    """p and p̂ drawn from Beta(alpha, beta) for each client and link, never below `floor`.

    Beta(0.5, 0.5) is the paper's setting: most are near 0 or near 1, and 1/p has no mean.

    Args:
        alpha: First parameter of the distribution.
        beta: Second parameter.
        floor: Smallest probability, in [0, 1).
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
    """Each client computes in every round; links work in every `rounds`-th round only.

    Args:
        rounds: Number of rounds from one exchange to the next.
    """

    name: ClassVar[str] = "every-k"
    rounds: Annotated[Whole, Field(ge=1, le=2**62), FieldHint("a whole number of at least 1")] = 5

    def draw(self, network: Network, seed: int) -> Availability:
        return AvailabilityOverride(Always().draw(network, seed), every=self.rounds)


@recipe(InvalidInput, PARTICIPATIONS)
class OneLink:
    """Randomized gossip: one random link per round; only its two endpoints compute.

    Args:
        pairs: The reverse of the link works, too.
    """

    name: ClassVar[str] = "one-link"
    pairs: bool = False

    def draw(self, network: Network, seed: int) -> Availability:
        if not network.links:
            raise InvalidInput(
                "one-link needs a network with at least one link, got one client; use always."
            )
        degree = network.in_degree + network.out_degree
        is_paired = network.reverse is not None and self.pairs
        links_per_round = 2 if is_paired else 1
        p_hat = np.full(network.links, links_per_round / network.links)
        return RandomEdge(degree / network.links, p_hat, network, seed, is_paired)


def check_participation(participation: object) -> None:
    """Raise `InvalidInput` if `participation` is not an instance of a participation recipe."""
    if isinstance(participation, type):
        got = f"the class {participation.__name__}"
        fix = f"use spodgt.{participation.__name__}() instead."
    elif isinstance(participation, Participation):
        return
    else:
        got = type(participation).__name__
        fix = "use spodgt.Beta(0.5, 0.5)."
    raise InvalidInput(
        f"participation must be one of {', '.join(PARTICIPATIONS)}, got {got}; {fix}"
    )


def as_availability(participation: Participation, network: Network, seed: int) -> Availability:
    """Draw a participation for one network and seed."""
    check_participation(participation)
    return participation.draw(network, seed)


# --- numbers by client and by link ---------------------------------------------------------------
def client_probabilities(p: Numbers, network: Network) -> Floats:
    """(clients,) probabilities in (0, 1]."""
    return _check_probabilities(by_client(p, network, "p"), "p", "client", network.label)


def link_probabilities(p_hat: Numbers, network: Network) -> Floats:
    """(links,) probabilities in (0, 1]."""
    values = by_link(p_hat, network, "p_hat")
    return _check_probabilities(values, "p_hat", "link", network.link_label)


def by_client(value: Numbers, network: Network, name: str, example: str = "0.5") -> Floats:
    """(clients,) numbers of a field; `name` and `example` are for errors."""
    if isinstance(value, Mapping):
        value = values_by_client(value, client_labels(network), name)
    return broadcast(_as_floats(value, name), network.clients, name, "client", example)


def by_link(value: Numbers, network: Network, name: str, example: str = "0.5") -> Floats:
    """(links,) numbers of a field; `name` and `example` are for errors."""
    return broadcast(numbers_by_link(value, network, name), network.links, name, "link", example)


def numbers_by_link(value: Numbers, network: Network, name: str = "p_hat") -> Floats:
    """Numbers in the order of the links, also of a matrix [receiver, sender] or a dict by link."""
    if isinstance(value, Mapping):
        value = values_by_link(value, network, name)
    array = _as_floats(value, name)
    if array.ndim == 2 and array.shape == (network.clients, network.clients):
        return np.asarray(array[network.receivers, network.senders])
    return array


def client_labels(network: Network) -> list[str]:
    """Names or numbers of all clients, in order."""
    return [network.label(client) for client in range(network.clients)]


def broadcast(array: Floats, count: int, name: str, kind: str, example: str = "0.5") -> Floats:
    """(count,) one number for each client or link, also if there is one number for all."""
    if array.shape not in ((), (count,)):
        raise InvalidInput(
            f"{name} must be one number or {count} (one per {kind}), got shape {array.shape}; "
            f"use {name}={example}."
        )
    return np.broadcast_to(array, (count,)).copy()


def _as_floats(value: object, name: str) -> Floats:
    try:
        array = np.asarray(value)
        if array.dtype.kind in "iuf":  # not text, not booleans
            return array.astype(float)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise InvalidInput(
        f"{name} must be numbers in (0, 1], got {short_repr(value)}; use {name}=0.5."
    )


def _check_probabilities(
    array: Floats, name: str, kind: str, label: Callable[[int], str]
) -> Floats:
    is_valid = (array > 0) & (array <= 1)
    if not is_valid.all():
        first = int(np.argmin(is_valid))
        advice = f"use {name}=0.5"
        if array[first] == 0:
            advice = f"a {kind} that never takes part does not belong to the network"
        raise InvalidInput(
            f"{name} must be in (0, 1], but {kind} {label(first)} has {array[first]:.3g}; {advice}."
        )
    return array
