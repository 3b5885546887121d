"""`spodgt compare` and `spodgt run`."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, NoReturn, Optional

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from spodgt.cli.app import ConfigOption, JsonOption, OutOption, ResumeOption, SetOption, app
from spodgt.errors import InvalidInput

SeedsOption = Annotated[Optional[int], typer.Option(help="How many seeds.")]  # noqa: UP045
DelayOption = Annotated[Optional[float], typer.Option(help="Stop before this delay.")]  # noqa: UP045
RoundsOption = Annotated[Optional[int], typer.Option(help="Stop after this many rounds.")]  # noqa: UP045
LabelsOption = Annotated[Optional[int], typer.Option(help="Classes each client holds; 10 is IID.")]  # noqa: UP045
DeviceOption = Annotated[Optional[str], typer.Option(help="cpu, cuda, mps, …")]  # noqa: UP045
MethodsOption = Annotated[Optional[str], typer.Option(help="Methods, comma-separated.")]  # noqa: UP045
SaveOption = Annotated[float, typer.Option(help="Seconds between checkpoints.")]


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
    checkpoint_every: SaveOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Compare methods on the same networks, clients and data: a table, two pictures, a folder of results."""
    from spodgt.config import Config

    chosen = Config.read(config) if config else Config()
    changes = changes_of(
        methods=methods,
        seeds=seeds,
        delay=delay,
        rounds=rounds,
        labels_per_client=labels_per_client,
        device=device,
        assign=assign,
    )
    carry_out(chosen.override(changes), out, "compare", resume, checkpoint_every, as_json)


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
    checkpoint_every: SaveOption = 30.0,
    as_json: JsonOption = False,
) -> None:
    """Run the experiment of a config file."""
    from spodgt.config import Config

    changes = changes_of(
        methods=methods,
        seeds=seeds,
        delay=delay,
        rounds=rounds,
        labels_per_client=labels_per_client,
        device=device,
        assign=assign,
    )
    carry_out(Config.read(config).override(changes), out, config.stem, resume, checkpoint_every, as_json)


def changes_of(
    *,
    methods: str | None = None,
    seeds: int | None = None,
    delay: float | None = None,
    rounds: int | None = None,
    labels_per_client: int | None = None,
    device: str | None = None,
    assign: list[str] | None = None,
) -> dict[str, Any]:
    """Command-line options as changes of config keys."""
    changes: dict[str, Any] = {}
    if methods is not None:
        changes["run.methods"] = [name.strip() for name in methods.split(",")]
    if seeds is not None:
        changes["run.seeds"] = seeds
    if rounds is not None and delay is None:
        changes |= {"run.delay": None, "run.rounds": rounds}
    elif rounds is not None:
        changes["run.rounds"] = rounds
    if delay is not None:
        changes["run.delay"] = delay
    if labels_per_client is not None:
        changes["problem.partition"] = {"kind": "labels-per-client", "labels": labels_per_client}
    if device is not None:
        changes["run.device"] = device
    for pair in assign or []:
        key, equals, text = pair.partition("=")
        if not equals:
            raise InvalidInput(f"--set {pair!r} must be KEY=VALUE, such as network.radius=0.6.")
        changes[key.strip()] = _value(text.strip())
    return changes


def _value(text: str) -> Any:
    """TOML if it reads as TOML, else the text itself: 0.6, true, [1, 2], beta."""
    from spodgt.config import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def carry_out(config: Any, out: Path | None, name: str, resume: bool, save_every: float, as_json: bool) -> None:
    from spodgt.config import build
    from spodgt.recorder import summary_json
    from spodgt.training import compare

    signal.signal(signal.SIGTERM, _interrupt)
    folder = out or free_folder(Path("runs"), name, resume)
    experiment = build(config)
    console = Console(stderr=as_json)
    display = Display(console) if not as_json else None
    with display or nullcontext():
        result = compare(
            experiment.methods,
            experiment.problem,
            experiment.network,
            experiment.participation,
            **experiment.options,
            out=folder,
            resume=resume,
            checkpoint_every=save_every,
            progress=display and display.show,
        )
    if len(result.frame):
        metric = "accuracy" if result.frame["accuracy"].notna().any() else "loss"
        result.plot(folder / f"{metric}.png", metric)
        result.plot_network(folder / "network.png")
    if as_json:
        print(json.dumps(summary_json(result) | {"out": str(folder)}, indent=2))
    else:
        console.print(results_table(result))
        console.print(f"Results, pictures and checkpoint: [bold]{folder}[/]")
    for stop in result.stopped:
        print(f"spodgt: warning: {stop}", file=sys.stderr)
    if not result.complete:
        print(f"spodgt: stopped early; go on with --out {folder} --resume.", file=sys.stderr)
        raise typer.Exit(1)


def _interrupt(*_: Any) -> NoReturn:
    raise KeyboardInterrupt


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
    """A progress bar for every method: rounds, delay, accuracy, time left."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            TextColumn("{task.description:<18}"),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
        )
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> Display:
        self.progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.progress.stop()

    def show(self, glimpse: Any) -> None:
        if glimpse.algorithm not in self.tasks:
            self.tasks[glimpse.algorithm] = self.progress.add_task(glimpse.algorithm, total=1.0, note="")
        accuracy = f"accuracy {glimpse.accuracy:.3f}" if glimpse.accuracy == glimpse.accuracy else ""
        note = f"round {glimpse.k:>6,}  delay {glimpse.delay:>7,.0f}  {accuracy}"
        self.progress.update(self.tasks[glimpse.algorithm], completed=glimpse.fraction, note=note)


def results_table(result: Any) -> Table:
    """The end of a comparison, best first."""
    table = Table(title="at the end of every run (accuracy: mean over clients, average model, worst client)", title_justify="left")
    known = result.frame["accuracy"].notna().any()
    measure = "accuracy" if known else "loss"
    quality = ("± σ", "average", "worst") if known else ()
    for heading in ("method", measure, *quality, "rounds", "gradients", "messages"):
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    done = result.participation
    counts = done.groupby("algorithm")[["gradients", "messages"]].sum() if len(done) else None
    rows = result.summary().sort_values(measure, ascending=not known)
    for row in rows.itertuples():
        spread = f"{row.accuracy_std:.3f}" if row.seeds > 1 else ""
        shown = [f"{row.accuracy:.3f}", spread, f"{row.accuracy_average:.3f}", f"{row.accuracy_worst:.3f}"]
        here = counts is not None and row.name in counts.index
        work = [f"{int(counts.loc[row.name, c]):,}" if here else "–" for c in ("gradients", "messages")]  # type: ignore[union-attr]
        table.add_row(row.name, *(shown if known else [f"{row.loss:.4g}"]), f"{row.rounds:,.0f}", *work)
    return table
