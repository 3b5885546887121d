"""Pictures of networks, by matplotlib and as SVG."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import numpy as np

from spodgt.figures.style import new_figure
from spodgt.network import Network
from spodgt.record.networks import DrawnNetwork
from spodgt.types import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SMALL = 60  # clients up to which they have labels and links have arrow heads
_MAX_INSIDE = 3  # characters that fit into the circle of a client
_MAX_LINKS = 20_000  # more links would make a black square
_LIGHTEST = 0.2  # part of the colour map that is too light on white
_SIDES = np.array([[0.0, -1.0], [0.0, 1.0], [1.0, 0.0], [-1.0, 0.0]])  # below first
_DARK = 0.55  # probability above which the fill is so dark that labels are white
_SVG_SIZE = 480.0
_SVG_MARGIN = 34.0


def draw_network(
    network: Network | DrawnNetwork, p: Floats, p_hat: Floats, title: str = ""
) -> Figure:
    """Draw the digraph: links coloured by p̂, clients coloured by p.

    Args:
        network: The network.
        p: (clients,) probability that a client computes.
        p_hat: (links,) probability that a link works.
        title: Text after the numbers of clients and links.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize

    figure, axes = new_figure(7.2, 5.6)
    shades = ListedColormap(colormaps["viridis_r"](np.linspace(_LIGHTEST, 1, 256)))
    mappable = ScalarMappable(Normalize(0, 1), shades)
    is_small = network.clients <= _SMALL
    size = 520 if is_small else max(4, 20000 / network.clients)  # area of a circle, in points²
    positions = separate_overlaps(client_positions(network), 0.09)
    drawn_links = min(network.links, _MAX_LINKS)
    link = np.unique(np.linspace(0, network.links - 1, drawn_links).astype(int))
    starts = positions[network.senders[link]]
    ends = positions[network.receivers[link]]
    colours = mappable.to_rgba(p_hat[link])
    if is_small:
        _draw_arrows(axes, starts, ends, p_hat[link], colours, np.sqrt(size) / 2)
    else:
        _draw_lines(axes, starts, ends, p_hat[link], colours)
    axes.scatter(
        *positions.T, s=size, c=mappable.to_rgba(p), edgecolors="black", linewidths=1, zorder=3
    )
    if is_small:
        for client, position in enumerate(positions):
            side = _free_side(network, positions, client)
            radius = np.sqrt(size) / 2
            _draw_label(axes, network.label(client), position, p[client], radius, side)
    axes.set_aspect("equal", adjustable="datalim")  # the axes fill the figure
    has_long_labels = (
        is_small and max(map(len, map(network.label, range(network.clients)))) > _MAX_INSIDE
    )
    axes.margins(x=0.2 if has_long_labels else 0.1, y=0.1)
    axes.axis("off")
    bar = figure.colorbar(mappable, ax=axes, shrink=0.75)
    bar.set_label("probability per round: clients compute with p, links work with p̂")
    text = f"{network.clients:,} clients, {network.links:,} links"
    if len(link) < network.links:
        text += f" ({len(link):,} drawn)"
    if title:
        text += f", {title}"
    axes.set_title(text, fontsize=11)
    return figure


def _draw_arrows(
    axes: Axes, starts: Floats, ends: Floats, p_hat: Floats, colours: Floats, radius: float
) -> None:
    from matplotlib.patches import FancyArrowPatch

    for start, end, probability, colour in zip(starts, ends, p_hat, colours, strict=True):
        axes.add_patch(FancyArrowPatch(
            start, end, arrowstyle="-|>,head_length=5,head_width=2.5",
            connectionstyle="arc3,rad=0.12",  # both directions of a pair are visible
            shrinkA=radius, shrinkB=radius,
            linewidth=0.5 + 1.8 * probability, color=colour, alpha=0.9,
        ))  # fmt: skip


def _draw_lines(axes: Axes, starts: Floats, ends: Floats, p_hat: Floats, colours: Floats) -> None:
    from matplotlib.collections import LineCollection

    lines = list(np.stack([starts, ends], 1))
    axes.add_collection(LineCollection(lines, linewidths=0.3 + 0.5 * p_hat, colors=colours))


def _free_side(network: Network | DrawnNetwork, positions: Floats, client: int) -> Floats:
    """The side of a client that is farthest from its links, as a unit vector; below if possible."""
    ends = [
        *positions[network.receivers[network.senders == client]],
        *positions[network.senders[network.receivers == client]],
    ]
    best: Floats = _SIDES[0]
    smallest = np.inf
    for side in _SIDES:
        nearest = -1.0  # cosine of the smallest angle to a link
        for end in ends:
            across = end - positions[client]
            nearest = max(nearest, float(side @ across / (np.linalg.norm(across) or 1.0)))
        if nearest < smallest - 0.1:
            best = side
            smallest = nearest
    return best


def _draw_label(
    axes: Axes, label: str, position: Floats, p: float, radius: float, side: Floats
) -> None:
    """The label inside of the circle, or on one side of it if it is too long."""
    from matplotlib.patheffects import withStroke

    fits = len(label) <= _MAX_INSIDE
    offset = (0.0, 0.0) if fits else tuple((radius + (3 if side[0] else 7)) * side)
    across = 0 if fits else int(side[0])
    axes.annotate(
        label, tuple(position), offset, textcoords="offset points",
        ha=("center", "left", "right")[across], va="center",
        color="white" if fits and p > _DARK else "black", zorder=4,
        fontsize=10 if fits else 8,
        path_effects=[] if fits else [withStroke(linewidth=2, foreground="white")],
    )  # fmt: skip


