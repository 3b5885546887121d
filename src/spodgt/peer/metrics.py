"""Prometheus metrics of a running peer, on loopback."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from spodgt.peer.journal import Journal
from spodgt.peer.status import Status

_GAUGES = ("k", "gradients", "rounds_per_second", "loss", "accuracy", "audit", "consensus", "incarnation")
_LINK = ["client", "way", "neighbour"]


class _Reader(Collector):
    def __init__(self, status: Status, journal: Journal) -> None:
        self.status, self.journal = status, journal

    def collect(self) -> Iterator[Metric]:
        status, name = self.status, self.status.name
        values = vars(status) | {"consensus": status.consensus}
        for key in (*_GAUGES, "epoch"):
            gauge = GaugeMetricFamily(f"spodgt_peer_{key}", f"{key} of this client", labels=["client"])
            gauge.add_metric([name], float(values[key]))
            yield gauge
        messages = CounterMetricFamily("spodgt_peer_messages", "messages on a link", labels=_LINK)
        size = CounterMetricFamily("spodgt_peer_bytes", "bytes on a link", labels=_LINK)
        up = GaugeMetricFamily("spodgt_peer_link_up", "1 if the link works", labels=_LINK)
        for n in list(status.neighbours):
            messages.add_metric([name, n.way, n.name], float(n.messages))
            size.add_metric([name, n.way, n.name], float(n.bytes))
            up.add_metric([name, n.way, n.name], float(n.state == "up"))
        events = CounterMetricFamily("spodgt_peer_events", "events in the log", labels=["client", "kind"])
        for kind, count in list(self.journal.counts.items()):
            events.add_metric([name, kind], float(count))
        yield from (messages, size, up, events)


def serve_metrics(status: Status, journal: Journal, port: int) -> int:
    """Serve them at http://127.0.0.1:`port`/metrics; 0 takes a free port. Returns the port."""
    registry = CollectorRegistry()
    registry.register(_Reader(status, journal))
    server, _ = start_http_server(port, addr="127.0.0.1", registry=registry)
    return int(server.server_port)
