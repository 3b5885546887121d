"""The kinds of message compression: what is sent of a tracker and of a model.

    int8       8 bits per number, one scale per 64 numbers; 1 of 40 columns of models uncompressed
    top-k      a share of the tracker's numbers with their indices; the same share of model columns
    rand-k     a share of the columns of both

A new kind is a class with an entry in `COMPRESSORS`. The laws that it must keep are in
`compression.py`; `tests/algorithms/test_compress.py` tests them for all kinds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from spodgt.algorithms.compose.codecs import (
    EXACT_SHARE,
    Codec,
    Int8Codec,
    Int8Intervals,
    SparseCodec,
    columns_of_round,
)
from spodgt.algorithms.compose.wrapper import Memory
from spodgt.algorithms.rounds import CompressedRound

_PRIORITY_GROWTH = 0.01  # ε: a number that is always small is sent after about 100 others


@dataclass(frozen=True)
class Compressor(ABC):
    """One kind of compression.

    Args:
        share: Share of the columns and numbers that are sent uncompressed.
    """

    share: float
    default_share: ClassVar[float] = 0.05
    memory_names: ClassVar[tuple[str, ...]] = ()  # state fields of `initial_memory`

    @abstractmethod
    def message(self, columns: int, item: int) -> int:
        """Bytes of a message: a tracker and a model of `columns` numbers of `item` bytes each."""

    @abstractmethod
    def push(self, round: CompressedRound, y: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """Mix the compressed trackers.

        Args:
            round: Mixes rows; `push_compressed` needs no more.
            y: (clients, columns) trackers.
            memory: The memory after the previous round.

        Returns:
            y + (B̂ - I) C(y), and the memory after this round. C(0) = 0, and |y - C(y)| is at most
            a fraction of |y|, or of the sum of the last y.
        """

    def pull(self, round: CompressedRound, x: Tensor) -> Tensor:
        """Mix the compressed models; by default a random block of columns, uncompressed."""
        return round.mix_columns(x, "pull", partial(columns_of_round, x.shape[1], self.share))

    def initial_memory(self, x: Tensor) -> Memory:
        """A (clients, …) tensor for each of `memory_names`; x are the models."""
        return ()

    def count(self, columns: int) -> int:
        """Number of columns in `share`."""
        return math.ceil(columns * self.share)


def push_compressed(round: CompressedRound, y: Tensor, c: Tensor, codec: Codec) -> Tensor:
    """y + (B̂ - I) c, where `codec` is lossless for the rows of c."""
    return y + (round.push(c, codec) - c)


class Int8Compressor(Compressor):
    """int8 quantization of trackers, and intervals around models."""

    default_share = EXACT_SHARE

    def message(self, columns: int, item: int) -> int:
        models = Int8Intervals.of_round(columns, 0, self.share)
        return Int8Codec().size(columns, item) + models.size(columns, item)

    def push(self, round: CompressedRound, y: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        codec = Int8Codec()
        return push_compressed(round, y, codec.quantize(y), codec), memory

    def pull(self, round: CompressedRound, x: Tensor) -> Tensor:
        return round.pull(x, partial(self._intervals, x.shape[1]))

    def _intervals(self, columns: int, k: int) -> Int8Intervals:
        return Int8Intervals.of_round(columns, k, self.share)


class TopKCompressor(Compressor):
    """The numbers with the largest accumulated size: w⁺ = w + |y| + ε max|y|, and 0 once sent."""

    memory_names = ("waited",)

    def message(self, columns: int, item: int) -> int:
        count = self.count(columns)
        return SparseCodec(count).size(columns, item) + item * count

    def initial_memory(self, x: Tensor) -> Memory:
        return (torch.zeros_like(x),)

    def push(self, round: CompressedRound, y: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        (priority,) = memory
        size = y.abs()
        priority = priority + size + _PRIORITY_GROWTH * size.amax(1, keepdim=True)
        count = self.count(y.shape[1])
        selected = torch.zeros_like(y, dtype=torch.bool)
        selected = selected.scatter(1, priority.topk(count, 1).indices, True)
        c = torch.where(selected, y, torch.zeros_like(y))
        new_memory = (priority.masked_fill(selected, 0.0),)
        return push_compressed(round, y, c, SparseCodec(count)), new_memory


class RandKCompressor(Compressor):
    """A random block of columns of trackers and models; clients know it, so no index is sent."""

    def message(self, columns: int, item: int) -> int:
        return 2 * item * self.count(columns)

    def push(self, round: CompressedRound, y: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        columns = partial(columns_of_round, y.shape[1], self.share)
        return round.mix_columns(y, "push", columns), memory


COMPRESSORS: dict[str, type[Compressor]] = {
    "int8": Int8Compressor,
    "top-k": TopKCompressor,
    "rand-k": RandKCompressor,
}
