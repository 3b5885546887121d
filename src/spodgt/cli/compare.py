"""`spodgt compare` and `spodgt run`."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    tensorboard: Annotated[bool, typer.Option(help="Also write TensorBoard event files.")] = False
    as_json: JsonOption = False


@app.command(epilog="Example: [bold]spodgt compare --labels-per-client 10 --seeds 3 --out runs/iid[/]")
@grouped
def compare(config: ConfigOption = None, *, keeping: Keeping, changes: Changes) -> None:
    """Compare methods on the same networks, clients and data: a table, two pictures, a folder of results."""
    carry_out(experiment_of(config, changes.keys()), "compare", keeping)


@app.command(epilog="Example: [bold]spodgt run experiment.toml --out runs/mine[/]")
@grouped
def run(
    config: Annotated[Path, typer.Argument(help="A TOML file.")], *, keeping: Keeping, changes: Changes
) -> None:
    """Run the experiment of a config file."""
    carry_out(experiment_of(config, changes.keys()), config.stem, keeping)


def carry_out(experiment: Experiment, name: str, keeping: Keeping) -> None:
    """Run an experiment, fill its folder, and show what came out."""
    with many_imports():
        from spodgt.runtimes.distributed.group import main_process, restarted

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
        whole = Console(width=max(console.width, 72))  # a narrower terminal folds lines, and loses nothing
        whole.print(results_table(result))
        console.print(f"Results, pictures and report.html: {folder}", soft_wrap=True, highlight=False)
    for each in result.diverged:
        print(f"spodgt: warning: {each}", file=sys.stderr)
    if not result.complete:
        print(f"spodgt: stopped early; go on with --out {folder} --resume.", file=sys.stderr)
        raise typer.Exit(1)


def _run(experiment: Experiment, folder: Path, keeping: Keeping, console: Console, main: bool) -> Result:
    """Run the experiment under a progress bar, if this process shows one."""
    from spodgt import figures, training
    from spodgt.compiled import announced
    from spodgt.experiment import value_of
    from spodgt.record.folder import CHECKPOINT
    from spodgt.training.display import Display
    from spodgt.training.loggers import TensorBoard

    if keeping.resume and main and not (folder / CHECKPOINT).exists():
        print(f"spodgt: no checkpoint in {folder} yet; beginning at round 0.", file=sys.stderr)
    display = Display(console) if main and not keeping.as_json else None
    figures.prepare()
    callbacks = [TensorBoard(folder / "tensorboard")] if keeping.tensorboard and main else []
    with no_divergence_warnings(), display or nullcontext(), announced(_compiling if main else lambda: None):
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


def _compiling() -> None:
    print("spodgt: compiling for this machine, once; takes some ten seconds.", file=sys.stderr)


def free_folder(parent: Path, name: str, resume: bool) -> Path:
    """The next free folder; the last one there is, to resume."""
    names = (parent / (name if n == 1 else f"{name}-{n}") for n in range(1, 10**6))
    last = None
    for folder in names:
        if not (folder / "config.toml").exists():
            if resume and last is None:
                raise InvalidInput(f"--resume found no run in {folder}; give its folder with --out.")
            return last if resume and last else folder
        last = folder
    raise InvalidInput(f"{parent} is full of runs called {name}; give a folder with --out.")


def results_table(result: Record) -> Table:
    """The end of a comparison, best first; 80 columns hold it."""
    known = result.judged == "accuracy"
    caption = "accuracy: mean over clients, of the average model, of the worst client"
    table = plain_table(caption=caption if known else None)
    table.add_column("method", overflow="fold")
    rows = result.summary().sort_values("accuracy" if known else "loss", ascending=not known)
    more = [name for name in result.scores if name in rows][:1]  # such as perplexity; one fits
    quality = ("mean", "± σ", "average", "worst") if known else ("loss", *more)
    for heading in (*quality, "rounds", "gradients", "messages"):
        table.add_column(heading, justify="right", no_wrap=True)
    counts = result.participation.groupby("algorithm")[["gradients", "messages"]].sum().to_dict("index")
    diverged = {each.algorithm for each in result.diverged}
    for row in rows.to_dict("records"):
        cells = [f"{row[name]:.4g}" for name in ("loss", *more)]
        if known:
            spread = f"{row['accuracy_std']:.3f}" if row["seeds"] > 1 else ""
            cells = [f"{row[key]:.3f}" for key in ("accuracy", "accuracy_average", "accuracy_worst")]
            cells.insert(1, spread)
        work = [short(count) for count in counts.get(row["name"], {}).values()] or ["–", "–"]
        name = f"{row['name']} (diverged)" if row["name"] in diverged else row["name"]
        table.add_row(name, *cells, f"{row['rounds']:,.0f}", *work)
    return table


def short(count: int) -> str:
    """At most seven characters: 999,999, 12.3M, 4.5G."""
    for unit, size in (("G", 10**9), ("M", 10**6)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return f"{count:,}"
