"""Private attributes of torch: hooks are found, and a torch without the attributes is no error."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spodgt
from spodgt.errors import InvalidInput
from spodgt.problems.models import torch_internals
from spodgt.problems.models.fingerprint import fingerprint

DATA = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))]


def hook(module: nn.Module, inputs: object, outputs: torch.Tensor) -> torch.Tensor:
    return 2 * outputs


def test_hooks_are_found() -> None:
    layer = nn.Linear(3, 2)
    assert not torch_internals.has_hooks(layer)
    layer.register_forward_hook(hook)
    assert torch_internals.forward_hooks(layer) == [hook]
    assert torch_internals.has_hooks(layer)
    assert fingerprint(layer) != fingerprint(nn.Linear(3, 2))


def test_gradient_hooks_of_parameters_are_refused() -> None:
    layer = nn.Linear(3, 2)
    layer.weight.register_hook(lambda gradient: gradient)  # type: ignore[no-untyped-call]
    assert torch_internals.has_gradient_hooks(layer.weight)
    with pytest.raises(InvalidInput, match="model must not have hooks on parameters"):
        spodgt.Learning(layer, nn.CrossEntropyLoss(), DATA)


def test_a_torch_without_the_private_attributes_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_internals, "_FORWARD_HOOKS", ("_removed",))
    monkeypatch.setattr(torch_internals, "_BACKWARD_HOOKS", ("_removed",))
    layer = nn.Linear(3, 2)
    assert torch_internals.forward_hooks(layer) == []
    assert not torch_internals.has_hooks(layer)
    assert not torch_internals.has_gradient_hooks(nn.Parameter(torch.zeros(2)))
    assert torch_internals.reset_method(nn.ReLU()) is None
    spodgt.Learning(layer, nn.CrossEntropyLoss(), DATA)


def test_multihead_attention_is_drawn_anew() -> None:
    assert torch_internals.reset_method(nn.MultiheadAttention(4, 2)) is not None
