"""The clients that `spodgt peer watch` shows, from their folders or over mutual TLS.

    sources ──poll──▶ WatchedClient ──find_problems──▶ view (JSON) ──▶ page/watch.html in a browser

Nothing is written, and only requests for a peer's status leave this host.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from spodgt.errors import InvalidInput
from spodgt.peer.membership.certificates import certificate_name
from spodgt.peer.membership.manifest import Manifest
from spodgt.peer.membership.run_folders import load
from spodgt.peer.monitoring.findings import FirstFlag, first_flags
from spodgt.peer.monitoring.report_validation import Json
from spodgt.peer.monitoring.watch_view import make_view
from spodgt.peer.monitoring.watched_client import RemoteReports, WatchedClient


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
        self.remote: RemoteReports | None = None
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
                f"{(addresses or remote)[0]} is no folder here, so it is requested over the "
                "network, which needs --identity with the folder of a client, or of: "
                "spodgt peer issue observer."
            )
        self.remote = RemoteReports(self.requester, self.lock)
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
        if self.manifest is None:
            return
        for member in self.manifest.clients:
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
            self.first = merge_first_flags(self.clients.values(), self.first)

    def _update_members(self) -> None:
        """Watch the present members: clients join, leave and move while the page is open."""
        for folder in self.folders:
            with contextlib.suppress(InvalidInput):  # a file that is being written is read later
                self._add_folder(folder)
        if self.follows_all:
            self._add_members()
        self._remove_strangers()

    def _request_reports(self) -> None:
        """Request the reports of clients without a folder here; follow newer manifests."""
        remote = []
        for client in self.clients.values():
            if client.folder is None and client.address:
                remote.append(client)
        if not remote or self.requester is None:
            return
        if self.remote is None:
            self.remote = RemoteReports(self.requester, self.lock)
        version = self.manifest.version if self.manifest else 0
        for newer in self.remote.update(remote, version):
            with self.lock:
                if self.manifest is not None and newer.run == self.manifest.run:
                    self._follow(newer)

    def view(self) -> Json:
        """All data of the page, as JSON values."""
        with self.lock:
            return make_view(self.clients, self.manifest, self.first)


def merge_first_flags(
    clients: Iterable[WatchedClient], before: Mapping[str, FirstFlag]
) -> dict[str, FirstFlag]:
    """When clients were first flagged, kept for longer than their neighbours' logs do."""
    first: dict[str, FirstFlag] = {}
    flagged = set()
    for client in clients:
        for name, flag in first_flags(client.events).items():
            if name not in first or flag.at < first[name].at:
                first[name] = flag
        for link in client.status.get("neighbours", []):
            if link.get("flags"):
                flagged.add(link["name"])
    first |= before
    return {name: flag for name, flag in first.items() if name in flagged}
