"""`spodgt reproduce`, `spodgt sweep` and `spodgt report`."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column, Table
from rich.text import Text

from spodgt.cli.app import Changes, JsonOption, app, many_imports
from spodgt.cli.groups import grouped
from spodgt.errors import InvalidInput

if TYPE_CHECKING:
    from spodgt.record import SweepRecord
    from spodgt.sweeps.cell import Event
    from spodgt.sweeps.grid import Spec
    from spodgt.sweeps.sweep import Cell


@dataclass(frozen=True)
class Working:
    """How the cells of a sweep are run."""

    resume: Annotated[
        bool, typer.Option("--resume/--fresh", help="Go on with what is there, or forget it and begin anew.")
    ] = True
    workers: Annotated[
        int | None, typer.Option(help="How many cells at a time. [dim]default: one per core[/]")
    ] = None
    backend: Annotated[str, typer.Option(help="Where cells run: local or ray.", metavar="NAME")] = "local"
    address: Annotated[
        str | None,
        typer.Option(help="Ray cluster for --backend ray; auto: the one of this host.", metavar="ADDRESS"),
    ] = None
    save_every: Annotated[float, typer.Option("--checkpoint-every", help="Seconds between checkpoints.")] = (
        60.0
    )

    def options(self) -> dict[str, Any]:
        """The options of `spodgt.sweeps.sweep.run`."""
        if self.address is not None:
            if self.backend != "ray":
                raise InvalidInput(
                    f"--address={self.address!r} is for --backend ray, got {self.backend!r}; add it."
                )
            os.environ["RAY_ADDRESS"] = self.address  # where Ray itself looks
        forget = (
            None if self.resume else time.time()
        )  # what an earlier figure of this command made is not old
        chosen = {"workers": self.workers, "backend": self.backend, "save_every": self.save_every}
        return {**chosen, "forget": forget}


@app.command(epilog="Example: [bold]spodgt reproduce fmnist-iid --scale laptop[/]")
@grouped
def reproduce(
    name: Annotated[str | None, typer.Argument(help="An experiment (see --list), or all.")] = None,
    scale: Annotated[str, typer.Option(help="smoke (seconds), laptop, or paper (full size).")] = "laptop",
    out: Annotated[
        Path | None, typer.Option(help="Folder for results. [dim]default: runs/reproduce-SCALE[/]")
    ] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the experiments.")] = False,
    as_json: JsonOption = False,
    *,
    working: Working,
    changes: Changes,
) -> None:
    """Rerun a figure of the paper, or all of them: figure, table, report.html.

    Cells that figures have in common are computed once; an interrupted run continues where it was.
    """
    with many_imports():
        from spodgt.sweeps import grid

    if listing:
        _list(as_json)
        return
    if name is None:
        raise InvalidInput("NAME is missing; give an experiment or all, and see spodgt reproduce --list.")
    chosen = grid.names() if name == "all" else [name]
    specs = [grid.load(each, scale).override(changes.keys()) for each in chosen]
    folder, options = out or Path("runs") / f"reproduce-{scale}", working.options()
    done = {}
    for spec in specs:
        done[folder / spec.name] = _run(spec, folder / spec.name, folder / "cells", as_json, **options)
    _finish(done, as_json)


@app.command(epilog="Example: [bold]spodgt sweep radius.toml --out runs/radius --workers 2[/]")
@grouped
def sweep(
    file: Annotated[
        Path, typer.Argument(help="A config with a \\[sweep] table: config keys and their values.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for results; finished cells in it are kept. [dim]default: runs/FILE[/]"),
    ] = None,
    as_json: JsonOption = False,
    *,
    working: Working,
    changes: Changes,
) -> None:
    """Run a grid of settings; a killed sweep continues with the same command."""
    with many_imports():
        from spodgt.sweeps import grid

    options = working.options()
    spec = grid.read(file).override(changes.keys())
    folder = out or Path("runs") / spec.name
    _finish({folder: _run(spec, folder, None, as_json, **options)}, as_json)


@app.command(epilog="Example: [bold]spodgt report runs/compare[/]")
def report(
    folder: Annotated[Path, typer.Argument(help="A folder of compare, run, sweep or reproduce.")],
    reference: Annotated[
        str | None,
        typer.Option(help="Compare the others with this method. [dim]default: spod-gt[/]", metavar="METHOD"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write report.html and figure.png, .svg, .pdf for existing results."""
    from spodgt import report as reports

    path = reports.write(folder, reference)
    print(json.dumps({"report": str(path)}) if as_json else path)


