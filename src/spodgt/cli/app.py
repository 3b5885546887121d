"""The application object, and the options and helpers that commands share.

Commands import what they need inside their functions: `spodgt --help` loads neither torch nor
pandas.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from spodgt.errors import InvalidInput

if TYPE_CHECKING:
    from spodgt.experiment import Experiment


Function = TypeVar("Function", bound=Callable[..., Any])


class _Command(TyperCommand):
    """A command whose help shows no type beside --help."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option --help; its empty metavar hides the type `bool`, as in `flag`."""
        return _without_type(super().get_help_option(ctx))


class _Group(TyperGroup):
    """A group of commands whose help shows no type beside --help."""

    def get_help_option(self, ctx: Any) -> Any:
        """The option --help, as of a command."""
        return _without_type(super().get_help_option(ctx))


def _without_type(option: Any) -> Any:
    if option is not None:
        option.metavar = ""
    return option


class Application(typer.Typer):
    """A group of commands; all of them show flags without a type."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=_Group, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Function], Function]:
        """As `typer.Typer.command`.

        Args:
            name: Of the command; by default that of the function.
            options: Of typer.
        """
        return super().command(name, **{"cls": _Command, **options})


app = Application(
    help="Decentralized federated learning over directed graphs, with clients and links that are "
    "only intermittently available.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


INTERRUPTED = 130  # exit code after Ctrl-C, as of shells and typer


class Interrupted(Exception):
    """The command was interrupted and saved its work; the message describes how to continue."""


def _print_version(requested: bool) -> None:
    if requested:
        print(f"spodgt {metadata.version('spodgt')}")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version.",
            metavar="",
            callback=_print_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Options of `spodgt` without a command."""


def flag(name: str, help_text: str) -> Any:
    """An option without a value; its empty metavar hides the type `bool` in the help."""
    return typer.Option(name, help=help_text, metavar="")


def text_option(help_text: str, metavar: str = "NUMBER") -> Any:
    """An option that is read as text; the config checks it, so that the error names its key."""
    return typer.Option(help=help_text, metavar=metavar)


ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="A TOML file; missing keys have their defaults.")
]
OutOption = Annotated[
    Path | None, typer.Option(help="Folder for results. [dim]default: runs/NAME, numbered[/]")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Set any config key: --set network.radius=0.6", metavar="KEY=VALUE"),
]
QuietOption = Annotated[bool, flag("--quiet", "Show no progress.")]
JsonOption = Annotated[bool, flag("--json", "Print JSON.")]
ResumeOption = Annotated[bool, flag("--resume", "Continue the run in --out.")]


