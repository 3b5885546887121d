"""A peer on a terminal: the live panel, the table of `spodgt peer status`, events as JSON lines."""

from __future__ import annotations

import json
import logging
import math
import time
from typing import Any

from rich import box
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from spodgt.peer.process.journal import Journal
from spodgt.peer.process.own_certificate import WARN_DAYS
from spodgt.peer.process.status import Status

_COLOURS = {"up": "green", "down": "red", "waiting": "yellow"}


def panel(status: Status, journal: Journal) -> Panel:
    """One client: its progress, its links and the latest events."""
    head = Table.grid(padding=(0, 3))
    head.add_row(
        f"local round [bold]{status.k:,}[/]"
        + (" [yellow](waits for news)[/]" if status.waiting else ""),
        f"gradients [bold]{status.gradients:,}[/]",
        f"{status.rounds_per_second:.0f} rounds/s",
        f"incarnation {status.incarnation}, manifest {status.version}, epoch {status.epoch}"
        + (f", root {status.root}" if status.root else ""),
    )
    head.add_row(
        f"loss [bold]{_number(status.loss)}[/]{_beside(status.mean_loss)}",
        f"accuracy [bold]{_number(status.accuracy)}[/]{_beside(status.mean_accuracy)}",
        f"consensus {_number(status.consensus)}",
        Text(f"audit {status.audit:.1e}", style="green" if status.audit <= 1e-12 else "bold red"),
    )
    if status.days_left < WARN_DAYS:
        head.add_row(
            Text(f"certificate ends in {status.days_left:.1f} days: renew it", style="bold yellow")
        )
    columns = "link", "state", "number", "messages", "MB", "silent", "distance", "mass"
    links = Table(*columns, box=None, pad_edge=False)
    for n in status.neighbours:
        arrow = f"{status.name} → {n.name}" if n.way == "to" else f"{n.name} → {status.name}"
        state = Text(n.state, style=_COLOURS[n.state]).append(
            f" ({n.why})" if n.why else "", style="dim"
        )
        silent = "–" if n.silent is None else f"{n.silent:.0f} s"
        norms = ("" if v is None else f"{v:.3g}" for v in (n.distance, n.mass))
        counts = f"{n.number:,}", f"{n.messages:,}", f"{n.bytes / 1e6:.1f}"
        links.add_row(arrow, state, *counts, silent, *norms, style="bold red" if n.flags else None)
    warnings = [Text(warning, style="bold red") for warning in status.warnings]
    events = [
        Text(
            f"{time.strftime('%H:%M:%S', time.localtime(event.time))}  {event.kind}: {event.text}",
            style="dim",
        )
        for event in list(journal.recent)
    ]
    body = Group(head, *warnings, Text(), links, *events)
    return Panel(body, title=f"spodgt peer {status.name}", title_align="left", border_style="blue")


def overview(rows: list[dict[str, Any]]) -> Table:
    """Several clients, one row each, from their status files."""
    heads = (
        "client",
        "round",
        "gradients",
        "/s",
        "loss",
        "acc",
        "consensus",
        "audit",
        "links",
        "days",
        "age",
    )
    # fits into 80 columns; the box has a space between columns
    table = Table(*heads, box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    for row in rows:
        up, age = sum(n["state"] == "up" for n in row["neighbours"]), time.time() - row["time"]
        numbers = f"{row['k']:,}", f"{row['gradients']:,}", f"{row['rounds_per_second']:.0f}"
        scores = [
            _number(row[key]) + _beside(row.get(f"mean_{key}")) for key in ("loss", "accuracy")
        ]
        scores.append(_number(row["consensus"]))
        links = f"{up}/{len(row['neighbours'])}"
        late = Text(f"{age:.0f} s", style="red" if age > 10 else "")
        if row.get("has_ended"):
            late = Text("ended")
        left = row.get("days_left")
        days = Text(_number(left), style="" if left is None or left >= WARN_DAYS else "bold yellow")
        table.add_row(row["name"], *numbers, *scores, _number(row["audit"]), links, days, late)
    return table


def _number(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.3g}"


def _beside(value: float | None) -> str:
    """What the running mean of the models has, after what the last model has."""
    return "" if value is None or math.isnan(value) else f" (mean {value:.3g})"


class JsonLines(logging.Formatter):
    """Log records as one JSON object per line, with the keys of log.jsonl."""

    def format(self, record: logging.LogRecord) -> str:
        row: dict[str, object] = {"time": record.created, "level": record.levelname.lower()}
        if (
            record.name.startswith("spodgt.peer.")
            and isinstance(record.args, tuple)
            and len(record.args) == 2
        ):
            event, text = record.args
            row |= {
                "client": record.name.removeprefix("spodgt.peer."),
                "event": event,
                "text": text,
            }
        else:
            row |= {"logger": record.name, "text": record.getMessage()}
        return json.dumps(row, default=str)
