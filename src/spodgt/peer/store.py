"""A client's state on disk, written so that no crash can tear it apart.

Every vector has two slots in `vectors.bin`. A commit writes changed vectors to the slots *not* in use,
then one row of `state.db` (sqlite, WAL) that says which slots count, their checksums and all numbers:
that row is the commit point. The row before it stays, so a damaged slot costs one commit, not the run.
The row begins with the SHA-256 of the rest of it, so that no damage of it can be taken for a state.

Durability `power` survives loss of power (fsync of both files in every commit); `process` survives
kill -9 only, and does not wait for the disk.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor

from spodgt._util.text import first_line
from spodgt.errors import Failed, InvalidInput
from spodgt.peer.faults import crash_point

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

DURABILITY = ("power", "process")
_FORMAT = 2
_READ = (1, _FORMAT)  # 1 had no checksum of the row
_ATTEMPTS = 20  # to read the state of a running client: it may overwrite a slot meanwhile
_DAMAGE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    OSError,
)  # what reading spoilt data raises
_UNREADABLE = (sqlite3.Error, UnicodeDecodeError)  # the latter quotes spoilt text of the database
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
        self,
        directory: str | Path,
        *,
        durability: str = "power",
        labels: Mapping[str, str] | None = None,
    ) -> None:
        if durability not in DURABILITY:
            raise InvalidInput(
                f"durability must be power or process, got {durability!r}; use power."
            )
        if fcntl is None:
            raise StoreFailed(
                "peers keep their state with POSIX file locks; run them on Linux or macOS."
            )
        self.path, self.durability, self.labels = Path(directory), durability, dict(labels or {})
        self._open = contextlib.ExitStack()
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            fcntl.flock(self._file("lock"), fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.file = self._file("vectors.bin")
            fcntl.flock(
                self.file, fcntl.LOCK_EX | fcntl.LOCK_NB
            )  # somebody may remove the lock file
            self._file("state.db")  # made here, with the mode of a secret
            self.db = _database(self.path / "state.db", durability)
            self._open.callback(self.db.close)
        except (OSError, *_UNREADABLE) as error:
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
                getattr(os, "fdatasync", os.fsync)(self.file)
            body = {"format": _FORMAT, "slots": slots, "meta": {**meta, **self.labels}}
            text = json.dumps(body, separators=(",", ":"))
            text = _digest(generation, text.encode()) + text
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
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self.file, at, size)
        else:
            _pwrite(self.file, memoryview(bytes(size)), at)
        return at

    # --- reading ---------------------------------------------------------------------------------
    def load(self, check: Callable[[Saved], None] = lambda saved: None) -> Saved | None:
        """The newest undamaged state; None in a new directory, or in one whose commits were lost.

        `check` raises ValueError for a state that cannot be; the one before it is taken then.
        """
        found = _newest(self.db, self.path, check)
        if found is None:
            if os.fstat(self.file).st_size:
                self.damaged = (
                    "vectors.bin holds numbers, but state.db no commit: it or its log was lost"
                )
            return None
        self.slots, self.generation, self.damaged = found.slots, found.generation, found.damaged
        return found.saved

    def _file(self, name: str) -> int:
        ways = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(self.path / name, ways, 0o600)
        self._open.callback(os.close, file)
        return file

    def close(self) -> None:
        self._open.close()


class _Found(NamedTuple):
    saved: Saved
    slots: dict[str, Slot]
    generation: int
    damaged: str  # why a later commit cannot be used, if there is one


def _newest(db: sqlite3.Connection, path: Path, check: Callable[[Saved], None]) -> _Found | None:
    """The newest commit that is whole; None if there is none at all."""
    damaged = ""
    fix = "remove the directory: the client joins again with an epoch reset"
    try:
        rows = db.execute(
            "SELECT generation, body FROM commits ORDER BY generation DESC"
        ).fetchall()
    except _UNREADABLE as error:
        raise StoreFailed(f"{path}/state.db cannot be read: {_reason(error)}; {fix}.") from None
    for generation, row in rows:
        try:
            body = _body(generation, row)
            if body["format"] not in _READ:
                known = f"has format {body['format']}, this version reads {' and '.join(map(str, _READ))}"
                raise StoreFailed(f"{path} {known}; use the version that wrote it.")
            vectors = {name: _read(path, name, slot) for name, slot in body["slots"].items()}
            saved = Saved(vectors, body["meta"])
            check(saved)
        except _DAMAGE as error:
            damaged = damaged or f"{type(error).__name__}: {error}"[:200]
            continue
        if len(rows) == 1 and generation > 1:  # there are always two
            damaged = "one of the last two commits is missing"
        return _Found(saved, body["slots"], generation, damaged)
    if rows:
        raise StoreFailed(f"state in {path} is damaged ({damaged}); {fix}.")
    return None


def _digest(generation: int, text: bytes) -> str:
    return hashlib.sha256(b"%d " % generation + text).hexdigest()


def _body(generation: int, row: bytes) -> dict[str, Any]:
    """The JSON of a row, if its checksum is right."""
    text = row
    if not row.startswith(b"{"):
        text = row[64:]
        if row[:64] != _digest(generation, text).encode():
            raise ValueError(f"checksum of commit {generation} is wrong")
    return json.loads(text)  # type: ignore[no-any-return]


def _read(path: Path, name: str, slot: Slot) -> Tensor:
    kind = _DTYPES[slot["dtype"]]
    at = slot["at"] + slot["slot"] * slot["n"] * kind.itemsize
    data = np.fromfile(path / "vectors.bin", kind, slot["n"], offset=at)
    if len(data) != slot["n"] or zlib.crc32(data.data) != slot["crc"][slot["slot"]]:
        raise ValueError(f"checksum of {name} is wrong")
    return torch.from_numpy(data.astype(kind.newbyteorder("="), copy=False))


def read(directory: str | Path, *, running: bool = False) -> Saved:
    """The committed state of a directory, in which nothing is written; of a running client only if asked."""
    path = Path(directory)
    if not (path / "state.db").exists():
        raise InvalidInput(
            f"{directory} holds no peer state; give the state directory of a client."
        )
    for attempt in range(_ATTEMPTS):
        try:
            with _unchanged(path, running) as db:
                found = _newest(db, path, lambda saved: None)
            break
        except (StoreFailed, *_UNREADABLE):
            if not running or attempt == _ATTEMPTS - 1:
                raise
    if found is None:
        raise InvalidInput(f"{directory} holds no committed state; start the client first.")
    return found.saved


@contextlib.contextmanager
def _unchanged(path: Path, running: bool) -> Iterator[sqlite3.Connection]:
    """The database of a directory that may be read-only: of a running client as it is, else a copy of it."""
    with contextlib.ExitStack() as stack:
        home = path
        if not _in_use(path):  # after a kill the log must be played back, which writes
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spodgt-state-")))
            for file in path.glob("state.db*"):
                shutil.copyfile(file, home / file.name)
        elif not running:
            raise StoreFailed(
                f"state directory {path} is in use by another process; stop that first."
            )
        way = "mode=ro" if home == path else "mode=rw"
        db = sqlite3.connect(f"{(home / 'state.db').resolve().as_uri()}?{way}", uri=True, timeout=5)
        db.text_factory = bytes
        with contextlib.closing(db):
            yield db


def _in_use(path: Path) -> bool:
    """Whether a process holds the lock of a state directory."""
    if fcntl is None or not (path / "lock").exists():
        return False
    with (path / "lock").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _database(path: Path, durability: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
    db.text_factory = bytes  # damaged text is no reason to give up the row before it
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA synchronous={'FULL' if durability == 'power' else 'OFF'}")
        db.execute(
            "CREATE TABLE IF NOT EXISTS commits (generation INTEGER PRIMARY KEY, body TEXT NOT NULL)"
        )
    except _UNREADABLE:
        db.close()
        raise
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
    return first_line(error)
