"""Finds runs whose models have stopped moving although training is not over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spodgt.algorithms import ALGORITHMS

if TYPE_CHECKING:
    import pandas as pd

ROUNDS = 100  # a run that has not moved for so many rounds is reported
# Metrics of the objective, which change if models move.
_OBJECTIVES = ("loss", "validation_loss", "train_loss", "gradient_norm", "distance")
_CONVERGED = 1e-3  # share of the largest gradient norm at which a run may stand still
_ZERO = 1e-10  # a gradient norm that is zero but for rounding


@dataclass(frozen=True)
class Stalled:
    """A run that ended without any movement of its models in its last rounds."""

    algorithm: str  # the method's label in the frame
    seed: int
    since: int  # the first evaluated round with the models of the last
    round: int  # the last evaluated round

    def __str__(self) -> str:
        return (
            f"{self.algorithm} (seed {self.seed}): no model has moved from round {self.since} to round "
            f"{self.round}; check participation and step_size."
        )


def find_stalled(frame: pd.DataFrame, *, scheduled: bool) -> list[Stalled]:
    """Runs whose evaluations were identical for at least `ROUNDS` rounds up to the last one.

    A run is not reported if its gradient norm there is zero or at most a thousandth of its largest: it has
    converged. Nor is one that moved before, if its gradient norm is unknown or a schedule may have set its
    step size to zero; nor one that has sent nothing meanwhile (local steps), nor a method without steps.

    Args:
        frame: The table of evaluations of a record.
        scheduled: Whether step sizes change with the rounds.
    """
    found = []
    for (label, seed), rows in frame.groupby(["algorithm", "seed"], sort=False):
        method = ALGORITHMS.get(str(label).partition("+")[0])
        if method is not None and method.traits.steps == "none":
            continue
        run = _find(str(label), int(str(seed)), rows.sort_values("round"), scheduled=scheduled)
        if run is not None:
            found.append(run)
    return found


def _find(label: str, seed: int, rows: pd.DataFrame, *, scheduled: bool) -> Stalled | None:
    columns = [name for name in _OBJECTIVES if name in rows and rows[name].notna().all()]
    if not columns:  # a run that diverged, or one without test data: equal models may move together
        return None
    values = rows[[*columns, "consensus_x"]].to_numpy()
    moved = (values != values[-1]).any(1).nonzero()[0]
    first = int(moved[-1]) + 1 if len(moved) else 0
    start = rows.iloc[first]
    last = rows.iloc[-1]
    run = Stalled(label, seed, int(start["round"]), int(last["round"]))
    if run.round - run.since < ROUNDS or start["bytes"] == last["bytes"]:
        return None
    if first > 0 and scheduled:
        return None
    return None if _has_converged(rows, first) else run


def _has_converged(rows: pd.DataFrame, first: int) -> bool:
    """Whether the gradient norm is small from row `first` on; unknown: only if models moved before."""
    norms = rows["gradient_norm"] if "gradient_norm" in rows else rows["loss"] * float("nan")
    there = norms.iloc[first:].max()
    if not there >= 0:
        return first > 0
    return bool(there <= _ZERO or there <= _CONVERGED * norms.max())
