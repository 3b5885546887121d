"""Parts that several methods share: local steps, and λ_min of W."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, S
from spodgt.network import Network
from spodgt.participation.availability import Overlay
from spodgt.types import Availability


class LocalSteps(Algorithm[S]):
    """A method that takes K local steps between two exchanges: links are used in every K-th round only."""

    local_steps: int | None  # K; None until `fit` has chosen it

    def uses(self, availability: Availability, network: Network) -> Availability:
        return Overlay(super().uses(availability, network), every=self.local_steps or 1)


def exchanges(k: int, K: int | Tensor) -> Tensor:
    """Whether round k ends K local steps: a scalar, or (clients, 1) where K differs between runs."""
    return torch.as_tensor(k) % K == 0


def smallest_eigenvalue(network: Network) -> float:
    """λ_min of W; links must be two-way. Dense where the network is small."""
    if network.w is None or network.clients <= 100:
        return float(np.linalg.eigvalsh(network.W)[0])
    from scipy.sparse import csr_array, diags
    from scipy.sparse.linalg import eigsh

    off = csr_array((network.w, (network.receivers, network.senders)), shape=(network.clients,) * 2)
    return float(eigsh(off + diags(1 - off.sum(1)), 1, which="SA", return_eigenvectors=False)[0])
