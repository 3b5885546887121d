"""`spodgt peer`: real clients, each its own process."""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Optional

import typer
from rich.console import Console
from rich.live import Live

from spodgt.cli.app import ConfigOption, JsonOption, SetOption, app
from spodgt.cli.compare import changes_of
from spodgt.errors import InvalidInput

peer_app = typer.Typer(
    help="Run clients as real peers: asynchronous, authenticated, and nothing is ever lost.",
    no_args_is_help=True,
)
app.add_typer(peer_app, name="peer")

RunArgument = Annotated[Path, typer.Option("--run", help="The run's folder.")]
_RUN = Path("peers")
_PEER_DEFAULTS = {
    "run.methods": ["spod-gt-memory"],
    "network.kind": "exponential",
    "network.clients": 5,
    "participation.kind": "always",
}


@peer_app.command(
    "init", epilog="Example: [bold]spodgt peer init --run peers --clients 5 --labels-per-client 1[/]"
)
def peer_init(
    run: RunArgument = _RUN,
    config: ConfigOption = None,
    clients: Annotated[Optional[int], typer.Option(help="How many clients.")] = None,  # noqa: UP045
    method: Annotated[Optional[str], typer.Option(help="spod-gt-memory or spod-gt.")] = None,  # noqa: UP045
    labels_per_client: Annotated[Optional[str], typer.Option(help="Classes each client holds.")] = None,  # noqa: UP045
    addresses: Annotated[
        str | None,
        typer.Option(
            help="host:port of each client, comma-separated. [dim]default: free ports on loopback[/]"
        ),
    ] = None,
    names: Annotated[Optional[str], typer.Option(help="Names of the clients, comma-separated.")] = None,  # noqa: UP045
    compute: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(help="What a device can do: 'p0={kind = \"budget\", share = 0.25}'; repeatable."),
    ] = None,
    problem: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Your own model: module:function, called with a NAME."),
    ] = None,
    rounds_per_second: Annotated[
        float, typer.Option(help="Upper limit of a client's local rounds; 0: none.")
    ] = 0.0,
    max_alone: Annotated[
        int, typer.Option(help="Rounds without news after which a client waits; 0: never.")
    ] = 200,
    assign: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a run: an authority and a signed manifest."""
    setup = _peer_module("setup")
    from spodgt.experiment.config import Config

    changes = {} if config else dict(_PEER_DEFAULTS)
    changes |= {"network.clients": clients} if clients is not None else {}
    changes |= changes_of(methods=method, labels_per_client=labels_per_client, assign=assign)
    chosen = (Config.read(config) if config else Config()).override(changes)
    if rounds_per_second < 0 or max_alone < 0:
        raise InvalidInput(
            f"rounds_per_second and max_alone must be at least 0, got {rounds_per_second} and "
            f"{max_alone}; use 0."
        )
    made = setup.init(
        run,
        chosen,
        names=_list(names),
        addresses=_list(addresses),
        compute=_devices(compute or []),
        problem=_factory(problem),
        options={"rounds_per_second": rounds_per_second, "max_alone": max_alone},
    )
    if as_json:
        print(
            json.dumps(
                {"run": made.run, "clients": [c.name for c in made.clients], "folder": str(run)}, indent=2
            )
        )
        return
    print(
        f"run {made.run}: {len(made.clients)} clients, {len(made.links)} links, {made.parameters:,} "
        f"parameters in {run}"
    )
    print(f"next: spodgt peer issue {made.clients[0].name} --run {run}")


@peer_app.command("issue", epilog="Example: [bold]spodgt peer issue p3 --run peers[/]")
def peer_issue(
    name: Annotated[str, typer.Argument(help="A client of the manifest, or all.")],
    run: RunArgument = _RUN,
    days: Annotated[float, typer.Option(help="How long the certificate is good.")] = 30.0,
) -> None:
    """Make a client's folder: certificate, key and manifest, to be copied to its host."""
    setup = _peer_module("setup")
    names = [c.name for c in setup.load(run).clients] if name == "all" else [name]
    for each in names:
        print(setup.issue(run, each, days=days))


