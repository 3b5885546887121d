"""Mini-batch gradients of the clients' losses (n w_i / Σ w) F_i.

Samples are drawn without replacement, a pure function of (seed, round, client). `full_gradients` has
the gradients of all samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spodgt import rng
from spodgt.engine import loops_enabled
from spodgt.errors import InvalidInput
from spodgt.problems.data.augmentation import Windows, crop_and_flip
from spodgt.problems.data.client_data import ClientData
from spodgt.problems.data.samples import LazySamples, convert_targets
from spodgt.problems.gradients import DropoutSeeds, PerClient
from spodgt.problems.losses import LOSSES
from spodgt.problems.models.trainable_model import TrainableModel
from spodgt.problems.protocols import GradientFunction, LinearData
from spodgt.problems.user_code_errors import user_code_error
from spodgt.types import Ints, Minibatches, Words

# Random streams of a mini-batch besides `augmentation.STREAM`. The draws of its samples have the
# counters below 2³².
DROPOUT_STREAM = 2**32
TRANSFORM_STREAM = 2**32 + 2

StackedBatches = tuple[PerClient, PerClient]  # inputs and targets (clients, batch, …), or lists


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
        if self.loss_scales is None:
            return gradients
        scales = torch.from_numpy(self.loss_scales[batches.rows]).to(gradients)
        return gradients * scales[:, None]

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
        seeds: DropoutSeeds = ()
        if self.model.plain.draws_random_numbers:
            seeds = client_seeds(batches, DROPOUT_STREAM)
        try:
            inputs, targets = self.reader.read(batches, size, x.device, x.dtype)
            _, gradients = self.engine.losses_and_gradients(x, inputs, targets, seeds)
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
        return gradients


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


# --- drawing and reading mini-batches ------------------------------------------------------------
class BatchGroup(NamedTuple):
    """Clients with mini-batches of the same size."""

    size: int  # samples
    rows: Ints  # positions among the given clients


class MinibatchReader:
    """Draws and reads the mini-batches of clients, made once for many rounds.

    Args:
        data: of all clients.
    """

    def __init__(self, data: ClientData) -> None:
        self.samples = data.samples
        self.augment = data.augment
        self.client_indices = data.client_indices
        self.batch_sizes = data.batch_sizes(np.arange(len(data.client_indices)))
        self.is_lazy = isinstance(data.samples, LazySamples)
        self.uses_loops = loops_enabled()

    def groups(self, rows: Ints) -> Sequence[BatchGroup]:
        """Group clients by the size of their mini-batches: one group unless some hold less."""
        batch_sizes = self.batch_sizes[rows]
        groups = []
        for size in np.unique(batch_sizes).tolist():
            groups.append(BatchGroup(size, np.flatnonzero(batch_sizes == size)))
        return groups

    def draw(self, batches: Minibatches, size: int) -> tuple[Ints, Ints]:
        """Draw mini-batches of `size` samples.

        The compiled loop of linear models draws the same samples itself, see
        `gradients.linear_model.minibatch_gradient`.

        Returns:
            (clients, size) positions among the samples of each client, and (clients, size) indices
            among all samples.
        """
        positions = sample_without_replacement(
            batches.keys,
            batches.client_index,
            batches.k,
            self.client_indices.sizes[batches.rows],
            size,
            use_loops=self.uses_loops,
        )
        starts = self.client_indices.offsets[batches.rows, None]
        return positions, self.client_indices.indices[starts + positions]

    def read(
        self, batches: Minibatches, size: int, device: torch.device, dtype: torch.dtype
    ) -> StackedBatches:
        """Inputs and targets of mini-batches of `size` samples, in memory of their own.

        Returns:
            Two tensors (clients, size, …), or two lists with one batch per client.
        """
        positions, indices = self.draw(batches, size)
        if isinstance(self.samples, LazySamples):
            return self._read_lazily(self.samples, batches, indices, device, dtype)
        rows = torch.from_numpy(indices).to(device)
        if not self.augment:
            return self.samples.take(rows, dtype)
        windows = Windows.draw(batches.keys, batches.client_index, batches.k, positions)
        images = crop_and_flip(self.samples.inputs[rows], windows)
        targets = convert_targets(self.samples.targets[rows], dtype)
        return self.samples.to_floats(images, dtype), targets

    def _read_lazily(
        self,
        samples: LazySamples,
        batches: Minibatches,
        indices: Ints,
        device: torch.device,
        dtype: torch.dtype,
    ) -> StackedBatches:
        """Read the batch of every client; random transforms have a seed for each."""
        inputs_of_clients = []
        targets_of_clients = []
        seeds = client_seeds(batches, TRANSFORM_STREAM)
        for part, seed in zip(indices, seeds, strict=True):
            inputs, targets = samples.batch(part, device, dtype, seed)
            inputs_of_clients.append(inputs)
            targets_of_clients.append(targets)
        return inputs_of_clients, targets_of_clients

    def refuse_nonfinite(self, batches: Minibatches, size: int) -> None:
        """Raise `InvalidData` for the first sample of mini-batches with a NaN or an infinity."""
        _, indices = self.draw(batches, size)
        seeds = client_seeds(batches, TRANSFORM_STREAM)
        for part, seed in zip(indices, seeds, strict=True):
            self.samples.refuse_nonfinite(part, seed)


def client_seeds(batches: Minibatches, stream: int) -> list[int]:
    """One seed per client for other random numbers of a mini-batch; see `DROPOUT_STREAM`."""
    words = rng.words(batches.keys, batches.k, batches.client_index, stream)
    return (words >> np.uint64(1)).tolist()  # type: ignore[no-any-return]


def sample_without_replacement(
    keys: Words,
    client_indices: Ints,
    k: int,
    sizes: Ints,
    count: int,
    *,
    use_loops: bool | None = None,
) -> Ints:
    """Draw distinct positions below the number of samples of each client.

    Args:
        keys: (clients,) keys of the random stream "batch".
        client_indices: (clients,) number of each client in its run.
        k: round.
        sizes: (clients,) samples of each client.
        count: positions to draw, at most the smallest size.
        use_loops: whether compiled loops are used; None: if they are enabled.

    Returns:
        (clients, count), a function of (key, k, client).
    """
    if (sizes == count).all():
        return np.broadcast_to(np.arange(count), (len(sizes), count))
    if use_loops is None:
        use_loops = loops_enabled()
    if use_loops:
        from spodgt.random_draws import draw_minibatches

        positions = np.empty((len(sizes), count), np.int64)
        draw_minibatches(keys, k, client_indices, sizes, positions)
        return positions
    u = rng.uniform(keys[:, None], k, client_indices[:, None], np.arange(count)[None])

    def draw_column(column: int, largest: Ints) -> Ints:
        return (u[:, column] * (largest + 1)).astype(np.int64)

    return rng.sample_without_replacement(sizes, count, draw_column)
