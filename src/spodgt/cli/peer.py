"""`spodgt peer`: real clients, each its own process."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from spodgt.cli.app import Changes, ConfigOption, JsonOption, SetOption, app, experiment_of
from spodgt.cli.groups import grouped
from spodgt.errors import InvalidInput

peer_app = typer.Typer(
    help="Run clients as real peers: asynchronous, authenticated and crash-safe.",
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
_LIMITS = (
    "Limit clients and links to the probabilities of \\[participation]. [dim]default: no limits[/]"
)
_COMPUTE = "What a device can do: 'p0={kind = \"budget\", share = 0.25}'; repeatable."
_ADDRESSES = (
    "host:port of each client, or none, comma-separated. [dim]default: free ports on loopback[/]"
)
_RATE = "Upper limit of a client's local rounds; 0: none."
_ALONE = "Rounds without news after which a client waits; 0: never."
_LINK = "SENDER:RECEIVER, or 'p0:p3={p_hat = 0.5, dial = \"receiver\"}'; repeatable."
_NEIGHBOURS = "Neighbours, comma-separated: p0 for both ways, p0:NAME or NAME:p0 for one."
_PROBLEM = "Your own model and data: problem.py:FUNCTION, kept in the manifest."


@dataclass(frozen=True)
class Clients:
    """Names, addresses and devices of the clients."""

    addresses: Annotated[str | None, _ADDRESSES] = None
    names: Annotated[str | None, "Names of the clients, comma-separated."] = None
    compute: Annotated[list[str] | None, _COMPUTE] = None
    limits_from_config: Annotated[bool, typer.Option("--limits-from-config", help=_LIMITS)] = False
    problem: Annotated[str | None, _PROBLEM] = None
    divided_into: Annotated[
        int | None, "Parts of the data; more than clients if some join later."
    ] = None
    rounds_per_second: Annotated[float, _RATE] = 0.0
    max_alone: Annotated[int, _ALONE] = 200


@dataclass(frozen=True)
class Settings:
    """What all clients follow; what is not given stays."""

    step_size: Annotated[str | None, "A number, or a schedule as in a config."] = None
    rounds_per_second: Annotated[float | None, _RATE] = None
    max_alone: Annotated[int | None, _ALONE] = None
    address: Annotated[list[str] | None, "NAME=host:port, or NAME=none; repeatable."] = None
    compute: Annotated[list[str] | None, _COMPUTE] = None
    link: Annotated[list[str] | None, _LINK] = None
    unlink: Annotated[list[str] | None, "Take away a link: SENDER:RECEIVER; repeatable."] = None
    root: Annotated[str | None, "Who leads, if the method has a root."] = None


@dataclass(frozen=True)
class Running:
    """How a client runs, and when it stops."""

    durability: Annotated[str, "power (fsync) or process (survives kill -9 only)."] = "power"
    rounds: Annotated[int | None, "Stop after this many local rounds."] = None
    gradients: Annotated[int | None, "Stop after this many gradients."] = None
    seconds: Annotated[float | None, "Stop after this time."] = None
    linger: Annotated[bool, "Stay reachable after the last round."] = False
    evaluate_every: Annotated[float, "Seconds between evaluations."] = 5.0
    commit_every: Annotated[int, "Local rounds that share one commit."] = 1
    drop_after: Annotated[float | None, "Go on without a neighbour silent for so many seconds."] = (
        None
    )
    compiled: Annotated[bool, "Faster linear models for 100 MB of memory."] = False
    listen: Annotated[str | None, "host:port, if other than the manifest's."] = None


@peer_app.command(
    "init",
    epilog="Example: [bold]spodgt peer init --run peers --clients 5 --labels-per-client 1[/]",
)
@grouped
def peer_init(
    run: RunArgument = _RUN,
    config: ConfigOption = None,
    clients: Annotated[
        int | None, typer.Option(help="How many; as many as --names unless given.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="spod-gt-memory, relay, spod-gt, … or ab.")
    ] = None,
    labels_per_client: Annotated[
        str | None, typer.Option(help="Classes each client holds.")
    ] = None,
    assign: SetOption = None,
    as_json: JsonOption = False,
    *,
    made: Clients,
) -> None:
    """Make a run: an authority and a signed manifest."""
    with _peer_extra():
        from spodgt.peer.folders import create
        from spodgt.peer.options import Deployment
        from spodgt.peer.work import limits

    for text in assign or []:
        if text.startswith("participation.") and not made.limits_from_config:
            why = "participation is simulated, real clients compute and send as often as they can"
            raise InvalidInput(
                f"--set {text} has no effect: {why}; add --limits-from-config to limit them."
            )
    parts = {"names": _list(made.names), "addresses": _list(made.addresses)}
    named = next((len(each) for each in parts.values() if each), None)
    count = clients if clients is not None or config else named
    changes = {} if config else dict(_PEER_DEFAULTS)
    changes |= {} if count is None else {"network.clients": count}
    changes |= Changes(methods=method, labels_per_client=labels_per_client, assign=assign).keys()
    if made.problem is not None:
        changes |= {"problem.kind": "python", "problem.build": made.problem}
    options = {key: value for key, value in vars(made).items() if key != "problem"}
    deployment = Deployment(**{**options, **parts, "compute": _devices(made.compute or [])})
    manifest = create(run, experiment_of(config, changes), deployment)
    if as_json:
        body = {
            "run": manifest.run,
            "clients": manifest.names,
            "limits": limits(manifest),
            "folder": str(run),
        }
        print(json.dumps(body, indent=2))
        return
    size = f"{len(manifest.clients)} clients, {len(manifest.links)} links, {manifest.parameters:,} parameters"
    print(f"run {manifest.run}: {size} in {run}")
    for sentence in limits(manifest) or [
        "no limits: every client computes and sends as often as it can"
    ]:
        print(sentence)
    print(f"next: spodgt peer issue {manifest.names[0]} --run {run}")


@peer_app.command("issue", epilog="Example: [bold]spodgt peer issue p3 --run peers[/]")
def peer_issue(
    name: Annotated[str, typer.Argument(help="A client of the manifest, or all.")],
    run: RunArgument = _RUN,
    days: Annotated[float, typer.Option(help="How long the certificate is valid.")] = 30.0,
) -> None:
    """Make a client's folder: certificate, key and manifest, to be copied to its host."""
    with _peer_extra():
        from spodgt.peer import folders
    for each in folders.load(run).names if name == "all" else [name]:
        print(folders.issue(run, each, days=days))


