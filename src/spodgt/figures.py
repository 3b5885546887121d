"""Pictures: curves with bands, and the network with its probabilities."""

from __future__ import annotations

import threading
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from spodgt.errors import Failed, InvalidInput
from spodgt.network import Network

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, told apart by every kind of eye.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
DASHES = ("-", "-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_LABELS = {"accuracy": "test accuracy", "loss": "test loss", "gradient_norm": "gradient norm |∇F|"}
_POINTS = 201
_SMALL = 60  # clients up to which they are numbered and arrows have heads
_MOST_LINKS = 20_000  # of a larger network only so many are drawn: more would be a black square
SUFFIXES = (".png", ".svg", ".pdf")


def prepare() -> None:
    """Import what pictures need on another thread, while this one has better things to do."""
    threading.Thread(target=lambda: import_module("matplotlib.figure"), daemon=True).start()


def new(width: float, height: float, columns: int = 1) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure  # imported late: the CLI answers --help without it

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, columns)


def style(number: int) -> dict[str, Any]:
    """Colour and dash of the n-th curve; colours come back with other dashes."""
    again, which = divmod(number, len(COLOURS))
    dashes = DASHES[1:]  # the first two curves are both solid
    return {"color": COLOURS[which], "linestyle": dashes[(max(0, which - 1) + again) % len(dashes)]}


def on_grid(
    frame: pd.DataFrame, metric: str, against: str = "delay"
) -> tuple[NDArray[Any], dict[str, NDArray[Any]]]:
    """For each method (seeds, points): the value of the last model available at each point of the grid."""
    # The grid ends where the budget ends for most: slow methods have their last model long before.
    grid = np.linspace(0, frame[against].max(), _POINTS)
    curves = {}
    for algorithm, rows in frame.groupby("algorithm", sort=False):
        seeds = []
        for _, run in rows.groupby("seed", sort=False):
            last = np.searchsorted(run[against].to_numpy(), grid, side="right") - 1
            seeds.append(run[metric].to_numpy()[np.maximum(last, 0)])
        curves[str(algorithm)] = np.array(seeds)
    return grid, curves


