"""Random crops and horizontal flips, a function of (seed, round, client, sample).

The usual augmentation of small images [he2016deep]: pad with zeros, crop a random window of the
original size, flip half of the images. All images of all clients are one gather, on raw bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spodgt import rng
from spodgt.types import Ints, Words

STREAM = 2**32 + 1  # random stream of a mini-batch, next to those of `minibatch_gradients`
PADDING = 4  # pixels by which a window may move
_BITS = np.uint64(20)  # of a word for one draw: 9 positions are equally likely to one in 10⁵


class Windows(NamedTuple):
    """The window to crop from each image."""

    top: Tensor  # 0 … 2 PADDING: first row in the padded image
    left: Tensor  # 0 … 2 PADDING: first column in the padded image
    flipped: Tensor  # bool

    @staticmethod
    def draw(keys: Words, client_indices: Ints, k: int, samples: Ints) -> Windows:
        """Draw a window for every sample of a mini-batch.

        Args:
            keys: (clients,) keys of the random stream "batch".
            client_indices: (clients,) number of each client in its run.
            k: round.
            samples: (clients, batch) positions among the samples of each client.

        Returns:
            Windows with fields of shape (clients, batch).
        """
        word = rng.words(keys[:, None], k, client_indices[:, None], STREAM, samples)
        positions = np.uint64(2 * PADDING + 1)
        mask = (np.uint64(1) << _BITS) - np.uint64(1)
        top = ((word & mask) * positions) >> _BITS
        left = (((word >> _BITS) & mask) * positions) >> _BITS
        flipped = (word >> np.uint64(63)).astype(bool)
        return Windows(
            torch.from_numpy(top.astype(int)),
            torch.from_numpy(left.astype(int)),
            torch.from_numpy(flipped),
        )


def crop_and_flip(images: Tensor, windows: Windows) -> Tensor:
    """Pad, crop and flip images.

    Args:
        images: (…, channels, height, width).
        windows: fields of shape (…).

    Returns:
        Images of the same shape and type.
    """
    *lead, channels, height, width = images.shape
    top = windows.top.to(images.device).reshape(-1, 1)
    left = windows.left.to(images.device).reshape(-1, 1)
    flipped = windows.flipped.to(images.device).reshape(-1, 1)
    flat = images.reshape(-1, channels, height, width)
    padded = torch.nn.functional.pad(flat, (PADDING,) * 4)
    rows = top + torch.arange(height, device=images.device)
    columns = torch.arange(width, device=images.device)
    columns = left + torch.where(flipped, columns.flip(0), columns)
    pixels = rows[:, :, None] * (width + 2 * PADDING) + columns[:, None]
    pixels = pixels.flatten(1)[:, None].expand(-1, channels, -1)  # the same for all channels
    return padded.flatten(2).gather(2, pixels).reshape(*lead, channels, height, width)
