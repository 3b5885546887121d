"""Colours and dashes of methods, styles of figures, and figure files."""

from __future__ import annotations

import contextlib
import io
import itertools
import sys
import textwrap
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from spodgt.errors import Failed, InvalidInput
from spodgt.record.metrics import METRICS, label_of
from spodgt.record.run_folder import write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The colours of Okabe and Ito, which are distinct with every kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
DASHES = ("-", "-", "--", "-.", ":", (0, (8, 3)), (0, (3, 1, 1, 1)), (0, (1, 1)))
_GAPS = {"-": (), "--": (4, 2), "-.": (4, 1.5, 1, 1.5), ":": (1, 1.5)}  # in line widths
# Methods that often occur together have fixed colours; others get one by a hash of their name.
_FIXED_COLOURS = {
    "spod-gt": 0,
    "ab-push-pull": 1,
    "g-push-pull": 2,
    "k-gt": 3,
    "sporadic-k-gt": 4,
    "spod-gt-memory": 5,
    "spod-gt-importance": 6,
}
FigureStyle = Literal["screen", "column", "page"]
FIGURE_STYLES: tuple[FigureStyle, ...] = ("screen", "column", "page")
SUFFIXES = (".png", ".svg", ".pdf")
COLUMN_WIDTH = 3.35  # inches
PAGE_WIDTH = 7.0  # inches
_LEGEND_WIDTH = 1.4  # inches of an entry
_COLUMN_STYLE = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "legend.fontsize": 7,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "axes.linewidth": 0.6, "grid.linewidth": 0.4,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "savefig.dpi": 300,
    "pdf.fonttype": 42, "svg.fonttype": "none",  # text remains text
    "svg.hashsalt": "spodgt",  # the same figure gives the same file
}  # fmt: skip


# --- colours and dashes of methods ---------------------------------------------------------------
@dataclass(frozen=True)
class LineStyle:
    """Colour and dash of one method.

    Args:
        slot: Index in `COLOURS`.
        dash: Index in `DASHES`.
    """

    slot: int
    dash: int

    @property
    def line(self) -> dict[str, Any]:
        """Keyword arguments for matplotlib."""
        return {"color": COLOURS[self.slot], "linestyle": DASHES[self.dash]}

    @property
    def gaps(self) -> list[float]:
        """Lengths of dashes and gaps in turn, in line widths; empty for a solid line."""
        dash = DASHES[self.dash]
        lengths = _GAPS[dash] if isinstance(dash, str) else dash[1]
        return [float(length) for length in lengths]


def line_styles(
    labels: Sequence[str], method_names: Mapping[str, str] | None = None
) -> dict[str, LineStyle]:
    """A distinct line style for each method of a figure; the order of the labels does not matter.

    Args:
        labels: Labels of the methods in the figure.
        method_names: Name of the method of a label that has settings, too, such as
            {"spod-gt step_size=0.1": "spod-gt"}; other labels are names.
    """
    names = {label: label for label in labels}
    if method_names is not None:
        names.update((label, name) for label, name in method_names.items() if label in names)
    styles: dict[str, LineStyle] = {}
    # Methods with a fixed colour choose first.
    for label in sorted(
        labels, key=lambda each: (names[each] not in _FIXED_COLOURS, names[each], each)
    ):
        styles[label] = _free_style(names[label], set(styles.values()))
    return {label: styles[label] for label in labels}


def _free_style(name: str, used: set[LineStyle]) -> LineStyle:
    """The first unused style, in an order that depends on the name; there are 56 styles."""
    first_slot = _FIXED_COLOURS.get(name)
    if first_slot is None:
        first_slot = zlib.crc32(name.encode()) % len(COLOURS)
    dashes = len(DASHES) - 1  # the first two are both solid
    candidates = []
    for turn, step in itertools.product(range(dashes), range(len(COLOURS))):
        slot = (first_slot + step) % len(COLOURS)
        candidates.append(LineStyle(slot, 1 + (max(0, slot - 1) + turn) % dashes))
    unused = [style for style in candidates if style not in used]
    return unused[0] if unused else candidates[0]


# --- figures and axes ----------------------------------------------------------------------------
def preload() -> None:
    """Import matplotlib on another thread, in the background."""
    threading.Thread(target=lambda: import_module("matplotlib.figure"), daemon=True).start()


