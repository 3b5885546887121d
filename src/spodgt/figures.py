"""Figures: curves with bands, values against a key of a sweep, and networks.

Frames and networks go in, matplotlib figures come out. `style="screen"` is large, `style="column"` fits one
column of a two-column page. A method has the same colour in every figure and in the report.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import textwrap
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from spodgt.errors import Failed, InvalidInput
from spodgt.network import Network
from spodgt.record import statistics
from spodgt.record.metrics import METRICS
from spodgt.record.networks import DrawnNetwork
from spodgt.record.run_folder import write
from spodgt.record.sweep import label
from spodgt.types import Floats

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by every kind of eye.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
DASHES = ("-", "-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
# Methods that are often drawn together, each with a colour of its own; others get one by their name.
_KNOWN = (
    "spod-gt", "ab-push-pull", "g-push-pull", "k-gt", "sporadic-k-gt", "spod-gt-memory", "spod-gt-importance",
)  # fmt: skip
_SLOTS = {name: slot for slot, name in enumerate(_KNOWN)}
Style = Literal["screen", "column"]
SUFFIXES = (".png", ".svg", ".pdf")
COLUMN = 3.35  # inches
_SMALL = 60  # clients up to which they are numbered and arrows have heads
_INSIDE = 3  # letters that fit into the circle of a client
_MOST_LINKS = 20_000  # of a larger network only so many are drawn: more would be a black square
_MOST_PANELS = 6
_RC = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "axes.linewidth": 0.6, "grid.linewidth": 0.4,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "savefig.dpi": 300,
    "pdf.fonttype": 42, "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "spodgt",  # the same figure is the same file
}  # fmt: skip
_WORDS = {
    "problem.partition.labels": "labels per client",
    "network.radius": "radius of the graph",
    "network.clients": "clients",
    "run.step_size": "learning rate",
}


# --- colours and dashes of methods -----------------------------------------------------------------------
@dataclass(frozen=True)
class LineStyle:
    """Colour and dash of one method: their numbers in `COLOURS` and `DASHES`."""

    slot: int
    dash: int

    @property
    def line(self) -> dict[str, Any]:
        """Arguments for matplotlib."""
        return {"color": COLOURS[self.slot], "linestyle": DASHES[self.dash]}

    @property
    def gaps(self) -> list[float]:
        """The dash as lengths of ink and gap, in line widths; empty for a solid line."""
        dash = DASHES[self.dash]
        named = {"-": (), "--": (4, 2), "-.": (4, 1.5, 1, 1.5), ":": (1, 1.5)}
        return [float(n) for n in (named[dash] if isinstance(dash, str) else dash[1])]


def line_styles(methods: Sequence[str]) -> dict[str, LineStyle]:
    """What each method looks like in one figure; its colour does not depend on the order."""
    found: dict[str, LineStyle] = {}
    named = [
        (method.split(" ", maxsplit=1)[0], method) for method in methods
    ]  # settings may follow the name
    for unknown, name, method in sorted(
        (name not in _SLOTS, name, method) for name, method in named
    ):
        first = zlib.crc32(name.encode()) % len(COLOURS) if unknown else _SLOTS[name]
        turns = len(DASHES) - 1  # the first two are both solid
        slots = [(first + step) % len(COLOURS) for step in range(len(COLOURS))]
        choices = [
            LineStyle(slot, 1 + (max(0, slot - 1) + turn) % turns)
            for turn in range(turns)
            for slot in slots
        ]
        # There are 56 pairs of colour and dash; more methods share some.
        found[method] = next((each for each in choices if each not in found.values()), choices[0])
    return {method: found[method] for method in methods}


# --- figures ----------------------------------------------------------------------------------------------
def prepare() -> None:
    """Import matplotlib on another thread, while this one has other work."""
    threading.Thread(target=lambda: import_module("matplotlib.figure"), daemon=True).start()


def new(width: float, height: float, columns: int = 1) -> tuple[Figure, Any]:
    """An empty figure, sizes in inches, and its axes (an array of them where there are several columns)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, columns)


