"""The reference of the command line, from the program itself, as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from spodgt.cli import app


def commands() -> str:
    """Every command with its help, example and options."""
    return "\n".join(described(typer.main.get_command(app), "spodgt"))


def described(command: Any, name: str) -> Iterator[str]:
    inner = getattr(command, "commands", {})
    if name != "spodgt":
        yield f"## {name}\n"
        yield f"{plain(command.help)}\n"
    if not inner:
        if command.epilog:
            yield f"`{plain(command.epilog).removeprefix('Example: ')}`{{ .example }}\n"
        yield "| | |\n|---|---|"
        yield from (row(each) for each in command.params if not getattr(each, "hidden", False))
        yield ""
    for key, subcommand in inner.items():
        if not subcommand.hidden:  # deprecated names
            yield from described(subcommand, f"{name} {key}")


def row(parameter: Any) -> str:
    """An argument or option: its names, what it takes, what it is when left out."""
    if parameter.param_type_name == "argument":
        names = [f"`{parameter.name.upper()}`"]
    else:
        names = [f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts)]
        if not parameter.is_flag:
            names[-1] += f" *{parameter.metavar or '…'}*"
    text, default = plain(parameter.help), parameter.default
    if (
        isinstance(default, (str, int, float, Path))
        and not isinstance(default, bool)
        and "default:" not in text
    ):
        text += f" Default: `{default}`."
    return f"| {', '.join(names)} | {text} |".replace("\n", " ")


def plain(text: str | None) -> str:
    """Without the marks of rich, of which a backslash makes text; a bar would end a cell of the table."""
    unmarked = re.sub(r"(?<!\\)\[/?[a-z ]*\]", "", text or "")
    return unmarked.replace("\\[", "[").strip().replace("|", "\\|")
