"""Atomic replacement of files, and the directory of downloaded data."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import platformdirs


def data_directory() -> Path:
    """The directory `SPODGT_DATA` if that variable is set, else the user's cache directory."""
    from_environment = os.environ.get("SPODGT_DATA")
    if from_environment:
        return Path(from_environment).expanduser()
    return Path(platformdirs.user_cache_dir("spodgt"))


def find_data_file(path: str) -> Path:
    """`path` if it exists, else the file of that name below the data directory, if there is one."""
    in_data_directory = data_directory() / path
    if not Path(path).exists() and in_data_directory.is_file():
        return in_data_directory
    return Path(path)


def temporary_name(name: str) -> str:
    """Name of the temporary file that `replace_file` writes beside the file `name`."""
    return f".{name}.part"


def replace_file(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a file atomically and durably: after a crash `path` is the old file or the new one.

    Args:
        path: File to create or replace.
        data: Its new content.
        mode: Permissions of the file, before the umask.

    Raises:
        OSError: The file cannot be written; the temporary file has been removed.
    """
    temporary = path.with_name(temporary_name(path.name))
    try:
        if os.path.lexists(temporary):  # of a process that was killed
            temporary.unlink()
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make a rename in the directory durable, on systems that can open directories."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
