"""uint8 inputs: images are scaled to floats in [0, 1], whole numbers such as tokens stay as they are."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from spodgt.errors import InvalidInput
from spodgt.problems.client_data import ClientData
from spodgt.problems.objective import Objective
from spodgt.problems.trees import Tree, call, clone, leaves, seeded, tree_map
from spodgt.problems.trial import copied

_FEW = 4  # samples on which the model is tried


def resolve_byte_inputs(model: nn.Module, objective: Objective, data: ClientData) -> ClientData:
    """The data with uint8 inputs scaled, or as they are for a model that reads whole numbers.

    A loss of the form loss(model, batch) is given batches as they are.
    """
    if objective.whole:
        return data.with_raw_bytes()
    numbers = data.holdings[0][:_FEW]
    here = torch.device("cpu"), torch.float32
    raw, _ = data.with_raw_bytes().some(numbers, *here)
    if not any(isinstance(leaf, Tensor) and leaf.dtype == torch.uint8 for leaf in leaves(raw)):
        return data
    module = copied(model)
    outputs_of_raw = _outputs(module, raw)
    scaled, _ = data.some(numbers, *here)
    outputs_of_scaled = _outputs(module, scaled)
    if outputs_of_raw is None:
        if outputs_of_scaled is None and _outputs(module, tree_map(_to_int64, raw)) is not None:
            raise InvalidInput(
                "model needs its inputs as int64, got torch.uint8; use inputs.long() in the data or "
                "in the model."
            )
        return data  # a model that needs floats; if it fails on those, too, the trial tells why
    if outputs_of_scaled is None or _reads_whole_numbers(module, scaled, outputs_of_scaled):
        return data.with_raw_bytes()
    if not _equal(outputs_of_raw, outputs_of_scaled):
        warnings.warn(
            "uint8 inputs are scaled to [0, 1] before the model is called, but this model also takes them as "
            "they are; if it scales them itself, give inputs.float(), else inputs.float() / 255.",
            stacklevel=3,
        )
    return data


def _reads_whole_numbers(module: nn.Module, scaled: Tree, outputs: list[Tensor]) -> bool:
    """Whether only the whole part of inputs in [0, 1] counts, as for a model that begins with x.long()."""
    whole = tree_map(_floor, scaled)
    if _equal(list(_tensors(whole)), list(_tensors(scaled))):
        return False  # black and white: nothing can be told
    outputs_of_whole = _outputs(module, whole)
    return outputs_of_whole is not None and _equal(outputs_of_whole, outputs)


def _outputs(module: nn.Module, inputs: Tree) -> list[Tensor] | None:
    """The tensors that the module returns; None if it fails."""
    try:
        with torch.no_grad(), seeded(0), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return list(_tensors(call(module, clone(inputs))))
    except Exception:
        return None


def _tensors(tree: Tree) -> list[Tensor]:
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Tensor)]


def _equal(some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))


def _floor(leaf: object) -> object:
    return leaf.floor() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _to_int64(leaf: object) -> object:
    return leaf.long() if isinstance(leaf, Tensor) and leaf.dtype == torch.uint8 else leaf
