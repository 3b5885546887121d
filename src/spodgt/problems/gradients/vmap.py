"""All clients in one call through `torch.func.vmap`."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from spodgt.problems.data.pytree import Tree
from spodgt.problems.gradients import DropoutSeeds, Engine, Layout, PerClient
from spodgt.problems.losses import Objective, stacked_loss


@dataclass(frozen=True, eq=False)
class VmapEngine(Engine):
    """All clients in one call through `torch.func.vmap`, for accelerators."""

    module: nn.Module
    layout: Layout
    objective: Objective
    copies: dict[tuple[torch.device, torch.dtype], nn.Module] = field(
        default_factory=dict, repr=False
    )

    def with_objective(self, objective: Objective) -> VmapEngine:
        return replace(self, objective=objective, copies={})

    def _module(self, x: Tensor, *, training: bool) -> nn.Module:
        """The module with its constants where the models are, and of their type."""
        key = x.device, x.dtype
        if key not in self.copies:
            self.copies[key] = copy.deepcopy(self.module).to(*key)
        module = self.copies[key]
        return module if module.training == training else module.train(training)

    def losses_and_gradients(
        self, x: Tensor, inputs: PerClient, targets: PerClient, seeds: DropoutSeeds
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(inputs, Tensor)
        loss = stacked_loss(self.objective.loss) or vmap(self.objective.loss)
        module = self._module(x, training=seeds is not None)

        def forward(row: Tensor, batch: Tensor) -> Tensor:
            outputs: Tensor = functional_call(module, self.layout.unflatten(row), (batch,))
            return outputs

        with torch.enable_grad():
            x = x.detach().requires_grad_()
            losses = loss(vmap(forward)(x, inputs), targets)
            (g,) = torch.autograd.grad(losses.sum(), x)
        return losses.detach(), g

    def outputs(self, x: Tensor, inputs: Tree) -> Tensor:
        assert isinstance(inputs, Tensor)
        module = self._module(x, training=False)
        own = inputs.clone()  # a forward pass may write into it

        def forward(row: Tensor) -> Tensor:
            outputs: Tensor = functional_call(module, self.layout.unflatten(row), (own,))
            return outputs

        return vmap(forward)(x)