@peer_app.command("start", epilog="Example: [bold]spodgt peer start p3 --run peers --durability process[/]")
def peer_start(
    name: Annotated[str, typer.Argument(help="Which client this process is.")],
    run: RunArgument = _RUN,
    durability: Annotated[
        str, typer.Option(help="power (fsync) or process (survives kill -9 only).")
    ] = "power",
    rounds: Annotated[Optional[int], typer.Option(help="Stop after this many local rounds.")] = None,  # noqa: UP045
    gradients: Annotated[Optional[int], typer.Option(help="Stop after this many gradients.")] = None,  # noqa: UP045
    seconds: Annotated[Optional[float], typer.Option(help="Stop after this time.")] = None,  # noqa: UP045
    linger: Annotated[bool, typer.Option(help="Stay reachable after the last round.")] = False,
    evaluate_every: Annotated[float, typer.Option(help="Seconds between evaluations.")] = 5.0,
    commit_every: Annotated[int, typer.Option(help="Local rounds that share one commit.")] = 1,
    problem: Annotated[
        str | None, typer.Option(help="Your own data: module:function, called with NAME.")
    ] = None,
    listen: Annotated[Optional[str], typer.Option(help="host:port, if other than the manifest's.")] = None,  # noqa: UP045
    metrics_port: Annotated[Optional[int], typer.Option(help="Serve Prometheus metrics on loopback.")] = None,  # noqa: UP045
    quiet: Annotated[bool, typer.Option("--quiet", help="No panel; events as lines on stderr.")] = False,
) -> None:
    """Run one client until it is stopped; start it again and it goes on."""
    runner, report = _peer_module("runner"), _peer_module("report")
    for key, value in (
        ("rounds", rounds),
        ("gradients", gradients),
        ("seconds", seconds),
        ("commit_every", commit_every),
        ("evaluate_every", evaluate_every),
    ):
        if value is not None and value <= 0:
            raise InvalidInput(f"{key} must be above 0, got {value}; use --{key.replace('_', '-')} 100.")
    if listen is not None:
        _peer_module("setup").check_address(listen, "--listen")
    if metrics_port is not None and not 0 <= metrics_port < 65536:
        raise InvalidInput(f"--metrics-port must be a port below 65536, got {metrics_port}; use 9090.")
    options = runner.Options(
        durability=durability,
        rounds=rounds,
        gradients=gradients,
        seconds=seconds,
        linger=linger,
        evaluate_seconds=evaluate_every,
        commit_every=commit_every,
        listen=listen,
        problem=_factory(problem),
    )
    folder = run / name if (run / name).is_dir() else run
    if not (folder / "cert.pem").exists():
        raise InvalidInput(
            f"client {name!r} has no certificate in {run}; make it with: spodgt peer issue {name} --run "
            f"{run}."
        )
    quiet = quiet or not sys.stdout.isatty()
    logging.basicConfig(
        level=logging.INFO if quiet else logging.ERROR, format="%(asctime)s %(name)s %(message)s"
    )
    client = runner.Peer(folder, name, options)
    if metrics_port is not None:
        served = report.serve_metrics(client.status, client.journal, metrics_port)
        print(
            f"metrics at http://127.0.0.1:{served}/metrics",
            file=sys.stderr,
        )
    if quiet:
        runner.run_peer(client)
        return
    from spodgt.peer.panel import panel

    with Live(console=Console(), auto_refresh=False, transient=False) as live:
        runner.run_peer(client, lambda peer: live.update(panel(peer.status, peer.journal), refresh=True))


@peer_app.command("status", epilog="Example: [bold]spodgt peer status --run peers[/]")
def peer_status(run: RunArgument = _RUN, as_json: JsonOption = False) -> None:
    """What the clients in this folder last reported."""
    _peer_module("setup")
    rows = [
        json.loads(path.read_text())
        for path in sorted([*run.glob("*/status.json"), *run.glob("status.json")])
    ]
    if not rows:
        raise InvalidInput(
            f"{run} holds no client that has reported; start one with spodgt peer start NAME --run {run}."
        )
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    from spodgt.peer.panel import overview

    Console().print(overview(rows))


