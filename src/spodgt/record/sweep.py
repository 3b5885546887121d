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
from spodgt.record.folder import parquet, write
from spodgt.record.record import Record, versions

if TYPE_CHECKING:
    import pandas as pd

SUMMARY, RESULTS, SOURCE = "sweep.json", "results", "sweep.toml"
_FORMAT = 2


@dataclass(frozen=True)
class Scale:
    """How a sweep compares with the experiment of the paper.

    Args:
        name: smoke, laptop or paper; "" for a sweep of one's own.
        reduced: Config key → (its value here, its value in the paper; None: everything there is).
        kept: Key of the grid → (how many of its values are run, how many the paper has).
        note: Free text, of a file that has some.
    """

    name: str = ""
    reduced: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    kept: dict[str, tuple[int, int]] = field(default_factory=dict)
    note: str = ""

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
    """One point of the grid.

    Args:
        name: The name of its folder.
        keys: Config key → its value in this cell.
        folder: Where its run is.
        complete: Whether the run reached its end.
        seconds: How long it took; None where it was not measured.
        error: What went wrong; "" where nothing did.
    """

    name: str
    keys: dict[str, Any]
    folder: Path
    complete: bool
    seconds: float | None = None
    error: str = ""

    @property
    def title(self) -> str:
        """Its keys and values in short: `radius 0.4`."""
        return ", ".join(f"{key.rsplit('.', 1)[-1]} {label(value)}" for key, value in self.keys.items())

    def read(self) -> Record:
        """The record of its run."""
        return Record.read(self.folder)


@dataclass(eq=False)
class SweepRecord:
    """What happened in a sweep, as far as it came.

    Args:
        name: Its short name.
        results: One row per finished cell, method and seed: the cell's keys, the last evaluation, `cell`.
        grid: Config key → its values.
        cells: The cells, in the order of the grid.
        title: What it is, for people.
        figure: The figure of the paper it reproduces, if any.
        paper: What the paper says about it.
        scale: How it compares with the paper's experiment.
        changes: Config key → value that was changed by hand.
        source: The TOML text that runs it again.
        versions: The versions of Python and of the packages that matter.
    """

    name: str
    results: pd.DataFrame
    grid: dict[str, list[Any]]
    cells: list[CellRecord]
    title: str = ""
    figure: str = ""
    paper: str = ""
    scale: Scale = field(default_factory=Scale)
    changes: dict[str, Any] = field(default_factory=dict)
    source: str = ""
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
            **{key: getattr(self, key) for key in ("name", "title", "figure", "paper", "changes", "grid")},
            "scale": asdict(self.scale),
            "complete": self.complete,
            "seconds": self.seconds,
            "cells": [{**vars(cell), "folder": _relative(cell.folder, folder)} for cell in self.cells],
            "versions": self.versions,
            "source": self.source,
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
            cells = [CellRecord(**{**each, "folder": folder / each["folder"]}) for each in facts["cells"]]
            done = any(cell.complete for cell in cells)
            scale = Scale(**facts["scale"])
            return cls(
                results=pd.read_parquet(folder / f"{RESULTS}.parquet") if done else pd.DataFrame(),
                cells=cells,
                scale=scale,
                **{
                    key: facts[key]
                    for key in ("name", "grid", "title", "figure", "paper", "changes", "source", "versions")
                },
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"{folder}/{SUMMARY} cannot be read ({error}); run the sweep again.") from None


def collect(cells: list[CellRecord]) -> pd.DataFrame:
    """One row per finished cell, method and seed: the cell's keys, then the last evaluation.

    Args:
        cells: The cells; those that are not complete are left out.
    """
    import pandas as pd

    tables = []
    for cell in cells:
        if cell.complete:
            final = cell.read().final()
            point = pd.DataFrame([{key: flat(value) for key, value in cell.keys.items()}] * len(final))
            tables.append(point.join(final).assign(cell=cell.name))
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()


def label(value: Any) -> str:
    """A short text for a value of the grid.

    Args:
        value: A number, a text, a list or a table.
    """
    if isinstance(value, Mapping):
        return ", ".join(label(item) for item in value.values())
    if isinstance(value, list):
        return ", ".join(map(label, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def flat(value: Any) -> bool | int | float | str:
    """The value as one cell of a table: lists and tables become text.

    Args:
        value: A value of the grid.
    """
    return value if isinstance(value, bool | int | float | str) else label(value)


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
