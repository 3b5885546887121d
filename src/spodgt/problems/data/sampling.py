"""Mini-batches: samples drawn without replacement, a pure function of (seed, round, client)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spodgt import rng
from spodgt.engine import loops_enabled
from spodgt.problems.data.augmentation import Windows, crop_and_flip
from spodgt.problems.data.client_data import ClientData
from spodgt.problems.data.pytree import Tree
from spodgt.problems.data.samples import LazySamples, convert_targets
from spodgt.types import Ints, Minibatches, Words

# Random streams of a mini-batch besides `augmentation.STREAM`. The draws of its samples have the
# counters below 2³².
DROPOUT_STREAM = 2**32
TRANSFORM_STREAM = 2**32 + 2

StackedBatches = tuple[Tensor | list[Tree], Tensor | list[Tree]]  # (clients, batch, …), or lists


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
