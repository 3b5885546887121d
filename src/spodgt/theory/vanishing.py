"""Corollary "Arbitrarily Small Bound": settings of a run under which the bound vanishes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from spodgt.algorithms.compose.schedules import Constant
from spodgt.errors import InvalidInput
from spodgt.participation import Bernoulli
from spodgt.problems import Learning
from spodgt.types import Floats, Ints


@dataclass(frozen=True, eq=False)
class VanishingSchedule:
    """Step size, participation and batch sizes that let the stationarity gap fall like 1/√rounds.

    Example:
        plan = vanishing_schedule(1000, problem.client_indices.sizes)
        problem = plan.batches(problem)
        train(SpodGT(plan.schedule), problem, network, plan.participation(), rounds=plan.rounds)
    """

    rounds: int  # K
    step_size: float  # η = η₀/√(K+1)
    p: Floats  # (clients,) p_i = 1 - idleness/√(K+1)
    batch_size: Ints  # (clients,) B_i = D_i/(1 + D_i/(batch √(K+1))), rounded up

    @property
    def schedule(self) -> Constant:
        """The step size as a schedule: constant, because it depends on K and not on the round."""
        return Constant(self.step_size)

    def participation(self, p_hat: float | Floats = 1.0) -> Bernoulli:
        """Return a participation in which client i computes with probability p_i.

        Args:
            p_hat: probability that a link works (not restricted by the corollary); one number or
                (links,).
        """
        return Bernoulli(self.p, p_hat)

    def batches(self, problem: Learning) -> Learning:
        """Return the problem with mini-batches of B_i samples.

        Args:
            problem: with as many clients as `samples` had entries.
        """
        return problem.with_batch_size(self.batch_size.tolist())


def vanishing_schedule(
    rounds: int,
    samples: ArrayLike,
    *,
    step_size: float = 1.0,
    idleness: ArrayLike = 0.5,
    batch: float = 1.0,
) -> VanishingSchedule:
    """Plan a run; `step_size`, `idleness` and `batch` are constants that the corollary leaves open.

    The batch sizes are those for which the sampling variance (1 - B/D)/B is at most 1/(batch
    √(K+1)).

    Args:
        rounds: K, the length of the run.
        samples: D_i, samples that each client holds, (clients,).
        step_size: η₀, positive.
        idleness: 1 - p_i of a run of no rounds, in [0, 1); one number or (clients,).
        batch: positive; the larger, the larger the mini-batches.
    """
    D = np.atleast_1d(np.asarray(samples))
    idle = np.broadcast_to(np.asarray(idleness, dtype=np.float64), D.shape)
    if rounds < 0:
        raise InvalidInput(f"rounds must be at least 0, got {rounds}; use rounds=1000.")
    if not (D >= 1).all():
        raise InvalidInput(
            f"samples must be at least 1 for every client, got {D.min()}; remove the client."
        )
    if not ((idle >= 0) & (idle < 1)).all():
        raise InvalidInput(f"idleness must be in [0, 1), got {idleness!r}; use idleness=0.5.")
    for name, value in {"step_size": step_size, "batch": batch}.items():
        if not (value > 0 and math.isfinite(value)):
            raise InvalidInput(f"{name} must be positive and finite, got {value}; use {name}=1.0.")
    root = math.sqrt(rounds + 1)
    # reduced by 1e-12 before rounding up, so that exact integers stay as they are
    B = np.ceil(D / (1 + D / (batch * root)) * (1 - 1e-12)).astype(np.int64)
    return VanishingSchedule(
        rounds, step_size / root, 1 - idle / root, np.clip(B, 1, D.astype(np.int64))
    )
