"""What a report shows, read from the records in a folder: nothing is drawn or computed again."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spodgt.errors import InvalidInput
from spodgt.record import record as runs
from spodgt.record import statistics, sweep
from spodgt.record.record import Record
from spodgt.record.sweep import Scale, SweepRecord, label

if TYPE_CHECKING:
    import pandas as pd

MOST_RUNS = 24  # of a sweep: more would make the page too heavy, they have their own folders


@dataclass(frozen=True, eq=False)
class Run:
    """One run of the page.

    Args:
        title: What tells it from the others; "" where it is the only one.
        folder: Its run folder.
        record: What happened in it.
    """

    title: str
    folder: Path
    record: Record


@dataclass(frozen=True, eq=False)
class Page:
    """Everything a report shows.

    Args:
        folder: The folder it is about.
        title: The heading.
        runs: The runs whose curves are in the page.
        results: The last evaluation of every run; in a sweep with the cells' keys.
        reference: The method that others are compared with at first; "" where nothing has run.
        grid: Key → values of a sweep.
        figure: The figure of the paper, if any.
        paper: What the paper says about it.
        scale: How it compares with the paper's experiment.
        changes: Key → value that was changed by hand.
        source: TOML text to run it from.
        command: The command that runs it again; "" where there is none.
        failures: Cell → what went wrong.
        missing: The cells that are not run yet.
        versions: The versions of the packages it was made with.
        seconds: How long it took.
    """

    folder: Path
    title: str
    runs: list[Run]
    results: pd.DataFrame
    reference: str
    grid: dict[str, list[Any]] = field(default_factory=dict)
    figure: str = ""
    paper: str = ""
    scale: Scale = field(default_factory=Scale)
    changes: dict[str, Any] = field(default_factory=dict)
    source: str = ""
    command: str = ""
    failures: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    seconds: float | None = None

    @property
    def methods(self) -> list[str]:
        """All methods, in the order of the runs."""
        return statistics.methods(self.results) if len(self.results) else []

    @property
    def setting(self) -> str:
        """The scale and what was changed by hand, in words."""
        listed = ", ".join(f"{key} = {label(value)}" for key, value in self.changes.items())
        return "; ".join(filter(None, (str(self.scale), f"changed by hand: {listed}" if listed else "")))


def read(folder: str | Path, reference: str | None = None) -> Page:
    """The page of a run folder, or of the folder of a sweep or a reproduction.

    Args:
        folder: The folder.
        reference: The method that others are compared with at first.
    """
    folder = Path(folder)
    if (folder / sweep.SUMMARY).exists():
        return _sweep(folder, reference)
    if (folder / runs.SUMMARY).exists():
        return _single(folder, reference)
    raise InvalidInput(
        f"{folder} holds neither a run ({runs.SUMMARY}) nor a sweep ({sweep.SUMMARY}); "
        "give the folder that spodgt compare, run, sweep or reproduce wrote to."
    )


def _single(folder: Path, reference: str | None) -> Page:
    record = Record.read(folder)
    results = record.final()
    return Page(
        folder,
        folder.name,
        [Run("", folder, record)],
        results,
        _reference(results, reference),
        source=record.source,
        command=_again("run", folder / "config.toml", folder) if record.rerunnable else "",
        versions=record.versions,
        seconds=record.seconds,
    )


def _sweep(folder: Path, reference: str | None) -> Page:
    record = SweepRecord.read(folder)
    done = [cell for cell in record.cells if cell.complete][:MOST_RUNS]
    shipped = bool(record.figure)
    return Page(
        folder,
        record.title or record.name,
        [Run(cell.title, cell.folder, cell.read()) for cell in done],
        record.results,
        _reference(record.results, reference),
        record.grid,
        record.figure,
        record.paper,
        record.scale,
        record.changes,
        record.source,
        _reproduce(record) if shipped else _again("sweep", folder / sweep.SOURCE, folder),
        record.failures,
        record.missing,
        record.versions,
        record.seconds,
    )


def _reference(results: pd.DataFrame, wanted: str | None) -> str:
    names = statistics.methods(results) if len(results) else []
    if wanted is not None and wanted not in names:
        known = ", ".join(names) or "no method: nothing has run"
        raise InvalidInput(f"--reference={wanted!r} is not a method of this result; choose from {known}.")
    return wanted or (statistics.reference(names) if names else "")


def _again(command: str, file: Path, folder: Path) -> str:
    return shlex.join(["spodgt", command, str(file), "--out", f"{folder}-again"])


def _reproduce(record: SweepRecord) -> str:
    words = ["spodgt", "reproduce", record.name, "--scale", record.scale.name or "paper"]
    for key, value in record.changes.items():  # JSON of a number, text or list reads as TOML
        words += ["--set", f"{key}={json.dumps(value)}"]
    return shlex.join(words)
