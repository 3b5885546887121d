"""The progress bars of a comparison."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

if TYPE_CHECKING:
    from spodgt.training.observer import Progress as Now

COMPILING = (
    "spodgt: compiling (once): loops are compiled for this machine, which takes some ten seconds."
)


class Display:
    """A progress bar for every method: rounds, delay, accuracy, time left; one line of 80 columns each."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            TextColumn(
                "{task.description}",
                table_column=Column(width=18, no_wrap=True, overflow="ellipsis"),
            ),
            BarColumn(bar_width=10),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[note]}", table_column=Column(no_wrap=True)),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
        )
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        if self.tasks:
            self.progress.stop()

    def show(self, now: Now) -> None:
        """Move the bar of a method that is running."""
        accuracy = f"acc {now.accuracy:.3f}" if now.accuracy == now.accuracy else ""
        self.move(now.algorithm, now.fraction, f"k {now.k:<7,} delay {now.delay:<7,.0f} {accuracy}")

    def announce_compilation(self) -> None:
        """Say why the first rounds take so long."""
        self.progress.console.print(COMPILING, highlight=False)

    def move(self, method: str, fraction: float, note: str) -> None:
        """Move the bar of a method to a fraction from 0 to 1, with a few words behind it."""
        self.progress.start()  # not before there is something to show: bad input is said on a clean line
        if method not in self.tasks:
            self.tasks[method] = self.progress.add_task(method, total=1.0, note="")
        self.progress.update(self.tasks[method], completed=fraction, note=note)


def watched() -> Console | None:
    """Where a progress bar would be seen: a terminal or a notebook."""
    console = Console(file=sys.stderr)
    return console if console.is_terminal or console.is_jupyter else None
