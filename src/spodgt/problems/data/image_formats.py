"""Reads image files: IDX (the MNIST family) and the binary version of CIFAR-10.

Nothing is unpickled, and no more bytes are read than the header allows. A broken or hostile file
raises `InvalidData` with the file, the expected and the actual content, and the fix.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spodgt.problems.data.file_errors import Stream, file_error, file_errors, open_file, require

Bytes = NDArray[np.uint8]

CIFAR_SHAPE = (3, 32, 32)  # planes of red, green and blue, each row by row
CIFAR_RECORD = 1 + 3 * 32 * 32  # one label, then the pixels

_CHUNK = 1 << 20
_UNSIGNED_BYTE = 0x08  # the IDX code of the only item type used here


def read_idx(path: Path, item: tuple[int, ...], fix: str) -> Bytes:
    """Read an IDX file, plain, `.gz` or `.xz`.

    Args:
        path: of the file.
        item: shape of an item; () for labels.
        fix: what to do about a broken file, for the error message.

    Returns:
        (N, *item).

    Raises:
        InvalidData: if the header or the number of bytes is wrong.
    """
    axes = 1 + len(item)
    magic = bytes([0, 0, _UNSIGNED_BYTE, axes])
    length = 4 + 4 * axes
    with file_errors(path, fix), open_file(path) as stream:
        header = _read(stream, length)
        got = header[:4].hex() or "nothing"
        expected = f"start with the IDX magic number {magic.hex()}"
        require(header[:4] == magic, path, expected, got, fix)
        expected = f"have an IDX header of {length} bytes"
        require(len(header) == length, path, expected, len(header), fix)
        count, *shape = (int(n) for n in np.frombuffer(header, ">u4", offset=4))
        expected = f"hold images of {_format_shape(item)} pixels"
        require(tuple(shape) == item, path, expected, _format_shape(shape), fix)
        require(count > 0, path, "hold at least one item", count, fix)
        size = count * int(np.prod(item, dtype=np.int64))
        body = _read(stream, size + 1)  # one byte more, to detect a file that is too long
    expected = f"have {size} bytes after its header of {count} items"
    got_bytes = "more" if len(body) > size else len(body)
    require(len(body) == size, path, expected, got_bytes, fix)
    return np.frombuffer(body, np.uint8).reshape(count, *item)


def read_pair(
    images: Path, labels: Path, shape: tuple[int, int, int], classes: int, fix: str
) -> tuple[Bytes, Bytes]:
    """Images (N, *shape) with one channel and labels (N,) from two IDX files."""
    pixels = read_idx(images, shape[1:], fix)
    targets = read_idx(labels, (), fix)
    expected = f"have one label for each of the {len(pixels)} images of {images}"
    require(len(pixels) == len(targets), labels, expected, len(targets), fix)
    check_labels(labels, targets, classes, fix)
    return pixels.reshape(-1, *shape), targets


def read_cifar(paths: Sequence[Path], classes: int, fix: str) -> tuple[Bytes, Bytes]:
    """Images (N, 3, 32, 32) and labels (N,) of the binary files `paths`, in their order.

    The files have no header: a file that was cut between two records is detected only because it
    is shorter than the first.
    """
    batches: list[Bytes] = []
    for path in paths:
        with file_errors(path, fix):
            data = path.read_bytes()
        is_complete = len(data) > 0 and len(data) % CIFAR_RECORD == 0
        expected = f"hold records of {CIFAR_RECORD} bytes"
        require(is_complete, path, expected, f"{len(data)} bytes in all", fix)
        records = np.frombuffer(data, np.uint8).reshape(-1, CIFAR_RECORD)
        batches.append(records)
        expected = f"have {len(batches[0])} images as {paths[0].name} has"
        require(len(records) == len(batches[0]), path, expected, len(records), fix)
        check_labels(path, records[:, 0], classes, fix)
    pixels = np.concatenate([records[:, 1:] for records in batches])
    labels = np.concatenate([records[:, 0] for records in batches])
    return pixels.reshape(-1, *CIFAR_SHAPE), labels


def read_names(path: Path, classes: int, fix: str) -> tuple[str, ...]:
    """The class names of `batches.meta.txt`: one per line, blank lines ignored."""
    with file_errors(path, fix):
        lines = path.read_text("utf-8").splitlines()
    names = tuple(line.strip() for line in lines if line.strip())
    require(len(names) == classes, path, f"name {classes} classes", len(names), fix)
    return names


def check_labels(path: Path, labels: NDArray[np.integer], classes: int, fix: str) -> None:
    """Raise `InvalidData` for the first label outside 0 … classes - 1."""
    invalid = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(invalid):
        position = invalid[0]
        expected = f"have labels from 0 to {classes - 1}"
        raise file_error(path, expected, f"{labels[position]} as label {position}", fix)


def _read(stream: Stream, limit: int) -> bytes:
    """Read at most `limit` bytes in chunks: a wrong header must not allocate its claimed size."""
    chunks: list[bytes] = []
    while limit > 0:
        chunk = stream.read(min(limit, _CHUNK))
        if not chunk:
            break
        chunks.append(chunk)
        limit -= len(chunk)
    return b"".join(chunks)


def _format_shape(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape))
