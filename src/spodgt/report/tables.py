"""The tables of a report, as plain data; the templates turn them into HTML."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from spodgt.figures import words
from spodgt.record import statistics
from spodgt.record.metrics import METRICS
from spodgt.record.record import Record
from spodgt.record.statistics import Difference
from spodgt.record.sweep import label

if TYPE_CHECKING:
    import pandas as pd

RARE = 0.01  # a client that computes in a smaller fraction of rounds participates rarely
_FOREST = (170, 18)  # pixels: a picture of an interval


@dataclass(frozen=True)
class Forest:
    """An interval and its middle, in pixels.

    Args:
        low: The left end; None where there is no interval.
        high: The right end; None where there is no interval.
        middle: The mean.
    """

    low: float | None
    high: float | None
    middle: float
    size: tuple[int, int] = _FOREST


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    Args:
        text: What it says.
        small: Smaller text behind it.
        kind: A class of the style sheet: best, ahead, behind or open.
        forest: A picture in place of text.
    """

    text: str = ""
    small: str = ""
    kind: str = ""
    forest: Forest | None = None


@dataclass(frozen=True)
class Table:
    """A table.

    Args:
        heads: The headings.
        rows: The cells.
        left: How many columns stand left: those of texts.
        note: A sentence below it.
    """

    heads: list[str]
    rows: list[list[Cell]]
    left: int = 1
    note: str = ""


def number(value: float) -> str:
    """Three places for what lies between 0.001 and 10, else three digits.

    Args:
        value: Any number.
    """
    if not np.isfinite(value):
        return "–"
    size = abs(value)
    return f"{value:.3f}" if 1e-3 <= size < 10 or size == 0 else f"{value:.3g}"


def interval(one: Difference) -> str:
    """`0.012 … 0.134`, in places that suit both ends.

    Args:
        one: A difference of two methods.
    """
    if not np.isfinite(one.low):
        return "–"
    reach = max(abs(one.low), abs(one.high))
    places = ".3f" if reach >= 1e-2 or not reach else ".2e"
    return f"{one.low:{places}} … {one.high:{places}}"


def signed(value: float) -> str:
    """`+0.012`, or with an exponent where that would be zero.

    Args:
        value: Any number.
    """
    return f"{value:+.3f}" if abs(value) >= 1e-3 or not value else f"{value:+.2e}"


def final_table(record: Record) -> Table:
    """Value ± sigma of the last models, best first, and the work each method did.

    Args:
        record: The record of a run.
    """
    last = statistics.final(record.frame)
    judged = statistics.judged(last)
    metrics = [name for name in statistics.known(last) if METRICS[name].column]
    if judged not in metrics:  # nothing has a value
        metrics.insert(0, judged)
    means = statistics.summary(last, [*metrics, "round", "delay"])
    means = means.sort_values(judged, ascending=statistics.better(judged) < 0)
    groups = record.participation.groupby("algorithm")
    work = {name: groups[name].sum().to_dict() for name in ("gradients", "messages")}
    rows: list[list[Cell]] = []
    for row in means.reset_index().to_dict("records"):
        cells = [Cell(method := str(row["algorithm"]))]
        for name in metrics:
            spread = f"± {number(row[f'{name}_std'])}" if row["seeds"] > 1 else ""
            best = "best" if not rows and name == judged else ""
            cells.append(Cell(number(row[name]), spread, best))
        done = [f"{count[method]:,.0f}" if method in count else "–" for count in work.values()]
        rows.append([*cells, *map(Cell, (f"{row['round']:,.0f}", f"{row['delay']:,.0f}", *done))])
    heads = ["method", *(METRICS[name].column for name in metrics), "rounds", "delay", *work]
    return Table(
        heads, rows, note="Rounds and delay are means over seeds; gradients and messages are sums over seeds."
    )


def difference_table(last: pd.DataFrame, reference: str) -> Table | None:
    """How far the reference leads every other method; None where there is no other.

    Args:
        last: The last evaluation of every run.
        reference: The method that is compared with the others.
    """
    metric = statistics.judged(last)
    found = statistics.paired(last, metric, reference)
    if not found:
        return None
    ends = [end for one in found for end in (one.low, one.high, one.mean) if np.isfinite(end)]
    reach = max(map(abs, ends), default=0.0) or 1.0
    rows = [
        [
            Cell(one.method),
            Cell(signed(one.mean)),
            Cell(interval(one)),
            Cell(kind=_kind(one), forest=_forest(one, reach)),
            Cell(f"{one.ahead} of {one.seeds}"),
            Cell("one seed says little" if one.verdict == "one seed" else one.verdict, kind=_kind(one)),
        ]
        for one in sorted(found, key=lambda one: one.mean)
    ]
    heads = [f"{reference} minus …", f"lead in {metric}", "95 % interval", "", "seeds ahead", ""]
    note = (
        "Differences of the last models within a seed: same network, clients and data. "
        f"Above zero, {reference} is better. Student's interval over seeds; where it contains zero, the "
        "question is open."
    )
    return Table(heads, rows, note=note)


def _kind(one: Difference) -> str:
    return one.verdict if one.verdict in ("ahead", "behind") else "open"


