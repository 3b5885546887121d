"""Metrics of an evaluation: accuracy, and functions of the user.

A metric has one of the two forms of a loss: f(outputs, targets) of all test samples, or
f(model, batch), averaged over the batches by their sizes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from spodgt._util.text import first_line
from spodgt.errors import InvalidInput
from spodgt.problems.data.pytree import Tree, clone
from spodgt.problems.losses import Loss, calls_model
from spodgt.types import Better

# "classes": the largest output is the predicted class. "signs": each output is a binary label.
Accuracy = Literal["classes", "signs"]
MetricFunction = Callable[..., object]


# --- accuracy ------------------------------------------------------------------------------------
def accuracy_of(loss: Loss, outputs: Tree, targets: Tree) -> Accuracy | None:
    """How accuracy is computed, inferred from a few outputs; None if it is undefined."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return None
    has_scores = outputs.ndim == 2 and outputs.shape[1] >= 2
    if has_scores and targets.ndim == 1 and targets.dtype == torch.int64:
        return "classes"
    is_binary = isinstance(loss, nn.BCEWithLogitsLoss)
    is_binary |= loss is functional.binary_cross_entropy_with_logits
    if is_binary and outputs.shape == targets.shape:
        return "signs"
    return None


def count_correct(
    accuracy: Accuracy, outputs: Tensor, targets: Tensor, ignore_index: int | None
) -> tuple[Tensor, int]:
    """Count correct predictions.

    Args:
        accuracy: see `Accuracy`.
        outputs: (models, samples, …).
        targets: (samples, …).
        ignore_index: target of samples that are not counted.

    Returns:
        (models,) correct predictions, and the number of predictions.
    """
    if accuracy == "classes":
        is_correct = outputs.argmax(-1) == targets
    else:
        is_correct = (outputs > 0) == (targets > 0.5)
    if ignore_index is not None:
        is_correct = is_correct[:, targets != ignore_index]
    is_correct = is_correct.flatten(1)
    return is_correct.sum(1), is_correct.shape[1]


# --- metrics of the user -------------------------------------------------------------------------
@dataclass(frozen=True)
class UserMetric:
    """A metric function of the user.

    Args:
        name: column in the results.
        function: f(outputs, targets) or f(model, batch).
        better: "up" if larger values are better, otherwise "down".
        calls_model: whether it is f(model, batch).
    """

    name: str
    function: MetricFunction
    better: Better
    calls_model: bool

    def of_batch(self, module: nn.Module, batch: Tree) -> float:
        """f(model, batch)."""
        return self._call(module, clone(batch))

    def of_outputs(self, outputs: Tree, targets: Tree) -> float:
        """f(outputs, targets)."""
        return self._call(clone(outputs), clone(targets))

    def _call(self, *arguments: object) -> float:
        try:
            value = self.function(*arguments)
            if isinstance(value, Tensor | np.ndarray | np.generic):
                value = value.item()
        except Exception as error:
            form = "(model, batch)" if self.calls_model else "(outputs, targets)"
            raise InvalidInput(
                f"metrics[{self.name!r}] failed on test data: {first_line(error)}; "
                f"it is called with {form}."
            ) from error
        if not isinstance(value, Real):
            raise InvalidInput(
                f"metrics[{self.name!r}] must return one number, got {type(value).__name__}; "
                "return a float."
            )
        return float(value)


def read_metrics(given: object, *, loss_calls_model: bool) -> tuple[UserMetric, ...]:
    """Check the metrics of the user.

    Args:
        given: a mapping from names to functions, or to pairs (function, "up" or "down"); or None.
        loss_calls_model: whether the loss is loss(model, batch); then metrics must be, too.

    Raises:
        InvalidInput: with the first metric that is invalid.
    """
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise InvalidInput(
            f"metrics must be a dict of functions by name, got {type(given).__name__}; "
            'use {"f1": f}.'
        )
    return tuple(_read_metric(name, value, loss_calls_model) for name, value in given.items())


def _suggest_name(name: object) -> str:
    """A name that is allowed and resembles `name`, such as "macro_f1" for "macro-f1"."""
    suggestion = re.sub(r"\W+", "_", str(name)).strip("_")
    return suggestion if suggestion.isidentifier() and suggestion != "loss" else "f1"


def _read_metric(name: object, value: object, loss_calls_model: bool) -> UserMetric:
    function = value
    better: object = "up"
    if isinstance(value, tuple) and len(value) == 2:
        function, better = value
    if not isinstance(name, str) or not name.isidentifier() or name == "loss":
        raise InvalidInput(
            "metrics must have names of letters, digits and _ that begin with a letter, other than "
            f'"loss", got {name!r}; use "{_suggest_name(name)}".'
        )
    if not callable(function):
        raise InvalidInput(
            f"metrics[{name!r}] must be a function, got {type(function).__name__}; "
            "write a function of (outputs, targets)."
        )
    if better not in ("up", "down"):
        raise InvalidInput(
            f'metrics[{name!r}] must be better "up" or "down", got {better!r}; use "up".'
        )
    metric_calls_model = calls_model(function)
    if loss_calls_model and not metric_calls_model:
        raise InvalidInput(
            f"metrics[{name!r}] takes outputs and targets, but loss takes (model, batch); "
            "write a function of (model, batch)."
        )
    direction: Better = "up" if better == "up" else "down"
    return UserMetric(name, function, direction, metric_calls_model)
