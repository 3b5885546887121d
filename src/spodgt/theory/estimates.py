"""Estimates of the constants of the assumptions (`constants.Data`) for every client.

They are taken at points of steepest descent on F from the initial model. The assumptions are about
all x, so an estimate can refute a condition, and suggest that one holds, but not prove it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from spodgt import rng
from spodgt.errors import InvalidInput
from spodgt.problems import Learning, Quadratic
from spodgt.problems.data.samples import ClientIndices
from spodgt.record.run_folder import plain
from spodgt.theory.constants import Data
from spodgt.theory.curvature import largest_eigenvalues
from spodgt.types import Floats, Problem

LETTERS = {"L": "L", "sigma0": "σ₀", "sigma1": "σ₁", "delta0": "δ₀", "delta1": "δ₁"}
Method = Literal["exact", "power iteration", "secants"]
ENDLESS = 1e15  # samples of a client with independent noise: (1 - B/D)/B is one for B = 1
_BOOTSTRAP_SAMPLES = 400  # bootstrap samples
_BLOCK_NUMBERS = 2**23  # in one block of single-sample gradients
_MIN_SECANT = 1e-3  # of the longest one: shorter secants are rounding error
_PIECEWISE = (
    "the loss is piecewise linear: its Hessian is zero almost everywhere and its gradient jumps, "
    "so no L_i bounds all x"
)


@dataclass(frozen=True, eq=False)
class Estimate:
    """One constant of every client, with an interval of 95 %."""

    value: Floats  # (clients,)
    low: Floats  # (clients,) lower end of the interval
    high: Floats  # infinite where nothing bounds it from above


@dataclass(frozen=True, eq=False)
class Estimates:
    """The constants of the data, and the points at which they were estimated."""

    L: Estimate  # smoothness
    sigma0: Estimate  # noise of a gradient at a stationary point
    sigma1: Estimate  # growth of the noise with |∇F|
    delta0: Estimate  # difference between clients at a stationary point
    delta1: Estimate  # growth of the difference with |∇F|
    samples: Floats  # D: (clients,) samples of a client
    batch: Floats  # B: (clients,) samples in a mini-batch
    curvature: Method  # how L was found
    sigma_excess: Floats  # addition to σ₀² for which the bound holds at every point, at least zero
    delta_excess: Floats  # the same for δ₀²
    gradients: Floats  # (clients, k) ∇F_i at the last point, rotated: inner products are kept
    first_gradients: Floats  # the same at the first point
    losses: Floats  # (points,) F
    gradient_norms: Floats  # (points,) ‖∇F‖
    notes: tuple[str, ...] = ()  # on assumptions that the problem does not meet

    def bounding(self) -> Data:
        """The data of `constants`, with σ₀ and δ₀ raised so that the bounds hold at every point."""
        sigma0 = np.sqrt(self.sigma0.value**2 + self.sigma_excess)
        delta0 = np.sqrt(self.delta0.value**2 + self.delta_excess)
        sigma1 = self.sigma1.value
        delta1 = self.delta1.value
        return Data(self.L.value, sigma0, sigma1, delta0, delta1, self.samples, self.batch)

    def variance(self, point: int) -> Floats:
        """(clients,) E‖mini-batch gradient - ∇F_i‖² at a `point` of the descent, as fitted."""
        one = self.sigma0.value**2 + self.sigma1.value**2 * self.gradient_norms[point] ** 2
        return np.asarray((1 - self.batch / self.samples) / self.batch * one)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without the gradients."""
        facts: dict[str, Any] = {}
        for name, value in vars(self).items():
            if name in LETTERS:
                value = vars(value)
            if not name.endswith("gradients"):
                facts[name] = plain(value)
        return facts


