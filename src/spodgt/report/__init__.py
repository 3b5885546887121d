"""`report.html` and figures of a run, a sweep or a reproduction, made from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spodgt import figures
from spodgt.record import statistics
from spodgt.record.run_folder import write as write_file
from spodgt.report.page import ReportPage, read
from spodgt.report.render import render

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["NAME", "ReportPage", "draw", "read", "render", "write"]

NAME = "report.html"


def write(folder: str | Path, reference: str | None = None) -> Path:
    """Write `report.html` and `figure.png`, `.svg`, `.pdf` to a result folder.

    Args:
        folder: The folder of a run, a sweep or a reproduction.
        reference: The method with which others are compared first. Default: spod-gt, or the first
            method.

    Returns:
        The path of the report.
    """
    page = read(folder, reference)
    path = page.folder / NAME
    write_file(path, render(page).encode())
    draw(page)
    return path


def draw(page: ReportPage) -> None:
    """Write the figure for a paper: curves of a run, or values against a key of a sweep."""
    if not len(page.results):
        return
    sweep = page.sweep
    is_original = sweep.scale.full and not sweep.changes
    note = "" if is_original else page.setting
    title = page.title if sweep.figure else ""
    if sweep.grid:
        metric = statistics.primary_metric(page.results)
        figure = figures.plot_sweep(
            page.results,
            list(sweep.grid),
            metric,
            title=title,
            note=note,
            method_names=page.method_names,
            evaluated_on=page.evaluated_on,
        )
    else:
        figure = _curves(page, title, note)
    figures.save_all(figure, page.folder)


def _curves(page: ReportPage, title: str, note: str) -> Figure:
    record = page.records[0]
    axis = next(iter(statistics.axes(record.frame)), "delay")
    return figures.plot_curves(
        record.frame,
        statistics.primary_metric(page.results),
        axis,
        style="column",
        end=record.budget if axis == "delay" else None,
        method_names=page.method_names,
        evaluated_on=page.evaluated_on,
        title=title,
        note=note,
    )
