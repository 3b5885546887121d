"""`spodgt reproduce`, `spodgt sweep`, `spodgt tune` and `spodgt report`."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column, Table
from rich.text import Text

from spodgt.cli.app import (
    Changes,
    ConfigOption,
    JsonOption,
    app,
    experiment_of,
    many_imports,
    plain_table,
    unchecked,
)
from spodgt.cli.groups import grouped
from spodgt.errors import Failed, InvalidInput

if TYPE_CHECKING:
    from spodgt.experiment import Experiment
    from spodgt.record import SweepRecord
    from spodgt.sweeps.cell import Event
    from spodgt.sweeps.grid import Spec
    from spodgt.sweeps.sweep import Cell
    from spodgt.sweeps.tune import Search, Tuned


@dataclass(frozen=True)
class Working:
    """How the cells of a sweep are run."""

    resume: Annotated[
        bool,
        typer.Option(
            "--resume/--fresh", help="Go on with what is there, or forget it and begin anew."
        ),
    ] = True
    workers: Annotated[
        int | None, typer.Option(help="How many cells at a time. [dim]default: one per core[/]")
    ] = None
    backend: Annotated[str, typer.Option(help="Where cells run: local or ray.", metavar="NAME")] = (
        "local"
    )
    address: Annotated[
        str | None,
        typer.Option(
            help="Ray cluster for --backend ray; auto: the one of this host.", metavar="ADDRESS"
        ),
    ] = None
    save_every: Annotated[
        float, typer.Option("--checkpoint-every", help="Seconds between checkpoints.")
    ] = 60.0

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
    scale: Annotated[
        str, typer.Option(help="smoke (seconds), laptop, or paper (full size).")
    ] = "laptop",
    out: Annotated[
        Path | None, typer.Option(help="Folder for results. [dim]default: runs/reproduce-SCALE[/]")
    ] = None,
    tuned: Annotated[
        bool,
        typer.Option("--tuned", help="Every method at its own best step size, searched for first."),
    ] = False,
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
        raise InvalidInput(
            "NAME is missing; give an experiment or all, and see spodgt reproduce --list."
        )
    chosen = grid.names() if name == "all" else [name]
    specs = [grid.load(each, scale).override(changes.keys()) for each in chosen]
    folder, options = out or Path("runs") / f"reproduce-{scale}", working.options()
    if tuned:
        swept = [spec.name for spec in specs if "run.step_size" in spec.grid]
        if name in swept:
            raise InvalidInput(
                f"{name} shows every step size, so --tuned means nothing there; leave it out."
            )
        specs = [
            at_best(spec, folder, working, as_json) for spec in specs if spec.name not in swept
        ]
    done = {}
    for spec in specs:
        done[folder / spec.name] = _run(
            spec, folder / spec.name, folder / "cells", as_json, **options
        )
    _finish(done, as_json)


@app.command(epilog="Example: [bold]spodgt sweep radius.toml --out runs/radius --workers 2[/]")
@grouped
def sweep(
    file: Annotated[
        Path, typer.Argument(help="A config with a \\[sweep] table: config keys and their values.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for results; finished cells in it are kept. "
            "[dim]default: runs/FILE, numbered if another result is there[/]"
        ),
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
    _check_grid(file)
    spec = grid.read(file).override(changes.keys())
    folder = out or _sweep_folder(spec.name)
    _finish({folder: _run(spec, folder, None, as_json, **options)}, as_json)


def _check_grid(file: Path) -> None:
    """Refuse a config without a grid, which `spodgt run` runs; a figure of a single cell is mentioned."""
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
    print(f"spodgt: {file} has no [sweep]: one cell is run.", file=sys.stderr)


def _sweep_folder(name: str) -> Path:
    """runs/NAME, or the first of runs/NAME-2, … that holds no other kind of result and no run that began."""
    from spodgt.record.folder import SWEEP, other_kind

    folder = Path("runs") / name
    number = 2
    while other_kind(folder, SWEEP) is not None or (folder / "config.toml").exists():
        folder = Path("runs") / f"{name}-{number}"
        number += 1
    return folder


@dataclass(frozen=True)
class Trying:
    """What a search for step sizes tries."""

    candidates: Annotated[str, unchecked("Step sizes that each method begins with.")] = "6"
    tuning_seeds: Annotated[str, unchecked("On how many seeds each of them runs.")] = "5"
    vary: Annotated[
        str | None, unchecked("One more field and its values: momentum=[0.0, 0.9]", "KEY=VALUES")
    ] = None

    def search(self) -> Search:
        """The search that is meant."""
        from spodgt.experiment import value_of
        from spodgt.sweeps.tune import Search

        key, equals, values = (self.vary or "").partition("=")
        if self.vary and not equals:
            raise InvalidInput(
                f"--vary {self.vary!r} must be KEY=VALUES, such as momentum=[0.0, 0.9]."
            )
        vary = {key.strip(): value_of(values.strip())} if self.vary else {}
        return Search(value_of(self.candidates), value_of(self.tuning_seeds), vary)


@app.command(
    epilog="Example: [bold]spodgt tune --labels-per-client 10 --vary momentum=\\[0.0,0.9] --out runs/tune[/]"
)
@grouped
def tune(
    config: ConfigOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for results; short runs in it are kept. [dim]default: runs/tune[/]"
        ),
    ] = None,
    as_json: JsonOption = False,
    *,
    trying: Trying,
    working: Working,
    changes: Changes,
) -> None:
    """Find each method's own best step size by short runs: a table, a picture, a config with all of them."""
    folder = out or Path("runs") / "tune"
    found = _tune(experiment_of(config, changes.keys()), folder, trying.search(), working, as_json)
    if as_json:
        print(json.dumps(found.as_dict() | {"out": str(folder)}, indent=2))
    else:
        console = Console()
        console.print(_choices(found))
        console.print(f"Table, picture and tuned.toml: {folder}", soft_wrap=True, highlight=False)
    for method, why in found.failures.items():
        print(f"spodgt: error: {method}: {why}", file=sys.stderr)
    if found.failures:
        raise typer.Exit(1)


