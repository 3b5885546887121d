"""Sweeps: a grid of configs, every cell in its own run directory, none of them run twice.

A cell's folder is named after its config, so a sweep that was killed finds what is finished and goes on
with the rest, and experiments that share a folder of cells share the cells they have in common. All
seeds of a cell run together as one batch; different cells go to worker processes. (Joining different
cells into one batch was measured and is no faster: the time goes into the data, not into the rounds.)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from spodgt.errors import InvalidInput
from spodgt.experiment import Experiment
from spodgt.record.folder import parquet, write
from spodgt.record.record import Record, versions
from spodgt.sweeps.cell import Event, Job, Outcome, seconds_of
from spodgt.sweeps.executors import check_backend, cores, executor
from spodgt.sweeps.grid import Spec

RESULTS, SUMMARY, SOURCE = "results", "sweep.json", "sweep.toml"
_FORMAT = 1


@dataclass(frozen=True)
class Cell:
    """One point of the grid: its keys' values, the whole config, and where it is run."""

    keys: dict[str, Any]
    config: Experiment
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def complete(self) -> bool:
        return is_complete(self.folder)

    @property
    def begun(self) -> float:
        """When it was first run, in seconds since 1970; infinity for one that was not."""
        try:
            return (self.folder / "config.toml").stat().st_mtime
        except OSError:
            return math.inf

    @property
    def weight(self) -> float:
        """How much work it is, roughly: for the time left, and to begin with the longest."""
        table = self.config.to_dict()["network"]  # a file is not read for this
        return float(table.get("clients", 10)) * len(self.config.run.seed_list)


@dataclass(eq=False)
class Sweep:
    """A sweep after it was run, as far as it came."""

    spec: Spec
    folder: Path
    cells: list[Cell]
    frame: pd.DataFrame  # one row per cell, algorithm and seed: its keys and its last look
    failures: dict[str, str] = field(default_factory=dict)  # cell → what went wrong

    @property
    def complete(self) -> bool:
        return all(cell.complete for cell in self.cells)


Display = Callable[[Event], None]


def is_complete(folder: Path) -> bool:
    """Whether a run directory holds a run that reached its end."""
    try:
        return json.loads((folder / "summary.json").read_text(encoding="utf-8"))["complete"] is True
    except (OSError, ValueError, KeyError, TypeError):
        return False


def plan(spec: Spec, folder: Path, home: Path | None = None) -> list[Cell]:
    """The cells of `spec` and their folders in `home`; one that is already there is found again."""
    home = home or folder / "cells"
    made: dict[str, Cell] = {}
    for keys in spec.points():
        config = spec.config.override(keys)
        mark = fingerprint(config)
        found = next(iter(sorted(home.glob(f"*{mark}"))), None)
        made.setdefault(mark, Cell(keys, config, found or home / f"{_slug(keys) or 'run-'}{mark}"))
    return list(made.values())


def fingerprint(config: Experiment) -> str:
    """Twelve letters that every process and every version computes alike from the same config."""
    tables = config.to_dict()
    text = json.dumps(tables, sort_keys=True, default=list)
    for name in ("network", "participation"):
        with contextlib.suppress(OSError, KeyError):  # most name no file; `check` says which is missing
            text += hashlib.sha256(Path(tables[name]["path"]).read_bytes()).hexdigest()
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def check(spec: Spec) -> None:
    """Build the first cell, and every other value of every key once: mistakes show before the work."""
    spec.config.override(spec.points()[0]).check()
    for key, values in spec.grid.items():
        for value in values[1:]:
            spec.config.override({**spec.points()[0], key: value}).check()


