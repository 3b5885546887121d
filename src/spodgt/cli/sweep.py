"""`spodgt sweep` and `spodgt reproduce`."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypedDict

import typer
from rich.console import Console
from rich.table import Column, Table

from spodgt.cli.app import (
    ConfigOptions,
    Interrupted,
    JsonOption,
    QuietOption,
    app,
    fast_imports,
    flag,
    numbered_folders,
    plain_table,
    print_message,
)
from spodgt.cli.option_groups import with_option_groups
from spodgt.cli.sweep_display import SweepDisplay
from spodgt.errors import Failed, InvalidInput

if TYPE_CHECKING:
    from spodgt.record import SweepRecord
    from spodgt.sweeps.grid import Spec


class ExecutionArguments(TypedDict):
    """Arguments that `spodgt.sweeps.sweep.run` and `spodgt.sweeps.tune` have in common."""

    workers: int | None
    backend: str
    save_every: float


@dataclass(frozen=True)
class SweepExecutionOptions:
    """Options for the execution of a sweep."""

    resume: Annotated[
        bool,
        typer.Option(
            "--resume/--fresh",
            help="Continue with existing results, or delete them and start again.",
            metavar="",
        ),
    ] = True
    workers: Annotated[
        int | None,
        typer.Option(help="Number of cells to run in parallel. [dim]default: one per core[/]"),
    ] = None
    backend: Annotated[str, typer.Option(help="Where to run cells: local or ray.")] = "local"
    address: Annotated[
        str | None,
        typer.Option(help="Ray cluster, for --backend ray; auto: the cluster of this host."),
    ] = None
    save_every: Annotated[
        float, typer.Option("--checkpoint-every", help="Seconds between checkpoints.")
    ] = 60.0
    quiet: QuietOption = False

    def execution_arguments(self) -> ExecutionArguments:
        """The arguments of the functions that run a sweep."""
        if self.address is not None:
            if self.backend != "ray":
                raise InvalidInput(
                    f"--address={self.address!r} requires --backend ray, got {self.backend!r}."
                )
            os.environ["RAY_ADDRESS"] = self.address  # read by Ray
        return {"workers": self.workers, "backend": self.backend, "save_every": self.save_every}


@app.command(epilog="Example: [bold]spodgt sweep radius.toml --out runs/radius --workers 2[/]")
@with_option_groups
def sweep(
    file: Annotated[
        Path, typer.Argument(help="A config with a \\[sweep] table: config keys and their values.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for results; finished cells in it are not run again. "
            "[dim]default: runs/FILE, numbered if it has other results[/]"
        ),
    ] = None,
    as_json: JsonOption = False,
    *,
    options: SweepExecutionOptions,
    changes: ConfigOptions,
) -> None:
    """Run a grid of settings; a killed sweep continues with the same command."""
    with fast_imports():
        from spodgt.sweeps import grid

    runner = _SweepRunner(options, as_json)
    _check_grid(file)
    spec = grid.read(file).override(changes.config_changes())
    folder = out or _free_sweep_folder(spec.name)
    runner.run(spec, folder)
    runner.finish()


@app.command(epilog="Example: [bold]spodgt reproduce fmnist-iid --scale laptop[/]")
@with_option_groups
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="An experiment of the paper (see --list), or all.")
    ] = None,
    scale: Annotated[
        str, typer.Option(help="smoke (seconds), laptop, or paper (full size).")
    ] = "laptop",
    out: Annotated[
        Path | None, typer.Option(help="Folder for results. [dim]default: runs/reproduce-SCALE[/]")
    ] = None,
    tuned: Annotated[bool, flag("--tuned", "First tune the step size of every method.")] = False,
    listing: Annotated[bool, flag("--list", "List the experiments.")] = False,
    as_json: JsonOption = False,
    *,
    options: SweepExecutionOptions,
    changes: ConfigOptions,
) -> None:
    """Rerun a figure of the paper, or all of them: figure, table, report.html.

    Cells that figures have in common are run once; an interrupted command continues.
    """
    with fast_imports():
        from spodgt.sweeps import grid

    if listing:
        _list_experiments(as_json)
        return
    if name is None:
        raise InvalidInput(
            "NAME is missing; give an experiment or all, and see spodgt reproduce --list."
        )
    names = grid.names() if name == "all" else [name]
    config_changes = changes.config_changes()
    specs = [grid.load(each, scale).override(config_changes) for each in names]
    folder = out or Path("runs") / f"reproduce-{scale}"
    runner = _SweepRunner(options, as_json)
    if tuned:
        specs = _tune_specs(specs, name, folder, options, as_json or options.quiet)
    for spec in specs:
        runner.run(spec, folder / spec.name, cells_folder=folder / "cells")
    runner.finish()


class _SweepRunner:
    """Runs sweeps one after the other, with a display and a report for each."""

    def __init__(self, options: SweepExecutionOptions, as_json: bool) -> None:
        self.arguments = options.execution_arguments()
        self.as_json = as_json
        self.quiet = as_json or options.quiet
        # With --fresh, cells of earlier commands are run again, but not those of this command.
        self.kept_cells: set[Path] | None = None if options.resume else set()
        self.records: dict[Path, SweepRecord] = {}

    def run(self, spec: Spec, folder: Path, cells_folder: Path | None = None) -> None:
        """Run one sweep, write its report, and print the best cells."""
        from spodgt import report as reports
        from spodgt.sweeps import sweep as sweeps

        display = None
        if not self.quiet:
            cells = sweeps.plan(spec, folder, cells_folder)
            display = SweepDisplay(spec.title or spec.name, cells)
        try:
            with display or nullcontext():
                record = sweeps.run(
                    spec,
                    folder,
                    cells_folder=cells_folder,
                    kept_cells=self.kept_cells,
                    on_event=display.show if display else None,
                    **self.arguments,
                )
        except KeyboardInterrupt:
            exit_interrupted(folder)
        self.records[folder] = record
        if self.kept_cells is not None:
            self.kept_cells.update(cell.folder for cell in record.cells)
        if cells_folder is None:
            _mention_other_cells(record, folder / "cells")
        reports.write(folder)
        if not self.as_json:
            if record.grid and len(record.results):
                Console().print(_best_cells(record))
            print(f"{spec.name}: {folder / reports.NAME}")

    def finish(self) -> None:
        """Print the JSON and the failures; exit code 1 if a cell is not complete."""
        if self.as_json:
            rows = []
            for folder, record in self.records.items():
                row = {
                    "name": record.name,
                    "out": str(folder),
                    "complete": record.complete,
                    "failures": record.failures,
                }
                rows.append(row)
            print(json.dumps(rows, indent=2))
        for record in self.records.values():
            for cell, reason in record.failures.items():
                print_message(f"error: {record.name}/{cell}: {reason}")
        if not all(record.complete for record in self.records.values()):
            raise typer.Exit(1)


def _mention_other_cells(record: SweepRecord, cells_folder: Path) -> None:
    """Print one line if the folder holds cells that are not part of this sweep."""
    names = {cell.name for cell in record.cells}
    others = [path for path in cells_folder.glob("*/config.toml") if path.parent.name not in names]
    if others:
        cells = "1 cell" if len(others) == 1 else f"{len(others)} cells"
        verb = "remains" if len(others) == 1 else "remain"
        print_message(f"{cells} of other settings {verb} in {cells_folder}.")


def exit_interrupted(folder: Path) -> NoReturn:
    """Report an interruption, after which the same command continues; exit code 130."""
    raise Interrupted(f"interrupted; run the same command to continue from {folder}.") from None


def _best_cells(record: SweepRecord) -> Table:
    """Each method in its best cell."""
    from spodgt.record.sweep import label

    metric = record.primary_metric
    keys = list(record.grid)
    table = plain_table(caption="each method in its best cell")
    table.add_column("method", overflow="fold")
    for heading in (*keys, metric):
        table.add_column(heading, justify="right", overflow="fold")
    for row in record.best().to_dict("records"):
        values = [label(row[key]) for key in keys]
        table.add_row(row["method"], *values, f"{row[metric]:.4g}")
    return table


def _check_grid(file: Path) -> None:
    """Reject a config without a grid, which is for `spodgt run`; mention a sweep of one cell."""
    from spodgt.experiment import read_toml
    from spodgt.sweeps.grid import has_grid, is_plain

    tables = read_toml(file)
    if has_grid(tables):
        return
    if is_plain(tables):
        raise InvalidInput(
            f"{file} has no keys in [sweep], so there is nothing to sweep; add one such as "
            f'"network.radius" = [0.3, 0.4], or use spodgt run {file}.'
        )
    print_message(f"{file} has no [sweep]: one cell is run.")


def _free_sweep_folder(name: str) -> Path:
    """The first of runs/NAME, runs/NAME-2, … without other results, finished or not."""
    from spodgt.record.run_folder import SWEEP, other_kind

    def is_free(folder: Path) -> bool:
        return other_kind(folder, SWEEP) is None and not (folder / "config.toml").exists()

    return next(filter(is_free, numbered_folders(Path("runs") / name)))


def _list_experiments(as_json: bool) -> None:
    from spodgt.sweeps import grid

    rows = []
    for name in grid.names():
        spec = grid.load(name)
        row = {
            "name": spec.name,
            "figure": spec.figure,
            "title": spec.title,
            "cells": len(spec.points()),
        }
        rows.append(row)
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table("name", "figure", "title", Column("cells", justify="right"))
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)


def _tune_specs(
    specs: list[Spec], name: str, folder: Path, options: SweepExecutionOptions, quiet: bool
) -> list[Spec]:
    """The specs with tuned step sizes; those that sweep the step size are left out."""
    tunable = []
    for spec in specs:
        if "run.step_size" not in spec.grid:
            tunable.append(_tune_spec(spec, folder, options, quiet))
        elif spec.name == name:
            raise InvalidInput(
                f"{name} shows every step size, so --tuned means nothing there; leave it out."
            )
    return tunable


def _tune_spec(spec: Spec, folder: Path, options: SweepExecutionOptions, quiet: bool) -> Spec:
    """The spec with each method at its best step size for the experiment that its cells share.

    Specs with the same experiment share a search.
    """
    from spodgt.cli.tune import run_search
    from spodgt.sweeps.sweep import fingerprint
    from spodgt.sweeps.tune import Search

    search_folder = folder / f"tune-{fingerprint(spec.experiment)}"
    tuned = run_search(spec.experiment, search_folder, Search(), options, quiet)
    if tuned.failures:
        raise Failed(next(iter(tuned.failures.values())))
    title = (
        f"{spec.title or spec.name}, each method at its own step size, chosen by {tuned.metric} on "
        f"{tuned.chosen_on}"
    )
    with_methods = spec.override({"run.methods": list(tuned.best.values())})
    return replace(with_methods, name=f"{spec.name}-tuned", title=title)
