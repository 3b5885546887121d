"""Simulated disks: what was written and not synced may be lost, torn or reordered when power fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from spodgt.peer.host.files import OWNER_ONLY, FileStatus

SECTOR = 512  # bytes that are written whole or not at all


@dataclass
class Inode:
    """The content of one file, as processes see it and as it would be after a loss of power."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, bytes]] = field(default_factory=list)  # writes since the last sync
    mode: int = OWNER_ONLY
    modified: int = 0
    is_open: bool = False

    def write(self, data: bytes, at: int) -> None:
        end = at + len(data)
        if end > len(self.content):
            self.content.extend(bytes(end - len(self.content)))
        self.content[at:end] = data
        self.pending.append((at, data))

    def sync(self) -> None:
        self.durable = bytes(self.content)
        self.pending.clear()

    def lose_power(self, random: Random) -> None:
        """Keep any part of what was not synced, sector by sector."""
        kept = Inode(bytearray(self.durable))
        share = random.choice((0.0, 0.5, 0.9, 1.0))
        for at, data in self.pending:
            first = -at % SECTOR or SECTOR
            starts = [0, *range(first, len(data), SECTOR)]
            for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
                if random.random() < share:
                    kept.write(data[start:end], at + start)
        self.content = kept.content
        self.sync()


class SimulatedDisk:
    """The files of one host; they outlive its processes."""

    def __init__(self) -> None:
        self.inodes: dict[Path, Inode] = {}
        self.is_full = False
        self.writes = 0

    def put(self, path: Path, data: bytes, mode: int = 0o644) -> None:
        """Write a whole file durably, as an operator does."""
        self.writes += 1
        inode = Inode(bytearray(data), data, mode=mode, modified=self.writes)
        self.inodes[path] = inode

    def remove(self, folder: Path) -> None:
        """Remove all files in a folder."""
        for path in [path for path in self.inodes if folder in path.parents]:
            del self.inodes[path]

    def has(self, folder: Path) -> bool:
        """Whether any file is in a folder."""
        return any(folder in path.parents for path in self.inodes)

    def write_to(self, folder: Path, target: Path) -> None:
        """Copy all files of a folder into a directory of the real disk."""
        for path, inode in self.inodes.items():
            if folder in path.parents:
                file = target / path.relative_to(folder)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(inode.content)

    def read_from(self, source: Path, folder: Path) -> None:
        """Copy all files of a directory of the real disk into a folder."""
        for file in sorted(source.rglob("*")):
            if file.is_file():
                mode = file.stat().st_mode & 0o777
                self.put(folder / file.relative_to(source), file.read_bytes(), mode)

    def lose_power(self, random: Random) -> None:
        for inode in self.inodes.values():
            inode.lose_power(random)

    def copy(self) -> dict[Path, Inode]:
        """All files as they are now."""
        return {
            path: Inode(bytearray(inode.content), bytes(inode.content), mode=inode.mode)
            for path, inode in self.inodes.items()
        }


Operation = Callable[[str], None]  # called before every change of the disk; may raise to crash


class ProcessFiles:
    """The disk as one process uses it: `spodgt.peer.host.files.Files`."""

    def __init__(self, disk: SimulatedDisk, before: Operation, check: Callable[[bytes], None]):
        self.disk = disk
        self.before = before
        self.check = check
        self.opened: list[Inode] = []

    def open(self, path: Path) -> ProcessFile:
        inode = self.disk.inodes.get(path)
        if inode is None:
            self.before("open")
            self._grow(1)
            inode = Inode()
            self.disk.inodes[path] = inode
        if inode.is_open:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), str(path))
        inode.is_open = True
        self.opened.append(inode)
        return ProcessFile(self, inode)

    def read(self, path: Path) -> bytes:
        return bytes(self._inode(path).content)

    def status(self, path: Path) -> FileStatus:
        inode = self._inode(path)
        return FileStatus(inode.mode, inode.modified, len(inode.content))

    def append(self, path: Path, data: bytes) -> None:
        self.check(data)
        self.before("append")
        self._grow(len(data))
        inode = self.disk.inodes.setdefault(path, Inode())
        inode.content += data  # never read by a peer: not worth a record of what is pending

    def replace(self, path: Path, data: bytes, *, mode: int) -> None:
        if mode != OWNER_ONLY or path.suffix == ".json":
            self.check(data)
        self.before("replace")
        self._grow(len(data))
        self.disk.writes += 1
        self.disk.inodes[path] = Inode(bytearray(data), data, [], mode, self.disk.writes)
        self.before("replaced")

    def rename(self, path: Path, target: Path) -> None:
        self.before("rename")
        self.disk.inodes[target] = self.disk.inodes.pop(path)

    def close(self) -> None:
        """The process has ended."""
        for inode in self.opened:
            inode.is_open = False

    def _inode(self, path: Path) -> Inode:
        inode = self.disk.inodes.get(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return inode

    def _grow(self, size: int) -> None:
        if self.disk.is_full and size > 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class ProcessFile:
    """An open file of a process: `spodgt.peer.host.files.File`."""

    def __init__(self, files: ProcessFiles, inode: Inode) -> None:
        self.files = files
        self.inode = inode

    def size(self) -> int:
        return len(self.inode.content)

    def read(self, at: int, size: int) -> bytes:
        return bytes(self.inode.content[at : at + size])

    def write(self, data: memoryview, at: int) -> None:
        self.files.before("write")
        self.files._grow(at + len(data) - self.size())
        self.inode.write(bytes(data), at)

    def allocate(self, at: int, size: int) -> None:
        self.files.before("allocate")
        self.files._grow(at + size - self.size())
        self.inode.write(bytes(size), at)

    def sync(self) -> None:
        self.files.before("sync")
        self.inode.sync()
        self.files.before("synced")

    def close(self) -> None:
        self.inode.is_open = False
