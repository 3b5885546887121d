"""Reading image files byte by byte: IDX (the MNIST family) and the binary version of CIFAR-10.

Nothing is ever unpickled, and no more is read than the header allows, so a broken or hostile file
gives one `InvalidData` sentence: the file, what was expected, what was found, and the fix.
"""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


def read_idx(path: Path, item: tuple[int, ...], fix: str) -> Bytes:
    """The items of an IDX file, plain, `.gz` or `.xz`, as `(N, *item)`; `item` is () for labels."""
    axes = 1 + len(item)
    magic, length = bytes([0, 0, _UNSIGNED_BYTE, axes]), 4 + 4 * axes
    with reading(path, fix), _open(path) as stream:
        header = _read(stream, length)
        found = header[:4].hex() or "nothing"
        require(header[:4] == magic, path, f"start with the IDX magic number {magic.hex()}", found, fix)
        require(len(header) == length, path, f"have an IDX header of {length} bytes", len(header), fix)
        count, *shape = (int(n) for n in np.frombuffer(header, ">u4", offset=4))
        require(tuple(shape) == item, path, f"hold images of {_times(item)} pixels", _times(shape), fix)
        require(count > 0, path, "hold at least one item", count, fix)
        size = count * int(np.prod(item, dtype=np.int64))
        body = _read(stream, size + 1)  # one more, to see a file that is too long
    expected = f"have {size} bytes after its header of {count} items"
    require(len(body) == size, path, expected, "more" if len(body) > size else len(body), fix)
    return np.frombuffer(body, np.uint8).reshape(count, *item)


def read_pair(
    images: Path, labels: Path, shape: tuple[int, int, int], classes: int, fix: str
) -> tuple[Bytes, Bytes]:
    """Images `(N, *shape)` and their labels `(N,)` from two IDX files; the one channel is not in the file."""
    pixels = read_idx(images, shape[1:], fix)
    targets = read_idx(labels, (), fix)
    expected = f"have one label for each of the {len(pixels)} images of {images}"
    require(len(pixels) == len(targets), labels, expected, len(targets), fix)
    check_labels(labels, targets, classes, fix)
    return pixels.reshape(-1, *shape), targets


def read_cifar(paths: Sequence[Path], classes: int, fix: str) -> tuple[Bytes, Bytes]:
    """Images `(N, 3, 32, 32)` and labels `(N,)` of the binary files `paths`, in their order.

    The files have no header, so one that was cut between two records shows only by being shorter
    than the first.
    """
    batches: list[Bytes] = []
    for path in paths:
        with reading(path, fix):
            data = path.read_bytes()
        whole = len(data) > 0 and len(data) % CIFAR_RECORD == 0
        require(whole, path, f"hold records of {CIFAR_RECORD} bytes", f"{len(data)} bytes in all", fix)
        records = np.frombuffer(data, np.uint8).reshape(-1, CIFAR_RECORD)
        batches.append(records)
        expected = f"have {len(batches[0])} images as {paths[0].name} has"
        require(len(records) == len(batches[0]), path, expected, len(records), fix)
        check_labels(path, records[:, 0], classes, fix)
    pixels = np.concatenate([records[:, 1:] for records in batches])
    return pixels.reshape(-1, *CIFAR_SHAPE), np.concatenate([records[:, 0] for records in batches])


def read_names(path: Path, classes: int, fix: str) -> tuple[str, ...]:
    """The class names of `batches.meta.txt`: one a line, blank lines ignored."""
    with reading(path, fix):
        names = tuple(line.strip() for line in path.read_text("utf-8").splitlines() if line.strip())
    require(len(names) == classes, path, f"name {classes} classes", len(names), fix)
    return names


def check_labels(path: Path, labels: NDArray[np.integer], classes: int, fix: str) -> None:
    """Say which label of `path` is the first outside 0 … classes - 1, if one is."""
    for number in np.flatnonzero((labels < 0) | (labels >= classes))[:1]:
        raise wrong(path, f"have labels from 0 to {classes - 1}", f"{labels[number]} as label {number}", fix)


def wrong(path: Path, expected: str, found: object, fix: str) -> InvalidData:
    """The one sentence of every file error."""
    return InvalidData(f"{path} must {expected}, got {found}; {fix}.")


def require(good: bool, path: Path, expected: str, found: object, fix: str) -> None:
    """Raise that sentence unless `good`."""
    if not good:
        raise wrong(path, expected, found, fix)


@contextmanager
def reading(path: Path, fix: str) -> Iterator[None]:
    """That sentence for whatever the system or a decoder gives up on in here."""
    try:
        yield
    except FileNotFoundError as error:
        raise wrong(path, "exist", "no such file", fix) from error
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.strerror:
            raise wrong(path, "be a readable file", f"the error {error.strerror!r}", fix) from error
        kind = {".gz": "gzip", ".xz": "xz"}.get(path.suffix, "data")
        clause = str(error).strip().rstrip(".") or type(error).__name__
        found = "one that is cut short" if isinstance(error, EOFError) else f"a corrupt one ({clause})"
        raise wrong(path, f"be a whole {kind} file", found, fix) from error


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