def curves(
    frame: pd.DataFrame,
    metric: str,
    against: str | None = None,
    *,
    style: Style = "screen",
    end: float | None = None,
    title: str = "",
    note: str = "",
) -> Figure:
    """Mean over seeds with a band of one standard deviation, one colour and dash per method.

    Args:
        frame: The frame of a record.
        metric: The column to draw.
        against: The column of the axis: delay, round or bytes, or, in virtual time, seconds.
            Virtual seconds where there are any, else the delay, unless given.
        style: "screen", with final values in the legend; "column" for a paper.
        end: Where the axis ends; at the last evaluation unless given.
        title: The title above the axes.
        note: Small print below them.
    """
    known = statistics.axes(frame)
    against = against or next(iter(known), "delay")
    for name, column in (("metric", metric), ("against", against)):
        if column not in frame.select_dtypes("number"):
            numbers = ", ".join(frame.select_dtypes("number").columns)
            raise InvalidInput(
                f"{name}={column!r} is not a column of the result; choose from {numbers}."
            )
    screen = style == "screen"
    with _styled(style):
        figure, axes = new(7.2, 4.4) if screen else new(COLUMN, 2.65)
        grid, found = statistics.bands(frame, metric, against)
        shown = line_styles(list(found))
        for method, band in found.items():
            line = shown[method].line
            low, high = band.mean - band.sigma, band.mean + band.sigma
            axes.fill_between(grid, low, high, color=line["color"], alpha=0.13, linewidth=0)
            text = f"{method}  {_final(metric, band.final)}" if screen else method
            axes.plot(grid, band.mean, **line, linewidth=2 if screen else 1.2, label=text)
        axes.set_xlim(0, end or grid[-1] or 1)  # a run that ended at once has no width
        _name_axis(axes, against, known)
        positive = any((band.mean > 0).any() for band in found.values())
        if metric in METRICS and METRICS[metric].log and positive:
            axes.set_yscale("log")
        if not screen:
            _finish(figure, [axes], metric, title, note)
            return figure
        _decorate(axes, metric)
        if title:
            axes.set_title(title)
        count = frame["seed"].nunique()
        order = sorted(found, key=lambda name: -statistics.better(metric) * found[name].final)
        handles = dict(zip(found, axes.get_legend_handles_labels()[0], strict=True))
        axes.legend(
            handles=[handles[name] for name in order],
            title=f"mean ± σ of {count} seeds; final value" if count > 1 else "final value",
            fontsize=9, title_fontsize=9, frameon=False, handlelength=3.5,
            loc="center left", bbox_to_anchor=(1.01, 0.5),
        )  # fmt: skip
    return figure


def _name_axis(axes: Axes, against: str, known: Mapping[str, str]) -> None:
    from matplotlib.ticker import EngFormatter

    axes.set_xlabel(known.get(against, against))
    if against == "bytes":
        axes.xaxis.set_major_formatter(EngFormatter())


def bars(
    results: pd.DataFrame, keys: list[str], metric: str, *, title: str = "", note: str = ""
) -> Figure:
    """The last value of `metric` against the first key of a sweep, one panel for each value of the others."""
    from matplotlib.figure import Figure

    key, *others = keys
    panels = list(itertools.product(*(list(dict.fromkeys(results[other])) for other in others)))
    panels = panels[:_MOST_PANELS]
    with _styled("column"):
        figure = Figure(figsize=(COLUMN * max(1, len(panels) * 0.8), 2.65), layout="constrained")
        panes = list(figure.subplots(1, len(panels), sharey=True, squeeze=False)[0])
        shown = line_styles(statistics.methods(results))
        for axes, values in zip(panes, panels, strict=True):
            part, chosen = results, dict(zip(others, values, strict=True))
            for other, value in chosen.items():
                part = part[part[other] == value]
            _bars(axes, part, key, metric, shown)
            axes.set_title(
                ", ".join(f"{k.rsplit('.', 1)[-1]} {label(v)}" for k, v in chosen.items())
            )
        _finish(figure, panes, metric, title, note)
    return figure


def _bars(
    axes: Axes, part: pd.DataFrame, key: str, metric: str, shown: dict[str, LineStyle]
) -> None:
    values = list(dict.fromkeys(part[key]))
    at, logarithmic = axis(values)
    methods = statistics.methods(part)
    gap = 0.012 * ((np.log10(max(at) / min(at)) if logarithmic else max(at) - min(at)) or 1)
    for number, method in enumerate(methods):
        groups = part[part["algorithm"] == method].groupby(key, sort=False)[metric]
        shift = (number - (len(methods) - 1) / 2) * gap  # bars of one value stand side by side
        x = np.array([at[values.index(value)] for value in groups.mean().index])
        axes.errorbar(
            x * 10**shift if logarithmic else x + shift, groups.mean(), groups.std(ddof=0),
            **shown[method].line, label=method,
            linewidth=1.1, elinewidth=0.6, capsize=1.5, capthick=0.6, marker="o", markersize=2.2,
        )  # fmt: skip
    if logarithmic:
        axes.set_xscale("log")
    elif at != values:
        axes.set_xticks(at, [label(value) for value in values])
    elif len(values) <= 10:
        axes.set_xticks(at)
    axes.set_xlabel(words(key))


