"""`spodgt simulate`: a training script at several sites, as processes on this machine."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from spodgt.cli.app import (
    ConfigOption,
    ConfigOptions,
    JsonOption,
    OutOption,
    SetOption,
    app,
    load_experiment,
    numbered_folders,
    parse_seed,
    plain_table,
    print_message,
    text_option,
)
from spodgt.cli.option_groups import with_option_groups
from spodgt.cli.peer.app import DEFAULT_CONFIG, peer_extra
from spodgt.errors import Failed, InvalidInput

if TYPE_CHECKING:
    from spodgt.sites.simulate import ScriptRun
    from spodgt.sites.simulation_report import SimulationResult

_RUNS = Path("runs")
_REPORT = "report.html"
_LINE_SECONDS = 10.0  # between two lines of progress where there is no terminal
_DEFAULT_CLIENTS = 4


@dataclass(frozen=True)
class SiteOptions:
    """The sites of a simulation, and what limits them."""

    clients: Annotated[str | None, text_option("Number of sites.")] = None
    graph: Annotated[str | None, text_option("Kind of graph.", "NAME")] = None
    p: Annotated[str | None, text_option("Probability that a site computes in a block.")] = None
    p_hat: Annotated[
        str | None, text_option("Probability that a link is used at the end of a block.")
    ] = None
    seed: Annotated[str, text_option("Seed of the graph; every site gets a seed of its own.")] = "0"
    seconds: Annotated[float | None, typer.Option(help="End all sites after this time.")] = None
    assign: SetOption = None

    def config_changes(self) -> dict[str, object]:
        """The options by dotted config keys."""
        from spodgt.experiment import value_of

        changes: dict[str, object] = {"run.seeds": [parse_seed(self.seed)]}
        if self.graph is not None:
            changes["network.kind"] = self.graph
        if self.clients is not None:
            changes["network.clients"] = value_of(self.clients)
        if self.p is not None or self.p_hat is not None:
            changes["participation.kind"] = "bernoulli"
            changes["participation.p"] = _probability("--p", self.p)
            changes["participation.p_hat"] = _probability("--p-hat", self.p_hat)
        if self.seconds is not None and not self.seconds > 0:
            raise InvalidInput(f"--seconds must be positive, got {self.seconds}; use --seconds 60.")
        return changes | ConfigOptions(assign=self.assign).config_changes()


@app.command(
    epilog="Example: [bold]spodgt simulate train.py --clients 8 --p 0.7 --p-hat 0.8 -- --data "
    "shards/{number}[/]"
)
@with_option_groups
def simulate(
    script: Annotated[Path, typer.Argument(help="A training script that calls spodgt.join.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="Arguments of the script, after --. {name}, {number}, {clients}, {seed} and "
            "{folder} are replaced at each site.",
        ),
    ] = None,
    config: ConfigOption = None,
    out: OutOption = None,
    as_json: JsonOption = False,
    *,
    sites: SiteOptions,
) -> None:
    """Run a script that calls spodgt.join at several sites, as processes on this machine."""
    with peer_extra():
        from spodgt.sites.simulate import SiteProcesses, prepare
        from spodgt.sites.simulation_report import SimulationResult, write_report

    changes = {} if config else DEFAULT_CONFIG | {"network.clients": _DEFAULT_CLIENTS}
    experiment = load_experiment(config, changes | sites.config_changes())
    folder = _free_folder(out, script.stem)
    run = prepare(script, arguments or [], folder, experiment)
    console = Console(stderr=True)
    console.print(f"{len(run.names)} sites, {len(run.manifest.links)} links in {folder}")
    progress = _Progress(run, console)
    with SiteProcesses(run) as processes, progress:
        processes.wait(progress.update, sites.seconds)
    result = SimulationResult.read(run)
    write_report(result, folder / _REPORT)
    if as_json:
        print(json.dumps({**result.to_dict(), "report": str(folder / _REPORT)}, indent=2))
    else:
        _print_result(result, folder / _REPORT)
    if not result.audit_passed:
        problem = "; ".join(result.audit.problems) or f"error {result.audit.error}"
        raise Failed(f"the audit failed: {problem}; see {folder / _REPORT}.")


def _probability(option: str, text: str | None) -> float:
    if text is None:
        return 1.0
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise InvalidInput(
            f"{option} must be a probability above 0 and at most 1, got {text}; use {option} 0.8."
        )
    return value


def _free_folder(out: Path | None, stem: str) -> Path:
    """The folder given, which must not exist; or runs/STEM, with a number if that exists."""
    if out is not None:
        if out.exists():
            raise InvalidInput(f"{out} exists already; give another folder with --out.")
        return out
    return next(folder for folder in numbered_folders(_RUNS / stem) if not folder.exists())


class _Progress:
    """Blocks and scores of the sites while they train, in one line or a line every 10 s."""

    def __init__(self, run: ScriptRun, console: Console) -> None:
        self.run = run
        self.console = console
        self.status = console.status("starting …") if console.is_terminal else None
        self.begun = time.monotonic()
        self.printed = self.begun

    def __enter__(self) -> None:
        if self.status is not None:
            self.status.start()

    def __exit__(self, *_: object) -> None:
        if self.status is not None:
            self.status.stop()

    def update(self) -> None:
        """Show the present state of all sites."""
        if self.status is not None:
            width = shutil.get_terminal_size().columns - 4
            self.status.update(self._line()[:width])
            return
        now = time.monotonic()
        if now - self.printed >= _LINE_SECONDS:
            self.printed = now
            self.console.print(self._line(), soft_wrap=True)

    def _line(self) -> str:
        sites = [self.run.progress(name) for name in self.run.names]
        parts = [f"{time.monotonic() - self.begun:.0f} s"]
        blocks = [site.blocks for site in sites]
        parts.append(f"blocks {min(blocks)} to {max(blocks)}")
        for key in ("loss", "accuracy"):
            values = [getattr(site, key) for site in sites if getattr(site, key) is not None]
            if values:
                parts.append(f"{key} {min(values):.4g} to {max(values):.4g}")
        return ", ".join(parts)


def _print_result(result: SimulationResult, report: Path) -> None:
    table = plain_table()
    for column in ("site", "blocks", "steps", "messages", "MB", "loss", "accuracy"):
        table.add_column(column, justify="left" if column == "site" else "right")
    for site in result.sites:
        progress = site.progress
        counts = [str(progress.blocks), str(progress.steps), str(progress.messages)]
        scores = [_score(progress.loss), _score(progress.accuracy)]
        table.add_row(site.name, *counts, f"{progress.bytes / 1e6:.3g}", *scores)
    console = Console()
    console.print(table)
    error = result.audit.error
    print(f"audit: {'–' if error is None else f'{error:.1e}'}")
    for remark in result.remarks:
        print_message(f"warning: {remark}")
    print(f"report: {report}")


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
