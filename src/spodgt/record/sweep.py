"""The record of a sweep: its grid, its cells and the last evaluation of every run in them.

A sweep folder holds `sweep.json` (the facts), `results.parquet` and `results.csv`. Each cell is a
run folder of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spodgt._util.deprecation import RenamedAttribute
from spodgt.errors import InvalidInput
from spodgt.record import statistics
from spodgt.record.record import Record, versions
from spodgt.record.run_folder import parquet, write

if TYPE_CHECKING:
    import pandas as pd

SUMMARY = "sweep.json"
RESULTS = "results"
SOURCE = "sweep.toml"
_FORMAT = 2
# Attributes of a `SweepRecord` that are stored without conversion.
_FACTS = ("name", "title", "figure", "paper", "changes", "grid", "source", "versions")


@dataclass(frozen=True)
class Scale:
    """The size of a sweep, compared with the experiment of the paper."""

    name: str = ""  # smoke, laptop or paper; "" for a sweep of the user
    # Config key → (its value here, its value in the paper; None: everything).
    reduced: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    # Key of the grid → (number of values that are run, number of values in the paper).
    kept: dict[str, tuple[int, int]] = field(default_factory=dict)
    note: str = ""  # free text of the file

    @property
    def full(self) -> bool:
        """Whether this is the paper's size."""
        return bool(self.name) and not self.reduced and not self.kept

    def __str__(self) -> str:
        if not self.name:
            return self.note
        changes = []
        for key, (here, paper) in self.reduced.items():
            changes.append(_describe_change(key, here, paper))
        for key, (here, paper) in self.kept.items():
            changes.append(f"{here} of {paper} values of {key}")
        return f"{self.name} scale: " + (", ".join(changes) or "the paper's size")


@dataclass(frozen=True)
class CellRecord:
    """One point of the grid."""

    name: str  # of its folder
    keys: dict[str, Any]  # config key → its value in this cell
    folder: Path
    complete: bool  # whether the run reached its end
    seconds: float | None = None  # duration; None if it was not measured
    error: str = ""  # the message of a failure

    @property
    def title(self) -> str:
        """Its keys and values in short: `radius 0.4`."""
        parts = []
        for key, value in self.keys.items():
            parts.append(f"{key.rsplit('.', 1)[-1]} {label(value)}")
        return ", ".join(parts)

    def read(self) -> Record:
        """The record of its run."""
        return Record.read(self.folder)


@dataclass(eq=False, repr=False)
class SweepRecord:
    """The results of a sweep, which may be incomplete.

    Args:
        name: Of the sweep.
        results: A row per finished cell, method and seed: the keys, the last evaluation, `cell`.
        grid: The values of every config key.
        cells: In the order of the grid.
        title: A description.
        figure: The figure of the paper that it reproduces, if any.
        paper: The statement of the paper about it.
        scale: Its size, compared with that of the paper.
        changes: Values of config keys that were changed on the command line.
        source: The TOML text that runs it again.
        versions: Of Python and of the packages that matter.
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

    def __post_init__(self) -> None:
        from spodgt.record.frames import with_old_names

        self.results = with_old_names(self.results)

    def __repr__(self) -> str:
        finished = sum(cell.complete for cell in self.cells)
        keys = ", ".join(self.grid) or "no keys"
        return f"{type(self).__name__}({self.name}: {finished} of {len(self.cells)} cells, {keys})"

    def _repr_html_(self) -> str:
        """The best cell of each method in a notebook."""
        table = ""
        if len(self.results):
            table = str(self.best().to_html(index=False))
        return f"<p>{escape(repr(self))}</p>{table}"

    @property
    def complete(self) -> bool:
        """Whether every cell reached its end."""
        return all(cell.complete for cell in self.cells)

    @property
    def failures(self) -> dict[str, str]:
        """The messages of failed cells, by name."""
        return {cell.name: cell.error for cell in self.cells if cell.error}

    @property
    def missing(self) -> list[str]:
        """The names of cells that have not run yet."""
        return [cell.name for cell in self.cells if not cell.complete and not cell.error]

    @property
    def seconds(self) -> float | None:
        """The total duration of all finished cells."""
        times = [cell.seconds for cell in self.cells if cell.complete and cell.seconds]
        return sum(times) if times else None

    @property
    def primary_metric(self) -> str:
        """The metric by which methods are compared: the accuracy if there is one, else the loss."""
        return statistics.primary_metric(self.results)

    @property
    def evaluated_on(self) -> str:
        """The data of the metrics: "test", or "validation"; see `Record.evaluated_on`."""
        for cell in self.cells:
            if cell.complete:
                return cell.read().evaluated_on
        return "test"

    judged = RenamedAttribute("primary_metric")  # deprecated, removed in the next release

    def best(self, metric: str | None = None) -> pd.DataFrame:
        """Each method in its best cell: keys, and mean and standard deviation over seeds.

        Cells are chosen by validation data (the column `validation_accuracy`, …) if there are any.
        Otherwise they are chosen by the metric itself; on test data this favours every method.

        Args:
            metric: A column of `results`; the primary metric by default.
        """
        metric = metric or self.primary_metric
        if metric not in self.results:
            columns = ", ".join(map(str, self.results))
            raise InvalidInput(
                f"metric={metric!r} is not a column of the results; choose from {columns}."
            )
        return statistics.best_cells(self.results, list(self.grid), metric)

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
        facts = {key: getattr(self, key) for key in (*_FACTS, "complete", "seconds")}
        facts["format"] = _FORMAT
        facts["scale"] = asdict(self.scale)
        facts["cells"] = []
        for cell in self.cells:
            facts["cells"].append({**vars(cell), "folder": _relative(cell.folder, folder)})
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
            cells = []
            for cell in facts["cells"]:
                cells.append(CellRecord(**{**cell, "folder": folder / cell["folder"]}))
            results = pd.DataFrame()
            if any(cell.complete for cell in cells):
                results = pd.read_parquet(folder / f"{RESULTS}.parquet")
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
        if not cell.complete:
            continue
        keys = {}
        for key, value in cell.keys.items():  # lists and tables of the grid become text
            keys[key] = value if isinstance(value, int | float | str) else label(value)
        final = cell.read().final()
        tables.append(pd.DataFrame([keys] * len(final)).join(final).assign(cell=cell.name))
    if not tables:
        return pd.DataFrame()
    return pd.concat(tables, ignore_index=True)


def label(value: Any) -> str:
    """A short text for a value of the grid: a number, a text, a list or a table."""
    if isinstance(value, Mapping):
        return label(list(value.values()))
    if isinstance(value, list):
        return ", ".join(map(label, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _describe_change(key: str, here: Any, paper: Any) -> str:
    """`width 16 (paper 64)`."""
    name = key.rsplit(".", 1)[-1].replace("_", " ")
    return f"{name} {_number(here)} (paper {_number(paper or 'all')})"


def _number(value: Any) -> str:
    return f"{value:,g}" if isinstance(value, int | float) else str(value)


def _relative(path: Path, start: Path) -> str:
    """The path relative to `start`, so that the whole folder can be moved."""
    try:
        return Path(os.path.relpath(path, start)).as_posix()
    except ValueError:  # another drive
        return path.resolve().as_posix()
