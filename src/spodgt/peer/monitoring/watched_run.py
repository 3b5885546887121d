"""The clients that `spodgt peer watch` shows, from their folders or over mutual TLS.

    sources ──poll──▶ WatchedClient ──find_problems──▶ view (JSON) ──▶ page/watch.html in a browser

Nothing is written, and only requests for a peer's status leave this host.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from spodgt.errors import InvalidInput
from spodgt.peer.membership.certificates import Identity, certificate_name, seconds_left
from spodgt.peer.membership.manifest import Manifest, SignedManifest
from spodgt.peer.membership.run_folders import load, observer_identity
from spodgt.peer.monitoring.findings import (
    Finding,
    FirstFlag,
    find_problems,
    first_flags,
    link_states,
)
from spodgt.peer.monitoring.report_validation import (
    MOST_BYTES,
    SECONDS,
    Json,
    check_events,
    check_status,
    parse_report,
)
from spodgt.peer.transport.connection import fetch

_LOG_TAIL = 2**16  # bytes of a log that are read
_LOG_LINES = 200
_EVENTS = 40  # on the page
_TEXT = 300  # characters of a reason
_RENEW_SECONDS = 3600.0  # before the certificate of the page ends
_HISTORY = 300


class Score(NamedTuple):
    """Loss and accuracy of a client at one time."""

    time: float
    loss: float | None
    accuracy: float | None


@dataclass
class WatchedClient:
    """A client and its last report."""

    name: str
    folder: Path | None  # None: its report is requested over the network
    address: str = ""
    status: Json = field(default_factory=dict)
    events: list[Json] = field(default_factory=list)
    why: str = "has not reported yet"  # it has no usable report; "" if it has one
    changed: float = 0.0  # time of the last change of its status, by this host's clock
    history: deque[Score] = field(default_factory=lambda: deque(maxlen=_HISTORY))

    def update(self, status: Json, events: list[Json], time: float) -> None:
        """Take over a report that was written at `time`."""
        if status.get("time") != self.status.get("time"):
            self.status = status
            self.changed = time
            score = Score(status["time"], status.get("loss"), status.get("accuracy"))
            if not self.history or self.history[-1][1:] != score[1:]:
                self.history.append(score)
        self.events = events
        self.why = ""

    @property
    def age(self) -> float | None:
        """Seconds since the last report; None if there is none."""
        return max(0.0, time.time() - self.changed) if self.changed else None

    def read_folder(self) -> None:
        """Read the report in the client's folder."""
        assert self.folder is not None
        path = self.folder / "status.json"
        try:
            status = check_status(json.loads(path.read_text()))
            events = list(_last_events(self.folder / "log.jsonl"))
            self.update(status, events, path.stat().st_mtime)
        except (OSError, ValueError) as error:
            self.why = f"has no status that can be read: {error}"

    @property
    def source(self) -> str:
        return str(self.folder or self.address or "no address")