@peer_app.command(
    "start", epilog="Example: [bold]spodgt peer start p3 --run peers --durability process[/]"
)
@grouped
def peer_start(
    name: Annotated[str, typer.Argument(help="Which client this process is.")],
    run: RunArgument = _RUN,
    metrics_port: Annotated[
        int | None, typer.Option(help="Serve Prometheus metrics at this port.")
    ] = None,
    metrics_bind: Annotated[str, typer.Option(help="Address of the metrics.")] = "127.0.0.1",
    quiet: Annotated[
        bool, typer.Option("--quiet", help="No panel; events as lines on stderr.")
    ] = False,
    json_log: Annotated[
        bool, typer.Option("--json-log", help="Events as JSON lines on stderr.")
    ] = False,
    *,
    running: Running,
) -> None:
    """Run one client until it is stopped; started again, it continues."""
    from spodgt.engine import use_loops

    with _peer_extra():
        from spodgt.peer.display import JsonLines, panel, serve_metrics
        from spodgt.peer.options import Options
        from spodgt.peer.run import Peer
    from rich.live import Live

    _check_start(running, metrics_port)
    options = Options(**vars(running))
    folder = run / name if (run / name).is_dir() else run
    if not (folder / "cert.pem").exists():
        fix = f"make it with: spodgt peer issue {name} --run {run}"
        raise InvalidInput(f"client {name!r} has no certificate in {run}; {fix}.")
    quiet = quiet or json_log or not sys.stdout.isatty()
    level = logging.INFO if quiet else logging.ERROR
    lines = logging.StreamHandler()
    lines.setFormatter(
        JsonLines() if json_log else logging.Formatter("%(asctime)s %(name)s %(message)s")
    )
    logging.basicConfig(level=level, handlers=[lines])
    os.umask(0o077)  # what a client writes is for its owner
    with use_loops(options.compiled):
        peer = Peer(folder, name, options)
        status, journal = peer.reporter.status, peer.journal
        if metrics_port is not None:
            served = serve_metrics(status, journal, metrics_port, metrics_bind)
            print(f"metrics at http://{metrics_bind}:{served}/metrics", file=sys.stderr)
        if quiet:
            peer.run()
            return
        with Live(auto_refresh=False, transient=False) as live:
            peer.run(lambda: live.update(panel(status, journal), refresh=True))


