"""The corollaries as tools: schedules that the analysis allows without more checks."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from spodgt.algorithms.compose.schedules import Constant
from spodgt.errors import InvalidInput
from spodgt.network.recipes import Floats, Ints
from spodgt.participation import Bernoulli
from spodgt.problems import Learning
from spodgt.theory.record import Infeasible, Number


@dataclass(frozen=True, eq=False)
class VanishingSchedule:
    """A step size, participation and batch sizes under which the stationarity gap falls like 1/√rounds.

    plan = vanishing_schedule(1000, problem.holdings.sizes)
    train(SpodGT(plan.schedule), plan.batches(problem), network, plan.participation(), rounds=plan.rounds)
    """

    rounds: int
    step_size: float  # η = η₀/√(K+1)
    p: Floats  # (clients,) p_i = 1 - idleness/√(K+1)
    batch_size: Ints  # (clients,) B_i = D_i/(1 + D_i/(batch √(K+1))), rounded up

    @property
    def schedule(self) -> Constant:
        """The step size of every round: it depends on K, not on the round."""
        return Constant(self.step_size)

    def participation(self, p_hat: ArrayLike = 1.0) -> Bernoulli:
        """Clients compute with chance p; links, of which the corollary asks nothing, work with chance p̂."""
        return Bernoulli(self.p, p_hat)

    def batches(self, problem: Learning) -> Learning:
        """The problem with these mini-batches."""
        return problem.with_batch_size(self.batch_size.tolist())


def vanishing_schedule(
    rounds: int, samples: ArrayLike, *, step_size: float = 1.0, idleness: ArrayLike = 0.5, batch: float = 1.0
) -> VanishingSchedule:
    """Corollary "Arbitrarily Small Bound" for a run of `rounds` = K rounds on clients with `samples` each.

    `step_size`, `idleness` and `batch` are the constants that its O(·) leave open. The batch sizes are those
    for which the sampling variance (1 - B/D)/B is 1/(batch √(K+1)) at most, whatever the number of samples.
    """
    D = np.atleast_1d(np.asarray(samples))
    idle = np.broadcast_to(np.asarray(idleness, dtype=np.float64), D.shape)
    if rounds < 0:
        raise InvalidInput(f"rounds is {rounds}, but must be zero or more.")
    if not (D >= 1).all():
        raise InvalidInput(f"samples has a client with {D.min()}; give every client at least one sample.")
    if not ((idle >= 0) & (idle < 1)).all():
        raise InvalidInput(f"idleness is {idleness!r}, but 1 - p_i of a run of no rounds must lie in [0, 1).")
    for name, value in {"step_size": step_size, "batch": batch}.items():
        if not (value > 0 and math.isfinite(value)):
            raise InvalidInput(f"{name} is {value}, but must be positive.")
    root = math.sqrt(rounds + 1)
    # a hair is taken off before rounding up, so that exact integers stay what they are
    B = np.ceil(D / (1 + D / (batch * root)) * (1 - 1e-12)).astype(np.int64)
    return VanishingSchedule(rounds, step_size / root, 1 - idle / root, np.clip(B, 1, D.astype(np.int64)))


@dataclass(frozen=True)
class RateCheck:
    """Whether a schedule of step sizes keeps ρ(Ψ) < 1 in every round."""

    nonincreasing: bool
    first: float  # the largest step size of round 0
    bound: Number  # Proposition lr
    holds: bool


def check_nonincreasing(step_sizes: ArrayLike, bound: Number) -> RateCheck:
    """Corollary nonincreasing: step sizes that never grow need to meet Proposition lr in round 0 only.

    `step_sizes` is (rounds,) or (rounds, clients); `bound` is `Constants.lr_bound_prop1`.
    """
    eta = np.asarray(step_sizes, dtype=np.float64)
    if eta.ndim not in (1, 2) or not eta.size or not ((eta >= 0) & np.isfinite(eta)).all():
        raise InvalidInput(
            f"step_sizes of shape {eta.shape} must be non-negative, (rounds,) or (rounds, clients)."
        )
    nonincreasing = bool((np.diff(eta, axis=0) <= 0).all())
    first = float(eta[0].max())
    below = not isinstance(bound, Infeasible) and first < bound
    return RateCheck(nonincreasing, first, bound, nonincreasing and below)
