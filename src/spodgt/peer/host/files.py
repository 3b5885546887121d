"""Files of a peer: all that it reads and writes on its disk."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from spodgt._util.files import replace_file, sync_directory

try:
    import fcntl
    import resource
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]
    resource = None  # type: ignore[assignment]

CAN_LOCK = fcntl is not None
OWNER_ONLY = 0o600
PUBLIC = 0o644


class FileStatus(NamedTuple):
    """What is known of a file without reading it."""

    mode: int  # permission bits
    modified: int  # nanoseconds
    size: int


class File(Protocol):
    """An open file that no other process has open; it is read and written at given positions."""

    def size(self) -> int: ...

    def read(self, at: int, size: int) -> bytes:
        """Up to `size` bytes from position `at`."""
        ...

    def write(self, data: memoryview, at: int) -> None:
        """Write all of `data` at position `at`; durable only after `sync`."""
        ...

    def allocate(self, at: int, size: int) -> None:
        """Reserve space, so that later writes there cannot fail on a full disk."""
        ...

    def sync(self) -> None:
        """Return once everything written so far survives a loss of power."""
        ...

    def close(self) -> None: ...


class Files(Protocol):
    """The disk of a peer. All methods raise OSError as those of `os` do."""

    def open(self, path: Path) -> File:
        """Open for reading and writing; made with mode 0600 if missing.

        Raises:
            BlockingIOError: another process has it open.
        """
        ...

    def read(self, path: Path) -> bytes: ...

    def status(self, path: Path) -> FileStatus: ...

    def append(self, path: Path, data: bytes) -> None:
        """Add to the end of a file; not durable."""
        ...

    def replace(self, path: Path, data: bytes, *, mode: int) -> None:
        """Replace a whole file at once and durably: after a crash the old or the new one is there."""
        ...

    def rename(self, path: Path, target: Path) -> None: ...


class DiskFile:
    """A file of the operating system, locked."""

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
        self._descriptor = os.open(path, flags, OWNER_ONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, at: int, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0:  # a read may be short
            part = os.pread(self._descriptor, size, at)
            if not part:
                break
            parts.append(part)
            at += len(part)
            size -= len(part)
        return b"".join(parts)

    def write(self, data: memoryview, at: int) -> None:
        while len(data):  # a write may be short
            written = os.pwrite(self._descriptor, data, at)
            data = data[written:]
            at += written

    def allocate(self, at: int, size: int) -> None:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._descriptor, at, size)
        else:
            self.write(memoryview(bytes(size)), at)

    def sync(self) -> None:
        getattr(os, "fdatasync", os.fsync)(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class Disk:
    """Files of the operating system."""

    def open(self, path: Path) -> DiskFile:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_new = not path.exists()
        file = DiskFile(path)
        if is_new:
            sync_directory(path.parent)
        return file

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def status(self, path: Path) -> FileStatus:
        status = path.stat()
        return FileStatus(status.st_mode & 0o777, status.st_mtime_ns, status.st_size)

    def append(self, path: Path, data: bytes) -> None:
        with path.open("ab") as file:
            file.write(data)

    def replace(self, path: Path, data: bytes, *, mode: int) -> None:
        replace_file(path, data, mode=mode)

    def rename(self, path: Path, target: Path) -> None:
        path.replace(target)


DISK = Disk()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock on a file, once no other process holds it; on Windows there is none."""
    with path.open("rb") as file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_locked(path: Path) -> bool:
    """Whether a process has a file open by `Disk.open`."""
    if fcntl is None or not path.exists():
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def raise_descriptor_limit() -> None:
    """Take as many descriptors as the host allows."""
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != hard:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
