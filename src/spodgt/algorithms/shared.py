"""Parts that several methods share: how a tracker starts, local steps, and mixing weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, S, TrackingState
from spodgt.network import Network
from spodgt.participation.availability import Overlay
from spodgt.types import Availability, Round


class Tracking(Algorithm[TrackingState]):
    """Gradient tracking that starts at y⁰ = g⁰ = ∇f(x⁰)."""

    def init(self, x: Tensor, round: Round) -> TrackingState:
        g = round.grad(x)
        return TrackingState(x, g, g)


class LocalSteps(Algorithm[S]):
    """A method that takes K local steps between two exchanges: links are used in every K-th round only."""

    local_steps: int | None  # K; None until `fit` has chosen it

    def uses(self, availability: Availability, network: Network) -> Availability:
        return Overlay(super().uses(availability, network), every=self.local_steps or 1)


def exchanges(k: int, K: int | Tensor) -> Tensor:
    """Whether round k ends K local steps: a scalar, or (clients, 1) where K differs between runs.

    Args:
        k: the round.
        K: local steps between two exchanges.
    """
    return torch.as_tensor(k) % K == 0


def halves(network: Network) -> Network:
    """The network with weights of one half on every link: two clients that meet average.

    Args:
        network: the network with its own weights.
    """
    half = np.full(network.links, 0.5)
    return replace(network, a=half, b=half, w=None if network.w is None else half)


def smallest_eigenvalue(network: Network) -> float:
    """λ_min of W, dense where the network is small.

    Args:
        network: a network with two-way links.
    """
    if network.w is None or network.clients <= 100:
        return float(np.linalg.eigvalsh(network.W)[0])
    from scipy.sparse import coo_array
    from scipy.sparse.linalg import eigsh

    own = 1 - np.bincount(network.receivers, network.w, minlength=network.clients)
    i = np.arange(network.clients)
    rows, columns = np.r_[network.receivers, i], np.r_[network.senders, i]
    W = coo_array((np.r_[network.w, own], (rows, columns)), shape=(network.clients, network.clients))
    return float(eigsh(W.tocsr(), 1, which="SA", return_eigenvectors=False)[0])