def steps(frame: pd.DataFrame, metric: str, chosen: dict[str, float]) -> Figure:
    """A search for step sizes: the metric against the step, a line per method and budget, stars where chosen.

    Args:
        frame: One row per method, step_size and budget, with the metric.
        metric: The column to draw.
        chosen: Method → its best step size.
    """
    figure, axes = new(7.2, 4.4)
    shown = line_styles(list(chosen))
    budgets = sorted(set(frame["budget"]))
    for method, best in chosen.items():
        for number, budget in enumerate(budgets, 1):
            own = frame[(frame["method"] == method) & (frame["budget"] == budget)]
            if own.empty:
                continue
            values = own.groupby("step_size")[metric].agg(
                "max" if statistics.better(metric) > 0 else "min"
            )
            last = number == len(budgets)
            line = {
                **shown[method].line,
                "alpha": number / len(budgets),
                "linewidth": 0.6 + number / 2,
            }
            axes.plot(
                values,
                **line,
                marker="o",
                markersize=3,
                label=f"{method}  {best:g}" if last else None,
            )
            if last and best in values:
                axes.plot(best, values[best], marker="*", markersize=14, color=line["color"])
    axes.set_xscale("log")
    axes.set_xlabel("step size")
    _decorate(axes, metric)
    parts = ", ".join(f"{budget:g}" for budget in budgets)
    axes.legend(
        title=f"best step size; runs of {parts}\nof the whole, the longest strongest", fontsize=9,
        title_fontsize=9, frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5),
    )  # fmt: skip
    return figure


def words(key: str) -> str:
    """What a person calls a dotted config key."""
    return _WORDS.get(key, key)


def axis(values: Sequence[Any]) -> tuple[list[Any], bool]:
    """Where values of a grid stand on an axis, and whether it is logarithmic; texts stand one step apart."""
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return list(range(len(values))), False
    if not values or min(values) <= 0:
        return list(values), False
    ratios = np.exp(np.diff(np.log(sorted(values))))
    span = max(values) / min(values)
    geometric = len(ratios) >= 2 and span >= 8 and ratios.max() <= 1.25 * ratios.min()
    return list(values), bool(span >= 50 or geometric)


