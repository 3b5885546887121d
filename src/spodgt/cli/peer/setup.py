"""`spodgt peer init`, `issue` and `renew`: a run, and the folders of its clients."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spodgt.cli.app import ConfigOption, ConfigOptions, JsonOption, SetOption, load_experiment
from spodgt.cli.option_groups import TextOption, with_option_groups
from spodgt.cli.peer.app import (
    DEFAULT_CONFIG,
    DEFAULT_DAYS,
    DEFAULT_RUN,
    DaysOption,
    RunOption,
    parse_devices,
    peer_app,
    peer_extra,
    split_commas,
)
from spodgt.errors import InvalidInput
from spodgt.peer.options import Deployment

if TYPE_CHECKING:
    from spodgt.peer.membership.manifest import Manifest

_DEFAULT_CLIENTS = 5
_TEXT_OPTIONS = {
    "names": TextOption(split_commas),
    "addresses": TextOption(split_commas),
    "compute": TextOption(parse_devices),
}


@peer_app.command(
    "init",
    epilog="Example: [bold]spodgt peer init --run peers --clients 5 --labels-per-client 1[/]",
)
@with_option_groups
def peer_init(
    run: RunOption = DEFAULT_RUN,
    config: ConfigOption = None,
    clients: Annotated[
        int | None,
        typer.Option(help="Number of clients. [dim]default: as many as --names, or 5[/]"),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="spod-gt-memory, relay, spod-gt, … or ab.")
    ] = None,
    labels_per_client: Annotated[
        str | None, typer.Option(help="Number of classes per client.")
    ] = None,
    problem: Annotated[
        str | None,
        typer.Option(help="A model and data of your own: problem.py:FUNCTION."),
    ] = None,
    script: Annotated[
        str | None,
        typer.Option(help="A training script that calls spodgt.join, with its arguments."),
    ] = None,
    assign: SetOption = None,
    as_json: JsonOption = False,
    *,
    deployment: Annotated[Deployment, _TEXT_OPTIONS],
) -> None:
    """Create a run: a certificate authority and a signed manifest."""
    with peer_extra():
        from spodgt.peer.membership.run_folders import create
        from spodgt.sites.run_setup import create_script_run, read_layout

    _check_participation(assign or [], deployment)
    changes: dict[str, object] = {}
    if config is None:
        changes |= DEFAULT_CONFIG
        if clients is None:
            clients = _number_of_clients(deployment)
    if clients is not None:
        changes["network.clients"] = clients
    options = ConfigOptions(
        methods=method, labels_per_client=labels_per_client, problem=problem, assign=assign
    )
    changes |= options.config_changes()
    experiment = load_experiment(config, changes)
    if script is None:
        manifest = create(run, experiment, deployment)
    else:
        _check_script_options(problem, labels_per_client, method)
        path, *arguments = _split_command(script)
        layout = read_layout(Path(path), arguments)
        manifest = create_script_run(run, experiment, layout, deployment)
    _print_manifest(run, manifest, as_json)


def _split_command(text: str) -> list[str]:
    """A script and its arguments."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidInput(
            f"--script {text!r} cannot be split into words: {str(error).lower()}; write for "
            "example --script 'train.py --data shards/0'."
        ) from None
    if not words:
        raise InvalidInput("--script is empty; write for example --script train.py.")
    return words


def _check_script_options(*others: str | None) -> None:
    """Reject options of runs whose model, data and method are not those of a script."""
    if any(value is not None for value in others):
        raise InvalidInput(
            "--script brings its own model, data and optimizer; leave out --problem, "
            "--labels-per-client and --method."
        )


def _check_participation(assignments: list[str], deployment: Deployment) -> None:
    """Reject settings of [participation], which real clients do not use."""
    if deployment.limits_from_config:
        return
    for text in assignments:
        if text.startswith("participation."):
            raise InvalidInput(
                f"--set {text} has no effect: participation is simulated, real clients compute and "
                "send as often as they can; add --limits-from-config to limit them."
            )


def _number_of_clients(deployment: Deployment) -> int:
    """The number of names or addresses, or the default."""
    return len(deployment.names or deployment.addresses or ()) or _DEFAULT_CLIENTS


def _print_manifest(run: Path, manifest: Manifest, as_json: bool) -> None:
    from spodgt.peer.process.local_problem import describe_limits

    sentences = describe_limits(manifest)
    if as_json:
        facts = {
            "run": manifest.run,
            "clients": manifest.names,
            "limits": sentences,
            "folder": str(run),
        }
        print(json.dumps(facts, indent=2))
        return
    print(
        f"run {manifest.run}: {len(manifest.clients)} clients, {len(manifest.links)} links, "
        f"{manifest.parameters:,} parameters in {run}"
    )
    for sentence in sentences:
        print(sentence)
    if not sentences:
        print("no limits: every client computes and sends as often as it can")
    print(f"next: spodgt peer issue all --run {run}")


@peer_app.command("issue", epilog="Example: [bold]spodgt peer issue p3 --run peers[/]")
def peer_issue(
    name: Annotated[str, typer.Argument(help="A client of the manifest, or all.")],
    run: RunOption = DEFAULT_RUN,
    days: DaysOption = DEFAULT_DAYS,
) -> None:
    """Create a client's folder: certificate, key and manifest, to be copied to its host."""
    with peer_extra():
        from spodgt.peer.membership import run_folders
    names = [name]
    if name == "all":
        names = run_folders.load(run).names
    for client in names:
        print(run_folders.issue(run, client, days=days))
    start = f"run spodgt peer start NAME --run {run}"
    if run_folders.load(run).is_script:
        start = "start the script"
    print(f"next: copy each folder to its host, and {start} there")


@peer_app.command("renew", epilog="Example: [bold]spodgt peer renew all --run peers[/]")
def peer_renew(
    name: Annotated[str, typer.Argument(help="A client of the manifest, or all.")],
    run: RunOption = DEFAULT_RUN,
    days: DaysOption = DEFAULT_DAYS,
) -> None:
    """Create new certificates; a running client loads key.pem and cert.pem from its folder."""
    peer_issue(name, run, days)