def estimate(
    problem: Problem,
    *,
    start: Tensor | None = None,
    seed: int = 0,
    points: int = 16,
    draws: int = 32,
    most: int | None = None,
) -> Estimates:
    """Estimate the constants of a `Learning` problem; those of a `Quadratic` are exact.

    Args:
        problem: `Learning` or `Quadratic`, divided among the clients.
        start: The initial model (parameters,). Default: that of the problem for `seed`.
        seed: Seed of the random samples.
        points: Number of points of the descent, at least 3.
        draws: Number of single-sample gradients per client and point, at least 2.
        most: Number of samples per client, at least 2. Default: all.
    """
    if not isinstance(problem, Learning | Quadratic):
        raise InvalidInput(
            f"problem must be Learning or Quadratic, got {type(problem).__name__}; "
            "use spodgt.Quadratic."
        )
    start = problem.start(seed)[0] if start is None else start
    if isinstance(problem, Quadratic):
        return _exact(problem, start)
    for name, value, least in (("points", points, 3), ("draws", draws, 2), ("most", most or 2, 2)):
        if value < least:
            raise InvalidInput(f"{name} must be at least {least}, got {value}; use {name}={least}.")
    return _Descent(problem, seed, draws, most).estimates(start, points)


# --- quadratics ---
def _exact(problem: Quadratic, start: Tensor) -> Estimates:
    """With ∇F_i = M_i ∇F + d_i, M_i = H_i H⁻¹: δ₁² = 2‖M_i‖² and the smallest δ₀ for it."""
    H = problem.H.double().cpu().numpy()
    c = problem.c.double().cpu().numpy()
    m, n = c.shape
    mean = H.mean(0)
    if not np.linalg.eigvalsh(mean)[0] > 0:
        raise InvalidInput(
            "the sum of H over clients must be positive definite; add curvature to some client."
        )
    optimum = np.linalg.solve(mean, np.einsum("iab,ib->a", H, c) / m)
    d = np.einsum("iab,ib->ia", H, optimum - c)
    M = H @ np.linalg.inv(mean)
    delta1_square = 2 * np.linalg.norm(M, 2, axis=(1, 2)) ** 2
    # sup over u of ‖Mu + d‖² - δ₁²‖u‖² = dᵀ(I - MMᵀ/δ₁²)⁻¹d
    within = np.eye(n) - M @ M.swapaxes(1, 2) / delta1_square[:, None, None]
    delta0_square = np.einsum("ia,ia->i", d, np.linalg.solve(within, d[:, :, None])[:, :, 0])
    x0 = start.double().cpu().numpy()
    first = np.einsum("iab,ib->ia", H, x0 - c)
    losses = [np.einsum("ia,iab,ib->", x - c, H, x - c) / (2 * m) for x in (x0, optimum)]
    norms = [np.linalg.norm(g.mean(0)) for g in (first, d)]
    zeros = np.zeros(m)
    ones = np.ones(m)
    return Estimates(
        _known(np.linalg.eigvalsh(H)[:, -1]), _known(np.full(m, problem.noise * np.sqrt(n))),
        _known(zeros), _known(np.sqrt(delta0_square)), _known(np.sqrt(delta1_square)),
        samples=ENDLESS * ones, batch=ones, curvature="exact",
        sigma_excess=zeros, delta_excess=zeros, gradients=d,
        first_gradients=first, losses=np.array(losses), gradient_norms=np.array(norms),
    )  # fmt: skip


def _known(value: Floats) -> Estimate:
    return Estimate(value, value, value)


