"""Refuse a method where its definition excludes the setting, before the first round.

The message is one sentence: the method, what it needs, what it got, and what to use instead.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from spodgt.algorithms.base import Algorithm, HasStepSize, Schedule, Traits
from spodgt.algorithms.compose.momentum import Momentum
from spodgt.algorithms.registry import ALGORITHMS
from spodgt.errors import Incompatible, InvalidInput
from spodgt.network import Network
from spodgt.types import Availability


def check(algorithm: Algorithm, network: Network, availability: Availability) -> None:
    """Raise `Incompatible` unless the method can run here.

    Args:
        algorithm: the method.
        network: who can talk.
        availability: the run's own, before `uses`.
    """
    traits, name = algorithm.traits, algorithm.name
    instead = _instead(traits, network, availability)
    if _one_way(traits, network):
        j, i = network.one_way_link()
        raise Incompatible(
            f"{name} needs a reverse for every link, and link {j} → {i} has none; "
            f"add link {i} → {j} or use {instead}."
        )
    if traits.sporadic_clients == "no" and availability.idle_clients:
        client = int(np.argmin(availability.p))
        got = _probability(
            f"client {client} computes", availability.p[client], "some clients are idle in some rounds"
        )
        raise Incompatible(f"{name} needs every client in every round, but {got}; use {instead}.")
    if traits.sporadic_links == "no" and availability.idle_links:
        link = int(np.argmin(availability.p_hat))
        which = f"link {network.senders[link]} → {network.receivers[link]} works"
        got = _probability(which, availability.p_hat[link], "some links are down in some rounds")
        raise Incompatible(f"{name} needs every link in every round, but {got}; use {instead}.")
    check_steps(algorithm, network)
    algorithm.weighs(network)


def check_steps(algorithm: Algorithm, network: Network) -> None:
    """Raise unless the method's step size and momentum are of a kind that it is meant for.

    Args:
        algorithm: the method.
        network: who can talk.
    """
    traits, name = algorithm.traits, algorithm.name
    step = algorithm.step_size if isinstance(algorithm, HasStepSize) else None
    start = step.start if isinstance(step, Schedule) else step
    count = start.numel() if isinstance(start, Tensor) else 1
    if isinstance(algorithm, Momentum) and traits.momentum == "none":
        raise Incompatible(f"{name} needs gradients to filter, but the method takes none; drop momentum.")
    if traits.steps == "constant" and isinstance(step, Schedule):
        raise Incompatible(f"{name} needs a constant step size, but got {step}; use a number, or gt-dsgd.")
    if count > 1 and traits.steps != "per client":
        other = "gt-dsgd" if traits.mixing == "gossip" else "push-pull"
        raise Incompatible(
            f"{name} needs one step size for all clients, but got {count}; use one, or {other}."
        )
    if count not in (1, network.clients):
        raise InvalidInput(
            f"step_size of {name} must be one number or {network.clients}, one per client, got {count}."
        )


def _one_way(traits: Traits, network: Network) -> bool:
    return traits.mixing == "gossip" and not network.two_way


def _probability(what: str, p: float, otherwise: str) -> str:
    return f"{what} with probability {p:.3g}" if p < 1 else otherwise


def _instead(refused: Traits, network: Network, availability: Availability) -> str:
    """The nearest method that runs here and waits for nobody; among equals, the first of the list."""

    def runs(traits: Traits) -> bool:
        waits = "waits" in (traits.sporadic_clients, traits.sporadic_links)
        idle = (availability.idle_clients and traits.sporadic_clients != "yes") or (
            availability.idle_links and traits.sporadic_links != "yes"
        )
        plain = traits.talks == "all" and not traits.local_steps and traits.mixing not in ("none", "server")
        return plain and not waits and not idle and not _one_way(traits, network)

    def distance(cls: type[Algorithm]) -> tuple[bool, ...]:
        same = ("tracking", "mixing", "rule", "exact")
        differs = (getattr(cls.traits, key) != getattr(refused, key) for key in same)
        return (*differs, cls.traits.sporadic_clients != "yes")

    return min((cls for cls in ALGORITHMS.values() if runs(cls.traits)), key=distance).name