@dataclass(frozen=True)
class ConfigOptions:
    """Options that change an experiment; each sets a key of the config."""

    methods: Annotated[str | None, text_option("Methods, comma-separated.", "NAMES")] = None
    seeds: Annotated[str | None, text_option("Number of seeds, or a list: [0, 3, 7]")] = None
    delay: Annotated[str | None, text_option("Stop before this delay.")] = None
    rounds: Annotated[str | None, text_option("Stop after this many rounds.")] = None
    epochs: Annotated[str | None, text_option("Stop after so many passes over the data.")] = None
    seconds: Annotated[str | None, text_option("Stop after this much virtual time.")] = None
    patience: Annotated[
        str | None, text_option("Stop a run after this many evaluations without a better value.")
    ] = None
    keep: Annotated[str | None, text_option("best: keep the best models, too.", "best")] = None
    labels_per_client: Annotated[
        str | None, text_option("Number of classes per client; 10 is IID.")
    ] = None
    device: Annotated[str | None, text_option("cpu, cuda or cuda:1.", "DEVICE")] = None
    engine: Annotated[str | None, text_option("auto, or plain: no compiled loops.", "NAME")] = None
    problem: Annotated[
        str | None, text_option("A model and data of your own: problem.py:FUNCTION.", "CODE")
    ] = None
    assign: SetOption = None

    def config_changes(self) -> dict[str, object]:
        """The options by dotted config keys; the value None removes a key."""
        with fast_imports():
            from spodgt.experiment import value_of

        changes: dict[str, object] = {}
        if self.methods is not None:
            changes["run.methods"] = [name.strip() for name in self.methods.split(",")]
        if self.seeds is not None:
            changes["run.seeds"] = value_of(self.seeds)
        changes |= self._stop_conditions()
        if self.patience is not None:
            changes["run.stop_when.patience"] = value_of(self.patience)
        if self.keep is not None:
            changes["run.keep"] = self.keep
        if self.labels_per_client is not None:
            changes["problem.partition.kind"] = "labels-per-client"
            changes["problem.partition.labels"] = value_of(self.labels_per_client)
        if self.problem is not None:
            changes["problem.kind"] = "python"
            changes["problem.build"] = self.problem
        if self.device is not None:
            changes["run.device"] = self.device
        if self.engine is not None:
            changes["run.engine"] = self.engine
        return changes | self._assignments()

    def _assignments(self) -> dict[str, object]:
        """The pairs of --set."""
        from spodgt.experiment import value_of

        changes: dict[str, object] = {}
        for pair in self.assign or []:
            key, equals, text = pair.partition("=")
            if not equals:
                raise InvalidInput(f"--set {pair!r} must be KEY=VALUE, such as network.radius=0.6.")
            changes[key.strip()] = value_of(text.strip())
        return changes

    def _stop_conditions(self) -> dict[str, object]:
        """Stop conditions replace those of the config, unless both rounds and delay are given."""
        from spodgt.experiment import value_of

        options = {
            "rounds": self.rounds,
            "epochs": self.epochs,
            "delay": self.delay,
            "seconds": self.seconds,
        }
        given = {key: text for key, text in options.items() if text is not None}
        changes: dict[str, object] = {}
        if given and not ("rounds" in given and "delay" in given):
            changes = {f"run.{key}": None for key in options}
        for key, text in given.items():
            changes[f"run.{key}"] = value_of(text)
        return changes


def load_experiment(config: Path | None, changes: Mapping[str, object]) -> Experiment:
    """The experiment of a config file, or the default experiment, with some keys changed."""
    from spodgt.experiment import Experiment

    experiment = Experiment.read(config) if config else Experiment()
    return experiment.override(changes)


@contextmanager
def fast_imports() -> Iterator[None]:
    """Disable garbage collection during imports, which saves a fifth of their time.

    Imports create a million objects and no garbage; these objects are frozen, so that later
    collections skip them. Ctrl-C ends the process at once, because half-imported libraries would
    raise errors of their own.
    """
    gc.disable()
    previous_handler = None
    if threading.current_thread() is threading.main_thread():
        previous_handler = signal.signal(signal.SIGINT, _exit_at_once)
    try:
        yield
    finally:
        if previous_handler is not None:
            signal.signal(signal.SIGINT, previous_handler)
        gc.freeze()
        gc.enable()


def _exit_at_once(*_: object) -> None:
    print_message("stopped.")
    sys.stderr.flush()
    os._exit(INTERRUPTED)


def print_message(text: str) -> None:
    """Print an error, a warning or a remark to standard error."""
    print(f"spodgt: {text}", file=sys.stderr)


def numbered_folders(folder: Path) -> Iterator[Path]:
    """FOLDER, FOLDER-2, FOLDER-3, … without end."""
    yield folder
    for number in count(2):
        yield folder.with_name(f"{folder.name}-{number}")


def parse_seed(text: str) -> int:
    """The value of --seed."""
    if not (text.isascii() and text.isdecimal() and int(text) < 2**63):
        raise InvalidInput(
            f"--seed must be a whole number of at least 0, got {text[:40]!r}; use --seed 0."
        )
    return int(text)


def plain_table(caption: str | None = None, *, show_header: bool = True) -> Table:
    """A table without a frame, which leaves more columns of the terminal to its cells."""
    return Table(
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        caption=caption,
        caption_justify="left",
        show_header=show_header,
    )
