"""An HTTP server for Prometheus metrics whose silent connections cost little and end soon."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

CONNECTIONS = 16  # at once; one more ends the oldest
REQUEST_SECONDS = 10.0  # for a request and its answer


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Serves a registry at http://`bind`:`port`/metrics; raises OSError if it cannot listen there."""

    daemon_threads = True

    def __init__(self, registry: CollectorRegistry, bind: str, port: int) -> None:
        found = socket.getaddrinfo(bind, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = found[0]
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

    def process_request_thread(self, request: Any, client_address: object) -> None:
        deadline = threading.Timer(REQUEST_SECONDS, _end, (request,))
        deadline.daemon = True
        deadline.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            deadline.cancel()

    def shutdown_request(self, request: Any) -> None:
        with self._lock, contextlib.suppress(ValueError):  # it may have been ended for a newer one
            self._connections.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A connection that ended is no error of the peer."""


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""
