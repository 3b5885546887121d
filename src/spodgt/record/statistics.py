"""Means, deviations and differences over seeds: the only place where they are computed.

Methods are compared on the same networks, clients and data, so the difference within a seed says more
than the difference of two means. Its interval is Student's, at 95 %. A `frame` is that of a record; `last` is
the last evaluation of every run, as `final` gives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from spodgt.record.metrics import AXES, METRICS
from spodgt.types import Bools, Floats, Ints

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95
REFERENCE = "spod-gt"  # whom others are compared with, unless somebody is named
POINTS = 201  # of a grid of delays


@dataclass(frozen=True)
class Difference:
    """The reference's lead over one method: above zero where the reference is better."""

    reference: str
    method: str
    mean: float  # over seeds
    low: float  # the ends of the interval; NaN with one seed
    high: float
    ahead: int  # seeds in which the reference is strictly better
    seeds: int  # that both have

    @property
    def verdict(self) -> str:
        """One word: ahead, behind, open, diverged, or "one seed"."""
        if not np.isfinite(self.mean):
            return "diverged"
        if not np.isfinite(self.low):
            return "one seed"
        return "ahead" if self.low > 0 else "behind" if self.high < 0 else "open"


@dataclass(frozen=True, eq=False)
class Band:
    """The values of one method on a common grid."""

    seeds: list[int]  # of the rows of `values`
    values: (
        Floats  # (seeds, points) of the last model available at each point; NaN where not finite
    )
    mean: Floats  # (points,) over seeds; NaN where one of them is: a mean of the others would hide that
    sigma: Floats  # (points,) standard deviation over seeds, likewise
    final: float  # the mean of the last models


def judged(frame: pd.DataFrame) -> str:
    """The metric a result is judged by: accuracy where something is classified, else the loss."""
    return "accuracy" if "accuracy" in frame and frame["accuracy"].notna().any() else "loss"


def better(metric: str) -> float:
    """1 where a higher value of the metric is better, -1 where a lower one is."""
    return 1.0 if metric in METRICS and METRICS[metric].better == "up" else -1.0


def reference(names: list[str]) -> str:
    """The default reference: Spod-GT, or the first method where it does not take part."""
    return REFERENCE if REFERENCE in names else names[0]


def axes(frame: pd.DataFrame) -> dict[str, str]:
    """What the metrics of a frame may be drawn against, the usual axis first, and what it is called."""
    found = {
        name: label for name, label in AXES.items() if name in frame and frame[name].notna().any()
    }
    return dict(sorted(found.items(), key=lambda axis: axis[0] != "seconds"))


def methods(frame: pd.DataFrame) -> list[str]:
    """The methods of a frame, in its order."""
    return list(dict.fromkeys(frame["algorithm"].astype(str)))


def known(frame: pd.DataFrame) -> list[str]:
    """The metrics that a frame has values of: the judged one first, then those of its kind."""
    first = judged(frame)
    found = [name for name in METRICS if name in frame and frame[name].notna().any()]
    return sorted(
        found, key=lambda name: (name != first, METRICS[name].unit != METRICS[first].unit)
    )


def final(frame: pd.DataFrame) -> pd.DataFrame:
    """The last evaluation of every run."""
    return frame.groupby(["algorithm", "seed"], sort=False).tail(1).reset_index(drop=True)


def summary(last: pd.DataFrame, columns: Sequence[str], keys: Sequence[str] = ()) -> pd.DataFrame:
    """Value and sigma (of these seeds, not of a population) of every column, a row per method and keys.

    NaN where one of the seeds has no number.
    """
    import pandas as pd

    groups = last.groupby(["algorithm", *keys] if keys else "algorithm", sort=False)
    table = {}
    for name in columns:
        # A seed without a number has diverged, which a mean of the others would hide.
        whole = groups[name].count() == groups.size()
        table[name] = getattr(groups[name], _combine(name))().where(whole)
        table[f"{name}_std"] = groups[name].std(ddof=0).where(whole)
    return pd.DataFrame(table).assign(seeds=groups.size())


