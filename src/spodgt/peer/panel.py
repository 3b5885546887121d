"""The live panel of `spodgt peer start`, and the table of `spodgt peer status`."""

from __future__ import annotations

import math
import time
from typing import Any

from rich import box
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from spodgt.peer.journal import Journal
from spodgt.peer.status import Status

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
        state = Text(n.state, style=_COLOURS.get(n.state, ""))
        if n.why:
            state.append(f" ({n.why})", style="dim")
        silent = "–" if n.silent is None else f"{n.silent:.0f} s"
        distance = "" if n.distance is None else f"{n.distance:.3g}"
        size = f"{n.bytes / 1e6:.1f}"
        links.add_row(arrow, state, f"{n.number:,}", f"{n.messages:,}", size, silent, distance)
    events = [
        Text(f"{time.strftime('%H:%M:%S', time.localtime(at))}  {kind}: {text}", style="dim")
        for at, kind, text in journal.recent[-4:]
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