# --- networks ---------------------------------------------------------------------------------------------
def network(network: Network | DrawnNetwork, p: Floats, p_hat: Floats, title: str = "") -> Figure:
    """The digraph: an arrow for every link, coloured and weighted by p̂; clients coloured by p.

    Args:
        network: The network.
        p: (clients,) the probability that a client computes.
        p_hat: (links,) the probability that a link works.
        title: Text behind the numbers of clients and links.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import LineCollection
    from matplotlib.colors import Normalize
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.patheffects import withStroke

    figure, axes = new(7.2, 5.6)
    colours, scale = colormaps["viridis_r"], Normalize(0, 1)
    small = network.clients <= _SMALL
    size = 520 if small else max(4, 20000 / network.clients)
    at = apart(positions(network), 0.09)
    shown = np.unique(
        np.linspace(0, network.links - 1, min(network.links, _MOST_LINKS)).astype(int)
    )
    i, j, probability = network.receivers[shown], network.senders[shown], p_hat[shown]
    if small:
        for sender, receiver, works in zip(at[j], at[i], probability, strict=True):
            axes.add_patch(FancyArrowPatch(
                sender, receiver, arrowstyle="-|>,head_length=5,head_width=2.5",
                connectionstyle="arc3,rad=0.12",  # both directions of a pair stay apart
                shrinkA=np.sqrt(size) / 2, shrinkB=np.sqrt(size) / 2,
                linewidth=0.5 + 1.8 * works, color=colours(scale(works)), alpha=0.9,
            ))  # fmt: skip
    else:
        lines, widths = list(np.stack([at[j], at[i]], 1)), 0.3 + 0.5 * probability
        axes.add_collection(
            LineCollection(lines, linewidths=widths, colors=colours(scale(probability)))
        )
    axes.scatter(
        *at.T, s=size, c=p, cmap=colours, norm=scale, edgecolors="black", linewidths=1, zorder=3
    )
    for client, (across, up) in enumerate(at if small else []):
        label = network.label(client)
        ink = "white" if p[client] > 0.55 and len(label) <= _INSIDE else "black"
        shift = (
            0 if len(label) <= _INSIDE else -np.sqrt(size) / 2 - 7
        )  # a long name stands below its circle
        axes.annotate(
            label, (across, up), (0, shift), textcoords="offset points", ha="center", va="center", color=ink,
            zorder=4, fontsize=8 if shift else 10,
            path_effects=[withStroke(linewidth=2, foreground="white")] if shift else [],
        )  # fmt: skip
    axes.set_aspect("equal")
    axes.margins(0.1)
    axes.axis("off")
    bar = figure.colorbar(ScalarMappable(scale, colours), ax=axes, shrink=0.75)
    bar.set_label("probability per round: clients compute with p, links work with p̂")
    of_them = "" if len(shown) == network.links else f" ({len(shown):,} drawn)"
    text = f"{network.clients:,} clients, {network.links:,} links{of_them}"
    axes.set_title(f"{text}, {title}" if title else text, fontsize=11)
    return figure


def network_svg(network: Network | DrawnNetwork, p: Floats, p_hat: Floats) -> str:
    """The digraph as an SVG element for a page whose style sheet colours it; titles show on hover."""
    size, edge = 480.0, 34.0
    radius = 15 if network.clients <= 20 else 10 if network.clients <= _SMALL else 4
    at = apart(positions(network), (2 * radius + 4) / (size - 2 * edge))
    unit = (size - 2 * edge) / (float(np.ptp(at, axis=0).max()) or 1.0)
    at = edge + (at - at.min(0)) * unit
    height = at[:, 1].max() + edge
    at[:, 1] = height - at[:, 1]  # up is up
    parts = []
    for j, i, works in zip(network.senders, network.receivers, p_hat, strict=True):
        across = at[i] - at[j]
        bend = (at[i] + at[j]) / 2 + 0.1 * np.array(
            [-across[1], across[0]]
        )  # both directions stay apart
        begin, neck, head = (
            end + (bend - end) / (np.linalg.norm(bend - end) or 1) * away
            for end, away in ((at[j], radius), (at[i], radius + 7), (at[i], radius + 0.5))
        )
        side = 0.5 * np.array([head[1] - neck[1], neck[0] - head[0]])
        points = (begin, bend, neck, head, neck + side, neck - side)
        first, middle, last, tip, left, right = (f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(
            f'<g class="link" style="opacity:{0.15 + 0.85 * works:.2f}">'
            f"<title>{escape(network.label(j))} → {escape(network.label(i))}: p̂ {works:.3g}</title>"
            f'<path d="M{first}Q{middle} {last}" stroke-width="{0.5 + 2 * works:.1f}"/>'
            f'<path class="head" d="M{tip}L{left}L{right}Z"/></g>'
        )
    for client, ((x, y), computes) in enumerate(zip(at, p, strict=True)):
        label = escape(network.label(client))
        inside = len(network.label(client)) <= _INSIDE  # a longer name stands below its circle
        ink, down = ("paper" if computes > 0.55 and inside else "ink"), 0 if inside else radius + 8
        name = (
            f'<text x="{x:.0f}" y="{y + down:.0f}" fill="var(--{ink})">{label}</text>'
            if radius >= 10
            else ""
        )
        fill = f"color-mix(in srgb, var(--accent) {100 * computes:.0f}%, var(--paper))"
        parts.append(
            f'<g class="client"><title>client {label}: p {computes:.3g}</title>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{fill}"/>{name}</g>'
        )
    frame = f'viewBox="0 0 {size:.0f} {height:.0f}" role="img" aria-label="the network"'
    return f"<svg {frame}>{''.join(parts)}</svg>"


def positions(network: Network | DrawnNetwork) -> Floats:
    """(clients, 2): where the clients are, or a layout where they have no position."""
    if network.positions is not None:
        return network.positions
    if network.clients <= _SMALL:
        import networkx as nx

        graph = nx.Graph()
        graph.add_nodes_from(range(network.clients))
        graph.add_edges_from(zip(network.senders.tolist(), network.receivers.tolist(), strict=True))
        return np.array(list(nx.kamada_kawai_layout(graph).values()))
    angle = 2 * np.pi * np.arange(network.clients) / network.clients
    return np.stack([np.cos(angle), np.sin(angle)], 1)


def apart(at: Floats, gap: float) -> Floats:
    """Positions of a few clients, no two of them nearer than `gap`, a fraction of the larger side."""
    if len(at) > _SMALL:
        return at
    i, j = np.triu_indices(len(at), 1)
    turn = 2.4 * np.arange(len(i))  # in different directions where two are at the same place
    anywhere = np.stack([np.cos(turn), np.sin(turn)], 1)
    for step in range(100):  # pairs push each other away until none is too near
        if step % 50 == 0:
            at = at / (
                float(np.ptp(at, axis=0).max()) or 1.0
            )  # pushing has made the whole a little larger
        across = at[i] - at[j]
        distance = np.linalg.norm(across, axis=1, keepdims=True)
        if not (distance < gap).any():
            break
        away = np.where(distance > 1e-9, across / np.maximum(distance, 1e-9), anywhere)
        push = away * np.maximum(1.02 * gap - distance, 0) / 2
        at = at.copy()
        np.add.at(at, i, push)
        np.add.at(at, j, -push)
    return at


# --- files ------------------------------------------------------------------------------------------------
def check_suffix(path: str | Path) -> None:
    """Say before the work, not after it, that a picture of this kind cannot be drawn."""
    if not isinstance(path, str | Path) or Path(path).suffix.lower() not in SUFFIXES:
        raise InvalidInput(
            f"picture {str(path)!r} must end in {', '.join(SUFFIXES)}; use network.png."
        )


def save(figure: Figure, path: Path) -> Path:
    """Write the figure by its suffix (png, svg, pdf), whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be written: {error.strerror}; choose another place."
        ) from None
    buffer = io.BytesIO()
    try:
        figure.savefig(buffer, format=path.suffix.lower().removeprefix("."), dpi=160)
    except ValueError as error:
        raise Failed(f"{path} could not be drawn: {error}.") from error
    write(path, buffer.getvalue())
    return path