def paired(last: pd.DataFrame, metric: str, against: str) -> list[Difference]:
    """The lead of the method `against` over every other one, over the seeds that both have."""
    table = last.pivot(index="seed", columns="algorithm", values=metric)
    seeds = last.assign(there=True).pivot(index="seed", columns="algorithm", values="there").notna()
    found = []
    for method in methods(last):
        if method == against or method not in table or against not in table:
            continue
        both = seeds.index[(seeds[against] & seeds[method])]
        lead = better(metric) * (table[against] - table[method])[both].to_numpy()
        if len(lead):
            mean, half = float(lead.mean()), half_width(lead)
            ahead = int((lead > 0).sum())
            found.append(
                Difference(against, method, mean, mean - half, mean + half, ahead, len(lead))
            )
    return found


def chosen_by(results: pd.DataFrame, metric: str) -> str:
    """The column by which the best cells for a metric are chosen: its validation values, if there are any."""
    validation = f"validation_{metric}"
    if validation in results and results[validation].notna().any():
        return validation
    return metric


def best_cells(results: pd.DataFrame, keys: list[str], metric: str) -> pd.DataFrame:
    """Each method in its best cell of a sweep, by validation data where there are any.

    Args:
        results: The last evaluation of every run.
        keys: The columns that tell the cells of the sweep apart.
        metric: What is compared. Cells are chosen by the column `chosen_by(results, metric)`.
    """
    choice = chosen_by(results, metric)
    table = summary(results, list(dict.fromkeys([metric, choice])), keys).reset_index()
    ranked = table.sort_values(choice, ascending=better(metric) < 0, kind="stable")
    return ranked.drop_duplicates("algorithm").reset_index(drop=True)


def half_width(values: Floats) -> float:
    """Half of Student's interval for the mean of one number per seed; NaN with fewer than two."""
    from scipy.special import stdtrit

    if len(values) < 2:
        return float("nan")
    error = values.std(ddof=1) / np.sqrt(len(values))
    return float(stdtrit(len(values) - 1, (1 + LEVEL) / 2) * error)


def bands(
    frame: pd.DataFrame, metric: str, against: str = "delay"
) -> tuple[Floats, dict[str, Band]]:
    """Every method on a common grid of delays or rounds: at each point, the last model available.

    A curve ends with the last evaluation of its method; there is no value behind it.
    """
    grid = grid_of(frame, against, POINTS)
    ends = curve_ends(frame, against)
    found = {}
    for method, rows in available(frame, against, grid).items():
        found[method] = band(frame, metric, rows, grid <= ends[method])
    return grid, found


def curve_ends(frame: pd.DataFrame, against: str) -> dict[str, float]:
    """Method → where its curve ends: the last evaluation of all its seeds."""
    ends = frame.groupby("algorithm", sort=False)[against].max()
    return {str(method): float(end) for method, end in ends.items()}


def grid_of(frame: pd.DataFrame, against: str, points: int, end: float = 0.0) -> Floats:
    """An even grid from 0 to `end` or to the last evaluation, with the ends of all methods between."""
    ends = list(curve_ends(frame, against).values())
    even = np.linspace(0, max(end, *ends, 0.0), points)
    return np.unique(np.concatenate([even, [value for value in ends if np.isfinite(value)]]))


def available(frame: pd.DataFrame, against: str, grid: Floats) -> dict[str, dict[int, Ints]]:
    """Method → seed → for each point of the ascending grid, the row of the last evaluation until then."""
    found: dict[str, dict[int, Ints]] = {}
    groups = frame.reset_index(drop=True).groupby(["algorithm", "seed"], sort=False)[against]
    for (method, seed), run in groups:
        last = np.searchsorted(run.to_numpy(), grid, side="right") - 1
        found.setdefault(str(method), {})[int(str(seed))] = run.index.to_numpy()[
            np.maximum(last, 0)
        ]
    return found


def band(frame: pd.DataFrame, metric: str, rows: dict[int, Ints], within: Bools) -> Band:
    """The values of one method at the rows that `available` found, where a point is `within` its runs."""
    values = frame[metric].to_numpy(float)[np.array(list(rows.values()))]
    values = np.where(np.isfinite(values), values, np.nan)
    combine = getattr(np, _combine(metric))
    final = float(combine(values[:, -1]))
    values = np.where(within, values, np.nan)
    return Band(list(rows), values, combine(values, axis=0), values.std(0), final)


def _combine(column: str) -> Literal["mean", "min", "max"]:
    return METRICS[column].combine if column in METRICS else "mean"
