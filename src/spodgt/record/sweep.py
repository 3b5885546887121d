"""The record of a sweep: its grid, its cells and the last evaluation of every run in them.

A sweep folder holds `sweep.json` (the facts), `results.parquet` and `results.csv`. Each cell is a run
folder of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spodgt.errors import InvalidInput
from spodgt.record import statistics
from spodgt.record.folder import parquet, write
from spodgt.record.record import Record, versions

if TYPE_CHECKING:
    import pandas as pd

SUMMARY, RESULTS, SOURCE = "sweep.json", "results", "sweep.toml"
_FORMAT = 2
_FACTS = (
    "name",
    "title",
    "figure",
    "paper",
    "changes",
    "grid",
    "source",
    "versions",
)  # stored as they are


@dataclass(frozen=True)
class Scale:
    """How a sweep compares with the experiment of the paper."""

    name: str = ""  # smoke, laptop or paper; "" for a sweep of one's own
    # Config key → (its value here, its value in the paper; None: everything there is).
    reduced: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    # Key of the grid → (how many of its values are run, how many the paper has).
    kept: dict[str, tuple[int, int]] = field(default_factory=dict)
    note: str = ""  # free text, of a file that has some

    @property
    def full(self) -> bool:
        """Whether this is the paper's size."""
        return bool(self.name) and not self.reduced and not self.kept

    def __str__(self) -> str:
        if not self.name:
            return self.note
        words = [_change(key, here, paper) for key, (here, paper) in self.reduced.items()]
        words += [f"{some} of {all_} values of {key}" for key, (some, all_) in self.kept.items()]
        return f"{self.name} scale: " + (", ".join(words) or "the paper's size")


@dataclass(frozen=True)
class CellRecord:
    """One point of the grid."""

    name: str  # of its folder
    keys: dict[str, Any]  # config key → its value in this cell
    folder: Path
    complete: bool  # whether the run reached its end
    seconds: float | None = None  # how long it took; None where it was not measured
    error: str = ""  # what went wrong

    @property
    def title(self) -> str:
        """Its keys and values in short: `radius 0.4`."""
        return ", ".join(
            f"{key.rsplit('.', 1)[-1]} {label(value)}" for key, value in self.keys.items()
        )

    def read(self) -> Record:
        """The record of its run."""
        return Record.read(self.folder)


@dataclass(eq=False)
class SweepRecord:
    """What happened in a sweep, as far as it came."""

    name: str
    results: (
        pd.DataFrame
    )  # a row per finished cell, method and seed: the keys, the last evaluation, `cell`
    grid: dict[str, list[Any]]  # config key → its values
    cells: list[CellRecord]  # in the order of the grid
    title: str = ""  # what it is, for people
    figure: str = ""  # the figure of the paper that it reproduces, if any
    paper: str = ""  # what the paper says about it
    scale: Scale = field(default_factory=Scale)
    changes: dict[str, Any] = field(
        default_factory=dict
    )  # config key → value that was changed by hand
    source: str = ""  # the TOML text that runs it again
    versions: dict[str, str] = field(default_factory=versions)

    @property
    def complete(self) -> bool:
        """Whether every cell reached its end."""
        return all(cell.complete for cell in self.cells)

    @property
    def failures(self) -> dict[str, str]:
        """Cell → what went wrong."""
        return {cell.name: cell.error for cell in self.cells if cell.error}

    @property
    def missing(self) -> list[str]:
        """The cells that are not run yet."""
        return [cell.name for cell in self.cells if not cell.complete and not cell.error]

    @property
    def seconds(self) -> float | None:
        """The time of all finished cells together."""
        times = [cell.seconds for cell in self.cells if cell.complete and cell.seconds]
        return sum(times) if times else None

    @property
    def judged(self) -> str:
        """The metric the sweep is judged by: accuracy where something is classified, else the loss."""
        return statistics.judged(self.results)

    def best(self, metric: str | None = None) -> pd.DataFrame:
        """Each method in its best cell: the values of the keys, and mean and sigma of the metric over seeds.

        Cells are chosen by validation data (the column `validation_accuracy`, …) if the problem has them.
        Otherwise they are chosen by the metric itself, which favours every method if it is that of test data.

        Args:
            metric: A column of `results`; the one the sweep is judged by unless given.
        """
        chosen = metric or self.judged
        if chosen not in self.results:
            known = ", ".join(map(str, self.results))
            raise InvalidInput(
                f"metric={chosen!r} is not a column of the results; choose from {known}."
            )
        return statistics.best_cells(self.results, list(self.grid), chosen)

    def write(self, folder: str | Path) -> None:
        """Write the tables, then the facts.

        Args:
            folder: The sweep folder; it exists.
        """
        folder = Path(folder)
        if len(self.results):
            write(folder / f"{RESULTS}.parquet", parquet(self.results))
            write(folder / f"{RESULTS}.csv", self.results.to_csv(index=False).encode())
        if self.source:
            write(folder / SOURCE, self.source.encode())
        facts = {
            "format": _FORMAT,
            **{key: getattr(self, key) for key in (*_FACTS, "complete", "seconds")},
            "scale": asdict(self.scale),
            "cells": [
                {**vars(cell), "folder": _relative(cell.folder, folder)} for cell in self.cells
            ],
        }
        write(folder / SUMMARY, json.dumps(facts, indent=2, default=str).encode())

    @classmethod
    def read(cls, folder: str | Path) -> SweepRecord:
        """The record of a sweep folder.

        Args:
            folder: The sweep folder.
        """
        import pandas as pd

        folder = Path(folder)
        try:
            facts = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
            cells = [
                CellRecord(**{**each, "folder": folder / each["folder"]}) for each in facts["cells"]
            ]
            done = any(cell.complete for cell in cells)
            results = pd.read_parquet(folder / f"{RESULTS}.parquet") if done else pd.DataFrame()
            rest = {key: facts[key] for key in _FACTS}
            return cls(results=results, cells=cells, scale=Scale(**facts["scale"]), **rest)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInput(
                f"{folder}/{SUMMARY} cannot be read ({error}); run the sweep again."
            ) from None


def collect(cells: list[CellRecord]) -> pd.DataFrame:
    """One row per finished cell, method and seed: the cell's keys, then the last evaluation."""
    import pandas as pd

    tables = []
    for cell in cells:
        if cell.complete:
            # Lists and tables of the grid become text.
            keys = {
                k: v if isinstance(v, int | float | str) else label(v) for k, v in cell.keys.items()
            }
            final = cell.read().final()
            tables.append(pd.DataFrame([keys] * len(final)).join(final).assign(cell=cell.name))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def label(value: Any) -> str:
    """A short text for a value of the grid: a number, a text, a list or a table."""
    if isinstance(value, Mapping):
        return label(list(value.values()))
    if isinstance(value, list):
        return ", ".join(map(label, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _change(key: str, here: Any, paper: Any) -> str:
    """`width 16 (paper 64)`."""
    shown, before = (
        f"{one:,g}" if isinstance(one, int | float) else str(one) for one in (here, paper or "all")
    )
    return f"{key.rsplit('.', 1)[-1].replace('_', ' ')} {shown} (paper {before})"


def _relative(path: Path, start: Path) -> str:
    """The path relative to `start`, so that the whole folder can be moved."""
    try:
        return Path(os.path.relpath(path, start)).as_posix()
    except ValueError:  # another drive
        return path.resolve().as_posix()