@peer_app.command("audit", epilog="Example: [bold]spodgt peer audit peers/p*[/]")
def peer_audit(
    folders: Annotated[list[Path], typer.Argument(help="Folders of stopped clients.")],
    as_json: JsonOption = False,
    limit: Annotated[float, typer.Option(help="Fail above this error.")] = 1e-12,
) -> None:
    """Is all mass there? Trackers plus mass in flight against stored gradients, from the disks alone."""
    found = _peer_module("setup").audit_folders(folders)
    worst = max([found.error or 0.0, *found.local.values()])
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        value = "not all in one epoch" if found.error is None else f"{found.error:.2e}"
        print(f"{len(found.local)} clients: |Σy + in flight - Σg| = {value} (relative)")
        print(
            f"largest local audit {max(found.local.values()):.2e}; largest number in flight "
            f"{found.in_flight:.3g}"
        )
        for problem in found.problems:
            print(f"note: {problem}")
    if worst > limit:
        raise typer.Exit(1)


@peer_app.command("export", epilog="Example: [bold]spodgt peer export peers/p0 model.safetensors[/]")
def peer_export(
    folder: Annotated[Path, typer.Argument(help="Folder of a stopped client.")],
    target: Annotated[Path, typer.Argument(help="A .safetensors file.")],
) -> None:
    """Write a client's model as safetensors."""
    print(json.dumps(_peer_module("setup").export(folder, target), indent=2))


@peer_app.command("remove", epilog="Example: [bold]spodgt peer remove p3 --run peers[/]")
def peer_remove(
    name: Annotated[str, typer.Argument(help="The client that leaves.")], run: RunArgument = _RUN
) -> None:
    """Sign a manifest without a client; put into the folder of one running client, it spreads to all."""
    made = _peer_module("setup").remove(run, name)
    print(f"version {made.version}: {', '.join(c.name for c in made.clients)}")


@peer_app.command("demo", epilog="Example: [bold]spodgt peer demo --seconds 40 --out demo[/]")
def peer_demo(
    out: Annotated[Path, typer.Option(help="Folder for the run and the picture.")] = Path("peer-demo"),
    seconds: Annotated[float, typer.Option(help="How long.")] = 40.0,
    as_json: JsonOption = False,
) -> None:
    """Five local peers on images; two of them are killed and start again; a picture of what happened."""
    result = _peer_module("demo").demo(out, seconds, Console(stderr=as_json))
    if as_json:
        print(json.dumps(result, indent=2))


def _peer_module(name: str) -> Any:
    try:
        return importlib.import_module(f"spodgt.peer.{name}")
    except ImportError as error:
        if error.name and error.name.split(".")[0] in ("grpc", "google", "cryptography", "prometheus_client"):
            raise InvalidInput(
                f"spodgt peer needs {error.name}; install it with: pip install 'spodgt[peer]'."
            ) from None
        raise


def _factory(text: str | None) -> Callable[[str], Any] | None:
    if text is None:
        return None
    module, _, function = text.partition(":")
    sys.path.insert(0, os.getcwd())  # as `python -m` has it; a console script has only its own folder
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as error:  # a user's module may raise anything
        why = f"{type(error).__name__}: {error}" if not isinstance(error, ImportError) else str(error)
        raise InvalidInput(f"--problem {text!r} must be module:function, but {why}.") from None
    return found  # type: ignore[no-any-return]


def _devices(given: list[str]) -> dict[str, Any]:
    from spodgt.experiment.config import value_of

    devices = {}
    for text in given:
        name, _, table = text.partition("=")
        value = value_of(table)
        if not isinstance(value, dict):
            raise InvalidInput(f'--compute {text!r} must be NAME={{kind = "budget", share = 0.25}}.')
        devices[name.strip()] = value
    return devices


def _list(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]
