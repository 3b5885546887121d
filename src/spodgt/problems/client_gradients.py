"""Gradients of the clients' losses (n w_i / Σ w) F_i: of mini-batches and of all samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from spodgt.engine import loops_enabled
from spodgt.errors import InvalidInput
from spodgt.problems.data.client_data import ClientData
from spodgt.problems.data.pytree import Tree
from spodgt.problems.data.samples import Samples
from spodgt.problems.data.sampling import (
    DROPOUT_STREAM,
    BatchGroup,
    MinibatchReader,
    client_seeds,
)
from spodgt.problems.evaluation import block_size
from spodgt.problems.gradients import Many, Noise
from spodgt.problems.losses import LOSSES
from spodgt.problems.models.trainable_model import TrainableModel
from spodgt.problems.protocols import GradientFunction, LinearData
from spodgt.problems.user_code import user_code_error, user_code_errors
from spodgt.types import Floats, Ints, Minibatches


# --- mini-batches --------------------------------------------------------------------------------
def minibatch_gradients(
    model: TrainableModel, data: ClientData, linear_data: LinearData | None
) -> GradientFunction:
    """A function that draws mini-batches and computes their gradients, made once for many rounds.

    Args:
        model: the module and its loss.
        data: of the clients.
        linear_data: for compiled loops; None: use the engine of the model.
    """
    if linear_data is None:
        return ModuleGradients(model, data)
    return LinearGradients(model, data, linear_data)


class ModuleGradients:
    """Mini-batch gradients by the engine of a module."""

    def __init__(self, model: TrainableModel, data: ClientData) -> None:
        self.model = model
        self.engine = model.active_engine
        self.columns = model.columns.all.size
        self.parameters = model.layout.size
        self.reader = MinibatchReader(data)
        self.loss_scales = data.loss_scales

    def __call__(self, x: Tensor, batches: Minibatches) -> Tensor:
        """Stochastic gradients.

        Args:
            x: (n, columns) models. Running statistics and personal parameters are updated in place.
            batches: the mini-batches to draw, for n clients.

        Returns:
            (n, parameters).
        """
        if x.shape[1] != self.columns:
            self.model.check_columns(x)  # raises
        groups = self.reader.groups(batches.rows)
        if len(groups) == 1:
            gradients = self._of_group(x, batches, groups[0].size)
        else:
            gradients = self._of_groups(x, batches, groups)
        return _scale_losses(gradients, self.loss_scales, batches.rows)

    def _of_groups(self, x: Tensor, batches: Minibatches, groups: Sequence[BatchGroup]) -> Tensor:
        """(n, parameters) gradients of clients with mini-batches of different sizes."""
        gradients = x.new_empty(len(x), self.parameters)
        for group in groups:
            models = x[group.rows]
            part = self._of_group(models, batches.part(group.rows), group.size)
            gradients[group.rows] = part
            if self.columns > self.parameters:
                x[group.rows] = models
        return gradients

    def _of_group(self, x: Tensor, batches: Minibatches, size: int) -> Tensor:
        """(n, parameters) gradients of clients with mini-batches of `size` samples."""
        seeds: Noise = ()
        if self.model.plain.random:
            seeds = client_seeds(batches, DROPOUT_STREAM)
        try:
            inputs, targets = self.reader.read(batches, size, x.device, x.dtype)
            _, gradients = self.engine.with_losses(x, inputs, targets, seeds)
        except InvalidInput:
            raise
        except Exception as error:
            where = f"mini-batches of round {batches.k}"
            raise user_code_error("model and loss", where, error) from error
        if self.reader.is_lazy:  # samples in memory are checked already
            self._refuse_nonfinite(x, gradients, batches, size)
        return gradients

    def _refuse_nonfinite(
        self, x: Tensor, gradients: Tensor, batches: Minibatches, size: int
    ) -> None:
        """Raise `InvalidData` for a sample that gives a finite model an infinite gradient."""
        is_finite_model = x[:, : self.parameters].isfinite().all(1)
        is_broken = is_finite_model & ~gradients.isfinite().all(1)
        for row in torch.nonzero(is_broken).flatten().tolist():
            self.reader.refuse_nonfinite(batches.part(np.array([row])), size)


class LinearGradients:
    """Mini-batch gradients of a linear model in compiled loops; arguments as `ModuleGradients`."""

    def __init__(self, model: TrainableModel, data: ClientData, linear_data: LinearData) -> None:
        self.model = model
        self.reader = MinibatchReader(data)
        self.linear_data = linear_data
        self.loss_scales = data.loss_scales

    def __call__(self, x: Tensor, batches: Minibatches) -> Tensor:
        from spodgt.problems.gradients.linear_model import (
            Scratch,
            chunk_length,
            linear_gradients,
            padded_stride,
        )

        self.model.check_columns(x)
        data = self.linear_data
        models = x.contiguous().numpy()
        gradients = torch.empty_like(x, memory_format=torch.contiguous_format)
        stride = padded_stride(data, models.dtype)
        for group in self.reader.groups(batches.rows):
            scratch = Scratch.create(data, group.size, models.dtype)
            linear_gradients(
                models,
                gradients.numpy(),
                data,
                stride,
                batches.part(group.rows),
                group.rows,
                group.size,
                chunk_length(stride, group.size),
                scratch,
            )
        return _scale_losses(gradients, self.loss_scales, batches.rows)


def read_linear_data(
    model: TrainableModel, data: ClientData, dtype: torch.dtype
) -> LinearData | None:
    """The data of a linear model for compiled loops; None if loops cannot be used.

    Args:
        model: the module and its loss.
        data: of the clients.
        dtype: of the models.
    """
    layer = model.engine.linear_layer
    if layer is None or not loops_enabled() or dtype not in (torch.float32, torch.float64):
        return None
    if data.augment or data.loss_scales is not None:
        return None
    samples = data.stacked
    inputs = samples.inputs
    is_readable = inputs.device.type == "cpu" and inputs.is_contiguous()
    if not is_readable or inputs.dtype not in (torch.uint8, dtype):
        return None
    scale = 1.0
    if inputs.dtype == torch.uint8 and samples.scales_bytes:
        scale = 1 / 255
    return LinearData(
        data.client_indices.indices,
        data.client_indices.offsets,
        inputs.flatten(1).numpy(),
        samples.targets.numpy(),
        scale,
        layer.classes,
        layer.bias,
        LOSSES[layer.loss],
    )


# --- all samples ---------------------------------------------------------------------------------
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
        scaled_losses = _scale_losses(losses, self.data.loss_scales, rows)
        return scaled_losses, _scale_losses(gradients, self.data.loss_scales, rows)

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


def _scale_losses(values: Tensor, loss_scales: Floats | None, rows: Ints) -> Tensor:
    """Losses (n,) or gradients (n, parameters) of clients `rows`, times the factors of the losses.

    Args:
        values: of the clients.
        loss_scales: (clients,) factors of all clients; None: all are 1.
        rows: (n,) clients.
    """
    if loss_scales is None:
        return values
    scales = torch.from_numpy(loss_scales[rows]).to(values)
    return values * scales.reshape(-1, *[1] * (values.ndim - 1))


def _add_client_axis(batch: Tree) -> Many:
    """The batch of one client as a stack of batches: (1, batch, …), or a list with one tree."""
    if isinstance(batch, Tensor):
        return batch[None]
    return [batch]
