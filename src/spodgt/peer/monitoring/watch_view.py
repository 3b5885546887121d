"""The data of the page of `spodgt peer watch`, as JSON values."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from spodgt.peer.membership.manifest import Manifest
from spodgt.peer.monitoring.findings import Finding, FirstFlag, find_problems, link_states
from spodgt.peer.monitoring.report_validation import Json
from spodgt.peer.monitoring.watched_client import WatchedClient

_EVENTS = 40  # on the page

Clients = Mapping[str, WatchedClient]  # by name


def make_view(clients: Clients, manifest: Manifest | None, first: Mapping[str, FirstFlag]) -> Json:
    """All data of the page.

    Args:
        clients: Those that are watched.
        manifest: In force; None if it is not known.
        first: When clients were first called suspicious.
    """
    reports = {name: client.status for name, client in clients.items() if client.status}
    ages = {name: client.age for name, client in clients.items()}
    findings = find_problems(reports, ages, manifest, first)
    findings += _unseen(clients, manifest)
    rows = [_client_row(client, findings, manifest) for client in _in_order(clients, manifest)]
    return {
        "time": time.time(),
        "run": manifest.run if manifest else "",
        "version": manifest.version if manifest else 0,
        "clients": rows,
        "links": link_states(reports, ages, manifest),
        "findings": [vars(finding) for finding in findings],
        "events": _latest_events(clients),
    }


def _latest_events(clients: Clients) -> list[Json]:
    """Events of all clients, the latest first."""
    events = []
    for client in clients.values():
        events += [{**event, "client": client.name} for event in client.events]
    events.sort(key=lambda event: event.get("time", 0))
    return events[-_EVENTS:][::-1]


def _unseen(clients: Clients, manifest: Manifest | None) -> Iterator[Finding]:
    """Members of which there is no report, or none that can be used."""
    for name, client in clients.items():
        if client.folder is None and not client.address:
            text = (
                f"{name} has no address and cannot be asked: only its neighbours' reports show it"
            )
            yield Finding("warn", name, "unseen", text)
        elif not client.status:
            yield Finding("bad", name, "unseen", f"{name} {client.why}")
    missing = [name for name in _names(manifest) if name not in clients]
    if missing:
        text = f"{', '.join(missing)}: members that are not watched; give the run's folder to watch all"
        yield Finding("warn", missing[0], "unwatched", text)


def _in_order(clients: Clients, manifest: Manifest | None) -> list[WatchedClient]:
    """The clients in the order of the manifest, others at the end."""
    names = [name for name in _names(manifest) if name in clients]
    names += [name for name in clients if name not in names]
    return [clients[name] for name in names]


def _client_row(client: WatchedClient, findings: list[Finding], manifest: Manifest | None) -> Json:
    own = [finding for finding in findings if finding.client == client.name]
    levels = {finding.level for finding in own}
    level = "good"
    if levels:
        level = "bad" if "bad" in levels else "warn"
    members = manifest.clients if manifest else ()
    quarantined = {member.name for member in members if member.quarantined}
    body = {key: value for key, value in client.status.items() if key != "neighbours"}
    return body | {
        "name": client.name,
        "level": level,
        "kinds": sorted({finding.kind for finding in own}),
        "age": client.age,
        "quarantined": client.name in quarantined,
        "history": list(client.history),
        "source": client.source,
    }


def _names(manifest: Manifest | None) -> list[str]:
    return manifest.names if manifest else []
