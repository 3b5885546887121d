"""Largest stable step sizes of methods, to start a search."""

from __future__ import annotations

from collections.abc import Sequence

from spodgt.algorithms import ALGORITHMS
from spodgt.algorithms.base import Algorithm
from spodgt.errors import InvalidInput
from spodgt.problems import Learning, Quadratic
from spodgt.runtimes.world import Draw, Run
from spodgt.theory.dynamics import MOST_EXACT, Dynamics
from spodgt.theory.estimates import Estimates, estimate
from spodgt.theory.model import independent_probabilities, quadratic_model

# multiplications for a pass over all data, above which estimates take longer than short runs
_MAX_WORK = 3e9


def stable_steps(draw: Draw, methods: Sequence[Algorithm]) -> list[float | None]:
    """The largest mean-square stable step size of every method on one draw.

    It is exact for quadratics, and that of a model with the estimated L_i for other problems, if
    the method declares a rule for idle clients. For other methods it is 2/L, the limit of plain
    descent on the mean loss.

    Args:
        draw: One seed of an experiment.
        methods: The methods; their own step sizes are ignored.

    Returns:
        A step size per method; None for methods with layers, which change the unit of a step, and
        for problems too large to estimate.
    """
    problem = draw.problem
    if not isinstance(problem, Learning | Quadratic) or problem.work > _MAX_WORK:
        return [None] * len(methods)
    try:
        estimates = estimate(problem, start=draw.start[0], seed=draw.seed, points=5, draws=2)
    except InvalidInput:  # such as curvatures without a unique optimum
        return [None] * len(methods)
    return [_stable_step(draw, method, estimates) for method in methods]


def _stable_step(draw: Draw, method: Algorithm, estimates: Estimates) -> float | None:
    registered = ALGORITHMS.get(method.name)
    if registered is None:  # with layers; steps of Adam, for example, have another unit
        return None
    run = Run.of(draw, method)
    probabilities = independent_probabilities(run.availability)
    rule = registered.traits.rule
    if rule is None or probabilities is None or draw.network.clients > MOST_EXACT:
        return float(2 / estimates.L.value.mean())
    model = quadratic_model(draw, estimates)
    dynamics = Dynamics(run.network, *probabilities, model.H, model.c, rule=rule, noise=model.noise)
    return dynamics.largest_stable_step(tolerance=0.02)
