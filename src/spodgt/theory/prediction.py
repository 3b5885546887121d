"""A run on quadratics against what the theory predicts for it, as data."""

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
from spodgt.theory.overview import independent

if TYPE_CHECKING:
    import pandas as pd

_SECONDS = 4.0  # for the curves of one method
_BINS = 25
_LEAST = 20  # rounds of a curve that is worth drawing


@dataclass(frozen=True)
class Line:
    """One method: root mean squares over `seeds` of the distance from the optimum, all finite."""

    method: str
    seeds: list[int]
    rounds: list[int]  # of the measured points
    measured: list[float]  # as many
    predicted: list[
        float
    ]  # for rounds 0, 1, …, as far as it is finite and was affordable to compute
    floor: float | None  # where the curve ends; None where it diverges or that would take too long
    rate: (
        float | None
    )  # slowest factor of the mean square per round; None where that would take too long


def prediction(
    draws: Mapping[int, Draw], methods: Sequence[Algorithm], frame: pd.DataFrame
) -> dict[str, Any] | None:
    """Compare measured and predicted distance from the optimum; None where nothing can be predicted.

    That is possible for methods that declare a rule for idle clients and run with a constant step size on
    `Quadratic` problems, where clients and links take part independently in every round.

    Args:
        draws: the draw of every seed.
        methods: the methods of the run.
        frame: the metrics of the run, with columns algorithm, seed, round and distance.

    Returns:
        {"lines": [{method, seeds, rounds, measured, predicted, floor, rate}]}, see `Line`.
    """
    if "distance" not in frame:
        return None
    lines = [line for method in methods if (line := _line(draws, method, frame)) is not None]
    return {"lines": [asdict(line) for line in lines]} if lines else None


def _line(draws: Mapping[int, Draw], method: Algorithm, frame: pd.DataFrame) -> Line | None:
    rows = frame[(frame["algorithm"] == method.name) & np.isfinite(frame["distance"])]
    seeds = [int(seed) for seed in rows["seed"].unique() if seed in draws]
    try:
        found = [_dynamics(draws[seed], method) for seed in seeds]
    except SpodgtError:  # such as curvatures that leave the optimum open
        return None
    known = [each for each in found if each is not None]
    eta = method.step_size if isinstance(method, HasStepSize) else None
    if not known or len(known) < len(found) or not isinstance(eta, int | float):
        return None
    states = known[0].c.size * (3 if known[0].rule == "memory" else 2)
    # a round of a curve takes about 1e-3 + 2e-7 states² seconds
    rounds, affordable = int(rows["round"].max()), int(_SECONDS / (1e-3 + 2e-7 * states**2))
    if affordable < _LEAST:
        return None
    seeds = seeds[: max(1, affordable // max(1, rounds))]
    squares, floors, rates = [], [], []
    for seed, dynamics in zip(seeds, known, strict=False):
        start = draws[seed].start.double().cpu().numpy()
        with np.errstate(all="ignore"):  # a curve that leaves the floats ends there
            squares.append(dynamics.curve(eta, start, min(rounds, affordable)))
        small = dynamics.c.size <= MOST_EXACT
        rates.append(dynamics.mean_square_radius(eta) if small else np.nan)
        floors.append(_floor(dynamics, eta) if small else np.nan)
    at, measured = _measured(rows[rows["seed"].isin(seeds)], len(seeds), rounds)
    with np.errstate(all="ignore"):
        predicted = np.sqrt(np.maximum(np.mean(squares, axis=0), 0.0))
        finite = np.logical_and.accumulate(np.isfinite(predicted))
    return Line(
        method.name, seeds, at, measured, predicted[finite].tolist(), _finite(np.sqrt(np.mean(floors))),
        _finite(np.max(rates)),
    )  # fmt: skip


def _dynamics(draw: Draw, method: Algorithm) -> Dynamics | None:
    """The dynamics of a plain registered method: one with momentum or a schedule has another name."""
    registered, problem = ALGORITHMS.get(method.name), draw.problem
    if registered is None or registered.traits.rule is None or not isinstance(problem, Quadratic):
        return None
    run = Run.of(draw, method)
    found = independent(run.availability)
    H, c = (t.double().cpu().numpy() for t in (problem.H, problem.c))
    rule = registered.traits.rule
    return found and Dynamics(run.network, *found, H, c, rule=rule, noise=problem.noise)


def _measured(rows: pd.DataFrame, seeds: int, rounds: int) -> tuple[list[int], list[float]]:
    """Rounds, and root mean squares over seeds of the distance there."""
    at = rows["round"]
    if (rows.groupby("round")["seed"].nunique() < seeds).any():
        # evaluated by delay, so in other rounds for every seed: take rounds together
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
