"""Labels of a learning problem: their counts by client, and targets that are not classes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from spodgt.problems.data.client_data import ClientData, client_label
from spodgt.problems.data.samples import AnySamples, Samples
from spodgt.types import Ints


class InvalidLabel(NamedTuple):
    """A target that is not a class of the model."""

    samples: Samples
    sample: int  # index in `samples`
    value: int
    owner: str  # the data set in an error message: "client 3", "test of client 3", "test"


def class_counts(data: ClientData) -> Ints | None:
    """(clients, classes) samples of each class; None if targets are not classes."""
    if not isinstance(data.samples, Samples):
        return None
    targets = data.samples.targets.cpu().numpy()
    if targets.ndim != 1 or targets.dtype != np.int64:
        return None
    labels = targets[data.client_indices.indices]
    owners = np.repeat(np.arange(len(data.client_indices)), data.client_indices.sizes)
    classes = max(0, int(targets.max())) + 1
    counts = np.zeros((len(data.client_indices), classes), np.int64)
    is_class = labels >= 0  # the loss ignores negative targets
    np.add.at(counts, (owners[is_class], labels[is_class]), 1)
    return counts


def first_invalid_label(data: ClientData, classes: int, ignored: int | None) -> InvalidLabel | None:
    """The first target outside 0 … classes - 1 that is not `ignored`; None: all are valid."""
    invalid = _find_invalid_label(data.samples, classes, ignored)
    if invalid is not None:
        if data.partition is not None:
            return invalid._replace(owner="train")
        # the samples of a client are contiguous
        offsets = data.client_indices.offsets
        client = int(np.searchsorted(offsets, invalid.sample, side="right")) - 1
        return invalid._replace(owner=client_label(data.names, client))
    if data.test is None:
        return None
    invalid = _find_invalid_label(data.test.samples, classes, ignored)
    if invalid is None or data.test.ranges is None:
        return invalid
    client = data.test.owner(invalid.sample)
    return invalid._replace(owner=f"test of {client_label(data.names, client)}")


def has_target(data: ClientData, value: int) -> bool:
    """Whether a training or test sample in memory has this target."""
    splits = [data.samples] if data.test is None else [data.samples, data.test.samples]
    stacked = [samples for samples in splits if isinstance(samples, Samples)]
    return any(bool((samples.targets == value).any()) for samples in stacked)


def _find_invalid_label(
    samples: AnySamples, classes: int, ignored: int | None
) -> InvalidLabel | None:
    """The first target that is neither a class nor `ignored`, of the data set "test"."""
    if not isinstance(samples, Samples) or samples.targets.is_floating_point():
        return None
    is_invalid = (samples.targets < 0) | (samples.targets >= classes)
    if ignored is not None:
        is_invalid &= samples.targets != ignored
    if not is_invalid.any():
        return None
    position = torch.nonzero(is_invalid)[0]
    value = int(samples.targets[tuple(position)])
    return InvalidLabel(samples, int(position[0]), value, "test")
