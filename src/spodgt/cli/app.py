"""The application object, and the options that commands share.

Commands import what they need inside their functions: `spodgt --help` loads neither torch nor pandas.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from spodgt.errors import InvalidInput

if TYPE_CHECKING:
    from spodgt.experiment import Experiment

app = typer.Typer(
    help="Decentralized federated learning over directed graphs, when clients and links come and go.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        print(f"spodgt {metadata.version('spodgt')}")
        raise typer.Exit


@app.callback()
def _start(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options of no command."""


ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="A TOML file; omitted keys take their defaults.")
]
OutOption = Annotated[
    Path | None, typer.Option(help="Folder for results. [dim]default: runs/NAME, numbered[/]")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Set any config key: --set network.radius=0.6", metavar="KEY=VALUE"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")]


def unchecked(text: str, metavar: str = "NUMBER") -> Any:
    """An option taken as text: the config checks it, so that the error names its key."""
    return typer.Option(help=text, metavar=metavar)


@dataclass(frozen=True)
class Changes:
    """The options that change an experiment; each stands for a key of the config."""

    methods: Annotated[str | None, unchecked("Methods, comma-separated.", "NAMES")] = None
    seeds: Annotated[str | None, unchecked("How many seeds, or which: [0, 3, 7]")] = None
    delay: Annotated[str | None, unchecked("Stop before this delay.")] = None
    rounds: Annotated[str | None, unchecked("Stop after this many rounds.")] = None
    seconds: Annotated[str | None, unchecked("Stop after this much virtual time.")] = None
    labels_per_client: Annotated[str | None, unchecked("Classes each client holds; 10 is IID.")] = (
        None
    )
    device: Annotated[str | None, unchecked("cpu, cuda or cuda:1.", "DEVICE")] = None
    engine: Annotated[str | None, unchecked("auto, or plain: no compiled loops.", "NAME")] = None
    problem: Annotated[str | None, unchecked("Your own: problem.py:FUNCTION.", "CODE")] = None
    assign: SetOption = None

    def keys(self) -> dict[str, object]:
        """The changes by dotted config keys; None drops a key."""
        with many_imports():
            from spodgt.experiment import value_of

        changes: dict[str, object] = {}
        if self.methods is not None:
            changes["run.methods"] = [name.strip() for name in self.methods.split(",")]
        ends = {"rounds": self.rounds, "delay": self.delay, "seconds": self.seconds}
        if any(ends.values()) and not all(
            (self.delay, self.rounds)
        ):  # these replace those of the config
            changes |= {f"run.{key}": None for key in ends}
        for key, text in {"seeds": self.seeds, **ends}.items():
            if text is not None:
                changes[f"run.{key}"] = value_of(text)
        if self.labels_per_client is not None:
            changes["problem.partition.kind"] = "labels-per-client"
            changes["problem.partition.labels"] = value_of(self.labels_per_client)
        if self.problem is not None:
            changes |= {"problem.kind": "python", "problem.build": self.problem}
        if self.device is not None:
            changes["run.device"] = self.device
        if self.engine is not None:
            changes["run.engine"] = self.engine
        for pair in self.assign or []:
            key, equals, text = pair.partition("=")
            if not equals:
                raise InvalidInput(f"--set {pair!r} must be KEY=VALUE, such as network.radius=0.6.")
            changes[key.strip()] = value_of(text.strip())
        return changes


def experiment_of(config: Path | None, changes: Mapping[str, object]) -> Experiment:
    """The experiment of a file, or the default one, with some keys changed."""
    from spodgt.experiment import Experiment

    return (Experiment.read(config) if config else Experiment()).override(changes)


@contextmanager
def many_imports() -> Iterator[None]:
    """Import much, quickly: imports make a million objects and no garbage.

    The collector rests meanwhile and never looks at these objects again, which saves a fifth of the time.
    Ctrl-C ends the process at once: libraries that are half loaded turn it into errors of their own.
    """
    gc.disable()
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, _leave) if main else None
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
        gc.freeze()
        gc.enable()


def _leave(*_: object) -> None:
    print("spodgt: stopped.", file=sys.stderr, flush=True)
    os._exit(1)


def seed_of(text: str) -> int:
    """The number after --seed."""
    if not (text.isascii() and text.isdecimal() and int(text) < 2**63):
        raise InvalidInput(
            f"--seed must be a whole number of at least 0, got {text[:40]!r}; use --seed 0."
        )
    return int(text)


def plain_table(**options: Any) -> Table:
    """A table without frames: words and numbers get the width."""
    return Table(
        box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption_justify="left", **options
    )
