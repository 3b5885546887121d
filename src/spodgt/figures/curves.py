"""Curves of metrics over time, and final values against a key of a sweep or a step size."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from spodgt.errors import InvalidInput
from spodgt.figures.style import (
    COLUMN_WIDTH,
    PAGE_WIDTH,
    FigureStyle,
    LineStyle,
    decorate,
    finish_column,
    line_styles,
    new_figure,
    style_context,
)
from spodgt.record import statistics
from spodgt.record.metrics import METRICS
from spodgt.record.statistics import Band
from spodgt.record.sweep import label
from spodgt.types import Floats

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_PANELS = 6
_KEY_LABELS = {
    "problem.partition.labels": "labels per client",
    "network.radius": "radius of the graph",
    "network.clients": "clients",
    "run.step_size": "step size",
}
_SIDE_LEGEND: dict[str, Any] = {
    "fontsize": 9,
    "title_fontsize": 9,
    "frameon": False,
    "alignment": "left",
    "loc": "center left",
    "bbox_to_anchor": (1.01, 0.5),
}


class _Form(NamedTuple):
    """Sizes of a figure, in inches, and of its lines, in points."""

    width: float
    height: float
    line_width: float


_FORMS: dict[FigureStyle, _Form] = {
    "screen": _Form(7.2, 4.4, 2.0),
    "column": _Form(COLUMN_WIDTH, 2.65, 1.2),
    "page": _Form(PAGE_WIDTH, 3.2, 1.2),
}


# --- curves --------------------------------------------------------------------------------------
def plot_curves(
    frame: pd.DataFrame,
    metric: str,
    against: str | None = None,
    *,
    style: FigureStyle = "screen",
    end: float | None = None,
    title: str = "",
    note: str = "",
    method_names: Mapping[str, str] | None = None,
    evaluated_on: str = "test",
    axes: Axes | None = None,
) -> Figure:
    """Mean over seeds with a light band of one standard deviation, one line per method.

    Lines are straight between evaluations, and end where runs end.

    Args:
        frame: The frame of a record.
        metric: Column of the y axis.
        against: Column of the x axis, such as delay, round or bytes. None: virtual seconds if there
            are any, else the delay.
        style: "screen", with final values in the legend; "column" or "page" for a paper.
        end: End of the x axis; the last evaluation if None.
        title: Title above the axes.
        note: Small print below them, with the style "column".
        method_names: See `line_styles`.
        evaluated_on: The data of the metric, for its label: "test" or "validation".
        axes: Draw here, with a plain legend, instead of in a new figure.
    """
    axis_labels = statistics.axes(frame)
    against = against or next(iter(axis_labels), "delay")
    _check_column(frame, "metric", metric)
    _check_column(frame, "against", against)
    lines = statistics.lines(frame, metric, against)
    bands = {method: band for method, (_, band) in lines.items()}
    styles = line_styles(list(bands), method_names)
    form = _FORMS[style]
    is_new = axes is None
    with style_context(style):
        if axes is None:
            figure, axes = new_figure(form.width, form.height)
        else:
            figure = cast("Figure", axes.get_figure(root=True))
        for method, (grid, band) in lines.items():
            _plot_band(axes, grid, band, styles[method], method, form.line_width)
        last = max(grid[-1] for grid, _ in lines.values())
        if not is_new:
            last = max(last, axes.dataLim.x1)  # of what is there already
        axes.set_xlim(0, end or last or 1)  # a run that stopped at once has no width
        _label_x_axis(axes, axis_labels.get(against, against), is_bytes=against == "bytes")
        _scale_y_axis(axes, metric, bands)
        if not is_new:
            decorate(axes, metric, evaluated_on)
            axes.legend(framealpha=0.8, edgecolor="none")
            return figure
        if style != "screen":
            finish_column(figure, [axes], metric, title, note, evaluated_on)
            return figure
        decorate(axes, metric, evaluated_on)
        if title:
            axes.set_title(title)
        _add_final_values(axes, bands, metric, frame["seed"].nunique())
    return figure


def _check_column(frame: pd.DataFrame, argument: str, column: str) -> None:
    numeric = frame.select_dtypes("number").columns
    if column not in numeric:
        raise InvalidInput(
            f"{argument}={column!r} is not a column of the result; "
            f"choose from {', '.join(numeric)}."
        )


def _plot_band(
    axes: Axes, grid: Floats, band: Band, style: LineStyle, method: str, width: float
) -> None:
    low = band.mean - band.sigma
    high = band.mean + band.sigma
    axes.fill_between(grid, low, high, color=style.line["color"], alpha=0.1, linewidth=0)
    axes.plot(grid, band.mean, **style.line, linewidth=width, label=method)


def _label_x_axis(axes: Axes, text: str, *, is_bytes: bool) -> None:
    from matplotlib.ticker import EngFormatter

    axes.set_xlabel(text)
    if is_bytes:
        axes.xaxis.set_major_formatter(EngFormatter())


def _scale_y_axis(axes: Axes, metric: str, bands: Mapping[str, Band]) -> None:
    """Use a logarithmic axis for a metric that declares it, if there is a positive value."""
    is_logarithmic = metric in METRICS and METRICS[metric].log
    if is_logarithmic and any((band.mean > 0).any() for band in bands.values()):
        axes.set_yscale("log")


def _add_final_values(axes: Axes, bands: Mapping[str, Band], metric: str, seeds: int) -> None:
    """Legend on the right with final values, the best method first."""
    is_fraction = metric in METRICS and METRICS[metric].unit == "fraction"
    digits = ".3f" if is_fraction else ".3g"
    handles, methods = axes.get_legend_handles_labels()
    handle_of = dict(zip(methods, handles, strict=True))
    sign = -statistics.better(metric)
    order = sorted(bands, key=lambda method: sign * bands[method].final)
    title = f"mean ± σ of {seeds} seeds; final value" if seeds > 1 else "final value"
    axes.legend(
        [handle_of[method] for method in order],
        [f"{method}  {bands[method].final:{digits}}" for method in order],
        title=title,
        handlelength=3.5,
        **_SIDE_LEGEND,
    )


# --- sweeps --------------------------------------------------------------------------------------
def plot_sweep(
    results: pd.DataFrame,
    keys: list[str],
    metric: str,
    *,
    title: str = "",
    note: str = "",
    method_names: Mapping[str, str] | None = None,
    evaluated_on: str = "test",
) -> Figure:
    """Final values of a metric against the first key, one panel for each value of the other keys.

    Args:
        results: Last evaluations of all cells, with a column for each key.
        keys: Dotted keys of the sweep.
        metric: Column of the y axis.
        title: Title, if there is one panel.
        note: Small print below.
        method_names: See `line_styles`.
        evaluated_on: The data of the metric, for its label: "test" or "validation".
    """
    from matplotlib.figure import Figure

    key, *other_keys = keys
    values_of = [list(dict.fromkeys(results[other])) for other in other_keys]
    panels = list(itertools.product(*values_of))[:_MAX_PANELS]
    styles = line_styles(statistics.methods(results), method_names)
    with style_context("column"):
        width = COLUMN_WIDTH * max(1, len(panels) * 0.8)
        figure = Figure(figsize=(width, 2.65), layout="constrained")
        all_axes = list(figure.subplots(1, len(panels), sharey=True, squeeze=False)[0])
        for axes, values in zip(all_axes, panels, strict=True):
            part = results
            texts = []
            for other, value in zip(other_keys, values, strict=True):
                part = part[part[other] == value]
                texts.append(f"{other.rsplit('.', 1)[-1]} {label(value)}")
            _plot_panel(axes, part, key, metric, styles)
            axes.set_title(", ".join(texts))
        finish_column(figure, all_axes, metric, title, note, evaluated_on)
    return figure


def _plot_panel(
    axes: Axes, part: pd.DataFrame, key: str, metric: str, styles: Mapping[str, LineStyle]
) -> None:
    """Mean and standard deviation over seeds at each value of a key, one line per method."""
    values = list(dict.fromkeys(part[key]))
    positions, is_logarithmic = axis_positions(values)
    methods = statistics.methods(part)
    span = max(positions) - min(positions)
    if is_logarithmic:
        span = np.log10(max(positions) / min(positions))
    gap = 0.012 * (span or 1)
    for number, method in enumerate(methods):
        groups = part[part["method"] == method].groupby(key, sort=False)[metric]
        shift = (number - (len(methods) - 1) / 2) * gap  # error bars are side by side
        x = np.array([positions[values.index(value)] for value in groups.mean().index])
        x = x * 10**shift if is_logarithmic else x + shift
        axes.errorbar(
            x, groups.mean(), groups.std(ddof=0), **styles[method].line, label=method,
            linewidth=1.1, elinewidth=0.6, capsize=1.5, capthick=0.6, marker="o", markersize=2.2,
        )  # fmt: skip
    if is_logarithmic:
        axes.set_xscale("log")
    elif positions != values:
        axes.set_xticks(positions, [label(value) for value in values])
    elif len(values) <= 10:
        axes.set_xticks(positions)
    axes.set_xlabel(key_label(key))


def key_label(key: str) -> str:
    """Text of an axis for a dotted config key.

    Args:
        key: Such as "network.radius".
    """
    return _KEY_LABELS.get(key, key)


def axis_positions(values: Sequence[Any]) -> tuple[list[Any], bool]:
    """Positions of the values of a grid on an axis, and whether the axis is logarithmic.

    Args:
        values: Numbers, or texts, which are one unit apart.
    """
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return list(range(len(values))), False
    if not values or min(values) <= 0:
        return list(values), False
    ratios = np.exp(np.diff(np.log(sorted(values))))
    span = max(values) / min(values)
    is_geometric = len(ratios) >= 2 and span >= 8 and ratios.max() <= 1.25 * ratios.min()
    return list(values), bool(span >= 50 or is_geometric)


# --- step sizes ----------------------------------------------------------------------------------
def plot_step_sizes(frame: pd.DataFrame, metric: str, chosen: dict[str, float]) -> Figure:
    """A search for step sizes: one line per method and budget, stars at the chosen step sizes.

    Args:
        frame: One row per method, step_size and budget, with the metric.
        metric: Column of the y axis.
        chosen: Best step size of each method.
    """
    figure, axes = new_figure(7.2, 4.4)
    styles = line_styles(list(chosen))
    budgets = sorted(set(frame["budget"]))
    best_of = "max" if statistics.better(metric) > 0 else "min"
    for method, step_size in chosen.items():
        line = styles[method].line
        for number, budget in enumerate(budgets, 1):
            trials = frame[(frame["method"] == method) & (frame["budget"] == budget)]
            if trials.empty:
                continue
            values = trials.groupby("step_size")[metric].agg(best_of)
            is_longest = number == len(budgets)
            axes.plot(
                values, **line, alpha=number / len(budgets), linewidth=0.6 + number / 2,
                marker="o", markersize=3, label=f"{method}  {step_size:g}" if is_longest else None,
            )  # fmt: skip
            if is_longest and step_size in values:
                best = values[step_size]
                axes.plot(step_size, best, marker="*", markersize=14, color=line["color"])
    axes.set_xscale("log")
    axes.set_xlabel("step size")
    decorate(axes, metric, "validation")  # a search has no test data
    fractions = ", ".join(f"{budget:g}" for budget in budgets)
    title = f"best step size; runs of {fractions}\nof the whole, the longest strongest"
    axes.legend(title=title, **_SIDE_LEGEND)
    return figure
