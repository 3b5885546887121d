"""Means, standard deviations and paired differences over seeds.

Methods are compared on the same networks, clients and data, so the paired difference within a
seed is more precise than the difference of two means. Its confidence interval is Student's, at
95 %. A `frame` is that of a record; `last` is the last evaluation of every run, see `final`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from spodgt.record.metrics import AXES, METRICS
from spodgt.types import Floats

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95
REFERENCE = "spod-gt"  # the default method that others are compared with
MAX_POINTS = 2000  # of a line
_MIN_SEEDS = 2  # for a confidence interval


@dataclass(frozen=True)
class Difference:
    """The lead of the reference over one method: positive if the reference is better."""

    reference: str
    method: str
    mean: float  # over seeds
    low: float  # ends of the confidence interval; NaN with one seed
    high: float
    ahead: int  # seeds in which the reference is strictly better
    seeds: int  # common to both

    @property
    def verdict(self) -> str:
        """Of the reference: "better", "worse", "inconclusive", "diverged" or "one seed"."""
        if not np.isfinite(self.mean):
            return "diverged"
        if not np.isfinite(self.low):
            return "one seed"
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "inconclusive"


@dataclass(frozen=True, eq=False)
class Band:
    """The values of one method on a common grid."""

    seeds: list[int]  # of the rows of `values`
    values: Floats  # (seeds, points); NaN if not finite
    mean: Floats  # (points,) over seeds; NaN if one of them is NaN
    sigma: Floats  # (points,) standard deviation over seeds, likewise
    final: float  # the mean of the last models


def primary_metric(frame: pd.DataFrame) -> str:
    """The metric by which methods are compared: the accuracy of a classification, else the loss.

    A problem with validation data but no test data has those of the validation data.
    """
    for name in ("accuracy", "loss", "validation_accuracy", "validation_loss"):
        if _has_values(frame, name):
            return name
    return "loss"


def _has_values(frame: pd.DataFrame, column: str) -> bool:
    return column in frame and bool(frame[column].notna().any())


def better(metric: str) -> float:
    """1 if higher values of the metric are better, -1 if lower values are."""
    return 1.0 if metric in METRICS and METRICS[metric].better == "up" else -1.0


def reference(names: list[str]) -> str:
    """The default reference: Spod-GT, or the first method if Spod-GT is not among them."""
    return REFERENCE if REFERENCE in names else names[0]


def axes(frame: pd.DataFrame) -> dict[str, str]:
    """The columns that metrics can be drawn against, and their labels; the default axis first."""
    names = [name for name in AXES if _has_values(frame, name)]
    if "seconds" in names:
        names.remove("seconds")
        names.insert(0, "seconds")
    return {name: AXES[name] for name in names}


def methods(frame: pd.DataFrame) -> list[str]:
    """The methods of a frame, in its order."""
    return list(dict.fromkeys(frame["method"].astype(str)))


def available_metrics(frame: pd.DataFrame) -> list[str]:
    """The metrics that have values: the primary one, those of the same unit, then the others."""
    primary = primary_metric(frame)
    same_unit: list[str] = []
    others: list[str] = []
    for name, metric in METRICS.items():
        if name == primary or not _has_values(frame, name):
            continue
        if metric.unit == METRICS[primary].unit:
            same_unit.append(name)
        else:
            others.append(name)
    first = [primary] if _has_values(frame, primary) else []
    return first + same_unit + others


def final(frame: pd.DataFrame) -> pd.DataFrame:
    """The last evaluation of every run."""
    return frame.groupby(["method", "seed"], sort=False).tail(1).reset_index(drop=True)


def summary(last: pd.DataFrame, columns: Sequence[str], keys: Sequence[str] = ()) -> pd.DataFrame:
    """Mean and standard deviation over seeds (of these seeds, not of a population) of every column.

    Returns:
        A row per method and value of `keys`; NaN if a seed has no number: it has diverged, which a
        mean of the other seeds would hide.
    """
    import pandas as pd

    groups = last.groupby(["method", *keys] if keys else "method", sort=False)
    table = {}
    for name in columns:
        is_complete = groups[name].count() == groups.size()
        table[name] = getattr(groups[name], _combine(name))().where(is_complete)
        table[f"{name}_std"] = groups[name].std(ddof=0).where(is_complete)
    return pd.DataFrame(table).assign(seeds=groups.size())


def paired(last: pd.DataFrame, metric: str, against: str) -> list[Difference]:
    """The lead of the method `against` over every other method, on the seeds that both have."""
    runs = last.set_index(["method", "seed"])[metric]
    names = methods(last)
    if against not in names:
        return []
    reference_runs = runs[against]
    differences = []
    for method in names:
        if method == against:
            continue
        other_runs = runs[method]
        seeds = reference_runs.index.intersection(other_runs.index).sort_values()
        if len(seeds) == 0:
            continue
        lead = better(metric) * (reference_runs[seeds] - other_runs[seeds]).to_numpy()
        mean = float(lead.mean())
        half = half_width(lead)
        ahead = int((lead > 0).sum())
        differences.append(
            Difference(against, method, mean, mean - half, mean + half, ahead, len(lead))
        )
    return differences


def chosen_by(results: pd.DataFrame, metric: str) -> str:
    """The column by which best cells are chosen: the metric on validation data, if available."""
    validation = f"validation_{metric}"
    return validation if _has_values(results, validation) else metric


def best_cells(results: pd.DataFrame, keys: list[str], metric: str) -> pd.DataFrame:
    """Each method in its best cell of a sweep.

    Args:
        results: The last evaluation of every run.
        keys: The columns that identify a cell of the sweep.
        metric: The metric to compare. Cells are chosen by the column `chosen_by(results, metric)`.
    """
    choice = chosen_by(results, metric)
    table = summary(results, list(dict.fromkeys([metric, choice])), keys).reset_index()
    ranked = table.sort_values(choice, ascending=better(metric) < 0, kind="stable")
    return ranked.drop_duplicates("method").reset_index(drop=True)


def half_width(values: Floats) -> float:
    """Half the width of Student's interval for the mean of a value per seed; NaN with one seed."""
    from scipy.special import stdtrit

    if len(values) < _MIN_SEEDS:
        return float("nan")
    error = values.std(ddof=1) / np.sqrt(len(values))
    return float(stdtrit(len(values) - 1, (1 + LEVEL) / 2) * error)


