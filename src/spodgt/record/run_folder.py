"""A run folder: atomic writes, a lock, and checkpoint files.

Every file is written under a temporary name, flushed and renamed, so a reader finds the old file or
the new one after any failure. A checkpoint is a zip file of safetensors, Parquet and JSON, with
checksums that detect damage. Nothing is ever pickled.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from spodgt._util.files import replace_file, temporary_name
from spodgt.errors import Failed, InvalidInput

if TYPE_CHECKING:
    import pandas as pd

CHECKPOINT = "checkpoint.zip"
FINISHED = "finished"  # the folder of finished methods, one checkpoint file each
SINGLE_RUNS = "running"  # the folder of runs in worker processes, one checkpoint file each
_FORMAT = 5
_TENSORS = "tensors.safetensors"
_NOTES = "notes.json"


# Kinds of results, by their names in messages, and the files that only they have. TOML files are
# not among them: users write these, too.
RUN = "a run"
SWEEP = "a sweep"
SEARCH = "a search for step sizes"
_FILES = {
    RUN: (CHECKPOINT, "summary.json"),
    SWEEP: ("sweep.json",),
    SEARCH: ("tune.json",),
}


def other_kind(folder: Path, kind: str) -> str | None:
    """The kind of result in a folder, if it is not `kind`."""
    for name, files in _FILES.items():
        if name == kind:
            continue
        for file in files:
            if os.path.exists(folder / file):  # False for names that no file system accepts
                return name
    return None


def refuse_other_kind(folder: Path, kind: str) -> None:
    """Raise if a folder holds another kind of result than `kind`."""
    held = other_kind(folder, kind)
    if held is not None:
        raise InvalidInput(
            f"out={str(folder)!r} holds {held}, and {kind} would overwrite its files; "
            "use another folder."
        )


def write(path: Path, data: bytes) -> None:
    """Write a file atomically.

    Raises:
        Failed: if it cannot be written; the old file remains.
    """
    try:
        path.parent.mkdir(exist_ok=True)
        replace_file(path, data)
    except OSError as error:
        raise Failed(
            f"{path} could not be written: {error.strerror or error}; "
            "free some space or choose another folder, then run again with --resume."
        ) from error


def parquet(frame: pd.DataFrame) -> bytes:
    """A table in the format of a Parquet file."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()


def plain(value: Any) -> Any:
    """Convert a value to the types of TOML and JSON.

    Keys with None are left out, tuples and arrays become lists, infinity and other objects become
    text.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple | range):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bool | int | float | str):
        return value
    return str(value)


def slug(label: str) -> str:
    """A method's label as a part of a file name."""
    return re.sub(r"[^\w.=-]+", "-", label)


@contextlib.contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Lock an existing file or folder in this block, and until the process ends.

    Raises:
        InvalidInput: with the text `busy`, if another process holds the lock.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    file = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInput(busy) from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(file)


@dataclass(frozen=True, eq=False)
class CheckpointFile:
    """The content of a checkpoint file: tensors and tables by name, and notes as JSON."""

    notes: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        # Copies: safetensors does not store two names of one tensor.
        copies = {}
        for name, tensor in self.tensors.items():
            copies[name] = tensor.detach().to("cpu", copy=True).contiguous()
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(_NOTES, json.dumps({"format": _FORMAT, **self.notes}))
            archive.writestr(_TENSORS, save_tensors(copies))
            for name, table in self.tables.items():
                archive.writestr(f"{name}.parquet", parquet(table))
        return buffer.getvalue()

    @staticmethod
    def from_bytes(data: bytes) -> CheckpointFile:
        """The content that `to_bytes` wrote."""
        return _read_checkpoint(io.BytesIO(data), "a message of a worker")

    @staticmethod
    def read(path: Path) -> CheckpointFile:
        """Read a file.

        Raises:
            InvalidInput: if it is damaged, or of another version.
        """
        return _read_checkpoint(path, str(path))


def _read_checkpoint(source: Path | IO[bytes], name: str) -> CheckpointFile:
    """Read a checkpoint from a file or buffer; `name` is its name in errors."""
    try:
        with zipfile.ZipFile(source) as archive:  # reading a member verifies its checksum
            notes = json.loads(archive.read(_NOTES))
            version = notes.pop("format", None)
            if version == _FORMAT:
                return CheckpointFile(notes, *_read_members(archive))
    except (zipfile.BadZipFile, SafetensorError, OSError, KeyError, ValueError) as error:
        raise InvalidInput(
            f"{name} is not a whole checkpoint ({error}); remove it to begin anew, "
            "or use another folder."
        ) from None
    raise InvalidInput(
        f"{name} has format {version!r}, but this version of spodgt reads {_FORMAT!r}; "
        "begin anew in another folder."
    )


def _read_members(
    archive: zipfile.ZipFile,
) -> tuple[dict[str, Tensor], dict[str, pd.DataFrame]]:
    """The tensors and tables of a checkpoint file."""
    import pandas as pd

    tensors = {}
    for name, tensor in load_tensors(archive.read(_TENSORS)).items():
        tensors[name] = tensor.clone()  # aligned in memory, so that sums do not change by a bit
    tables = {}
    for name in archive.namelist():
        if name.endswith(".parquet"):
            tables[name.removesuffix(".parquet")] = pd.read_parquet(io.BytesIO(archive.read(name)))
    return tensors, tables


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run."""

    path: Path

    @contextlib.contextmanager
    def opened(self, config: Callable[[], str], *, resume: bool) -> Iterator[None]:
        """Lock the folder in this block; errors are raised now, not after an hour.

        Args:
            config: returns the text of config.toml, which is written to a new folder.
            resume: whether the folder may hold a run.

        Raises:
            InvalidInput: if it holds another result, is in use, or cannot be written.
        """
        checkpoint = self.path / CHECKPOINT
        self._check_content(checkpoint, resume)
        self._check_writable()
        name = f"out={str(self.path)!r}"
        with locked(self.path, f"{name} is in use by a run that is still going; wait for it."):
            for part in self.path.rglob(temporary_name("*")):  # of a process that was killed
                part.unlink(missing_ok=True)
            if not checkpoint.exists():
                write(self.path / "config.toml", config().encode())
            yield

    def _check_content(self, checkpoint: Path, resume: bool) -> None:
        try:
            has_run = checkpoint.exists()
        except OSError as error:  # a name that no file system accepts
            reason = error.strerror or error
            raise InvalidInput(
                f"out={str(self.path)[:60]!r} cannot be used: {reason}; choose another folder."
            ) from None
        refuse_other_kind(self.path, RUN)
        if has_run and not resume:
            raise InvalidInput(
                f"out={str(self.path)!r} already holds a run; go on with it by --resume, "
                "or use another folder."
            )

    def _check_writable(self) -> None:
        name = f"out={str(self.path)!r}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path) as trial:  # no name: a kill leaves nothing
                trial.write(b"x")
        except OSError as error:
            reason = error.strerror or error
            raise InvalidInput(
                f"{name} cannot be written: {reason}; choose another folder."
            ) from None

    def save(self, file: CheckpointFile, name: str = CHECKPOINT) -> None:
        """Replace a checkpoint file."""
        write(self.path / name, file.to_bytes())

    def load(self, name: str = CHECKPOINT) -> CheckpointFile | None:
        """Read a checkpoint file; None if it does not exist."""
        path = self.path / name
        return CheckpointFile.read(path) if path.exists() else None
