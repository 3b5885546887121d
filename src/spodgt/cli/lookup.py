"""`spodgt algorithms` and `spodgt network`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from spodgt.cli.app import (
    ConfigOption,
    ExperimentOptions,
    JsonOption,
    SetOption,
    app,
    load_experiment,
    parse_seed,
    plain_table,
)

_SHOWN = {  # columns of the terminal; --json has all
    "method": "method",
    "directed": "one-way links",
    "tracking": "tracks",
    "sporadic_compute": "idle clients",
    "sporadic_links": "idle links",
    "local_steps": "local steps",
    "exact": "exact limit",
    "root": "root",
}
_MOST_NAMES = 50  # in the terminal


@app.command(epilog="Example: [bold]spodgt algorithms --json[/]")
def algorithms(as_json: JsonOption = False) -> None:
    """List the methods and the assumptions each one requires."""
    from spodgt.algorithms import table as properties

    rows = properties()
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = plain_table(
        caption="waits: needs all of them and pays for it. root: one client leads. More: --json."
    )
    for heading in _SHOWN.values():
        table.add_column(heading, no_wrap=heading == "method")
    for row in rows:
        table.add_row(*(row[key] for key in _SHOWN))
    Console().print(table)


@app.command(
    epilog="Example: [bold]spodgt network --kind directed-geometric --clients 20 --out network.png[/]"
)
def network(
    config: ConfigOption = None,
    kind: Annotated[str | None, typer.Option(help="Kind of graph.")] = None,
    clients: Annotated[str | None, typer.Option(help="How many clients.", metavar="NUMBER")] = None,
    assign: SetOption = None,
    seed: Annotated[str, typer.Option(help="Which draw.", metavar="NUMBER")] = "0",
    out: Annotated[Path, typer.Option(help="Picture to draw (png, svg, pdf).")] = Path(
        "network.png"
    ),
    as_json: JsonOption = False,
) -> None:
    """Draw a network with its probabilities and print its properties."""
    from spodgt import figures
    from spodgt.experiment import value_of

    figures.check_suffix(out)
    number = parse_seed(seed)
    changes: dict[str, object] = {} if kind is None else {"network.kind": kind}
    changes |= {} if clients is None else {"network.clients": value_of(clients)}
    chosen = load_experiment(config, changes | ExperimentOptions(assign=assign).config_changes())
    net, availability = chosen.draw_network(number)
    figures.save(figures.network(net, availability.p, availability.p_hat, f"seed {seed}"), out)
    more = ", …" if net.clients > _MOST_NAMES else ""
    facts = {
        "clients": net.clients,
        **({} if net.names is None else {"names": ", ".join(net.names[:_MOST_NAMES]) + more}),
        "links": net.links,
        "links both ways": net.two_way,
        "in-degree": f"{net.in_degree.min()} to {net.in_degree.max()}",
        "out-degree": f"{net.out_degree.min()} to {net.out_degree.max()}",
        "p": f"{availability.p.min():.3g} to {availability.p.max():.3g}",
        "p_hat": f"{availability.p_hat.min():.3g} to {availability.p_hat.max():.3g}"
        if net.links
        else "–",
        "picture": str(out),
    }
    if as_json:
        facts |= {
            "names": None if net.names is None else list(net.names),
            "p": availability.p.tolist(),
            "p_hat": availability.p_hat.tolist(),
            "receivers": net.receivers.tolist(),
            "senders": net.senders.tolist(),
        }
        print(json.dumps(facts, indent=2))
        return
    table = plain_table(show_header=False)
    for name, value in facts.items():
        table.add_row(name, str(value))
    Console().print(table)
