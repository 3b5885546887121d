"""Sweeps: a grid of experiments, every cell in its own run folder.

A cell's folder is named after a fingerprint of its experiment. A sweep that was killed therefore
finds its finished cells and runs the rest, and sweeps that share a folder of cells share the cells
that they have in common. All seeds of a cell run as one batch; cells run in worker processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import signal
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from spodgt.errors import InvalidInput
from spodgt.experiment import Experiment
from spodgt.experiment.checks import check_files, is_portable
from spodgt.experiment.toml import Table
from spodgt.experiment.user_code import code_checksums
from spodgt.record.record import is_complete
from spodgt.record.run_folder import SWEEP, locked, plain, refuse_other_kind, write
from spodgt.record.sweep import SOURCE, CellRecord, SweepRecord, collect, label
from spodgt.sweeps.cell import Event, Job, OnEvent, Outcome
from spodgt.sweeps.executors import JobExecutor, check_backend, cores, executor
from spodgt.sweeps.executors.inline import Inline
from spodgt.sweeps.grid import Spec


@dataclass(frozen=True)
class Cell:
    """One point of the grid: the values of its keys, its experiment and its run folder."""

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
    def weight(self) -> float:
        """Rough amount of work, for the remaining time and to start with the longest cells."""
        table = self.experiment.to_dict()["network"]  # does not read a network file
        return float(table.get("clients", 10)) * len(self.experiment.run.seed_list)

    def job(self, save_every: float, workers: int | None = None) -> Job:
        """The cell as a job of an executor."""
        return Job(self.name, self.experiment.to_dict(), str(self.folder), save_every, workers)

    def record(self, errors: Mapping[str, str]) -> CellRecord:
        """The cell as part of the sweep's record; `errors` are those of failed cells, by name."""
        seconds = None
        with contextlib.suppress(OSError, ValueError, KeyError):
            summary = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
            seconds = summary["seconds"]
        error = errors.get(self.name, "")
        return CellRecord(self.name, self.keys, self.folder, self.complete, seconds, error)


def plan(spec: Spec, folder: Path, cells_folder: Path | None = None) -> list[Cell]:
    """The cells of a sweep.

    Args:
        spec: The sweep; points of the grid with equal experiments are one cell.
        folder: The sweep folder.
        cells_folder: The folder of the cells, existing or new. Default: `cells` in `folder`.
    """
    refuse_other_kind(folder, SWEEP)
    if cells_folder is None:
        cells_folder = folder / "cells"
    cells: dict[str, Cell] = {}
    for keys in spec.points():
        experiment = spec.experiment.override(keys)
        mark = fingerprint(experiment)
        if mark in cells:
            continue
        existing = sorted(cells_folder.glob(f"*{mark}"))
        name = f"{slug(keys) or 'run-'}{mark}"
        cells[mark] = Cell(keys, experiment, existing[0] if existing else cells_folder / name)
    return list(cells.values())


def fingerprint(experiment: Experiment) -> str:
    """Twelve hexadecimal digits of a hash of the experiment and of the files that it names."""
    tables = experiment.to_dict()
    tables["run"].setdefault("evaluations", 25)  # as in the hashes of older versions
    text = json.dumps(plain(tables), sort_keys=True) + "".join(code_checksums(experiment).values())
    for name in ("network", "participation"):
        # most name no file; a missing file is reported by `check`
        with contextlib.suppress(OSError, KeyError):
            text += hashlib.sha256(Path(tables[name]["path"]).read_bytes()).hexdigest()
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def check(spec: Spec) -> None:
    """Build the first cell, and every other value of every key once, to find errors early."""
    first = spec.points()[0]
    check_files(spec.experiment.override(first))
    for key, values in spec.grid.items():
        for value in values[1:]:
            check_files(spec.experiment.override({**first, key: value}))