def run(
    spec: Spec,
    out: str | Path,
    *,
    home: str | Path | None = None,
    workers: int | None = None,
    backend: str = "local",
    save_every: float = 60.0,
    forget: float | None = None,
    display: Display | None = None,
) -> Sweep:
    """Run every cell that is not finished, and write the tables of all that are.

    `home` is the folder of the cells, inside `out` unless given; those begun before the time `forget` are
    run anew. On Ctrl-C and SIGTERM the running cells save what they have, the tables are written, and the
    same call goes on later.
    """
    folder = Path(out)
    cells = plan(spec, folder, None if home is None else Path(home))
    if workers is not None and workers < 1:
        raise InvalidInput(f"--workers must be at least 1, got {workers}; use {cores()}.")
    if not save_every >= 0:
        raise InvalidInput(f"--checkpoint-every must be seconds of at least 0, got {save_every}; use 60.")
    check_backend(backend)
    old = [cell for cell in cells if forget is not None and cell.begun < forget]
    open_cells = [cell for cell in cells if cell in old or not cell.complete]
    open_cells.sort(key=lambda cell: -cell.weight)
    if open_cells:
        check(spec)
    failures: dict[str, str] = {}

    def hear(event: Event) -> None:
        if isinstance(event, Outcome) and event.error:
            failures[event.name] = event.error
        if display:
            display(event)

    with _alone(folder), _terminable():
        pool = executor(backend, min(workers or cores(), max(1, len(open_cells))))
        try:
            for cell in old:  # now that nothing can go wrong any more
                shutil.rmtree(cell.folder, ignore_errors=True)
            write(folder / SOURCE, spec.to_toml().encode())
            for cell in open_cells:
                pool.submit(Job(cell.name, cell.config.to_dict(), str(cell.folder), save_every))
            pool.wait(hear)
        finally:
            pool.close()
            done = Sweep(spec, folder, cells, collect(cells), failures)
            _save(done)
    return done


def collect(cells: list[Cell]) -> pd.DataFrame:
    """One row per finished cell, algorithm and seed: the cell's keys, then the last look."""
    tables = []
    for cell in cells:
        if cell.complete:
            final = last_looks(cell.folder)
            keys = {key: _plain(value) for key, value in cell.keys.items()}
            point = pd.DataFrame([keys] * len(final), index=final.index)
            tables.append(point.join(final).assign(cell=cell.name))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def last_looks(folder: Path) -> pd.DataFrame:
    """The last look at every run of a run directory, and whether the run diverged."""
    return Record.read(folder).final()


def _save(sweep: Sweep) -> None:
    if len(sweep.frame):
        write(sweep.folder / f"{RESULTS}.parquet", parquet(sweep.frame))
        write(sweep.folder / f"{RESULTS}.csv", sweep.frame.to_csv(index=False).encode())
    spec = sweep.spec
    note = {
        "format": _FORMAT,
        "name": spec.name,
        "title": spec.title,
        "figure": spec.figure,
        "paper": spec.paper,
        "scale": spec.scale,
        "changes": spec.changes,
        "grid": spec.grid,
        "complete": sweep.complete,
        "cells": [
            {
                "name": cell.name,
                "keys": cell.keys,
                "folder": _relative(cell.folder, sweep.folder),
                "complete": cell.complete,
                "seconds": seconds_of(cell.folder),
                "error": sweep.failures.get(cell.name, ""),
            }
            for cell in sweep.cells
        ],
        "versions": versions(),
    }
    write(sweep.folder / SUMMARY, json.dumps(note, indent=2, default=str).encode())


def _relative(path: Path, start: Path) -> str:
    """A way that stays right when the whole of it is moved."""
    try:
        return Path(os.path.relpath(path, start)).as_posix()
    except ValueError:  # another drive
        return path.resolve().as_posix()


def _slug(keys: Mapping[str, Any]) -> str:
    """What a person sees in a cell's name: `radius-0.4-`."""
    words = (f"{key.rsplit('.', 1)[-1]}-{label(value)}-" for key, value in keys.items())
    return re.sub(r"[^\w.+-]+", "_", "".join(words))[:80]


def label(value: Any) -> str:
    """A short text for a value of the grid."""
    if isinstance(value, Mapping):
        return ", ".join(label(item) for item in value.values())
    if isinstance(value, list):
        return ", ".join(map(label, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else label(value)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Make the folder, and refuse it while another sweep works there; the lock goes with its process."""
    name = f"out={str(folder)!r}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "w")  # noqa: SIM115 (it is held until the end)
    except OSError as error:
        raise InvalidInput(f"{name} cannot be written: {error.strerror}; choose another folder.") from None
    with lock:
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInput(f"{name} is in use by a sweep that is still going; wait for it.") from None
        except (ImportError, OSError):
            pass  # Windows, or a file system without locks
        yield


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends a sweep as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
