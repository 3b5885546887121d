"""Test and validation data: for all clients together, or one part per client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from spodgt.problems.data.pytree import Tree
from spodgt.problems.data.samples import AnySamples
from spodgt.types import Ints

ALL_CLIENTS = -1  # in place of a client: evaluate on the data of all clients


class EvaluationBatch(NamedTuple):
    """Consecutive samples of an evaluation."""

    size: int  # samples
    inputs: Tree
    targets: Tree


@dataclass(frozen=True, eq=False)
class EvaluationData:
    """Samples on which models are evaluated.

    Args:
        samples: of all clients.
        ranges: (clients, 2) first sample of each client and one past its last; None: every client
            is evaluated on all samples.
    """

    samples: AnySamples
    ranges: Ints | None = None

    def __len__(self) -> int:
        return len(self.samples)

    def indices(self, client: int, max_samples: int | None = None) -> Ints:
        """The samples on which the model of a client is evaluated.

        Args:
            client: number of the client, or `ALL_CLIENTS`.
            max_samples: evaluate on so many samples, evenly spread, because the first ones may all
                be of one class; None: all.
        """
        first = 0
        past_last = len(self.samples)
        if client != ALL_CLIENTS and self.ranges is not None:
            first, past_last = self.ranges[client].tolist()
        return first + evenly_spread(past_last - first, max_samples)

    def batches(
        self,
        client: int,
        max_samples: int | None,
        block: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Iterator[EvaluationBatch]:
        """The samples of `indices` in batches of at most `block` samples."""
        indices = self.indices(client, max_samples)
        for start in range(0, len(indices), block):
            part = indices[start : start + block]
            inputs, targets = self.samples.evaluation_batch(part, device, dtype)
            yield EvaluationBatch(len(part), inputs, targets)

    def reordered(self, order: Ints) -> EvaluationData:
        """The same data with the clients in another order: client order[i] becomes client i."""
        if self.ranges is None:
            return self
        return EvaluationData(self.samples, self.ranges[order])

    def owner(self, index: int) -> int:
        """The client of a sample of data that are divided by client."""
        assert self.ranges is not None
        return int(np.searchsorted(self.ranges[:, 1], index, side="right"))


def evenly_spread(size: int, max_samples: int | None) -> Ints:
    """At most `max_samples` of the indices 0 … size - 1, evenly spread; None: all of them."""
    if max_samples is None or max_samples >= size:
        return np.arange(size)
    return np.arange(max_samples) * size // max_samples


def consecutive_ranges(sizes: Sequence[int]) -> Ints:
    """(parts, 2) the ranges of parts that lie one after the other."""
    bounds = np.cumsum([0, *sizes])
    return np.stack([bounds[:-1], bounds[1:]], 1)
