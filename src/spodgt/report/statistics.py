"""What the tables say: mean and one sigma over seeds, and differences paired seed by seed.

Methods are compared on the same networks, clients and data, so the difference within a seed says more
than the difference of two means. Its interval is Student's, at 95 %.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import stdtrit

LEVEL = 0.95
REFERENCE = "spod-gt"


@dataclass(frozen=True)
class Difference:
    """The reference's lead over one method: above zero where the reference is better."""

    reference: str
    method: str
    mean: float
    low: float  # NaN with one seed, as `high`
    high: float
    ahead: int  # seeds in which the reference is strictly better
    seeds: int

    @property
    def verdict(self) -> str:
        if not np.isfinite(self.low):
            return "one seed"
        return "ahead" if self.low > 0 else "behind" if self.high < 0 else "open"


def measure_of(frame: pd.DataFrame) -> str:
    """What a result is judged by: accuracy where something is classified, else the loss."""
    known = "accuracy" in frame and bool(frame["accuracy"].notna().any())
    return "accuracy" if known else "loss"


def reference_of(methods: list[str]) -> str:
    """Spod-GT, or the first method where it does not take part."""
    return REFERENCE if REFERENCE in methods else methods[0]


def methods_of(frame: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(frame["algorithm"].astype(str)))


def final(frame: pd.DataFrame) -> pd.DataFrame:
    """The last look at every run."""
    return frame.groupby(["algorithm", "seed"], sort=False).tail(1).reset_index(drop=True)


def summary(last: pd.DataFrame, metrics: list[str]) -> pd.DataFrame:
    """Mean and sigma (of these seeds, not of a population) of every metric, a row for each method."""
    groups = last.groupby("algorithm", sort=False)
    columns = {}
    for metric in metrics:
        columns[metric] = groups[metric].mean()
        columns[f"{metric}_std"] = groups[metric].std(ddof=0)
    return pd.DataFrame(columns).assign(seeds=groups.size())


def paired(last: pd.DataFrame, metric: str, reference: str) -> list[Difference]:
    """The reference's lead over every other method, over the seeds that both have."""
    sign = 1.0 if metric.startswith("accuracy") else -1.0
    table = last.pivot_table(index="seed", columns="algorithm", values=metric, sort=False)
    found = []
    for method in methods_of(last):
        if method == reference or method not in table or reference not in table:
            continue
        lead = sign * (table[reference] - table[method]).dropna().to_numpy()
        if len(lead):
            mean, half = float(lead.mean()), half_width(lead)
            ahead = int((lead > 0).sum())
            found.append(Difference(reference, method, mean, mean - half, mean + half, ahead, len(lead)))
    return found


def half_width(values: np.ndarray) -> float:
    """Half of Student's interval for the mean; NaN with fewer than two values."""
    if len(values) < 2:
        return float("nan")
    error = values.std(ddof=1) / np.sqrt(len(values))
    return float(stdtrit(len(values) - 1, (1 + LEVEL) / 2) * error)
