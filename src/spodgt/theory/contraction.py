"""How fast mixing contracts, exactly, from the second moments of the random matrices.

Links fail independently, so with q_l = p̂_l (1 - p̂_l) for link l: j -> i

    E[AᵀΦA]   = ÂᵀΦÂ   + Σ_l q_l a_l² φ_i (e_j - e_i)(e_j - e_i)ᵀ
    E[BᵀΠ⁻¹B] = B̂ᵀΠ⁻¹B̂ + Σ_l q_l b_l² (1/π_i + 1/π_j) e_j e_jᵀ

(eqn:spod_contract_A0, eqn:spod_contract_B0), whatever the probabilities: no threshold is involved.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigh, null_space

from spodgt.network import Network
from spodgt.theory.graph import Links, edge_utility, expected_matrices, perron_vectors
from spodgt.types import Floats


@dataclass(frozen=True)
class Contraction:
    """True one-round factors in the paper's norms, and the threshold-free bound on the first."""

    A: float  # largest E‖A^(k)x - 1x̄‖²_φ / ‖x - 1x̄‖²_φ
    B: float  # largest E‖Π⁻¹B^(k)y‖²_π / ‖Π⁻¹y‖²_π over Σy = 0; may exceed one where links fail often
    injection: float  # E‖Π⁻¹B^(k)π - 1‖²_π: what failing links add per squared Σy, since B^(k)π != π
    one_minus_bound_A: float  # 1 - A is at least this, for every p̂ in (0, 1]


def pull_second_moment(network: Network, p_hat: ArrayLike, weights: Floats) -> Floats:
    """Return E[AᵀΦA] with Φ = diag(weights), (clients, clients).

    Args:
        network: the graph and its weights A.
        p_hat: probability that a link works; one number or (links,).
        weights: (clients,), such as φ̂.
    """
    links = Links.of(network, p_hat)
    A = expected_matrices(network, p_hat)[0].toarray()
    moment = np.asarray(A.T @ (weights[:, None] * A))
    spread = links.variance * links.a**2 * weights[links.i]
    i, j = links.i, links.j
    for row, column, sign in ((j, j, 1), (i, i, 1), (i, j, -1), (j, i, -1)):
        np.add.at(moment, (row, column), sign * spread)
    return moment


def push_second_moment(network: Network, p_hat: ArrayLike, weights: Floats) -> Floats:
    """Return E[BᵀΠ⁻¹B] with Π = diag(weights), (clients, clients).

    Args:
        network: the graph and its weights B.
        p_hat: probability that a link works; one number or (links,).
        weights: (clients,), positive, such as π̂.
    """
    links = Links.of(network, p_hat)
    B = expected_matrices(network, p_hat)[1].toarray()
    moment = np.asarray(B.T @ (B / weights[:, None]))
    spread = links.variance * links.b**2 * (1 / weights[links.i] + 1 / weights[links.j])
    np.add.at(moment, (links.j, links.j), spread)
    return moment


def contraction(network: Network, p_hat: ArrayLike = 1.0) -> Contraction:
    """Compute the exact contraction of pulling and pushing over failing links.

    Args:
        network: the graph and its weights A and B.
        p_hat: probability that a link works; one number or (links,).
    """
    links = Links.of(network, p_hat)
    m = links.m
    if m == 1:
        return Contraction(0.0, 0.0, 0.0, 1.0)
    phi, pi = perron_vectors(network, p_hat)
    pushed = push_second_moment(network, p_hat, pi)
    # worst case over φᵀx = 0 in the φ-norm, and over 1ᵀy = 0 in the π⁻¹-norm
    A = _largest(pull_second_moment(network, p_hat, phi), np.diag(phi), phi)
    B = _largest(pushed, np.diag(1 / pi), np.ones(m))
    injection = float(pi @ pushed @ pi - 1)
    graph = edge_utility(network)
    own, _ = links.diagonals()
    # E[a_ii^(k) a_ij^(k)] >= a_ij p̂_ij a_ii: the worst round keeps at least a_ii at home
    kept = phi[links.i] * links.a * links.p_hat * own[links.i]
    bound = kept.min() / (phi.max() ** 2 * graph.diameter * graph.edge_utility)
    return Contraction(A, B, injection, float(bound))


def _largest(form: Floats, norm: Floats, orthogonal_to: Floats) -> float:
    """max xᵀ form x / xᵀ norm x over the x orthogonal to a vector."""
    basis = null_space(orthogonal_to[None, :])
    values = eigh(basis.T @ form @ basis, basis.T @ norm @ basis, eigvals_only=True)
    return float(max(values[-1], 0.0))
