"""A client's state on disk, committed atomically: after a crash the last commit is complete.

Every vector has two slots in `vectors.bin`. A commit writes changed vectors to the slots *not* in use, then
a record to the older of the files `commit.0` and `commit.1`: the slots in use, their checksums, and all
numbers. That record is the commit point. The record before it remains, so a damaged slot costs one commit and
not the run. A record begins with the SHA-256 of the rest of it, which a torn or damaged one does not match.

In a mapped store every vector is a row of its own, in which it was computed (`mapped_rows`); the rows of the
last two commits are not overwritten.

Durability `power` survives loss of power (two syncs in every commit); `process` survives kill -9 only, and
does not wait for the disk.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import sqlite3
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor

from spodgt._util.text import first_line
from spodgt.errors import Failed, InvalidInput
from spodgt.peer.host import files as disks
from spodgt.peer.host.fault_injection import crash_point
from spodgt.peer.host.files import DISK, File, Files
from spodgt.peer.storage.mapped_rows import MappedRows
from spodgt.tensors import new_row

DURABILITY = ("power", "process")
VECTORS = "vectors.bin"
RECORDS = ("commit.0", "commit.1")  # of even and of odd generations
DATABASE = "state.db"  # of release 0.2.0, in the place of the records
_FORMAT = 3
_READ = (2, _FORMAT)
_ATTEMPTS = 20  # to read the state of a running client: it may overwrite a slot meanwhile
_DIGEST = 64  # hexadecimal digits
_DAMAGE = (ValueError, LookupError, TypeError, AttributeError)  # what reading spoilt data raises
_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}


_IN_USE = "state directory {} is in use by another process; stop that first."


class StoreFailed(Failed):
    """The state could not be written or read; nothing was sent."""


class StoreInUse(StoreFailed, InvalidInput):
    """Another process uses the state; exit code 2, so that no supervisor starts it again."""


class Slot(TypedDict):
    """Where a vector is in `vectors.bin`."""

    at: int  # offset of its two slots, or of its row
    n: int  # numbers in it
    dtype: str
    slot: int  # which of the two is in use; 0 in a row
    crc: list[int]  # of both slots, or of the row
    generation: int  # the commit that wrote it


class StoredState(NamedTuple):
    """Vectors and numbers of a commit; `client_state.state_from(*saved)` makes a `State` of it."""

    vectors: dict[str, Tensor]
    meta: dict[str, Any]  # JSON values


class StoredRecord(NamedTuple):
    """The body of a commit, as it was written."""

    generation: int
    text: bytes


class DiskStateStore:
    """One state directory, open in one process at a time.

    Args:
        directory: Made if missing.
        durability: "power" or "process".
        labels: Run, client and layout that the state belongs to; part of every commit.
        files: The disk.
        mapped: Vectors of `new_row` are rows of the file; the disk must be `DISK`.

    Raises:
        StoreFailed: The directory cannot be used, or another process uses it.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        durability: str = "power",
        labels: Mapping[str, str] | None = None,
        files: Files = DISK,
        mapped: bool = False,
    ) -> None:
        if durability not in DURABILITY:
            raise InvalidInput(
                f"durability must be power or process, got {durability!r}; use power."
            )
        if not disks.CAN_LOCK:
            raise StoreFailed(
                "peers keep their state with POSIX file locks; run them on Linux or macOS."
            )
        self.path = Path(directory)
        self.durability = durability
        self.labels = dict(labels or {})
        self._open_files = contextlib.ExitStack()
        try:
            self.file = self._open_file(files, VECTORS)
            self.records = [self._open_file(files, name) for name in RECORDS]
            if (self.path / DATABASE).exists():
                self._convert(read_database(self.path))
        except OSError as error:
            self.close()
            if isinstance(error, BlockingIOError):
                raise StoreInUse(_IN_USE.format(self.path)) from None
            why = f"cannot be used: {_reason(error)}"
            raise StoreFailed(f"state directory {self.path} {why}.") from None
        except StoreFailed:
            self.close()
            raise
        self.rows = MappedRows(self.path / VECTORS, self.file) if mapped else None
        self.slots: dict[str, Slot] = {}
        self.generation = 0
        self.damaged = ""  # why the newest commit could not be used, if so

    def _open_file(self, files: Files, name: str) -> File:
        file = files.open(self.path / name)
        self._open_files.callback(file.close)
        return file

    def _convert(self, records: list[StoredRecord]) -> None:
        """Take over the commits of a state of release 0.2.0; its vectors are stored in the same way."""
        for record in records:
            self._write_record(record)
        for path in self.path.glob(f"{DATABASE}*"):
            path.unlink()

    # --- writing ---------------------------------------------------------------------------------
    def new_row(self, n: int, dtype: torch.dtype) -> Tensor:
        """A vector of n undefined numbers for the next commit: a row of the file, if it is mapped.

        Raises:
            StoreFailed: The disk is full.
        """
        if self.rows is None:
            return new_row(n, dtype)
        try:
            return self.rows.new(n, dtype)
        except OSError as error:
            raise self._failed_write(error) from None

    def _failed_write(self, error: OSError) -> StoreFailed:
        return StoreFailed(
            f"state directory {self.path} could not be written: {_reason(error)}; nothing was sent. "
            "Free the disk and start again."
        )

    def commit(self, vectors: Mapping[str, Tensor], meta: Mapping[str, object]) -> None:
        """Write changed vectors and all numbers atomically: after a crash all of it is there, or none."""
        slots = dict(self.slots)
        generation = self.generation + 1
        try:
            rows = {name: self._row(vector) for name, vector in vectors.items()}
            for name, vector in rows.items():
                slots[name] = self._write(vector, slots.get(name), generation)
            crash_point("vectors written")
            if self.durability == "power":
                self.file.sync()
            body = {"format": _FORMAT, "slots": slots, "meta": {**meta, **self.labels}}
            text = json.dumps(body, separators=(",", ":")).encode()
            crash_point("before commit")
            self._write_record(StoredRecord(generation, text))
        except OSError as error:
            raise self._failed_write(error) from None
        crash_point("after commit")
        if self.rows is not None:
            self.rows.kept = _areas(self.slots) | _areas(slots)
        self.slots = slots
        self.generation = generation

    def _write_record(self, record: StoredRecord) -> None:
        file = self.records[record.generation % 2]
        file.write(memoryview(_encode_record(record)), 0)
        if self.durability == "power":
            file.sync()

    def _row(self, vector: Tensor) -> Tensor:
        """A vector in a row of the file, if that is mapped."""
        if self.rows is None or self.rows.offset(vector) is not None:
            return vector
        return self.rows.new(len(vector), vector.dtype).copy_(vector)

    def _write(self, vector: Tensor, old: Slot | None, generation: int) -> Slot:
        kind = str(vector.dtype).removeprefix("torch.")
        data = vector.contiguous().numpy().astype(_DTYPES[kind], copy=False)
        at = None if self.rows is None else self.rows.offset(vector)
        if at is not None:  # it is in the file already
            crc = [zlib.crc32(data.data.cast("B"))]
            return Slot(at=at, n=len(data), dtype=kind, slot=0, crc=crc, generation=generation)
        is_pair = old is not None and len(old["crc"]) == 2
        if old is None or not is_pair or old["n"] != len(data) or old["dtype"] != kind:
            at = self._allocate(2 * data.nbytes)
            old = Slot(at=at, n=len(data), dtype=kind, slot=1, crc=[0, 0], generation=0)
        slot = 1 - old["slot"]
        view = data.data.cast("B")
        self.file.write(view, old["at"] + slot * data.nbytes)
        crc = list(old["crc"])
        crc[slot] = zlib.crc32(view)
        return {**old, "slot": slot, "crc": crc, "generation": generation}

    def _allocate(self, size: int) -> int:
        """Space at the end of the file, taken now: a full disk shows here and not in the middle of a run."""
        at = self.file.size()
        at += -at % 4096
        self.file.allocate(at, size)
        return at

    # --- reading ---------------------------------------------------------------------------------
    def load(self, check: Callable[[StoredState], None] = lambda saved: None) -> StoredState | None:
        """The newest undamaged state; None in a new directory, or in one whose commits were lost.

        Args:
            check: Raises ValueError for a state that no client can be in: the one before it is used.

        Raises:
            StoreFailed: All commits are damaged, or the newest has another format.
        """
        contents = [file.read(0, file.size()) for file in self.records]
        read_at = self.file.read if self.rows is None else self.rows.read
        commit = _load_newest(contents, read_at, self.path, check)
        if commit is None:
            if self.file.size():
                self.damaged = f"{VECTORS} holds numbers, but no commit is left"
            return None
        self.slots = commit.slots
        if self.rows is not None:
            self.rows.kept = _areas_of_records(contents)
        self.generation = commit.generation
        self.damaged = commit.damaged
        return commit.saved

    def close(self) -> None:
        self._open_files.close()


