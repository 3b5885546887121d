"""Check that a method can run in a setting, before the first round.

Errors are one sentence: the method, what it needs, what it got, and what to use instead.
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
    """Check that a method can run over a network with some availability.

    Args:
        algorithm: The method.
        network: The network of the run.
        availability: That of the run, before `adapt_availability`.

    Raises:
        Incompatible: The method excludes the setting.
        InvalidInput: The number of step sizes is not that of the clients.
    """
    requirement = _unmet_requirement(algorithm.traits, network, availability)
    if requirement is not None:
        alternative = _closest_alternative(algorithm.traits, network, availability)
        raise Incompatible(f"{algorithm.name} needs {requirement} use {alternative}.")
    layer = algorithm
    while isinstance(layer, Wrapper):
        reason = layer.why_incompatible() if isinstance(layer, Layer) else None
        if reason is not None:
            raise Incompatible(f"{algorithm.name} {reason}")
        layer = layer.base
    _check_step_size(algorithm, network)
    algorithm.with_mixing_weights(network)


def _unmet_requirement(traits: Traits, network: Network, availability: Availability) -> str | None:
    """What the method needs and the setting lacks, as part of a sentence."""
    if _needs_reverse_links(traits, network):
        sender, receiver = map(network.label, network.one_way_link())
        return (
            f"a reverse for every link, and link {sender} → {receiver} has none; "
            f"add link {receiver} → {sender} or"
        )
    if traits.sporadic_clients == "no" and availability.idle_clients:
        found = "some clients are idle in some rounds"
        p = availability.p.min()
        if p < 1:
            client = network.label(int(np.argmin(availability.p)))
            found = f"client {client} computes with probability {p:.3g}"
        return f"every client in every round, but {found};"
    if traits.sporadic_links == "no" and availability.idle_links:
        found = "some links are down in some rounds"
        p_hat = availability.p_hat.min()
        if p_hat < 1:
            link = network.link_label(int(np.argmin(availability.p_hat)))
            found = f"link {link} works with probability {p_hat:.3g}"
        return f"every link in every round, but {found};"
    return None


def _check_step_size(algorithm: Algorithm, network: Network) -> None:
    """Raise unless the method supports the kind of step size that it has."""
    traits = algorithm.traits
    name = algorithm.name
    step_size = algorithm.step_size if isinstance(algorithm, HasStepSize) else None
    start = step_size.start if isinstance(step_size, Schedule) else step_size
    count = start.numel() if isinstance(start, Tensor) else 1
    if traits.steps == "constant" and isinstance(step_size, Schedule):
        raise Incompatible(
            f"{name} needs a constant step size, but got {step_size}; use a number, or gt-dsgd."
        )
    if count > 1 and traits.steps != "per client":
        alternative = "gt-dsgd" if traits.mixing == "gossip" else "push-pull"
        raise Incompatible(
            f"{name} needs one step size for all clients, but got {count}; "
            f"use one, or {alternative}."
        )
    if count not in (1, network.clients):
        raise InvalidInput(
            f"step_size of {name} must be one number or {network.clients}, one per client, "
            f"got {count}."
        )


def _needs_reverse_links(traits: Traits, network: Network) -> bool:
    return not traits.directed and not network.two_way


def _closest_alternative(refused: Traits, network: Network, availability: Availability) -> str:
    """The name of the most similar method that runs here without waiting."""
    candidates = [
        cls for cls in ALGORITHMS.values() if _is_alternative(cls.traits, network, availability)
    ]
    closest = min(candidates, key=lambda cls: _differences(cls.traits, refused))
    return closest.name


def _is_alternative(traits: Traits, network: Network, availability: Availability) -> bool:
    is_plain = traits.activation == "all" and not traits.local_steps and not traits.root
    return (
        is_plain
        and traits.uses_links
        and not _needs_reverse_links(traits, network)
        and _supports(traits.sporadic_clients, availability.idle_clients)
        and _supports(traits.sporadic_links, availability.idle_links)
    )


def _supports(sporadic: Sporadic, idle: bool) -> bool:
    return sporadic == "yes" or (sporadic == "no" and not idle)


def _differences(traits: Traits, refused: Traits) -> tuple[bool, ...]:
    """Sort key of alternatives, the most important difference first."""
    return (
        traits.tracking != refused.tracking,
        traits.mixing != refused.mixing,
        traits.rule != refused.rule,
        traits.exact != refused.exact,
        traits.sporadic_clients != "yes",
    )
