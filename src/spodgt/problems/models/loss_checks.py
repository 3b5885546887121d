"""Checks of a loss on a few samples, before the first round."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from spodgt._util.text import first_line
from spodgt.errors import InvalidInput
from spodgt.problems.data.pytree import Tree, clone, concat
from spodgt.problems.losses import Loss, Objective, call_module, compares_classes, compares_elements
from spodgt.problems.random_state import seeded
from spodgt.problems.user_code_errors import user_code_errors


def evaluate_once(
    module: nn.Module, objective: Objective, inputs: Tree, targets: Tree
) -> Tree | None:
    """Compute the loss of one batch in evaluation mode and check it.

    Returns:
        The outputs of the module; None for a loss(model, batch).

    Raises:
        InvalidInput: if the module or the loss fails, the loss is not one number, or it compares
            outputs and targets of different shapes.
    """
    outputs = None
    fix = ""
    if isinstance(inputs, Tensor) and isinstance(targets, Tensor):
        shapes = f"inputs are {_batch_shape(inputs)}, targets {_batch_shape(targets)}"
        fix = f"; {shapes}: make model and loss fit them."
    with (
        user_code_errors("model and loss", fix=fix),
        _shape_warnings() as messages,
        torch.no_grad(),
    ):
        if objective.calls_model:
            value = objective(module, clone(inputs), clone(targets))
        else:
            outputs = call_module(module, clone(inputs))
            _check_targets_fit(objective.loss, outputs, targets)
            value = objective.loss_of(outputs, clone(targets))
    if not isinstance(value, Tensor):
        raise InvalidInput(
            f"loss must return a tensor, got {type(value).__name__}; return one number."
        )
    if value.shape:
        raise InvalidInput(
            f"loss must return one number, got shape {tuple(value.shape)}; use reduction='mean'."
        )
    if messages:
        raise InvalidInput(f"loss compares outputs and targets of unequal shape: {messages[0]}")
    return outputs


@contextmanager
def _shape_warnings() -> Iterator[list[str]]:
    """Collect the warnings of torch about outputs and targets of different shapes."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield messages
    for warning in caught:
        if "target size" in str(warning.message):
            messages.append(first_line(str(warning.message)))


def _check_targets_fit(loss: Loss, outputs: Tree, targets: Tree) -> None:
    """Refuse targets that torch would broadcast or convert without an error."""
    if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
        return
    name = _name_of(loss)
    if compares_elements(loss):
        if outputs.shape != targets.shape:
            fix = "targets of the outputs' shape"
            if outputs.ndim == targets.ndim + 1:
                fix = "targets[:, None]"
            raise InvalidInput(
                f"{name} compares outputs {_batch_shape(outputs)} with targets "
                f"{_batch_shape(targets)} of another shape; use {fix}."
            )
        if not targets.is_floating_point():
            raise InvalidInput(
                f"{name} needs targets of floats, got whole numbers; use targets.float()."
            )
        return
    has_probabilities = targets.is_floating_point() and targets.shape == outputs.shape
    if compares_classes(loss) and targets.is_floating_point() and not has_probabilities:
        raise InvalidInput(
            f"{name} needs whole numbers as targets, got {targets.dtype}; use targets.long()."
        )


def _name_of(loss: Loss) -> str:
    if isinstance(loss, nn.Module):
        return type(loss).__name__
    return getattr(loss, "__name__", "loss")


def _batch_shape(tensor: Tensor) -> str:
    """A shape with "batch" as the first axis: (batch, 10)."""
    axes = ["batch", *map(str, tensor.shape[1:])]
    return f"({', '.join(axes)})"


def refuse_sum(module: nn.Module, objective: Objective, inputs: Tree, targets: Tree) -> None:
    """Refuse a loss that is the sum over the samples of a batch instead of their mean.

    A sum has twice the value for the same samples twice. Its gradient, and with it the step size
    that works, would depend on the number of samples in a batch.
    """
    loss = objective.loss
    if getattr(loss, "reduction", None) == "sum":
        raise InvalidInput(
            f"loss must be the mean over the samples of a batch, got {type(loss).__name__} with "
            "reduction='sum'; use reduction='mean'."
        )
    if isinstance(loss, nn.Module) and type(loss).__module__.startswith("torch."):
        return
    try:
        with torch.no_grad(), seeded(0):
            once = float(objective(module, _repeat(inputs, 1), _repeat(targets, 1)))
            twice = float(objective(module, _repeat(inputs, 2), _repeat(targets, 2)))
    except Exception:
        return  # a loss that needs a fixed number of samples is not a sum
    if once != 0 and abs(twice - 2 * once) < 1e-4 * abs(once):
        raise InvalidInput(
            f"loss must be the mean over the samples of a batch, but is their sum: {once:.4g} for "
            f"a few samples, {twice:.4g} for the same samples twice; divide it by the number of "
            "samples."
        )


def _repeat(batch: Tree, copies: int) -> Tree:
    return concat([clone(batch) for _ in range(copies)])


def check_gradient(module: nn.Module, loss: Loss, value: Tensor) -> None:
    """Differentiate the loss of a batch, and check that it trains the module and nothing else.

    Args:
        module: the module that computed `value`.
        loss: the loss function.
        value: the loss of a batch, a scalar.

    Raises:
        InvalidInput: if no parameter has a gradient, or parameters outside the module have one.
    """
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    own_ids = {id(parameter) for parameter in trainable}
    used = _parameters_of_graph(value)
    foreign = [parameter for parameter in used if id(parameter) not in own_ids]
    if foreign and len(foreign) < len(used):
        raise InvalidInput(
            "loss must depend on no trainable parameters but the model's, but it uses "
            f"{_describe_parameter(loss, foreign[0])}, which would never be trained; make it part "
            "of the model and use loss(model, batch), or freeze it by requires_grad_(False)."
        )
    if value.requires_grad and not foreign:
        value.backward()  # type: ignore[no-untyped-call]
    if all(parameter.grad is None for parameter in trainable):
        raise InvalidInput(
            "loss must depend on the parameters of the model, but has no gradient; compute it "
            "from the outputs, without detach() or item()."
        )
    module.zero_grad(set_to_none=True)


def _describe_parameter(loss: Loss, parameter: nn.Parameter) -> str:
    if isinstance(loss, nn.Module):
        for name, candidate in loss.named_parameters():
            if candidate is parameter:
                return repr(name)
    return f"a parameter of shape {tuple(parameter.shape)}"


def _parameters_of_graph(value: Tensor) -> list[nn.Parameter]:
    """The trainable parameters from which a value was computed, in no particular order."""
    parameters = []
    visited = set()
    pending = [value.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        variable = getattr(node, "variable", None)  # of nodes that accumulate gradients of leaves
        if isinstance(variable, nn.Parameter):
            parameters.append(variable)
        for next_node, _ in node.next_functions:
            pending.append(next_node)
    return parameters