class _LoadedCommit(NamedTuple):
    saved: StoredState
    slots: dict[str, Slot]
    generation: int
    damaged: str = ""  # why a later commit cannot be used, if there is one


ReadAt = Callable[[int, int], bytes | memoryview]  # position, size


def _load_newest(
    contents: list[bytes], read_at: ReadAt, path: Path, check: Callable[[StoredState], None]
) -> _LoadedCommit | None:
    """The newest undamaged commit; None if there is none at all.

    Args:
        contents: Of the record files.
        read_at: Reads `vectors.bin`.
        path: The state directory.
        check: As in `DiskStateStore.load`.

    Raises:
        StoreFailed: All commits are damaged, or the newest has another format.
    """
    records, damaged = _decode_records(contents)
    for record in records:
        try:
            commit = _load_commit(record, read_at, path)
            check(commit.saved)
        except _DAMAGE as error:
            damaged = _describe(error)
            continue
        if not damaged and len(records) == 1 and record.generation > 1:  # there are always two
            damaged = "one of the last two commits is missing"
        return commit._replace(damaged=damaged)
    was_first = not records and not all(contents)  # the first commit was torn: nothing was sent
    if damaged and not was_first:
        fix = "remove the directory: the client joins again with an epoch reset"
        raise StoreFailed(f"state in {path} is damaged ({damaged}); {fix}.")
    return None


