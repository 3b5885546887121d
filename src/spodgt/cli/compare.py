"""`spodgt compare` and `spodgt run`."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from spodgt.cli.app import (
    Changes,
    ConfigOption,
    JsonOption,
    OutOption,
    ResumeOption,
    app,
    experiment_of,
    many_imports,
    plain_table,
    unchecked,
)
from spodgt.cli.groups import grouped
from spodgt.errors import InvalidInput, no_divergence_warnings

if TYPE_CHECKING:
    from spodgt.experiment import Experiment
    from spodgt.record import Record
    from spodgt.training.result import Result


@dataclass(frozen=True)
class Keeping:
    """Where a run is kept, and how it is shown."""

    out: OutOption = None
    resume: ResumeOption = False
    checkpoint_every: Annotated[str, unchecked("Seconds between checkpoints.")] = "30"
    workers: Annotated[
        str | None, unchecked("Processes for independent runs. [dim]default: as many as pay off[/]")
    ] = None
    tensorboard: Annotated[bool, typer.Option(help="Also write TensorBoard event files.")] = False
    as_json: JsonOption = False

    def keys(self) -> dict[str, object]:
        """The options that are keys of the config, by their dotted names."""
        from spodgt.experiment import value_of

        if self.workers is None:
            return {}
        return {"run.workers": value_of(self.workers)}


@app.command(
    epilog="Example: [bold]spodgt compare --labels-per-client 10 --seeds 3 --out runs/iid[/]"
)
@grouped
def compare(config: ConfigOption = None, *, keeping: Keeping, changes: Changes) -> None:
    """Compare methods on the same networks, clients and data: a table, two pictures, a folder of results."""
    carry_out(experiment_of(config, changes.keys() | keeping.keys()), "compare", keeping)


@app.command(epilog="Example: [bold]spodgt run experiment.toml --out runs/mine[/]")
@grouped
def run(
    config: Annotated[Path, typer.Argument(help="A TOML file.")],
    *,
    keeping: Keeping,
    changes: Changes,
) -> None:
    """Run the experiment of a config file."""
    carry_out(experiment_of(config, changes.keys() | keeping.keys()), config.stem, keeping)


def carry_out(experiment: Experiment, name: str, keeping: Keeping) -> None:
    """Run an experiment, fill its folder, and show what came out."""
    with many_imports():
        from spodgt.runtimes.distributed.process_group import main_process, restarted

    runs, main = Path("runs"), main_process()  # of several processes, the main one writes and shows
    again = restarted() and (runs / name / "config.toml").exists()
    folder = keeping.out or (free_folder(runs, name, keeping.resume or again) if main else runs)
    console = Console(stderr=keeping.as_json)
    result = _run(experiment, folder, keeping, console, main)
    if not main:
        raise typer.Exit(0 if result.complete else 1)
    if len(result.frame):
        _fill(experiment, result, folder)
    if keeping.as_json:
        print(json.dumps(result.as_dict() | {"out": str(folder)}, indent=2))
    else:
        whole = Console(
            width=max(console.width, 72)
        )  # a narrower terminal folds lines, and loses nothing
        whole.print(results_table(result))
        console.print(
            f"Results, pictures and report.html: {folder}", soft_wrap=True, highlight=False
        )
    for each in (*result.diverged, *result.stalled):
        print(f"spodgt: warning: {each}", file=sys.stderr)
    if not result.complete:
        print(f"spodgt: stopped early; go on with --out {folder} --resume.", file=sys.stderr)
        raise typer.Exit(1)


def _run(
    experiment: Experiment, folder: Path, keeping: Keeping, console: Console, main: bool
) -> Result:
    """Run the experiment under a progress bar, if this process shows one."""
    from spodgt import figures, training
    from spodgt.engine import announce_compilation
    from spodgt.experiment import value_of
    from spodgt.record.folder import CHECKPOINT
    from spodgt.training.loggers import TensorBoard
    from spodgt.training.progress import COMPILING, Display

    if keeping.resume and main and not (folder / "config.toml").exists():
        raise InvalidInput(
            f"--resume found no run in --out {folder}; check the folder, or drop --resume to start a new run."
        )
    if keeping.resume and main and not (folder / CHECKPOINT).exists():
        print(f"spodgt: no checkpoint in {folder} yet; beginning at round 0.", file=sys.stderr)
    display = Display(console) if main and not keeping.as_json else None
    figures.prepare()
    callbacks = [TensorBoard(folder / "tensorboard")] if keeping.tensorboard and main else []

    def announce() -> None:
        if display:
            display.announce_compilation()
        elif main:
            print(COMPILING, file=sys.stderr)

    with no_divergence_warnings(), display or nullcontext(), announce_compilation(announce):
        return training.run(
            experiment,
            out=folder,
            resume=keeping.resume,
            checkpoint_every=value_of(keeping.checkpoint_every),
            progress=display.show if display else False,
            callbacks=callbacks,
        )


def _fill(experiment: Experiment, result: Result, folder: Path) -> None:
    """The theory's prediction, where the optimum is known; the pictures and the report."""
    from spodgt import report

    if "distance" in result.frame:
        from spodgt.theory import prediction

        result.prediction = prediction(result.draws, experiment.methods, result.frame)
        result.write(folder)
    result.plot(folder / f"{result.judged}.png")
    result.plot_network(folder / "network.png")
    report.write(folder)