def lines(
    frame: pd.DataFrame, metric: str, against: str, grid: Floats | None = None
) -> dict[str, tuple[Floats, Band]]:
    """Every method as a line: straight between the evaluations of each seed, then over seeds.

    A seed that ended before the others keeps its last value.

    Args:
        frame: That of a record.
        metric: Column of the values.
        against: Column of the positions.
        grid: Positions of the points; values after the last evaluation of a method are NaN. None:
            the positions of all evaluations of the method.
    """
    found: dict[str, tuple[Floats, Band]] = {}
    for method, runs in frame.groupby("method", sort=False):
        evaluated = _evaluated_positions(runs[against])
        points = evaluated if grid is None else grid
        seeds: list[int] = []
        values: list[Floats] = []
        for seed, run in runs.groupby("seed", sort=False):
            y = run[metric].to_numpy(float)
            y = np.where(np.isfinite(y), y, np.nan)
            seeds.append(int(str(seed)))
            values.append(np.interp(points, run[against].to_numpy(float), y))
        table = np.array(values)
        is_within = points <= evaluated[-1]
        combine = getattr(np, _combine(metric))
        final = float(combine(table[:, is_within][:, -1]))
        table[:, ~is_within] = np.nan
        band = Band(seeds, table, combine(table, axis=0), table.std(0), final)
        found[str(method)] = points, band
    return found


def _evaluated_positions(column: pd.Series) -> Floats:
    """Different finite positions in ascending order; of very many, as many even ones."""
    positions = column.to_numpy(float)
    positions = np.unique(positions[np.isfinite(positions)])
    if len(positions) > MAX_POINTS:
        return np.linspace(positions[0], positions[-1], MAX_POINTS)
    return positions


def grid_of(frame: pd.DataFrame, against: str, points: int, end: float = 0.0) -> Floats:
    """An even grid from 0 to `end` or to the last evaluation, with the ends of all methods."""
    ends = frame.groupby("method")[against].max().to_numpy(float)
    even = np.linspace(0, max(end, *ends, 0.0), points)
    return np.unique(np.concatenate([even, ends[np.isfinite(ends)]]))


def _combine(column: str) -> Literal["mean", "min", "max"]:
    return METRICS[column].combine if column in METRICS else "mean"
