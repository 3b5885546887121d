"""A run folder: files that are whole or absent, one process at a time, and the checkpoint.

Every file is written beside its target, flushed and renamed, so a reader finds the old one or the new one,
whatever happens in between. A checkpoint is one zip of safetensors, Parquet and JSON, whose check sums
tell damage. Nothing is ever pickled.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
import shutil
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
FINISHED = "finished"  # the folder of the methods that have finished, one checkpoint each
SINGLE_RUNS = "running"  # the folder of runs in worker processes, one checkpoint each
_FORMAT = 5
_TENSORS, _NOTES = "tensors.safetensors", "notes.json"


# Files that only one kind of result has, by what messages call it. No TOML: users write these, too.
RUN = "a run"
SWEEP = "a sweep"
SEARCH = "a search for step sizes"
_FILES = {
    RUN: (CHECKPOINT, "summary.json"),
    SWEEP: ("sweep.json",),
    SEARCH: ("tune.json",),
}


def other_kind(folder: Path, kind: str) -> str | None:
    """The kind of result that a folder holds, if it is another than `kind`."""
    for name, files in _FILES.items():
        if name != kind and any(
            os.path.exists(folder / file) for file in files
        ):  # False for odd names
            return name
    return None


def refuse_other_kind(folder: Path, kind: str) -> None:
    """Refuse a folder that holds another kind of result than `kind`."""
    held = other_kind(folder, kind)
    if held is not None:
        raise InvalidInput(
            f"out={str(folder)!r} holds {held}, and {kind} would overwrite its files; use another folder."
        )


def write(path: Path, data: bytes) -> None:
    """Write a file beside its target, flush, rename: `path` is the old file or the new one, never a part."""
    try:
        path.parent.mkdir(exist_ok=True)
        replace_file(path, data)
    except OSError as error:
        raise Failed(
            f"{path} could not be written: {error.strerror or error}; "
            "free some space or choose another folder, then run again with --resume."
        ) from error


def parquet(frame: pd.DataFrame) -> bytes:
    """A table as the bytes of a Parquet file."""
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()


def plain(value: Any) -> Any:
    """What TOML and JSON can hold: no None (an absent key), tuples and arrays as lists, infinity as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple | range):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, bool | int | float | str) else str(value)


def slug(label: str) -> str:
    """A method's label as part of a file's name."""
    return re.sub(r"[^\w.=-]+", "-", label)


@contextlib.contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Lock an existing file or folder until the process ends, or say `busy`: another process holds it."""
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
    """What is needed to go on with a run: tensors and tables by name, and facts that JSON can hold."""

    notes: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        # Copies: two parts of a state may be one tensor, which the format refuses.
        whole = {
            name: t.detach().to("cpu", copy=True).contiguous() for name, t in self.tensors.items()
        }
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(_NOTES, json.dumps({"format": _FORMAT, **self.notes}))
            archive.writestr(_TENSORS, save_tensors(whole))
            for name, table in self.tables.items():
                archive.writestr(f"{name}.parquet", parquet(table))
        return buffer.getvalue()

    @staticmethod
    def from_bytes(data: bytes) -> CheckpointFile:
        """The checkpoint that `to_bytes` wrote."""
        return CheckpointFile._read(io.BytesIO(data), "a message of a worker")

    @staticmethod
    def read(path: Path) -> CheckpointFile:
        """A checkpoint from its file, or one sentence about what is wrong with it."""
        return CheckpointFile._read(path, str(path))

    @staticmethod
    def _read(source: Path | IO[bytes], path: str) -> CheckpointFile:
        import pandas as pd

        try:
            with zipfile.ZipFile(source) as archive:  # reading a member checks its sum
                notes = json.loads(archive.read(_NOTES))
                version = notes.pop("format", None)
                if version == _FORMAT:
                    # Clones are aligned as in an unbroken run, so sums are the same bit for bit.
                    loaded = load_tensors(archive.read(_TENSORS))
                    names = [name for name in archive.namelist() if name.endswith(".parquet")]
                    tables = {n: pd.read_parquet(io.BytesIO(archive.read(n))) for n in names}
        except (zipfile.BadZipFile, SafetensorError, OSError, KeyError, ValueError) as error:
            raise InvalidInput(
                f"{path} is not a whole checkpoint ({error}); remove it to begin anew, or use another folder."
            ) from None
        if version != _FORMAT:
            raise InvalidInput(
                f"{path} has format {version!r}, but this version of spodgt reads {_FORMAT!r}; "
                "begin anew in another folder."
            )
        tensors = {name: tensor.clone() for name, tensor in loaded.items()}
        return CheckpointFile(
            notes, tensors, {n.removesuffix(".parquet"): t for n, t in tables.items()}
        )


@dataclass(frozen=True)
class RunFolder:
    """Where a run keeps its work."""

    path: Path

    @contextlib.contextmanager
    def opened(self, config: Callable[[], str], needed: int, *, resume: bool) -> Iterator[None]:
        """Take the folder, and say now, not after an hour, if it cannot be written (`needed` bytes)."""
        name, old = f"out={str(self.path)!r}", self.path / CHECKPOINT
        try:
            there = old.exists()
        except OSError as error:  # a name that no file system takes
            reason = error.strerror or error
            shown = f"out={str(self.path)[:60]!r}"
            raise InvalidInput(
                f"{shown} cannot be used: {reason}; choose another folder."
            ) from None
        refuse_other_kind(self.path, RUN)
        if there and not resume:
            raise InvalidInput(
                f"{name} already holds a run; go on with it by --resume, or use another folder."
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(
                dir=self.path
            ) as trial:  # without a name: a kill leaves nothing
                trial.write(b"x")
        except OSError as error:
            reason = error.strerror or error
            raise InvalidInput(
                f"{name} cannot be written: {reason}; choose another folder."
            ) from None
        free = shutil.disk_usage(self.path).free
        if free < needed:
            raise InvalidInput(
                f"{name} has {free / 1e6:.0f} MB free, but this run may need {needed / 1e6:.0f} MB; "
                "free some space or choose another folder."
            )
        with locked(self.path, f"{name} is in use by a run that is still going; wait for it."):
            for part in self.path.rglob(
                temporary_name("*")
            ):  # of a process that was killed while it wrote
                part.unlink(missing_ok=True)
            if not old.exists():
                write(self.path / "config.toml", config().encode())
            yield

    def save(self, checkpoint: CheckpointFile, name: str = CHECKPOINT) -> None:
        """Replace a checkpoint: one rename moves everything on."""
        write(self.path / name, checkpoint.to_bytes())

    def load(self, name: str = CHECKPOINT) -> CheckpointFile | None:
        path = self.path / name
        return CheckpointFile.read(path) if path.exists() else None
