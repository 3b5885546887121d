"""Exact mean and mean square of Spod-GT on quadratics F_i(x) = ½(x-c_i)ᵀH_i(x-c_i).

    y½ = B^(k) y;  x⁺ = A^(k) x - η y½;  y⁺ = y½ + g⁺ - g,
    g = v ⊙ ∇F(x) (zero), v ⊙ ∇F(x)/p (importance), or where(v, ∇F(x), last g) (memory),

v and the links independent Bernoulli draws, one draw per link for both A^(k) and B^(k).

The state is (x, z) with z = y - g, and the last gradient h for memory. A round first draws v and
turns (x, z, h) into (x, y, g), then draws the links and turns (x, y, g) into (x⁺, z⁺ = y½ - g, h⁺ =
g). Both are stages of `moments`. Deviations are from the mean limit: x from x∞, h from d = ∇F(x∞),
z from -E[g].

Σy = Σg, that is Σz = 0, is kept by every draw. Without it a state would also have the directions Σz
!= 0, which no run reaches and on which the recursion is the identity: an eigenvalue one that is not
a property of the method. So every operator here is projected on Σz = 0.
"""

from __future__ import annotations

import math
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
from spodgt.theory.graph import expected_matrices, per_client, perron_vectors, probabilities
from spodgt.theory.moments import Fluctuations, Stage, spectral_radius, stationary_moment
from spodgt.types import Floats, Ints

MOST_EXACT = 50  # clients times coupled parameters of an analysis that takes seconds


