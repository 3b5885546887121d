"""Losses, and how they are called: loss(outputs, targets) or loss(model, batch).

The first form is that of the losses of torch. The second, recognised by the name `model` of its
first parameter, calls the model itself on batches of any form.

The losses of this file take outputs (…, batch, classes) and targets (…, batch) and return one mean
per leading index, (…), so that the losses of all clients are one call. `gradients.linear_model` has
their derivatives. Bytecode and docstrings of these functions are part of the fingerprint by which a
run is resumed (`models.fingerprint`): a change of either makes runs of earlier versions look
different.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from spodgt.errors import InvalidInput
from spodgt.problems.data.pytree import Tree

Loss = Callable[..., Tensor]  # (outputs, targets), or (model, batch)


def multi_margin(outputs: Tensor, targets: Tensor) -> Tensor:
    """`torch.nn.MultiMarginLoss`: the mean over classes of max(0, 1 - s_y + s_c)."""
    target_scores = outputs.gather(-1, targets[..., None])
    margins = (1 - target_scores + outputs).clamp_min(0)
    margins = margins.scatter(-1, targets[..., None], 0.0)
    return margins.sum(-1).mean(-1) / outputs.shape[-1]


def one_vs_rest(outputs: Tensor, targets: Tensor) -> Tensor:
    """One binary hinge per class, max(0, 1 - t_c s_c) with t = ±1, mean over classes."""
    signs = torch.full_like(outputs, -1.0).scatter(-1, targets[..., None], 1.0)
    return (1 - signs * outputs).clamp_min(0).mean(-1).mean(-1)


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The logistic loss of `torch.nn.CrossEntropyLoss`."""
    return -outputs.log_softmax(-1).gather(-1, targets[..., None]).squeeze(-1).mean(-1)


def stacked_loss(loss: Loss) -> Loss | None:
    """The function here that computes a loss for many clients at once; None if there is none."""
    if any(loss is function for function in LOSSES):
        return loss
    is_plain_mean = getattr(loss, "weight", None) is None
    is_plain_mean &= getattr(loss, "reduction", "") == "mean"
    if not is_plain_mean:
        return None
    # The exact types: a subclass may be another loss.
    if type(loss) is nn.MultiMarginLoss and loss.p == loss.margin == 1:
        return multi_margin
    if type(loss) is nn.CrossEntropyLoss and loss.label_smoothing == 0 and loss.ignore_index < 0:
        return cross_entropy
    return None


# Numbers of the losses in `gradients.linear_model`.
LOSSES: dict[Loss, int] = {multi_margin: 0, cross_entropy: 1, one_vs_rest: 2}

# --- the objective -------------------------------------------------------------------------------
_CLASS_LOSSES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)
_CLASS_LOSS_FUNCTIONS = (
    cross_entropy,
    multi_margin,
    one_vs_rest,
    functional.cross_entropy,
    functional.nll_loss,
)
_ELEMENTWISE_LOSSES = (
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
)
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
    """The loss of a problem.

    Args:
        loss: loss(outputs, targets) or loss(model, batch).
        calls_model: whether it is loss(model, batch).
        ignore_index: a target that the loss ignores, if a sample has it.
    """

    loss: Loss
    calls_model: bool
    ignore_index: int | None = None

    def __call__(self, module: nn.Module, inputs: Tree, targets: Tree) -> Tensor:
        """The mean loss of one batch, a scalar."""
        if self.calls_model:
            return self.loss(module, join_batch(inputs, targets))
        return self.loss_of(call_module(module, inputs), targets)

    def loss_of(self, outputs: Tree, targets: Tree) -> Tensor:
        """The mean loss of outputs, a scalar; zero if all targets are ignored."""
        if (
            self.ignore_index is not None
            and isinstance(targets, Tensor)
            and bool((targets == self.ignore_index).all())
        ):
            assert isinstance(outputs, Tensor)
            return (0 * outputs).sum()  # the mean of torch over no sample is NaN
        return self.loss(outputs, targets)

    def total_weight(self, targets: Tree, count: int) -> float:
        """The weight of the mean loss of `count` samples in a mean over several batches.

        It is the number of targets, or the sum of their class weights if the loss has any.
        """
        if not isinstance(targets, Tensor):
            return float(count)
        loss = self.loss
        if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss) and not targets.is_floating_point():
            targets = targets[targets != loss.ignore_index]
            if loss.weight is not None:
                return float(loss.weight[targets].sum())
        return float(targets.numel())


def call_module(module: nn.Module, inputs: Tree) -> Tree:
    """Call a module: model(**inputs) for a mapping, model(*inputs) for a tuple or list."""
    if isinstance(inputs, Mapping):
        return module(**inputs)
    if isinstance(inputs, tuple | list):
        return module(*inputs)
    return module(inputs)


def join_batch(inputs: Tree, targets: Tree) -> Tree:
    """The batch of a loss(model, batch): as collated, or the pair (inputs, targets)."""
    if targets is None:
        return inputs
    return inputs, targets


def check_loss(loss: object) -> Objective:
    """Check that a loss is callable and detect its form.

    Raises:
        InvalidInput: if it is not callable, or a module that cannot be hashed.
    """
    if not callable(loss):
        raise InvalidInput(
            f"loss must be callable, got {type(loss).__name__}; use torch.nn.CrossEntropyLoss()."
        )
    if isinstance(loss, nn.Module) and type(loss).__hash__ is None:  # torch hashes modules
        raise InvalidInput(
            f"loss must be a module that can be hashed, but {type(loss).__name__} defines __eq__ "
            "without __hash__; remove __eq__, or use @dataclass(eq=False)."
        )
    return Objective(loss, calls_model(loss))


def calls_model(function: object) -> bool:
    """Whether a loss or metric has the form f(model, batch): its first parameter is `model`."""
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        names = list(inspect.signature(called).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
    return bool(names) and names[0] == "model"


def compares_classes(loss: Loss) -> bool:
    """Whether integer targets of a loss are classes of the outputs."""
    if isinstance(loss, _CLASS_LOSSES):
        return True
    return any(loss is function for function in _CLASS_LOSS_FUNCTIONS)


def compares_elements(loss: Loss) -> bool:
    """Whether a loss compares each output with a target at the same position."""
    if isinstance(loss, _ELEMENTWISE_LOSSES):
        return True
    return any(loss is function for function in _ELEMENTWISE_FUNCTIONS)


def ignore_index_of(loss: Loss) -> int | None:
    """The target that a loss ignores; None if it ignores none."""
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        return loss.ignore_index
    if loss in (functional.cross_entropy, functional.nll_loss):
        return -100  # the default of torch
    return None