def _decode_records(contents: list[bytes]) -> tuple[list[StoredRecord], str]:
    """The undamaged records, the newest first, and why another is damaged, if one is."""
    records = []
    damaged = ""
    for content in filter(None, contents):
        try:
            records.append(_decode_record(content))
        except _DAMAGE as error:
            damaged = _describe(error)
    return sorted(records, reverse=True), damaged


def _load_commit(record: StoredRecord, read_at: ReadAt, path: Path) -> _LoadedCommit:
    """The commit of a record, with its vectors; raises one of `_DAMAGE` if it is spoilt."""
    body = json.loads(record.text)
    if body["format"] not in _READ:
        formats = f"has format {body['format']}, this version reads {' and '.join(map(str, _READ))}"
        raise StoreFailed(f"{path} {formats}; use the version that wrote it.")
    saved = StoredState(_vectors(read_at, body["slots"]), body["meta"])
    return _LoadedCommit(saved, body["slots"], record.generation)


def _describe(damage: Exception) -> str:
    return f"{type(damage).__name__}: {damage}"[:200]


def _encode_record(record: StoredRecord) -> bytes:
    """A record as it is written: digest, generation and length, then the text."""
    head = b"%20d %12d\n" % (record.generation, len(record.text))
    digest = hashlib.sha256(head + record.text).hexdigest()
    return digest.encode() + head + record.text


def _decode_record(content: bytes) -> StoredRecord:
    """The inverse of `_encode_record`; what an earlier, longer record left behind it is ignored."""
    head, newline, rest = content[_DIGEST:].partition(b"\n")
    generation, length = map(int, head.split())
    text = rest[:length]
    digest = hashlib.sha256(head + newline + text).hexdigest()
    if content[:_DIGEST] != digest.encode():
        raise ValueError("checksum of a commit is wrong")
    return StoredRecord(generation, text)