def mean_and_sigma(seeds: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Over seeds; NaN where one of them has left the numbers: a mean of the others would hide that."""
    seeds = np.where(np.isfinite(seeds), seeds, np.nan)
    return seeds.mean(0), seeds.std(0)


def curves(frame: pd.DataFrame, metric: str = "accuracy", against: str = "delay") -> Figure:
    """Mean over seeds with a band of one standard deviation, one colour and dash per method."""
    for name, column in (("metric", metric), ("against", against)):
        if column not in frame.columns:
            numbers = ", ".join(frame.select_dtypes("number").columns)
            raise InvalidInput(f"{name}={column!r} is not a column of the result; choose from {numbers}.")
    figure, axes = new(7.2, 4.4)
    grid, values = on_grid(frame, metric, against)
    for number, (algorithm, seeds) in enumerate(values.items()):
        look, (mean, sigma) = style(number), mean_and_sigma(seeds)
        axes.fill_between(grid, mean - sigma, mean + sigma, color=look["color"], alpha=0.13, linewidth=0)
        final = f"{mean[-1]:.3f}" if metric.startswith("accuracy") else f"{mean[-1]:.3g}"
        axes.plot(grid, mean, **look, linewidth=2, label=f"{algorithm}  {final}")
    axes.set_xlabel("total delay (the paper's clock)" if against == "delay" else against)
    axes.set_ylabel(_LABELS.get(metric, metric))
    if metric.startswith("accuracy"):
        axes.set_ylim(0, 1)
    axes.set_xlim(0, grid[-1] or 1)  # a run that was stopped at once has no width
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    count = frame["seed"].nunique()
    title = f"mean ± σ of {count} seeds; final value" if count > 1 else "final value"
    handles, names = axes.get_legend_handles_labels()
    best = sorted(range(len(names)), key=lambda n: -list(values.values())[n].mean(0)[-1])
    best = best if metric.startswith("accuracy") else best[::-1]
    axes.legend(
        [handles[n] for n in best],
        [names[n] for n in best],
        title=title,
        fontsize=9,
        title_fontsize=9,
        frameon=False,
        handlelength=3.5,
        loc="center left",
        bbox_to_anchor=(1.01, 0.5),
    )
    return figure


def network(network: Network, p: NDArray[Any], p_hat: NDArray[Any], title: str = "") -> Figure:
    """The digraph: an arrow for every link, coloured and weighted by p̂; clients coloured by p."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import LineCollection
    from matplotlib.colors import Normalize
    from matplotlib.patches import FancyArrowPatch

    figure, axes = new(7.2, 5.6)
    where = positions(network)
    colours, scale = colormaps["viridis_r"], Normalize(0, 1)
    small = network.clients <= _SMALL
    size = 520 if small else max(4, 20000 / network.clients)
    shown = np.unique(np.linspace(0, network.links - 1, min(network.links, _MOST_LINKS)).astype(int))
    i, j, chance = network.receivers[shown], network.senders[shown], p_hat[shown]
    if small:
        for ends in zip(where[j], where[i], chance, strict=True):
            axes.add_patch(
                FancyArrowPatch(
                    *ends[:2],
                    connectionstyle="arc3,rad=0.12",  # both directions of a pair stay apart
                    arrowstyle="-|>,head_length=5,head_width=2.5",
                    shrinkA=np.sqrt(size) / 2,
                    shrinkB=np.sqrt(size) / 2,
                    linewidth=0.5 + 1.8 * ends[2],
                    color=colours(scale(ends[2])),
                    alpha=0.9,
                )
            )
    else:
        lines = list(np.stack([where[j], where[i]], 1))
        axes.add_collection(
            LineCollection(lines, linewidths=0.3 + 0.5 * chance, colors=colours(scale(chance)))
        )
    axes.scatter(*where.T, s=size, c=p, cmap=colours, norm=scale, edgecolors="black", linewidths=1, zorder=3)
    if small:
        for client, (across, up) in enumerate(where):
            ink = "white" if p[client] > 0.55 else "black"
            axes.text(across, up, str(client), ha="center", va="center", color=ink, zorder=4, fontsize=10)
    axes.set_aspect("equal")
    axes.margins(0.1)
    axes.axis("off")
    bar = figure.colorbar(ScalarMappable(scale, colours), ax=axes, shrink=0.75)
    bar.set_label("chance per round: clients compute with p, links work with p̂")
    of_them = "" if len(shown) == network.links else f" ({len(shown):,} drawn)"
    text = f"{network.clients:,} clients, {network.links:,} links{of_them}"
    axes.set_title(f"{text}, {title}" if title else text, fontsize=11)
    return figure


def positions(network: Network) -> NDArray[Any]:
    """(clients, 2): where the clients stand, or a layout where they have no place."""
    if network.positions is not None:
        return network.positions
    if network.clients <= _SMALL:
        layout = nx.kamada_kawai_layout(network.graph.to_undirected())
        return np.array([layout[i] for i in range(network.clients)])
    angle = 2 * np.pi * np.arange(network.clients) / network.clients
    return np.stack([np.cos(angle), np.sin(angle)], 1)


def check_suffix(path: str | Path) -> None:
    """Say before the work, not after it, that a picture of this kind cannot be drawn."""
    if Path(path).suffix.lower() not in SUFFIXES:
        raise InvalidInput(f"picture {str(path)!r} must end in {', '.join(SUFFIXES)}; use network.png.")


def save(figure: Figure, path: Path) -> Path:
    """Write the figure by its suffix (png, svg, pdf), whole or not at all."""
    beside = path.with_name(f".{path.name}.part{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}; choose another place.") from None
    try:
        figure.savefig(beside, dpi=160)
        beside.replace(path)
    except (OSError, ValueError) as error:
        beside.unlink(missing_ok=True)
        raise Failed(f"{path} could not be drawn: {error}.") from error
    return path
