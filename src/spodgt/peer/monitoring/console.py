"""A peer on a terminal: the live panel, the table of `spodgt peer status`, events as JSON lines."""

from __future__ import annotations

import json
import logging
import math
import time

from rich import box
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from spodgt.peer.monitoring.findings import EXACT, STALE_SECONDS
from spodgt.peer.monitoring.report_validation import Json
from spodgt.peer.process.journal import Journal
from spodgt.peer.process.operator_warnings import WARN_DAYS
from spodgt.peer.process.status import Status

_COLOURS = {"up": "green", "down": "red", "waiting": "yellow"}


def panel(status: Status, journal: Journal) -> Panel:
    """One client: its progress, its links and the latest events."""
    warnings = [Text(warning, style="bold red") for warning in status.warnings]
    body = Group(_progress(status), *warnings, Text(), _links(status), *_events(journal))
    return Panel(body, title=f"spodgt peer {status.name}", title_align="left", border_style="blue")


def _progress(status: Status) -> Table:
    """Counters and scores."""
    rounds = f"local round [bold]{status.k:,}[/]"
    if status.waiting:
        rounds += " [yellow](waits for news)[/]"
    place = f"incarnation {status.incarnation}, manifest {status.version}, epoch {status.epoch}"
    if status.root:
        place += f", root {status.root}"
    audit_style = "green" if status.audit <= EXACT else "bold red"
    grid = Table.grid(padding=(0, 3))
    grid.add_row(
        rounds,
        f"gradients [bold]{status.gradients:,}[/]",
        f"{status.rounds_per_second:.0f} rounds/s",
        place,
    )
    grid.add_row(
        f"loss [bold]{_number(status.loss)}[/]{_beside(status.mean_loss)}",
        f"accuracy [bold]{_number(status.accuracy)}[/]{_beside(status.mean_accuracy)}",
        f"consensus {_number(status.consensus)}",
        Text(f"audit {status.audit:.1e}", style=audit_style),
    )
    return grid


def _links(status: Status) -> Table:
    """One row for each directed link."""
    columns = ("link", "state", "number", "messages", "MB", "silent", "distance", "mass")
    table = Table(*columns, box=None, pad_edge=False)
    for link in status.neighbours:
        ends = (status.name, link.name) if link.way == "to" else (link.name, status.name)
        state = Text(link.state, style=_COLOURS[link.state])
        if link.why:
            state.append(f" ({link.why})", style="dim")
        table.add_row(
            " → ".join(ends),
            state,
            f"{link.number:,}",
            f"{link.messages:,}",
            f"{link.bytes / 1e6:.1f}",
            "–" if link.silent is None else f"{link.silent:.0f} s",
            "" if link.distance is None else f"{link.distance:.3g}",
            "" if link.mass is None else f"{link.mass:.3g}",
            style="bold red" if link.flags else None,
        )
    return table


def _events(journal: Journal) -> list[Text]:
    """The latest events, one line each."""
    lines = []
    for event in list(journal.recent):
        clock = time.strftime("%H:%M:%S", time.localtime(event.time))
        lines.append(Text(f"{clock}  {event.kind}: {event.text}", style="dim"))
    return lines


def overview(rows: list[Json]) -> Table:
    """Several clients, one row each, from their status files."""
    heads = ("client", "round", "grads", "/s", "loss", "acc", "consensus", "audit", "links", "days")
    table = Table(box=box.SIMPLE_HEAD, padding=0)  # the box has a space between columns
    for head in (*heads, "age"):
        has_mean = head in ("loss", "acc")  # on a line of its own where the terminal is narrow
        table.add_column(head, overflow="fold", no_wrap=not has_mean)
    for row in rows:
        up = sum(link["state"] == "up" for link in row["neighbours"])
        days_left = row.get("days_left")
        ends_soon = days_left is not None and days_left < WARN_DAYS
        table.add_row(
            row["name"],
            f"{row['k']:,}",
            f"{row['gradients']:,}",
            f"{row['rounds_per_second']:.0f}",
            _number(row["loss"]) + _beside(row.get("mean_loss")),
            _number(row["accuracy"]) + _beside(row.get("mean_accuracy")),
            _number(row["consensus"], digits=2),
            _number(row["audit"], digits=2),
            f"{up}/{len(row['neighbours'])}",
            Text(_number(days_left), style="bold yellow" if ends_soon else ""),
            _age(row),
        )
    return table


def _age(row: Json) -> Text:
    if row.get("has_ended"):
        return Text("ended")
    age = time.time() - row["time"]
    return Text(f"{age:.0f} s", style="red" if age > STALE_SECONDS else "")


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.{digits}g}"


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