class WatchedRun:
    """The clients that are watched, and the last report of each.

    Args:
        places: Folders of runs or of clients, and addresses host:port of running clients.
        requester: Folder of a client or an observer, with the certificate for requests over the network.
            Default: a certificate made with the key of the first run's folder.

    Raises:
        InvalidInput: There is no client in `places`, or no certificate for those on the network.
    """

    def __init__(self, places: list[str], requester: Path | None = None) -> None:
        self.clients: dict[str, WatchedClient] = {}
        self.manifest: Manifest | None = None
        self.identity: Identity | None = None
        self.first: dict[str, FirstFlag] = {}
        self.lock = threading.Lock()
        self.folders = [Path(place) for place in places if Path(place).is_dir()]
        addresses = [place for place in places if not Path(place).is_dir()]
        runs = [folder for folder in self.folders if (folder / "ca.key").exists()]
        self.requester = requester
        if requester is None and runs:
            self.requester = runs[0]
        for folder in self.folders:
            self._add_folder(folder)
        self._prepare_requests(addresses)
        for address in addresses:
            self._add_address(address)
        if not self.clients:
            raise InvalidInput(
                f"no client was found in {', '.join(places)}; give the folder of a run."
            )
        self.follows_all = bool(runs) or set(self._member_names()) <= set(self.clients)

    def _member_names(self) -> list[str]:
        return self.manifest.names if self.manifest else []

    def _prepare_requests(self, addresses: list[str]) -> None:
        """Read certificate and manifest if any client must be requested over the network."""
        remote = [client.name for client in self.clients.values() if client.folder is None]
        if not addresses and not remote:
            return
        if self.requester is None:
            raise InvalidInput(
                f"{(addresses or remote)[0]} must be asked over the network; give --identity with the "
                "folder of a client, or of: spodgt peer issue observer."
            )
        self.identity = observer_identity(self.requester)
        self.manifest = self.manifest or load(self.requester)

    def _add_folder(self, folder: Path) -> None:
        """Add what is new in the folder of a run or of a client: a manifest, or a client with a report."""
        homes = [folder]
        if not (folder / "cert.pem").exists():
            homes = sorted(path.parent for path in folder.glob("*/cert.pem"))
        for home in homes:
            self._follow(load(home))
            name = certificate_name(home)
            known = self.clients.get(name)
            is_new = known is None or known.folder is None
            if is_new and (home / "status.json").exists():
                self.clients[name] = WatchedClient(name, home)
        if (folder / "ca.key").exists():  # a run's folder: its other clients are elsewhere
            self._follow(load(folder))
            self._add_members()
        self._remove_strangers()

    def _follow(self, manifest: Manifest) -> None:
        """Follow a manifest with a verified signature, if it is later than the one followed."""
        if self.manifest is None or manifest.version > self.manifest.version:
            self.manifest = manifest

    def _add_members(self) -> None:
        """Watch every member of the manifest, at its present address."""
        for member in self.manifest.clients if self.manifest else ():
            client = WatchedClient(member.name, None)
            client = self.clients.setdefault(member.name, client)
            client.address = member.address

    def _remove_strangers(self) -> None:
        """Keep only clients of the manifest."""
        names = self._member_names()
        self.clients = {name: client for name, client in self.clients.items() if name in names}

    def _add_address(self, address: str) -> None:
        assert self.manifest is not None
        members = [client for client in self.manifest.clients if client.address == address]
        if not members:
            known = ", ".join(client.address for client in self.manifest.clients if client.address)
            raise InvalidInput(
                f"{address!r} is no folder and no address of the manifest; they are {known}."
            )
        name = members[0].name
        self.clients.setdefault(name, WatchedClient(name, None, address))

    # --- polling ---------------------------------------------------------------------------------
    def poll(self) -> None:
        """Follow the manifest, read all folders and request all other reports, once."""
        with self.lock:
            self._update_members()
        for client in list(self.clients.values()):
            if client.folder is not None:
                with self.lock:
                    client.read_folder()
        self._request_reports()
        with self.lock:
            self._update_first_flags()

    def _update_members(self) -> None:
        """Watch the present members: clients join, leave and move while the page is open."""
        for folder in self.folders:
            with contextlib.suppress(InvalidInput):  # a file that is being written is read later
                self._add_folder(folder)
        if self.follows_all:
            self._add_members()
        self._remove_strangers()

    def _request_reports(self) -> None:
        remote = []
        for client in self.clients.values():
            if client.folder is None and client.address:
                remote.append(client)
        if not remote or self.requester is None:
            return
        if self.identity is None or seconds_left(self.identity.certificate) < _RENEW_SECONDS:
            self.identity = observer_identity(self.requester)
        asyncio.run(self._request_all(remote, self.identity))

    async def _request_all(self, remote: list[WatchedClient], own: Identity) -> None:
        await asyncio.gather(*(self._request(client, own) for client in remote))

    async def _request(self, client: WatchedClient, own: Identity) -> None:
        """Request the report of a client and, if it follows a later manifest, that manifest."""
        try:
            answer = fetch("Status", own, client.address, client.name, MOST_BYTES)
            status, events = parse_report(await asyncio.wait_for(answer, SECONDS))
            with self.lock:
                client.update(status, events, time.time())
            if self.manifest is not None and status.get("version", 0) > self.manifest.version:
                file = await fetch("Manifest", own, client.address, client.name)
                newer = SignedManifest.verify(file, own.authority).manifest
                with self.lock:
                    if newer.run == self.manifest.run:
                        self._follow(newer)
        except ValueError as error:
            client.why = f"has sent a report that cannot be used: {error}"[:_TEXT]
        except Exception as error:  # shown on the page, whatever it is
            client.why = f"cannot be asked at {client.address}: {type(error).__name__}"

    def _update_first_flags(self) -> None:
        """Keep when clients were first flagged, for longer than their neighbours' logs do."""
        first: dict[str, FirstFlag] = {}
        flagged = set()
        for client in self.clients.values():
            for name, flag in first_flags(client.events).items():
                if name not in first or flag.at < first[name].at:
                    first[name] = flag
            for link in client.status.get("neighbours", []):
                if link.get("flags"):
                    flagged.add(link["name"])
        first |= self.first
        self.first = {name: flag for name, flag in first.items() if name in flagged}

    # --- the page --------------------------------------------------------------------------------
    def view(self) -> Json:
        """All data of the page, as JSON values."""
        with self.lock:
            reports = {client.name: client.status for client in self.clients.values()}
            reports = {name: status for name, status in reports.items() if status}
            ages = {name: client.age for name, client in self.clients.items()}
            findings = find_problems(reports, ages, self.manifest, self.first)
            findings += self._unseen()
            return {
                "time": time.time(),
                "run": self.manifest.run if self.manifest else "",
                "version": self.manifest.version if self.manifest else 0,
                "clients": [self._client_row(client, findings) for client in self._in_order()],
                "links": link_states(reports, ages, self.manifest),
                "findings": [vars(finding) for finding in findings],
                "events": self._latest_events(),
            }

    def _latest_events(self) -> list[Json]:
        """Events of all clients, the latest first."""
        events = []
        for client in self.clients.values():
            events += [{**event, "client": client.name} for event in client.events]
        events.sort(key=lambda event: event.get("time", 0))
        return events[-_EVENTS:][::-1]

    def _unseen(self) -> Iterator[Finding]:
        """Members of which there is no report, or none that can be used."""
        for name, client in self.clients.items():
            if client.folder is None and not client.address:
                text = f"{name} has no address and cannot be asked: only its neighbours' reports show it"
                yield Finding("warn", name, "unseen", text)
            elif not client.status:
                yield Finding("bad", name, "unseen", f"{name} {client.why}")
        missing = [name for name in self._member_names() if name not in self.clients]
        if missing:
            text = f"{', '.join(missing)}: members that are not watched; give the run's folder to watch all"
            yield Finding("warn", missing[0], "unwatched", text)

    def _in_order(self) -> list[WatchedClient]:
        """The clients in the order of the manifest, others at the end."""
        names = [name for name in self._member_names() if name in self.clients]
        names += [name for name in self.clients if name not in names]
        return [self.clients[name] for name in names]

    def _client_row(self, client: WatchedClient, findings: list[Finding]) -> Json:
        own = [finding for finding in findings if finding.client == client.name]
        levels = {finding.level for finding in own}
        level = "good"
        if levels:
            level = "bad" if "bad" in levels else "warn"
        members = self.manifest.clients if self.manifest else ()
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


def _last_events(path: Path) -> Iterator[Json]:
    """The last events of a log."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOG_TAIL))
        for line in file.read().splitlines()[-_LOG_LINES:]:
            with contextlib.suppress(ValueError):  # the first line may be cut
                row = json.loads(line)
                if isinstance(row, dict) and row.get("event") != "status":
                    yield from check_events([row])
