"""`report.html` and the figures of a run, a sweep or a reproduction, made from its folder alone."""

from __future__ import annotations

from pathlib import Path

from spodgt import figures
from spodgt.record import statistics
from spodgt.record.run_folder import write as write_file
from spodgt.report.page import Page, read
from spodgt.report.render import render

__all__ = ["NAME", "Page", "draw", "read", "render", "write"]

NAME = "report.html"


def write(folder: str | Path, reference: str | None = None) -> Path:
    """Write `report.html` and `figure.png`, `.svg`, `.pdf` into the folder they are about.

    Args:
        folder: A run folder, or that of a sweep or a reproduction.
        reference: The method that others are compared with at first; spod-gt, or the first one, unless given.
    """
    page = read(folder, reference)
    path = page.folder / NAME
    write_file(path, render(page).encode())
    draw(page)
    return path


def draw(page: Page) -> None:
    """The figure for a paper: curves of one run, or values against the first key of a sweep."""
    if not len(page.results):
        return
    metric, sweep = statistics.primary_metric(page.results), page.sweep
    note = "" if sweep.scale.full and not sweep.changes else page.setting
    title = page.title if sweep.figure else ""
    if sweep.grid:
        figure = figures.bars(page.results, list(sweep.grid), metric, title=title, note=note)
    else:
        frame, axis = (
            page.records[0].frame,
            next(iter(statistics.axes(page.records[0].frame)), "delay"),
        )
        end = page.records[0].budget if axis == "delay" else None
        figure = figures.curves(
            frame, metric, axis, style="column", end=end, title=title, note=note
        )
    figures.save_all(figure, page.folder)
