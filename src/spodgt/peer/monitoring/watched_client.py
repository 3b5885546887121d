"""A client that `spodgt peer watch` shows: its last report, from its folder or over mutual TLS."""

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

from spodgt.peer.membership.certificates import seconds_left
from spodgt.peer.membership.manifest import Manifest, SignedManifest
from spodgt.peer.membership.run_folders import observer_identity
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


def _last_events(path: Path) -> Iterator[Json]:
    """The last events of a log."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _LOG_TAIL))
        for line in file.read().splitlines()[-_LOG_LINES:]:
            with contextlib.suppress(ValueError):  # the first line may be cut
                row = json.loads(line)
                if isinstance(row, dict) and row.get("event") != "status":
                    yield from check_events([row])


class RemoteReports:
    """Requests reports over the network.

    Args:
        requester: Folder with the certificate, or with the key to make one.
        lock: Held while a client changes.
    """

    def __init__(self, requester: Path, lock: threading.Lock) -> None:
        self.requester = requester
        self.lock = lock
        self.identity = observer_identity(requester)

    def update(self, clients: list[WatchedClient], version: int) -> list[Manifest]:
        """Request the reports of clients; returns the manifests above `version` that they follow."""
        if seconds_left(self.identity.certificate) < _RENEW_SECONDS:
            self.identity = observer_identity(self.requester)
        newer = asyncio.run(self._request_all(clients, version))
        return [manifest for manifest in newer if manifest is not None]

    async def _request_all(
        self, clients: list[WatchedClient], version: int
    ) -> list[Manifest | None]:
        return await asyncio.gather(*(self._request(client, version) for client in clients))

    async def _request(self, client: WatchedClient, version: int) -> Manifest | None:
        """Request the report of a client and, if it follows a later manifest, that manifest."""
        own = self.identity
        try:
            answer = fetch("Status", own, client.address, client.name, MOST_BYTES)
            status, events = parse_report(await asyncio.wait_for(answer, SECONDS))
            with self.lock:
                client.update(status, events, time.time())
            if status.get("version", 0) > version:
                file = await fetch("Manifest", own, client.address, client.name)
                return SignedManifest.verify(file, own.authority).manifest
        except ValueError as error:
            client.why = f"has sent a report that cannot be used: {error}"[:_TEXT]
        except Exception as error:  # shown on the page, whatever it is
            client.why = f"cannot be asked at {client.address}: {type(error).__name__}"
        return None
