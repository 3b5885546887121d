"""`spodgt compare` and `spodgt run`."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from spodgt.cli.app import ConfigOption, JsonOption, OutOption, ResumeOption, SetOption, app, plain_table
from spodgt.errors import InvalidInput


def _checked_later(text: str, metavar: str = "NUMBER") -> Any:
    """An option taken as text: the config checks it, so that the error names its key."""
    return typer.Option(help=text, metavar=metavar)


SeedsOption = Annotated[Optional[str], _checked_later("How many seeds, or which: [0, 3, 7]")]  # noqa: UP045
DelayOption = Annotated[Optional[str], _checked_later("Stop before this delay.")]  # noqa: UP045
RoundsOption = Annotated[Optional[str], _checked_later("Stop after this many rounds.")]  # noqa: UP045
LabelsOption = Annotated[Optional[str], _checked_later("Classes each client holds; 10 is IID.")]  # noqa: UP045
DeviceOption = Annotated[Optional[str], _checked_later("cpu, cuda, mps, …", "DEVICE")]  # noqa: UP045
MethodsOption = Annotated[Optional[str], _checked_later("Methods, comma-separated.", "NAMES")]  # noqa: UP045
SaveOption = Annotated[str, _checked_later("Seconds between checkpoints.")]
BoardOption = Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard event files.")]


@app.command(epilog="Example: [bold]spodgt compare --labels-per-client 10 --seeds 3 --out runs/iid[/]")
def compare(
    config: ConfigOption = None,
    out: OutOption = None,
    methods: MethodsOption = None,
    seeds: SeedsOption = None,
    delay: DelayOption = None,
    rounds: RoundsOption = None,
    labels_per_client: LabelsOption = None,
    device: DeviceOption = None,
    assign: SetOption = None,
    resume: ResumeOption = False,
    checkpoint_every: SaveOption = "30",
    tensorboard: BoardOption = False,
    as_json: JsonOption = False,
) -> None:
    """Compare methods on the same networks, clients and data: a table, two pictures, a folder of results."""
    from spodgt.experiment import Experiment

    chosen = Experiment.read(config) if config else Experiment()
    changes = changes_of(
        methods=methods,
        seeds=seeds,
        delay=delay,
        rounds=rounds,
        labels_per_client=labels_per_client,
        device=device,
        assign=assign,
    )
    carry_out(chosen.override(changes), out, "compare", resume, checkpoint_every, as_json, tensorboard)


@app.command(epilog="Example: [bold]spodgt run experiment.toml --out runs/mine[/]")
def run(
    config: Annotated[Path, typer.Argument(help="A TOML file.")],
    out: OutOption = None,
    methods: MethodsOption = None,
    seeds: SeedsOption = None,
    delay: DelayOption = None,
    rounds: RoundsOption = None,
    labels_per_client: LabelsOption = None,
    device: DeviceOption = None,
    assign: SetOption = None,
    resume: ResumeOption = False,
    checkpoint_every: SaveOption = "30",
    tensorboard: BoardOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run the experiment of a config file."""
    from spodgt.experiment import Experiment

    changes = changes_of(
        methods=methods,
        seeds=seeds,
        delay=delay,
        rounds=rounds,
        labels_per_client=labels_per_client,
        device=device,
        assign=assign,
    )
    chosen = Experiment.read(config).override(changes)
    carry_out(chosen, out, config.stem, resume, checkpoint_every, as_json, tensorboard)


def changes_of(
    *,
    methods: str | None = None,
    seeds: str | None = None,
    delay: str | None = None,
    rounds: str | None = None,
    labels_per_client: str | None = None,
    device: str | None = None,
    assign: list[str] | None = None,
) -> dict[str, Any]:
    """Command-line options as changes of config keys."""
    from spodgt.experiment import value_of

    changes: dict[str, Any] = {}
    if methods is not None:
        changes["run.methods"] = [name.strip() for name in methods.split(",")]
    if seeds is not None:
        changes["run.seeds"] = value_of(seeds)
    if (delay is None) != (rounds is None):  # one given alone replaces the other of the config
        changes |= {"run.delay": None, "run.rounds": None}
    if rounds is not None:
        changes["run.rounds"] = value_of(rounds)
    if delay is not None:
        changes["run.delay"] = value_of(delay)
    if labels_per_client is not None:
        labels = value_of(labels_per_client)
        changes["problem.partition"] = {"kind": "labels-per-client", "labels": labels}
    if device is not None:
        changes["run.device"] = device
    for pair in assign or []:
        key, equals, text = pair.partition("=")
        if not equals:
            raise InvalidInput(f"--set {pair!r} must be KEY=VALUE, such as network.radius=0.6.")
        changes[key.strip()] = value_of(text.strip())
    return changes


