"""Gradients of a linear model in closed form, in PyTorch.

`linear_model` has the same in compiled loops.

A model is (classes × features) weights, class by class, then `classes` biases if the layer has any.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spodgt.problems.data.pytree import Tree
from spodgt.problems.gradients import DropoutSeeds, Engine, LinearLayer, PerClient
from spodgt.problems.losses import Loss, Objective


@dataclass(frozen=True, eq=False)
class LinearEngine(Engine):
    """A single linear layer: logits and gradients are batched matrix products."""

    features: int
    classes: int
    bias: bool
    loss: Loss  # one of LOSSES

    @property
    def linear_layer(self) -> LinearLayer:
        return LinearLayer(self.classes, self.bias, self.loss)

    def with_objective(self, objective: Objective) -> LinearEngine:
        return self  # its losses have no tensors

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights (models, classes, features) and biases (models, 1, classes)."""
        W = x[:, : self.classes * self.features].reshape(-1, self.classes, self.features)
        b = x[:, self.classes * self.features :] if self.bias else x.new_zeros(len(x), self.classes)
        return W, b[:, None]

    def losses_and_gradients(
        self, x: Tensor, inputs: PerClient, targets: PerClient, seeds: DropoutSeeds
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(inputs, Tensor)
        W, b = self._split(x.detach())
        with torch.enable_grad():
            logits = torch.baddbmm(b, inputs.flatten(2), W.mT).requires_grad_()
            losses = self.loss(logits, targets)
            (slope,) = torch.autograd.grad(losses.sum(), logits)
        g = torch.empty_like(x)
        weights = g[:, : self.classes * self.features]
        weights = weights.view(-1, self.classes, self.features)
        torch.bmm(slope.mT, inputs.flatten(2), out=weights)
        if self.bias:
            g[:, self.classes * self.features :] = slope.sum(1)
        return losses.detach(), g

    def outputs(self, x: Tensor, inputs: Tree) -> Tensor:
        assert isinstance(inputs, Tensor)
        W, b = self._split(x)
        flat = W.reshape(-1, self.features) @ inputs.flatten(1).T  # one product for all models
        return flat.view(len(x), self.classes, len(inputs)).mT + b
