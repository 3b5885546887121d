"""`spodgt peer add`, `remove`, `set` and `quarantine`: new versions of a run's manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spodgt.cli.app import flag
from spodgt.cli.option_groups import TextOption, with_option_groups
from spodgt.cli.peer.app import (
    DEFAULT_DAYS,
    DEFAULT_RUN,
    DaysOption,
    RunOption,
    parse_devices,
    parse_links,
    peer_app,
    peer_extra,
    split_commas,
)
from spodgt.errors import InvalidInput
from spodgt.peer.options import Change

if TYPE_CHECKING:
    from spodgt.peer.membership.manifest import Manifest

_NEIGHBOURS = "Neighbours, comma-separated: p0 for both directions, p0:NAME or NAME:p0 for one."


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
    run: RunOption = DEFAULT_RUN,
    compute: Annotated[
        str | None, typer.Option(help="Limits of its device: '{kind = \"budget\", share = 0.25}'.")
    ] = None,
    days: DaysOption = DEFAULT_DAYS,
) -> None:
    """Sign a manifest with one more client, and create its folder.

    Copied into the folder of one running client, the manifest is distributed to all.
    """
    with peer_extra():
        from spodgt.peer.membership import manifest_changes, run_folders

    device = None
    if compute is not None:
        device = parse_devices([f"{name}={compute}"])[name]
    link_tables: dict[tuple[str, str], dict[str, object]] = {}
    for neighbour in split_commas(links) or []:
        if ":" in neighbour:
            link_tables |= parse_links([neighbour])
        else:
            link_tables[neighbour, name] = {}
            link_tables[name, neighbour] = {}

    def add_client(manifest: Manifest) -> Manifest:
        return manifest_changes.add_client(
            manifest,
            name,
            address=run_folders.address_of(address),
            links=link_tables,
            compute=device,
        )

    manifest = _publish(run, add_client)
    print(f"version {manifest.version}: {', '.join(manifest.names)}")
    folder = run_folders.issue(run, name, days=days)
    print(f"part {manifest.client(name).part} of the problem; folder {folder}")


@peer_app.command("remove", epilog="Example: [bold]spodgt peer remove p3 --run peers[/]")
def peer_remove(
    name: Annotated[str, typer.Argument(help="The client to remove.")], run: RunOption = DEFAULT_RUN
) -> None:
    """Sign a manifest without a client.

    Copied into the folder of one running client, the manifest is distributed to all.
    """
    with peer_extra():
        from spodgt.peer.membership.run_folders import remove
    manifest = remove(run, name)
    print(f"version {manifest.version}: {', '.join(manifest.names)}")


def parse_addresses(texts: list[str] | None) -> dict[str, str]:
    """Addresses by client, of --address NAME=host:port."""
    from spodgt.peer.membership.run_folders import address_of

    addresses = {}
    for text in texts or []:
        name, _, address = text.partition("=")
        if not name or not address:
            raise InvalidInput(f"--address {text!r} must be NAME=host:port.")
        addresses[name] = address_of(address)
    return addresses


def parse_step_size(text: str | None) -> object:
    """A number, or a schedule as a TOML table."""
    from spodgt.experiment import value_of

    return None if text is None else value_of(text)


def parse_removed_links(texts: list[str] | None) -> frozenset[tuple[str, str]]:
    """(sender, receiver) of --unlink SENDER:RECEIVER."""
    return frozenset(parse_links(texts))


_TEXT_OPTIONS = {
    "step_size": TextOption(parse_step_size),
    "addresses": TextOption(parse_addresses, "--address"),
    "compute": TextOption(parse_devices),
    "links": TextOption(parse_links, "--link"),
    "unlinked": TextOption(parse_removed_links, "--unlink"),
}


@peer_app.command("set", epilog="Example: [bold]spodgt peer set --step-size 0.02 --run peers[/]")
@with_option_groups
def peer_set(run: RunOption = DEFAULT_RUN, *, change: Annotated[Change, _TEXT_OPTIONS]) -> None:
    """Sign a manifest with other settings, addresses, devices or links.

    Running clients apply all changes of a manifest, or none.
    """
    with peer_extra():
        from spodgt.peer.membership import manifest_changes
    manifest = _publish(run, lambda manifest: manifest_changes.apply_change(manifest, change))
    clients = len(manifest.clients)
    print(f"version {manifest.version}: {clients} clients, {len(manifest.links)} links")


@peer_app.command("quarantine", epilog="Example: [bold]spodgt peer quarantine p3 --run peers[/]")
def peer_quarantine(
    name: Annotated[str, typer.Argument(help="The client.")],
    run: RunOption = DEFAULT_RUN,
    end: Annotated[bool, flag("--end", "Restore its links.")] = False,
) -> None:
    """Sign a manifest in which a client remains a member without links.

    It sends and receives no messages.
    """
    with peer_extra():
        from spodgt.peer.membership import manifest_changes

    def quarantine(manifest: Manifest) -> Manifest:
        return manifest_changes.set_quarantine(manifest, name, not end)

    manifest = _publish(run, quarantine)
    print(f"version {manifest.version}: linked are {', '.join(manifest.linked)}")


def _publish(run: Path, change: Callable[[Manifest], Manifest]) -> Manifest:
    """Sign and write the next version of a run's manifest."""
    from spodgt.peer.membership.run_folders import publish_next

    return publish_next(run, change)
