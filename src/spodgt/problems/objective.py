"""What is minimised and what is measured: a loss in one of its two forms, accuracy, a user's metrics.

loss(outputs, targets) is the form of torch's own losses; loss(model, batch), with a first parameter of that
name, calls the model itself, on batches of any form. Metrics have the same two forms.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from numbers import Real
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from spodgt.errors import InvalidInput
from spodgt.problems.losses import Loss, cross_entropy, mass, multi_margin, one_vs_rest
from spodgt.problems.samples import first_line
from spodgt.problems.trees import Tree, call, clone, leaves, tree_map
from spodgt.types import Better

Accuracy = Literal["classes", "signs"]  # the largest of several outputs is right; the sign of each output is
Function = Callable[..., object]
_SCORES = (cross_entropy, multi_margin, one_vs_rest, functional.cross_entropy, functional.nll_loss)
_SCORE_TYPES = nn.CrossEntropyLoss | nn.NLLLoss | nn.MultiMarginLoss
_ELEMENTWISE = (nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss, nn.BCELoss, nn.BCEWithLogitsLoss)
_ELEMENTWISE_FUNCTIONS = (
    functional.mse_loss,
    functional.l1_loss,
    functional.smooth_l1_loss,
    functional.huber_loss,
    functional.binary_cross_entropy,
    functional.binary_cross_entropy_with_logits,
)


@dataclass(frozen=True, eq=False)
class Objective:
    """The loss of a problem."""

    loss: Loss
    whole: bool  # it is loss(model, batch)
    ignored: int | None = None  # a target that the loss leaves out, where some sample has it
    autocast: bool = False  # forward passes of gradients in bfloat16, where torch.autocast says so

    def __call__(self, module: nn.Module, inputs: Tree, targets: Tree) -> Tensor:
        """The loss of one batch."""
        with self.precision(inputs):
            if self.whole:
                return self.loss(module, batch_of(inputs, targets))
            outputs = call(module, inputs)
        return self.of(self.widened(outputs), targets)

    def precision(self, inputs: Tree) -> AbstractContextManager[object]:
        """Around forward passes of gradients."""
        if not self.autocast:
            return nullcontext()
        kinds = (leaf.device.type for leaf in leaves(inputs) if isinstance(leaf, Tensor))
        return torch.autocast(next(kinds, "cpu"), torch.bfloat16)

    def widened(self, outputs: Tree) -> Tree:
        """Outputs as the loss takes them: in single precision again."""

        def widen(leaf: object) -> object:
            return leaf.float() if isinstance(leaf, Tensor) and leaf.dtype == torch.bfloat16 else leaf

        return tree_map(widen, outputs) if self.autocast else outputs

    def of(self, outputs: Tree, targets: Tree) -> Tensor:
        if self.ignored is not None and isinstance(targets, Tensor) and (targets == self.ignored).all():
            assert isinstance(outputs, Tensor)
            return (0 * outputs).sum()  # torch's mean over no sample would be NaN
        return self.loss(outputs, targets)

    def mass(self, targets: Tree, count: int) -> float:
        """What the loss of `count` samples counts in that of all."""
        return mass(self.loss, targets) if isinstance(targets, Tensor) else float(count)


def batch_of(inputs: Tree, targets: Tree) -> Tree:
    """What a loss(model, batch) is given: the batch as it was collated, or the pair (inputs, targets)."""
    return inputs if targets is None else (inputs, targets)


def takes_model(function: object) -> bool:
    """Whether a loss or a metric has the form f(model, batch): its first parameter is named `model`."""
    try:
        asked = function.forward if isinstance(function, nn.Module) else function
        names = list(inspect.signature(asked).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return bool(names) and names[0] == "model"


def compares_classes(loss: Loss) -> bool:
    """A loss whose whole-number targets are classes of the outputs."""
    return isinstance(loss, _SCORE_TYPES) or any(loss is known for known in _SCORES)


def compares_elements(loss: Loss) -> bool:
    """A loss that compares every output with a target of its own."""
    return isinstance(loss, _ELEMENTWISE) or any(loss is known for known in _ELEMENTWISE_FUNCTIONS)


def ignored_target(loss: Loss) -> int | None:
    """The target that this loss would leave out, if some sample had it."""
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        return loss.ignore_index
    return -100 if loss in (functional.cross_entropy, functional.nll_loss) else None


def accuracy_of(loss: Loss, outputs: Tree, targets: Tree) -> Accuracy | None:
    """How right answers are counted, judged by a few outputs; None where there are none to count."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return None
    if outputs.ndim == 2 and outputs.shape[1] >= 2 and targets.ndim == 1 and targets.dtype == torch.int64:
        return "classes"
    known = isinstance(loss, nn.BCEWithLogitsLoss) or loss is functional.binary_cross_entropy_with_logits
    return "signs" if known and outputs.shape == targets.shape else None


def right_answers(how: Accuracy, outputs: Tensor, targets: Tensor, ignored: int | None) -> tuple[Tensor, int]:
    """How many answers of every model are right, and out of how many; outputs are (models, samples, …)."""
    right = outputs.argmax(-1) == targets if how == "classes" else (outputs > 0) == (targets > 0.5)
    if ignored is not None:
        right = right[:, targets != ignored]
    right = right.flatten(1)
    return right.sum(1), right.shape[1]


# --- metrics --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Metric:
    """A user's function, over all outputs and targets of a test or over one batch."""

    name: str
    function: Function
    better: Better
    whole: bool  # it is f(model, batch), and batches are averaged by their size

    def __call__(self, *given: Tree) -> float:
        try:
            value = self.function(*(each if isinstance(each, nn.Module) else clone(each) for each in given))
            if isinstance(value, Tensor | np.ndarray | np.generic):
                value = value.item()
        except Exception as error:
            form = "(model, batch)" if self.whole else "(outputs, targets)"
            raise InvalidInput(
                f"metrics[{self.name!r}] failed on test data: {first_line(error)}; it is called with {form}."
            ) from error
        if not isinstance(value, Real):
            raise InvalidInput(
                f"metrics[{self.name!r}] must return one number, got {type(value).__name__}; return a float."
            )
        return float(value)


def read_metrics(given: object, *, whole: bool) -> tuple[Metric, ...]:
    """Metrics by name: functions, or pairs of a function and "up" or "down"."""
    if given is None:
        return ()
    if not isinstance(given, Mapping):
        raise InvalidInput(
            f'metrics must be a dict of functions by name, got {type(given).__name__}; use {{"f1": f}}.'
        )
    found = []
    for name, value in given.items():
        function, better = value if isinstance(value, tuple) and len(value) == 2 else (value, "up")
        if not isinstance(name, str) or not name.isidentifier() or name == "loss":
            raise InvalidInput(
                f'metrics must have names of letters other than "loss", got {name!r}; use "f1".'
            )
        if not callable(function):
            raise InvalidInput(
                f"metrics[{name!r}] must be a function, got {type(function).__name__}; "
                "write a function of (outputs, targets)."
            )
        if better not in ("up", "down"):
            raise InvalidInput(f'metrics[{name!r}] must be better "up" or "down", got {better!r}; use "up".')
        direction: Better = "up" if better == "up" else "down"
        model_first = takes_model(function)
        if whole and not model_first:
            raise InvalidInput(
                f"metrics[{name!r}] takes outputs and targets, but loss takes (model, batch); "
                "write a function of (model, batch)."
            )
        found.append(Metric(name, function, direction, model_first))
    return tuple(found)
