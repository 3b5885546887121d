"""Progress bars of a sweep."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

if TYPE_CHECKING:
    from spodgt.sweeps.cell import CellProgress, Event, Outcome
    from spodgt.sweeps.sweep import Cell

_MIN_FRACTION = 0.01  # of the sweep, before its remaining time is estimated


class SweepDisplay:
    """A bar for the sweep with the remaining time, and a bar for each running cell."""

    def __init__(self, title: str, cells: list[Cell]) -> None:
        self.progress = Progress(
            TextColumn(
                "{task.description}",
                table_column=Column(no_wrap=True, overflow="ellipsis", max_width=34),
            ),
            BarColumn(bar_width=16),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn(
                "{task.fields[note]}", table_column=Column(no_wrap=True, overflow="ellipsis")
            ),
            _RemainingTime(),
            console=Console(stderr=True),
        )
        self.weights = {cell.name: cell.weight for cell in cells}
        self.fractions = {cell.name: float(cell.complete) for cell in cells}
        self.start_time = time.monotonic()
        self.start_fraction = self._fraction()
        self.running: dict[str, TaskID] = {}
        self.total = self.progress.add_task(title, total=1.0, note="", seconds_left=None)
        self._update_total()

    def __enter__(self) -> SweepDisplay:
        return self  # bars appear with the first event, so that an error before it is not mixed in

    def __exit__(self, *_: object) -> None:
        for task in self.running.values():
            self.progress.remove_task(task)
        self.progress.stop()

    def show(self, event: Event) -> None:
        """Show the progress or the end of a cell."""
        from spodgt.sweeps.cell import Outcome

        self.progress.start()
        if isinstance(event, Outcome):
            self._finish_cell(event)
        else:
            self._update_cell(event)
        self._update_total()

    def _finish_cell(self, outcome: Outcome) -> None:
        if outcome.name in self.running:
            self.progress.remove_task(self.running.pop(outcome.name))
        if outcome.complete or outcome.error:  # an interrupted cell is continued later
            self.fractions[outcome.name] = 1.0

    def _update_cell(self, event: CellProgress) -> None:
        if event.name not in self.running:
            self.running[event.name] = self.progress.add_task(
                "", total=1.0, note="", seconds_left=None
            )
        self.fractions[event.name] = event.fraction
        self.progress.update(
            self.running[event.name],
            description="  " + event.name.rsplit("-", 1)[0],  # without the fingerprint
            completed=event.fraction,
            note=event.note,
        )

    def _fraction(self) -> float:
        """The finished fraction of the sweep, from 0 to 1."""
        done = sum(self.weights[name] * part for name, part in self.fractions.items())
        return float(done / sum(self.weights.values()))

    def _update_total(self) -> None:
        fraction = self._fraction()
        finished_now = fraction - self.start_fraction
        seconds_left = None
        if finished_now > _MIN_FRACTION:
            elapsed = time.monotonic() - self.start_time
            seconds_left = elapsed * (1 - fraction) / finished_now
        finished_cells = sum(part == 1.0 for part in self.fractions.values())
        self.progress.update(
            self.total,
            completed=fraction,
            note=f"{finished_cells} of {len(self.fractions)} cells",
            seconds_left=seconds_left,
        )


class _RemainingTime(ProgressColumn):
    """The remaining time of the sweep; empty for cells."""

    def render(self, task: Task) -> Text:
        seconds_left = task.fields["seconds_left"]
        if seconds_left is None:
            return Text("")
        minutes, seconds = divmod(int(seconds_left), 60)
        hours, minutes = divmod(minutes, 60)
        if hours:
            return Text(f"{hours}:{minutes:02}:{seconds:02} left")
        return Text(f"{minutes}:{seconds:02} left")
