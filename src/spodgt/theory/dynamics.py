"""Exact mean and mean square of Spod-GT on quadratics F_i(x) = ½(x-c_i)ᵀH_i(x-c_i).

    y½ = B^(k) y;  x⁺ = A^(k) x - η y½;  y⁺ = y½ + g⁺ - g,
    g = v ⊙ ∇F(x) (zero), v ⊙ ∇F(x)/p (importance), or where(v, ∇F(x), last g) (memory),

v and the links independent Bernoulli draws, one draw per link for both A^(k) and B^(k).

The state is (x, z) with z = y - g, and the last gradient h for memory. A round first draws v and turns
(x, z, h) into (x, y, g), then draws the links and turns (x, y, g) into (x⁺, z⁺ = y½ - g, h⁺ = g). Both are
stages of `moments`. Deviations are from the mean limit: x from x∞, h from d = ∇F(x∞), z from -E[g].

Σy = Σg, that is Σz = 0, is kept by every draw. Without it a state would also have the directions Σz != 0,
which no run reaches and on which the recursion is the identity: an eigenvalue one that says nothing about
the method. So every operator here is projected on Σz = 0.
"""

from __future__ import annotations

from functools import cached_property
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq, minimize_scalar
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from spodgt.algorithms.base import Rule
from spodgt.errors import InvalidInput
from spodgt.network import Network
from spodgt.theory.graph import Links, expected_matrices, per_client, perron_vectors, probabilities
from spodgt.theory.moments import Fluctuations, Stage, spectral_radius, stationary_moment
from spodgt.types import Floats, Ints

MOST_EXACT = 50  # clients times coupled parameters of an analysis that takes seconds