class Dynamics:
    """Exact moments of Spod-GT on quadratics under independent Bernoulli clients and links.

    Coordinates that no H_i couples are treated apart, so diagonal H of any size cost little; a
    coupled block of n coordinates costs as much as n times as many clients. Step sizes are one
    number or (clients,).

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
        self.network = network
        self.rule = rule
        self.p = probabilities("p", p, network.clients)
        self.p_hat = probabilities("p_hat", p_hat, network.links)
        self.H, self.c = _quadratics(network.clients, H, c)
        self.noise = per_client("noise", noise, network.clients, zero=True)
        # μ_i: how much of client i's gradient an average round counts
        self.mean_weight = self.p if rule == "zero" else np.ones_like(self.p)
        for weight, what in ((np.ones_like(self.p), "H"), (self.mean_weight, "p_i H_i")):
            if not np.linalg.eigvalsh(_curvature(self.H, weight))[0] > 0:
                raise InvalidInput(
                    f"the sum of {what} over clients must be positive definite; "
                    "add curvature to some client."
                )

    # --- limits ---
    @cached_property
    def optimum(self) -> Floats:
        """(n,) minimiser of Σ F_i."""
        return _minimiser(self.H, self.c, np.ones_like(self.p))

    @cached_property
    def limit(self) -> Floats:
        """(n,) minimiser of Σ μ_i F_i: the fixed point of the mean dynamics."""
        return _minimiser(self.H, self.c, self.mean_weight)

    @property
    def bias(self) -> Floats:
        """(n,) shift of the mean limit by idle clients: limit minus optimum."""
        return self.limit - self.optimum

    # --- rates and errors ---
    def mean_radius(self, step_size: ArrayLike) -> float:
        """Spectral radius of E[s⁺] as a function of E[s] on Σz = 0, with `step_size` η."""
        return max(_Part(self, step_size, first).mean_radius() for first, *_ in self._alike)

    def mean_square_radius(self, step_size: ArrayLike) -> float:
        """Spectral radius of E[s⁺s⁺ᵀ] as a function of E[ssᵀ] on Σz = 0; stable if below one.

        Args:
            step_size: η, one number or (clients,).
        """
        return max(_Part(self, step_size, first).mean_square_radius() for first, *_ in self._alike)

    def variance(self, step_size: ArrayLike) -> float:
        """Stationary E‖x - limit‖² / clients; inf if not mean-square stable.

        `Failed` where the `step_size` is so close to the stability limit that no solver converges.
        """
        if self.mean_square_radius(step_size) >= 1:
            return float("inf")
        total = 0.0
        for same in self._alike:
            parts = [_Part(self, step_size, own) for own in same]
            total += parts[0].variance(np.sum([part.source() for part in parts], axis=0))
        return total

    def floor(self, step_size: ArrayLike) -> float:
        """Stationary E‖x - optimum‖² / clients = variance + ‖bias‖²; inf if `step_size` is unstable."""
        return self.variance(step_size) + float(self.bias @ self.bias)

    def curve(self, step_size: ArrayLike, x0: ArrayLike, rounds: int) -> Floats:
        """(rounds + 1,) exact E‖x_k - optimum‖² / clients.

        Args:
            step_size: η, one number or (clients,).
            x0: Initial models, (n,) or (clients, n).
            rounds: Length of the curve.
        """
        m, n = self.c.shape
        x = np.broadcast_to(np.asarray(x0, dtype=np.float64).reshape(-1, n), (m, n))
        parts = (_Part(self, step_size, own) for same in self._alike for own in same)
        return np.asarray(np.sum([part.curve(x, rounds) for part in parts], axis=0))

    def largest_stable_step(self, tolerance: float = 1e-5) -> float:
        """The common step size with mean-square radius one, with a relative `tolerance`."""

        def log_radius(log_step: float) -> float:  # logarithms: radii grow steeply above the limit
            return float(np.log(max(self.mean_square_radius(np.exp(log_step)), 1e-300)))

        phi, pi = perron_vectors(self.network, self.p_hat)
        steepest = np.linalg.eigvalsh(_curvature(self.H, self.mean_weight))[-1]
        high = float(np.log(2 / (phi @ pi * steepest)))  # where plain descent on Σ μF would break
        while log_radius(high) < 0:
            high += math.log(2)
        low = high - math.log(2)
        while log_radius(low) >= 0:
            low, high = low - math.log(2), low
        return float(np.exp(brentq(log_radius, low, high, xtol=tolerance)))

    def fastest_step(self, largest: float | None = None) -> float:
        """The step size with the smallest mean-square radius; `largest`: the largest stable one."""
        top = float(np.log(largest or self.largest_stable_step()))
        found = minimize_scalar(
            lambda u: self.mean_square_radius(np.exp(u)),
            bounds=(top - 7, top),
            method="bounded",
            options={"xatol": 0.05},  # the radius is flat there
        )
        return float(np.exp(found.x))

    @cached_property
    def _alike(self) -> list[list[Ints]]:
        """Groups of coordinates that no H_i couples, which evolve independently.

        Parts of equal curvature are in one list: they share one linear system, and so their radii.
        """
        _, label = connected_components(np.any(self.H != 0, axis=0), directed=False)
        groups: dict[bytes, list[Ints]] = {}
        for group in range(label.max() + 1):
            own = np.flatnonzero(label == group)
            groups.setdefault(self.H[:, own][:, :, own].tobytes(), []).append(own)
        return list(groups.values())


class _Part:
    """The recursion on some coordinates, as two stages on (x, z[, h], 1); 1 is for constants."""

    def __init__(self, dynamics: Dynamics, step_size: ArrayLike, coordinates: Ints) -> None:
        m, n = self.m, self.n = dynamics.network.clients, len(coordinates)
        self.dynamics = dynamics
        self.coordinates = coordinates
        self.memory = dynamics.rule == "memory"
        self.H = dynamics.H[:, coordinates][:, :, coordinates]
        self.limit = dynamics.limit[coordinates]
        self.d = np.einsum("iab,ib->ia", self.H, self.limit - dynamics.c[:, coordinates])
        self.size = m * n
        self.states = (3 if self.memory else 2) * self.size
        # (clients, n) positions in a state: models, z or trackers, last or present gradients
        self.x, self.y, self.g = np.arange(3 * self.size).reshape(3, m, n)
        self.client_stage = self._clients()
        self.link_stage = self._links(per_client("step_size", step_size, m))

    def _clients(self) -> Stage:
        """(x, z[, h], 1) -> (x, y, g, 1) by the draw of v."""
        m = self.m
        n = self.n
        p = self.dynamics.p
        H = self.H
        x = self.x
        y = self.y
        g = self.g
        scale = 1 / p if self.dynamics.rule == "importance" else np.ones(m)
        one = np.full((m, 1), self.states)
        mean = np.eye(3 * self.size + 1, self.states + 1)
        mean[2 * self.size :] = 0  # previous gradients, which only memory keeps
        mean[-1, -1] = 1
        for rows in (y, g):
            mean[rows[:, :, None], x[:, None, :]] += (p * scale)[:, None, None] * H
            if self.memory:
                mean[rows.ravel(), g.ravel()] += np.repeat(1 - p, n)
        # the fluctuation of v_i multiplies H_i x_i + d_i, or for memory H_i x_i - h_i
        constant = np.broadcast_to(-np.eye(n), (m, n, n)) if self.memory else self.d[:, :, None]
        maps = (scale * np.sqrt(p * (1 - p)))[:, None, None] * np.concatenate([H, constant], axis=2)
        reads = np.concatenate([x, g if self.memory else one], axis=1)
        idle = Fluctuations(
            reads, np.concatenate([y, g], axis=1), np.concatenate([maps, maps], axis=1)
        )
        # gradient noise of active clients: second moment p (scale noise)², independent over
        # coordinates
        sigma = np.repeat(scale * np.sqrt(p) * self.dynamics.noise, n)
        written = np.stack([y.ravel(), g.ravel()], axis=1)
        noise = Fluctuations(
            np.repeat(one, n, axis=0),
            written,
            np.broadcast_to(sigma[:, None, None], (self.size, 2, 1)),
        )
        return Stage(csr_matrix(mean), (idle, noise))

    def _links(self, eta: Floats) -> Stage:
        """(x, y, g, 1) -> (x⁺, z⁺[, h⁺], 1) by one draw of the links for A^(k) and B^(k)."""
        network = self.dynamics.network
        p_hat = self.dynamics.p_hat
        x = self.x
        y = self.y
        g = self.g
        n = self.n
        eye = np.eye(self.n)
        size = self.size
        A, B = (matrix.toarray() for matrix in expected_matrices(network, p_hat))
        mean = np.eye(self.states + 1, 3 * size + 1)  # h⁺ = g
        mean[-1] = np.eye(3 * size + 1)[-1]
        mean[:size, :size] = np.kron(A, eye)
        mean[:size, size : 2 * size] = np.kron(-eta[:, None] * B, eye)
        mean[size : 2 * size, size : 2 * size] = np.kron(B, eye)
        mean[y.ravel(), g.ravel()] -= 1
        # a working link adds a(x_j - x_i) - η_i b y_j to x_i, η_j b y_j to x_j, b y_j to z_i and
        # -b y_j to z_j
        i = network.receivers
        j = network.senders
        a = network.a
        b = network.b
        local = np.zeros((len(i), 4, 3))
        local[:, 0] = np.stack([-a, a, -eta[i] * b], axis=1)
        local[:, 1:, 2] = np.stack([eta[j] * b, b, -b], axis=1)
        local *= np.sqrt(p_hat * (1 - p_hat))[:, None, None]
        maps = np.einsum("lrc,ab->lracb", local, eye).reshape(len(i), 4 * n, 3 * n)
        reads = np.concatenate([x[i], x[j], y[j]], axis=1)
        writes = np.concatenate([x[i], x[j], y[i], y[j]], axis=1)
        return Stage(csr_matrix(mean), (Fluctuations(reads, writes, maps),))

    # --- moments ---
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
        """The addition of a round to E[ssᵀ] at stationarity (E[s] = 0): the constant's square."""
        constant = np.zeros((self.states + 1, self.states + 1))
        constant[-1, -1] = 1
        return self.second_moment(constant)[:-1, :-1]

    def variance(self, source: Floats) -> float:
        S = stationary_moment(self.homogeneous, source)
        return float(np.trace(S[: self.size, : self.size]) / self.m)

    def curve(self, x0: Floats, rounds: int) -> Floats:
        size = self.size
        x = x0[:, self.coordinates] - self.limit
        z = self.dynamics.mean_weight[:, None] * self.d  # y⁰ = g⁰, so z⁰ = 0
        h = -self.d if self.memory else self.d[:0]  # no gradient yet
        s = np.concatenate([x.ravel(), z.ravel(), h.ravel(), [1.0]])
        S = np.outer(s, s)
        errors = []
        bias = np.tile(self.dynamics.bias[self.coordinates], self.m)
        for _ in range(rounds + 1):
            square = np.trace(S[:size, :size]) + 2 * bias @ S[:size, -1] + bias @ bias
            errors.append(square / self.m)
            S = self.second_moment(S)
        return np.array(errors)