def save_all(figure: Figure, folder: Path) -> None:
    """Write `figure.png`, `.svg` and `.pdf`; the same figure gives the same files."""
    with _styled("column"):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once, not once per format
        for suffix in SUFFIXES:
            buffer = io.BytesIO()
            stamp = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[suffix]
            figure.savefig(buffer, format=suffix[1:], metadata=stamp)
            write(folder / f"figure{suffix}", buffer.getvalue())


def _styled(style: str) -> contextlib.AbstractContextManager[None]:
    import matplotlib as mpl

    return mpl.rc_context(_RC if style == "column" else {})  # type: ignore[arg-type]


def _final(metric: str, value: float) -> str:
    return (
        f"{value:.3f}"
        if metric in METRICS and METRICS[metric].unit == "fraction"
        else f"{value:.3g}"
    )


def _decorate(axes: Axes, metric: str) -> None:
    """Label, limits, grid and spines that all axes of a metric have."""
    about = METRICS.get(metric)
    axes.set_ylabel(about.label if about else metric)
    if about and about.unit == "fraction":
        axes.set_ylim(0, 1)
    axes.grid(visible=True, alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _finish(figure: Figure, panes: Sequence[Axes], metric: str, title: str, note: str) -> None:
    """Legend on top, title, and small print of a figure in the style "column"."""
    for axes in panes:
        top = axes.get_ylim()[1]
        _decorate(axes, metric)
        if axes.get_ylim() == (0, 1):
            axes.set_ylim(0, min(1.0, top))
        if axes is not panes[0]:
            axes.set_ylabel("")
    figure.legend(
        *panes[0].get_legend_handles_labels(),
        loc="outside upper center", ncols=3, frameon=False, handlelength=2.4, columnspacing=1.2,
    )  # fmt: skip
    if title and len(panes) == 1:
        panes[0].set_title(title)
    if note:
        width = int(23 * figure.get_figwidth())  # letters of this size in a line
        figure.supxlabel(textwrap.fill(note, width), fontsize=5.5, color="#555555")
