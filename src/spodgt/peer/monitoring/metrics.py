"""Prometheus metrics of a peer, and their HTTP server, whose silent connections cost little and end soon."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from spodgt.errors import Failed
from spodgt.peer.process.journal import Journal
from spodgt.peer.process.status import Neighbour, Status

CONNECTIONS = 16  # at once; one more ends the oldest
REQUEST_SECONDS = 10.0  # without a byte, after which a connection ends

_LINK_LABELS = ["client", "way", "neighbour"]
_Family = type[CounterMetricFamily] | type[GaugeMetricFamily]
_LINK_METRICS: list[tuple[_Family, str, str, Callable[[Neighbour], float | None]]] = [
    (CounterMetricFamily, "messages", "messages on a link", lambda link: link.messages),
    (CounterMetricFamily, "bytes", "bytes on a link", lambda link: link.bytes),
    (GaugeMetricFamily, "link_up", "1 if the link works", lambda link: link.state == "up"),
    (GaugeMetricFamily, "silent_seconds", "since something was heard", lambda link: link.silent),
    (GaugeMetricFamily, "distance", "of the neighbour's model", lambda link: link.distance),
    (GaugeMetricFamily, "mass", "norm of what its last message brought", lambda link: link.mass),
    (GaugeMetricFamily, "flags", "messages far above their median", lambda link: link.flags),
]


class _Metrics(Collector):
    """Metrics of one client: a gauge for each number of `Status`, links, warnings and events."""

    def __init__(self, status: Status, journal: Journal) -> None:
        self.status = status
        self.journal = journal

    def collect(self) -> Iterator[Metric]:
        name = self.status.name
        for key, value in vars(self.status).items():
            if isinstance(value, int | float):
                gauge = GaugeMetricFamily(
                    f"spodgt_peer_{key}", f"{key} of this client", labels=["client"]
                )
                gauge.add_metric([name], float(value))
                yield gauge
        for family, metric_name, text, value_of in _LINK_METRICS:
            metric = family(f"spodgt_peer_{metric_name}", text, labels=_LINK_LABELS)
            for neighbour in self.status.neighbours:
                value = value_of(neighbour)
                if value is not None:
                    metric.add_metric([name, neighbour.way, neighbour.name], float(value))
            yield metric
        events = CounterMetricFamily(
            "spodgt_peer_events", "events in the log", labels=["client", "kind"]
        )
        for kind, count in list(self.journal.counts.items()):
            events.add_metric([name, kind], float(count))
        warnings = GaugeMetricFamily(
            "spodgt_peer_warnings", "warnings in the status", labels=["client"]
        )
        warnings.add_metric([name], len(self.status.warnings))
        yield warnings
        yield events


def serve_metrics(status: Status, journal: Journal, port: int, bind: str = "127.0.0.1") -> int:
    """Serve the metrics at http://`bind`:`port`/metrics; 0 takes a free port. Returns the port."""
    registry = CollectorRegistry()
    registry.register(_Metrics(status, journal))
    try:
        server = MetricsServer(registry, bind, port)
    except OSError as error:
        raise Failed(
            f"metrics cannot be served at {bind}:{port}: {error.strerror}; use another."
        ) from None
    server.start()
    return server.server_port


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Serves a registry at http://`bind`:`port`/metrics; raises OSError if it cannot listen there."""

    daemon_threads = True

    def __init__(self, registry: CollectorRegistry, bind: str, port: int) -> None:
        addresses = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = addresses[0]
        self._lock = threading.Lock()
        self._connections: deque[socket.socket] = deque()  # the oldest first
        super().__init__(address[:2], _QuietHandler)  # type: ignore[arg-type]
        self.set_app(make_wsgi_app(registry))

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def process_request(self, request: Any, client_address: object) -> None:
        with self._lock:
            if len(self._connections) >= CONNECTIONS:
                _end(self._connections.popleft())
            self._connections.append(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock, contextlib.suppress(ValueError):  # it may have been ended for a newer one
            self._connections.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that ended is no error of the peer."""


def _end(connection: socket.socket) -> None:
    """End both directions; the thread that serves the connection then closes it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _QuietHandler(WSGIRequestHandler):
    """Requests are not logged: the log is that of the peer."""

    timeout = REQUEST_SECONDS

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""
