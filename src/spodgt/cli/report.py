"""`spodgt report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from spodgt.cli.app import JsonOption, app


@app.command(epilog="Example: [bold]spodgt report runs/compare[/]")
def report(
    folder: Annotated[Path, typer.Argument(help="A folder of compare, run, sweep or reproduce.")],
    reference: Annotated[
        str | None,
        typer.Option(
            help="Compare the other methods with this one. [dim]default: spod-gt[/]",
            metavar="METHOD",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write report.html and figure.png, .svg, .pdf for existing results."""
    from spodgt import report as reports

    path = reports.write(folder, reference)
    print(json.dumps({"report": str(path)}) if as_json else path)
