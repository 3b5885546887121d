"""uint8 inputs: images are scaled to floats in [0, 1], integers such as tokens are not."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from spodgt.errors import InvalidInput
from spodgt.problems.data.client_data import ClientData
from spodgt.problems.data.pytree import Tree, clone, tensor_leaves, tree_map
from spodgt.problems.losses import Objective, call_module
from spodgt.problems.models.probe import copy_in_float32
from spodgt.problems.random_state import seeded

_PROBE_SAMPLES = 4


def resolve_byte_inputs(model: nn.Module, objective: Objective, data: ClientData) -> ClientData:
    """Decide whether uint8 inputs are scaled, by calling the model on a few samples.

        loss(model, batch)                              raw: batches are passed as they are
        model fails on integers and on floats           scaled; the model probe reports the error
        model fails on integers                         scaled
        model fails on floats, or ignores fractions     raw: it reads integers
        model takes both                                scaled, with a warning if the outputs differ

    Args:
        model: the module as given.
        objective: the loss.
        data: of the clients; uint8 inputs are scaled.

    Returns:
        The data, with raw inputs or unchanged.

    Raises:
        InvalidInput: if the model needs int64 inputs.
    """
    raw_data = data.convert_samples(lambda samples: samples.with_raw_bytes())
    if objective.calls_model:
        return raw_data
    raw = _first_inputs(raw_data)
    if all(tensor.dtype != torch.uint8 for tensor in tensor_leaves(raw)):
        return data
    module = copy_in_float32(model)
    scaled = _first_inputs(data)
    raw_outputs = _call(module, raw)
    scaled_outputs = _call(module, scaled)
    if raw_outputs is None and scaled_outputs is None:
        _refuse_int64_model(module, raw)
    if raw_outputs is None:
        return data
    if scaled_outputs is None or _ignores_fractions(module, scaled, scaled_outputs):
        return raw_data
    if not _is_equal(raw_outputs, scaled_outputs):
        warnings.warn(
            "uint8 inputs are scaled to [0, 1] before the model is called, but this model also "
            "takes them as they are; if it scales them itself, give inputs.float(), else "
            "inputs.float() / 255.",
            stacklevel=3,
        )
    return data


def _first_inputs(data: ClientData) -> Tree:
    """The inputs of a few samples of client 0."""
    indices = data.client_indices[0][:_PROBE_SAMPLES]
    inputs, _ = data.samples.batch(indices, torch.device("cpu"), torch.float32)
    return inputs


def _refuse_int64_model(module: nn.Module, raw: Tree) -> None:
    """Raise `InvalidInput` if a model takes inputs as int64, but not as uint8."""
    if _call(module, tree_map(_to_int64, raw)) is not None:
        raise InvalidInput(
            "model needs its inputs as int64, got torch.uint8; use inputs.long() in the data or in "
            "the model."
        )


def _ignores_fractions(module: nn.Module, scaled: Tree, scaled_outputs: list[Tensor]) -> bool:
    """Whether only the integer part of inputs matters, as for a model that calls x.long()."""
    floored = tree_map(_floor, scaled)
    if _is_equal(tensor_leaves(floored), tensor_leaves(scaled)):
        return False  # black and white images: both hypotheses have the same outputs
    floored_outputs = _call(module, floored)
    return floored_outputs is not None and _is_equal(floored_outputs, scaled_outputs)


def _call(module: nn.Module, inputs: Tree) -> list[Tensor] | None:
    """The tensors that the module returns; None if it fails."""
    try:
        with torch.no_grad(), seeded(0), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return tensor_leaves(call_module(module, clone(inputs)))
    except Exception:
        return None


def _is_equal(tensors: list[Tensor], others: list[Tensor]) -> bool:
    return len(tensors) == len(others) and all(map(torch.equal, tensors, others))


def _floor(leaf: object) -> object:
    if isinstance(leaf, Tensor) and leaf.is_floating_point():
        return leaf.floor()
    return leaf


def _to_int64(leaf: object) -> object:
    if isinstance(leaf, Tensor) and leaf.dtype == torch.uint8:
        return leaf.long()
    return leaf
