"""Progress bars of a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from spodgt.sweeps.cell import Event
    from spodgt.sweeps.sweep import Cell

_NAME_WIDTH = 34


class SweepDisplay:
    """A bar for the sweep, and a bar for each running cell."""

    def __init__(self, title: str, cells: list[Cell]) -> None:
        from spodgt.training.progress import create_display

        self.bars = create_display(Console(stderr=True), name_width=_NAME_WIDTH)
        self.title = title
        self.weights = {cell.name: cell.weight for cell in cells}
        self.fractions = {cell.name: float(cell.complete) for cell in cells}
        self.running: set[str] = set()

    def __enter__(self) -> SweepDisplay:
        return self  # bars appear with the first event, so that an error before it is not mixed in

    def __exit__(self, *_: object) -> None:
        for name in self.running:
            self.bars.remove(_label(name))
        self.bars.__exit__()

    def show(self, event: Event) -> None:
        """Show the progress or the end of a cell."""
        from spodgt.sweeps.cell import Outcome

        self._update_total()
        if not isinstance(event, Outcome):
            self.running.add(event.name)
            self.fractions[event.name] = event.fraction
            self.bars.move(_label(event.name), event.fraction, event.note)
        else:
            self.running.discard(event.name)
            self.bars.remove(_label(event.name))
            if event.complete or event.error:  # an interrupted cell is continued later
                self.fractions[event.name] = 1.0
        self._update_total()

    def _update_total(self) -> None:
        done = sum(self.weights[name] * part for name, part in self.fractions.items())
        finished_cells = sum(part == 1.0 for part in self.fractions.values())
        note = f"{finished_cells} of {len(self.fractions)} cells"
        self.bars.move(self.title, done / sum(self.weights.values()), note)


def _label(name: str) -> str:
    """The name of a cell without its fingerprint, indented."""
    return "  " + name.rsplit("-", 1)[0]
