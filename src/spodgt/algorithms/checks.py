"""Refuse a method where its definition excludes the setting, before the first round.

The message is one sentence: the method, what it needs, what it got, and what to use instead.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from spodgt.algorithms.base import Algorithm, HasStepSize, Schedule, Sporadic, Traits
from spodgt.algorithms.compose.wrapper import Layer, Wrapper
from spodgt.algorithms.registry import ALGORITHMS
from spodgt.errors import Incompatible, InvalidInput
from spodgt.network import Network
from spodgt.types import Availability


def check(algorithm: Algorithm, network: Network, availability: Availability) -> None:
    """Raise `Incompatible` unless the method can run here; `availability` is the run's own, before `uses`."""
    traits, needs = algorithm.traits, None
    if _one_way(traits, network):
        j, i = map(network.label, network.one_way_link())
        needs = f"a reverse for every link, and link {j} → {i} has none; add link {i} → {j} or"
    elif traits.sporadic_clients == "no" and availability.idle_clients:
        p, got = availability.p.min(), "some clients are idle in some rounds"
        if p < 1:
            got = f"client {network.label(int(np.argmin(availability.p)))} computes with probability {p:.3g}"
        needs = f"every client in every round, but {got};"
    elif traits.sporadic_links == "no" and availability.idle_links:
        n, p = int(np.argmin(availability.p_hat)), availability.p_hat.min()
        got = (
            f"link {network.link_label(n)} works with probability {p:.3g}"
            if p < 1
            else "some links are down in some rounds"
        )
        needs = f"every link in every round, but {got};"
    if needs is not None:
        raise Incompatible(
            f"{algorithm.name} needs {needs} use {_instead(traits, network, availability)}."
        )
    layer = algorithm
    while isinstance(layer, Wrapper):
        if isinstance(layer, Layer) and (why := layer.unfit()):
            raise Incompatible(f"{algorithm.name} {why}")
        layer = layer.base
    _check_steps(algorithm, network)
    algorithm.with_mixing_weights(network)


def _check_steps(algorithm: Algorithm, network: Network) -> None:
    """Raise unless the step size is of a kind that the method is meant for."""
    traits, name = algorithm.traits, algorithm.name
    step = algorithm.step_size if isinstance(algorithm, HasStepSize) else None
    start = step.start if isinstance(step, Schedule) else step
    count = start.numel() if isinstance(start, Tensor) else 1
    if traits.steps == "constant" and isinstance(step, Schedule):
        raise Incompatible(
            f"{name} needs a constant step size, but got {step}; use a number, or gt-dsgd."
        )
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
    return not traits.directed and not network.two_way


def _instead(refused: Traits, network: Network, availability: Availability) -> str:
    """The nearest method that runs here and waits for nobody; among equals, the first of the list."""

    def bears(sporadic: Sporadic, idle: bool) -> bool:
        return sporadic == "yes" or (sporadic == "no" and not idle)

    def runs(traits: Traits) -> bool:
        mixes = traits.mixing not in ("none", "server")
        plain = traits.activation == "all" and not traits.local_steps and not traits.root and mixes
        clients = bears(traits.sporadic_clients, availability.idle_clients)
        links = bears(traits.sporadic_links, availability.idle_links)
        return plain and clients and links and not _one_way(traits, network)

    def distance(cls: type[Algorithm]) -> tuple[bool, ...]:
        same = ("tracking", "mixing", "rule", "exact")
        differs = (getattr(cls.traits, key) != getattr(refused, key) for key in same)
        return (*differs, cls.traits.sporadic_clients != "yes")

    return min((cls for cls in ALGORITHMS.values() if runs(cls.traits)), key=distance).name
