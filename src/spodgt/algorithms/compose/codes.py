"""Short forms of vectors on a wire: 8 bits a number, or few numbers with their places.

`Int8` and `Sparse` say some rows exactly: there `unpack` is the inverse of `pack`, bit by bit. So a simulator
mixes such rows, a wire carries their bytes, and both compute the same. `Intervals` say of any row where its
numbers lie.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spodgt import rng

_BLOCK = 64  # numbers that share a scale
_LOWEST, _HIGHEST = -119, 120  # exponents: with these all scales and products are normal float32

_PLACE = 4  # bytes of a column's number
_KEY = rng.key(
    0, "compress"
)  # the columns of a round are the same in all runs: they are common knowledge
EXACT = 0.025  # the share of columns that intervals say exactly


def columns(count: int, share: float, k: int) -> slice:
    """A share of `count` columns, others for every k; everybody knows them by this number."""
    width = math.ceil(count * share)
    first = width * (int(rng.words(_KEY, k)) % -(-count // width))
    return slice(min(first, count - width), min(first, count - width) + width)


@dataclass(frozen=True)
class Int8:
    """Whole numbers from -127 to 127, times a power of two that 64 of them share.

    Powers of two make the products exact in any floating-point type, and one byte says them.
    """

    def rounded(self, rows: Tensor) -> Tensor:
        """The nearest rows (n, columns) that the code can say; numbers below 2⁻¹²⁰ become zero."""
        numbers, exponents = self._parts(rows)
        return torch.ldexp(numbers, exponents).flatten(1)[:, : rows.shape[1]]

    def size(self, columns: int, item: int) -> int:
        """Bytes of a row; `item` is how many a number takes otherwise."""
        return columns + -(-columns // _BLOCK)

    def pack(self, rows: Tensor) -> Tensor:
        """(n, size) bytes of rounded rows."""
        numbers, exponents = self._parts(rows)
        whole = numbers.flatten(1)[:, : rows.shape[1]].to(torch.int8).view(torch.uint8)
        return torch.cat([whole, (exponents[..., 0] - _LOWEST).to(torch.uint8)], 1)

    def unpack(self, data: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
        """(n, columns) rows of this type from their bytes."""
        numbers = _blocks(_own(data[:, :columns]).view(torch.int8).to(dtype))
        return (numbers * self.scales(data, columns, dtype)).flatten(1)[:, :columns].contiguous()

    def scales(self, data: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
        """(n, blocks, 1) what a whole number counts in each block of 64."""
        exponents = data[:, columns:, None].to(torch.int32) + _LOWEST
        return torch.ldexp(torch.ones_like(exponents, dtype=dtype), exponents)

    def _parts(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Whole numbers (n, blocks, 64) and the exponents (n, blocks, 1) of their scales."""
        blocks = _blocks(rows)
        largest = blocks.abs().amax(2, keepdim=True)
        mantissa, exponent = torch.frexp(
            largest
        )  # largest = mantissa 2^exponent, mantissa in [½, 1)
        exponent = exponent - 7 + (mantissa > 127 / 128).to(exponent.dtype)
        exponent = exponent.clamp(_LOWEST, _HIGHEST)
        return torch.ldexp(blocks, -exponent).round(), exponent


def _own(data: Tensor) -> Tensor:
    """A copy that begins where numbers of any size may begin."""
    return data.clone(memory_format=torch.contiguous_format)


def _blocks(rows: Tensor) -> Tensor:
    return torch.nn.functional.pad(rows, (0, -rows.shape[1] % _BLOCK)).reshape(
        len(rows), -1, _BLOCK
    )


@dataclass(frozen=True)
class Sparse:
    """At most `count` numbers of a row and their places; the others are zero."""

    count: int

    def size(self, columns: int, item: int) -> int:
        """Bytes of a row."""
        return (_PLACE + item) * min(self.count, columns)

    def pack(self, rows: Tensor) -> Tensor:
        places = rows.abs().topk(min(self.count, rows.shape[1]), 1).indices
        values = rows.gather(1, places)
        return torch.cat([places.to(torch.int32).view(torch.uint8), values.view(torch.uint8)], 1)

    def unpack(self, data: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
        cut = _PLACE * min(self.count, columns)
        places = _own(data[:, :cut]).view(torch.int32).to(torch.int64)
        values = _own(data[:, cut:]).view(dtype)
        return torch.zeros(len(data), columns, dtype=dtype, device=data.device).scatter(
            1, places, values
        )


@dataclass(frozen=True)
class Intervals:
    """8 bits a number for all columns, which leave an interval around each, and some columns exactly.

    Args:
        exact: these columns.
    """

    exact: slice

    @classmethod
    def of(cls, count: int, k: int, share: float = EXACT) -> Intervals:
        """Of rows of `count` columns, in round or message k."""
        return cls(columns(count, share, k))

    def size(self, columns: int, item: int) -> int:
        """Bytes of a row."""
        return Int8().size(columns, item) + item * len(range(*self.exact.indices(columns)))

    def pack(self, rows: Tensor) -> Tensor:
        """(n, size) bytes of any rows."""
        return torch.cat([Int8().pack(rows), _own(rows[:, self.exact]).view(torch.uint8)], 1)

    def unpack(self, data: Tensor, columns: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The middles of the intervals and half their lengths, (n, columns) each."""
        code, cut = Int8(), Int8().size(columns, 0)
        middle = code.unpack(data[:, :cut], columns, dtype)
        scales = code.scales(data[:, :cut], columns, dtype) / 2
        half = scales.expand(-1, -1, _BLOCK).flatten(1)[:, :columns].contiguous()
        middle[:, self.exact], half[:, self.exact] = _own(data[:, cut:]).view(dtype), 0.0
        return middle, half