# --- SVG -----------------------------------------------------------------------------------------
def network_svg(network: Network | DrawnNetwork, p: Floats, p_hat: Floats) -> str:
    """The digraph as an SVG element, coloured by the style sheet of its page; titles on hover.

    Args:
        network: The network.
        p: (clients,) probability that a client computes.
        p_hat: (links,) probability that a link works.
    """
    radius = 4
    if network.clients <= _SMALL:
        radius = 15 if network.clients <= 20 else 10
    inner = _SVG_SIZE - 2 * _SVG_MARGIN
    positions = separate_overlaps(client_positions(network), (2 * radius + 4) / inner)
    positions = positions - positions.min(0)
    positions = _SVG_MARGIN + positions * (inner / (float(positions.max()) or 1.0))
    height = positions[:, 1].max() + _SVG_MARGIN
    positions[:, 1] = height - positions[:, 1]  # the y axis of an SVG points down
    parts = []
    for link, probability in enumerate(p_hat):
        start = positions[network.senders[link]]
        end = positions[network.receivers[link]]
        title = f"{escape(network.link_label(link))}: p̂ {probability:.3g}"
        parts.append(_svg_link(start, end, radius, probability, title))
    for client, (x, y) in enumerate(positions):
        parts.append(_svg_client(network.label(client), x, y, radius, p[client]))
    frame = f'viewBox="0 0 {_SVG_SIZE:.0f} {height:.0f}" role="img" aria-label="the network"'
    return f"<svg {frame}>{''.join(parts)}</svg>"


def _svg_link(start: Floats, end: Floats, radius: float, probability: float, title: str) -> str:
    """A curved line with an arrow head."""
    across = end - start
    normal = np.array([-across[1], across[0]])
    bend = (start + end) / 2 + 0.1 * normal  # both directions of a pair are visible
    tail = _towards(start, bend, radius)
    neck = _towards(end, bend, radius + 7)
    tip = _towards(end, bend, radius + 0.5)
    side = 0.5 * np.array([tip[1] - neck[1], neck[0] - tip[0]])
    curve = f"M{_point(tail)}Q{_point(bend)} {_point(neck)}"
    head = f"M{_point(tip)}L{_point(neck + side)}L{_point(neck - side)}Z"
    return (
        f'<g class="link" style="opacity:{0.15 + 0.85 * probability:.2f}">'
        f"<title>{title}</title>"
        f'<path d="{curve}" stroke-width="{0.5 + 2 * probability:.1f}"/>'
        f'<path class="head" d="{head}"/></g>'
    )


def _towards(start: Floats, target: Floats, distance: float) -> Floats:
    """The point at a distance from `start` in the direction of `target`."""
    direction = target - start
    return np.asarray(start + direction / (np.linalg.norm(direction) or 1) * distance)


def _point(position: Floats) -> str:
    return f"{position[0]:.1f},{position[1]:.1f}"


def _svg_client(name: str, x: float, y: float, radius: float, p: float) -> str:
    """A circle with its label inside, or below it if the label is too long."""
    label = escape(name)
    fits = len(name) <= _MAX_INSIDE
    text = ""
    if radius >= 10:
        text_y = y if fits else y + radius + 8
        colour = "paper" if fits and p > _DARK else "ink"
        text = f'<text x="{x:.0f}" y="{text_y:.0f}" fill="var(--{colour})">{label}</text>'
    fill = f"color-mix(in srgb, var(--accent) {100 * p:.0f}%, var(--paper))"
    return (
        f'<g class="client"><title>client {label}: p {p:.3g}</title>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{fill}"/>{text}</g>'
    )


# --- positions -----------------------------------------------------------------------------------
def client_positions(network: Network | DrawnNetwork) -> Floats:
    """(clients, 2) the network's positions, or a layout if it has none.

    Args:
        network: The network.
    """
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


def separate_overlaps(positions: Floats, gap: float) -> Floats:
    """Move clients that are too near to each other apart; large networks are left unchanged.

    Args:
        positions: (clients, 2).
        gap: Smallest distance, as a fraction of the larger side of the picture.
    """
    if len(positions) > _SMALL:
        return positions
    i, j = np.triu_indices(len(positions), 1)
    angle = 2.4 * np.arange(len(i))  # of pairs at the same position, which need some direction
    any_direction = np.stack([np.cos(angle), np.sin(angle)], 1)
    for step in range(100):
        if step % 50 == 0:  # moving clients apart makes the picture larger
            positions = positions / (float(np.ptp(positions, axis=0).max()) or 1.0)
        across = positions[i] - positions[j]
        distance = np.linalg.norm(across, axis=1, keepdims=True)
        if not (distance < gap).any():
            break
        has_direction = distance > 1e-9
        direction = np.where(has_direction, across / np.maximum(distance, 1e-9), any_direction)
        push = direction * np.maximum(1.02 * gap - distance, 0) / 2
        positions = positions.copy()
        np.add.at(positions, i, push)
        np.add.at(positions, j, -push)
    return positions