def run(
    spec: Spec,
    out: str | Path,
    *,
    cells_folder: str | Path | None = None,
    workers: int | None = None,
    backend: str = "local",
    save_every: float = 60.0,
    kept_cells: Collection[Path] | None = None,
    on_event: OnEvent | None = None,
) -> SweepRecord:
    """Run the cells that are not finished, and write the results of all finished cells.

    On Ctrl-C and SIGTERM the running cells save a checkpoint and the results are written; the same
    call continues later.

    Args:
        spec: The sweep.
        out: The sweep folder.
        cells_folder: The folder of the cells. Default: `cells` in `out`.
        workers: Cells at a time. Default: one per core. Cells that hold objects of this process run
            in it, one after the other; `workers` are then processes of each cell.
        backend: Where cells run: "local", "ray" or another key of `BACKENDS`.
        save_every: Seconds between checkpoints of a cell.
        kept_cells: Folders of cells that are kept; all other cells run again. None: all are kept.
        on_event: Called with the progress and the outcome of every cell.

    Returns:
        The record of the sweep; failed cells are in its `failures`.

    Raises:
        InvalidInput: for invalid arguments or cells, before any cell is started.
    """
    _check_execution(workers, save_every)
    check_backend(backend)
    if workers is None:
        workers = spec.experiment.run.workers
    folder = Path(out)
    cells = plan(spec, folder, None if cells_folder is None else Path(cells_folder))
    outdated = _outdated(cells, kept_cells)
    pending = [cell for cell in cells if cell in outdated or not cell.complete]
    pending.sort(key=lambda cell: cell.weight, reverse=True)
    if pending:
        check(spec)
    failures = _FailureCollector(on_event)
    with exclusive(folder), sigterm_as_interrupt():
        pool, jobs = _create_executor(pending, backend, workers, save_every)
        try:
            for cell in outdated:  # deleted only after all checks
                shutil.rmtree(cell.folder, ignore_errors=True)
            _write_source(spec, folder)
            for job in jobs:
                pool.submit(job)
            pool.wait(failures)
        finally:
            pool.close()
            record = _record(spec, [cell.record(failures.errors) for cell in cells])
            record.write(folder)
    return record


class _FailureCollector:
    """A callback of events that keeps the errors of failed cells, and forwards the events."""

    def __init__(self, on_event: OnEvent | None) -> None:
        self.on_event = on_event
        self.errors: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, Outcome) and event.error:
            self.errors[event.name] = event.error
        if self.on_event is not None:
            self.on_event(event)


def _outdated(cells: list[Cell], kept_cells: Collection[Path] | None) -> list[Cell]:
    """The cells that run again although they may be finished."""
    if kept_cells is None:
        return []
    return [cell for cell in cells if cell.folder not in kept_cells]


def _create_executor(
    pending: list[Cell], backend: str, workers: int | None, save_every: float
) -> tuple[JobExecutor, list[Job]]:
    """An executor of the backend, or of this process for cells that hold its objects; the jobs."""
    if all(is_portable(cell.experiment) for cell in pending):
        jobs = [cell.job(save_every) for cell in pending]
        return executor(backend, min(workers or cores(), max(1, len(pending)))), jobs
    jobs = [cell.job(save_every, workers) for cell in pending]
    return Inline({cell.name: cell.experiment for cell in pending}), jobs


def _check_execution(workers: int | None, save_every: float) -> None:
    if workers is not None and workers < 1:
        raise InvalidInput(f"--workers must be at least 1, got {workers}; use {cores()}.")
    if not save_every >= 0:
        raise InvalidInput(
            f"--checkpoint-every must be seconds of at least 0, got {save_every}; use 60."
        )


def _write_source(spec: Spec, folder: Path) -> None:
    source = spec.to_toml()
    if source:
        write(folder / SOURCE, source.encode())


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
    """The readable part of a cell's name: `radius-0.4-`."""
    words = [f"{key.rsplit('.', 1)[-1]}-{label(value)}-" for key, value in keys.items()]
    return re.sub(r"[^\w.+-]+", "_", "".join(words))[:80]


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Create the folder, and lock it against other sweeps.

    Raises:
        InvalidInput: if it cannot be created, or another sweep has locked it.
    """
    name = f"out={str(folder)!r}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"{name} cannot be written: {error.strerror}; choose another folder."
        ) from None
    with locked(folder, f"{name} is in use by a running sweep; wait for it."):
        yield


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous_handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