def _curvature(H: Floats, weight: Floats) -> Floats:
    """(n, n) Hessian of Σ w_i F_i."""
    return np.asarray(np.einsum("i,iab->ab", weight, H))


def _minimiser(H: Floats, c: Floats, weight: Floats) -> Floats:
    """(n,) minimiser of Σ w_i F_i."""
    pull = np.einsum("i,iab,ib->a", weight, H, c)
    return np.asarray(np.linalg.solve(_curvature(H, weight), pull))


def _quadratics(m: int, H: ArrayLike, c: ArrayLike) -> tuple[Floats, Floats]:
    """Checked curvatures (m, n, n) and centres (m, n)."""
    hessians = np.asarray(H, dtype=np.float64)
    centres = np.asarray(c, dtype=np.float64)
    if hessians.ndim == 1:
        hessians = hessians[:, None]
    if centres.ndim == 1:
        centres = centres[:, None]
    n = centres.shape[-1]
    if hessians.ndim == 2:
        hessians = hessians[:, :, None] * np.eye(n)
    if hessians.shape != (m, n, n) or centres.shape != (m, n):
        raise InvalidInput(
            f"H must be ({m}, n, n) and c ({m}, n) for {m} clients, "
            f"got {np.shape(H)} and {np.shape(c)}; give one entry per client."
        )
    if not np.allclose(hessians, hessians.swapaxes(1, 2)):
        worst = int(np.abs(hessians - hessians.swapaxes(1, 2)).max((1, 2)).argmax())
        raise InvalidInput(f"H must be symmetric, but H[{worst}] is not; use (H + H.T) / 2.")
    return hessians, centres