class Dynamics:
    """Exact moments of Spod-GT on quadratics under independent Bernoulli clients and links.

    Coordinates that no H_i couples are treated apart, so diagonal H of any size cost little; a coupled block
    of n coordinates costs as much as n times as many clients. Step sizes are one number or (clients,).

    Args:
        network: the graph and its weights A and B.
        p: probability in (0, 1] that a client computes in a round; one number or (clients,).
        p_hat: probability in (0, 1] that a link works; one number or (links,).
        H: curvatures, symmetric: (clients, n, n), or (clients, n) or (clients,) for diagonal ones.
        c: minimisers of the F_i, (clients, n) or (clients,).
        rule: what an idle client's gradient counts as: "zero", "importance" or "memory".
        noise: standard deviation of each coordinate of a gradient; one number or (clients,).
    """

    def __init__(
        self,
        network: Network,
        p: ArrayLike,
        p_hat: ArrayLike,
        H: ArrayLike,
        c: ArrayLike,
        *,
        rule: Rule = "zero",
        noise: ArrayLike = 0.0,
    ) -> None:
        if rule not in get_args(Rule):
            raise InvalidInput(
                f"rule must be one of {', '.join(get_args(Rule))}, got {rule!r}; use rule='zero'."
            )
        self.network, self.rule = network, rule
        self.p = probabilities("p", p, network.clients)
        self.p_hat = probabilities("p_hat", p_hat, network.links)
        self.H, self.c = _quadratics(network.clients, H, c)
        self.noise = per_client("noise", noise, network.clients, zero=True)
        for weight, what in ((np.ones_like(self.p), "H"), (self.mean_weight, "p_i H_i")):
            if not np.linalg.eigvalsh(np.einsum("i,iab->ab", weight, self.H))[0] > 0:
                raise InvalidInput(
                    f"the sum of {what} over clients must be positive definite; add curvature to some client."
                )

    # --- limits ------------------------------------------------------------------------------------
    @property
    def mean_weight(self) -> Floats:
        """μ_i: how much of client i's gradient an average round counts."""
        return self.p if self.rule == "zero" else np.ones_like(self.p)

    @cached_property
    def optimum(self) -> Floats:
        """(n,) minimiser of Σ F_i."""
        return self._minimiser(np.ones_like(self.p))

    @cached_property
    def limit(self) -> Floats:
        """(n,) minimiser of Σ μ_i F_i: the fixed point of the mean dynamics, for every small step size."""
        return self._minimiser(self.mean_weight)

    @property
    def bias(self) -> Floats:
        """(n,) what idle clients shift the mean by: limit minus optimum."""
        return self.limit - self.optimum

    def _minimiser(self, weight: Floats) -> Floats:
        total = np.einsum("i,iab->ab", weight, self.H)
        return np.asarray(np.linalg.solve(total, np.einsum("i,iab,ib->a", weight, self.H, self.c)))

    # --- rates and errors --------------------------------------------------------------------------
    def mean_radius(self, step_size: ArrayLike) -> float:
        """Spectral radius of E[s⁺] as a function of E[s] on Σz = 0."""
        return max(part.mean_radius() for part in self._leaders(step_size))

    def mean_square_radius(self, step_size: ArrayLike) -> float:
        """Spectral radius of E[s⁺s⁺ᵀ] as a function of E[ssᵀ] on Σz = 0; stable if below one."""
        return max(part.mean_square_radius() for part in self._leaders(step_size))

    def variance(self, step_size: ArrayLike) -> float:
        """Stationary E‖x - limit‖² / clients; inf if not mean-square stable.

        `Failed` where the step size is so close to the stability limit that no solver converges.
        """
        if self.mean_square_radius(step_size) >= 1:
            return float("inf")
        eta, total = per_client("step_size", step_size, len(self.p)), 0.0
        for same in self._alike:
            parts = [_Part(self, eta, own) for own in same]
            total += parts[0].variance(np.sum([part.source() for part in parts], axis=0))
        return total

    def floor(self, step_size: ArrayLike) -> float:
        """Stationary E‖x - optimum‖² / clients = variance + ‖bias‖²; inf if not mean-square stable."""
        return self.variance(step_size) + float(self.bias @ self.bias)

    def curve(self, step_size: ArrayLike, x0: ArrayLike, rounds: int) -> Floats:
        """(rounds + 1,) exact E‖x_k - optimum‖² / clients from the models `x0`, (n,) or (clients, n)."""
        m, n = self.c.shape
        x = np.broadcast_to(np.asarray(x0, dtype=np.float64).reshape(-1, n), (m, n))
        errors = [part.curve(x, rounds) for part in self._parts(step_size)]
        return np.asarray(np.sum(errors, axis=0))

    def largest_stable_step(self, tolerance: float = 1e-5) -> float:
        """The common step size at which the mean-square radius reaches one, with a relative `tolerance`."""
        phi, pi = perron_vectors(self.network, self.p_hat)
        curvature = np.linalg.eigvalsh(np.einsum("i,iab->ab", self.mean_weight, self.H))[-1]
        high = float(2 / (phi @ pi * curvature))  # where plain descent on Σ μF with this step would break
        while self.mean_square_radius(high) < 1:
            high *= 2
        low = high / 2
        while self.mean_square_radius(low) >= 1:
            low, high = low / 2, low

        def log_radius(log_step: float) -> float:  # in logarithms: radii grow steeply above the limit
            return float(np.log(max(self.mean_square_radius(np.exp(log_step)), 1e-300)))

        return float(np.exp(brentq(log_radius, np.log(low), np.log(high), xtol=tolerance)))

    def fastest_step(self, largest: float | None = None) -> float:
        """The step size with the smallest mean-square radius; `largest` is the largest stable one."""
        top = float(np.log(largest or self.largest_stable_step()))
        found = minimize_scalar(
            lambda u: self.mean_square_radius(np.exp(u)),
            bounds=(top - 7, top),
            method="bounded",
            options={"xatol": 0.05},  # the radius is flat there
        )
        return float(np.exp(found.x))

    def _parts(self, step_size: ArrayLike) -> list[_Part]:
        """Coordinates that no H_i couples evolve apart, and second moments across them decide nothing."""
        eta = per_client("step_size", step_size, len(self.p))
        return [_Part(self, eta, own) for same in self._alike for own in same]

    def _leaders(self, step_size: ArrayLike) -> list[_Part]:
        """One part per distinct curvature: parts of equal curvature have equal radii."""
        eta = per_client("step_size", step_size, len(self.p))
        return [_Part(self, eta, first) for first, *_ in self._alike]

    @cached_property
    def _alike(self) -> list[list[Ints]]:
        """Coordinates of each part, those of equal curvature together: they share one linear system."""
        _, label = connected_components(np.any(self.H != 0, axis=0), directed=False)
        groups: dict[bytes, list[Ints]] = {}
        for group in range(label.max() + 1):
            own = np.flatnonzero(label == group)
            groups.setdefault(self.H[:, own][:, :, own].tobytes(), []).append(own)
        return list(groups.values())


