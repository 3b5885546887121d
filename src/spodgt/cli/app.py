"""The application object, and the options that commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

app = typer.Typer(
    help="Decentralized federated learning over directed graphs, when clients and links come and go.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

# typer reads these at run time, on Python 3.10 too: Optional[...] it is
ConfigOption = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option("--config", help="A TOML file; what it leaves out is default."),
]
OutOption = Annotated[
    Optional[Path],  # noqa: UP045
    typer.Option(help="Folder for results. [dim]default: runs/NAME, numbered[/]"),
]
SetOption = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--set", help="Set any config key: --set network.radius=0.6", metavar="KEY=VALUE"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")]


def plain_table(**options: Any) -> Table:
    """A table without frames: words and numbers get the width."""
    return Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, caption_justify="left", **options)
