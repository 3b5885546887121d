"""D²: decentralized training over decentralized data [tang2018d].

    x¹ = W (x⁰ - γ g⁰)
    x^{k+1} = W (2x^k - x^{k-1} - γ (g^k - g^{k-1}))      g^k the gradient of its own mini-batch, kept

x^{-1} = x⁰ and g^{-1} = 0 give the first line. It needs λ_min(W) > -1/3; with `lazy` it uses (I + W)/2,
which always has it. The step must be one constant: what has been summed up cannot be rescaled.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from spodgt.algorithms.base import Algorithm, Network, Rate, Round, Tensor
from spodgt.algorithms.extra import Extra
from spodgt.errors import Incompatible


class D2State(NamedTuple):
    x: Tensor
    g: Tensor
    x_before: Tensor
    g_before: Tensor


@dataclass(frozen=True)
class D2(Algorithm[D2State]):
    name = "d2"
    traits = replace(Extra.traits, source="tang2018d", mixes=())
    step_size: Rate = 0.01  # γ
    lazy: bool = False

    def weighs(self, network: Network) -> Network:
        if self.lazy and network.w is not None:
            return replace(network, w=network.w / 2)
        if (least := smallest_eigenvalue(network)) <= -1 / 3 + 1e-9:
            raise Incompatible(
                f"d2 needs a W with eigenvalues above -1/3, got {least:.3g}; use lazy=True or gt-dsgd."
            )
        return network

    def init(self, x: Tensor, round: Round) -> D2State:
        return D2State(x, round.grad(x), x, x.new_zeros(x.shape))

    def step(self, state: D2State, round: Round) -> D2State:
        x = round.gossip(2 * state.x - state.x_before - self.step_size * (state.g - state.g_before))
        return D2State(x, round.grad(x), state.x, state.g)


def smallest_eigenvalue(network: Network) -> float:
    """λ_min of W; links must be two-way. Dense where the network is small."""
    if network.w is None or network.clients <= 100:
        return float(np.linalg.eigvalsh(network.W)[0])
    from scipy.sparse import csr_array, diags
    from scipy.sparse.linalg import eigsh

    off = csr_array((network.w, (network.receivers, network.senders)), shape=(network.clients,) * 2)
    return float(eigsh(off + diags(1 - off.sum(1)), 1, which="SA", return_eigenvectors=False)[0])
