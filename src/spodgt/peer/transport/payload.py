"""The numbers of a message as bytes: its model and its total, as float32 or quantized to 8 bits.

Another format is another class, chosen by `wire_format.Context.payload`. The sender rounds the total to
the format in `running_sums.add_mass`; `manifest.Method` selects the format.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
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

    def size(self, n: int) -> int:
        """Bytes of a message with n parameters."""
        return 2 * n * _FLOATS.itemsize

    def pack(self, message: Message) -> tuple[memoryview, memoryview]:
        """Model and total as bytes."""
        # two views and no copy of the whole: models may be large
        return _view(message.x), _view(message.total)

    def unpack(self, data: NDArray[np.uint8], n: int, number: int) -> Vectors:
        """The vectors of message `number`."""
        numbers = torch.from_numpy(data.view(_FLOATS).astype(np.float32, copy=False))
        return Vectors(numbers[:n], None, numbers[n:])


class Int8Payload:
    """8 bits per number: the model in intervals, some columns exactly; the total is rounded before."""

    dtype = "int8"

    def size(self, n: int) -> int:
        size_of_model = Int8Intervals.of_round(n, 0).size(n, _FLOATS.itemsize)
        return size_of_model + Int8Codec().size(n, _FLOATS.itemsize)

    def pack(self, message: Message) -> tuple[memoryview, memoryview]:
        x = Int8Intervals.of_round(len(message.x), message.number).pack(message.x[None])
        total = Int8Codec().pack(message.total[None])
        return x.numpy()[0].data, total.numpy()[0].data

    def unpack(self, data: NDArray[np.uint8], n: int, number: int) -> Vectors:
        packed = torch.from_numpy(data)[None]
        codec = Int8Intervals.of_round(n, number)
        size_of_model = codec.size(n, _FLOATS.itemsize)
        x, half_width = codec.unpack(packed[:, :size_of_model], n, torch.float32)
        total = Int8Codec().unpack(packed[:, size_of_model:], n, torch.float32)
        return Vectors(x[0], half_width[0], total[0])


Payload = Float32Payload | Int8Payload


def _view(vector: Tensor) -> memoryview:
    return vector.contiguous().numpy().astype(_FLOATS, copy=False).data.cast("B")
