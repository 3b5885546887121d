"""What people and programs see of a peer: a status, a log with one JSON object per line, metrics."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from spodgt.peer.manifest import RESETS, Manifest
from spodgt.peer.node import Node

_QUIET = 5.0  # seconds between two entries of the same kind and text


@dataclass
class Neighbour:
    """One directed link as the panel shows it."""

    name: str
    way: str  # "to" or "from"
    state: str
    why: str
    messages: int
    bytes: int
    number: int
    silent: float | None  # seconds since something was heard
    distance: float | None = None


@dataclass
class Status:
    """A peer at one moment."""

    name: str
    k: int = 0
    epoch: int = 0
    version: int = 0
    incarnation: int = 0
    gradients: int = 0
    seconds: float = 0.0
    rounds_per_second: float = 0.0
    loss: float = math.nan
    accuracy: float = math.nan
    audit: float = 0.0
    waiting: bool = False
    written: int = 0  # bytes to disk
    neighbours: list[Neighbour] = field(default_factory=list)
    at: float = 0.0
    evaluated: float = 0.0

    def look(self, node: Node, post: Any, manifest: Manifest, seconds: float) -> None:
        """Read everything off the running parts."""
        now, state = time.monotonic(), node.state
        if self.at:
            self.rounds_per_second = (state.k - self.k) / max(now - self.at, 1e-9)
        self.at, self.k, self.gradients, self.seconds = now, state.k, state.gradients, seconds
        self.version, self.epoch = state.epoch // RESETS, state.epoch % RESETS
        self.incarnation = node.stamp.incarnation
        self.neighbours = [
            Neighbour(name, "to", t.state, t.why, t.messages, t.bytes, link.number, _silent(t.heard, now))
            for name, link in state.out.items()
            if name in post.out and (t := post.out[name].traffic)
        ] + [
            Neighbour(
                name,
                "from",
                t.state,
                t.why,
                t.messages,
                t.bytes,
                link.number,
                _silent(t.heard, now),
                node.distance.get(name),
            )
            for name, link in state.into.items()
            if (t := post.into.get(name))
        ]

    @property
    def consensus(self) -> float:
        """Root mean square distance to the neighbours' models."""
        known = [n.distance for n in self.neighbours if n.distance is not None]
        return math.sqrt(sum(d * d for d in known) / len(known)) if known else math.nan

    def to_dict(self) -> dict[str, Any]:
        body = asdict(self) | {"consensus": self.consensus, "time": time.time()}
        body.pop("at")
        body.pop("evaluated")
        return {
            key: None if isinstance(value, float) and math.isnan(value) else value
            for key, value in body.items()
        }


class Journal:
    """A structured log: one JSON object per line; the same trouble is not told twice in a few seconds."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.told: dict[tuple[str, str], float] = {}
        self.recent: list[tuple[float, str, str]] = []
        self.counts: dict[str, int] = {}
        self.lock = threading.Lock()
        self.logger = logging.getLogger(f"spodgt.peer.{name}")

    def event(self, kind: str, text: str) -> None:
        now = time.monotonic()
        with self.lock:
            self.counts[kind] = self.counts.get(kind, 0) + 1
            if now - self.told.get((kind, text), -math.inf) < _QUIET:
                return
            if len(self.told) > 1000:
                self.told.clear()
            self.told[kind, text] = now
            self.recent = [*self.recent[-7:], (time.time(), kind, text)]
            self._append({"event": kind, "text": text})
        self.logger.info("%s: %s", kind, text)

    def write_status(self, path: Path, status: Status, log: bool) -> None:
        """Replace status.json; a row of the log where the model was evaluated."""
        body = status.to_dict()
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(body))
        temporary.replace(path)
        if log:
            row = {key: value for key, value in body.items() if key != "neighbours"}
            with self.lock:
                self._append({"event": "status", **row})

    def _append(self, row: dict[str, Any]) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"time": time.time(), "client": self.name, **row}) + "\n")
        except OSError:
            self.logger.warning(
                "log %s cannot be written", self.path
            )  # a full disk must not hide its own report


def _silent(heard: float, now: float) -> float | None:
    return now - heard if heard else None


def serve_metrics(status: Status, journal: Journal, port: int) -> int:
    """Prometheus metrics on loopback; returns the port."""
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    class Reader:
        def collect(self) -> Any:
            plain = (
                "k",
                "gradients",
                "rounds_per_second",
                "loss",
                "accuracy",
                "audit",
                "consensus",
                "incarnation",
                "epoch",
            )
            for key in plain:
                gauge = GaugeMetricFamily(f"spodgt_peer_{key}", f"{key} of this client", labels=["client"])
                gauge.add_metric([status.name], float(getattr(status, key)))
                yield gauge
            for key in ("messages", "bytes"):
                counter = CounterMetricFamily(
                    f"spodgt_peer_{key}", f"{key} on a link", labels=["client", "way", "neighbour"]
                )
                for n in list(status.neighbours):
                    counter.add_metric([status.name, n.way, n.name], float(getattr(n, key)))
                yield counter
            up = GaugeMetricFamily(
                "spodgt_peer_link_up", "1 if the link works", labels=["client", "way", "neighbour"]
            )
            for n in list(status.neighbours):
                up.add_metric([status.name, n.way, n.name], float(n.state == "up"))
            yield up
            events = CounterMetricFamily("spodgt_peer_events", "what happened", labels=["client", "kind"])
            for kind, count in list(journal.counts.items()):
                events.add_metric([status.name, kind], float(count))
            yield events

    registry = CollectorRegistry()
    registry.register(Reader())
    server, _ = start_http_server(port, addr="127.0.0.1", registry=registry)
    return int(server.server_port)