def _vectors(read_at: ReadAt, slots: Mapping[str, Slot]) -> dict[str, Tensor]:
    vectors = {}
    for name, slot in slots.items():
        kind = _DTYPES[slot["dtype"]]
        at, size = _area(slot)
        data = read_at(at, size)
        if len(data) != size or zlib.crc32(data) != slot["crc"][slot["slot"]]:
            raise ValueError(f"checksum of {name} is wrong")
        numbers = np.frombuffer(data, kind).astype(kind.newbyteorder("="), copy=False)
        vectors[name] = torch.from_numpy(np.require(numbers, requirements="W"))
    return vectors


def _area(slot: Slot) -> tuple[int, int]:
    """Offset and bytes of a vector."""
    size = slot["n"] * _DTYPES[slot["dtype"]].itemsize
    return slot["at"] + slot["slot"] * size, size


def _areas(slots: Mapping[str, Slot]) -> dict[int, int]:
    """Bytes by offset of all vectors of a commit, with both slots of those that have two."""
    return {slot["at"]: len(slot["crc"]) * _area(slot)[1] for slot in slots.values()}


def _areas_of_records(contents: list[bytes]) -> dict[int, int]:
    """Bytes by offset of all vectors of the undamaged records."""
    areas: dict[int, int] = {}
    for record in _decode_records(contents)[0]:
        areas |= _areas(json.loads(record.text)["slots"])
    return areas


def has_state(directory: Path) -> bool:
    """Whether a client has committed a state in this directory."""
    return any((directory / name).exists() for name in (DATABASE, *RECORDS))


def read(directory: str | Path, *, running: bool = False) -> StoredState:
    """The committed state of a directory, in which nothing is written; a state of 0.2.0 is converted.

    Args:
        directory: Of a `DiskStateStore`.
        running: Whether a client may use the directory meanwhile.

    Raises:
        InvalidInput: The directory holds no committed state.
        StoreFailed: The state is damaged, or in use and `running` is false.
    """
    path = Path(directory)
    if not has_state(path):
        raise InvalidInput(
            f"{directory} holds no peer state; give the folder of a client that has run."
        )
    if not running and disks.is_locked(path / VECTORS):
        raise StoreInUse(_IN_USE.format(path))
    if (path / DATABASE).exists():
        DiskStateStore(path).close()
    attempts = _ATTEMPTS if running else 1
    for remaining in reversed(range(attempts)):
        try:
            commit = _read_newest_commit(path)
            break
        except StoreFailed:
            if not remaining:
                raise
    if commit is None:
        raise InvalidInput(f"{directory} holds no committed state; start the client first.")
    return commit.saved


def _read_newest_commit(path: Path) -> _LoadedCommit | None:
    records = [_content(path / name) for name in RECORDS]
    with (path / VECTORS).open("rb") as file:
        return _load_newest(records, partial(_read_at, file), path, lambda saved: None)


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _read_at(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    return file.read(size)


def read_database(path: Path) -> list[StoredRecord]:
    """The commits in the sqlite database of release 0.2.0."""
    records = []
    fix = "remove the directory: the client joins again with an epoch reset"
    try:
        with contextlib.closing(sqlite3.connect(path / DATABASE)) as database:
            database.text_factory = bytes
            rows = database.execute("SELECT generation, body FROM commits").fetchall()
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter quotes spoilt text
        raise StoreFailed(f"{path}/{DATABASE} cannot be read: {_reason(error)}; {fix}.") from None
    for generation, row in rows:
        text = row[_DIGEST:]
        digest = hashlib.sha256(b"%d " % generation + text).hexdigest()
        if row[:_DIGEST] == digest.encode():
            records.append(StoredRecord(generation, text))
    if rows and not records:
        raise StoreFailed(f"{path}/{DATABASE} cannot be read: its commits are damaged; {fix}.")
    return records


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "the disk is full"
    if isinstance(error, OSError) and error.errno in (errno.EROFS, errno.EACCES):
        return f"it is read-only ({error.strerror})"
    return first_line(error)
