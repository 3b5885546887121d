"""The paper's clock: what a round costs.

    τ = mean_i [ v_i/p_i + (1/|N_in(i)|) Σ_j v̂_ij/p̂_ij + (1/|N_out(i)|) Σ_j v̂_ji/p̂_ji ]

A client or link that works with probability p takes 1/p to do its part, so a method that insists on
every link in every round pays 1/p̂ for each. x[k] is available at the sum of the first k rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spodgt.network import Network
from spodgt.types import Availability, Bools, Floats

_MOST = 1e250  # what waiting for a client that never comes costs: for ever, but sums stay finite


@dataclass(frozen=True, eq=False)
class Costs:
    """What one gradient of each client and one use of each link add to the delay."""

    clients: Floats  # (clients,)
    links: Floats  # (links,)

    def processing(self, computes: Bools) -> Floats:
        """Delay of the gradients of each round; `computes` is (rounds, clients)."""
        return _total(computes, self.clients)

    def transmission(self, links: Bools) -> Floats:
        """Delay of the messages of each round, in and out; `links` is (rounds, links)."""
        return _total(links, self.links)


def _total(which: Bools, each: Floats) -> Floats:
    """(rounds,): the sum of `each` (n,) where `which` (rounds, n) is true."""
    return np.asarray(np.where(which, each, 0.0).sum(-1))


def costs(network: Network, availability: Availability) -> Costs:
    """What gradients and links cost on a network."""
    # Each link is an in-link of its receiver and an out-link of its sender: both means are charged.
    weight = 1.0 / network.in_degree[network.receivers] + 1.0 / network.out_degree[network.senders]
    return Costs(
        np.minimum(1.0 / (network.clients * availability.p), _MOST),
        np.minimum(weight / (network.clients * availability.p_hat), _MOST),
    )
