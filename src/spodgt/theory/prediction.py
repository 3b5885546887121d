"""Measured and predicted distance from the optimum, for runs on quadratics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from spodgt.algorithms import ALGORITHMS
from spodgt.algorithms.base import Algorithm, HasStepSize
from spodgt.errors import Failed, SpodgtError
from spodgt.problems import Quadratic
from spodgt.runtimes.world import Draw, Run
from spodgt.theory.dynamics import MOST_EXACT, Dynamics
from spodgt.theory.model import independent_probabilities
from spodgt.types import Floats

if TYPE_CHECKING:
    import pandas as pd

_MAX_SECONDS = 4.0  # of computation for the curves of one method
_BINS = 25
_MIN_ROUNDS = 20  # of a curve


@dataclass(frozen=True)
class Line:
    """The curves of one method: root mean squares over `seeds` of the distance from the optimum.

    All numbers are finite.
    """

    method: str
    seeds: list[int]
    rounds: list[int]  # of the measured points
    measured: list[float]  # (len(rounds),)
    predicted: list[float]  # in rounds 0, 1, …, up to the limit of computing time
    floor: float | None  # of the predicted curve; None if it diverges or is too expensive
    rate: float | None  # slowest factor of the mean square per round; None if too expensive


def prediction(
    draws: Mapping[int, Draw], methods: Sequence[Algorithm], frame: pd.DataFrame
) -> dict[str, Any] | None:
    """Compare measured and predicted distance from the optimum.

    There are predictions for methods that declare a rule for idle clients and have a constant step
    size, on `Quadratic` problems with clients and links drawn independently in every round.

    Args:
        draws: The draw of every seed.
        methods: The methods of the run.
        frame: The metrics of the run, with columns method, seed, round and distance.

    Returns:
        {"lines": [{method, seeds, rounds, measured, predicted, floor, rate}]}, see `Line`; None
        without predictions.
    """
    if "distance" not in frame:
        return None
    lines = []
    for method in methods:
        line = _line(draws, method, frame)
        if line is not None:
            lines.append(asdict(line))
    return {"lines": lines} if lines else None


def _line(draws: Mapping[int, Draw], method: Algorithm, frame: pd.DataFrame) -> Line | None:
    """The curves of one method; None if it has no prediction or that is too expensive."""
    rows = frame[(frame["method"] == method.name) & np.isfinite(frame["distance"])]
    seeds = [int(seed) for seed in rows["seed"].unique() if seed in draws]
    dynamics = _dynamics_of_seeds(draws, method, seeds)
    step_size = method.step_size if isinstance(method, HasStepSize) else None
    if not dynamics or not isinstance(step_size, int | float):
        return None
    rounds = int(rows["round"].max())
    affordable_rounds = _affordable_rounds(dynamics[0])
    if affordable_rounds < _MIN_ROUNDS:
        return None
    seeds = seeds[: max(1, affordable_rounds // max(1, rounds))]
    dynamics = dynamics[: len(seeds)]
    curve_rounds = min(rounds, affordable_rounds)
    measured_rounds, measured = _measured(rows[rows["seed"].isin(seeds)], len(seeds), rounds)
    squares = []
    for seed, seed_dynamics in zip(seeds, dynamics, strict=True):
        start = draws[seed].start.double().cpu().numpy()
        with np.errstate(all="ignore"):  # a diverging curve ends where it overflows
            squares.append(seed_dynamics.curve(step_size, start, curve_rounds))
    floor = None
    rate = None
    if dynamics[0].c.size <= MOST_EXACT:
        floor = _finite(np.sqrt(np.mean([_floor(each, step_size) for each in dynamics])))
        rate = _finite(np.max([each.mean_square_radius(step_size) for each in dynamics]))
    return Line(
        method=method.name,
        seeds=seeds,
        rounds=measured_rounds,
        measured=measured,
        predicted=_root_mean(squares),
        floor=floor,
        rate=rate,
    )


def _dynamics_of_seeds(
    draws: Mapping[int, Draw], method: Algorithm, seeds: list[int]
) -> list[Dynamics]:
    """The dynamics of every seed; empty if one of them has none."""
    found = []
    for seed in seeds:
        try:
            dynamics = _dynamics(draws[seed], method)
        except SpodgtError:  # such as curvatures without a unique optimum
            return []
        if dynamics is None:
            return []
        found.append(dynamics)
    return found


def _dynamics(draw: Draw, method: Algorithm) -> Dynamics | None:
    """The dynamics of a registered method; one with layers or a schedule has another name."""
    problem = draw.problem
    registered = ALGORITHMS.get(method.name)
    if registered is None or registered.traits.rule is None or not isinstance(problem, Quadratic):
        return None
    run = Run.of(draw, method)
    probabilities = independent_probabilities(run.availability)
    if probabilities is None:
        return None
    return Dynamics(
        run.network,
        *probabilities,
        problem.H.double().cpu().numpy(),
        problem.c.double().cpu().numpy(),
        rule=registered.traits.rule,
        noise=problem.noise,
    )


def _affordable_rounds(dynamics: Dynamics) -> int:
    """Rounds of a curve within `_MAX_SECONDS`; one takes about 1e-3 + 2e-7 states² seconds."""
    blocks = 3 if dynamics.rule == "memory" else 2
    states = dynamics.c.size * blocks
    return int(_MAX_SECONDS / (1e-3 + 2e-7 * states**2))


def _root_mean(squares: list[Floats]) -> list[float]:
    """Root of the mean over curves, up to the first round that is not finite."""
    with np.errstate(all="ignore"):
        roots = np.sqrt(np.maximum(np.mean(squares, axis=0), 0.0))
    finite = np.logical_and.accumulate(np.isfinite(roots))
    values: list[float] = roots[finite].tolist()
    return values


def _measured(rows: pd.DataFrame, seeds: int, rounds: int) -> tuple[list[int], list[float]]:
    """Rounds, and root mean squares over seeds of the distance in them."""
    at = rows["round"]
    if (rows.groupby("round")["seed"].nunique() < seeds).any():
        # runs that end by delay are evaluated in different rounds: join rounds to bins
        width = max(1, -(-rounds // _BINS))
        at = (at // width * width + width // 2).clip(upper=rounds).where(at > 0, 0)
    squares = (rows["distance"] ** 2).groupby(at).mean()
    return [int(k) for k in squares.index], np.sqrt(squares.to_numpy(np.float64)).tolist()


def _floor(dynamics: Dynamics, eta: float) -> float:
    try:
        return dynamics.floor(eta)
    except Failed:
        return np.nan


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
