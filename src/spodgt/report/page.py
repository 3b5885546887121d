"""The content of a report, read from the records in a folder; nothing is computed again."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spodgt.errors import InvalidInput
from spodgt.record import record as runs
from spodgt.record import statistics, sweep
from spodgt.record.record import Record
from spodgt.record.sweep import CellRecord, SweepRecord, label

if TYPE_CHECKING:
    import pandas as pd

MAX_RUNS = 24  # of a sweep, to limit the size of the page; every cell has a folder of its own


@dataclass(frozen=True, eq=False)
class ReportPage:
    """The content of a report. A single run is a sweep without a grid."""

    folder: Path
    sweep: SweepRecord
    cells: list[CellRecord]  # with curves in the page
    records: list[Record]  # of `cells`
    methods: list[str]  # of all cells, in the order of the runs
    reference: str  # method with which others are compared first; "" without results
    command: str  # to repeat it; "" if it cannot be repeated by a command

    @property
    def title(self) -> str:
        return self.sweep.title or self.sweep.name

    @property
    def method_names(self) -> dict[str, str]:
        """The name of the method of each label that has settings, too."""
        names: dict[str, str] = {}
        for record in self.records:
            names.update(record.method_names)
        return names

    @property
    def evaluated_on(self) -> str:
        """The data of the metrics: "test" or "validation"."""
        return self.records[0].evaluated_on if self.records else "test"

    @property
    def results(self) -> pd.DataFrame:
        """The last evaluation of every run; in a sweep with the keys of the cells."""
        return self.sweep.results

    @property
    def setting(self) -> str:
        """The scale and the changes by the user, in words."""
        parts = []
        if str(self.sweep.scale):
            parts.append(str(self.sweep.scale))
        if self.sweep.changes:
            changes = [f"{key} = {label(value)}" for key, value in self.sweep.changes.items()]
            parts.append(f"changed by hand: {', '.join(changes)}")
        return "; ".join(parts)


def read(folder: str | Path, reference: str | None = None) -> ReportPage:
    """Read the page of a run folder, or of the folder of a sweep or a reproduction.

    Raises:
        InvalidInput: if the folder has no results, or `reference` is not one of their methods.
    """
    folder = Path(folder)
    if (folder / sweep.SUMMARY).exists():
        record = SweepRecord.read(folder)
        cells = [cell for cell in record.cells if cell.complete][:MAX_RUNS]
        records = [cell.read() for cell in cells]
        command = _sweep_command(record, folder)
    elif (folder / runs.SUMMARY).exists():
        run = Record.read(folder)
        record = _sweep_of_one_run(run, folder)
        cells = record.cells
        records = [run]
        command = ""
        if run.rerunnable:
            command = _repeat_command("run", folder / "config.toml", folder)
    else:
        raise InvalidInput(
            f"{folder} holds neither a run ({runs.SUMMARY}) nor a sweep ({sweep.SUMMARY}); "
            "give the folder that spodgt compare, run, sweep or reproduce wrote to."
        )
    methods = statistics.methods(record.results) if len(record.results) else []
    reference = _choose_reference(reference, methods)
    return ReportPage(folder, record, cells, records, methods, reference, command)


def _sweep_of_one_run(run: Record, folder: Path) -> SweepRecord:
    cell = CellRecord(folder.name, {}, folder, run.complete, run.seconds)
    versions = dict(run.versions)
    if run.engine:
        versions["engine"] = run.engine
    return SweepRecord(folder.name, run.final(), {}, [cell], source=run.source, versions=versions)


def _choose_reference(reference: str | None, methods: list[str]) -> str:
    if reference is None:
        return statistics.reference(methods) if methods else ""
    if reference not in methods:
        known = ", ".join(methods) or "no method: nothing has run"
        raise InvalidInput(
            f"--reference={reference!r} is not a method of this result; choose from {known}."
        )
    return reference


def _sweep_command(record: SweepRecord, folder: Path) -> str:
    """The command that repeats a sweep; "" if it holds Python objects."""
    if not record.source:
        return ""
    if not record.figure:
        return _repeat_command("sweep", folder / sweep.SOURCE, folder)
    words = ["spodgt", "reproduce", record.name, "--scale", record.scale.name or "paper"]
    for key, value in record.changes.items():
        words += ["--set", f"{key}={toml(value)}"]
    return shlex.join(words)


def _repeat_command(command: str, file: Path, folder: Path) -> str:
    return shlex.join(["spodgt", command, str(file), "--out", f"{folder}-again"])


def toml(value: object) -> str:
    """A config value in one line of TOML."""
    if isinstance(value, dict):
        pairs = [f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)  # numbers, texts and booleans are written as in JSON
