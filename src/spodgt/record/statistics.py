"""Means, deviations and differences over seeds: the only place where they are computed.

Methods are compared on the same networks, clients and data, so the difference within a seed says more
than the difference of two means. Its interval is Student's, at 95 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from spodgt.record.metrics import METRICS
from spodgt.types import Floats, Ints

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95
REFERENCE = "spod-gt"  # whom others are compared with, unless somebody is named
POINTS = 201  # of a grid of delays


@dataclass(frozen=True)
class Difference:
    """The reference's lead over one method: above zero where the reference is better.

    Args:
        reference: The method that is compared with the other.
        method: The other method.
        mean: The mean difference over seeds.
        low: The lower end of the interval; NaN with one seed.
        high: The upper end of the interval; NaN with one seed.
        ahead: The seeds in which the reference is strictly better.
        seeds: The seeds that both have.
    """

    reference: str
    method: str
    mean: float
    low: float
    high: float
    ahead: int
    seeds: int

    @property
    def verdict(self) -> str:
        """One word: ahead, behind, open, or "one seed"."""
        if not np.isfinite(self.low):
            return "one seed"
        return "ahead" if self.low > 0 else "behind" if self.high < 0 else "open"


@dataclass(frozen=True, eq=False)
class Band:
    """The values of one method on a common grid.

    Args:
        seeds: The seed of each row of `values`.
        values: (seeds, points) the value of the last model available at each point; NaN where not finite.
        mean: (points,) over seeds; NaN where one of them is: a mean of the others would hide that.
        sigma: (points,) standard deviation over seeds, likewise.
    """

    seeds: list[int]
    values: Floats
    mean: Floats
    sigma: Floats


def judged(frame: pd.DataFrame) -> str:
    """The metric a result is judged by: accuracy where something is classified, else the loss.

    Args:
        frame: The frame of a record, or the last evaluation of every run.
    """
    known = "accuracy" in frame and bool(frame["accuracy"].notna().any())
    return "accuracy" if known else "loss"


def better(metric: str) -> float:
    """1 where a higher value of the metric is better, -1 where a lower one is.

    Args:
        metric: Its name.
    """
    return 1.0 if metric in METRICS and METRICS[metric].better == "up" else -1.0


def reference(names: list[str]) -> str:
    """The default reference: Spod-GT, or the first method where it does not take part.

    Args:
        names: The methods, at least one.
    """
    return REFERENCE if REFERENCE in names else names[0]


def methods(frame: pd.DataFrame) -> list[str]:
    """The methods of a frame, in its order.

    Args:
        frame: The frame of a record, or the last evaluation of every run.
    """
    return list(dict.fromkeys(frame["algorithm"].astype(str)))


def known(frame: pd.DataFrame) -> list[str]:
    """The metrics that a frame has values of: the judged one first, then those of its kind.

    Args:
        frame: The frame of a record, or the last evaluation of every run.
    """
    first = judged(frame)
    found = [name for name in METRICS if name in frame and frame[name].notna().any()]
    return sorted(found, key=lambda name: (name != first, METRICS[name].unit != METRICS[first].unit))


def final(frame: pd.DataFrame) -> pd.DataFrame:
    """The last evaluation of every run.

    Args:
        frame: The frame of a record.
    """
    return frame.groupby(["algorithm", "seed"], sort=False).tail(1).reset_index(drop=True)


def summary(last: pd.DataFrame, columns: list[str]) -> pd.DataFrame:
    """Value and sigma (of these seeds, not of a population) of every column, a row for each method.

    Args:
        last: The last evaluation of every run.
        columns: Metrics, or other columns of numbers; these are averaged.
    """
    import pandas as pd

    groups = last.groupby("algorithm", sort=False)
    table = {}
    for name in columns:
        table[name] = groups[name].agg(_combine(name))
        table[f"{name}_std"] = groups[name].std(ddof=0)
    return pd.DataFrame(table).assign(seeds=groups.size())


def paired(last: pd.DataFrame, metric: str, against: str) -> list[Difference]:
    """The lead of one method over every other one, over the seeds that both have.

    Args:
        last: The last evaluation of every run.
        metric: The metric to compare.
        against: The reference.
    """
    table = last.pivot_table(index="seed", columns="algorithm", values=metric, sort=False)
    found = []
    for method in methods(last):
        if method == against or method not in table or against not in table:
            continue
        lead = better(metric) * (table[against] - table[method]).dropna().to_numpy()
        if len(lead):
            mean, half = float(lead.mean()), half_width(lead)
            ahead = int((lead > 0).sum())
            found.append(Difference(against, method, mean, mean - half, mean + half, ahead, len(lead)))
    return found


def best_cells(results: pd.DataFrame, keys: list[str], metric: str) -> pd.DataFrame:
    """Each method at its best: the cell of a sweep with its best mean, best method first.

    Args:
        results: The last evaluation of every run of a sweep, with the cells' keys.
        keys: The columns that tell cells apart.
        metric: The metric to judge by.
    """
    groups = results.groupby(["algorithm", *keys], sort=False)[metric]
    table = groups.agg(_combine(metric)).to_frame(metric)
    table[f"{metric}_std"], table["seeds"] = groups.std(ddof=0), groups.size()
    ranked = table.reset_index().sort_values(metric, ascending=better(metric) < 0, kind="stable")
    return ranked.drop_duplicates("algorithm").reset_index(drop=True)


def half_width(values: Floats) -> float:
    """Half of Student's interval for the mean; NaN with fewer than two values.

    Args:
        values: One number for each seed.
    """
    from scipy.special import stdtrit

    if len(values) < 2:
        return float("nan")
    error = values.std(ddof=1) / np.sqrt(len(values))
    return float(stdtrit(len(values) - 1, (1 + LEVEL) / 2) * error)


def bands(frame: pd.DataFrame, metric: str, against: str = "delay") -> tuple[Floats, dict[str, Band]]:
    """Every method on a common, even grid: at each point, the last model available there.

    Args:
        frame: The frame of a record.
        metric: The column to follow.
        against: The column of the axis: delay or round.
    """
    # The grid ends where the budget ends for most: slow methods have their last model long before.
    grid = np.linspace(0, frame[against].max(), POINTS)
    found = available(frame, against, grid)
    return grid, {method: band(frame, metric, rows) for method, rows in found.items()}


def available(frame: pd.DataFrame, against: str, grid: Floats) -> dict[str, dict[int, Ints]]:
    """Method → seed → for each point of the grid, the row of the last evaluation at or before it.

    Args:
        frame: The frame of a record.
        against: The column of the axis: delay or round.
        grid: The points, ascending.
    """
    found: dict[str, dict[int, Ints]] = {}
    groups = frame.reset_index(drop=True).groupby(["algorithm", "seed"], sort=False)[against]
    for (method, seed), run in groups:
        last = np.searchsorted(run.to_numpy(), grid, side="right") - 1
        found.setdefault(str(method), {})[int(str(seed))] = run.index.to_numpy()[np.maximum(last, 0)]
    return found


def band(frame: pd.DataFrame, metric: str, rows: dict[int, Ints]) -> Band:
    """The values of one method at the rows that `available` found.

    Args:
        frame: The frame of a record.
        metric: The column to follow.
        rows: Seed → a row for each point of the grid.
    """
    values = frame[metric].to_numpy(float)[np.array(list(rows.values()))]
    values = np.where(np.isfinite(values), values, np.nan)
    return Band(list(rows), values, getattr(np, _combine(metric))(values, axis=0), values.std(0))


def _combine(column: str) -> Literal["mean", "min", "max"]:
    return METRICS[column].combine if column in METRICS else "mean"
