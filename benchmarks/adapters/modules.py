"""What adapters with PyTorch share: the module of the work, and its data as tensors."""

from __future__ import annotations

import torch
from meter import Floats, Work
from torch import Tensor, nn


def module(work: Work) -> nn.Sequential:
    """The model of the work, with its start."""
    layers: list[nn.Module] = []
    for weight in work.shapes[::2]:
        layers += [nn.Linear(weight[1], weight[0]), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), work.arrays(work.start), strict=True):
            parameter.copy_(torch.from_numpy(values))
    return model


def tensors(work: Work, client: int) -> tuple[Tensor, Tensor]:
    inputs, targets = work.share(client)
    return torch.from_numpy(inputs.copy()), torch.from_numpy(targets.copy())


def flat(model: nn.Module) -> Floats:
    with torch.no_grad():
        return torch.cat([parameter.flatten() for parameter in model.parameters()]).numpy()
