"""What clients hold: samples in memory or read when needed, whose they are, and how a mini-batch is drawn.

A mini-batch is drawn without replacement, as a pure function of (seed, round, client).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from spodgt import rng
from spodgt.engine import loops_enabled
from spodgt.errors import InvalidData
from spodgt.problems.trees import Tree, fresh, leaves, seeded, tree_map
from spodgt.types import Ints, Words

CHUNK = 2**24  # numbers in one evaluated block: 64 MB of float32
Collate = Callable[[list[object]], Tree]


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs and targets of many samples.

    uint8 inputs become floats in [0, 1] when they are used, if `scales_bytes`.
    """

    inputs: Tensor
    targets: Tensor
    scales_bytes: bool = True
    kept: dict[torch.dtype, Tensor] = field(default_factory=dict, repr=False)
    copies: dict[str, Samples] = field(default_factory=dict, repr=False)  # by device

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows: Tensor | slice, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return self.scaled(self.inputs[rows], dtype), self.targets_as(self.targets[rows], dtype)

    def scaled(self, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        """Some of the inputs as the model takes them."""
        if inputs.dtype == torch.uint8 and self.scales_bytes:
            return scale_bytes(inputs, dtype)
        return inputs.to(dtype) if inputs.is_floating_point() else inputs

    @staticmethod
    def targets_as(targets: Tensor, dtype: torch.dtype) -> Tensor:
        return targets.to(dtype) if targets.is_floating_point() else targets

    def floats(self, rows: Tensor | slice, dtype: torch.dtype) -> Tensor:
        """Scaled inputs, kept for the next time if they do not take much memory."""
        if self.inputs.numel() > CHUNK:
            return self.scaled(self.inputs[rows], dtype)
        if dtype not in self.kept:
            self.kept[dtype] = self.scaled(self.inputs, dtype)
        return self.kept[dtype][rows]

    def to(self, device: torch.device) -> Samples:
        """The same on a device, brought there once: runs and evaluations share the copy."""
        if self.inputs.device == device:
            return self
        if str(device) not in self.copies:
            moved = self.inputs.to(device), self.targets.to(device)
            self.copies[str(device)] = Samples(*moved, self.scales_bytes)
        return self.copies[str(device)]

    def with_raw_bytes(self) -> Samples:
        """The same samples, uint8 inputs as they are."""
        return Samples(self.inputs, self.targets, scales_bytes=False)


def scale_bytes(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """uint8 numbers as floats in [0, 1]."""
    return inputs.to(dtype).div_(255)


class Readable(Protocol):
    """A list of samples, or a map-style data set."""

    def __len__(self) -> int: ...
    def __getitem__(self, number: int, /) -> object: ...


@dataclass(frozen=True, eq=False)
class Loose:
    """Samples of any form, read one by one when they are needed and put together by `collate`.

    A sample is an (input, target) pair, or anything where `whole`: then a batch has no targets of its own.
    """

    parts: tuple[Readable, ...]
    names: tuple[str, ...]  # of the parts, for messages
    collate: Collate
    whole: bool
    scales_bytes: bool = True  # uint8 inputs become floats in [0, 1]

    def __post_init__(self) -> None:
        object.__setattr__(self, "starts", np.cumsum([0, *map(len, self.parts)]))

    starts: Ints = field(init=False)  # part i has the samples starts[i] … starts[i + 1] - 1

    def __len__(self) -> int:
        return int(self.starts[-1])

    def read(self, numbers: Ints, seed: int, device: torch.device, dtype: torch.dtype) -> tuple[Tree, Tree]:
        """The inputs and targets of one batch, or the batch and None; random transforms draw from `seed`."""
        with seeded(seed):
            batch = self._collated(numbers)
        batch = fresh(batch, device, dtype)
        if self.whole:
            return batch, None
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            got = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, Sequence) else type(batch)
            raise InvalidData(
                f"{self._owner(numbers[0])} must have samples (input, target), got {got}; give "
                "((a, b), target) for several inputs, or a loss(model, batch) for batches of any other form."
            )
        return tree_map(lambda leaf: self._scaled(leaf, dtype), batch[0]), batch[1]

    def _scaled(self, leaf: object, dtype: torch.dtype) -> object:
        if self.scales_bytes and isinstance(leaf, Tensor) and leaf.dtype == torch.uint8:
            return scale_bytes(leaf, dtype)
        return leaf

    def with_raw_bytes(self) -> Loose:
        """The same samples, uint8 inputs as they are."""
        return replace(self, scales_bytes=False)

    def refuse_nonfinite(self, numbers: Ints, seed: int) -> None:
        """Name the first of these samples that has a number that is NaN or infinite; see `read`."""
        with seeded(seed):
            for number in numbers.tolist():
                if not all(map(_is_finite, leaves(self._sample(number)))):
                    part, place = self._place(number)
                    raise InvalidData(
                        f"{self.names[part]} has NaN or infinite numbers in sample {place}; clean the data."
                    )

    def _place(self, number: int) -> tuple[int, int]:
        """The part that holds a sample, and its number there."""
        part = int(np.searchsorted(self.starts, number, side="right")) - 1
        return part, number - int(self.starts[part])

    def _sample(self, number: int) -> object:
        part, place = self._place(number)
        try:
            return self.parts[part][place]
        except Exception as error:
            raise InvalidData(
                f"{self.names[part]} failed to give sample {place}: {first_line(error)}"
            ) from error

    def _collated(self, numbers: Ints) -> Tree:
        samples = [self._sample(number) for number in numbers.tolist()]
        try:
            return self.collate(samples)
        except Exception as error:
            raise InvalidData(
                f"samples of {self._owner(numbers[0])} cannot be put into one batch: {first_line(error)}; "
                "give collate=, a function from a list of samples to a batch that pads what is unequal."
            ) from error

    def _owner(self, number: np.int64) -> str:
        return self.names[int(np.searchsorted(self.starts, number, side="right")) - 1]

    def to(self, device: torch.device) -> Loose:
        return self  # batches follow the models


@dataclass(frozen=True, eq=False)
class Holdings:
    """Which samples each client holds: one long list of sample numbers, cut at `offsets`."""

    numbers: Ints  # (samples of all clients,)
    offsets: Ints  # (clients + 1,)

    @staticmethod
    def of(parts: Sequence[Ints]) -> Holdings:
        """One array of sample numbers per client."""
        return Holdings(np.concatenate(parts), np.cumsum([0, *map(len, parts)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client: int | np.integer) -> Ints:
        return self.numbers[self.offsets[client] : self.offsets[client + 1]]

    @property
    def sizes(self) -> Ints:
        return np.diff(self.offsets)


def _is_finite(leaf: object) -> bool:
    """No number of a tensor, an array or a number itself is NaN or infinite."""
    if isinstance(leaf, Tensor):
        return not leaf.is_floating_point() or bool(leaf.isfinite().all())
    if isinstance(leaf, np.ndarray | np.floating | float):
        numbers = np.asarray(leaf)
        return numbers.dtype.kind != "f" or bool(np.isfinite(numbers).all())
    return True


def first_line(error: Exception) -> str:
    """What a failing piece of user code said, in one line."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def without_replacement(keys: Words, places: Ints, k: int, sizes: Ints, count: int) -> Ints:
    """(clients, count): distinct whole numbers below each client's size, a function of (key, k, place)."""
    if (sizes == count).all():
        return np.broadcast_to(np.arange(count), (len(sizes), count))
    if loops_enabled():
        from spodgt.random_draws import draw_minibatches

        chosen = np.empty((len(sizes), count), np.int64)
        draw_minibatches(keys, k, places, sizes, chosen)
        return chosen
    u = rng.uniform(keys[:, None], k, places[:, None], np.arange(count)[None])
    return rng.distinct(sizes, count, lambda column, tops: (u[:, column] * (tops + 1)).astype(np.int64))
