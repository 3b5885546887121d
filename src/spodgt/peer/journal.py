"""The log of a peer: one JSON object per line."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Mapping
from pathlib import Path

_QUIET = 5.0  # seconds between two entries of the same kind and text


class Journal:
    """A structured log, counts of events by kind, and the most recent events."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.told: dict[tuple[str, str], float] = {}
        self.recent: list[tuple[float, str, str]] = []
        self.counts: dict[str, int] = {}
        self.lock = threading.Lock()
        self.logger = logging.getLogger(f"spodgt.peer.{name}")

    def event(self, kind: str, text: str) -> None:
        """Count an event, and log it unless the same was logged a few seconds ago."""
        now = time.monotonic()
        with self.lock:
            self.counts[kind] = self.counts.get(kind, 0) + 1
            if now - self.told.get((kind, text), -math.inf) < _QUIET:
                return
            if len(self.told) > 1000:
                self.told.clear()
            self.told[kind, text] = now
            self.recent = [*self.recent[-7:], (time.time(), kind, text)]
        self.append({"event": kind, "text": text})
        self.logger.info("%s: %s", kind, text)

    def append(self, row: Mapping[str, object]) -> None:
        line = json.dumps({"time": time.time(), "client": self.name, **row}) + "\n"
        try:
            with self.lock, self.path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError:  # a full disk must not hide its own report
            self.logger.warning("log %s cannot be written", self.path)
