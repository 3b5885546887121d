"""The tables of a report, as plain data; the templates turn them into HTML."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spodgt.figures import words
from spodgt.record import statistics
from spodgt.record.metrics import METRICS
from spodgt.record.record import Record
from spodgt.record.statistics import Difference
from spodgt.record.summary import short_bytes
from spodgt.record.sweep import label

if TYPE_CHECKING:
    import pandas as pd

_COSTS = (
    "rounds",
    "delay",
    "seconds",
    "gradients",
    "messages",
    "bytes",
)  # of `Record.summary`
RARE = 0.01  # a client that computes in a smaller fraction of rounds participates rarely
_MIDDLE = 85.0  # pixels: zero in the picture of an interval, see macros.html.j2


class Forest(NamedTuple):
    """An interval and its mean, in pixels; no ends where there is no interval."""

    low: float | None
    high: float | None
    middle: float


class Cell(NamedTuple):
    """One cell of a table."""

    text: str = ""
    small: str = ""  # smaller text behind it
    kind: str = ""  # a class of the style sheet: best, better, worse or inconclusive
    forest: Forest | None = None  # a picture in place of text


class Table(NamedTuple):
    heads: list[str]
    rows: list[list[Cell]]
    left: int = 1  # how many columns stand left: those of texts
    note: str = ""  # a sentence below it


_NONE = Cell("–")


class SweepTables(NamedTuple):
    means: Table  # a row for each cell: value ± sigma of every method
    best: Table  # each method in its best cell
    leads: dict[str, Table]  # reference → a row for each cell: its lead over each other method


def number(value: float) -> str:
    """Three places for what lies between 0.001 and 10, else three digits."""
    if not np.isfinite(value):
        return "–"
    return f"{value:.3f}" if 1e-3 <= abs(value) < 10 or not value else f"{value:.3g}"


def interval(one: Difference) -> str:
    """`0.012 … 0.134`, in places that suit both ends."""
    if not np.isfinite(one.low):
        return "–"
    reach = max(abs(one.low), abs(one.high))
    places = ".3f" if reach >= 1e-2 or not reach else ".2e"
    return f"{one.low:{places}} … {one.high:{places}}"


def signed(value: float) -> str:
    """`+0.012`, or with an exponent where that would be zero."""
    return f"{value:+.3f}" if abs(value) >= 1e-3 or not value else f"{value:+.2e}"


def _value(row: dict[Hashable, Any], metric: str, kind: str = "") -> Cell:
    """Value ± sigma of a row of `statistics.summary`."""
    spread = f"± {number(row[f'{metric}_std'])}" if row["seeds"] > 1 else ""
    return Cell(number(row[metric]), spread, kind)


def final_table(record: Record) -> Table:
    """Value ± sigma of the last models, best first, and the work each method did."""
    last = statistics.final(record.frame)
    judged = statistics.primary_metric(last)
    metrics = [name for name in statistics.available_metrics(last) if METRICS[name].column]
    if judged not in metrics:  # nothing has a value
        metrics.insert(0, judged)
    means = statistics.summary(last, metrics)
    means = means.sort_values(judged, ascending=statistics.better(judged) < 0)
    summary = record.summary()
    costs = {row["name"]: row for row in summary.to_dict("records")}
    columns = [name for name in _COSTS if name in summary]
    rows: list[list[Cell]] = []
    for row in means.reset_index().to_dict("records"):
        method = str(row["algorithm"])
        cells = [
            _value(row, name, "best" if not rows and name == judged else "") for name in metrics
        ]
        spent = [Cell(_cost(name, costs[method][name])) for name in columns]
        rows.append([Cell(method), *cells, *spent])
    heads = ["method", *(METRICS[name].column for name in metrics), *columns]
    note = "All numbers are means over seeds; gradients, messages and bytes are of all clients of a run."
    objective = [f"The objective is {record.objective}."] if record.objective else []
    return Table(heads, rows, note=" ".join([note, *objective, *record.notes(), *_roots(record)]))


def _cost(name: str, value: float) -> str:
    if not np.isfinite(value):
        return "–"
    if name == "bytes":
        return short_bytes(value)
    return f"{value:,.4g}" if name == "seconds" else f"{value:,.0f}"


def _roots(record: Record) -> list[str]:
    """A sentence for every method with a root: which client it was in which seed."""
    table = record.participation
    if "root" not in table:  # a folder of an earlier version
        return []
    sentences = []
    for method, rows in table[table["root"].astype(bool)].groupby("algorithm", sort=False):
        column = "receiver_name" if "receiver_name" in rows else "receiver"
        seeds = rows.groupby("seed")[column].agg(lambda some: " and ".join(map(str, some)))
        named = ", ".join(f"{clients} (seed {seed})" for seed, clients in seeds.items())
        sentences.append(f"{method} has a root, through which everything passes: client {named}.")
    return sentences


def difference_table(last: pd.DataFrame, reference: str) -> Table | None:
    """How far the reference leads every other method at the end; None where there is no other."""
    metric = statistics.primary_metric(last)
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
            Cell(
                "one seed says little" if one.verdict == "one seed" else one.verdict,
                kind=_kind(one),
            ),
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
    return one.verdict if one.verdict in ("better", "worse") else "inconclusive"


def _forest(one: Difference, reach: float) -> Forest:
    def x(value: float) -> float | None:
        return round(_MIDDLE + 80 * value / reach, 1) if np.isfinite(value) else None

    return Forest(x(one.low), x(one.high), x(one.mean) or _MIDDLE)


def sweep_tables(results: pd.DataFrame, keys: list[str], references: list[str]) -> SweepTables:
    """The tables of the last evaluations of a sweep, whose cells are told apart by `keys`."""
    metric, methods = statistics.primary_metric(results), statistics.methods(results)
    means: list[list[Cell]] = []
    leads: dict[str, list[list[Cell]]] = {one: [] for one in references}
    for values, rows in results.groupby(keys, sort=False):
        names = [Cell(label(value)) for value in values]
        table = statistics.summary(rows, [metric])
        best = table[metric].max() if statistics.better(metric) > 0 else table[metric].min()
        given = {
            str(row["algorithm"]): _value(row, metric, "best" if row[metric] == best else "")
            for row in table.reset_index().to_dict("records")
        }
        means.append(names + [given.get(method, _NONE) for method in methods])
        for reference, lines in leads.items():
            found = {
                one.method: Cell(signed(one.mean), interval(one), _kind(one))
                for one in statistics.paired(rows, metric, reference)
            }
            lines.append(
                names + [found.get(method, _NONE) for method in methods if method != reference]
            )
    heads, left = [words(key) for key in keys], len(keys)
    tables = {}
    for one, lines in leads.items():
        others = [method for method in methods if method != one]
        tables[one] = Table(
            heads + others, lines, left, f"Paired over seeds; above zero, {one} is better."
        )
    return SweepTables(Table(heads + methods, means, left), _best(results, keys, metric), tables)


def _best(results: pd.DataFrame, keys: list[str], metric: str) -> Table:
    choice = statistics.chosen_by(results, metric)
    rows = []
    for row in statistics.best_cells(results, keys, metric).to_dict("records"):
        cells = [Cell(row["algorithm"]), _value(row, metric)]
        if choice != metric:
            cells.append(_value(row, choice))
        cells += [Cell(label(row[key])) for key in keys]
        rows.append(cells)
    heads = ["method", METRICS[metric].label]
    if choice != metric:
        heads.append(choice.replace("_", " "))
        note = (
            f"Chosen by {choice.replace('_', ' ')}, and not by the {METRICS[metric].label} shown."
        )
    else:
        note = (
            f"Chosen by the {METRICS[metric].label} shown, of the same runs, because the problem has no "
            "validation data. On test data such a choice favours every method; give the problem "
            "validation = 0.2."
        )
    return Table([*heads, *(words(key) for key in keys)], rows, note=note)


def rare_clients(record: Record, reference: str) -> Table | str:
    """Which clients rarely participate: their data weigh next to nothing in what the reference learned."""
    observed = record.observed()
    if not observed:
        return ""
    method = reference if reference in observed else statistics.reference(list(observed))
    networks, rows = record.drawn(), []
    for seed, one in observed[method].items():
        p, label = networks[seed].p, networks[seed].label
        rare = [int(client) for client in np.argsort(p) if one.clients[client] < RARE]
        if rare:
            never = (
                ", ".join(label(client) for client in rare if one.clients[client] == 0) or "none"
            )
            names = ", ".join(f"{label(client)} (p = {p[client]:.2g})" for client in rare)
            rows.append([Cell(str(seed)), Cell(names), Cell(never)])
    if not rows:
        return f"With {method}, every client computed in {RARE:.0%} of its rounds or more."
    heads = [
        "seed",
        f"clients that computed in fewer than {RARE:.0%} of the rounds of {method}",
        "never",
    ]
    return Table(heads, rows, left=3)


def prediction_table(lines: list[dict[str, Any]]) -> Table:
    """What was measured at the end, and what the theory predicts: the lines of a record's prediction."""
    rows = []
    for line in lines:
        floor, rate = (np.nan if line[key] is None else line[key] for key in ("floor", "rate"))
        reached = line["predicted"][-1] if len(line["predicted"]) > line["rounds"][-1] else np.nan
        decade = -2 / np.log10(rate) if 0 < rate < 1 else np.nan  # the square shrinks by 100
        shown = ((line["measured"][-1], 3), (reached, 3), (floor, 3), (rate, 6), (decade, 3))
        texts = [f"{value:.{digits}g}" if np.isfinite(value) else "–" for value, digits in shown]
        rows.append([Cell(line["method"]), *map(Cell, texts)])
    heads = ["method", "distance at the end", "predicted", "floor"]
    return Table([*heads, "rate of the mean square", "rounds per decade"], rows)
