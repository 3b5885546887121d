"""The graph and its mixing matrices: Perron vectors, diameter, edge utility, contraction.

A link j -> i has receiver i and sender j; matrices are [receiver, sender]. With p̂ the probability
that a link works in a round,

    Â = E[A^(k)],  â_ij = a_ij p̂_ij,  â_ii = 1 - Σ_j a_ij p̂_ij   (rows sum to one)
    B̂ = E[B^(k)],  b̂_ij = b_ij p̂_ij,  b̂_jj = 1 - Σ_i b_ij p̂_ij   (columns sum to one)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.linalg import eigh, null_space
from scipy.sparse import csgraph
from scipy.sparse.linalg import splu

from spodgt.errors import InvalidInput, InvalidNetwork
from spodgt.network import Network
from spodgt.types import Floats, Ints

DENSE = 1000  # clients up to which the Perron vectors are eliminated densely


@dataclass(frozen=True, eq=False)
class RandomLinks:
    """The links j -> i of a network with their checked probabilities."""

    m: int
    i: Ints  # receivers
    j: Ints  # senders
    a: Floats
    b: Floats
    p_hat: Floats
    variance: Floats  # p̂ (1 - p̂)

    @classmethod
    def of(cls, network: Network, p_hat: ArrayLike = 1.0) -> RandomLinks:
        p = probabilities("p_hat", p_hat, network.links)
        return cls(
            network.clients,
            network.receivers,
            network.senders,
            network.a,
            network.b,
            p,
            p * (1 - p),
        )

    def diagonals(self, p_hat: Floats | float = 1.0) -> tuple[Floats, Floats]:
        """Diagonals of A and B when every link counts `p_hat`: what the links leave over."""
        a = 1 - np.bincount(self.i, self.a * p_hat, self.m)
        b = 1 - np.bincount(self.j, self.b * p_hat, self.m)
        # rounding may leave -1e-17 where a client keeps nothing
        return np.maximum(a, 0.0), np.maximum(b, 0.0)


def per_client(name: str, value: ArrayLike, clients: int, *, zero: bool = False) -> Floats:
    """`value` as one positive number per client (or zero, if `zero`); raises InvalidInput."""
    array = np.asarray(value, dtype=np.float64)
    if array.shape not in ((), (1,), (clients,)):
        raise InvalidInput(
            f"{name} must be one number or {clients} (one per client), got shape {array.shape}; "
            f"use {name}=1."
        )
    array = np.broadcast_to(array, (clients,))
    bad = ~(np.isfinite(array) & ((array > 0) | (zero & (array == 0))))
    if bad.any():
        worst = int(np.argmax(bad))
        sign = "zero or positive" if zero else "positive"
        raise InvalidInput(
            f"{name}[{worst}] must be {sign} and finite, got {array[worst]}; use {name}=1."
        )
    return array


def probabilities(name: str, value: ArrayLike, count: int) -> Floats:
    """`value` as `count` probabilities in (0, 1]; raises InvalidInput."""
    p = np.asarray(value, dtype=np.float64)
    if p.shape not in ((), (1,), (count,)):
        raise InvalidInput(
            f"{name} must be one number or {count}, got shape {p.shape}; use {name}=1.0."
        )
    p = np.broadcast_to(p, (count,))
    outside = np.flatnonzero(~((p > 0) & (p <= 1)))
    if len(outside):
        worst = int(outside[0])
        raise InvalidInput(
            f"{name}[{worst}] must be in (0, 1], got {p[worst]}; "
            "remove a link that never works, and raise p of a client that never computes."
        )
    return p


def expected_matrices(
    network: Network, p_hat: ArrayLike = 1.0
) -> tuple[sparse.csr_matrix, sparse.csr_matrix]:
    """Return Â and B̂ (eqn:expected_mat), (clients, clients) each; `.toarray()` makes them dense.

    Args:
        network: the graph and its weights A and B.
        p_hat: probability that a link works; one number or (links,).
    """
    links = RandomLinks.of(network, p_hat)
    shape = (links.m, links.m)
    where = (links.i, links.j)
    A, B = (
        sparse.coo_matrix((weight * links.p_hat, where), shape) + sparse.diags(diagonal)
        for weight, diagonal in zip((links.a, links.b), links.diagonals(links.p_hat), strict=True)
    )
    return A.tocsr(), B.tocsr()


def perron_vectors(network: Network, p_hat: ArrayLike = 1.0) -> tuple[Floats, Floats]:
    """Return φ̂ with φ̂ᵀÂ = φ̂ᵀ and π̂ with B̂π̂ = π̂ (eqn:eigenvectors), (clients,), with sum one.

    ‖φ̂ᵀÂ - φ̂ᵀ‖₁ and ‖B̂π̂ - π̂‖₁ stay below 1e-14, also for sparse networks of 10⁴ clients.

    Args:
        network: the graph and its weights A and B; must be strongly connected.
        p_hat: probability that a link works; one number or (links,).
    """
    links = RandomLinks.of(network, p_hat)
    # φ is the stationary law of the chain that steps i -> j with probability â_ij; π of b̂_ij: j ->
    # i
    return (
        _stationary(links.m, links.i, links.j, links.a * links.p_hat),
        _stationary(links.m, links.j, links.i, links.b * links.p_hat),
    )


def _stationary(m: int, source: Ints, target: Ints, weight: Floats) -> Floats:
    """Stationary law of the chain with these jump probabilities, the rest staying put."""
    if m <= DENSE:
        return _eliminate(m, source, target, weight)
    stay = 1 - np.bincount(source, weight, m)
    P_T = (sparse.coo_matrix((weight, (target, source)), (m, m)) + sparse.diags(stay)).tocsr()
    law = np.full(m, 1 / m)
    for _ in range(
        1000
    ):  # enough where the chain mixes fast, which is where a factorisation fills up
        after = P_T @ law
        after /= after.sum()
        if np.abs(after - law).sum() < 1e-15:
            return np.asarray(after)
        law = after
    return _factorise(m, P_T)


def _eliminate(m: int, source: Ints, target: Ints, weight: Floats) -> Floats:
    """Grassmann-Taksar-Heyman elimination: no subtraction, so errors are a few ulps."""
    P = np.zeros((m, m))
    np.add.at(P, (source, target), weight)
    for n in range(m - 1, 0, -1):
        out = P[n, :n].sum()
        if out == 0:
            raise InvalidNetwork(
                f"client {n} has no path to clients 0..{n - 1}, so no positive Perron vector "
                "exists. Add links until the graph is strongly connected."
            )
        P[:n, n] /= out
        P[:n, :n] += np.outer(P[:n, n], P[n, :n])
    law = np.ones(m)
    for n in range(1, m):
        law[n] = law[:n] @ P[:n, n]
    return np.asarray(law / law.sum())


def _factorise(m: int, P_T: sparse.csr_matrix) -> Floats:
    """The slowly mixing sparse case: fix law[0] = 1 and solve the rest (an M-matrix, no pivots)."""
    system = sparse.identity(m, format="csc") - P_T.tocsc()
    lu = splu(
        system[1:, 1:],
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )
    law = np.concatenate([[1.0], lu.solve(-system[1:, [0]].toarray().ravel())])
    for _ in range(3):  # iterative refinement
        law[1:] -= lu.solve((system @ law)[1:])
    return np.asarray(law / law.sum())


def distances(network: Network) -> Ints:
    """Return the number of links on a shortest directed path, (clients, clients) [from, to].

    Args:
        network: the graph; a missing path is an error.
    """
    m = network.clients
    graph = sparse.csr_matrix(
        (np.ones(network.links), (network.senders, network.receivers)), (m, m)
    )
    d = csgraph.shortest_path(graph, method="D", unweighted=True)
    if np.isinf(d).any():
        s, t = (int(index) for index in np.argwhere(np.isinf(d))[0])
        raise InvalidNetwork(
            f"the graph must be strongly connected, but no path leads from client {s} to "
            f"client {t}. Add links, or keep only the largest strongly connected component."
        )
    return np.asarray(d, dtype=np.int64)


@dataclass(frozen=True)
class EdgeUtility:
    """D(G), K(G) and bounds on K(G); any covering's utility is valid in the contraction lemmas."""

    diameter: int  # D(G): longest shortest path
    edge_utility: int  # K(G): most paths on one link, with one shortest path per ordered pair
    covering_lower_bound: int  # ⌈Σ d(s,t) / |E|⌉ <= utility of any covering
    upper_bound: int  # m² - 3m + 3, attained by a bottleneck


