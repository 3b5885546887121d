"""Progress of a comparison, and its display as progress bars."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Column

from spodgt._util.deprecation import RenamedAttribute

COMPILING = (
    "spodgt: compiling (once): loops are compiled for this machine, which takes some ten seconds."
)


@dataclass(frozen=True)
class Progress:
    """The progress of a comparison; the argument of a progress callback.

    Args:
        method: the label of the method that is running.
        number: its number among `total` methods, from 1.
        total: the number of methods.
        k: the round.
        delay: of the slowest run.
        fraction: the part of this method's work that is done, 0 to 1.
        accuracy: mean over runs at their last evaluation, NaN before the first.
    """

    method: str
    number: int
    total: int
    k: int
    delay: float
    fraction: float
    accuracy: float

    algorithm = RenamedAttribute("method")  # deprecated, removed in the next release


class Display:
    """Progress bars with a note and the time left, one for each method or cell, in 80 columns."""

    def __init__(self, console: Console, *, name_width: int = 18) -> None:
        self.bars = Bars(
            TextColumn(
                "{task.description}",
                table_column=Column(width=name_width, no_wrap=True, overflow="ellipsis"),
            ),
            BarColumn(bar_width=10),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn(
                "{task.fields[note]}", table_column=Column(no_wrap=True, overflow="ellipsis")
            ),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
        )
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        if self.tasks:
            self.bars.stop()

    def show(self, progress: Progress) -> None:
        """Update the bar of a method: round, delay and accuracy."""
        note = f"k {progress.k:<7,} delay {progress.delay:<7,.0f} "
        if progress.accuracy == progress.accuracy:  # not NaN
            note += f"acc {progress.accuracy:.3f}"
        self.move(progress.method, progress.fraction, note)

    def announce_compilation(self) -> None:
        """Explain why the first rounds take longer."""
        self.bars.console.print(COMPILING, highlight=False)

    def move(self, name: str, fraction: float, note: str) -> None:
        """Set the bar of a method or cell to a fraction from 0 to 1, with a short note."""
        self.bars.start()  # here, not in __enter__: errors of the input are printed without bars
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(name, total=1.0, note="")
        self.bars.update(self.tasks[name], completed=fraction, note=note)

    def remove(self, name: str) -> None:
        """Remove a bar, if there is one."""
        if name in self.tasks:
            self.bars.remove_task(self.tasks.pop(name))


def interactive_console() -> Console | None:
    """The console of a terminal or a notebook; None if a progress bar would not be visible."""
    console = Console(file=sys.stderr)
    return console if console.is_terminal or console.is_jupyter else None
