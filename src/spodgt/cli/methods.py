"""`spodgt methods`."""

from __future__ import annotations

import json

from rich.console import Console

from spodgt.cli.app import JsonOption, app, plain_table, print_message

_HEADINGS = {  # of the columns in the terminal; --json has all columns
    "method": "method",
    "directed": "one-way links",
    "tracking": "tracks",
    "sporadic_compute": "idle clients",
    "sporadic_links": "idle links",
    "local_steps": "local steps",
    "exact": "exact limit",
    "root": "root",
}
_CAPTION = "waits: needs all of them, which takes time. root: one client is special. More: --json."


@app.command(epilog="Example: [bold]spodgt methods --json[/]")
def methods(as_json: JsonOption = False) -> None:
    """List the methods and the assumptions of each."""
    from spodgt.algorithms import table as method_table

    rows = method_table()
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = plain_table(caption=_CAPTION)
    for heading in _HEADINGS.values():
        table.add_column(heading, no_wrap=heading == "method")
    for row in rows:
        table.add_row(*(row[key] for key in _HEADINGS))
    Console().print(table)


@app.command(hidden=True, epilog="Example: [bold]spodgt algorithms --json[/]")
def algorithms(as_json: JsonOption = False) -> None:
    """Deprecated name of `spodgt methods`."""
    print_message("warning: spodgt algorithms is deprecated; use spodgt methods.")
    methods(as_json)