def _check_start(running: Running, metrics_port: int | None) -> None:
    from spodgt.peer.options import check_address

    for key in ("rounds", "gradients", "seconds", "commit_every", "evaluate_every", "drop_after"):
        value = vars(running)[key]
        if value is not None and value <= 0:
            raise InvalidInput(
                f"{key} must be above 0, got {value}; use --{key.replace('_', '-')} 100."
            )
    if running.listen is not None:
        check_address(running.listen, "--listen")
    if metrics_port is not None and not 0 <= metrics_port < 65536:
        raise InvalidInput(
            f"--metrics-port must be a port below 65536, got {metrics_port}; use 9090."
        )


@peer_app.command("status", epilog="Example: [bold]spodgt peer status --run peers[/]")
def peer_status(run: RunArgument = _RUN, as_json: JsonOption = False) -> None:
    """What the clients in this folder last reported."""
    with _peer_extra():
        from spodgt.peer.display import overview
    from rich.console import Console

    paths = sorted([*run.glob("*/status.json"), *run.glob("status.json")])
    rows = [json.loads(path.read_text()) for path in paths]
    if not rows:
        fix = f"start one with spodgt peer start NAME --run {run}"
        raise InvalidInput(f"{run} holds no client that has reported; {fix}.")
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        Console().print(overview(rows))


@peer_app.command("watch", epilog="Example: [bold]spodgt peer watch peers[/]")
def peer_watch(
    places: Annotated[
        list[str], typer.Argument(help="Folders of runs or clients, or host:port of clients.")
    ],
    port: Annotated[int, typer.Option(help="Of the page; 0 takes a free one.")] = 8765,
    bind: Annotated[str, typer.Option(help="Address of the page.")] = "127.0.0.1",
    identity: Annotated[
        Path | None, typer.Option(help="Folder whose certificate asks clients.")
    ] = None,
    every: Annotated[float, typer.Option(help="Seconds between two looks.")] = 2.0,
) -> None:
    """A local web page of all clients: who is silent, who sends huge numbers, and how training goes."""
    with _peer_extra():
        from spodgt.peer.watch import Page, Watched
    if not every > 0:
        raise InvalidInput(f"--every must be above 0, got {every}; use 2.")
    page = Page(Watched(places, identity), bind, port, every)
    print(f"http://{bind}:{page.server_port}/")
    with suppress(KeyboardInterrupt):
        page.run()


@peer_app.command("audit", epilog="Example: [bold]spodgt peer audit peers/p*[/]")
def peer_audit(
    folders: Annotated[list[Path], typer.Argument(help="Folders of stopped clients.")],
    as_json: JsonOption = False,
    limit: Annotated[float, typer.Option(help="Fail above this error.")] = 1e-12,
) -> None:
    """Check that all mass is there: trackers plus mass in flight against stored gradients, from the disks."""
    with _peer_extra():
        from spodgt.peer.folders import audit_folders
    found = audit_folders(folders)
    local = max(found.local.values(), key=lambda error: (math.isnan(error), error))
    if as_json:
        body = {**vars(found), "passed": found.passed(limit)}
        print(json.dumps(json.loads(json.dumps(body), parse_constant=lambda _: None), indent=2))
    else:
        value = "not all in one epoch" if found.error is None else f"{found.error:.2e}"
        print(f"{len(found.local)} clients: |Σy + in flight - Σg| = {value} (relative)")
        print(f"largest local audit {local:.2e}; largest number in flight {found.in_flight:.3g}")
        for problem in found.problems:
            print(f"problem: {problem}")
    if not found.passed(limit):
        raise typer.Exit(1)


