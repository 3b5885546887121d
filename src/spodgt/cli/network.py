"""`spodgt network`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from spodgt.cli.app import (
    ConfigOption,
    ConfigOptions,
    JsonOption,
    SetOption,
    app,
    load_experiment,
    parse_seed,
    plain_table,
)

if TYPE_CHECKING:
    from spodgt.network import Network
    from spodgt.types import Floats

_MAX_NAMES = 50  # in the terminal


@app.command(epilog="Example: [bold]spodgt network --kind directed-geometric --clients 20[/]")
def network(
    config: ConfigOption = None,
    kind: Annotated[str | None, typer.Option(help="Kind of graph.")] = None,
    clients: Annotated[
        str | None, typer.Option(help="Number of clients.", metavar="NUMBER")
    ] = None,
    assign: SetOption = None,
    seed: Annotated[str, typer.Option(help="Seed of the random graph.", metavar="NUMBER")] = "0",
    out: Annotated[Path, typer.Option(help="Figure to write (png, svg, pdf).")] = Path(
        "network.png"
    ),
    as_json: JsonOption = False,
) -> None:
    """Draw a network with its probabilities and print its properties."""
    from spodgt import figures
    from spodgt.experiment import value_of

    figures.check_suffix(out)
    number = parse_seed(seed)
    changes: dict[str, object] = {}
    if kind is not None:
        changes["network.kind"] = kind
    if clients is not None:
        changes["network.clients"] = value_of(clients)
    changes |= ConfigOptions(assign=assign).config_changes()
    net, availability = load_experiment(config, changes).draw_network(number)
    figures.save(figures.draw_network(net, availability.p, availability.p_hat, f"seed {seed}"), out)
    facts = _properties(net, availability.p, availability.p_hat) | {"picture": str(out)}
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


def _properties(net: Network, p: Floats, p_hat: Floats) -> dict[str, object]:
    """Sizes, degrees and ranges of probabilities, by name."""
    facts: dict[str, object] = {"clients": net.clients}
    if net.names is not None:
        facts["names"] = ", ".join(net.names[:_MAX_NAMES])
        if net.clients > _MAX_NAMES:
            facts["names"] = f"{facts['names']}, …"
    facts["links"] = net.links
    facts["links both ways"] = net.two_way
    facts["in-degree"] = f"{net.in_degree.min()} to {net.in_degree.max()}"
    facts["out-degree"] = f"{net.out_degree.min()} to {net.out_degree.max()}"
    facts["p"] = f"{p.min():.3g} to {p.max():.3g}"
    facts["p_hat"] = "–"
    if net.links:
        facts["p_hat"] = f"{p_hat.min():.3g} to {p_hat.max():.3g}"
    return facts
