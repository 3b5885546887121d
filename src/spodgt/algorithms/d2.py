"""D²: decentralized training over decentralized data [tang2018d].

    h = x - γ g - s            g the gradient of the client's own mini-batch, kept
    d = (W - I) h
    x⁺ = h + d
    s⁺ = s - d                 s⁰ = 0

Inserting s gives the published x^{k+1} = W (2x^k - x^{k-1} - γ (g^k - g^{k-1})), x^{-1} = x⁰,
g^{-1} = 0. Σs = 0 must hold, so d is a sum of differences; see `extra`. λ_min(W) > -1/3 is
required; `lazy` replaces W by (I + W)/2, which always satisfies it. The step must be one constant:
a sum cannot be rescaled.
"""

from dataclasses import dataclass, replace

import numpy as np

from spodgt.algorithms.base import Network, Rate
from spodgt.algorithms.extra import Extra, ExtraState
from spodgt.algorithms.rounds import GossipRound
from spodgt.errors import Incompatible


@dataclass(frozen=True)
class D2(Extra):
    name = "d2"
    traits = replace(Extra.traits, source="tang2018d", mixed_fields=())
    step_size: Rate = 0.01  # γ
    lazy: bool = False

    def with_mixing_weights(self, network: Network) -> Network:
        if self.lazy and network.w is not None:
            return replace(network, w=network.w / 2)
        smallest = smallest_eigenvalue(network)
        if smallest <= -1 / 3 + 1e-9:
            raise Incompatible(
                f"d2 needs a W with eigenvalues above -1/3, got {smallest:.3g}; "
                "use lazy=True or gt-dsgd."
            )
        return network

    def step(self, state: ExtraState, round: GossipRound) -> ExtraState:
        h = state.x - self.step_size * state.g - state.s
        d = round.gossip_difference(h)
        x = h + d
        return ExtraState(x, round.grad(x), state.s - d)


def smallest_eigenvalue(network: Network) -> float:
    """λ_min of W, for two-way links; computed densely for small networks."""
    if network.w is None or network.clients <= 100:
        return float(np.linalg.eigvalsh(network.W)[0])
    from scipy.sparse import csr_array, diags
    from scipy.sparse.linalg import eigsh

    off = csr_array((network.w, (network.receivers, network.senders)), shape=(network.clients,) * 2)
    return float(eigsh(off + diags(1 - off.sum(1)), 1, which="SA", return_eigenvectors=False)[0])
