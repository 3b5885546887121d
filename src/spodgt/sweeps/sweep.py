"""Sweeps: a grid of experiments, every cell in its own run folder, none of them run twice.

A cell's folder is named after its experiment, so a sweep that was killed finds what is finished and goes
on with the rest, and sweeps that share a folder of cells share the cells they have in common. All seeds
of a cell run together as one batch; different cells go to worker processes.
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
from dataclasses import dataclass
from pathlib import Path

from spodgt.errors import InvalidInput
from spodgt.experiment import Experiment
from spodgt.experiment.toml import Table
from spodgt.record.folder import SWEEP, locked, plain, refuse_other_kind, write
from spodgt.record.record import is_complete
from spodgt.record.sweep import SOURCE, CellRecord, SweepRecord, collect, label
from spodgt.sweeps.cell import Event, Job, Outcome
from spodgt.sweeps.executors import check_backend, cores, executor
from spodgt.sweeps.executors.inline import Inline
from spodgt.sweeps.grid import Spec

Display = Callable[[Event], None]


@dataclass(frozen=True)
class Cell:
    """One point of the grid: its keys' values, its experiment, and the folder it is run in."""

    keys: Table
    experiment: Experiment
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
        table = self.experiment.to_dict()["network"]  # a file is not read for this
        return float(table.get("clients", 10)) * len(self.experiment.run.seed_list)

    def job(self, save_every: float, workers: int | None = None) -> Job:
        """What an executor is given."""
        return Job(self.name, self.experiment.to_dict(), str(self.folder), save_every, workers)

    def record(self, error: str = "") -> CellRecord:
        """What the sweep's record keeps of it; `error` says what went wrong."""
        seconds = None
        with contextlib.suppress(OSError, ValueError, KeyError):
            seconds = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))[
                "seconds"
            ]
        return CellRecord(self.name, self.keys, self.folder, self.complete, seconds, error)


def plan(spec: Spec, folder: Path, home: Path | None = None) -> list[Cell]:
    """The cells of a sweep, in `home` or inside its folder; one that is already there is found again."""
    refuse_other_kind(folder, SWEEP)
    home = home or folder / "cells"
    made: dict[str, Cell] = {}
    for keys in spec.points():
        experiment = spec.experiment.override(keys)
        mark = fingerprint(experiment)
        found = next(iter(sorted(home.glob(f"*{mark}"))), None)
        made.setdefault(
            mark, Cell(keys, experiment, found or home / f"{slug(keys) or 'run-'}{mark}")
        )
    return list(made.values())


def fingerprint(experiment: Experiment) -> str:
    """Twelve letters that every process computes alike from the same experiment and the files it names."""
    tables = experiment.to_dict()
    text = json.dumps(plain(tables), sort_keys=True) + "".join(experiment.sources.values())
    for name in ("network", "participation"):
        with contextlib.suppress(
            OSError, KeyError
        ):  # most name no file; `check` says which is missing
            text += hashlib.sha256(Path(tables[name]["path"]).read_bytes()).hexdigest()
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def check(spec: Spec) -> None:
    """Build the first cell, and every other value of every key once: mistakes show before the work."""
    first = spec.points()[0]
    spec.experiment.override(first).check()
    for key, values in spec.grid.items():
        for value in values[1:]:
            spec.experiment.override({**first, key: value}).check()


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
) -> SweepRecord:
    """Run every cell that is not finished, and write the tables of all that are.

    On Ctrl-C and SIGTERM the running cells save what they have, the tables are written, and the same call
    goes on later. Cells begun before the time `forget`, in seconds since 1970, are run anew. `workers` are
    cells at a time; where cells hold objects of this process, runs of a cell at a time.
    """
    if workers is not None and workers < 1:
        raise InvalidInput(f"--workers must be at least 1, got {workers}; use {cores()}.")
    if not save_every >= 0:
        raise InvalidInput(
            f"--checkpoint-every must be seconds of at least 0, got {save_every}; use 60."
        )
    if workers is None:
        workers = spec.experiment.run.workers
    check_backend(backend)
    folder = Path(out)
    cells = plan(spec, folder, None if home is None else Path(home))
    old = [cell for cell in cells if forget is not None and cell.begun < forget]
    todo = sorted(
        (cell for cell in cells if cell in old or not cell.complete), key=lambda cell: -cell.weight
    )
    if todo:
        check(spec)
    failures: dict[str, str] = {}

    def receive(event: Event) -> None:
        if isinstance(event, Outcome) and event.error:
            failures[event.name] = event.error
        if display:
            display(event)

    with alone(folder), terminable():
        known = {cell.name: cell.experiment for cell in todo if not cell.experiment.portable}
        pool = (
            Inline(known)
            if known
            else executor(backend, min(workers or cores(), max(1, len(todo))))
        )
        try:
            for cell in old:  # now that nothing can go wrong any more
                shutil.rmtree(cell.folder, ignore_errors=True)
            if source := spec.to_toml():
                write(folder / SOURCE, source.encode())
            for cell in todo:
                pool.submit(cell.job(save_every, workers if known else None))
            pool.wait(receive)
        finally:
            pool.close()
            record = _record(spec, [cell.record(failures.get(cell.name, "")) for cell in cells])
            record.write(folder)
    return record


def _record(spec: Spec, cells: list[CellRecord]) -> SweepRecord:
    return SweepRecord(
        spec.name,
        collect(cells),
        spec.grid,
        cells,
        title=spec.title,
        figure=spec.figure,
        paper=spec.paper,
        scale=spec.scale,
        changes=spec.changes,
        source=spec.to_toml(),
    )


def slug(keys: Mapping[str, object]) -> str:
    """What a person sees in a cell's name: `radius-0.4-`."""
    words = (f"{key.rsplit('.', 1)[-1]}-{label(value)}-" for key, value in keys.items())
    return re.sub(r"[^\w.+-]+", "_", "".join(words))[:80]


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Make the folder, and refuse it while another sweep works there."""
    name = f"out={str(folder)!r}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"{name} cannot be written: {error.strerror}; choose another folder."
        ) from None
    with locked(folder, f"{name} is in use by a sweep that is still going; wait for it."):
        yield


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends a sweep as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
