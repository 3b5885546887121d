"""Samples in memory or read one by one, and the clients that hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils import data as torch_data

from spodgt._util.text import first_line
from spodgt.errors import InvalidData
from spodgt.problems.data.pytree import Tree, copy_to, leaves, tensor_leaves, tree_map
from spodgt.problems.random_state import seeded
from spodgt.types import Ints

MAX_BLOCK_NUMBERS = 2**24  # numbers in one evaluated block: 64 MB of float32

Batch = tuple[Tree, Tree]  # (inputs, targets), or (batch, None) for a loss(model, batch)
Collate = Callable[[list[object]], Tree]


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs and targets of many samples in two tensors.

    Args:
        inputs: (samples, …).
        targets: (samples, …).
        scales_bytes: whether uint8 inputs are converted to floats in [0, 1] when they are read.
    """

    inputs: Tensor
    targets: Tensor
    scales_bytes: bool = True
    _scaled_inputs: dict[torch.dtype, Tensor] = field(default_factory=dict, repr=False)
    _device_copies: dict[str, Samples] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def numbers_per_input(self) -> int:
        """Numbers in the input of one sample."""
        return self.inputs[0].numel()

    def take(self, rows: Tensor | slice, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Inputs and targets of some rows, floats as `dtype`."""
        inputs = self.to_floats(self.inputs[rows], dtype)
        return inputs, convert_targets(self.targets[rows], dtype)

    def batch(self, indices: Ints, device: torch.device, dtype: torch.dtype) -> Batch:
        """A batch of the samples with these indices."""
        return self.take(torch.from_numpy(indices).to(device), dtype)

    def evaluation_batch(self, indices: Ints, device: torch.device, dtype: torch.dtype) -> Batch:
        """As `batch`, for increasing `indices`; scaled inputs are cached if they are small."""
        rows: Tensor | slice = torch.from_numpy(indices)
        first = int(indices[0])
        past_last = int(indices[-1]) + 1
        if past_last - first == len(indices):
            rows = slice(first, past_last)  # contiguous: a view instead of a copy
        inputs = self._cached_floats(rows, dtype)
        return inputs, convert_targets(self.targets[rows], dtype)

    def to_floats(self, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        """Inputs as the model takes them: scaled bytes, floats as `dtype`, other integers as is."""
        if inputs.dtype == torch.uint8 and self.scales_bytes:
            return scale_bytes(inputs, dtype)
        if inputs.is_floating_point():
            return inputs.to(dtype)
        return inputs

    def _cached_floats(self, rows: Tensor | slice, dtype: torch.dtype) -> Tensor:
        if self.inputs.numel() > MAX_BLOCK_NUMBERS:
            return self.to_floats(self.inputs[rows], dtype)
        if dtype not in self._scaled_inputs:
            self._scaled_inputs[dtype] = self.to_floats(self.inputs, dtype)
        return self._scaled_inputs[dtype][rows]

    def to(self, device: torch.device) -> Samples:
        """The samples on a device; runs and evaluations share one copy."""
        if self.inputs.device == device:
            return self
        key = str(device)
        if key not in self._device_copies:
            inputs = self.inputs.to(device)
            targets = self.targets.to(device)
            self._device_copies[key] = Samples(inputs, targets, self.scales_bytes)
        return self._device_copies[key]

    def select(self, indices: Ints) -> Samples:
        """The samples with these indices, in this order."""
        rows = torch.from_numpy(indices).to(self.targets.device)
        return Samples(self.inputs[rows], self.targets[rows], self.scales_bytes)

    def with_raw_bytes(self) -> Samples:
        """The same samples, with uint8 inputs that are not scaled."""
        return Samples(self.inputs, self.targets, scales_bytes=False)

    def fingerprint_tensors(self) -> list[Tensor]:
        """Tensors that differ between different data sets."""
        return [self.inputs, self.targets]

    def refuse_nonfinite(self, indices: Ints, seed: int) -> None:
        """Do nothing: inputs and targets are checked when they are read."""


def convert_targets(targets: Tensor, dtype: torch.dtype) -> Tensor:
    """Targets of floats as `dtype`; integer targets are classes and remain as they are."""
    if targets.is_floating_point():
        return targets.to(dtype)
    return targets


def scale_bytes(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert uint8 numbers to floats in [0, 1]."""
    return inputs.to(dtype).div_(255)


class Readable(Protocol):
    """A list of samples, or a map-style data set."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> object: ...


@dataclass(frozen=True, eq=False)
class JoinedDatasets:
    """Data sets that lie one after the other.

    Args:
        datasets: lists of samples, or map-style data sets.
        labels: their names for error messages.
    """

    datasets: tuple[Readable, ...]
    labels: tuple[str, ...]
    offsets: Ints = field(init=False)  # data set i has the indices offsets[i] … offsets[i + 1] - 1

    def __post_init__(self) -> None:
        lengths = [len(dataset) for dataset in self.datasets]
        object.__setattr__(self, "offsets", np.cumsum([0, *lengths]))

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def label_of(self, index: int | np.integer) -> str:
        """The name of the data set that holds a sample."""
        owner, _ = self.locate(int(index))
        return self.labels[owner]

    def locate(self, index: int) -> tuple[int, int]:
        """The data set that holds a sample, and the position of the sample in it."""
        owner = int(np.searchsorted(self.offsets, index, side="right")) - 1
        return owner, index - int(self.offsets[owner])

    def read(self, index: int) -> object:
        """One sample; raises `InvalidData` if the data set fails."""
        owner, position = self.locate(index)
        try:
            return self.datasets[owner][position]
        except Exception as error:
            raise InvalidData(
                f"{self.labels[owner]} failed to give sample {position}: {first_line(error)}"
            ) from error

    def select(self, indices: Ints) -> JoinedDatasets:
        """The samples with these indices, in this order."""
        owners = np.searchsorted(self.offsets, indices, side="right") - 1
        cuts = np.flatnonzero(np.diff(owners)) + 1  # positions at which another data set begins
        first_owners = owners[np.r_[0, cuts]].tolist()
        datasets = []
        labels = []
        for part, owner in zip(np.split(indices, cuts), first_owners, strict=True):
            positions = (part - self.offsets[owner]).tolist()
            datasets.append(torch_data.Subset(self.datasets[owner], positions))
            labels.append(self.labels[owner])
        return JoinedDatasets(tuple(datasets), tuple(labels))


@dataclass(frozen=True, eq=False)
class LazySamples:
    """Samples of any form that are read one by one when needed, and collated to batches.

    A sample is a pair (input, target). With `whole_batches` it may be anything, and a batch has no
    targets.

    Args:
        datasets: where they are read.
        collate: turns a list of samples into a batch.
        whole_batches: whether batches are passed to a loss(model, batch) as collated.
        scales_bytes: whether uint8 inputs are converted to floats in [0, 1].
    """

    datasets: JoinedDatasets
    collate: Collate
    whole_batches: bool
    scales_bytes: bool = True

    def __len__(self) -> int:
        return len(self.datasets)

    @property
    def numbers_per_input(self) -> int:
        """A lower bound: the size of an input is unknown before it is read."""
        return 1

    def batch(
        self, indices: Ints, device: torch.device, dtype: torch.dtype, seed: int = 0
    ) -> Batch:
        """Read and collate one batch.

        Args:
            indices: (batch,) of the samples.
            device: of the tensors.
            dtype: of tensors of floats.
            seed: of the random transforms of the data sets.

        Returns:
            (inputs, targets), or (batch, None) with `whole_batches`.

        Raises:
            InvalidData: if a sample cannot be read or is not a pair.
        """
        with seeded(seed):
            collated = self._collate(indices)
        collated = copy_to(collated, device, dtype)
        if self.whole_batches:
            return collated, None
        if not isinstance(collated, tuple | list) or len(collated) != 2:
            got = str(type(collated))
            if isinstance(collated, Sequence):
                got = f"{type(collated).__name__} of {len(collated)}"
            raise InvalidData(
                f"{self.datasets.label_of(indices[0])} must have samples (input, target), got "
                f"{got}; give ((a, b), target) for several inputs, or a loss(model, batch) for "
                "batches of any other form."
            )
        inputs = tree_map(lambda leaf: self._to_floats(leaf, dtype), collated[0])
        return inputs, collated[1]

    def evaluation_batch(self, indices: Ints, device: torch.device, dtype: torch.dtype) -> Batch:
        """As `batch`, with the same random transforms in every evaluation."""
        return self.batch(indices, device, dtype)

    def _to_floats(self, leaf: object, dtype: torch.dtype) -> object:
        if self.scales_bytes and isinstance(leaf, Tensor) and leaf.dtype == torch.uint8:
            return scale_bytes(leaf, dtype)
        return leaf

    def with_raw_bytes(self) -> LazySamples:
        """The same samples, with uint8 inputs that are not scaled."""
        return replace(self, scales_bytes=False)

    def select(self, indices: Ints) -> LazySamples:
        """The samples with these indices, in this order."""
        return replace(self, datasets=self.datasets.select(indices))

    def fingerprint_tensors(self) -> list[Tensor]:
        """The first sample of each data set; reading all would take too long."""
        tensors = []
        for index in self.datasets.offsets[:-1]:
            batch = self.batch(np.array([index]), torch.device("cpu"), torch.float32)
            tensors += tensor_leaves(batch)
        return tensors

    def refuse_nonfinite(self, indices: Ints, seed: int) -> None:
        """Raise an error for the first of these samples with a NaN or an infinity.

        Args:
            indices: of the samples.
            seed: as for `batch`.

        Raises:
            InvalidData: with the data set and the position of the sample.
        """
        with seeded(seed):
            for index in indices.tolist():
                if not all(_is_finite(leaf) for leaf in leaves(self.datasets.read(index))):
                    _, position = self.datasets.locate(index)
                    raise InvalidData(
                        f"{self.datasets.label_of(index)} has NaN or infinite numbers in sample "
                        f"{position}; clean the data."
                    )

    def _collate(self, indices: Ints) -> Tree:
        samples = [self.datasets.read(index) for index in indices.tolist()]
        try:
            return self.collate(samples)
        except Exception as error:
            raise InvalidData(
                f"samples of {self.datasets.label_of(indices[0])} cannot be put into one batch: "
                f"{first_line(error)}; give collate=, a function from a list of samples to a batch "
                "that pads what is unequal."
            ) from error

    def to(self, device: torch.device) -> LazySamples:
        """The samples themselves: batches are moved when they are read."""
        return self


AnySamples = Samples | LazySamples


@dataclass(frozen=True, eq=False)
class ClientIndices:
    """The samples of each client: client i holds indices[offsets[i] : offsets[i + 1]]."""

    indices: Ints  # (samples of all clients,)
    offsets: Ints  # (clients + 1,)

    @staticmethod
    def from_parts(parts: Sequence[Ints]) -> ClientIndices:
        """One array of sample indices per client."""
        sizes = [len(part) for part in parts]
        return ClientIndices(np.concatenate(parts), np.cumsum([0, *sizes]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int | np.integer) -> Ints:
        return self.indices[self.offsets[client] : self.offsets[client + 1]]

    @cached_property
    def sizes(self) -> Ints:
        """(clients,) samples of each client."""
        return np.diff(self.offsets)


def _is_finite(leaf: object) -> bool:
    """Whether a tensor, an array or a number has no NaN and no infinity."""
    if isinstance(leaf, Tensor):
        return not leaf.is_floating_point() or bool(leaf.isfinite().all())
    if isinstance(leaf, np.ndarray | np.floating | float):
        array = np.asarray(leaf)
        return array.dtype.kind != "f" or bool(np.isfinite(array).all())
    return True
