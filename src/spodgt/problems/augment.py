"""Random crops and mirror images, as a pure function of (seed, round, client, sample).

The usual augmentation of small pictures [he2016deep]: a frame of zeros, a random window of the picture's
own size, and a mirror image half of the time. All pictures of all clients are one gather, on raw bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spodgt import rng
from spodgt.types import Ints

PADDING = 4  # pixels by which a window may move
_STREAM = 2**32 + 1  # beside the draws of the mini-batch, which stand below 2³², and of dropout
_BITS = np.uint64(20)  # of a word for one draw: 9 positions are equally likely to one in 10⁵


class Windows(NamedTuple):
    """What to cut out of some pictures; one number for each."""

    down: Tensor  # 0 … 2 PADDING: rows from the top of the framed picture
    right: Tensor  # 0 … 2 PADDING
    mirrored: Tensor  # bool

    @staticmethod
    def draw(keys: NDArray[np.uint64], places: Ints, k: int, samples: Ints) -> Windows:
        """(clients, batch) windows for `samples`, which number each client's own samples."""
        word = rng.words(keys[:, None], k, places[:, None], _STREAM, samples)
        ways, mask = np.uint64(2 * PADDING + 1), (np.uint64(1) << _BITS) - np.uint64(1)
        down = ((word & mask) * ways) >> _BITS
        right = (((word >> _BITS) & mask) * ways) >> _BITS
        mirrored = (word >> np.uint64(63)).astype(bool)
        return Windows(*(torch.from_numpy(part) for part in (down.astype(int), right.astype(int), mirrored)))


def crop_and_flip(images: Tensor, windows: Windows) -> Tensor:
    """The windows of `images` (…, channels, height, width), of the same shape and type."""
    *lead, channels, height, width = images.shape
    down, right, mirrored = (part.to(images.device).reshape(-1, 1) for part in windows)
    framed = torch.nn.functional.pad(images.reshape(-1, channels, height, width), (PADDING,) * 4)
    rows = down + torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device)
    columns = right + torch.where(mirrored, columns.flip(0), columns)
    at = rows[:, :, None] * (width + 2 * PADDING) + columns[:, None]  # the same for all channels
    at = at.flatten(1)[:, None].expand(-1, channels, -1)
    return framed.flatten(2).gather(2, at).reshape(*lead, channels, height, width)
