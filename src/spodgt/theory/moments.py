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
Triangle = tuple[Ints, Ints]  # row and column of each unknown


@dataclass(frozen=True, eq=False)
class Fluctuations:
    """Independent local maps E_l of one shape."""

    reads: Ints  # (draws, in)
    writes: Ints  # (draws, out)
    maps: Floats  # (draws, out, in), scaled by the standard deviation of its draw


@dataclass(frozen=True, eq=False)
class Stage:
    """One random linear map: its mean and its fluctuations."""

    mean: csr_matrix  # (out, in): a round touches neighbours only
    fluctuations: tuple[Fluctuations, ...]

    def second_moment(self, S: Floats) -> Floats:
        """E[s⁺s⁺ᵀ] from the symmetric S = E[ssᵀ]."""
        moment = np.asarray(self.mean @ (self.mean @ S).T)
        for part in self.fluctuations:
            read = S[part.reads[:, :, None], part.reads[:, None, :]]
            local = part.maps @ read @ part.maps.swapaxes(1, 2)
            np.add.at(moment, (part.writes[:, :, None], part.writes[:, None, :]), local)
        return moment


def spectral_radius(apply: Map, start: Floats) -> float:
    """Spectral radius of a map of positive semidefinite matrices, from a positive `start`.

    The radius of such a map is an eigenvalue with a semidefinite eigenvector (Krein-Rutman), so
    iterating on symmetric matrices suffices.
    """
    upper = np.triu_indices(len(start))
    operator = _on_triangles(apply, upper)
    v0 = start[upper]
    if len(v0) <= DENSE:
        return float(np.abs(np.linalg.eigvals(operator @ np.eye(len(v0)))).max())
    try:
        values = eigs(operator, k=1, v0=v0, tol=1e-10, maxiter=500, return_eigenvectors=False)
        return float(np.abs(values).max())
    except ArpackNoConvergence:
        return _power_iteration(apply, start)


def _power_iteration(apply: Map, start: Floats) -> float:
    """Fallback where ARPACK does not converge: the growth of the trace, from a positive start."""
    S = start / np.trace(start)
    before = 0.0
    for _ in range(100_000):
        S = apply(S)
        growth = float(np.trace(S))
        if growth == 0 or abs(growth - before) < 1e-13 * growth:
            return growth
        S = S / growth
        before = growth
    return before


def stationary_moment(apply: Map, source: Floats) -> Floats:
    """The fixed point S = apply(S) + source of a map with a spectral radius below one."""
    upper = np.triu_indices(len(source))
    operator = _on_triangles(lambda S: S - apply(S), upper)
    constant = source[upper]
    if len(constant) <= DENSE:
        return _symmetric(np.linalg.solve(operator @ np.eye(len(constant)), constant), upper)
    solution, stopped = gmres(operator, constant, rtol=1e-10, restart=60, maxiter=200)
    if stopped:
        raise Failed(
            "no stationary second moment found: the step size is too close to the stability limit."
        )
    return _symmetric(solution, upper)


def _on_triangles(apply: Map, upper: Triangle) -> LinearOperator:
    """The map of symmetric matrices, on their upper triangles as vectors."""
    shape = (len(upper[0]), len(upper[0]))
    return LinearOperator(
        shape, matvec=lambda t: apply(_symmetric(t, upper))[upper], dtype=np.float64
    )


def _symmetric(triangle: Floats, upper: Triangle) -> Floats:
    n = upper[0][-1] + 1
    S = np.empty((n, n))
    S[upper] = S.T[upper] = triangle.ravel()
    return S
