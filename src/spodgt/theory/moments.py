"""Second moments of random linear maps, without enumerating their draws.

A stage maps s to (R + Σ_l ε_l E_l) s with independent ε_l of mean zero and variance one, each E_l
reading and writing a few coordinates only. Then

    E[s⁺s⁺ᵀ] = R S Rᵀ + Σ_l E_l S E_lᵀ,      S = E[ssᵀ].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, gmres

from spodgt.errors import Failed
from spodgt.types import Floats, Ints

DENSE = 120  # unknowns of a symmetric matrix up to which a dense operator is faster than iterating
Map = Callable[[Floats], Floats]


@dataclass(frozen=True, eq=False)
class Fluctuations:
    """Independent local maps E_l of one shape."""

    reads: Ints  # (draws, in)
    writes: Ints  # (draws, out)
    maps: Floats  # (draws, out, in), scaled by the standard deviation of its draw

    def add_to(self, moment: Floats, S: Floats) -> None:
        """moment += Σ_l E_l S E_lᵀ."""
        local = self.maps @ S[self.reads[:, :, None], self.reads[:, None, :]] @ self.maps.swapaxes(1, 2)
        np.add.at(moment, (self.writes[:, :, None], self.writes[:, None, :]), local)


@dataclass(frozen=True, eq=False)
class Stage:
    """One random linear map: its mean and its fluctuations."""

    mean: csr_matrix  # (out, in): a round touches neighbours only
    fluctuations: tuple[Fluctuations, ...]

    def second_moment(self, S: Floats) -> Floats:
        """E[s⁺s⁺ᵀ] from the symmetric S = E[ssᵀ]."""
        moment = np.asarray(self.mean @ (self.mean @ S).T)
        for fluctuation in self.fluctuations:
            fluctuation.add_to(moment, S)
        return moment


def spectral_radius(apply: Map, start: Floats) -> float:
    """Spectral radius of a map that keeps positive semidefinite matrices so, found from a positive `start`.

    The radius of such a map is an eigenvalue with a semidefinite eigenvector (Krein-Rutman), so iterating on
    symmetric matrices suffices.
    """
    n = len(start)
    if n * (n + 1) // 2 <= DENSE:
        return float(np.abs(np.linalg.eigvals(_written_out(apply, n))).max())

    def matvec(vector: Floats) -> Floats:
        S = vector.reshape(n, n)
        return apply((S + S.T) / 2).ravel()

    operator = LinearOperator((n * n, n * n), matvec=matvec, dtype=np.float64)
    try:
        values = eigs(operator, k=1, v0=start.ravel(), tol=1e-10, maxiter=500, return_eigenvectors=False)
        return float(np.abs(values).max())
    except ArpackNoConvergence:
        return _power_iteration(apply, start)


def _power_iteration(apply: Map, start: Floats) -> float:
    """Fallback where ARPACK does not converge: the growth of the trace, from a positive start."""
    S, before = start / np.trace(start), 0.0
    for _ in range(100_000):
        S = apply(S)
        growth = float(np.trace(S))
        if growth == 0:
            return 0.0
        S = S / growth
        if abs(growth - before) < 1e-13 * growth:
            return growth
        before = growth
    return before


def stationary_moment(apply: Map, source: Floats) -> Floats:
    """The fixed point S = apply(S) + source of a map whose spectral radius is below one."""
    n = len(source)
    if n * (n + 1) // 2 <= DENSE:
        upper = np.triu_indices(n)
        unknowns = np.eye(len(upper[0])) - _written_out(apply, n)
        return _symmetric(np.asarray(np.linalg.solve(unknowns, source[upper]), np.float64), n)

    def matvec(vector: Floats) -> Floats:
        S = vector.reshape(n, n)
        return vector - apply((S + S.T) / 2).ravel()

    operator = LinearOperator((n * n, n * n), matvec=matvec, dtype=np.float64)
    solution, stopped = gmres(operator, source.ravel(), rtol=1e-10, restart=60, maxiter=200)
    if stopped:
        raise Failed("no stationary second moment found: the step size is too close to the stability limit.")
    S = solution.reshape(n, n)
    return np.asarray((S + S.T) / 2)


def _written_out(apply: Map, n: int) -> Floats:
    """The map as a dense matrix on the upper triangles of symmetric matrices."""
    upper = np.triu_indices(n)
    unit = np.eye(len(upper[0]))
    return np.stack([apply(_symmetric(column, n))[upper] for column in unit], axis=1)


def _symmetric(triangle: Floats, n: int) -> Floats:
    S = np.zeros((n, n))
    S[np.triu_indices(n)] = triangle
    return np.asarray(S + S.T - np.diag(np.diag(S)))
