"""Codecs of vectors: int8 quantization, and sparsification (values with their column indices).

`Int8Codec` and `SparseCodec` are lossless for the rows that they can represent: there `unpack` is
the inverse of `pack`, bit by bit. The simulator mixes such rows, other runtimes send their bytes,
and both compute the same. `Int8Intervals` encode intervals around the numbers of any row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from spodgt import rng

EXACT_SHARE = 0.025  # default share of columns that `Int8Intervals` send uncompressed
_BLOCK = 64  # numbers with a common scale
_MIN_EXPONENT = -119  # between these, all scales and products are normal float32 numbers
_MAX_EXPONENT = 120
_INDEX_BYTES = 4  # of a column index
_KEY = rng.key(0, "compress")  # the same columns in all runs, so they need not be sent


class Codec(Protocol):
    """A compressed form of rows, lossless for the rows that it is used for."""

    def size(self, columns: int, item: int) -> int: ...  # bytes of a row of `item`-byte numbers
    def pack(self, rows: Tensor) -> Tensor: ...  # (rows, size) bytes
    def unpack(self, data: Tensor, columns: int, dtype: torch.dtype) -> Tensor: ...


class IntervalQuantizer(Protocol):
    """A compressed form of rows with an interval for every number.

    A receiver moves towards the nearer end of the interval: never farther than it would move
    towards the number itself, and not at all inside the interval.
    """

    def size(self, columns: int, item: int) -> int: ...
    def pack(self, rows: Tensor) -> Tensor: ...
    def unpack(self, data: Tensor, columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The centres of the intervals and half their lengths, (rows, columns) each."""
        ...


def columns_of_round(count: int, share: float, k: int) -> slice:
    """A random block of consecutive columns, a function of k that all clients can compute.

    Args:
        count: Number of columns.
        share: Size of the block, as a share of `count`.
        k: Number of the round or message.
    """
    width = math.ceil(count * share)
    blocks = -(-count // width)
    block = int(rng.words(_KEY, k)) % blocks
    start = min(width * block, count - width)
    return slice(start, start + width)


@dataclass(frozen=True)
class Int8Codec:
    """int8 quantization: integers from -127 to 127 times a power of two per block of 64.

    Powers of two make the products exact in any floating-point type and fit into one byte.
    """

    bits: ClassVar[int] = 8  # of an integer with its sign; another width also needs its own `pack`

    def quantize(self, rows: Tensor) -> Tensor:
        """The nearest representable rows (n, columns); numbers below 2⁻¹²⁰ become zero."""
        integers, exponents = self._split(rows)
        return torch.ldexp(integers, exponents).flatten(1)[:, : rows.shape[1]]

    def size(self, columns: int, item: int) -> int:
        """Bytes of a row; `item`, the bytes of an uncompressed number, has no influence."""
        return columns + -(-columns // _BLOCK)

    def pack(self, rows: Tensor) -> Tensor:
        """(n, size) bytes of quantized rows."""
        integers, exponents = self._split(rows)
        integer_bytes = integers.flatten(1)[:, : rows.shape[1]].to(torch.int8).view(torch.uint8)
        exponent_bytes = (exponents[..., 0] - _MIN_EXPONENT).to(torch.uint8)
        return torch.cat([integer_bytes, exponent_bytes], 1)

    def unpack(self, data: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
        """(n, columns) rows from their bytes."""
        integers = _blocks(_aligned(data[:, :columns]).view(torch.int8).to(dtype))
        return (integers * self.scales(data, columns, dtype)).flatten(1)[:, :columns].contiguous()

    def scales(self, data: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
        """(n, blocks, 1) the power of two of each block of 64 numbers."""
        exponents = data[:, columns:, None].to(torch.int32) + _MIN_EXPONENT
        return torch.ldexp(torch.ones_like(exponents, dtype=dtype), exponents)

    def _split(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Integers (n, blocks, 64) and the exponents (n, blocks, 1) of their scales."""
        blocks = _blocks(rows)
        largest = blocks.abs().amax(2, keepdim=True)
        mantissa, exponent = torch.frexp(largest)  # largest = mantissa 2^exponent, ½ ≤ mantissa < 1
        limit = 2 ** (self.bits - 1)  # integers are smaller in absolute value
        is_rounded_up = mantissa > (limit - 1) / limit  # to `limit`, without a larger exponent
        exponent = exponent - (self.bits - 1) + is_rounded_up.to(exponent.dtype)
        exponent = exponent.clamp(_MIN_EXPONENT, _MAX_EXPONENT)
        return torch.ldexp(blocks, -exponent).round(), exponent


def _aligned(data: Tensor) -> Tensor:
    """A contiguous copy, of which bytes can be viewed as numbers of any size."""
    return data.clone(memory_format=torch.contiguous_format)


def _blocks(rows: Tensor) -> Tensor:
    """(n, blocks, 64) rows padded with zeros."""
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % _BLOCK))
    return padded.reshape(len(rows), -1, _BLOCK)


@dataclass(frozen=True)
class SparseCodec:
    """Rows with at most `count` numbers that are not zero, as values and column indices."""

    count: int

    def size(self, columns: int, item: int) -> int:
        """Bytes of a row of `item`-byte numbers."""
        return (_INDEX_BYTES + item) * min(self.count, columns)

    def pack(self, rows: Tensor) -> Tensor:
        """(n, size) bytes of sparse rows."""
        indices = rows.abs().topk(min(self.count, rows.shape[1]), 1).indices
        values = rows.gather(1, indices)
        return torch.cat([indices.to(torch.int32).view(torch.uint8), values.view(torch.uint8)], 1)

    def unpack(self, data: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
        """(n, columns) rows from their bytes."""
        index_bytes = _INDEX_BYTES * min(self.count, columns)
        indices = _aligned(data[:, :index_bytes]).view(torch.int32).to(torch.int64)
        values = _aligned(data[:, index_bytes:]).view(dtype)
        rows = torch.zeros(len(data), columns, dtype=dtype, device=data.device)
        return rows.scatter(1, indices, values)


@dataclass(frozen=True)
class Int8Intervals:
    """int8 quantization with its rounding intervals, and some columns uncompressed.

    Args:
        exact: The uncompressed columns.
    """

    codec: ClassVar[Int8Codec] = Int8Codec()
    exact: slice

    @classmethod
    def of_round(cls, count: int, k: int, share: float = EXACT_SHARE) -> Int8Intervals:
        """For rows of `count` columns in round or message k."""
        return cls(columns_of_round(count, share, k))

    def size(self, columns: int, item: int) -> int:
        """Bytes of a row of `item`-byte numbers."""
        exact_columns = len(range(*self.exact.indices(columns)))
        return self.codec.size(columns, item) + item * exact_columns

    def pack(self, rows: Tensor) -> Tensor:
        """(n, size) bytes of any rows."""
        exact_bytes = _aligned(rows[:, self.exact]).view(torch.uint8)
        return torch.cat([self.codec.pack(rows), exact_bytes], 1)

    def unpack(self, data: Tensor, columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The centres of the intervals and half their lengths, (n, columns) each."""
        int8_bytes = self.codec.size(columns, 0)
        centre = self.codec.unpack(data[:, :int8_bytes], columns, dtype)
        half_scales = self.codec.scales(data[:, :int8_bytes], columns, dtype) / 2
        half_length = half_scales.expand(-1, -1, _BLOCK).flatten(1)[:, :columns].contiguous()
        centre[:, self.exact] = _aligned(data[:, int8_bytes:]).view(dtype)
        half_length[:, self.exact] = 0.0
        return centre, half_length
