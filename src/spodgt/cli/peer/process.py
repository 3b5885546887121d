"""`spodgt peer start`, `status` and `watch`: running clients."""

from __future__ import annotations

import json
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from spodgt.cli.app import JsonOption, flag
from spodgt.cli.option_groups import with_option_groups
from spodgt.cli.peer.app import DEFAULT_RUN, RunOption, peer_app, peer_extra
from spodgt.errors import InvalidInput
from spodgt.peer.options import Options, check_address


@peer_app.command(
    "start", epilog="Example: [bold]spodgt peer start p3 --run peers --durability process[/]"
)
@with_option_groups
def peer_start(
    name: Annotated[str, typer.Argument(help="The client to run in this process.")],
    run: RunOption = DEFAULT_RUN,
    metrics_port: Annotated[
        int | None, typer.Option(help="Serve Prometheus metrics on this port.")
    ] = None,
    metrics_bind: Annotated[str, typer.Option(help="Address of the metrics server.")] = "127.0.0.1",
    quiet: Annotated[bool, flag("--quiet", "No panel; print events as lines on stderr.")] = False,
    json_log: Annotated[bool, flag("--json-log", "Print events as JSON lines on stderr.")] = False,
    *,
    options: Options,
) -> None:
    """Run one client until it is stopped; started again, it continues."""
    from spodgt.engine import use_loops

    with peer_extra():
        from spodgt.peer.monitoring.console import panel
        from spodgt.peer.monitoring.metrics import serve_metrics
        from spodgt.peer.process.main import Peer
    from rich.live import Live

    _check_start(options, metrics_port)
    folder = _client_folder(run, name)
    show_panel = sys.stdout.isatty() and not quiet and not json_log
    _configure_logging(json_log, logging.ERROR if show_panel else logging.INFO)
    os.umask(0o077)  # files of a client are readable by its owner only
    with use_loops(options.compiled):
        peer = Peer(folder, name, options)
        status = peer.reporter.status
        journal = peer.journal
        if metrics_port is not None:
            port = serve_metrics(status, journal, metrics_port, metrics_bind)
            print(f"metrics at http://{metrics_bind}:{port}/metrics", file=sys.stderr)
        if not show_panel:
            peer.run()
            return
        with Live(auto_refresh=False, transient=False) as live:
            peer.run(lambda: live.update(panel(status, journal), refresh=True))


def _check_start(options: Options, metrics_port: int | None) -> None:
    for key in ("rounds", "gradients", "seconds", "commit_every", "evaluate_every", "drop_after"):
        value = vars(options)[key]
        if value is not None and value <= 0:
            raise InvalidInput(
                f"{key} must be above 0, got {value}; use --{key.replace('_', '-')} 100."
            )
    if options.listen is not None:
        check_address(options.listen, "--listen")
    if metrics_port is not None and not 0 <= metrics_port < 65536:
        raise InvalidInput(
            f"--metrics-port must be a port below 65536, got {metrics_port}; use 9090."
        )


def _client_folder(run: Path, name: str) -> Path:
    """The folder of a client: RUN/NAME, or RUN itself on a host that has only this folder.

    Raises:
        InvalidInput: if it has no certificate.
    """
    from spodgt.peer.membership import run_folders

    folder = run / name if (run / name).is_dir() else run
    if (folder / "cert.pem").exists():
        return folder
    if (run / "manifest.toml").exists():
        names = run_folders.load(run).names
        if name not in names:
            raise InvalidInput(
                f"{name!r} is not a client of {run}; choose from {', '.join(names)}, or add it "
                "with spodgt peer add."
            )
    fix = f"create it with: spodgt peer issue {name} --run {run}"
    raise InvalidInput(f"client {name!r} has no certificate in {run}; {fix}.")


def _configure_logging(json_log: bool, level: int) -> None:
    from spodgt.peer.monitoring.console import JsonLines

    handler = logging.StreamHandler()
    if json_log:
        handler.setFormatter(JsonLines())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])


@peer_app.command("status", epilog="Example: [bold]spodgt peer status --run peers[/]")
def peer_status(run: RunOption = DEFAULT_RUN, as_json: JsonOption = False) -> None:
    """Show the last status of the clients in this folder."""
    with peer_extra():
        from spodgt.peer.membership import run_folders
        from spodgt.peer.monitoring.console import overview
    from rich.console import Console

    paths = sorted([*run.glob("*/status.json"), *run.glob("status.json")])
    rows = [json.loads(path.read_text()) for path in paths]
    if not rows:
        fix = f"start one with spodgt peer start NAME --run {run}"
        if (run / "manifest.toml").exists() and run_folders.load(run).is_script:
            fix = f"start the script at a site, or give the folder of a site: {run}/NAME"
        raise InvalidInput(f"{run} holds no client that has reported; {fix}.")
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        Console().print(overview(rows))


@peer_app.command("watch", epilog="Example: [bold]spodgt peer watch peers[/]")
def peer_watch(
    sources: Annotated[
        list[str], typer.Argument(help="Folders of runs or clients, or host:port of clients.")
    ],
    port: Annotated[int, typer.Option(help="Port of the page; 0: any free port.")] = 8765,
    bind: Annotated[str, typer.Option(help="Address of the page.")] = "127.0.0.1",
    identity: Annotated[
        Path | None,
        typer.Option(help="Folder with the certificate to query clients by host:port."),
    ] = None,
    every: Annotated[float, typer.Option(help="Seconds between two updates.")] = 2.0,
) -> None:
    """Serve a local web page of all clients: silent clients, outliers and training progress."""
    with peer_extra():
        from spodgt.peer.monitoring.watch_server import WatchServer
        from spodgt.peer.monitoring.watched_run import WatchedRun
    if not every > 0:
        raise InvalidInput(f"--every must be above 0, got {every}; use 2.")
    page = WatchServer(WatchedRun(sources, identity), bind, port, every)
    print(f"http://{bind}:{page.server_port}/")
    with suppress(KeyboardInterrupt):
        page.run()
