"""All clients in one call through `torch.func.vmap`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from spodgt.problems.gradients import Engine, Layout, Noise
from spodgt.problems.losses import Loss, stacked_loss


@dataclass(frozen=True, eq=False)
class VmapEngine(Engine):
    """All clients in one call through `torch.func.vmap`; fits small dense networks."""

    module: nn.Module
    layout: Layout
    loss: Loss

    def _forward(self, x: Tensor, inputs: Tensor) -> Tensor:
        return functional_call(self.module, self.layout.unflatten(x), (inputs,))  # type: ignore[no-any-return]

    def with_losses(self, x: Tensor, inputs: Tensor, targets: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        loss = stacked_loss(self.loss) or vmap(self.loss)
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            losses = loss(vmap(self._forward)(x, inputs), targets)
            (g,) = torch.autograd.grad(losses.sum(), x)
        return losses.detach(), g

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        return vmap(self._forward, in_dims=(0, None))(x, inputs)
