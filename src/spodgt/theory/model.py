"""Quadratics with exact dynamics: the problem itself, or a model of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spodgt.participation.availability import AvailabilityOverride, BernoulliAvailability
from spodgt.problems import Quadratic
from spodgt.runtimes.world import Draw
from spodgt.theory.dynamics import MOST_EXACT
from spodgt.theory.estimates import Estimates
from spodgt.types import Availability, Floats

_EXACT = "The problem is quadratic: this is exact."
_MODEL = (
    "A model of the problem: F_i = L_i |x - c_i|²/2 with the L_i above in every direction, and "
    "with the gradients and the noise found at the last point of the descent. Exact for the "
    "model; for the problem the step sizes are a guide, distances are of this order, and flat "
    "directions are slower."
)


@dataclass(frozen=True, eq=False)
class QuadraticModel:
    """Quadratics F_i(x) = ½(x-c_i)ᵀH_i(x-c_i) with gradient noise."""

    H: Floats  # (clients, n, n), or (clients, n) if diagonal
    c: Floats  # (clients, n)
    noise: Floats  # (clients,) standard deviation of a gradient's coordinate
    exact: bool  # whether it is the problem itself
    text: str  # relation to the problem, in words


def quadratic_model(draw: Draw, estimates: Estimates, *, exact: bool = False) -> QuadraticModel:
    """The quadratics on which an experiment is analysed.

    Args:
        draw: Network and problem.
        estimates: Estimates of the problem's constants.
        exact: Analyse a quadratic problem itself, however large. Default: only a small one.
    """
    m = draw.network.clients
    problem = draw.problem
    if isinstance(problem, Quadratic):
        H = problem.H.double().cpu().numpy()
        c = problem.c.double().cpu().numpy()
        is_coupled = np.any(H * (1 - np.eye(H.shape[1])) != 0)
        size = m * H.shape[1] if is_coupled else m
        if exact or size <= MOST_EXACT:
            return QuadraticModel(H, c, np.full(m, problem.noise), True, _EXACT)
    L = estimates.L.value[:, None]
    g = estimates.gradients
    if not g.shape[1]:
        g = np.zeros((m, 1))
    # with equal curvature in every direction only the inner products of the gradients matter
    noise = np.sqrt(estimates.variance(-1) / g.shape[1])
    return QuadraticModel(np.broadcast_to(L, g.shape), -g / L, noise, False, _MODEL)


def independent_probabilities(availability: Availability) -> tuple[Floats, Floats] | None:
    """p (clients,) and p̂ (links,) if clients and links are drawn independently in every round.

    Args:
        availability: As drawn, or adapted by a method; a method that uses all links has p̂ = 1.

    Returns:
        (p, p̂), or None if the draws are dependent.
    """
    if isinstance(availability, BernoulliAvailability):
        return availability.p, availability.p_hat
    if not isinstance(availability, AvailabilityOverride) or availability.every > 1:
        return None
    if availability.pairs is not None and not availability.all_links:
        return None
    p = np.ones_like(availability.p)
    p_hat = np.ones_like(availability.p_hat)
    if availability.all_clients and availability.all_links:
        return p, p_hat
    base = independent_probabilities(availability.base)
    if base is None:
        return None
    if not availability.all_clients:
        p = base[0]
    if not availability.all_links:
        p_hat = base[1]
    return p, p_hat