class _Part:
    """The recursion on some coordinates, as two stages on (x, z[, h], 1); the 1 carries what is constant."""

    def __init__(self, dynamics: Dynamics, eta: Floats, coordinates: Ints) -> None:
        self.m, self.n = dynamics.network.clients, len(coordinates)
        self.H = dynamics.H[:, coordinates][:, :, coordinates]
        self.limit, self.optimum = dynamics.limit[coordinates], dynamics.optimum[coordinates]
        self.d = np.einsum("iab,ib->ia", self.H, self.limit - dynamics.c[:, coordinates])
        self.coordinates, self.rule, self.mu = coordinates, dynamics.rule, dynamics.mean_weight
        self.blocks = 3 if dynamics.rule == "memory" else 2
        self.client_stage = self._clients(dynamics)
        self.link_stage = self._links(dynamics.network, dynamics.p_hat, eta)
        self.size = self.m * self.n
        self.states = self.blocks * self.size

    def _block(self, block: int) -> Ints:
        """(clients, n) positions of a block: x, z or y, h or g."""
        size = self.m * self.n
        return (block * size + np.arange(size)).reshape(self.m, self.n)

    def _clients(self, dynamics: Dynamics) -> Stage:
        """(x, z[, h], 1) -> (x, y, g, 1) by the draw of v."""
        m, n, p, H = self.m, self.n, dynamics.p, self.H
        x, y, g = self._block(0), self._block(1), self._block(2)
        one_in, one_out = self.blocks * m * n, 3 * m * n
        scale = 1 / p if self.rule == "importance" else np.ones(m)
        mean = np.zeros((one_out + 1, one_in + 1))
        mean[one_out, one_in] = 1
        mean[x.ravel(), x.ravel()] = 1
        mean[y.ravel(), y.ravel()] = 1
        mean_H = (p * scale)[:, None, None] * H
        for rows in (y, g):
            mean[rows[:, :, None], x[:, None, :]] += mean_H
        # the fluctuation of v_i multiplies H_i x_i + d_i, or for memory H_i x_i - h_i
        reads = np.concatenate([x, g if self.rule == "memory" else np.full((m, 1), one_in)], axis=1)
        if self.rule == "memory":
            for rows in (y, g):
                mean[rows.ravel(), g.ravel()] += np.repeat(1 - p, n)
            u = np.concatenate([H, np.broadcast_to(-np.eye(n), (m, n, n))], axis=2)
        else:
            u = np.concatenate([H, self.d[:, :, None]], axis=2)
        deviation = scale * np.sqrt(p * (1 - p))
        idle = Fluctuations(
            reads, np.concatenate([y, g], axis=1), deviation[:, None, None] * np.concatenate([u, u], axis=1)
        )
        # gradient noise comes with v_i: second moment p (scale noise)², independent over coordinates
        sigma = np.repeat(scale * np.sqrt(p) * dynamics.noise, n)
        written = np.stack([y.ravel(), g.ravel()], axis=1)
        noise = Fluctuations(
            np.full((m * n, 1), one_in), written, np.broadcast_to(sigma[:, None, None], (m * n, 2, 1))
        )
        return Stage(csr_matrix(mean), (idle, noise))

    def _links(self, network: Network, p_hat: Floats, eta: Floats) -> Stage:
        """(x, y, g, 1) -> (x⁺, z⁺[, h⁺], 1) by the draw of the links, the same for A^(k) and B^(k)."""
        n, links, eye, size = self.n, Links.of(network, p_hat), np.eye(self.n), self.m * self.n
        x, y, g = self._block(0), self._block(1), self._block(2)
        A, B = (matrix.toarray() for matrix in expected_matrices(network, p_hat))
        mean = np.zeros((self.blocks * size + 1, 3 * size + 1))
        mean[-1, -1] = 1
        mean[:size, :size] = np.kron(A, eye)
        mean[:size, size : 2 * size] = np.kron(-eta[:, None] * B, eye)
        mean[size : 2 * size, size : 2 * size] = np.kron(B, eye)
        mean[y.ravel(), g.ravel()] -= 1
        if self.blocks == 3:
            mean[g.ravel(), g.ravel()] = 1
        # a working link gives x_i: a(x_j - x_i) - η_i b y_j, x_j: η_j b y_j, z_i: b y_j, z_j: -b y_j
        i, j, a, b = links.i, links.j, links.a, links.b
        local = np.zeros((len(i), 4, 3))
        local[:, 0] = np.stack([-a, a, -eta[i] * b], axis=1)
        local[:, 1:, 2] = np.stack([eta[j] * b, b, -b], axis=1)
        local *= np.sqrt(links.variance)[:, None, None]
        maps = np.einsum("lrc,ab->lracb", local, eye).reshape(len(i), 4 * n, 3 * n)
        reads = np.concatenate([x[i], x[j], y[j]], axis=1)
        writes = np.concatenate([x[i], x[j], y[i], y[j]], axis=1)
        return Stage(csr_matrix(mean), (Fluctuations(reads, writes, maps),))

    # --- moments -----------------------------------------------------------------------------------
    def second_moment(self, S: Floats) -> Floats:
        """One round of E[ssᵀ], s with the trailing 1, on Σz = 0."""
        moment = self.link_stage.second_moment(self.client_stage.second_moment(S))
        self.project(moment)
        self.project(moment.T)
        return moment

    def project(self, rows: Floats) -> None:
        """Centre z over clients, in place."""
        z = rows[self.size : 2 * self.size].reshape(self.m, self.n, -1)
        rows[self.size : 2 * self.size] = (z - z.mean(0)).reshape(self.size, -1)

    def homogeneous(self, S: Floats) -> Floats:
        """One round of E[ssᵀ] for the difference of two runs with the same draws: no constants."""
        whole = np.zeros((len(S) + 1, len(S) + 1))
        whole[:-1, :-1] = S
        return self.second_moment(whole)[:-1, :-1]

    def mean_radius(self) -> float:
        M = (self.link_stage.mean @ self.client_stage.mean).toarray()[:-1, :-1]
        self.project(M)
        self.project(M.T)
        return float(np.abs(np.linalg.eigvals(M)).max())

    def mean_square_radius(self) -> float:
        start = np.eye(self.states)
        self.project(start)
        return spectral_radius(self.homogeneous, start)

    def source(self) -> Floats:
        """What a round adds to E[ssᵀ] at stationarity: E[s] = 0, so the constant enters by its square."""
        constant = np.zeros((self.states + 1, self.states + 1))
        constant[-1, -1] = 1
        return self.second_moment(constant)[:-1, :-1]

    def variance(self, source: Floats) -> float:
        S = stationary_moment(self.homogeneous, source)
        return float(np.trace(S[: self.size, : self.size]) / self.m)

    def curve(self, x0: Floats, rounds: int) -> Floats:
        size = self.size
        x = x0[:, self.coordinates] - self.limit
        state = [x.ravel(), (self.mu[:, None] * self.d).ravel()]  # y⁰ = g⁰, so z⁰ = 0
        if self.blocks == 3:
            state.append(-self.d.ravel())  # no gradient yet
        s = np.concatenate([*state, [1.0]])
        S = np.outer(s, s)
        bias = np.tile(self.limit - self.optimum, self.m)
        errors = []
        for _ in range(rounds + 1):
            square = np.trace(S[:size, :size]) + 2 * bias @ S[:size, -1] + bias @ bias
            errors.append(square / self.m)
            S = self.second_moment(S)
        return np.array(errors)


def _quadratics(m: int, H: ArrayLike, c: ArrayLike) -> tuple[Floats, Floats]:
    centres = np.asarray(c, dtype=np.float64)
    centres = centres[:, None] if centres.ndim == 1 else centres
    hessians = np.asarray(H, dtype=np.float64)
    hessians = hessians[:, None] if hessians.ndim == 1 else hessians
    n = centres.shape[-1]
    if hessians.ndim == 2:
        hessians = hessians[:, :, None] * np.eye(n)
    if hessians.shape != (m, n, n) or centres.shape != (m, n):
        raise InvalidInput(
            f"H must be ({m}, n, n) and c ({m}, n) for {m} clients, got {np.shape(H)} and {np.shape(c)}; "
            "give one entry per client."
        )
    if not np.allclose(hessians, hessians.swapaxes(1, 2)):
        worst = int(np.abs(hessians - hessians.swapaxes(1, 2)).max((1, 2)).argmax())
        raise InvalidInput(f"H must be symmetric, but H[{worst}] is not; use (H + H.T) / 2.")
    return hessians, centres