def at_best(spec: Spec, folder: Path, working: Working, quiet: bool) -> Spec:
    """The figure with every method at its best for what all cells have in common; figures share a search."""
    from spodgt.sweeps.sweep import fingerprint
    from spodgt.sweeps.tune import Search

    there = folder / f"tune-{fingerprint(spec.experiment)}"
    found = _tune(spec.experiment, there, Search(), working, quiet)
    if found.failures:
        raise Failed(next(iter(found.failures.values())))
    words = (
        f"{spec.title or spec.name}, each method at its own step size, chosen by {found.metric} on "
        f"{found.chosen_on}"
    )
    methods = spec.override({"run.methods": list(found.best.values())})
    return replace(methods, name=f"{spec.name}-tuned", title=words)


def _tune(
    experiment: Experiment, folder: Path, search: Search, working: Working, quiet: bool
) -> Tuned:
    """A search under a display."""
    from spodgt.sweeps.tune import tune_experiment
    from spodgt.training.progress import Display as Bars

    options = working.options()
    if options.pop("forget") is not None:
        shutil.rmtree(folder, ignore_errors=True)
    bars = None if quiet else Bars(Console(stderr=True))
    try:
        with bars or nullcontext():
            tell = bars.move if bars else None
            return tune_experiment(experiment, folder, search, progress=tell, **options)
    except KeyboardInterrupt:
        print(
            f"spodgt: stopped; the same command goes on with what is saved in {folder}.",
            file=sys.stderr,
        )
        raise typer.Exit(1) from None


def _choices(found: Tuned) -> Table:
    """Each method with its best values, best first."""
    from spodgt.record import statistics
    from spodgt.sweeps.tune import BUDGETS

    rows = found.rows()
    headings = [key for key in rows[0] if key not in ("method", "sigma")]
    text = (
        f"{found.metric}: after {BUDGETS[-1]:.0%} of a run, on {found.chosen_on}\n"
        "stable below: theory's limit for one draw"
    )
    table = plain_table(caption=text)
    for heading in ("method", *headings):
        justify: Literal["left", "right"] = "left" if heading == "method" else "right"
        table.add_column(heading.replace("_", " "), justify=justify, overflow="fold")
    for row in sorted(rows, key=lambda row: -statistics.better(found.metric) * row[found.metric]):
        cells = [
            f"{row[key]:.3g}" if isinstance(row[key], float) else str(row[key] or "–")
            for key in headings
        ]
        table.add_row(row["method"], *cells)
    return table


@app.command(epilog="Example: [bold]spodgt report runs/compare[/]")
def report(
    folder: Annotated[Path, typer.Argument(help="A folder of compare, run, sweep or reproduce.")],
    reference: Annotated[
        str | None,
        typer.Option(
            help="Compare the others with this method. [dim]default: spod-gt[/]", metavar="METHOD"
        ),
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
            record = sweeps.run(
                spec, folder, home=home, display=display.show if display else None, **options
            )
    except KeyboardInterrupt:
        print(
            f"spodgt: stopped; the same command goes on with what is saved in {folder}.",
            file=sys.stderr,
        )
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
                "{task.description}",
                table_column=Column(no_wrap=True, overflow="ellipsis", max_width=34),
            ),
            BarColumn(bar_width=16),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn(
                "{task.fields[note]}", table_column=Column(no_wrap=True, overflow="ellipsis")
            ),
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
        return float(
            sum(self.weights[name] * part for name, part in self.fractions.items()) / total
        )

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
        return Text(
            f"{hours}:{minutes:02}:{seconds:02} left" if hours else f"{minutes}:{seconds:02} left"
        )
