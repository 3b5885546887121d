"""`spodgt export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from spodgt.cli.app import JsonOption, app, flag
from spodgt.errors import InvalidInput


@app.command(
    epilog="Example: [bold]spodgt export runs/compare model.safetensors --method spod-gt-memory[/]"
)
def export(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    file: Annotated[Path, typer.Argument(help="The safetensors file to write.")],
    method: Annotated[
        str | None, typer.Option(help="Method of the model; required if the run has several.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the run. [dim]default: the first one[/]")
    ] = None,
    client: Annotated[
        str, typer.Option(help="Name or number of a client, or average.")
    ] = "average",
    mean: Annotated[
        bool, flag("--mean", "Export the running mean; needs layer running_mean.")
    ] = False,
    best: Annotated[
        bool, flag("--best", "Export the models of the best evaluation; needs keep = 'best'.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a trained model as safetensors, with the tensor names of torch's state_dict."""
    from safetensors.torch import save

    from spodgt.network.names import client_number
    from spodgt.record import Record
    from spodgt.record.models import BEST, RUNNING_MEAN, read_model
    from spodgt.record.run_folder import write
    from spodgt.validation import check_choice

    record = Record.read(folder)
    method = _choose_method(record.methods, method)
    seeds: list[int] = record.frame["seed"].unique().tolist()
    if seed is None:
        seed = seeds[0]
    check_choice("--method", method, record.methods, "this run")
    check_choice("--seed", seed, seeds, "this run")
    if file.suffix != ".safetensors":
        raise InvalidInput(f"FILE={str(file)!r} must end in .safetensors; use model.safetensors.")
    number = None
    if client != "average":
        network = record.drawn()[seed]
        number = client_number(client, network.names, network.clients, "--client")
        client = network.label(number)
    if mean and best:
        raise InvalidInput("--best and --mean are different models; drop one of them.")
    label = method
    if mean:
        label += RUNNING_MEAN
    if best:
        label += BEST
    tensors = read_model(folder, label, seed, number)
    write(file, save(tensors, {"method": method, "seed": str(seed), "client": client}))
    numbers = sum(tensor.numel() for tensor in tensors.values())
    if not as_json:
        print(f"{len(tensors)} tensors, {numbers:,} numbers: {file}")
        return
    facts = {
        "method": method,
        "seed": seed,
        "client": client,
        "file": str(file),
        "tensors": len(tensors),
        "numbers": numbers,
    }
    print(json.dumps(facts))


def _choose_method(methods: list[str], method: str | None) -> str:
    """The method given, or the only one."""
    if method is not None:
        return method
    if len(methods) > 1:
        raise InvalidInput(
            f"--method is required, because the run has several; choose from {', '.join(methods)}."
        )
    return methods[0]
