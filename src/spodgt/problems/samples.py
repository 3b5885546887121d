"""What clients hold: all samples in two tensors, whose they are, and how a mini-batch is drawn from them.

A mini-batch is drawn without replacement, as a pure function of (seed, round, client).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils import data as torch_data

from spodgt import rng
from spodgt.compiled import jit
from spodgt.errors import InvalidData
from spodgt.rng import word
from spodgt.types import Ints, Words

CHUNK = 2**24  # numbers in one evaluated block: 64 MB of float32
Source = torch_data.Dataset[object] | Sequence[object]  # pairs (input, target), or two tensors


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs and targets of many samples; uint8 inputs become floats in [0, 1] when they are used."""

    inputs: Tensor
    targets: Tensor
    kept: dict[torch.dtype, Tensor] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, rows: Tensor | slice, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return self.scaled(self.inputs[rows], dtype), self.targets[rows]

    @staticmethod
    def scaled(inputs: Tensor, dtype: torch.dtype) -> Tensor:
        if inputs.dtype == torch.uint8:
            return inputs.to(dtype).div_(255)
        return inputs.to(dtype) if inputs.is_floating_point() else inputs

    def floats(self, rows: slice, dtype: torch.dtype) -> Tensor:
        """Scaled inputs, kept for the next time if they do not take much memory."""
        if self.inputs.numel() > CHUNK:
            return self.scaled(self.inputs[rows], dtype)
        if dtype not in self.kept:
            self.kept[dtype] = self.scaled(self.inputs, dtype)
        return self.kept[dtype][rows]

    def to(self, device: torch.device) -> Samples:
        if self.inputs.device == device:
            return self
        return Samples(self.inputs.to(device), self.targets.to(device))


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


def read_samples(data: Source, who: str) -> Samples:
    """Read a data set into two tensors."""
    given = data.tensors if isinstance(data, torch_data.TensorDataset) else data
    if isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(t, Tensor) for t in given):
        inputs, targets = cast(Sequence[Tensor], given)
    else:
        pairs = cast(Sequence[tuple[ArrayLike, ArrayLike]], given)
        try:
            both = [pairs[i] for i in range(len(pairs))]
            inputs = torch.stack([torch.as_tensor(np.asarray(first)) for first, _ in both])
            targets = torch.as_tensor(np.asarray([np.asarray(second) for _, second in both]))
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidData(
                f"{who} must be a dataset of (input, target) pairs of equal shape or two tensors, "
                f"got {type(data).__name__}: {str(error).splitlines()[0] if str(error) else 'empty'}."
            ) from None
    if len(inputs) != len(targets):
        raise InvalidData(
            f"{who} has {len(inputs)} inputs but {len(targets)} targets; give one target per input."
        )
    if not len(inputs):
        raise InvalidData(f"{who} has no samples; give it data or leave it out of the network.")
    if not targets.is_floating_point() and not targets.is_complex():
        targets = targets.long()  # whole numbers of any kind are classes
    if inputs.is_floating_point() and not torch.isfinite(inputs).all():
        raise InvalidData(f"{who} has inputs that are NaN or infinite; clean the data.")
    return Samples(inputs.contiguous(), targets.contiguous())


def without_replacement(keys: Words, places: Ints, k: int, sizes: Ints, count: int) -> Ints:
    """(clients, count): distinct whole numbers below each client's size, a function of (key, k, place)."""
    if (sizes == count).all():
        return np.broadcast_to(np.arange(count), (len(sizes), count))
    u = rng.uniform(keys[:, None], k, places[:, None], np.arange(count)[None])
    return rng.distinct(sizes, count, lambda column, tops: (u[:, column] * (tops + 1)).astype(np.int64))


@jit
def draw_batch(key, place, k, size, chosen):  # type: ignore[no-untyped-def]
    """`without_replacement` for one client, compiled: fills chosen (count,) with numbers below `size`."""
    count = len(chosen)
    if size == count:
        for column in range(count):
            chosen[column] = column
        return
    base = word(word(key, k), place)
    for column in range(count):
        top = size - count + column
        u = np.float64(word(base, column) >> np.uint64(11)) * 2.0**-53
        pick = np.int64(u * (top + 1))
        for before in range(column):
            if chosen[before] == pick:
                pick = top
                break
        chosen[column] = pick
