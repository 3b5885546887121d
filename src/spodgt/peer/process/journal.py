"""The log of a running peer: one JSON object per line."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import threading
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from spodgt.peer.host.events import describe
from spodgt.peer.host.interfaces import Host
from spodgt.peer.host.text import json_values, printable
from spodgt.peer.transport.grpc_wire import system_host

_QUIET = 5.0  # seconds between two entries of the same kind and subject
_TEXT = 300  # characters of an event
_LOG_BYTES = 8_000_000  # then the log is moved to log.jsonl.1, which replaces the one before it


class Event(NamedTuple):
    """An entry of the log."""

    time: float  # of the wall clock
    kind: str
    text: str
    subject: str  # the neighbour or the link that it is about; "" if none


class Journal:
    """The log in a file, counts of events by kind, and the most recent events."""

    def __init__(self, path: Path, name: str, host: Host | None = None) -> None:
        self.path = path
        self.name = name
        self.host = host or system_host()
        self.last_logged: dict[tuple[str, str], float] = {}  # monotonic time by kind and subject
        self.recent: deque[Event] = deque(maxlen=4)
        self.counts: Counter[str] = Counter()
        self.lock = threading.Lock()
        self.logger = logging.getLogger(f"spodgt.peer.{name}")

    def event(self, kind: str, text: str, subject: str = "") -> None:
        """Count an event, and log it unless one of the same kind and subject was logged just now.

        Args:
            kind: Such as "refused" or "link up".
            text: One sentence for operators.
            subject: The neighbour or the link that the event is about; "": the text identifies it.
        """
        now = self.host.clock.monotonic()
        key = kind, (subject or text)[:_TEXT]
        text = printable(describe(text, subject)[:_TEXT])
        with self.lock:
            self.counts[kind] += 1
            if now - self.last_logged.get(key, -math.inf) < _QUIET:
                return
            if len(self.last_logged) > 1000:
                self.last_logged.clear()
            self.last_logged[key] = now
            self.recent.append(Event(self.host.clock.wall(), kind, text, printable(subject)))
        row = {"event": kind, "text": text}
        if subject:
            row["subject"] = printable(subject)
        self.append(row)
        self.logger.info("%s: %s", kind, text)

    def recent_rows(self) -> list[dict[str, object]]:
        """The most recent events with the keys of log.jsonl."""
        return [
            {"time": event.time, "event": event.kind, "text": event.text, "subject": event.subject}
            for event in list(self.recent)
        ]

    def append(self, row: Mapping[str, object]) -> None:
        """Write one line; a log that cannot be written, as on a full disk, ends nothing."""
        body = {"time": self.host.clock.wall(), "client": self.name, **row}
        line = json.dumps(json_values(body)) + "\n"
        files = self.host.files
        try:
            with self.lock:
                with contextlib.suppress(FileNotFoundError):
                    if files.status(self.path).size > _LOG_BYTES:
                        files.rename(self.path, self.path.with_name(self.path.name + ".1"))
                files.append(self.path, line.encode())
        except OSError:
            self.logger.warning("log %s cannot be written", self.path)
