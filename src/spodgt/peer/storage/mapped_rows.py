"""Rows of a file that are mapped into memory, so that a large state is in memory once at most.

A vector is computed in the row in which a commit finds it: the commit writes only where it is. The
system keeps rows in memory as long as there is room. The space of a row is free again when no
tensor uses it and no commit refers to it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spodgt.peer.host.files import File

_ALIGNMENT = 4096  # of a row, in bytes


class MappedRows:
    """The rows of one file.

    Args:
        path: Of the file.
        file: The same, open.
    """

    def __init__(self, path: Path, file: File) -> None:
        self.path = path
        self.file = file
        self.kept: Mapping[int, int] = {}  # sizes by offset, of what commits refer to
        self.bytes_made = 0  # in all rows so far
        self._used: dict[int, tuple[int, int]] = {}  # offset and size of what is mapped, by address
        self._lock = threading.Lock()

    def new(self, n: int, dtype: torch.dtype) -> Tensor:
        """A row of n undefined numbers.

        Raises:
            OSError: the disk is full.
        """
        size = n * dtype.itemsize
        with self._lock:
            row = self._map(self._find_space(size), size)
        self.bytes_made += size
        return torch.from_numpy(row).view(dtype)

    def offset(self, vector: Tensor) -> int | None:
        """Where a vector is in the file; None if it is no row, or has gaps between its numbers."""
        if not vector.is_contiguous():
            return None
        found = self._used.get(vector.data_ptr())
        return None if found is None else found[0]

    def read(self, at: int, size: int) -> memoryview:
        """The bytes at an offset, without a copy; none if the file is shorter."""
        if at + size > self.file.size():
            return memoryview(b"")  # to map them would make it longer, without space on the disk
        return self._map(at, size).data

    def _map(self, at: int, size: int) -> NDArray[np.uint8]:
        """The bytes at an offset; they are in use as long as this array, or a view of it, exists."""
        array = np.memmap(self.path, np.uint8, "r+", at, (size,))
        address = array.ctypes.data
        self._used[address] = (at, size)
        # without the lock: it is called wherever the last tensor ends
        weakref.finalize(array, self._used.pop, address).atexit = False
        return array

    def _find_space(self, size: int) -> int:
        """The first offset with so much space; the file grows if there is none."""
        start = 0
        # in this order: a commit keeps a row before its last tensor ends
        used = self._used.copy().values()
        taken = [*used, *self.kept.items()]
        for at, length in sorted(taken):
            if at - start >= size:
                return start
            end = at + length
            start = max(start, end + -end % _ALIGNMENT)
        if start + size > self.file.size():
            self.file.allocate(start, size)
        return start