# --- learning ---
class _Descent:
    """Steepest descent on a learning problem, with estimates at the points it visits."""

    def __init__(self, problem: Learning, seed: int, draws: int, most: int | None) -> None:
        self.full_problem = problem
        self.seed = seed
        self.draws = draws
        self.problem = problem if most is None else _thinned(problem, seed, most)
        self.all_clients = np.arange(problem.clients)
        self.notes: list[str] = []
        used = self.problem.client_indices.sizes
        all_of = problem.client_indices.sizes
        if (used < all_of).any():
            self.notes.append(
                f"from {used.max()} samples a client at most, drawn from up to {all_of.max()}"
            )
        if problem.data.augment:
            self.notes.append("from images as they are: the noise of augmentation is not counted")

    def estimates(self, start: Tensor, points: int) -> Estimates:
        xs, losses, gradients = self._descend(start, points)
        norms = np.stack([g.norm(dim=1).numpy() for g in gradients], axis=1).astype(np.float64)
        mean = np.array([float(g.mean(0).norm()) for g in gradients])
        spread = np.stack([self._variances(x, k) for k, x in enumerate(xs)], axis=1)
        sigma0, sigma1, sigma_excess = self._fit(mean**2, spread, "sigma")
        delta0, delta1, delta_excess = self._fit(mean**2, norms**2, "delta")
        L, curvature = self._lipschitz(xs, gradients)
        return Estimates(
            L,
            sigma0,
            sigma1,
            delta0,
            delta1,
            samples=self.full_problem.client_indices.sizes.astype(np.float64),
            batch=self.full_problem.batches(self.all_clients).astype(np.float64),
            curvature=curvature,
            sigma_excess=sigma_excess,
            delta_excess=delta_excess,
            gradients=_rotated(gradients[-1]),
            first_gradients=_rotated(gradients[0]),
            losses=np.array(losses),
            gradient_norms=mean,
            notes=tuple(self.notes),
        )

    def _descend(
        self, start: Tensor, points: int
    ) -> tuple[list[Tensor], list[float], list[Tensor]]:
        """Models, losses F and gradients ∇F_i along steepest descent with a line search."""
        x = torch.cat([start.cpu(), self.full_problem.statistics(self.seed)[0]]).float()
        loss, g = self._full(x)
        xs = [x]
        losses = [loss]
        gradients = [g]
        t = 1.0
        while len(xs) < points:
            direction = g.mean(0)
            slope = float(direction.square().sum())
            if not slope > 0:
                self.notes.append(
                    f"the descent ended after {len(xs)} points: the gradient is zero there"
                )
                break
            for _ in range(30):
                after = x.clone()
                after[: self.problem.parameters] -= t * direction
                loss, g = self._full(after)
                if loss <= losses[-1] - 0.1 * t * slope:
                    break
                t /= 2
            else:
                self.notes.append(
                    f"the descent ended after {len(xs)} points: no step reduces the loss there"
                )
                break
            x = after
            t = 2 * t
            xs.append(x)
            losses.append(loss)
            gradients.append(g)
        return xs, losses, gradients

    def _full(self, x: Tensor) -> tuple[float, Tensor]:
        losses, g = self.problem.full(x.expand(len(self.all_clients), -1), self.all_clients)
        return float(losses.double().mean()), g

    def _variances(self, x: Tensor, k: int) -> Floats:
        """(clients,) variance of single-sample gradients, with the divisor D - 1 of (1 - B/D)/B."""
        problem = self.problem
        variances = np.zeros(len(self.all_clients))
        draw = rng.generator(self.seed, "estimates", k)
        block = max(1, _BLOCK_NUMBERS // self.problem.parameters)
        for i in self.all_clients:
            n = min(self.draws, len(problem.client_indices[i]))
            if n < 2:
                continue  # a single sample does not vary
            chosen = torch.from_numpy(draw.choice(problem.client_indices[i], n, replace=False))
            total = torch.zeros(problem.parameters, dtype=torch.float64)
            squares = 0.0
            for rows in torch.split(chosen, block):
                inputs, targets = (t[:, None] for t in problem.samples.take(rows, x.dtype))
                _, gradients = problem.model.engine.losses_and_gradients(
                    x.repeat(len(rows), 1), inputs, targets, None
                )
                g = gradients.double()
                total += g.sum(0)
                squares += float(g.square().sum())
            variances[i] = max(0.0, squares - float(total.square().sum()) / n) / (n - 1)
        if problem.loss_scales is not None:
            variances *= problem.loss_scales**2
        return variances

    def _fit(
        self, square: Floats, response: Floats, stream: str
    ) -> tuple[Estimate, Estimate, Floats]:
        """response ≈ a + b ‖∇F‖² with a, b >= 0 per client; 95 % intervals by resampling points."""
        values = fit(square, response)
        draw = rng.generator(self.seed, f"estimates:{stream}")
        n = len(square)
        again = draw.integers(0, n, (_BOOTSTRAP_SAMPLES, n))
        both = []
        for value, resampled in zip(values, fit(square[again], response[:, again]), strict=True):
            low, high = np.sqrt(np.quantile(resampled, [0.025, 0.975], axis=1))
            root = np.sqrt(value)
            both.append(Estimate(root, np.minimum(low, root), np.maximum(high, root)))
        fitted = values[0][:, None] + values[1][:, None] * square
        return both[0], both[1], np.maximum(0.0, (response - fitted).max(1))

    def _lipschitz(self, xs: list[Tensor], gradients: list[Tensor]) -> tuple[Estimate, Method]:
        try:
            found = largest_eigenvalues(self.problem, [xs[0], xs[len(xs) // 2], xs[-1]], self.seed)
            reason = _PIECEWISE
        except NotImplementedError:
            found = None
            reason = "torch cannot differentiate this loss twice"
        if found is None:
            instead = "L is the largest slope of the gradient between points of the descent"
            self.notes.append(f"{reason}; {instead}")
            return self._secants(xs, gradients), "secants"
        values, residuals = found
        L = low = values.max(0)
        high = L + np.take_along_axis(residuals, values.argmax(0)[None], 0)[0]
        flat = L <= 0
        if flat.any():
            self.notes.append("a client has no curvature at these points; its L is from secants")
            other = self._secants(xs, gradients)
            pairs = ((other.value, L), (other.low, low), (other.high, high))
            L, low, high = (np.where(flat, secant, power) for secant, power in pairs)
        return Estimate(L, low, high), "power iteration"

    def _secants(self, xs: list[Tensor], gradients: list[Tensor]) -> Estimate:
        """Largest ‖∇F_i(x) - ∇F_i(x')‖ / ‖x - x'‖ over pairs; interval: median to ∞."""
        pairs = list(itertools.combinations(zip(xs, gradients, strict=True), 2))
        distance = np.array([float((y.double() - x.double()).norm()) for (x, _), (y, _) in pairs])
        enough = distance > _MIN_SECANT * distance.max(initial=0.0)
        if not enough.any():
            raise InvalidInput(
                "the gradient at the initial model must not be zero to estimate L; "
                "use another start."
            )
        slopes = np.stack([(h - g).double().norm(dim=1).numpy() for (_, g), (_, h) in pairs])
        rates = slopes[enough] / distance[enough, None]
        value = rates.max(0)
        value = np.where(value > 0, value, max(float(value.max()), 1e-12))  # for constant gradients
        return Estimate(
            value, np.minimum(np.median(rates, axis=0), value), np.full_like(value, np.inf)
        )


def fit(square: Floats, response: Floats) -> tuple[Floats, Floats]:
    """Non-negative least squares of response (…, points) on (1, square), in closed form."""
    x, y = np.broadcast_arrays(square, response)
    mean_x = x.mean(-1)
    mean_y = y.mean(-1)
    dx = x - mean_x[..., None]
    dy = y - mean_y[..., None]
    spread = (dx**2).mean(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.where(spread > 1e-14 * mean_x**2, (dx * dy).mean(-1) / spread, 0.0)
        through_zero = (x * y).mean(-1) / (x * x).mean(-1)
    level = mean_y - slope * mean_x
    # outside the quadrant the best point is on one of its two sides
    through_zero = np.where(np.isfinite(through_zero), through_zero, 0.0)
    by_slope = ((y - through_zero[..., None] * x) ** 2).mean(-1)
    inside = (slope >= 0) & (level >= 0)
    steep = by_slope < (dy**2).mean(-1)
    a = np.where(inside, level, np.where(steep, 0.0, mean_y))
    b = np.where(inside, slope, np.where(steep, through_zero, 0.0))
    return np.maximum(a, 0.0), np.maximum(b, 0.0)


def _rotated(g: Tensor) -> Floats:
    """(clients, at most clients): coordinates with the same inner products as the gradients."""
    values, vectors = np.linalg.eigh((g.double() @ g.double().T).numpy())
    keep = values > 1e-12 * max(values[-1], 1e-300)
    return np.asarray(vectors[:, keep] * np.sqrt(values[keep]))


def _thinned(problem: Learning, seed: int, most: int) -> Learning:
    """The same problem on at most `most` samples of each client."""
    parts = [problem.client_indices[i] for i in range(problem.clients)]
    for i, part in enumerate(parts):
        if len(part) > most:
            draw = rng.generator(seed, "estimates:thin", i)
            parts[i] = np.sort(draw.choice(part, most, replace=False))
    return problem.with_client_indices(ClientIndices.from_parts(parts))
