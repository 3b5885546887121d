"""Refuse a method where its definition excludes the setting, before the first round.

The message is one sentence: the method, what it needs, what it got, and what to use instead.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.linalg import eigsh
from torch import Tensor

from spodgt.algorithms.base import Algorithm, Schedule, Traits
from spodgt.errors import Incompatible, InvalidInput
from spodgt.network import Network
from spodgt.types import Availability

_INSTEAD = {
    True: ("diging", "push-pull", "spod-gt-memory"),
    False: ("dspodfl", "sgp", "spod-gt"),
}  # by tracking


def check(algorithm: Algorithm, network: Network, availability: Availability) -> None:
    """Raise `Incompatible` unless the method can run here; `availability` is the world's, before `uses`."""
    traits, name = algorithm.traits, algorithm.name
    instead = _instead(traits, network, availability)
    if one_way(traits, network):
        got = network.one_way().replace("a method for directed graphs", instead)
        raise Incompatible(f"{name} needs a reverse for every link, and {got}")
    if traits.sporadic_clients == "no" and availability.idle_clients:
        client = int(np.argmin(availability.p))
        got = _chance(
            f"client {client} computes", availability.p[client], "some clients are idle in some rounds"
        )
        raise Incompatible(f"{name} needs every client in every round, but {got}; use {instead}.")
    if traits.sporadic_links == "no" and availability.idle_links:
        link = int(np.argmin(availability.p_hat))
        which = f"link {network.senders[link]} → {network.receivers[link]} works"
        got = _chance(which, availability.p_hat[link], "some links are down in some rounds")
        raise Incompatible(f"{name} needs every link in every round, but {got}; use {instead}.")
    check_steps(algorithm, network)
    algorithm.weighs(network)


def check_steps(algorithm: Algorithm, network: Network) -> None:
    """Raise unless the method's step size and momentum are of a kind that it is meant for."""
    traits, name = algorithm.traits, algorithm.name
    step = getattr(algorithm, "step_size", None)
    start = getattr(step, "start", step)
    count = start.numel() if isinstance(start, Tensor) else 1
    if hasattr(algorithm, "beta") and traits.momentum == "none":
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


def one_way(traits: Traits, network: Network) -> bool:
    return traits.mixing == "gossip" and not network.two_way


def smallest_eigenvalue(network: Network) -> float:
    """λ_min of W, dense where the network is small."""
    if network.w is None or network.clients <= 100:
        return float(np.linalg.eigvalsh(network.W)[0])
    own = 1 - np.bincount(network.receivers, network.w, minlength=network.clients)
    i = np.arange(network.clients)
    rows, columns = np.r_[network.receivers, i], np.r_[network.senders, i]
    W = coo_array((np.r_[network.w, own], (rows, columns)), shape=(network.clients, network.clients))
    return float(eigsh(W.tocsr(), 1, which="SA", return_eigenvectors=False)[0])


def _chance(what: str, p: float, otherwise: str) -> str:
    return f"{what} with probability {p:.3g}" if p < 1 else otherwise


def _instead(traits: Traits, network: Network, availability: Availability) -> str:
    """The nearest method that can run here."""
    from spodgt.algorithms import ALGORITHMS

    *names, last = _INSTEAD[traits.tracking]
    for name in names:
        other = ALGORITHMS[name].traits
        idle = (other.sporadic_clients == "no" and availability.idle_clients) or (
            other.sporadic_links == "no" and availability.idle_links
        )
        if not idle and not one_way(other, network):
            return name
    return last