def carry_out(
    experiment: Any,
    out: Path | None,
    name: str,
    resume: bool,
    save_every: str,
    as_json: bool,
    tensorboard: bool = False,
) -> None:
    from spodgt import figures, report
    from spodgt.compiled import announced
    from spodgt.experiment import value_of
    from spodgt.record.folder import CHECKPOINT
    from spodgt.report import tensorboard as board
    from spodgt.runtimes.distributed.group import main_process, restarted
    from spodgt.theory import section
    from spodgt.training import run

    if tensorboard:
        board.check()
    main = main_process()  # the one of several that writes and shows
    again = restarted() and (Path("runs") / name / "config.toml").exists()
    folder = out or (free_folder(Path("runs"), name, resume or again) if main else Path("runs"))
    console = Console(stderr=as_json)
    if resume and main and not (folder / CHECKPOINT).exists():
        print(f"spodgt: no checkpoint in {folder} yet; beginning at round 0.", file=sys.stderr)
    display = None if as_json or not main else Display(console)
    figures.prepare()
    with display or nullcontext(), announced(_compiling if main else lambda: None):
        result = run(
            experiment,
            out=folder,
            resume=resume,
            checkpoint_every=value_of(save_every),
            progress=display.show if display else None,
        )
    if not main:
        raise typer.Exit(0 if result.complete else 1)
    if len(result.frame):
        metric = "accuracy" if result.frame["accuracy"].notna().any() else "loss"
        result.plot(folder / f"{metric}.png", metric)
        result.plot_network(folder / "network.png")
        found = section(result.config, result.frame)
        if found:
            result.prediction = found.as_dict()
            result.write(folder)
        report.write(folder)
        if tensorboard:
            board.write(result.frame, folder / "tensorboard")
    if as_json:
        print(json.dumps(result.as_dict() | {"out": str(folder)}, indent=2))
    else:
        console.print(results_table(result))
        console.print(f"Results, pictures and report.html: {folder}", soft_wrap=True, highlight=False)
    for stop in result.diverged:
        print(f"spodgt: warning: {stop}", file=sys.stderr)
    if not result.complete:
        print(f"spodgt: stopped early; go on with --out {folder} --resume.", file=sys.stderr)
        raise typer.Exit(1)


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


class Display:
    """A progress bar for every method: rounds, delay, accuracy, time left; one line of 80 columns each."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            TextColumn(
                "{task.description}", table_column=Column(width=18, no_wrap=True, overflow="ellipsis")
            ),
            BarColumn(bar_width=10),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True)),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
        )
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.tasks:
            self.progress.stop()

    def show(self, glimpse: Any) -> None:
        self.progress.start()  # not before there is something to show: bad input is said on a clean line
        if glimpse.algorithm not in self.tasks:
            self.tasks[glimpse.algorithm] = self.progress.add_task(glimpse.algorithm, total=1.0, note="")
        accuracy = f"acc {glimpse.accuracy:.3f}" if glimpse.accuracy == glimpse.accuracy else ""
        note = f"k {glimpse.k:<7,} delay {glimpse.delay:<7,.0f} {accuracy}"
        self.progress.update(self.tasks[glimpse.algorithm], completed=glimpse.fraction, note=note)


def results_table(result: Any) -> Table:
    """The end of a comparison, best first; 80 columns hold it."""
    known = result.frame["accuracy"].notna().any()
    caption = "accuracy: mean over clients, of the average model, of the worst client"
    table = plain_table(caption=caption if known else None)
    table.add_column("method", overflow="fold")
    quality = ("mean", "± σ", "average", "worst") if known else ("loss",)
    for heading in (*quality, "rounds", "gradients", "messages"):
        table.add_column(heading, justify="right", no_wrap=True)
    done = result.participation
    counts = done.groupby("algorithm")[["gradients", "messages"]].sum()
    stopped = {stop.algorithm for stop in result.diverged}
    rows = result.summary().sort_values("accuracy" if known else "loss", ascending=not known)
    for row in rows.itertuples():
        spread = f"{row.accuracy_std:.3f}" if row.seeds > 1 else ""
        shown = [f"{row.accuracy:.3f}", spread, f"{row.accuracy_average:.3f}", f"{row.accuracy_worst:.3f}"]
        work = [short(counts.loc[row.name, c]) if row.name in counts.index else "–" for c in counts]
        name = f"{row.name} (diverged)" if row.name in stopped else row.name
        table.add_row(name, *(shown if known else [f"{row.loss:.4g}"]), f"{row.rounds:,.0f}", *work)
    return table


def short(count: int) -> str:
    """At most seven characters: 999,999, 12.3M, 4.5G."""
    for unit, size in (("G", 10**9), ("M", 10**6)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return f"{count:,}"
