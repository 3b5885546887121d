"""What is measured when a run is looked at: one row per run and look."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spodgt.compiled import jit, jit_sum, usable
from spodgt.types import Problem

METRICS: dict[str, str] = {
    "loss": "test loss, mean over clients (the objective itself where there is no test set)",
    "accuracy": "test accuracy, mean over clients",
    "accuracy_average": "test accuracy of the average model",
    "accuracy_worst": "test accuracy of the worst client",
    "consensus_x": "root mean square distance of models from their average",
    "consensus_y": "root mean square distance of trackers from their average",
    "tracking": "|Σy - Σg|: zero up to rounding, or something is broken",
    "train_loss": "global training loss F of the average model, where affordable",
    "gradient_norm": "|∇F| of the average model, where affordable",
    "distance": "root mean square distance of models from the optimum, where it is known",
}


def measure(
    problem: Problem, state: Any, statistics: Tensor | None = None, *, gradient: bool
) -> dict[str, float]:
    """Measure one run; `state` holds its clients only, `gradient` asks for a pass over all data.

    `statistics` (clients, columns) are the running statistics of its clients, if they have any.
    """
    x: Tensor = state.x
    models = x if statistics is None or not statistics.shape[1] else torch.cat([x, statistics], 1)
    average = mean(models)[None]
    quality = problem.evaluate(torch.cat([models, average]))
    row = {
        "loss": float(quality.loss[:-1].mean()),
        "accuracy": float(quality.accuracy[:-1].mean()),
        "accuracy_average": float(quality.accuracy[-1]),
        "accuracy_worst": float(quality.accuracy[:-1].min()),
        "consensus_x": spread(x),
    }
    if hasattr(state, "y"):
        row["consensus_y"] = spread(state.y)
    if hasattr(state, "y") and hasattr(state, "g"):
        row["tracking"] = imbalance(state.y, state.g)
    if gradient:
        losses, grads = problem.full(average.expand_as(models), _everyone(problem))
        row["train_loss"] = float(losses.mean())
        row["gradient_norm"] = float(grads.mean(0).norm())
    optimum = getattr(problem, "optimum", None)
    if optimum is not None:
        row["distance"] = _distance(x, optimum)
    return row


def _distance(x: Tensor, optimum: Callable[[], Tensor]) -> float:
    try:
        return float((x - optimum().to(x)).square().sum(1).mean().sqrt())
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # flat somewhere: no single optimum
        return math.nan


def spread(x: Tensor) -> float:
    """Root mean square distance of the rows from their average."""
    if usable(x):
        return math.sqrt(_square_distances(x.numpy()) / len(x))
    return float((x - x.mean(0)).square().sum(1).mean().sqrt())


def mean(x: Tensor) -> Tensor:
    """The average row."""
    return torch.from_numpy(_sums(x.numpy()) / len(x)).to(x.dtype) if usable(x) else x.mean(0)


def imbalance(y: Tensor, g: Tensor) -> float:
    """|Σy - Σg| over the rows."""
    if usable(y, g):
        return float(torch.from_numpy(_sums(y.numpy()) - _sums(g.numpy())).norm())
    return float((y.double().sum(0) - g.double().sum(0)).norm())


@jit
def _sums(x):  # type: ignore[no-untyped-def]
    """Of the columns."""
    sums = np.zeros(x.shape[1])
    for row in x:
        for c in range(len(row)):
            sums[c] += row[c]
    return sums


@jit
def _square_distances(x):  # type: ignore[no-untyped-def]
    mean, total = _sums(x) / len(x), 0.0
    for i in range(len(x)):
        total += _square_distance(x[i], mean)
    return total


@jit_sum
def _square_distance(row, mean):  # type: ignore[no-untyped-def]
    total = 0.0
    for c in range(len(row)):
        total += (row[c] - mean[c]) ** 2
    return total


def _everyone(problem: Problem) -> Any:
    return np.arange(problem.clients)
