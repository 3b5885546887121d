"""`spodgt tune`."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from spodgt.cli.app import (
    ConfigOption,
    ConfigOptions,
    JsonOption,
    app,
    load_experiment,
    plain_table,
    print_message,
    text_option,
)
from spodgt.cli.option_groups import with_option_groups
from spodgt.cli.sweep import SweepExecutionOptions, exit_interrupted
from spodgt.errors import InvalidInput

if TYPE_CHECKING:
    from spodgt.experiment import Experiment
    from spodgt.sweeps.tune import Search, Tuned


@dataclass(frozen=True)
class SearchOptions:
    """Options for the search of step sizes."""

    candidates: Annotated[
        str, text_option("Number of step sizes that each method starts with.")
    ] = "6"
    tuning_seeds: Annotated[str, text_option("Number of seeds for each candidate.")] = "5"
    vary: Annotated[
        str | None, text_option("Another field and its values: momentum=[0.0, 0.9]", "KEY=VALUES")
    ] = None

    def search(self) -> Search:
        """The options as a search."""
        from spodgt.experiment import value_of
        from spodgt.sweeps.tune import Search

        vary = {}
        if self.vary:
            key, equals, values = self.vary.partition("=")
            if not equals:
                raise InvalidInput(
                    f"--vary {self.vary!r} must be KEY=VALUES, such as momentum=[0.0, 0.9]."
                )
            vary[key.strip()] = value_of(values.strip())
        return Search(value_of(self.candidates), value_of(self.tuning_seeds), vary)


@app.command(
    epilog="Example: [bold]spodgt tune --labels-per-client 10 --vary momentum=\\[0.0,0.9] "
    "--out runs/tune[/]"
)
@with_option_groups
def tune(
    config: ConfigOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for results; finished runs in it are not run again. "
            "[dim]default: runs/tune[/]"
        ),
    ] = None,
    as_json: JsonOption = False,
    *,
    search: SearchOptions,
    options: SweepExecutionOptions,
    changes: ConfigOptions,
) -> None:
    """Find the best step size of each method by short runs.

    Prints a table and writes a figure and a config with the tuned methods.
    """
    folder = out or Path("runs") / "tune"
    experiment = load_experiment(config, changes.config_changes())
    tuned = run_search(experiment, folder, search.search(), options, as_json or options.quiet)
    if as_json:
        print(json.dumps(tuned.as_dict() | {"out": str(folder)}, indent=2))
    else:
        console = Console()
        console.print(_tuned_table(tuned))
        console.print(f"Table, picture and tuned.toml: {folder}", soft_wrap=True, highlight=False)
    for method, reason in tuned.failures.items():
        print_message(f"error: {method}: {reason}")
    if tuned.failures:
        raise typer.Exit(1)


def run_search(
    experiment: Experiment,
    folder: Path,
    search: Search,
    options: SweepExecutionOptions,
    quiet: bool,
) -> Tuned:
    """Run a search for step sizes, with progress bars unless `quiet`."""
    from spodgt.sweeps.tune import tune_experiment
    from spodgt.training.progress import create_display

    arguments = options.execution_arguments()
    display = None if quiet else create_display(Console(stderr=True))
    try:
        with display or nullcontext():
            return tune_experiment(
                experiment,
                folder,
                search,
                fresh=not options.resume,
                progress=display.move if display else None,
                **arguments,
            )
    except KeyboardInterrupt:
        exit_interrupted(folder)


def _tuned_table(tuned: Tuned) -> Table:
    """Each method with its best values, best first."""
    from spodgt.record import statistics
    from spodgt.sweeps.tune import BUDGETS

    rows = tuned.rows()
    headings = [key for key in rows[0] if key not in ("method", "sigma")]
    table = plain_table(
        caption=f"{tuned.metric}: after {BUDGETS[-1]:.0%} of a run, on {tuned.chosen_on}\n"
        "stable below: theory's limit for one draw"
    )
    table.add_column("method", overflow="fold")
    for heading in headings:
        table.add_column(heading.replace("_", " "), justify="right", overflow="fold")
    sign = statistics.better(tuned.metric)
    for row in sorted(rows, key=lambda row: -sign * row[tuned.metric]):
        table.add_row(row["method"], *(_format(row[key]) for key in headings))
    return table


def _format(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value or "–")
