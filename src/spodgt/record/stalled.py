"""Finds stalled runs: their models do not move, but training has not converged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spodgt.algorithms import ALGORITHMS

if TYPE_CHECKING:
    import pandas as pd

ROUNDS = 100  # a run is reported if its models have not moved for so many rounds
# Metrics of the objective, which change if models move.
_OBJECTIVES = ("loss", "validation_loss", "train_loss", "gradient_norm", "distance")
_CONVERGED = 1e-3  # fraction of the largest gradient norm at which a run has converged
_ZERO = 1e-10  # a gradient norm that is zero but for rounding


@dataclass(frozen=True)
class Stalled:
    """A run with models that did not move in its last rounds."""

    method: str  # its label in the frame
    seed: int
    since: int  # the first evaluated round with the same models as the last
    round: int  # the last evaluated round

    def __str__(self) -> str:
        return (
            f"{self.method} (seed {self.seed}): no model has moved from round {self.since} "
            f"to round {self.round}; check participation and step_size."
        )


def find_stalled(frame: pd.DataFrame, *, scheduled: bool) -> list[Stalled]:
    """Runs with identical evaluations for at least `ROUNDS` rounds up to the last one.

    A run is not reported if its gradient norm there is zero or at most a thousandth of its largest:
    it has converged. Nor is a run that moved before, if its gradient norm is unknown or a schedule
    may have set its step size to zero; nor one that sent no messages meanwhile (local steps), nor a
    method without steps.

    Args:
        frame: The table of evaluations of a record.
        scheduled: Whether step sizes change with the rounds.
    """
    stalled = []
    for (label, seed), rows in frame.groupby(["method", "seed"], sort=False):
        method = ALGORITHMS.get(str(label).partition("+")[0])
        if method is not None and method.traits.steps == "none":
            continue
        rows = rows.sort_values("round")
        first = _first_row_without_movement(rows)
        if first is None or (first > 0 and scheduled):
            continue
        start = rows.iloc[first]
        last = rows.iloc[-1]
        is_short = last["round"] - start["round"] < ROUNDS
        if is_short or start["bytes"] == last["bytes"] or _has_converged(rows, first):
            continue
        stalled.append(Stalled(str(label), int(str(seed)), int(start["round"]), int(last["round"])))
    return stalled


def _first_row_without_movement(rows: pd.DataFrame) -> int | None:
    """The first row from which on all evaluations are equal; None if this is unknown."""
    columns = [name for name in _OBJECTIVES if name in rows and rows[name].notna().all()]
    if not columns:  # a diverged run, or one without test data: equal models may move together
        return None
    values = rows[[*columns, "consensus_x"]].to_numpy()
    differs = (values != values[-1]).any(1).nonzero()[0]
    return int(differs[-1]) + 1 if len(differs) else 0


def _has_converged(rows: pd.DataFrame, first: int) -> bool:
    """Whether the gradient norm is small from row `first` on; if unknown: whether models moved."""
    if "gradient_norm" not in rows:
        return first > 0
    norms = rows["gradient_norm"]
    largest = norms.iloc[first:].max()
    if not largest >= 0:  # NaN
        return first > 0
    return bool(largest <= _ZERO or largest <= _CONVERGED * norms.max())
