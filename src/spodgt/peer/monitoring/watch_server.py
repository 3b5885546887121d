"""The local web server of `spodgt peer watch`."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from spodgt.errors import Failed
from spodgt.peer.host.text import json_values
from spodgt.peer.monitoring.watched_run import WatchedRun

_PAGE = Path(__file__).with_name("page") / "watch.html"
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
}


class WatchServer(ThreadingHTTPServer):
    """Serves the page and its data.

    Args:
        watched: The clients.
        bind: Address to listen on.
        port: 0 takes a free one.
        every: Seconds between two polls of the clients.

    Raises:
        Failed: The address cannot be used.
    """

    daemon_threads = True

    def __init__(self, watched: WatchedRun, bind: str, port: int, every: float = 2.0) -> None:
        self.watched = watched
        self.every = every
        self.halt = threading.Event()
        try:
            super().__init__((bind, port), _Handler)
        except OSError as error:
            raise Failed(
                f"the page cannot be served at {bind}:{port}: {error.strerror}; give another with "
                "--port."
            ) from None
        local = (bind, "localhost", "127.0.0.1", "[::1]")
        self.allowed_hosts = {f"{host}:{self.server_port}" for host in local}
        self.allows_any_host = bind in ("0.0.0.0", "::", "")

    def run(self) -> None:
        """Poll and serve until interrupted."""
        threading.Thread(target=self._poll, daemon=True).start()
        try:
            self.serve_forever()
        finally:
            self.halt.set()

    def _poll(self) -> None:
        while True:
            with contextlib.suppress(Exception):  # clients without a new report are shown as silent
                self.watched.poll()
            if self.halt.wait(self.every):
                return


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    timeout = 10

    def do_GET(self) -> None:
        server = self.server
        if not server.allows_any_host and self.headers.get("Host") not in server.allowed_hosts:
            self.send_error(403, "another host name")  # DNS rebinding: a page elsewhere reads this
        elif self.path == "/":
            self._send("text/html; charset=utf-8", _PAGE.read_bytes())
        elif self.path == "/data.json":
            view = json.dumps(json_values(server.watched.view()))
            self._send("application/json", view.encode())
        else:
            self.send_error(404)

    def _send(self, content_type: str, body: bytes) -> None:
        self.send_response(200)
        for key, value in _HEADERS.items():
            self.send_header(key, value)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""