def _forest(one: Difference, reach: float) -> Forest:
    def x(value: float) -> float | None:
        return round(_FOREST[0] / 2 + 80 * value / reach, 1) if np.isfinite(value) else None

    return Forest(x(one.low), x(one.high), x(one.mean) or _FOREST[0] / 2)


@dataclass
class SweepTables:
    """The tables of a sweep.

    Args:
        means: A row for each cell: value ± sigma of every method.
        best: Each method in its best cell.
        leads: Reference → a row for each cell: its lead over each other method.
    """

    means: Table
    best: Table
    leads: dict[str, Table] = field(default_factory=dict)


def sweep_tables(results: pd.DataFrame, keys: list[str], references: list[str]) -> SweepTables:
    """The tables of a sweep.

    Args:
        results: The last evaluation of every run, with the cells' keys.
        keys: The keys of the grid.
        references: The methods whose leads are listed.
    """
    metric, methods = statistics.judged(results), statistics.methods(results)
    heads = [words(key) for key in keys]
    means: list[list[Cell]] = []
    leads: dict[str, list[list[Cell]]] = {one: [] for one in references}
    for values, rows in results.groupby(keys, sort=False):
        names = [Cell(label(value)) for value in (values if isinstance(values, tuple) else (values,))]
        table = statistics.summary(rows, [metric])
        best = table[metric].max() if statistics.better(metric) > 0 else table[metric].min()
        given = {str(row["algorithm"]): row for row in table.reset_index().to_dict("records")}
        means.append(names + [_mean(given.get(method), metric, best) for method in methods])
        for reference, lines in leads.items():
            found = {one.method: one for one in statistics.paired(rows, metric, reference)}
            lines.append(names + [_lead(found.get(method)) for method in methods if method != reference])
    note = "Paired over seeds; above zero, {} is better."
    return SweepTables(
        Table([*heads, *methods], means, left=len(keys)),
        _best(results, keys, metric),
        {
            one: Table(
                [*heads, *(method for method in methods if method != one)],
                lines,
                left=len(keys),
                note=note.format(one),
            )
            for one, lines in leads.items()
        },
    )


def _best(results: pd.DataFrame, keys: list[str], metric: str) -> Table:
    rows = [
        [
            Cell(row["algorithm"]),
            Cell(number(row[metric]), f"± {number(row[f'{metric}_std'])}" if row["seeds"] > 1 else ""),
            *(Cell(label(row[key])) for key in keys),
        ]
        for row in statistics.best_cells(results, keys, metric).to_dict("records")
    ]
    note = "The best cell is chosen by the same runs that are shown, which flatters every method a little."
    return Table(["method", METRICS[metric].label, *(words(key) for key in keys)], rows, note=note)


def _mean(row: dict[Hashable, Any] | None, metric: str, best: float) -> Cell:
    if row is None:
        return Cell("–")
    spread = f"± {number(row[f'{metric}_std'])}" if row["seeds"] > 1 else ""
    return Cell(number(row[metric]), spread, "best" if row[metric] == best else "")


def _lead(one: Difference | None) -> Cell:
    return Cell("–") if one is None else Cell(signed(one.mean), interval(one), _kind(one))


def rare_clients(record: Record, reference: str) -> Table | str:
    """Which clients rarely participate: their data weigh next to nothing in what the reference learned.

    Args:
        record: The record of a run.
        reference: The method whose rounds count.
    """
    observed = record.observed()
    if not observed:
        return ""
    method = reference if reference in observed else statistics.reference(list(observed))
    networks, rows = record.drawn(), []
    for seed, one in observed[method].items():
        p = networks[seed].p
        rare = [int(client) for client in np.argsort(p) if one.clients[client] < RARE]
        if rare:
            never = ", ".join(str(client) for client in rare if one.clients[client] == 0) or "none"
            names = ", ".join(f"{client} (p = {p[client]:.2g})" for client in rare)
            rows.append([Cell(str(seed)), Cell(names), Cell(never)])
    if not rows:
        return f"With {method}, every client computed in {RARE:.0%} of its rounds or more."
    heads = ["seed", f"clients that computed in fewer than {RARE:.0%} of the rounds of {method}", "never"]
    return Table(heads, rows, left=3)


def prediction_table(lines: list[dict[str, object]]) -> Table:
    """What was measured at the end, and what the theory predicts.

    Args:
        lines: The lines of a record's prediction.
    """
    rows = []
    for line in lines:
        rounds, predicted = _list(line["rounds"]), _list(line["predicted"])
        floor, rate = (_number(line[key]) for key in ("floor", "rate"))
        reached = predicted[-1] if len(predicted) > rounds[-1] else np.nan
        decade = -2 / np.log10(rate) if 0 < rate < 1 else np.nan  # the square shrinks by 100
        values = [_list(line["measured"])[-1], reached, floor]
        texts = [f"{value:.3g}" if np.isfinite(value) else "–" for value in (*values, decade)]
        texts.insert(3, f"{rate:.6g}" if np.isfinite(rate) else "–")
        rows.append([Cell(str(line["method"])), *map(Cell, texts)])
    heads = ["method", "distance at the end", "predicted", "floor"]
    return Table([*heads, "rate of the mean square", "rounds per decade"], rows)


def _list(value: object) -> list[float]:
    assert isinstance(value, list)
    return value


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else np.nan
