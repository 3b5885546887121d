"""Train, test and validation data of all clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from spodgt.errors import InvalidInput
from spodgt.network.names import values_by_client
from spodgt.problems.data.client_weights import (
    EQUAL,
    ClientWeights,
    check_client_weights,
    compute_loss_scales,
)
from spodgt.problems.data.evaluation_data import EvaluationData
from spodgt.problems.data.holdout import DEFAULT_FRACTION, Holdout, hold_out
from spodgt.problems.data.partitions import Partition
from spodgt.problems.data.samples import AnySamples, ClientIndices, Samples
from spodgt.types import Floats, Ints
from spodgt.validation import check_count

T = TypeVar("T")
BatchSize = int | Sequence[int] | Mapping[str, int] | None


@dataclass(frozen=True, eq=False)
class ClientData:
    """The data of a learning problem; the runs of a batch share the samples.

    Args:
        samples: training samples of all clients.
        client_indices: the training samples of each client.
        test: test data; None: models are not evaluated.
        batch_size: samples in a mini-batch: a number, or a tuple with one per client; None: all.
        augment: whether images are randomly cropped and flipped in training.
        partition: draws `client_indices` for every seed; None: they are fixed.
        names: of the clients; empty if they are numbered.
        test_samples: samples in one evaluation at most; None: all.
        validation: data by which methods and step sizes are chosen.
        holdout: how `draw` holds samples out of training; None: it does not.
        client_weights: "equal", "samples", or a tuple with one number per client.
        fixed_scales: (clients,) `loss_scales`, if they do not follow from `client_weights`.
    """

    samples: AnySamples
    client_indices: ClientIndices
    test: EvaluationData | None
    batch_size: BatchSize
    augment: bool = False
    partition: Partition | None = None
    names: tuple[str, ...] = ()
    test_samples: int | None = None
    validation: EvaluationData | None = None
    holdout: Holdout | None = None
    client_weights: ClientWeights = EQUAL
    fixed_scales: Floats | None = None

    def __post_init__(self) -> None:
        clients = len(self.client_indices)
        labels = self.names or tuple(map(str, range(clients)))
        batch_size = _check_batch_size(self.batch_size, labels)
        weights, fixed_scales = check_client_weights(self.client_weights, self.names, clients)
        object.__setattr__(self, "batch_size", batch_size)
        object.__setattr__(self, "client_weights", weights)
        if fixed_scales is not None:
            object.__setattr__(self, "fixed_scales", fixed_scales)
        if self.augment:
            _check_images(self.samples)
        check_test_samples(self.test_samples)

    # --- other versions of the data --------------------------------------------------------------
    def reordered(self, order: Ints) -> ClientData:
        """The same clients in another order: client order[i] becomes client i."""
        parts = [self.client_indices[client] for client in order]
        reordered = replace(
            self,
            client_indices=ClientIndices.from_parts(parts),
            names=_reorder(self.names, order),
            batch_size=_reorder(self.batch_size, order),
            client_weights=_reorder(self.client_weights, order),
        )
        if self.fixed_scales is not None:
            reordered = replace(reordered, fixed_scales=self.fixed_scales[order])
        if self.test is not None:
            reordered = replace(reordered, test=self.test.reordered(order))
        if self.validation is not None:
            reordered = replace(reordered, validation=self.validation.reordered(order))
        return reordered

    def draw(self, seed: int) -> ClientData:
        """The data of one run: draws the partition and the held-out samples."""
        drawn = self
        if self.partition is not None:
            targets = self.stacked.targets.cpu()
            parts = self.partition.split(targets, len(self.client_indices), seed)
            drawn = replace(self, client_indices=ClientIndices.from_parts(parts))
        if self.holdout is None:
            return drawn
        split = hold_out(self.samples, drawn.client_indices, self.holdout, seed)
        rest = replace(drawn, client_indices=split.training, partition=None, holdout=None)
        if self.holdout.replaces_test:
            return replace(rest, test=split.held_out)
        return replace(rest, validation=split.held_out)

    def on_validation(self) -> ClientData:
        """The same data with the validation data in place of the test data.

        Without validation data, samples are held out of the training data when a seed is drawn.
        """
        if self.validation is not None:
            return replace(self, test=self.validation, validation=None)
        fraction = DEFAULT_FRACTION if self.holdout is None else self.holdout.fraction
        by_client = self.test is not None and self.test.ranges is not None
        max_samples = None if self.test is None else len(self.test)
        holdout = Holdout(fraction, by_client, max_samples, replaces_test=True)
        return replace(self, test=None, holdout=holdout)

    def join(self, others: Sequence[ClientData]) -> ClientData:
        """The clients of several runs one after the other, these first.

        Raises:
            InvalidInput: if the runs do not share their samples.
        """
        if any(other.samples is not self.samples for other in others):
            raise InvalidInput(
                "runs of one batch must share their data; train them in separate calls."
            )
        runs = [self, *others]
        return replace(
            self,
            client_indices=_join_client_indices(runs),
            batch_size=_join_batch_sizes(runs),
            names=(),
            client_weights=EQUAL,
            fixed_scales=_join_loss_scales(runs),
        )

    def to(self, device: torch.device) -> ClientData:
        """The same data on a device."""
        return self.convert_samples(lambda samples: samples.to(device))

    def convert_samples(self, convert: Callable[[AnySamples], AnySamples]) -> ClientData:
        """The same data with converted training, test and validation samples."""
        converted = replace(self, samples=convert(self.samples))
        if self.test is not None:
            test = replace(self.test, samples=convert(self.test.samples))
            converted = replace(converted, test=test)
        if self.validation is not None:
            validation = replace(self.validation, samples=convert(self.validation.samples))
            converted = replace(converted, validation=validation)
        return converted

    # --- properties ------------------------------------------------------------------------------
    @cached_property
    def loss_scales(self) -> Floats | None:
        """(clients,) factors of the clients' losses, see `compute_loss_scales`; None: all are 1."""
        scales = self.fixed_scales
        if scales is None:
            scales = compute_loss_scales(self.client_weights, self.client_indices.sizes)
        if scales is None or (scales == 1).all():
            return None
        return scales

    @property
    def has_validation(self) -> bool:
        """Whether there are validation data, or will be once a seed is drawn."""
        if self.validation is not None:
            return True
        return self.holdout is not None and not self.holdout.replaces_test

    @property
    def stacked(self) -> Samples:
        """The training samples in two tensors.

        Raises:
            InvalidInput: if they are read one by one.
        """
        if isinstance(self.samples, Samples):
            return self.samples
        raise InvalidInput(
            "this needs the samples of all clients in two tensors, but they are read one by one; "
            "give pairs of tensors, or cache=True for data sets of samples of equal shape."
        )

    def fingerprint_tensors(self) -> list[Tensor]:
        """Tensors that differ between different data."""
        tensors = self.samples.fingerprint_tensors()
        for part in (self.test, self.validation):
            if part is not None:
                tensors = tensors + part.samples.fingerprint_tensors()
        return tensors

    # --- mini-batches ----------------------------------------------------------------------------
    def batch_sizes(self, rows: Ints) -> Ints:
        """Samples in the mini-batches of clients `rows`: at most as many as a client holds."""
        sizes = self.client_indices.sizes[rows]
        if self.batch_size is None:
            return sizes
        assert not isinstance(self.batch_size, Mapping)  # it is in the order of the clients
        limits: Ints = np.asarray(self.batch_size)
        if limits.ndim:
            limits = limits[rows]
        return np.minimum(sizes, limits)


