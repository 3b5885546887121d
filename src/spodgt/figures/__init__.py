"""Figures: curves with bands, values against a key of a sweep, and networks.

Functions take frames and networks and return matplotlib figures. A method has the same colour in
each figure and in the report.
"""

from spodgt.figures.curves import (
    axis_positions,
    key_label,
    plot_curves,
    plot_step_sizes,
    plot_sweep,
)
from spodgt.figures.networks import (
    client_positions,
    draw_network,
    network_svg,
    separate_overlaps,
)
from spodgt.figures.style import (
    COLOURS,
    FIGURE_STYLES,
    SUFFIXES,
    FigureStyle,
    LineStyle,
    check_suffix,
    line_styles,
    new_figure,
    preload,
    save,
    save_all,
    show_in_notebook,
)

__all__ = [
    "COLOURS",
    "FIGURE_STYLES",
    "SUFFIXES",
    "FigureStyle",
    "LineStyle",
    "axis_positions",
    "check_suffix",
    "client_positions",
    "draw_network",
    "key_label",
    "line_styles",
    "network_svg",
    "new_figure",
    "plot_curves",
    "plot_step_sizes",
    "plot_sweep",
    "preload",
    "save",
    "save_all",
    "separate_overlaps",
    "show_in_notebook",
]


def __dir__() -> list[str]:
    return __all__
