"""`report.html` and the figures of a run, a sweep or a reproduction, made from its folder alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spodgt.record.folder import write as write_file
from spodgt.report import pictures
from spodgt.report.collect import Page, read
from spodgt.report.page import render
from spodgt.report.statistics import measure_of

__all__ = ["Page", "read", "render", "write"]

NAME = "report.html"


def write(folder: str | Path) -> Path:
    """Write `report.html` and `figure.png`, `.svg`, `.pdf` into the folder they are about."""
    page = read(folder)
    path = page.folder / NAME
    write_file(path, render(page).encode())
    draw(page)
    return path


def draw(page: Page) -> list[Path]:
    """The figure for a paper: curves of one run, or bars against the first key of a sweep."""
    if not len(page.results):
        return []
    metric = measure_of(page.results)
    note = "" if page.scale.endswith("the paper's size") else page.scale
    options: Any = {"title": page.title if page.figure else "", "note": note}
    if page.grid:
        figure = pictures.bars(page.results, list(page.grid), metric, **options)
    else:
        run = page.runs[0]
        figure = pictures.curves(run.frame, metric, end=run.budget, **options)
    return pictures.save(figure, page.folder)
