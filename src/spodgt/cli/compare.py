"""`spodgt compare` and `spodgt run`."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from spodgt.cli.app import (
    INTERRUPTED,
    ConfigOption,
    ConfigOptions,
    Interrupted,
    JsonOption,
    OutOption,
    QuietOption,
    ResumeOption,
    app,
    fast_imports,
    flag,
    load_experiment,
    numbered_folders,
    plain_table,
    print_message,
    text_option,
)
from spodgt.cli.option_groups import with_option_groups
from spodgt.errors import InvalidInput, no_divergence_warnings

if TYPE_CHECKING:
    import pandas as pd

    from spodgt.experiment import Experiment
    from spodgt.record import Record
    from spodgt.training.api import ProgressOption
    from spodgt.training.result import Result

_RUNS = Path("runs")
_MIN_TABLE_WIDTH = 72  # a narrower terminal wraps lines, which loses no column


@dataclass(frozen=True)
class OutputOptions:
    """Options for the folder and the display of a run."""

    out: OutOption = None
    resume: ResumeOption = False
    checkpoint_every: Annotated[str, text_option("Seconds between checkpoints.")] = "30"
    workers: Annotated[
        str | None,
        text_option("Processes for independent runs. [dim]default: one per core if faster[/]"),
    ] = None
    tensorboard: Annotated[bool, flag("--tensorboard", "Also write TensorBoard event files.")] = (
        False
    )
    quiet: QuietOption = False
    as_json: JsonOption = False

    def config_changes(self) -> dict[str, object]:
        """The options that are config keys, by their dotted names."""
        from spodgt.experiment import value_of

        if self.workers is None:
            return {}
        return {"run.workers": value_of(self.workers)}


@app.command(
    epilog="Example: [bold]spodgt compare --labels-per-client 10 --seeds 3 --out runs/iid[/]"
)
@with_option_groups
def compare(config: ConfigOption = None, *, output: OutputOptions, changes: ConfigOptions) -> None:
    """Compare methods on the same networks, clients and data.

    Prints a table and writes results, figures and report.html to a folder.
    """
    experiment = load_experiment(config, changes.config_changes() | output.config_changes())
    run_and_report(experiment, "compare", output)


@app.command(epilog="Example: [bold]spodgt run experiment.toml --out runs/mine[/]")
@with_option_groups
def run(
    config: Annotated[Path, typer.Argument(help="A TOML file.")],
    *,
    output: OutputOptions,
    changes: ConfigOptions,
) -> None:
    """Run the experiment of a config file."""
    experiment = load_experiment(config, changes.config_changes() | output.config_changes())
    run_and_report(experiment, config.stem, output)


def run_and_report(experiment: Experiment, name: str, output: OutputOptions) -> None:
    """Run an experiment, write figures and a report to its folder, and print the results.

    Of several processes (torchrun), only the main process writes and prints.
    """
    with fast_imports():
        from spodgt.runtimes.distributed.process_group import main_process, restarted

    is_main = main_process()
    folder = output.out or _RUNS
    if output.out is None and is_main:
        continues = restarted() and (_RUNS / name / "config.toml").exists()
        folder = free_folder(_RUNS, name, output.resume or continues)
    console = Console(stderr=output.as_json)
    result = _run(experiment, folder, output, console, is_main)
    if not is_main:
        raise typer.Exit(0 if result.complete else INTERRUPTED)
    if len(result.frame):
        _write_figures_and_report(experiment, result, folder)
    _print_results(result, folder, output, console)
    if not result.complete:
        raise Interrupted(f"interrupted; continue with --out {folder} --resume.")


def _print_results(result: Result, folder: Path, output: OutputOptions, console: Console) -> None:
    if output.as_json:
        print(json.dumps(result.as_dict() | {"out": str(folder)}, indent=2))
    else:
        Console(width=max(console.width, _MIN_TABLE_WIDTH)).print(results_table(result))
        text = f"Results, pictures and report.html: {folder}"
        console.print(text, soft_wrap=True, highlight=False)
    for warning in (*result.diverged, *result.stalled):
        print_message(f"warning: {warning}")


def _run(
    experiment: Experiment, folder: Path, output: OutputOptions, console: Console, is_main: bool
) -> Result:
    """Run the experiment; only the main process checks, shows and logs."""
    from spodgt import figures, training
    from spodgt.experiment import value_of
    from spodgt.training.loggers import TensorBoard

    if output.resume and is_main:
        _check_resume(folder)
    callbacks = []
    if output.tensorboard and is_main:
        callbacks.append(TensorBoard(folder / "tensorboard"))
    is_shown = is_main and not output.quiet
    figures.preload()
    with no_divergence_warnings(), _display(console, output.as_json, is_shown) as progress:
        return training.run(
            experiment,
            out=folder,
            resume=output.resume,
            checkpoint_every=value_of(output.checkpoint_every),
            progress=progress,
            callbacks=callbacks,
        )


@contextmanager
def _display(console: Console, as_json: bool, is_shown: bool) -> Iterator[ProgressOption]:
    """Display the progress and compilations in this block; beside JSON, compilations only."""
    from spodgt.engine import announce_compilation
    from spodgt.training.progress import COMPILING, create_display

    if not is_shown:
        yield False
    elif as_json:
        with announce_compilation(partial(print, COMPILING, file=sys.stderr)):
            yield False
    else:
        display = create_display(console)
        with display, announce_compilation(display.announce_compilation):
            yield display.show


def _check_resume(folder: Path) -> None:
    """Reject a folder without a run; a run without a checkpoint is mentioned."""
    from spodgt.record.run_folder import CHECKPOINT

    if not (folder / "config.toml").exists():
        raise InvalidInput(
            f"--resume found no run in --out {folder}; check the folder, "
            "or drop --resume to start a new run."
        )
    if not (folder / CHECKPOINT).exists():
        print_message(f"no checkpoint in {folder} yet; starting at round 0.")


def _write_figures_and_report(experiment: Experiment, result: Result, folder: Path) -> None:
    """Write figures and report.html; if the optimum is known, also the prediction of the theory."""
    from spodgt import report

    if "distance" in result.frame:
        from spodgt.theory import prediction

        result.prediction = prediction(result.draws, experiment.methods, result.frame)
        result.write(folder)
    result.plot(folder / f"{result.primary_metric}.png")
    result.plot_network(folder / "network.png")
    report.write(folder)


def free_folder(parent: Path, name: str, resume: bool) -> Path:
    """The first of NAME, NAME-2, … without results; if `resume`, the last one with a run.

    Raises:
        InvalidInput: if there is no run to resume.
    """
    from spodgt.record.run_folder import RUN, other_kind

    last_run = None
    for folder in numbered_folders(parent / name):
        if other_kind(folder, RUN) is not None:
            continue
        if not (folder / "config.toml").exists():
            break
        last_run = folder
    if not resume:
        return folder
    if last_run is None:
        raise InvalidInput(f"--resume found no run in {folder}; give its folder with --out.")
    return last_run


_COST_HEADINGS = {"gradients": "grads", "messages": "msgs"}


def results_table(result: Record) -> Table:
    """The last evaluation of every method, best first, in 80 columns.

    All numbers are means over seeds.
    """
    from spodgt.record import statistics

    summary = result.summary()
    metric = result.primary_metric
    has_accuracy = metric == "accuracy"
    if has_accuracy:
        summary = summary.sort_values("accuracy", ascending=False)
        quality = ["mean", "± σ", "average", "worst"]
    elif metric != "loss":  # without test data that of the validation data
        summary = summary.sort_values(metric, ascending=statistics.better(metric) < 0)
        quality = [metric]
    else:
        summary = summary.sort_values("loss")
        other_scores = [name for name in result.scores if name in summary]
        quality = ["loss", *other_scores[:1]]  # such as perplexity; one fits
    costs = _cost_columns(summary)
    table = plain_table(caption=_caption(result, summary, has_accuracy))
    table.padding = 0  # one space between columns
    table.add_column("method", overflow="fold")
    for heading in (*quality, *(_COST_HEADINGS.get(name, name) for name in costs)):
        table.add_column(heading, justify="right", no_wrap=True)
    diverged = {run.method for run in result.diverged}
    for row in summary.to_dict("records"):
        label = str(row["method"])
        if label in diverged:
            label += " (diverged)"
        if has_accuracy:
            quality_cells = _format_accuracy(row)
        else:
            quality_cells = [f"{row[name]:.4g}" for name in quality]
        cost_cells = [_format_cost(name, row[name]) for name in costs]
        table.add_row(wrap_label(label), *quality_cells, *cost_cells)
    return table


def _format_accuracy(row: Mapping[Hashable, float]) -> list[str]:
    """Mean over clients, σ over seeds, accuracy of the average model, of the worst client."""
    sigma = f"{row['accuracy_std']:.3f}" if row["seeds"] > 1 else ""
    average = f"{row['accuracy_average']:.3f}"
    return [f"{row['accuracy']:.3f}", sigma, average, f"{row['accuracy_worst']:.3f}"]


def _cost_columns(summary: pd.DataFrame) -> list[str]:
    """The columns of costs; those of virtual time and of compression only where they exist."""
    time = "seconds" if "seconds" in summary else "delay"
    costs = ["rounds", time, "gradients", "messages"]
    if "bytes" in summary:
        costs.append("bytes")
    return costs


def _caption(result: Record, summary: pd.DataFrame, has_accuracy: bool) -> str:
    """The meaning of the columns, and remarks on the methods."""
    lines: list[str] = []
    if has_accuracy:
        lines.append("accuracy: mean over clients, of the average model, of the worst client")
    costs = "grads, msgs (gradients, messages) and bytes are of all clients"
    seeds = int(summary["seeds"].max()) if len(summary) else 0
    if seeds > 1:
        costs = f"means of {seeds} seeds; {costs}"
    return "\n".join([*lines, costs, *result.notes()])


def _format_cost(name: str, value: float) -> str:
    from spodgt.record.summary import short_bytes, short_count

    if not math.isfinite(value):
        return "–"
    if name == "bytes":
        return short_bytes(value)
    if name == "seconds":
        return f"{value:.4g}"
    if name in ("gradients", "messages"):
        return short_count(value)
    return f"{value:,.0f}"


def wrap_label(label: str, width: int = 18) -> str:
    """Wrap a method's label at `width` characters, before a layer ("+…") or between words."""
    lines = [""]
    parts: Sequence[str] = re.findall(r"\+?[^+ ]+ ?", label)
    for part in parts:
        if lines[-1] and len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)
