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
from spodgt.record.folder import write
from spodgt.record.record import is_complete
from spodgt.record.sweep import SOURCE, CellRecord, SweepRecord, collect, label
from spodgt.sweeps.cell import Event, Job, Outcome, seconds_of
from spodgt.sweeps.executors import check_backend, cores, executor
from spodgt.sweeps.grid import Spec


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

    def record(self, error: str = "") -> CellRecord:
        """What a record keeps of it; `error` says what went wrong."""
        return CellRecord(self.name, self.keys, self.folder, self.complete, seconds_of(self.folder), error)

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
            done = Sweep(spec, folder, cells, collect([cell.record() for cell in cells]), failures)
            _record(done).write(folder)
    return done


def _record(sweep: Sweep) -> SweepRecord:
    """What the folder keeps of a sweep."""
    spec = sweep.spec
    return SweepRecord(
        spec.name,
        sweep.frame,
        spec.grid,
        [cell.record(sweep.failures.get(cell.name, "")) for cell in sweep.cells],
        spec.title,
        spec.figure,
        spec.paper,
        spec.scale,
        spec.changes,
        spec.to_toml(),
    )


def _slug(keys: Mapping[str, Any]) -> str:
    """What a person sees in a cell's name: `radius-0.4-`."""
    words = (f"{key.rsplit('.', 1)[-1]}-{label(value)}-" for key, value in keys.items())
    return re.sub(r"[^\w.+-]+", "_", "".join(words))[:80]


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
