"""A peer for people and programs: the live panel, the table of `spodgt peer status`, Prometheus metrics."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from rich import box
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from spodgt.peer.status import Journal, Status

_COLOURS = {"up": "green", "down": "red", "waiting": "yellow"}


def panel(status: Status, journal: Journal) -> Panel:
    """One client: its progress, its links and the latest events."""
    head = Table.grid(padding=(0, 3))
    head.add_row(
        f"local round [bold]{status.k:,}[/]" + (" [yellow](waits for news)[/]" if status.waiting else ""),
        f"gradients [bold]{status.gradients:,}[/]",
        f"{status.rounds_per_second:.0f} rounds/s",
        f"incarnation {status.incarnation}, manifest {status.version}, epoch {status.epoch}",
    )
    head.add_row(
        f"loss [bold]{_number(status.loss)}[/]",
        f"accuracy [bold]{_number(status.accuracy)}[/]",
        f"consensus {_number(status.consensus)}",
        Text(f"audit {status.audit:.1e}", style="green" if status.audit <= 1e-12 else "bold red"),
    )
    links = Table("link", "state", "number", "messages", "MB", "silent", "distance", box=None, pad_edge=False)
    for n in status.neighbours:
        arrow = f"{status.name} → {n.name}" if n.way == "to" else f"{n.name} → {status.name}"
        state = Text(n.state, style=_COLOURS[n.state]).append(f" ({n.why})" if n.why else "", style="dim")
        silent = "–" if n.silent is None else f"{n.silent:.0f} s"
        distance = "" if n.distance is None else f"{n.distance:.3g}"
        counts = f"{n.number:,}", f"{n.messages:,}", f"{n.bytes / 1e6:.1f}"
        links.add_row(arrow, state, *counts, silent, distance)
    events = [
        Text(f"{time.strftime('%H:%M:%S', time.localtime(at))}  {kind}: {text}", style="dim")
        for at, kind, text in list(journal.recent)
    ]
    body = Group(head, Text(), links, *events)
    return Panel(body, title=f"spodgt peer {status.name}", title_align="left", border_style="blue")


def overview(rows: list[dict[str, Any]]) -> Table:
    """Several clients, one row each, from their status files."""
    heads = "client", "round", "gradients", "/s", "loss", "acc", "consensus", "audit", "links", "age"
    table = Table(*heads, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in rows:
        up, age = sum(n["state"] == "up" for n in row["neighbours"]), time.time() - row["time"]
        numbers = f"{row['k']:,}", f"{row['gradients']:,}", f"{row['rounds_per_second']:.0f}"
        scores = (_number(row[key]) for key in ("loss", "accuracy", "consensus"))
        links = f"{up}/{len(row['neighbours'])}"
        late = Text(f"{age:.0f} s", style="red" if age > 10 else "")
        table.add_row(row["name"], *numbers, *scores, f"{row['audit']:.1e}", links, late)
    return table


def _number(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.3g}"


class _Metrics(Collector):
    def __init__(self, status: Status, journal: Journal) -> None:
        self.status, self.journal = status, journal

    def collect(self) -> Iterator[Metric]:
        name = self.status.name
        for key, value in vars(self.status).items():
            if isinstance(value, int | float):
                gauge = GaugeMetricFamily(f"spodgt_peer_{key}", f"{key} of this client", labels=["client"])
                gauge.add_metric([name], float(value))
                yield gauge
        link = ["client", "way", "neighbour"]
        messages = CounterMetricFamily("spodgt_peer_messages", "messages on a link", labels=link)
        size = CounterMetricFamily("spodgt_peer_bytes", "bytes on a link", labels=link)
        up = GaugeMetricFamily("spodgt_peer_link_up", "1 if the link works", labels=link)
        for n in self.status.neighbours:
            for metric, value in ((messages, n.messages), (size, n.bytes), (up, n.state == "up")):
                metric.add_metric([name, n.way, n.name], float(value))
        events = CounterMetricFamily("spodgt_peer_events", "events in the log", labels=["client", "kind"])
        for kind, count in list(self.journal.counts.items()):
            events.add_metric([name, kind], float(count))
        yield from (messages, size, up, events)


def serve_metrics(status: Status, journal: Journal, port: int) -> int:
    """Serve the metrics at http://127.0.0.1:`port`/metrics; 0 takes a free port. Returns the port."""
    registry = CollectorRegistry()
    registry.register(_Metrics(status, journal))
    server, _ = start_http_server(port, addr="127.0.0.1", registry=registry)
    return int(server.server_port)