@peer_app.command(
    "export", epilog="Example: [bold]spodgt peer export peers/p0 model.safetensors[/]"
)
def peer_export(
    folder: Annotated[Path, typer.Argument(help="Folder of a client; it may run.")],
    target: Annotated[Path, typer.Argument(help="A .safetensors file.")],
    mean: Annotated[
        bool, typer.Option("--mean", help="The running mean, where it is kept.")
    ] = False,
) -> None:
    """Write a client's model as safetensors, as it was last committed."""
    with _peer_extra():
        from spodgt.peer.folders import export
    print(json.dumps(export(folder, target, mean=mean), indent=2))


@peer_app.command("backup", epilog="Example: [bold]spodgt peer backup peers/p0 p0.backup[/]")
def peer_backup(
    folder: Annotated[Path, typer.Argument(help="Folder of a client; it may run.")],
    target: Annotated[Path, typer.Argument(help="The file; it holds the client's key.")],
) -> None:
    """Write a client's certificate, key, manifest and state to one file, while it runs."""
    with _peer_extra():
        from spodgt.peer.backup import backup
    print(json.dumps(backup(folder, target), indent=2))


@peer_app.command("restore", epilog="Example: [bold]spodgt peer restore p0.backup peers/p0[/]")
def peer_restore(
    file: Annotated[Path, typer.Argument(help="A backup; with --model also an exported model.")],
    folder: Annotated[Path, typer.Argument(help="The client's folder, without a state.")],
    model: Annotated[
        bool, typer.Option("--model", help="Only the model, into a stopped client.")
    ] = False,
) -> None:
    """Make a client's folder from a backup, or put a backup's model into a stopped client."""
    with _peer_extra():
        from spodgt.peer.backup import restore, restore_model
    print(json.dumps((restore_model if model else restore)(file, folder), indent=2))


@peer_app.command(
    "add",
    epilog="Example: [bold]spodgt peer add p5 --address 10.0.0.5:7000 --links p0,p2 --run peers[/]",
)
def peer_add(
    name: Annotated[str, typer.Argument(help="The new client.")],
    address: Annotated[
        str, typer.Option(help="host:port, or none if it cannot be reached from outside.")
    ],
    links: Annotated[str, typer.Option(help=_NEIGHBOURS)],
    run: RunArgument = _RUN,
    compute: Annotated[str | None, typer.Option(help="What its device can do, as a table.")] = None,
    days: Annotated[float, typer.Option(help="How long its certificate is valid.")] = 30.0,
) -> None:
    """Sign a manifest with one more client, and make its folder; one running client spreads it to all."""
    with _peer_extra():
        from spodgt.peer import changes, folders

    device = None if compute is None else _devices([f"{name}={compute}"])[name]
    ends: dict[tuple[str, str], dict[str, object]] = {}
    for text in _list(links) or []:
        both = [(text, name), (name, text)]
        ends |= _links([text]) if ":" in text else {pair: {} for pair in both}
    made = folders.publish_next(
        run,
        lambda manifest: changes.joined(
            manifest, name, address=folders.address_of(address), links=ends, compute=device
        ),
    )
    print(f"version {made.version}: {', '.join(made.names)}")
    print(
        f"part {made.client(name).part} of the problem; folder {folders.issue(run, name, days=days)}"
    )


@peer_app.command("remove", epilog="Example: [bold]spodgt peer remove p3 --run peers[/]")
def peer_remove(
    name: Annotated[str, typer.Argument(help="The client that leaves.")], run: RunArgument = _RUN
) -> None:
    """Sign a manifest without a client; put into the folder of one running client, it spreads to all."""
    with _peer_extra():
        from spodgt.peer.folders import remove
    made = remove(run, name)
    print(f"version {made.version}: {', '.join(made.names)}")


