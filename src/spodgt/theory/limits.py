"""The step size up to which a method is stable, as a guide for a search."""

from __future__ import annotations

from collections.abc import Sequence

from spodgt.algorithms import ALGORITHMS
from spodgt.algorithms.base import Algorithm
from spodgt.errors import InvalidInput
from spodgt.problems import Learning, Quadratic
from spodgt.runtimes.world import Draw, Run
from spodgt.theory.dynamics import MOST_EXACT, Dynamics
from spodgt.theory.estimates import Estimates, estimate
from spodgt.theory.overview import independent, model_of

_EFFORT = 3e9  # multiplications for a pass over all data, above which estimates take longer than short runs


def stable_steps(draw: Draw, methods: Sequence[Algorithm]) -> list[float | None]:
    """The largest mean-square stable step of every method on one draw; None where theory has none.

    It is exact for quadratics and that of a model with the estimated L_i otherwise. Methods that declare a
    rule for idle clients have it. For others it is 2/L, where plain descent on the mean loss breaks; with
    layers that change what a step is, and for problems too large to estimate, there is none.

    Args:
        draw: one seed of an experiment.
        methods: the methods, whose own step sizes do not matter.
    """
    problem = draw.problem
    if not isinstance(problem, Learning | Quadratic) or problem.work > _EFFORT:
        return [None] * len(methods)
    try:
        found = estimate(problem, start=draw.start[0], seed=draw.seed, points=5, draws=2)
    except InvalidInput:  # such as curvatures that leave the optimum open
        return [None] * len(methods)
    return [_stable(draw, method, found) for method in methods]


def _stable(draw: Draw, method: Algorithm, found: Estimates) -> float | None:
    registered = ALGORITHMS.get(method.name)
    if registered is None:  # a layer: one with Adam has steps of another unit
        return None
    run = Run.of(draw, method)
    probabilities, rule = independent(run.availability), registered.traits.rule
    if rule is None or probabilities is None or draw.network.clients > MOST_EXACT:
        return float(2 / found.L.value.mean())
    model = model_of(draw, found)
    dynamics = Dynamics(run.network, *probabilities, model.H, model.c, rule=rule, noise=model.noise)
    return dynamics.largest_stable_step(tolerance=0.02)
