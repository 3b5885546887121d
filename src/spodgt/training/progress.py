"""Progress of a comparison, and its display as progress bars."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from typing import TextIO

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
        self.move(progress.method, progress.fraction, _note(progress))

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


class ProgressLog:
    """Lines on a stream that is not a terminal: one about every 30 seconds, none in short runs.

    It has the methods of `Display`.

    Args:
        stream: where lines are written; standard error by default.
        seconds: between two lines.
        clock: returns seconds.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.stream = stream
        self.seconds = seconds
        self.clock = clock
        self.started_at = clock()
        self.printed_at = self.started_at

    def __enter__(self) -> ProgressLog:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, progress: Progress) -> None:
        """Print round, delay and accuracy of a method, if a line is due."""
        name = progress.method
        if progress.total > 1:
            name += f" ({progress.number} of {progress.total})"
        self.move(name, progress.fraction, " ".join(_note(progress).split()))

    def announce_compilation(self) -> None:
        """Explain why the first rounds take longer."""
        self._print(COMPILING)

    def move(self, name: str, fraction: float, note: str) -> None:
        """Print the fraction of a method or cell that is done, from 0 to 1, if a line is due."""
        now = self.clock()
        if now - self.printed_at < self.seconds:
            return
        self.printed_at = now
        elapsed = timedelta(seconds=round(now - self.started_at))
        self._print(f"spodgt: {elapsed} {name.strip()}: {fraction:.0%}, {note}")

    def remove(self, name: str) -> None:
        """Nothing: lines stay."""

    def _print(self, line: str) -> None:
        print(line, file=self.stream or sys.stderr, flush=True)


def _note(progress: Progress) -> str:
    """Round, delay and accuracy, in columns."""
    note = f"k {progress.k:<7,} delay {progress.delay:<7,.0f} "
    if progress.accuracy == progress.accuracy:  # not NaN
        note += f"acc {progress.accuracy:.3f}"
    return note


def create_display(console: Console, *, name_width: int = 18) -> Display | ProgressLog:
    """Progress bars on a terminal or in a notebook, lines elsewhere.

    In a notebook without `ipywidgets`, rich shows a warning instead of a bar; there it is lines.
    """
    has_bars = console.is_terminal
    if console.is_jupyter:
        has_bars = find_spec("ipywidgets") is not None
    if has_bars:
        return Display(console, name_width=name_width)
    return ProgressLog()
