"""What a report shows, read from the records in a folder: nothing is drawn or computed again."""

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

MOST_RUNS = 24  # of a sweep: more would make the page too heavy, they have their own folders


@dataclass(frozen=True, eq=False)
class Page:
    """Everything a report shows. A single run is a sweep without a grid."""

    folder: Path
    sweep: SweepRecord
    cells: list[CellRecord]  # those whose curves are in the page
    records: list[Record]  # what happened in them
    methods: list[str]  # of all cells, in the order of the runs
    reference: str  # the method that others are compared with at first; "" where nothing has run
    command: str  # the one that runs it again; "" where there is none

    @property
    def title(self) -> str:
        return self.sweep.title or self.sweep.name

    @property
    def results(self) -> pd.DataFrame:
        """The last evaluation of every run; in a sweep with the cells' keys."""
        return self.sweep.results

    @property
    def setting(self) -> str:
        """The scale and what was changed by hand, in words."""
        listed = ", ".join(f"{key} = {label(value)}" for key, value in self.sweep.changes.items())
        changed = f"changed by hand: {listed}" if listed else ""
        return "; ".join(filter(None, (str(self.sweep.scale), changed)))


def read(folder: str | Path, reference: str | None = None) -> Page:
    """The page of a run folder, or of the folder of a sweep or a reproduction."""
    folder = Path(folder)
    if (folder / sweep.SUMMARY).exists():
        found = SweepRecord.read(folder)
        cells = [cell for cell in found.cells if cell.complete][:MOST_RUNS]
        records = [cell.read() for cell in cells]
        command = (
            _reproduce(found) if found.figure else _again("sweep", folder / sweep.SOURCE, folder)
        )
        command = command if found.source else ""
    elif (folder / runs.SUMMARY).exists():
        record = Record.read(folder)
        cells = [CellRecord(folder.name, {}, folder, record.complete, record.seconds)]
        records, last = [record], record.final()
        versions = record.versions | ({"engine": record.engine} if record.engine else {})
        found = SweepRecord(folder.name, last, {}, cells, source=record.source, versions=versions)
        command = _again("run", folder / "config.toml", folder) if record.rerunnable else ""
    else:
        raise InvalidInput(
            f"{folder} holds neither a run ({runs.SUMMARY}) nor a sweep ({sweep.SUMMARY}); "
            "give the folder that spodgt compare, run, sweep or reproduce wrote to."
        )
    methods = statistics.methods(found.results) if len(found.results) else []
    if reference is not None and reference not in methods:
        known = ", ".join(methods) or "no method: nothing has run"
        raise InvalidInput(
            f"--reference={reference!r} is not a method of this result; choose from {known}."
        )
    chosen = reference or (statistics.reference(methods) if methods else "")
    return Page(folder, found, cells, records, methods, chosen, command)


def _again(command: str, file: Path, folder: Path) -> str:
    return shlex.join(["spodgt", command, str(file), "--out", f"{folder}-again"])


def _reproduce(record: SweepRecord) -> str:
    words = ["spodgt", "reproduce", record.name, "--scale", record.scale.name or "paper"]
    for key, value in record.changes.items():
        words += ["--set", f"{key}={toml(value)}"]
    return shlex.join(words)


def toml(value: object) -> str:
    """A value of a config in one line of TOML."""
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps(key)} = {toml(each)}" for key, each in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)  # of a number, a text or a truth value the same