def _reorder(values: T, order: Ints) -> T:
    """A tuple with one value per client in another order; anything else is for all clients."""
    if not isinstance(values, tuple) or not values:
        return values
    return cast(T, tuple(values[client] for client in order))


def _join_client_indices(runs: Sequence[ClientData]) -> ClientIndices:
    indices = np.concatenate([run.client_indices.indices for run in runs])
    sizes = np.concatenate([run.client_indices.sizes for run in runs])
    return ClientIndices(indices, np.r_[0, np.cumsum(sizes)])


def _join_batch_sizes(runs: Sequence[ClientData]) -> BatchSize:
    """One number if all runs have the same, otherwise one per client."""
    first = runs[0].batch_size
    is_same = all(run.batch_size == first for run in runs)
    if is_same and not isinstance(first, tuple):
        return first
    sizes: list[int] = []
    for run in runs:
        sizes += run.batch_sizes(np.arange(len(run.client_indices))).tolist()
    return tuple(sizes)


def _join_loss_scales(runs: Sequence[ClientData]) -> Floats | None:
    if all(run.loss_scales is None for run in runs):
        return None
    scales = []
    for run in runs:
        if run.loss_scales is None:
            scales.append(np.ones(len(run.client_indices)))
        else:
            scales.append(run.loss_scales)
    return np.concatenate(scales)


def client_label(names: Sequence[str], client: int) -> str:
    """A client in an error message, by name if clients have names."""
    if names:
        return f"client {names[client]!r}"
    return f"client {client}"


def check_test_samples(limit: object) -> None:
    """Raise `InvalidInput` unless `limit` is None or an integer of at least 1."""
    if limit is not None:
        check_count("test_samples", limit, "None for all", alternative=" or None")


def _check_images(samples: AnySamples) -> None:
    shape = samples.inputs.shape[1:] if isinstance(samples, Samples) else ()
    if len(shape) != 3:
        raise InvalidInput(
            "augment=True needs images (channels, height, width), "
            f"got inputs of shape {tuple(shape)}; use augment=False."
        )


def _check_batch_size(given: object, labels: Sequence[str]) -> BatchSize:
    """An integer of at least 1, a tuple with one per client, or None; a mapping is by client."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        given = values_by_client(given, labels, "batch_size")
    if not isinstance(given, Sequence | np.ndarray) or isinstance(given, str):
        return _check_positive(given)
    sizes = tuple(_check_positive(size) for size in given)
    if len(sizes) != len(labels):
        raise InvalidInput(
            f"batch_size must be one number or {len(labels)} (one per client), got {len(sizes)}; "
            "use 16."
        )
    return sizes


def _check_positive(size: object) -> int:
    return check_count("batch_size", size, 16, alternative=" or None")
