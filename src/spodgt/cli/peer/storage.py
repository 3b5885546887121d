"""`spodgt peer audit`, `export`, `backup` and `restore`: commands on the folders of clients."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, cast

import typer

from spodgt.cli.app import JsonOption, flag
from spodgt.cli.peer.app import peer_app, peer_extra


@peer_app.command("audit", epilog="Example: [bold]spodgt peer audit peers/p*[/]")
def peer_audit(
    folders: Annotated[list[Path], typer.Argument(help="Folders of stopped clients.")],
    as_json: JsonOption = False,
    limit: Annotated[float, typer.Option(help="Fail above this relative error.")] = 1e-12,
) -> None:
    """Check the conservation of mass: trackers plus mass in flight equal the stored gradients."""
    with peer_extra():
        from spodgt.peer.membership.run_folders import audit_folders
    audit = audit_folders(folders)
    passed = audit.passed(limit)
    if as_json:
        facts = json.dumps({**vars(audit), "passed": passed})
        without_nan = json.loads(facts, parse_constant=lambda _: None)
        print(json.dumps(without_nan, indent=2))
    else:
        error = "not all in one epoch"
        if audit.error is not None:
            error = f"{audit.error:.2e}"
        print(f"{len(audit.local)} clients: |Σy + in flight - Σg| = {error} (relative)")
        largest = max(audit.local.values(), key=lambda error: (math.isnan(error), error))
        print(f"largest local audit {largest:.2e}; largest number in flight {audit.in_flight:.3g}")
        for problem in audit.problems:
            print(f"problem: {problem}")
    if not passed:
        raise typer.Exit(1)


@peer_app.command(
    "export", epilog="Example: [bold]spodgt peer export peers/p0 model.safetensors[/]"
)
def peer_export(
    folder: Annotated[Path, typer.Argument(help="Folder of a client, which may be running.")],
    target: Annotated[Path, typer.Argument(help="The .safetensors file to write.")],
    mean: Annotated[
        bool, flag("--mean", "Export the running mean; needs layer running_mean.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the last committed model of a client as safetensors."""
    with peer_extra():
        from spodgt.peer.membership.run_folders import export
    facts = export(folder, target, mean=mean)
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        shapes = cast("dict[str, list[int]]", facts["tensors"])
        numbers = sum(math.prod(shape) for shape in shapes.values())
        print(f"{len(shapes)} tensors, {numbers:,} numbers: {target}")


@peer_app.command("backup", epilog="Example: [bold]spodgt peer backup peers/p0 p0.backup[/]")
def peer_backup(
    folder: Annotated[Path, typer.Argument(help="Folder of a client, which may be running.")],
    target: Annotated[
        Path, typer.Argument(help="The file to write; it contains the client's private key.")
    ],
) -> None:
    """Write a client's certificate, key, manifest and state to one file, while it runs."""
    with peer_extra():
        from spodgt.peer.storage.backup import backup
    print(json.dumps(backup(folder, target), indent=2))


@peer_app.command("restore", epilog="Example: [bold]spodgt peer restore p0.backup peers/p0[/]")
def peer_restore(
    file: Annotated[Path, typer.Argument(help="A backup; with --model also an exported model.")],
    folder: Annotated[Path, typer.Argument(help="The client's folder, without a state.")],
    model: Annotated[
        bool, flag("--model", "Restore only the model, into a stopped client.")
    ] = False,
) -> None:
    """Create a client's folder from a backup, or restore its model into a stopped client."""
    with peer_extra():
        from spodgt.peer.storage.backup import restore, restore_model
    if model:
        facts = restore_model(file, folder)
    else:
        facts = restore(file, folder)
    print(json.dumps(facts, indent=2))
