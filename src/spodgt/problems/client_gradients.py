"""Gradients of the clients' losses: of mini-batches and of all samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spodgt.engine import fits_loops, loops_enabled
from spodgt.problems.data.client_data import BatchGroup, ClientData
from spodgt.problems.data.pytree import Tree
from spodgt.problems.data.sampling import DROPOUT_STREAM, Samples, client_seeds
from spodgt.problems.evaluation import block_size
from spodgt.problems.gradients import Many
from spodgt.problems.losses import LOSSES
from spodgt.problems.models.trainable_model import TrainableModel
from spodgt.problems.protocols import LinearData
from spodgt.problems.user_code import user_code_errors
from spodgt.types import Ints, Minibatches


@dataclass(frozen=True, eq=False)
class ClientGradients:
    """Computes gradients of the scaled losses (n w_i / Σ w) F_i of n clients."""

    model: TrainableModel
    data: ClientData

    # --- mini-batches ----------------------------------------------------------------------------
    def of_minibatches(
        self, x: Tensor, batches: Minibatches, linear_data: LinearData | None
    ) -> Tensor:
        """Stochastic gradients.

        Args:
            x: (n, columns) models. Running statistics and personal parameters are updated in place.
            batches: the mini-batches to draw, for n clients.
            linear_data: for compiled loops; None: use the engine of the model.

        Returns:
            (n, parameters).
        """
        self.model.check_columns(x)
        if linear_data is not None and fits_loops(x):
            gradients = self._linear_gradients(x, linear_data, batches)
        else:
            gradients = self._engine_gradients(x, batches)
        scales = self._loss_scales(batches.rows, gradients)
        if scales is None:
            return gradients
        return gradients * scales[:, None]

    def _engine_gradients(self, x: Tensor, batches: Minibatches) -> Tensor:
        gradients = x.new_empty(len(x), self.model.layout.size)
        for group in self.data.group_by_batch_size(batches.rows):
            models = x[group.rows]
            part = self._gradients_of_group(models, batches.part(group.rows), group)
            if isinstance(group.rows, slice):  # all clients: `models` is a view of x
                return part
            gradients[group.rows] = part
            if self.model.columns.extra.names:
                x[group.rows] = models
        return gradients

    def _gradients_of_group(self, x: Tensor, batches: Minibatches, group: BatchGroup) -> Tensor:
        """(n, parameters) gradients of clients with mini-batches of the same size."""
        with user_code_errors("model and loss", f"mini-batches of round {batches.k}"):
            seeds = client_seeds(batches, DROPOUT_STREAM)
            inputs, targets = self.data.minibatch(batches, group.size, x.device, x.dtype)
            gradients = self.model.active_engine.grads(x, inputs, targets, seeds)
        if not isinstance(self.data.samples, Samples):  # samples in memory are checked already
            self._refuse_nonfinite(x, gradients, batches, group.size)
        return gradients

    def _refuse_nonfinite(
        self, x: Tensor, gradients: Tensor, batches: Minibatches, size: int
    ) -> None:
        """Raise `InvalidData` for a sample that gives a finite model an infinite gradient."""
        is_finite_model = x[:, : self.model.layout.size].isfinite().all(1)
        is_broken = is_finite_model & ~gradients.isfinite().all(1)
        for row in torch.nonzero(is_broken).flatten().tolist():
            self.data.refuse_nonfinite(batches.part(np.array([row])), size)

    def _linear_gradients(self, x: Tensor, data: LinearData, batches: Minibatches) -> Tensor:
        """Gradients of a linear model in compiled loops."""
        from spodgt.problems.gradients.linear_model import (
            Scratch,
            chunk_length,
            linear_gradients,
            padded_stride,
        )

        gradients = x.new_empty(len(x), self.model.layout.size)
        models = x.numpy()
        stride = padded_stride(data, models.dtype)
        for group in self.data.group_by_batch_size(batches.rows):
            scratch = Scratch.create(data, group.size, models.dtype)
            linear_gradients(
                models,
                gradients.numpy(),
                data,
                stride,
                batches.part(group.rows),
                np.arange(len(x))[group.rows],
                group.size,
                chunk_length(stride, group.size),
                scratch,
            )
        return gradients

    def linear_data(self, dtype: torch.dtype) -> LinearData | None:
        """The data of a linear model for compiled loops; None if loops cannot be used."""
        layer = self.model.engine.linear_layer
        if layer is None or not loops_enabled():
            return None
        if self.data.augment or self.data.loss_scales is not None:
            return None
        samples = self.data.stacked
        inputs = samples.inputs
        if inputs.device.type != "cpu" or not inputs.is_contiguous():
            return None
        if inputs.dtype not in (torch.uint8, dtype):
            return None
        scale = 1.0
        if inputs.dtype == torch.uint8 and samples.scales_bytes:
            scale = 1 / 255
        return LinearData(
            self.data.client_indices.indices,
            self.data.client_indices.offsets,
            inputs.flatten(1).numpy(),
            samples.targets.numpy(),
            scale,
            layer.classes,
            layer.bias,
            LOSSES[layer.loss],
        )

    # --- all samples -----------------------------------------------------------------------------
    def of_all_samples(self, x: Tensor, rows: Ints) -> tuple[Tensor, Tensor]:
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
                self._add_full_gradient(
                    x[position : position + 1], client, losses[position], gradients[position]
                )
        scales = self._loss_scales(np.asarray(rows), gradients)
        if scales is None:
            return losses, gradients
        return losses * scales.to(losses), gradients * scales[:, None]

    def _add_full_gradient(
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
            inputs, targets = self.data.batch(part, x.device, x.dtype)
            weight = objective.total_weight(targets, len(part)) / client_weight
            total += weight
            if weight:
                stacked_inputs = _add_client_axis(inputs)
                stacked_targets = _add_client_axis(targets)
                losses, gradients = engine.with_losses(x, stacked_inputs, stacked_targets, None)
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

    def _loss_scales(self, rows: Ints, like: Tensor) -> Tensor | None:
        """(n,) factors of the losses of clients `rows`; None if all are 1."""
        scales = self.data.loss_scales
        if scales is None:
            return None
        return torch.from_numpy(scales[rows]).to(like)


def _add_client_axis(batch: Tree) -> Many:
    """The batch of one client as a stack of batches: (1, batch, …), or a list with one tree."""
    if isinstance(batch, Tensor):
        return batch[None]
    return [batch]
