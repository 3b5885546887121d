"""The paper's clock: the delay of a round.

    τ = mean_i [ v_i/p_i + (1/|N_in(i)|) Σ_j v̂_ij/p̂_ij + (1/|N_out(i)|) Σ_j v̂_ji/p̂_ji ]

A client or link that is available with probability p needs 1/p for its part, so a method that uses
each link in each round pays 1/p̂ for each. x[k] is available at the sum of the first k rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spodgt.network import Network
from spodgt.types import Availability, Bools, Floats

_MAX_COST = 1e250  # of a client that is never available, so that sums remain finite


@dataclass(frozen=True, eq=False)
class Costs:
    """Delay that one gradient of each client and one use of each link add to a round."""

    clients: Floats  # (clients,)
    links: Floats  # (links,)

    def processing(self, computes: Bools) -> Floats:
        """(rounds,) delay of the gradients; `computes` is (rounds, clients)."""
        return np.asarray(np.where(computes, self.clients, 0.0).sum(-1))

    def transmission(self, links: Bools) -> Floats:
        """(rounds,) delay of the messages, in and out; `links` is (rounds, links)."""
        return np.asarray(np.where(links, self.links, 0.0).sum(-1))


def costs(network: Network, availability: Availability) -> Costs:
    """Delay of gradients and messages on a network."""
    # Each link is an in-link of its receiver and an out-link of its sender: both means are charged.
    weight = 1.0 / network.in_degree[network.receivers] + 1.0 / network.out_degree[network.senders]
    return Costs(
        np.minimum(1.0 / (network.clients * availability.p), _MAX_COST),
        np.minimum(weight / (network.clients * availability.p_hat), _MAX_COST),
    )
