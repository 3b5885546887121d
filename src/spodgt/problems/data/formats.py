"""Reading image files byte by byte: IDX (the MNIST family) and the binary version of CIFAR-10.

Nothing is ever unpickled, and no more is read than the header allows, so a broken or hostile file
gives one `InvalidData` sentence: the file, what was expected, what was found, and the fix.
"""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from spodgt.errors import InvalidData

Bytes = NDArray[np.uint8]
Stream = BinaryIO | gzip.GzipFile | lzma.LZMAFile

CIFAR_SHAPE = (3, 32, 32)  # planes of red, green and blue, each row by row
CIFAR_RECORD = 1 + 3 * 32 * 32  # one label, then the pixels

_CHUNK = 1 << 20
_UNSIGNED_BYTE = 0x08  # the IDX code of the only item type used here
_UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError)


def read_idx(path: Path, item: tuple[int, ...], fix: str) -> Bytes:
    """The items of an IDX file, plain, `.gz` or `.xz`, as `(N, *item)`; `item` is () for labels."""
    axes = 1 + len(item)
    magic = bytes([0, 0, _UNSIGNED_BYTE, axes])
    try:
        with _open(path) as stream:
            header = _read(stream, 4 + 4 * axes)
            if header[:4] != magic:
                found = f"it starts with {header[:4].hex() or 'nothing'}"
                raise problem(path, f"start with the IDX magic number {magic.hex()}", found, fix)
            if len(header) < 4 + 4 * axes:
                found = f"it ends after {len(header)}"
                raise problem(path, f"have an IDX header of {4 + 4 * axes} bytes", found, fix)
            count, *shape = (int(n) for n in np.frombuffer(header, ">u4", offset=4))
            if tuple(shape) != item:
                found = f"its header says {_times(shape)}"
                raise problem(path, f"hold images of {_times(item)} pixels", found, fix)
            if count == 0:
                raise problem(path, "hold at least one item", "its header says 0", fix)
            expected = count * int(np.prod(item, dtype=np.int64))
            body = _read(stream, expected + 1)  # one more, to see a file that is too long
    except _UNREADABLE as error:
        raise unreadable(path, error, fix) from error
    if len(body) != expected:
        found = f"it has {'more' if len(body) > expected else len(body)}"
        raise problem(path, f"have {expected} bytes after its header of {count} items", found, fix)
    return np.frombuffer(body, np.uint8).reshape(count, *item)


def read_pair(
    images: Path, labels: Path, shape: tuple[int, int, int], classes: int, fix: str
) -> tuple[Bytes, Bytes]:
    """Images `(N, *shape)` and their labels `(N,)` from two IDX files; the one channel is not in the file."""
    pixels = read_idx(images, shape[1:], fix)
    targets = read_idx(labels, (), fix)
    if len(pixels) != len(targets):
        found = f"it has {len(targets)}"
        raise problem(labels, f"have one label for each of the {len(pixels)} images of {images}", found, fix)
    check_labels(labels, targets, classes, fix)
    return pixels.reshape(-1, *shape), targets


def read_cifar(paths: Sequence[Path], classes: int, fix: str) -> tuple[Bytes, Bytes]:
    """Images `(N, 3, 32, 32)` and labels `(N,)` of the binary files `paths`, in their order.

    The files have no header, so one that was cut between two records shows only by being shorter
    than the first.
    """
    batches: list[Bytes] = []
    for path in paths:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise unreadable(path, error, fix) from error
        if len(data) == 0 or len(data) % CIFAR_RECORD:
            expected = f"be a whole number of records of {CIFAR_RECORD} bytes"
            raise problem(path, expected, f"it has {len(data)} bytes", fix)
        records = np.frombuffer(data, np.uint8).reshape(-1, CIFAR_RECORD)
        if batches and len(records) != len(batches[0]):
            expected = f"have {len(batches[0])} images as {paths[0].name} has"
            raise problem(path, expected, f"it has {len(records)}", fix)
        check_labels(path, records[:, 0], classes, fix)
        batches.append(records)
    pixels = np.concatenate([records[:, 1:] for records in batches])
    return pixels.reshape(-1, *CIFAR_SHAPE), np.concatenate([records[:, 0] for records in batches])


def read_names(path: Path, classes: int, fix: str) -> tuple[str, ...]:
    """The class names of `batches.meta.txt`: one a line, blank lines ignored."""
    try:
        names = tuple(line.strip() for line in path.read_text("utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error, fix) from error
    if len(names) != classes:
        raise problem(path, f"name {classes} classes", f"it names {len(names)}", fix)
    return names


def check_labels(path: Path, labels: NDArray[np.integer], classes: int, fix: str) -> None:
    """Say which label of `path` is the first outside 0 … classes - 1, if one is."""
    wrong = np.flatnonzero((labels < 0) | (labels >= classes))
    if len(wrong):
        found = f"label {wrong[0]} is {labels[wrong[0]]}"
        raise problem(path, f"have labels from 0 to {classes - 1}", found, fix)


def problem(path: Path, expected: str, found: str, fix: str) -> InvalidData:
    """The one sentence of every file error."""
    return InvalidData(f"{path} should {expected}, but {found}; {fix}.")


def unreadable(path: Path, error: Exception, fix: str) -> InvalidData:
    """The sentence for a file the system or the decompressor gave up on."""
    if isinstance(error, FileNotFoundError):
        return problem(path, "be there", "there is no such file", fix)
    if isinstance(error, OSError) and error.strerror:
        return problem(path, "be a readable file", f"the system says {error.strerror!r}", fix)
    kind = {".gz": "gzip", ".tgz": "gzip", ".xz": "xz"}.get(path.suffix, "data")
    cause = "it is cut short" if isinstance(error, EOFError) else f"it is corrupt ({_clause(error)})"
    return problem(path, f"be a whole {kind} file", cause, fix)


def _clause(error: Exception) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__


def _open(path: Path) -> Stream:
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    return lzma.open(path, "rb") if path.suffix == ".xz" else path.open("rb")


def _read(stream: Stream, limit: int) -> bytes:
    """At most `limit` bytes, in chunks: the header's word is no reason to reserve memory."""
    chunks: list[bytes] = []
    while limit > 0 and (chunk := stream.read(min(limit, _CHUNK))):
        chunks.append(chunk)
        limit -= len(chunk)
    return b"".join(chunks)


def _times(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape))