def edge_utility(network: Network) -> EdgeUtility:
    """Compute diameter and maximal edge utility, in links × clients² steps.

    A pair's path may be chosen without regard to the others, so
    K(G) = max over links (u,v) of #{(s,t): d(s,u) + 1 + d(v,t) = d(s,t)}.

    Args:
        network: the graph; must be strongly connected.
    """
    m = network.clients
    d = distances(network)
    if m == 1:
        return EdgeUtility(0, 0, 0, 1)
    ends = zip(network.senders, network.receivers, strict=True)
    through = [np.count_nonzero(d[:, u, None] + 1 + d[v] == d) for u, v in ends]
    lower = -(-int(d.sum()) // network.links)
    return EdgeUtility(int(d.max()), int(max(through)), lower, m * m - 3 * m + 3)


def doubly_stochasticable(network: Network, self_loops: bool = True) -> bool:
    """Return whether positive weights on exactly these links can be doubly stochastic.

    By the theorem of Perfect and Mirsky this requires total support: every link must lie on a set
    of disjoint cycles through all clients. With self-loops that is strong connectivity: close the
    link to a cycle and let the others keep to themselves. Without them (Gharesifard and Cortés
    2010) it is rarer: a star has none.

    Args:
        network: the graph; its weights do not matter.
        self_loops: whether clients may give weight to themselves.
    """
    m = network.clients
    own = np.arange(m) if self_loops else np.empty(0, dtype=np.int64)
    rows, columns = (np.concatenate([ends, own]) for ends in (network.receivers, network.senders))
    support = sparse.csr_matrix((np.ones(len(rows)), (rows, columns)), (m, m))
    sender_of = csgraph.maximum_bipartite_matching(support, perm_type="column")
    if (sender_of < 0).any():
        return False
    # contract each matched pair; an entry is in another perfect matching iff it lies on an
    # alternating cycle
    receiver_of = np.empty(m, dtype=np.int64)
    receiver_of[sender_of] = np.arange(m)
    alternating = sparse.csr_matrix((np.ones(len(rows)), (rows, receiver_of[columns])), (m, m))
    _, component = csgraph.connected_components(alternating, directed=True, connection="strong")
    return bool((component[rows] == component[receiver_of[columns]]).all())


# --- exact contraction ---
# Links fail independently, so with q_l = p̂_l (1 - p̂_l) for link l: j -> i
#     E[AᵀΦA]   = ÂᵀΦÂ   + Σ_l q_l a_l² φ_i (e_j - e_i)(e_j - e_i)ᵀ
#     E[BᵀΠ⁻¹B] = B̂ᵀΠ⁻¹B̂ + Σ_l q_l b_l² (1/π_i + 1/π_j) e_j e_jᵀ
# (eqn:spod_contract_A0, eqn:spod_contract_B0), whatever the probabilities: no threshold is
# involved.
@dataclass(frozen=True)
class Contraction:
    """True one-round factors in the paper's norms, and the threshold-free bound on the first."""

    A: float  # largest E‖A^(k)x - 1x̄‖²_φ / ‖x - 1x̄‖²_φ
    B: float  # largest E‖Π⁻¹B^(k)y‖²_π / ‖Π⁻¹y‖²_π over Σy = 0; above one if links fail often
    injection: float  # E‖Π⁻¹B^(k)π - 1‖²_π: what failing links add per squared Σy
    one_minus_bound_A: float  # 1 - A is at least this, for every p̂ in (0, 1]


def pull_second_moment(network: Network, p_hat: ArrayLike, weights: Floats) -> Floats:
    """Return E[AᵀΦA] with Φ = diag(weights), (clients, clients).

    Args:
        network: the graph and its weights A.
        p_hat: probability that a link works; one number or (links,).
        weights: (clients,), such as φ̂.
    """
    links = RandomLinks.of(network, p_hat)
    A = expected_matrices(network, p_hat)[0].toarray()
    moment = np.asarray(A.T @ (weights[:, None] * A))
    i = links.i
    j = links.j
    spread = links.variance * links.a**2 * weights[links.i]
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
    links = RandomLinks.of(network, p_hat)
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
    links = RandomLinks.of(network, p_hat)
    if links.m == 1:
        return Contraction(0.0, 0.0, 0.0, 1.0)
    phi, pi = perron_vectors(network, p_hat)
    pushed = push_second_moment(network, p_hat, pi)
    # worst case over φᵀx = 0 in the φ-norm, and over 1ᵀy = 0 in the π⁻¹-norm
    A = _largest(pull_second_moment(network, p_hat, phi), np.diag(phi), phi)
    B = _largest(pushed, np.diag(1 / pi), np.ones(links.m))
    graph = edge_utility(network)
    own, _ = links.diagonals()
    # E[a_ii^(k) a_ij^(k)] >= a_ij p̂_ij a_ii: the worst round keeps at least a_ii at home
    kept = phi[links.i] * links.a * links.p_hat * own[links.i]
    bound = kept.min() / (phi.max() ** 2 * graph.diameter * graph.edge_utility)
    return Contraction(A, B, float(pi @ pushed @ pi - 1), float(bound))


def _largest(form: Floats, norm: Floats, orthogonal_to: Floats) -> float:
    """max xᵀ form x / xᵀ norm x over the x orthogonal to a vector."""
    basis = null_space(orthogonal_to[None, :])
    values = eigh(basis.T @ form @ basis, basis.T @ norm @ basis, eigvals_only=True)
    return float(max(values[-1], 0.0))
