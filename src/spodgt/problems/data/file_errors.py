"""Opens files, and errors about their content: what it must be, what was found, and the fix."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from spodgt.errors import InvalidData

Stream = BinaryIO | gzip.GzipFile | lzma.LZMAFile


class FileContentError(InvalidData):
    """The content of a file is not as expected: "path must …, got …; fix."."""

    def __init__(self, path: Path, expected: str, got: object, fix: str) -> None:
        super().__init__(f"{path} must {expected}, got {got}; {fix}.")
        self.path = path
        self.expected = expected
        self.got = got
        self.fix = fix


def file_error(path: Path, expected: str, got: object, fix: str) -> FileContentError:
    """The error about the content of a file.

    Args:
        path: of the file.
        expected: what the file must do or have, as in "be a gzip file".
        got: what was found instead.
        fix: what the user can do.
    """
    return FileContentError(path, expected, got, fix)


def require(condition: bool, path: Path, expected: str, got: object, fix: str) -> None:
    """Raise `file_error` unless the condition holds."""
    if not condition:
        raise file_error(path, expected, got, fix)


@contextmanager
def file_errors(path: Path, fix: str) -> Iterator[None]:
    """Convert errors of the system and of decoders in the block to `file_error`."""
    try:
        yield
    except FileNotFoundError as error:
        raise file_error(path, "exist", "no such file", fix) from error
    except (OSError, EOFError, UnicodeDecodeError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.strerror:
            raise file_error(
                path, "be a readable file", f"the error {error.strerror!r}", fix
            ) from error
        kind = {".gz": "gzip", ".xz": "xz"}.get(path.suffix, "data")
        reason = str(error).strip().rstrip(".") or type(error).__name__
        got = f"a corrupt one ({reason})"
        if isinstance(error, EOFError):
            got = "one that is cut short"
        raise file_error(path, f"be a whole {kind} file", got, fix) from error


def open_file(path: Path) -> Stream:
    """Open a file for reading bytes, decompressed if it is `.gz` or `.xz`."""
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    if path.suffix == ".xz":
        return lzma.open(path, "rb")
    return path.open("rb")
