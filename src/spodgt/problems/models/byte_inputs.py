"""uint8 inputs: images are scaled to floats in [0, 1], integers such as tokens are not."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from spodgt.errors import InvalidInput
from spodgt.problems.data.client_data import ClientData
from spodgt.problems.data.pytree import Tree, clone, seeded, tensor_leaves, tree_map
from spodgt.problems.losses import Objective, call_module
from spodgt.problems.models.probe import copy_in_float32

_PROBE_SAMPLES = 4


def resolve_byte_inputs(model: nn.Module, objective: Objective, data: ClientData) -> ClientData:
    """Decide whether uint8 inputs are scaled, by calling the model on a few samples.

    Inputs remain integers for a model that reads integers, and for a loss(model, batch).

    Raises:
        InvalidInput: if the model needs int64 inputs.
    """
    raw_data = data.convert_samples(lambda samples: samples.with_raw_bytes())
    if objective.calls_model:
        return raw_data
    indices = data.client_indices[0][:_PROBE_SAMPLES]
    cpu = torch.device("cpu")
    raw, _ = raw_data.samples.batch(indices, cpu, torch.float32)
    if all(tensor.dtype != torch.uint8 for tensor in tensor_leaves(raw)):
        return data
    module = copy_in_float32(model)
    raw_outputs = _call(module, raw)
    scaled, _ = data.samples.batch(indices, cpu, torch.float32)
    scaled_outputs = _call(module, scaled)
    if raw_outputs is None:
        if scaled_outputs is None and _call(module, tree_map(_to_int64, raw)) is not None:
            raise InvalidInput(
                "model needs its inputs as int64, got torch.uint8; use inputs.long() in the data "
                "or in the model."
            )
        return data  # a model that needs floats; if it fails on those, the probe reports why
    if scaled_outputs is None or _reads_integers(module, scaled, scaled_outputs):
        return raw_data
    if not _is_equal(raw_outputs, scaled_outputs):
        warnings.warn(
            "uint8 inputs are scaled to [0, 1] before the model is called, but this model also "
            "takes them as they are; if it scales them itself, give inputs.float(), else "
            "inputs.float() / 255.",
            stacklevel=3,
        )
    return data


def _reads_integers(module: nn.Module, scaled: Tree, scaled_outputs: list[Tensor]) -> bool:
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