def _list(as_json: bool) -> None:
    from spodgt.sweeps import grid

    specs = [grid.load(each) for each in grid.names()]
    rows = [
        {"name": spec.name, "figure": spec.figure, "title": spec.title, "cells": len(spec.points())}
        for spec in specs
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table("name", "figure", "what", Column("cells", justify="right"))
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)


def _run(spec: Spec, folder: Path, home: Path | None, quiet: bool, **options: Any) -> SweepRecord:
    """One sweep with its display and its report."""
    from spodgt import report as reports
    from spodgt.sweeps import sweep as sweeps

    cells = sweeps.plan(spec, folder, home)
    display = None if quiet else Display(spec.title or spec.name, cells)
    try:
        with display or nullcontext():
            record = sweeps.run(spec, folder, home=home, display=display.show if display else None, **options)
    except KeyboardInterrupt:
        print(f"spodgt: stopped; the same command goes on with what is saved in {folder}.", file=sys.stderr)
        raise typer.Exit(1) from None
    reports.write(folder)
    if not quiet:
        print(f"{spec.name}: {folder / reports.NAME}")
    return record


def _finish(done: dict[Path, SweepRecord], as_json: bool) -> None:
    """Say what failed in any of the folders; exit code 1 if anything did."""
    if as_json:
        rows = [
            {
                "name": each.name,
                "out": str(folder),
                "complete": each.complete,
                "failures": each.failures,
            }
            for folder, each in done.items()
        ]
        print(json.dumps(rows, indent=2))
    for each in done.values():
        for cell, why in each.failures.items():
            print(f"spodgt: error: {each.name}/{cell}: {why}", file=sys.stderr)
    if not all(each.complete for each in done.values()):
        raise typer.Exit(1)


class Display:
    """One bar for the whole, a line for each cell that is running, and the time left."""

    def __init__(self, title: str, cells: list[Cell]) -> None:
        self.progress = Progress(
            TextColumn(
                "{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", max_width=34)
            ),
            BarColumn(bar_width=16),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
            _Left(),
            console=Console(stderr=True),
        )
        self.weights = {cell.name: cell.weight for cell in cells}
        self.fractions = {cell.name: 1.0 if cell.complete else 0.0 for cell in cells}
        self.began, self.before = time.monotonic(), self._done()
        self.running: dict[str, TaskID] = {}
        self.whole = self.progress.add_task(title, total=1.0, note="", left=None)
        self._update()

    def __enter__(self) -> Display:
        return self  # the bar appears with the first event: an error message should stand alone

    def __exit__(self, *_: object) -> None:
        for task in self.running.values():
            self.progress.remove_task(task)
        self.progress.stop()

    def show(self, event: Event) -> None:
        """Take notice of a cell's progress or end."""
        from spodgt.sweeps.cell import Outcome

        self.progress.start()
        if isinstance(event, Outcome):
            if event.name in self.running:
                self.progress.remove_task(self.running.pop(event.name))
            if event.complete or event.error:  # else it was interrupted, and goes on another time
                self.fractions[event.name] = 1.0
        else:
            if event.name not in self.running:
                self.running[event.name] = self.progress.add_task("", total=1.0, note="", left=None)
            self.fractions[event.name] = event.fraction
            task, name = self.running[event.name], "  " + event.name.rsplit("-", 1)[0]
            self.progress.update(task, description=name, completed=event.fraction, note=event.note)
        self._update()

    def _done(self) -> float:
        total = sum(self.weights.values())
        return float(sum(self.weights[name] * part for name, part in self.fractions.items()) / total)

    def _update(self) -> None:
        done, here = self._done(), self._done() - self.before
        spent = time.monotonic() - self.began
        left = spent * (1 - done) / here if here > 0.01 else None
        over = sum(part == 1.0 for part in self.fractions.values())
        note = f"{over} of {len(self.fractions)} cells"
        self.progress.update(self.whole, completed=done, note=note, left=left)


class _Left(ProgressColumn):
    """The time left, for the whole only."""

    def render(self, task: Task) -> Text:
        left = task.fields["left"]
        if left is None:
            return Text("")
        minutes, seconds = divmod(int(left), 60)
        hours, minutes = divmod(minutes, 60)
        return Text(f"{hours}:{minutes:02}:{seconds:02} left" if hours else f"{minutes}:{seconds:02} left")
