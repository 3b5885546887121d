"""The numbers of a message as bytes: its model and its total, as float32 or quantized to 8 bits.

Another format is another class, chosen by `wire_format.Context.payload`. The sender rounds the total to
the format in `running_sums.add_mass`; `manifest.Method` selects the format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms.compose.codecs import Int8Codec, Int8Intervals
from spodgt.peer.protocol.running_sums import Message

_FLOATS = np.dtype("<f4")


class Vectors(NamedTuple):
    """The vectors of a message that was received."""

    x: Tensor  # (n,) the model
    half_width: Tensor | None  # (n,): the model is within this distance of x; None: x is exact
    total: Tensor  # (n,)


class Float32Payload:
    """Exact numbers."""

    dtype = "float32"  # in the header of a message

    def sizes(self, n: int) -> tuple[int, int]:
        """Bytes of the model and of the total with n parameters."""
        return n * _FLOATS.itemsize, n * _FLOATS.itemsize

    def pack(self, message: Message) -> tuple[Tensor, Tensor]:
        """The numbers that travel, of the model and of the total; `to_bytes` of them in parts."""
        return message.x, message.total

    def unpack(self, data: Sequence[Tensor], n: int, number: int) -> Vectors:
        """The vectors of message `number`, from the bytes of its model and its total."""
        x, total = (each.numpy().view(_FLOATS).astype(np.float32, copy=False) for each in data)
        return Vectors(torch.from_numpy(x), None, torch.from_numpy(total))


class Int8Payload:
    """8 bits per number: the model in intervals, some columns exactly; the total is rounded before."""

    dtype = "int8"

    def sizes(self, n: int) -> tuple[int, int]:
        size_of_model = Int8Intervals.of_round(n, 0).size(n, _FLOATS.itemsize)
        return size_of_model, Int8Codec().size(n, _FLOATS.itemsize)

    def pack(self, message: Message) -> tuple[Tensor, Tensor]:
        x = Int8Intervals.of_round(len(message.x), message.number).pack(message.x[None])
        total = Int8Codec().pack(message.total[None])
        return x[0], total[0]

    def unpack(self, data: Sequence[Tensor], n: int, number: int) -> Vectors:
        packed_x, packed_total = data
        x, half_width = Int8Intervals.of_round(n, number).unpack(packed_x[None], n, torch.float32)
        total = Int8Codec().unpack(packed_total[None], n, torch.float32)
        return Vectors(x[0], half_width[0], total[0])


Payload = Float32Payload | Int8Payload


def to_bytes(vectors: Sequence[Tensor], start: int, size: int) -> Iterator[memoryview]:
    """Up to `size` bytes of some vectors after each other, from the byte `start`."""
    for vector in vectors:
        item = vector.dtype.itemsize
        first = max(0, start) // item
        end = max(0, start + size) // item
        numbers = vector[first:end].contiguous().numpy()
        yield numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).data.cast("B")
        start -= len(vector) * item
