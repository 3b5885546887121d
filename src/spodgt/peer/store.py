"""A client's state on disk, written so that no crash can tear it apart.

Every vector has two slots in `vectors.bin`. A commit writes changed vectors to the slots *not* in use,
then one row of `state.db` (sqlite, WAL) that says which slots count, their checksums and all numbers:
that row is the commit point. The row before it stays, so a damaged slot costs one commit, not the run.

Durability `power` survives loss of power (fsync of both files in every commit); `process` survives
kill -9 only, and does not wait for the disk.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import sqlite3
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor

from spodgt.errors import Failed, InvalidInput
from spodgt.peer.faults import crash_point

DURABILITY = ("power", "process")
_FORMAT = 1
_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}


class StoreFailed(Failed):
    """The state could not be written or read; nothing was sent."""


class Slot(TypedDict):
    """Where a vector is in `vectors.bin`."""

    at: int  # offset of its two slots
    n: int  # numbers in it
    dtype: str
    slot: int  # which of the two counts
    crc: list[int]
    generation: int  # the commit that wrote it


class Saved(NamedTuple):
    """A committed state; `states.state_from(*saved)` makes a `State` of it."""

    vectors: dict[str, Tensor]
    meta: dict[str, Any]  # JSON values


class Store:
    """One state directory, open in one process at a time; `labels` say whose state it is, in every commit."""

    def __init__(
        self, directory: str | Path, *, durability: str = "power", labels: Mapping[str, str] | None = None
    ) -> None:
        if durability not in DURABILITY:
            raise InvalidInput(f"durability must be power or process, got {durability!r}; use power.")
        self.path, self.durability, self.labels = Path(directory), durability, dict(labels or {})
        self._open = contextlib.ExitStack()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            fcntl.flock(self._file("lock"), fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.file = self._file("vectors.bin")
            self.db = _database(self.path / "state.db", durability)
            self._open.callback(self.db.close)
        except (OSError, sqlite3.Error) as error:
            self.close()
            why = f"cannot be used: {_reason(error)}"
            if isinstance(error, BlockingIOError):
                why = "is in use by another process; stop that first"
            raise StoreFailed(f"state directory {self.path} {why}.") from None
        self.slots: dict[str, Slot] = {}
        self.generation = 0
        self.damaged = ""  # why the newest commit could not be used, if so

    # --- writing ---------------------------------------------------------------------------------
    def commit(self, vectors: Mapping[str, Tensor], meta: Mapping[str, object]) -> None:
        """Write changed vectors and all numbers atomically: after a crash all of it is there, or none."""
        slots, generation = dict(self.slots), self.generation + 1
        try:
            for name, vector in vectors.items():
                slots[name] = self._write(vector, slots.get(name), generation)
            crash_point("vectors written")
            if self.durability == "power":
                os.fdatasync(self.file)
            body = {"format": _FORMAT, "slots": slots, "meta": {**meta, **self.labels}}
            text = json.dumps(body, separators=(",", ":"))
            self.db.execute("BEGIN IMMEDIATE")
            # the state before this one stays; older ones go, and later ones that were found damaged
            self.db.execute("DELETE FROM commits WHERE generation != ?", (self.generation,))
            self.db.execute("INSERT INTO commits VALUES (?, ?)", (generation, text))
            crash_point("before commit")
            self.db.execute("COMMIT")
        except (OSError, sqlite3.Error) as error:
            raise StoreFailed(
                f"state directory {self.path} could not be written: {_reason(error)}; nothing was sent. "
                "Free the disk and start again."
            ) from None
        crash_point("after commit")
        self.slots, self.generation = slots, generation

    def _write(self, vector: Tensor, old: Slot | None, generation: int) -> Slot:
        kind = str(vector.dtype).removeprefix("torch.")
        data = vector.contiguous().numpy().astype(_DTYPES[kind], copy=False)
        if old is None or old["n"] != len(data) or old["dtype"] != kind:
            at = self._allocate(2 * data.nbytes)
            old = Slot(at=at, n=len(data), dtype=kind, slot=1, crc=[0, 0], generation=0)
        slot = 1 - old["slot"]
        view = data.data.cast("B")
        _pwrite(self.file, view, old["at"] + slot * data.nbytes)
        crc = list(old["crc"])
        crc[slot] = zlib.crc32(view)
        return {**old, "slot": slot, "crc": crc, "generation": generation}

    def _allocate(self, size: int) -> int:
        """Space at the end of the file, taken now: a full disk shows here and not in the middle of a run."""
        at = os.fstat(self.file).st_size
        at += -at % 4096
        os.posix_fallocate(self.file, at, size)
        return at

    # --- reading ---------------------------------------------------------------------------------
    def load(self) -> Saved | None:
        """The newest undamaged state; None in a new directory."""
        try:
            rows = self.db.execute("SELECT generation, body FROM commits ORDER BY generation DESC").fetchall()
        except sqlite3.Error as error:
            raise StoreFailed(f"{self.path}/state.db cannot be read: {_reason(error)}.") from None
        damaged = ""
        for generation, text in rows:
            try:
                body = json.loads(text)
                if body["format"] != _FORMAT:
                    known = f"has format {body['format']}, this version reads {_FORMAT}"
                    raise StoreFailed(f"{self.path} {known}; use the version that wrote it.")
                vectors = {name: self._read(name, slot) for name, slot in body["slots"].items()}
            except (ValueError, KeyError) as error:
                damaged = damaged or str(error)
                continue
            self.slots, self.generation = body["slots"], generation
            self.damaged = damaged
            return Saved(vectors, body["meta"])
        if rows:
            fix = "remove the directory: the client joins again with an epoch reset"
            raise StoreFailed(f"state in {self.path} is damaged ({damaged}); {fix}.")
        return None

    def _read(self, name: str, slot: Slot) -> Tensor:
        kind = _DTYPES[slot["dtype"]]
        at = slot["at"] + slot["slot"] * slot["n"] * kind.itemsize
        data = np.fromfile(self.path / "vectors.bin", kind, slot["n"], offset=at)
        if len(data) != slot["n"] or zlib.crc32(data.data) != slot["crc"][slot["slot"]]:
            raise ValueError(f"checksum of {name} is wrong")
        return torch.from_numpy(data.astype(kind.newbyteorder("="), copy=False))

    def _file(self, name: str) -> int:
        file = os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._open.callback(os.close, file)
        return file

    def close(self) -> None:
        self._open.close()


def read(directory: str | Path) -> Saved:
    """The committed state of a directory that no process has open."""
    if not (Path(directory) / "state.db").exists():
        raise InvalidInput(f"{directory} holds no peer state; give the state directory of a client.")
    with contextlib.closing(Store(directory, durability="process")) as store:
        saved = store.load()
    if saved is None:
        raise InvalidInput(f"{directory} holds no committed state; start the client first.")
    return saved


def _database(path: Path, durability: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute(f"PRAGMA synchronous={'FULL' if durability == 'power' else 'OFF'}")
    db.execute("CREATE TABLE IF NOT EXISTS commits (generation INTEGER PRIMARY KEY, body TEXT NOT NULL)")
    return db


def _pwrite(file: int, data: memoryview, at: int) -> None:
    while len(data):  # a write may be short
        done = os.pwrite(file, data, at)
        data, at = data[done:], at + done


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return "the disk is full"
    if isinstance(error, OSError) and error.errno in (errno.EROFS, errno.EACCES):
        return f"it is read-only ({error.strerror})"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