def free_folder(parent: Path, name: str, resume: bool) -> Path:
    """The next free folder; the last one there is, to resume."""
    from spodgt.record.folder import RUN, other_kind

    names = (parent / (name if n == 1 else f"{name}-{n}") for n in range(1, 10**6))
    last = None
    for folder in names:
        if other_kind(folder, RUN) is not None:
            continue
        if not (folder / "config.toml").exists():
            if resume and last is None:
                raise InvalidInput(
                    f"--resume found no run in {folder}; give its folder with --out."
                )
            return last if resume and last else folder
        last = folder
    raise InvalidInput(f"{parent} is full of runs called {name}; give a folder with --out.")


def results_table(result: Record) -> Table:
    """The end of a comparison, best first; 80 columns hold it. All numbers are means over seeds."""
    rows = result.summary()
    has_accuracy = result.judged == "accuracy"
    rows = rows.sort_values("accuracy" if has_accuracy else "loss", ascending=not has_accuracy)
    seeds = int(rows["seeds"].max()) if len(rows) else 0
    quality: dict[str, Callable[[dict[Hashable, Any]], str]] = {}
    if has_accuracy:
        quality["mean"] = lambda row: f"{row['accuracy']:.3f}"
        quality["± σ"] = lambda row: f"{row['accuracy_std']:.3f}" if row["seeds"] > 1 else ""
        quality["average"] = lambda row: f"{row['accuracy_average']:.3f}"
        quality["worst"] = lambda row: f"{row['accuracy_worst']:.3f}"
    else:
        more = [name for name in result.scores if name in rows][:1]  # such as perplexity; one fits
        for name in ("loss", *more):
            quality[name] = partial(_value, name)
    time = "seconds" if "seconds" in rows else "delay"
    costs = {"rounds": "rounds", time: time, "grads": "gradients", "msgs": "messages"}
    if "bytes" in rows:
        costs["bytes"] = "bytes"

    table = plain_table(caption="\n".join(_caption(result, has_accuracy, seeds)))
    table.padding = 0  # one space between columns
    table.add_column("method", overflow="fold")
    for heading in (*quality, *costs):
        table.add_column(heading, justify="right", no_wrap=True)
    diverged = {each.algorithm for each in result.diverged}
    for row in rows.to_dict("records"):
        label = f"{row['name']} (diverged)" if row["name"] in diverged else str(row["name"])
        cells = [show(row) for show in quality.values()]
        spent = [_cost(name, row[name]) for name in costs.values()]
        table.add_row(folded(label), *cells, *spent)
    return table


def _caption(result: Record, has_accuracy: bool, seeds: int) -> list[str]:
    """What the columns are, and what a reader should know of the methods."""
    lines = []
    if has_accuracy:
        lines.append("accuracy: mean over clients, of the average model, of the worst client")
    over = f"means of {seeds} seeds; " if seeds > 1 else ""
    lines.append(f"{over}grads, msgs (gradients, messages) and bytes are of all clients")
    return lines + result.notes()


def _value(name: str, row: dict[Hashable, Any]) -> str:
    return f"{row[name]:.4g}"


def _cost(name: str, value: float) -> str:
    from spodgt.record.record import short_bytes, short_count

    if not math.isfinite(value):
        return "–"
    if name == "bytes":
        return short_bytes(value)
    if name == "seconds":
        return f"{value:.4g}"
    return short_count(value) if name in ("gradients", "messages") else f"{value:,.0f}"


def folded(label: str, width: int = 18) -> str:
    """A method's label in lines of at most `width` letters, broken before a layer or between words."""
    lines = [""]
    for part in re.findall(r"\+?[^+ ]+ ?", label):
        if lines[-1] and len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)
