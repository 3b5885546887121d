"""Losses (n w_i / Σ w) F_i of all samples of clients, and their gradients."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from spodgt.problems.data.client_data import ClientData
from spodgt.problems.data.pytree import Tree
from spodgt.problems.data.samples import Samples
from spodgt.problems.evaluation import block_size
from spodgt.problems.gradients import PerClient
from spodgt.problems.models.trainable_model import TrainableModel
from spodgt.problems.user_code_errors import user_code_errors
from spodgt.types import Ints


class FullGradients:
    """Losses and gradients of all samples of clients."""

    def __init__(self, model: TrainableModel, data: ClientData) -> None:
        self.model = model
        self.data = data

    def __call__(self, x: Tensor, rows: Ints) -> tuple[Tensor, Tensor]:
        """Exact losses and gradients, in evaluation mode.

        Args:
            x: (n, columns) models.
            rows: (n,) clients.

        Returns:
            (n,) losses and (n, parameters) gradients.
        """
        self.model.check_columns(x)
        losses = torch.zeros(len(rows), dtype=x.dtype)
        gradients = x.new_zeros(len(rows), self.model.layout.size)
        fix = "; use gradient_norm=False"
        with user_code_errors("gradient in evaluation mode", "training data", fix):
            for position, client in enumerate(rows):
                self._add_gradient(
                    x[position : position + 1], client, losses[position], gradients[position]
                )
        if self.data.loss_scales is None:
            return losses, gradients
        scales = torch.from_numpy(self.data.loss_scales[rows]).to(gradients)
        return losses * scales.to(losses), gradients * scales[:, None]

    def _add_gradient(
        self, x: Tensor, client: int | np.integer, loss: Tensor, gradient: Tensor
    ) -> None:
        """Add the mean loss and gradient of all samples of a client.

        Args:
            x: (1, columns) model.
            client: number of the client.
            loss: () zero; the loss is added in place.
            gradient: (parameters,) zeros; the gradient is added in place.
        """
        objective = self.model.objective
        engine = self.model.active_engine
        samples = self.data.samples
        indices = self.data.client_indices[client]
        block = block_size(self.model, self.model.engine, 1)
        client_weight = self._total_weight(indices) or 1.0
        total = 0.0
        for start in range(0, len(indices), block):
            part = indices[start : start + block]
            inputs, targets = self.data.samples.batch(part, x.device, x.dtype)
            weight = objective.total_weight(targets, len(part)) / client_weight
            total += weight
            if weight:
                stacked_inputs = _add_client_axis(inputs)
                stacked_targets = _add_client_axis(targets)
                losses, gradients = engine.losses_and_gradients(
                    x, stacked_inputs, stacked_targets, None
                )
                loss += weight * float(losses[0])
                gradient += weight * gradients[0]
        if isinstance(samples, Samples):
            return
        if total:
            loss /= total
            gradient /= total
        if x.isfinite().all() and not loss.isfinite():
            samples.refuse_nonfinite(indices, 0)

    def _total_weight(self, indices: Ints) -> float:
        """The weight of samples in the mean loss; 1 if targets are not in memory."""
        samples = self.data.samples
        if not isinstance(samples, Samples):
            return 1.0
        rows = torch.from_numpy(indices).to(samples.targets.device)
        return self.model.objective.total_weight(samples.targets[rows], len(indices))


def _add_client_axis(batch: Tree) -> PerClient:
    """The batch of one client as a stack of batches: (1, batch, …), or a list with one tree."""
    if isinstance(batch, Tensor):
        return batch[None]
    return [batch]