@peer_app.command("set", epilog="Example: [bold]spodgt peer set --step-size 0.02 --run peers[/]")
@grouped
def peer_set(run: RunArgument = _RUN, *, settings: Settings) -> None:
    """Sign a manifest with other settings, addresses, devices or links; running clients take it whole."""
    from spodgt.experiment import value_of

    with _peer_extra():
        from spodgt.peer import changes, folders

    pairs = [(text, *text.partition("=")[::2]) for text in settings.address or []]
    for text, name, address in pairs:
        if not name or not address:
            raise InvalidInput(f"--address {text!r} must be NAME=host:port.")
    change = changes.Change(
        None if settings.step_size is None else value_of(settings.step_size),
        settings.rounds_per_second,
        settings.max_alone,
        {name: folders.address_of(address) for _, name, address in pairs},
        _devices(settings.compute or []),
        _links(settings.link or []),
        frozenset(_links(settings.unlink or [])),
        settings.root,
    )
    made = folders.publish_next(run, lambda manifest: changes.changed(manifest, change))
    print(f"version {made.version}: {len(made.clients)} clients, {len(made.links)} links")


@peer_app.command("renew", epilog="Example: [bold]spodgt peer renew all --run peers[/]")
def peer_renew(
    name: Annotated[str, typer.Argument(help="A client of the manifest, or all.")],
    run: RunArgument = _RUN,
    days: Annotated[float, typer.Option(help="How long the certificate is valid.")] = 30.0,
) -> None:
    """Make new certificates; a running client takes key.pem and cert.pem once they are in its folder."""
    peer_issue(name, run, days)


@peer_app.command("quarantine", epilog="Example: [bold]spodgt peer quarantine p3 --run peers[/]")
def peer_quarantine(
    name: Annotated[str, typer.Argument(help="The client.")],
    run: RunArgument = _RUN,
    end: Annotated[bool, typer.Option("--end", help="Give it its links again.")] = False,
) -> None:
    """Sign a manifest in which a client stays a member but has no links: it hears and says nothing."""
    with _peer_extra():
        from spodgt.peer import changes, folders
    made = folders.publish_next(run, lambda manifest: changes.quarantined(manifest, name, not end))
    print(f"version {made.version}: linked are {', '.join(made.linked)}")


@peer_app.command("demo", epilog="Example: [bold]spodgt peer demo --seconds 40 --out demo[/]")
def peer_demo(
    out: Annotated[Path, typer.Option(help="Folder for the run and the picture.")] = Path(
        "peer-demo"
    ),
    seconds: Annotated[float, typer.Option(help="How long.")] = 40.0,
    as_json: JsonOption = False,
) -> None:
    """Five local peers on images; two of them are killed and restarted; a picture of what happened."""
    with _peer_extra():
        from spodgt.peer.demo import demo
    from rich.console import Console

    result = demo(out, seconds, Console(stderr=as_json))
    if as_json:
        print(json.dumps(result, indent=2))


@contextmanager
def _peer_extra() -> Iterator[None]:
    """Around imports that need the extra `peer`: says how to install it."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").split(".")[0] not in (
            "grpc",
            "google",
            "cryptography",
            "prometheus_client",
        ):
            raise
        fix = "install it with: pip install 'spodgt[peer]'"
        raise InvalidInput(f"spodgt peer needs {error.name}; {fix}.") from None


def _devices(given: list[str]) -> dict[str, dict[str, object]]:
    from spodgt.experiment import value_of

    devices = {}
    for text in given:
        name, _, table = text.partition("=")
        devices[name.strip()] = value_of(table)
        if not isinstance(devices[name.strip()], dict):
            raise InvalidInput(
                f'--compute {text!r} must be NAME={{kind = "budget", share = 0.25}}.'
            )
    return devices


def _links(given: list[str]) -> dict[tuple[str, str], dict[str, object]]:
    from spodgt.experiment import value_of

    links = {}
    for text in given:
        ends, _, table = text.partition("=")
        sender, _, receiver = (part.strip() for part in ends.partition(":"))
        value = value_of(table) if table else {}
        if not sender or not receiver or not isinstance(value, dict):
            raise InvalidInput(
                f"link {text!r} must be SENDER:RECEIVER, or SENDER:RECEIVER={{p_hat = 0.5}}."
            )
        links[sender, receiver] = value
    return links


def _list(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]
