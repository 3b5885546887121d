"""`spodgt algorithms` and `spodgt network`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.console import Console
from rich.table import Table

from spodgt.cli.app import ConfigOption, JsonOption, SetOption, app
from spodgt.cli.compare import changes_of


@app.command(epilog="Example: [bold]spodgt algorithms --json[/]")
def algorithms(as_json: JsonOption = False) -> None:
    """The methods and what they can bear."""
    from spodgt.algorithms import table as properties

    rows = properties()
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = Table()
    for heading in rows[0]:
        table.add_column(heading)
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console().print(table)


@app.command(epilog="Example: [bold]spodgt network --kind directed-geometric --clients 20 --out network.png[/]")
def network(
    config: ConfigOption = None,
    kind: Annotated[Optional[str], typer.Option(help="Kind of graph.")] = None,  # noqa: UP045
    clients: Annotated[Optional[int], typer.Option(help="How many clients.")] = None,  # noqa: UP045
    assign: SetOption = None,
    seed: Annotated[int, typer.Option(help="Which draw.")] = 0,
    out: Annotated[Path, typer.Option(help="Picture to draw (png, svg, pdf).")] = Path("network.png"),
    as_json: JsonOption = False,
) -> None:
    """Draw a network with its probabilities and say what it is like."""
    from spodgt import figures
    from spodgt.config import Config, _network, _participation
    from spodgt.network import as_network

    changes: dict[str, Any] = {} if kind is None else {"network.kind": kind}
    changes |= {} if clients is None else {"network.clients": clients}
    chosen = (Config.read(config) if config else Config()).override(
        changes | changes_of(assign=assign)
    )
    net = as_network(_network(chosen.network), seed, chosen.network.get("weights", "degree"))
    availability = _participation(chosen.participation).draw(net, seed)
    figures.save(figures.network(net, availability.p, availability.p_hat, f"seed {seed}"), out)
    facts = {
        "clients": net.clients,
        "links": net.links,
        "links both ways": net.two_way,
        "in-degree": f"{net.in_degree.min()} to {net.in_degree.max()}",
        "out-degree": f"{net.out_degree.min()} to {net.out_degree.max()}",
        "p": f"{availability.p.min():.3g} to {availability.p.max():.3g}",
        "p_hat": f"{availability.p_hat.min():.3g} to {availability.p_hat.max():.3g}",
        "picture": str(out),
    }
    if as_json:
        facts |= {
            "p": availability.p.tolist(),
            "p_hat": availability.p_hat.tolist(),
            "receivers": net.receivers.tolist(),
            "senders": net.senders.tolist(),
        }
        print(json.dumps(facts, indent=2))
        return
    table = Table(show_header=False)
    for name, value in facts.items():
        table.add_row(name, str(value))
    Console().print(table)
