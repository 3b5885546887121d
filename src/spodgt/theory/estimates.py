"""The constants of the assumptions, estimated from the data: L, σ₀, σ₁, δ₀, δ₁ of every client.

    ‖∇F_i(x) - ∇F_i(x')‖ <= L_i ‖x - x'‖                                            Assumption lipschitz
    E‖mini-batch gradient - ∇F_i(x)‖² <= (1 - B/D)/B (σ₀² + σ₁² ‖∇F(x)‖²)            Assumption sgd
    ‖∇F_i(x)‖² <= δ₀² + δ₁² ‖∇F(x)‖²                                                 Assumption graddiv

Points are those that steepest descent on F visits from the initial model. The assumptions speak of all x,
an estimate only of these: it can refute a condition, and suggest that one holds, but not prove it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from spodgt import rng
from spodgt.errors import InvalidInput
from spodgt.problems import Learning, Quadratic
from spodgt.problems.samples import Holdings
from spodgt.theory.curvature import largest_eigenvalues
from spodgt.theory.inputs import Data
from spodgt.types import Floats

Method = Literal["exact", "power iteration", "secants"]
ENDLESS = 1e15  # samples of a client whose noise is drawn afresh: (1 - B/D)/B is one for B = 1
_RESAMPLED = 400  # bootstrap samples
_NUMBERS = 2**23  # in one block of single-sample gradients
_SHORTEST = 1e-3  # of the whole way: shorter secants are rounding error


@dataclass(frozen=True, eq=False)
class Estimate:
    """One constant of every client, and between what it is likely to lie."""

    value: Floats  # (clients,)
    low: Floats
    high: Floats  # infinite where nothing bounds it from above

    def as_dict(self) -> dict[str, Any]:
        return {
            name: [float(v) if np.isfinite(v) else str(v) for v in getattr(self, name)]
            for name in ("value", "low", "high")
        }


@dataclass(frozen=True, eq=False)
class Estimates:
    """What `constants` asks of the data, and where it was looked up."""

    L: Estimate
    sigma0: Estimate
    sigma1: Estimate
    delta0: Estimate
    delta1: Estimate
    samples: Floats  # D
    batch: Floats  # B
    curvature: Method  # how L was found
    sigma_excess: Floats  # to be added to σ₀² for the bound to hold at every point seen, zero or more
    delta_excess: Floats  # the same for δ₀²
    gradients: Floats  # (clients, k) ∇F_i at the last point, rotated: only their inner products count
    first_gradients: Floats  # the same at the first point
    losses: Floats  # (points,) F
    gradient_norms: Floats  # (points,) ‖∇F‖
    notes: tuple[str, ...] = ()

    def bounding(self) -> Data:
        """The data of `constants`, with σ₀ and δ₀ raised until the bounds hold at every point seen."""
        return Data(
            L=self.L.value,
            sigma0=np.sqrt(self.sigma0.value**2 + self.sigma_excess),
            sigma1=self.sigma1.value,
            delta0=np.sqrt(self.delta0.value**2 + self.delta_excess),
            delta1=self.delta1.value,
            samples=self.samples,
            batch=self.batch,
        )

    def as_dict(self) -> dict[str, Any]:
        fitted = {n: getattr(self, n).as_dict() for n in ("L", "sigma0", "sigma1", "delta0", "delta1")}
        plain = ("samples", "batch", "sigma_excess", "delta_excess", "losses", "gradient_norms")
        return (
            {"curvature": self.curvature, "notes": list(self.notes)}
            | fitted
            | {name: getattr(self, name).tolist() for name in plain}
        )


def estimate(
    problem: Any, *, seed: int = 0, points: int = 16, draws: int = 32, most: int | None = None
) -> Estimates:
    """Estimate the constants of a `Learning` problem; those of a `Quadratic` are exact.

    `points` is how many points of the trajectory are looked at, `draws` how many single-sample gradients of
    each client at each of them, `most` how many samples of a client are used at all.
    """
    if isinstance(problem, Quadratic):
        return _exact(problem, seed)
    if not isinstance(problem, Learning):
        raise InvalidInput(f"problem must be Learning or Quadratic, got {type(problem).__name__}.")
    for name, value, least in (("points", points, 3), ("draws", draws, 2), ("most", most or 2, 2)):
        if value < least:
            raise InvalidInput(f"{name} must be at least {least}, got {value}; leave it out.")
    return _Survey(problem, seed, draws, most).estimates(points)


# --- quadratics ----------------------------------------------------------------------------------------
def _exact(problem: Quadratic, seed: int) -> Estimates:
    """With ∇F_i = M_i ∇F + d_i, M_i = H_i H⁻¹: δ₁² = 2‖M_i‖² and the smallest δ₀ that goes with it."""
    H, c = problem.H.double().cpu().numpy(), problem.c.double().cpu().numpy()
    m, n = c.shape
    mean = H.mean(0)
    if not np.linalg.eigvalsh(mean)[0] > 0:
        raise InvalidInput("the sum of H over clients must be positive definite, or no delta bounds all x.")
    optimum = np.linalg.solve(mean, np.einsum("iab,ib->a", H, c) / m)
    d = np.einsum("iab,ib->ia", H, optimum - c)
    M = H @ np.linalg.inv(mean)
    delta1_square = 2 * np.linalg.norm(M, 2, axis=(1, 2)) ** 2
    # sup over u of ‖Mu + d‖² - δ₁²‖u‖² = dᵀ(I - MMᵀ/δ₁²)⁻¹d
    within = np.eye(n) - M @ M.swapaxes(1, 2) / delta1_square[:, None, None]
    delta0_square = np.einsum("ia,ia->i", d, np.linalg.solve(within, d[:, :, None])[:, :, 0])
    x0 = problem.start(seed).double().numpy()[0]
    first = np.einsum("iab,ib->ia", H, x0 - c)
    losses = [np.einsum("ia,iab,ib->", x - c, H, x - c) / (2 * m) for x in (x0, optimum)]
    norms = [np.linalg.norm(g.mean(0)) for g in (first, d)]
    zeros, ones = np.zeros(m), np.ones(m)
    return Estimates(
        _known(np.linalg.eigvalsh(H)[:, -1]),
        _known(np.full(m, problem.noise * np.sqrt(n))),
        _known(zeros),
        _known(np.sqrt(delta0_square)),
        _known(np.sqrt(delta1_square)),
        samples=ENDLESS * ones,
        batch=ones,
        curvature="exact",
        sigma_excess=zeros,
        delta_excess=zeros,
        gradients=d,
        first_gradients=first,
        losses=np.array(losses),
        gradient_norms=np.array(norms),
    )


def _known(value: Floats) -> Estimate:
    return Estimate(value, value, value)


# --- learning ------------------------------------------------------------------------------------------
class _Survey:
    """A descent through a learning problem, looking around."""

    def __init__(self, problem: Learning, seed: int, draws: int, most: int | None) -> None:
        self.whole, self.seed, self.draws = problem, seed, draws
        self.problem = problem if most is None else _thinned(problem, seed, most)
        self.everyone = np.arange(problem.clients)
        self.notes: list[str] = []
        used, all_of = self.problem.holdings.sizes, problem.holdings.sizes
        if (used < all_of).any():
            self.notes.append(f"from {used.max()} samples a client at most, drawn from up to {all_of.max()}")
        if problem.augment:
            self.notes.append("from images as they are: the noise of augmentation is not counted")

    def estimates(self, points: int) -> Estimates:
        xs, losses, gradients = self._descend(points)
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
            samples=self.whole.holdings.sizes.astype(np.float64),
            batch=self.whole.batches(self.everyone).astype(np.float64),
            curvature=curvature,
            sigma_excess=sigma_excess,
            delta_excess=delta_excess,
            gradients=_rotated(gradients[-1]),
            first_gradients=_rotated(gradients[0]),
            losses=np.array(losses),
            gradient_norms=mean,
            notes=tuple(self.notes),
        )

    def _descend(self, points: int) -> tuple[list[Tensor], list[float], list[Tensor]]:
        """Models, losses F and gradients ∇F_i along steepest descent with a line search."""
        x = torch.cat([self.whole.start(self.seed)[0], self.whole.statistics(self.seed)[0]]).float()
        loss, g = self._full(x)
        xs, losses, gradients, t = [x], [loss], [g], 1.0
        while len(xs) < points:
            direction = g.mean(0)
            slope = float(direction.square().sum())
            if not slope > 0:
                self.notes.append(f"the descent ended after {len(xs)} points: the gradient is zero there")
                break
            for _ in range(30):
                after = x.clone()
                after[: self.problem.parameters] -= t * direction
                loss, g = self._full(after)
                if loss <= losses[-1] - 0.1 * t * slope:
                    break
                t /= 2
            else:
                self.notes.append(f"the descent ended after {len(xs)} points: no step goes down from there")
                break
            x, t = after, 2 * t
            xs, losses, gradients = [*xs, x], [*losses, loss], [*gradients, g]
        return xs, losses, gradients

    def _full(self, x: Tensor) -> tuple[float, Tensor]:
        losses, g = self.problem.full(x.expand(len(self.everyone), -1), self.everyone)
        return float(losses.double().mean()), g

    def _variances(self, x: Tensor, k: int) -> Floats:
        """(clients,) variance of the gradient of one sample, with D - 1 below as (1 - B/D)/B asks for."""
        problem, found = self.problem, np.zeros(len(self.everyone))
        draw = rng.generator(self.seed, "estimates", k)
        for i in self.everyone:
            share = problem.holdings[i]
            if len(share) < 2:
                continue  # a single sample does not vary
            chosen = draw.choice(share, min(self.draws, len(share)), replace=False)
            total, squares = torch.zeros(problem.parameters, dtype=torch.float64), 0.0
            block = max(1, _NUMBERS // problem.parameters)
            for rows in torch.split(torch.from_numpy(chosen), block):
                inputs, targets = (t[:, None] for t in problem.samples.take(rows, x.dtype))
                g = problem.engine.grads(x.repeat(len(rows), 1), inputs, targets, None).double()
                total += g.sum(0)
                squares += float(g.square().sum())
            n = len(chosen)
            found[i] = max(0.0, squares - float(total.square().sum()) / n) / (n - 1)
        return found

    def _fit(self, square: Floats, response: Floats, stream: str) -> tuple[Estimate, Estimate, Floats]:
        """response ≈ a + b ‖∇F‖² with a, b >= 0 for every client; intervals of 95 % by resampling points."""
        a, b = fit(square, response)
        draw = rng.generator(self.seed, f"estimates:{stream}")
        again = draw.integers(0, len(square), (_RESAMPLED, len(square)))
        shaken = fit(square[again], response[:, again])
        fitted = a[:, None] + b[:, None] * square
        excess = np.maximum(0.0, (response - fitted).max(1))
        both = []
        for value, values in zip((a, b), shaken, strict=True):
            low, high = np.sqrt(np.quantile(values, [0.025, 0.975], axis=1))
            root = np.sqrt(value)
            both.append(Estimate(root, np.minimum(low, root), np.maximum(high, root)))
        return both[0], both[1], excess

    def _lipschitz(self, xs: list[Tensor], gradients: list[Tensor]) -> tuple[Estimate, Method]:
        some = [xs[0], xs[len(xs) // 2], xs[-1]]
        try:
            found = largest_eigenvalues(self.problem, some, self.seed)
        except NotImplementedError:
            self.notes.append(
                "torch cannot differentiate this loss twice; L is the largest slope of the gradient between "
                "points of the descent, so at least this"
            )
            return self._secants(xs, gradients), "secants"
        if found is None:
            self.notes.append(
                "the loss is piecewise linear: its Hessian is zero almost everywhere and its gradient jumps, "
                "so no L_i bounds all x; L is the largest slope of the gradient between points of the descent"
            )
            return self._secants(xs, gradients), "secants"
        values, residuals = found
        worst = values.argmax(0)
        L, doubt = values.max(0), np.take_along_axis(residuals, worst[None], 0)[0]
        if not (L > 0).all():
            self.notes.append("a client has no curvature where it was looked for; its L is from secants")
            fallback = self._secants(xs, gradients)
            flat = L <= 0
            return Estimate(
                np.where(flat, fallback.value, L),
                np.where(flat, fallback.low, L),
                np.where(flat, fallback.high, L + doubt),
            ), "power iteration"
        return Estimate(L, L, L + doubt), "power iteration"

    def _secants(self, xs: list[Tensor], gradients: list[Tensor]) -> Estimate:
        """‖∇F_i(x) - ∇F_i(x')‖ / ‖x - x'‖ over pairs: the largest, from the median up; nothing is above."""
        models, slopes, lengths = torch.stack(xs).double(), [], []
        for k in range(len(xs)):
            for later in range(k + 1, len(xs)):
                lengths.append(float((models[later] - models[k]).norm()))
                slopes.append((gradients[later] - gradients[k]).double().norm(dim=1).numpy())
        distance = np.array(lengths)
        enough = distance > _SHORTEST * distance.max(initial=0.0)
        if not enough.any():
            raise InvalidInput(
                "the gradient is zero at the initial model, so nothing can be estimated there."
            )
        rates = np.stack(slopes)[enough] / distance[enough, None]
        value = rates.max(0)
        value = np.where(value > 0, value, max(float(value.max()), 1e-12))  # one that never moved
        return Estimate(value, np.minimum(np.median(rates, axis=0), value), np.full_like(value, np.inf))


def fit(square: Floats, response: Floats) -> tuple[Floats, Floats]:
    """Non-negative least squares of response (…, points) on (1, square): two unknowns, so in closed form."""
    x, y = np.broadcast_arrays(square, response)
    mean_x, mean_y = x.mean(-1), y.mean(-1)
    spread = ((x - mean_x[..., None]) ** 2).mean(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = ((x - mean_x[..., None]) * (y - mean_y[..., None])).mean(-1) / spread
        through_zero = (x * y).mean(-1) / (x * x).mean(-1)
    slope = np.where(spread > 1e-14 * mean_x**2, slope, 0.0)
    level = mean_y - slope * mean_x
    # outside the quadrant the best point is on one of its two sides
    through_zero = np.where(np.isfinite(through_zero), through_zero, 0.0)
    by_slope = ((y - through_zero[..., None] * x) ** 2).mean(-1)
    by_level = ((y - mean_y[..., None]) ** 2).mean(-1)
    inside, steep = (slope >= 0) & (level >= 0), by_slope < by_level
    a = np.where(inside, level, np.where(steep, 0.0, mean_y))
    b = np.where(inside, slope, np.where(steep, through_zero, 0.0))
    return np.maximum(a, 0.0), np.maximum(b, 0.0)


def _rotated(g: Tensor) -> Floats:
    """(clients, at most clients): coordinates with the same inner products, so a few numbers tell all."""
    gram = (g.double() @ g.double().T).numpy()
    values, vectors = np.linalg.eigh(gram)
    keep = values > 1e-12 * max(values[-1], 1e-300)
    return np.asarray(vectors[:, keep] * np.sqrt(values[keep]))


def _thinned(problem: Learning, seed: int, most: int) -> Learning:
    """The same problem on at most `most` samples of each client."""
    parts = []
    for i in range(problem.clients):
        share, draw = problem.holdings[i], rng.generator(seed, "estimates:thin", i)
        few = len(share) <= most
        parts.append(share if few else np.sort(draw.choice(share, most, replace=False)))
    return problem.with_holdings(Holdings.of(parts))