def new_figure(width: float, height: float, columns: int = 1) -> tuple[Figure, Any]:
    """An empty figure and its axes, an array of axes if there are several columns.

    Args:
        width: In inches.
        height: In inches.
        columns: Number of axes side by side.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, columns)


def style_context(style: FigureStyle) -> contextlib.AbstractContextManager[None]:
    """Settings of matplotlib: "screen" is large, "column" and "page" have sizes for a paper."""
    import matplotlib as mpl

    return mpl.rc_context({} if style == "screen" else _COLUMN_STYLE)  # type: ignore[arg-type]


def decorate(axes: Axes, metric: str, evaluated_on: str = "test") -> None:
    """Set the label, limits, grid and spines of the axes of a metric."""
    description = METRICS.get(metric)
    axes.set_ylabel(label_of(metric, evaluated_on))
    if description and description.unit == "fraction":
        _limit_to_fractions(axes)
    axes.grid(visible=True, alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _limit_to_fractions(axes: Axes) -> None:
    """Fit the y axis, of panels that share it, to all lines and bands, within 0 and 1."""
    panels = axes.get_shared_y_axes().get_siblings(axes)
    low = min(panel.dataLim.y0 for panel in panels)
    high = max(panel.dataLim.y1 for panel in panels)
    if not low <= high:  # nothing is drawn
        return
    margin = max(0.05 * (high - low), 0.01)
    axes.set_ylim(max(0.0, low - margin), min(1.0, high + margin))


def finish_column(
    figure: Figure,
    panels: Sequence[Axes],
    metric: str,
    title: str,
    note: str,
    evaluated_on: str = "test",
) -> None:
    """Add the legend, the title and the note to a figure in the style "column"."""
    for axes in panels:
        decorate(axes, metric, evaluated_on)
        if axes is not panels[0]:
            axes.set_ylabel("")
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside upper center", ncols=_legend_columns(figure), frameon=False,
        handlelength=2.4, columnspacing=1.2,
    )  # fmt: skip
    if title and len(panels) == 1:
        panels[0].set_title(title)
    if note:
        characters = int(23 * figure.get_figwidth())  # of this size in a line
        figure.supxlabel(textwrap.fill(note, characters), fontsize=5.5, color="#555555")


def _legend_columns(figure: Figure) -> int:
    return max(3, int(figure.get_figwidth() / _LEGEND_WIDTH))


# --- files ---------------------------------------------------------------------------------------
def check_suffix(path: str | Path) -> None:
    """Raise `InvalidInput` if a figure cannot be written in this format.

    Args:
        path: File to write later.
    """
    if isinstance(path, str | Path) and Path(path).suffix.lower() in SUFFIXES:
        return
    example = "network.png"
    if isinstance(path, str | Path) and Path(path).stem.strip("."):
        example = str(Path(path).with_suffix(".png"))
    raise InvalidInput(f"picture {str(path)!r} must end in {', '.join(SUFFIXES)}; use {example}.")


def save(figure: Figure, path: Path) -> Path:
    """Write a figure in the format of the suffix (png, svg, pdf), atomically; returns the path.

    Args:
        figure: The figure.
        path: File to create or replace.
    """
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


def show_in_notebook(figure: Figure) -> None:
    """Show a figure below the cell of a notebook that runs this code; elsewhere nothing.

    Args:
        figure: The figure.
    """
    ipython = sys.modules.get("IPython")
    if ipython is None or ipython.get_ipython() is None:
        return
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    display = import_module("IPython.display")
    display.display(display.Image(data=buffer.getvalue()))


def save_all(figure: Figure, folder: Path) -> None:
    """Write `figure.png`, `.svg` and `.pdf`; the same figure gives the same files.

    Args:
        figure: The figure.
        folder: Where to write them.
    """
    no_date: dict[str, dict[str, None]] = {
        ".png": {},
        ".svg": {"Date": None},
        ".pdf": {"CreationDate": None},
    }
    with style_context("column"):
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # the layout is computed once, not once per format
        for suffix in SUFFIXES:
            buffer = io.BytesIO()
            figure.savefig(buffer, format=suffix[1:], metadata=no_date[suffix])
            write(folder / f"figure{suffix}", buffer.getvalue())
