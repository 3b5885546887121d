"""The one table of metrics: what is computed when a run is evaluated, and how it is shown.

A new metric is one row of `METRICS`; tables, figures and the report read everything from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from spodgt.kernels.sums import imbalance, mean, spread
from spodgt.runtimes.world import RunState
from spodgt.types import Evaluation, HasOptimum, Problem


@dataclass(frozen=True, eq=False)
class RunSnapshot:
    """One evaluation of one run: everything a metric may be computed from."""

    problem: Problem  # on the device of the tensors
    x: Tensor  # the clients' models, (clients, parameters)
    y: Tensor | None  # their trackers; None where the method declares no field `y`
    g: Tensor | None  # the gradients that the trackers sum; None where the method declares no field `g`
    statistics: Tensor  # running statistics (BatchNorm), (clients, columns); mostly no columns
    clients: Evaluation  # of the clients' models, one entry each
    average: Evaluation  # of the average model, one entry
    gradient: bool  # whether the global gradient, a pass over all data, is affordable

    @classmethod
    def take(
        cls, problem: Problem, fields: Sequence[str], whole: RunState, quality: Evaluation, gradient: bool
    ) -> RunSnapshot:
        """`fields` names the tensors of the state; `quality` is of all models, their average last."""
        named = dict(zip(fields, whole.state, strict=True))
        clients, average = (Evaluation(*(part[cut] for part in quality)) for cut in (np.s_[:-1], np.s_[-1:]))
        y, g = named.get("y"), named.get("g")
        return cls(problem, named["x"], y, g, whole.statistics, clients, average, gradient)

    @cached_property
    def full(self) -> tuple[float, float]:
        """The global training loss F of the average model, and |∇F|."""
        average = torch.cat([mean(self.x), mean(self.statistics.to(self.x))])
        everyone = np.arange(self.problem.clients)
        losses, grads = self.problem.full(average.expand(len(everyone), -1), everyone)
        return float(losses.mean()), float(grads.mean(0).norm())


@dataclass(frozen=True)
class Metric:
    """One row of the table.

    Args:
        name: The column of the frame.
        label: What menus and axes call it.
        description: What it is, in one line.
        compute: Its value in a snapshot; None where it does not apply.
        better: Whether higher ("up") or lower ("down") values are better.
        log: Whether it is drawn on a logarithmic axis.
        unit: "fraction" for values between 0 and 1, "" for plain numbers.
        column: Its heading in tables of final values; "" keeps it out of them.
        combine: How the values of several seeds become one.
    """

    name: str
    label: str
    description: str
    compute: Callable[[RunSnapshot], float | None]
    better: Literal["up", "down"] = "down"
    log: bool = False
    unit: Literal["fraction", ""] = ""
    column: str = ""
    combine: Literal["mean", "min", "max"] = "mean"


def measure(snapshot: RunSnapshot) -> dict[str, float]:
    """The values of the metrics that apply, in the order of the table."""
    values = ((name, metric.compute(snapshot)) for name, metric in METRICS.items())
    return {name: value for name, value in values if value is not None}


def _distance(snapshot: RunSnapshot) -> float | None:
    if not isinstance(snapshot.problem, HasOptimum):
        return None
    try:
        optimum = snapshot.problem.optimum().to(snapshot.x)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # flat somewhere: no single optimum
        return math.nan
    return float((snapshot.x - optimum).square().sum(1).mean().sqrt())


# --- the table --------------------------------------------------------------------------------------
# fmt: off
_TABLE = (
    Metric("loss", "test loss",
           "test loss, mean over clients (the objective itself where there is no test set)",
           lambda s: float(s.clients.loss.mean()), column="loss"),
    Metric("accuracy", "test accuracy", "test accuracy, mean over clients",
           lambda s: float(s.clients.accuracy.mean()), "up", unit="fraction", column="accuracy"),
    Metric("accuracy_average", "accuracy of the average model", "test accuracy of the average model",
           lambda s: float(s.average.accuracy[0]), "up", unit="fraction", column="average model"),
    Metric("accuracy_worst", "accuracy of the worst client", "test accuracy of the worst client",
           lambda s: float(s.clients.accuracy.min()), "up", unit="fraction", column="worst client"),
    Metric("consensus_x", "distance of models from their average",
           "root mean square distance of models from their average", lambda s: spread(s.x), log=True),
    Metric("consensus_y", "distance of trackers from their average",
           "root mean square distance of trackers from their average",
           lambda s: None if s.y is None else spread(s.y), log=True),
    Metric("tracking", "tracking error |Σy − Σg|", "|Σy - Σg|: zero up to rounding, or something is broken",
           lambda s: None if s.y is None or s.g is None else imbalance(s.y, s.g), log=True),
    Metric("train_loss", "training loss", "global training loss F of the average model, where affordable",
           lambda s: s.full[0] if s.gradient else None),
    Metric("gradient_norm", "gradient norm |∇F|", "|∇F| of the average model, where affordable",
           lambda s: s.full[1] if s.gradient else None, log=True),
    Metric("distance", "distance from the optimum",
           "root mean square distance of models from the optimum, where it is known",
           _distance, log=True, column="distance to optimum"),
)
# fmt: on
METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE}
