"""Files of a run folder: written whole or not at all, locked by one process, resumable.

Every file is written beside its final name, flushed and renamed, so a reader finds the old one or the
new one, whatever happens in between. Nothing is ever pickled.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import shutil
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tomli_w
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor

from spodgt.errors import Failed, InvalidInput

if TYPE_CHECKING:
    import pandas as pd

CHECKPOINT = "checkpoint.safetensors"
_FORMAT = "2"


def write(path: Path, data: bytes) -> None:
    """Write beside, flush, rename: `path` is the old file or the new one, never a part."""
    beside = path.with_name(f".{path.name}.part")
    try:
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise Failed(
            f"{path} could not be written: {error.strerror or error}; "
            "free some space or choose another folder, then run again with --resume."
        ) from error


def parquet(frame: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()


@dataclass(frozen=True)
class RunDirectory:
    """Where a run keeps its work."""

    path: Path

    @contextlib.contextmanager
    def prepared(self, config: Mapping[str, Any], needed: int, *, resume: bool) -> Iterator[None]:
        """Make the folder ours, and say now, not after an hour, if it cannot be written."""
        name, old = f"out={str(self.path)!r}", self.path / CHECKPOINT
        if old.exists() and not resume:
            raise InvalidInput(
                f"{name} already holds a run; go on with it by --resume, or use another folder."
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".probe.{os.getpid()}"
            probe.write_bytes(b"x")
            probe.unlink()
        except OSError as error:
            reason = error.strerror or error
            raise InvalidInput(f"{name} cannot be written: {reason}; choose another folder.") from None
        free = shutil.disk_usage(self.path).free
        if free < needed:
            raise InvalidInput(
                f"{name} has {free / 1e6:.0f} MB free, but this run may need {needed / 1e6:.0f} MB; "
                "free some space or choose another folder."
            )
        with self._locked(name):
            if not old.exists():
                write(self.path / "config.toml", tomli_w.dumps(plain(config)).encode())
            yield

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """One process at a time; the lock goes with the process, however it ends."""
        try:
            import fcntl
        except ImportError:  # Windows
            yield
            return
        folder = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InvalidInput(f"{name} is in use by a run that is still going; wait for it.") from None
            except OSError:
                pass  # a file system without locks
            yield
        finally:
            os.close(folder)

    def save(self, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
        """Replace the checkpoint; tables go in as Parquet bytes, so one rename moves everything on."""
        # Copies: two parts of a state may be one tensor, which the format refuses.
        data = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
        text = {"format": _FORMAT, "notes": json.dumps(notes)}
        write(self.path / CHECKPOINT, serialise(data, text | {"sum": _sum(data, text["notes"])}))

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        path = self.path / CHECKPOINT
        if not path.exists():
            return None
        try:
            with safe_open(path, "pt") as file:
                text = file.metadata() or {}
                # Clones are aligned as in an unbroken run, so sums are the same bit for bit.
                tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            version = text.get("format")
            if version == _FORMAT and text["sum"] != _sum(tensors, text["notes"]):
                raise ValueError("its check sum is wrong")
            notes = json.loads(text["notes"]) if version == _FORMAT else {}
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise InvalidInput(
                f"{path} is not a whole checkpoint ({error}); remove it to begin anew, or use another folder."
            ) from None
        if version != _FORMAT:
            raise InvalidInput(
                f"{path} has format {version!r}, but this version of spodgt reads {_FORMAT!r}; "
                "begin anew in another folder."
            )
        return tensors, notes


def _sum(tensors: Mapping[str, Tensor], notes: str) -> str:
    total = zlib.crc32(notes.encode())
    for name in sorted(tensors):
        total = zlib.crc32(name.encode(), total)
        if tensors[name].numel():  # nothing cannot be viewed as bytes
            total = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, total)
    return f"{total:08x}"


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


def table_to_tensor(frame: pd.DataFrame) -> Tensor:
    return torch.frombuffer(bytearray(parquet(frame)), dtype=torch.uint8)


def tensor_to_table(tensor: Tensor) -> pd.DataFrame:
    import pandas as pd

    return pd.read_parquet(io.BytesIO(tensor.numpy().tobytes()))
