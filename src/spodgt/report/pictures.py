"""Pictures for a paper: one column wide, small type, vector formats, the colours of `spodgt.figures`."""

from __future__ import annotations

import io
import itertools
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from spodgt import figures
from spodgt.record.folder import write
from spodgt.report.statistics import methods_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN = 3.35  # inches: a column of a two-column page
FORMATS = ("png", "svg", "pdf")
_MOST_PANELS = 6
_STYLE = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.linewidth": 0.4,
    "grid.alpha": 0.35,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,  # text stays text
    "svg.fonttype": "none",
    "svg.hashsalt": "spodgt",  # the same picture is the same file
    "savefig.dpi": 300,
}


def curves(
    frame: pd.DataFrame, metric: str, *, end: float | None = None, title: str = "", note: str = ""
) -> Figure:
    """`metric` against delay, until `end`: mean over seeds and a band of one sigma."""
    with _style():
        figure, (axes,) = _new(1)
        grid, values = figures.on_grid(frame, metric)
        for number, (method, seeds) in enumerate(values.items()):
            look, (mean, sigma) = figures.style(number), figures.mean_and_sigma(seeds)
            axes.fill_between(grid, mean - sigma, mean + sigma, color=look["color"], alpha=0.12, linewidth=0)
            axes.plot(grid, mean, **look, linewidth=1.2, label=method)
        axes.set_xlim(0, end or grid[-1] or 1)
        axes.set_xlabel("total delay")
        _finish(figure, axes, metric, title, note)
    return figure


def bars(results: pd.DataFrame, keys: list[str], metric: str, *, title: str = "", note: str = "") -> Figure:
    """The last value of `metric` against the first key, one panel for each value of the others."""
    key, *others = keys
    panels = list(itertools.product(*(list(dict.fromkeys(results[other])) for other in others)))[
        :_MOST_PANELS
    ]
    with _style():
        figure, panes = _new(len(panels))
        for axes, values in zip(panes, panels, strict=True):
            part = results
            for other, value in zip(others, values, strict=True):
                part = part[part[other] == value]
            _bars(axes, part, key, metric)
            names = [
                f"{other.rsplit('.', 1)[-1]} {value}" for other, value in zip(others, values, strict=True)
            ]
            axes.set_title(", ".join(names))
        _finish(figure, panes[0], metric, title, note)
    return figure


def _bars(axes: Any, part: pd.DataFrame, key: str, metric: str) -> None:
    values = list(dict.fromkeys(part[key]))
    place, logarithmic = places(values)
    methods = methods_of(part)
    gap = 0.012 * ((np.log10(max(place) / min(place)) if logarithmic else max(place) - min(place)) or 1)
    for number, method in enumerate(methods):
        groups = part[part["algorithm"] == method].groupby(key, sort=False)[metric]
        shift = (number - (len(methods) - 1) / 2) * gap  # bars of one value stand side by side
        at = [place[values.index(value)] for value in groups.mean().index]
        x = np.array(at) * 10**shift if logarithmic else np.array(at) + shift
        axes.errorbar(
            x, groups.mean(), groups.std(ddof=0), **figures.style(number), label=method,
            linewidth=1.1, elinewidth=0.6, capsize=1.5, capthick=0.6, marker="o", markersize=2.2,
        )  # fmt: skip
    if logarithmic:
        axes.set_xscale("log")
    elif place != values:
        axes.set_xticks(place, [str(value) for value in values])
    elif len(values) <= 10:
        axes.set_xticks(place)
    axes.set_xlabel(_WORDS.get(key, key))


_WORDS = {
    "problem.partition.labels": "labels per client",
    "network.radius": "radius of the graph",
    "network.clients": "clients",
    "run.step_size": "learning rate",
}


def words(key: str) -> str:
    """What a person calls a config key."""
    return _WORDS.get(key, key)


def places(values: list[Any]) -> tuple[list[Any], bool]:
    """Where values stand on an axis, and whether it is logarithmic; texts stand one step apart."""
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if not numbers:
        return list(range(len(values))), False
    return values, min(values) > 0 and max(values) / min(values) >= 50


def save(figure: Figure, folder: Path, name: str = "figure") -> list[Path]:
    """Write the figure in every format."""
    paths = []
    with _style():
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once, not once per format
        for suffix in FORMATS:
            buffer = io.BytesIO()
            stamp = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[suffix]
            figure.savefig(buffer, format=suffix, metadata=stamp)
            paths.append(folder / f"{name}.{suffix}")
            write(paths[-1], buffer.getvalue())
    return paths


def _style() -> Any:
    import matplotlib as mpl

    return mpl.rc_context(_STYLE)  # type: ignore[arg-type]


def _new(panels: int) -> tuple[Figure, list[Any]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(COLUMN * max(1, panels * 0.8), 2.65), layout="constrained")
    return figure, list(figure.subplots(1, panels, sharey=True, squeeze=False)[0])


def _finish(figure: Figure, axes: Any, metric: str, title: str, note: str) -> None:
    axes.set_ylabel({"accuracy": "test accuracy", "loss": "test loss"}.get(metric, metric))
    for pane in figure.axes:
        pane.grid(visible=True)
        if metric.startswith("accuracy"):
            pane.set_ylim(0, min(1.0, pane.get_ylim()[1]))
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc="outside upper center", ncols=3, frameon=False, handlelength=2.4, columnspacing=1.2,
    )  # fmt: skip
    if title and len(figure.axes) == 1:
        axes.set_title(title)
    if note:
        width = int(23 * figure.get_figwidth())  # letters of this size in a line
        figure.supxlabel(textwrap.fill(note, width), fontsize=5.5, color="#555555")
