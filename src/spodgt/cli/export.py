"""`spodgt export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from spodgt.cli.app import JsonOption, app
from spodgt.errors import InvalidInput


@app.command(
    epilog="Example: [bold]spodgt export runs/compare model.safetensors --method spod-gt-memory[/]"
)
def export(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    file: Annotated[Path, typer.Argument(help="The safetensors file to write.")],
    method: Annotated[
        str | None, typer.Option(help="Whose model; needed where there are several.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of which run; the first unless given.")] = None,
    client: Annotated[str, typer.Option(help="A client's name or number, or average.")] = "average",
    mean: Annotated[
        bool, typer.Option("--mean", help="The running mean, where it was kept.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a trained model, tensor by tensor under the names of torch's state_dict."""
    from safetensors.torch import save

    from spodgt.network.names import client_number
    from spodgt.record import Record
    from spodgt.record.folder import write
    from spodgt.record.models import RUNNING_MEAN, read_model

    record = Record.read(folder)
    methods, seeds = record.algorithms, [int(seed) for seed in dict.fromkeys(record.frame["seed"])]
    if method is None and len(methods) == 1:
        (method,) = methods
    if method not in methods:
        raise InvalidInput(
            f"--method={method!r} is not one of this run; choose from {', '.join(methods)}."
        )
    if seed is not None and seed not in seeds:
        raise InvalidInput(
            f"--seed={seed} is not one of this run; choose from {', '.join(map(str, seeds))}."
        )
    if file.suffix != ".safetensors":
        raise InvalidInput(f"FILE={str(file)!r} must end in .safetensors; use model.safetensors.")
    chosen = seeds[0] if seed is None else seed
    label = method + RUNNING_MEAN if mean else method
    number = None
    if client != "average":
        network = record.drawn()[chosen]
        number = client_number(client, network.names, network.clients, "--client")
        client = network.label(number)
    tensors = read_model(folder, label, chosen, number)
    facts = {"method": method, "seed": str(chosen), "client": client}
    write(file, save(tensors, facts))
    numbers = sum(tensor.numel() for tensor in tensors.values())
    if as_json:
        print(
            json.dumps(
                {
                    **facts,
                    "seed": chosen,
                    "file": str(file),
                    "tensors": len(tensors),
                    "numbers": numbers,
                }
            )
        )
    else:
        print(f"{len(tensors)} tensors, {numbers:,} numbers: {file}")
