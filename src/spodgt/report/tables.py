"""The tables of a report, as plain data; the templates turn them into HTML."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from spodgt.figures import key_label
from spodgt.record import statistics
from spodgt.record.metrics import METRICS, label_of
from spodgt.record.record import Record
from spodgt.record.statistics import Difference
from spodgt.record.summary import short_bytes
from spodgt.record.sweep import label

if TYPE_CHECKING:
    import pandas as pd

_COSTS = ("rounds", "delay", "seconds", "gradients", "messages", "bytes")  # of `Record.summary`
RARE = 0.01  # a client that computes in a smaller fraction of rounds participates rarely
_ZERO_PIXEL = 85.0  # position of zero in the picture of an interval, see macros.html.j2
_HALF_WIDTH = 80.0  # pixels


class Forest(NamedTuple):
    """An interval and its mean, in pixels; the ends are None without an interval."""

    low: float | None
    high: float | None
    middle: float


class TableCell(NamedTuple):
    """One cell of a table."""

    text: str = ""
    small: str = ""  # smaller text after it
    kind: str = ""  # a class of the style sheet: best, better, worse or inconclusive
    forest: Forest | None = None  # a picture instead of text


class Table(NamedTuple):
    heads: list[str]
    rows: list[list[TableCell]]
    left: int = 1  # number of left-aligned columns: those with text
    note: str = ""  # a sentence below the table


_EMPTY = TableCell("–")


class SweepTables(NamedTuple):
    means: Table  # one row per cell: value ± σ of every method
    best: Table  # each method in its best cell
    leads: dict[str, Table]  # reference → one row per cell: its lead over each other method


def number(value: float) -> str:
    """Three decimals between 0.001 and 10, else three significant digits."""
    if not np.isfinite(value):
        return "–"
    if value == 0 or 1e-3 <= abs(value) < 10:
        return f"{value:.3f}"
    return f"{value:.3g}"


def interval(difference: Difference) -> str:
    """`0.012 … 0.134`, with a format that suits both ends."""
    low = difference.low
    high = difference.high
    if not np.isfinite(low):
        return "–"
    largest = max(abs(low), abs(high))
    places = ".3f" if largest >= 1e-2 or largest == 0 else ".2e"
    return f"{low:{places}} … {high:{places}}"


def signed(value: float) -> str:
    """`+0.012`, or with an exponent for small numbers."""
    return f"{value:+.3f}" if abs(value) >= 1e-3 or value == 0 else f"{value:+.2e}"


def _mean_cell(row: dict[Hashable, Any], metric: str, *, is_best: bool = False) -> TableCell:
    """Value ± σ of a row of `statistics.summary`."""
    sigma = f"± {number(row[f'{metric}_std'])}" if row["seeds"] > 1 else ""
    return TableCell(number(row[metric]), sigma, "best" if is_best else "")


def final_table(record: Record) -> Table:
    """Value ± σ of the last models, best first, and the costs of each method."""
    last = statistics.final(record.frame)
    primary = statistics.primary_metric(last)
    metrics = [name for name in statistics.available_metrics(last) if METRICS[name].column]
    if primary not in metrics:  # no run has a value
        metrics.insert(0, primary)
    means = statistics.summary(last, metrics)
    means = means.sort_values(primary, ascending=statistics.better(primary) < 0)
    summary = record.summary()
    costs = {row["method"]: row for row in summary.to_dict("records")}
    cost_names = [name for name in _COSTS if name in summary]
    rows: list[list[TableCell]] = []
    for row in means.reset_index().to_dict("records"):
        method = str(row["method"])
        cells = [TableCell(method)]
        for name in metrics:
            is_best = not rows and name == primary
            cells.append(_mean_cell(row, name, is_best=is_best))
        for name in cost_names:
            cells.append(TableCell(_cost(name, costs[method][name])))
        rows.append(cells)
    heads = ["method", *(METRICS[name].column for name in metrics), *cost_names]
    return Table(heads, rows, note=" ".join(_final_notes(record)))


def _final_notes(record: Record) -> list[str]:
    notes = ["All numbers are means over seeds; gradients, messages and bytes are of all clients."]
    if record.objective:
        notes.append(f"The objective is {record.objective}.")
    return [*notes, *record.notes(), *_roots(record)]


def _cost(name: str, value: float) -> str:
    if not np.isfinite(value):
        return "–"
    if name == "bytes":
        return short_bytes(value)
    return f"{value:,.4g}" if name == "seconds" else f"{value:,.0f}"


def _roots(record: Record) -> list[str]:
    """For every method with a root, a sentence with its client in each seed."""
    table = record.participation
    sentences = []
    for method, rows in table[table["root"].astype(bool)].groupby("method", sort=False):
        column = "receiver_name" if "receiver_name" in rows else "receiver"
        roots = []
        for seed, clients in rows.groupby("seed")[column]:
            roots.append(f"{' and '.join(map(str, clients))} (seed {seed})")
        sentences.append(
            f"{method} has a root, through which everything passes: client {', '.join(roots)}."
        )
    return sentences


def difference_table(last: pd.DataFrame, reference: str) -> Table | None:
    """The lead of the reference over every other method at the end; None without others."""
    metric = statistics.primary_metric(last)
    differences = statistics.paired(last, metric, reference)
    if not differences:
        return None
    differences.sort(key=lambda difference: difference.mean)
    scale = _largest(differences)
    rows = []
    for difference in differences:
        kind = _kind(difference)
        verdict = difference.verdict
        if verdict == "one seed":
            verdict = "inconclusive with one seed"
        rows.append(
            [
                TableCell(difference.method),
                TableCell(signed(difference.mean)),
                TableCell(interval(difference)),
                TableCell(kind=kind, forest=_forest(difference, scale)),
                TableCell(f"{difference.ahead} of {difference.seeds}"),
                TableCell(verdict, kind=kind),
            ]
        )
    heads = [f"{reference} minus …", f"lead in {metric}", "95 % interval", "", "seeds ahead", ""]
    note = (
        "Differences of the last models within a seed: same network, clients and data. "
        f"Above zero, {reference} is better. Student's interval over seeds; where it contains "
        "zero, the comparison is inconclusive."
    )
    return Table(heads, rows, note=note)


def _largest(differences: list[Difference]) -> float:
    """The largest absolute value of all intervals and means; 1 if there is none."""
    largest = 0.0
    for difference in differences:
        for value in (difference.low, difference.high, difference.mean):
            if np.isfinite(value):
                largest = max(largest, abs(value))
    return largest or 1.0


def _kind(difference: Difference) -> str:
    """The class of the style sheet."""
    return difference.verdict if difference.verdict in ("better", "worse") else "inconclusive"


def _forest(difference: Difference, scale: float) -> Forest:
    low = _pixel(difference.low, scale)
    high = _pixel(difference.high, scale)
    return Forest(low, high, _pixel(difference.mean, scale) or _ZERO_PIXEL)


def _pixel(value: float, scale: float) -> float | None:
    """Position of a value in the picture of an interval; None for NaN and infinity."""
    if not np.isfinite(value):
        return None
    return round(_ZERO_PIXEL + _HALF_WIDTH * value / scale, 1)


def sweep_tables(
    results: pd.DataFrame, keys: list[str], references: list[str], evaluated_on: str = "test"
) -> SweepTables:
    """The tables of a sweep.

    Args:
        results: The last evaluation of every run.
        keys: The columns of `results` that identify a cell.
        references: The methods for which there is a table of leads.
        evaluated_on: The data of the metrics: "test" or "validation".
    """
    metric = statistics.primary_metric(results)
    methods = statistics.methods(results)
    key_heads = [key_label(key) for key in keys]
    means: list[list[TableCell]] = []
    for values, rows in results.groupby(keys, sort=False):
        means.append(_labels(values) + _mean_cells(rows, metric, methods))
    leads = {}
    for reference in references:
        others = [method for method in methods if method != reference]
        lead_rows = []
        for values, rows in results.groupby(keys, sort=False):
            lead_rows.append(_labels(values) + _lead_cells(rows, metric, reference, others))
        note = f"Paired over seeds; above zero, {reference} is better."
        leads[reference] = Table(key_heads + others, lead_rows, len(keys), note)
    return SweepTables(
        means=Table(key_heads + methods, means, len(keys)),
        best=_best_cells(results, keys, metric, evaluated_on),
        leads=leads,
    )


def _labels(values: tuple[object, ...]) -> list[TableCell]:
    """The values of the keys of a cell."""
    return [TableCell(label(value)) for value in values]


def _mean_cells(rows: pd.DataFrame, metric: str, methods: list[str]) -> list[TableCell]:
    """Value ± σ of every method in one cell of a sweep."""
    summary = statistics.summary(rows, [metric])
    best = summary[metric].max() if statistics.better(metric) > 0 else summary[metric].min()
    cells = {}
    for row in summary.reset_index().to_dict("records"):
        cells[str(row["method"])] = _mean_cell(row, metric, is_best=row[metric] == best)
    return [cells.get(method, _EMPTY) for method in methods]


def _lead_cells(
    rows: pd.DataFrame, metric: str, reference: str, others: list[str]
) -> list[TableCell]:
    """The lead of the reference over every other method in one cell of a sweep."""
    cells = {}
    for difference in statistics.paired(rows, metric, reference):
        cells[difference.method] = TableCell(
            signed(difference.mean), interval(difference), _kind(difference)
        )
    return [cells.get(method, _EMPTY) for method in others]


def _best_cells(results: pd.DataFrame, keys: list[str], metric: str, evaluated_on: str) -> Table:
    """Each method in its best cell of a sweep."""
    choice = statistics.chosen_by(results, metric)
    metric_label = label_of(metric, evaluated_on)
    heads = ["method", metric_label]
    if evaluated_on == "validation":
        note = f"Chosen by the {metric_label} shown."
    elif choice == metric:
        note = (
            f"Chosen by the {metric_label} shown, of the same runs, because the problem has no "
            "validation data. On test data such a choice favours every method; give the problem "
            "validation = 0.2."
        )
    else:
        choice_label = choice.replace("_", " ")
        heads.append(choice_label)
        note = f"Chosen by {choice_label}, and not by the {metric_label} shown."
    rows = []
    for row in statistics.best_cells(results, keys, metric).to_dict("records"):
        cells = [TableCell(row["method"]), _mean_cell(row, metric)]
        if choice != metric:
            cells.append(_mean_cell(row, choice))
        cells += [TableCell(label(row[key])) for key in keys]
        rows.append(cells)
    return Table([*heads, *(key_label(key) for key in keys)], rows, note=note)


def rare_clients(record: Record, reference: str) -> Table | str:
    """Clients that rarely compute, so that their data hardly influence the model.

    Returns:
        A table with a row per seed, or a sentence if there is no such client; "" without data.
    """
    observed = record.observed()
    if not observed:
        return ""
    method = reference if reference in observed else statistics.reference(list(observed))
    networks = record.drawn()
    rows = []
    for seed, frequencies in observed[method].items():
        network = networks[seed]
        by_probability = np.argsort(network.p).tolist()
        rare = [client for client in by_probability if frequencies.clients[client] < RARE]
        if not rare:
            continue
        names = [f"{network.label(client)} (p = {network.p[client]:.2g})" for client in rare]
        never = [network.label(client) for client in rare if frequencies.clients[client] == 0]
        texts = (str(seed), ", ".join(names), ", ".join(never) or "none")
        rows.append([TableCell(text) for text in texts])
    if not rows:
        return f"With {method}, every client computed in {RARE:.0%} of its rounds or more."
    heading = f"clients that computed in fewer than {RARE:.0%} of the rounds of {method}"
    return Table(["seed", heading, "never"], rows, left=3)


def prediction_table(lines: list[dict[str, Any]]) -> Table:
    """The measured end of each run, and the prediction of the theory.

    Args:
        lines: The lines of a record's prediction, see `spodgt.theory.prediction`.
    """
    rows = []
    for line in lines:
        rate = line["rate"]
        predicted = None
        if len(line["predicted"]) > line["rounds"][-1]:
            predicted = line["predicted"][-1]
        rounds_per_decade = None
        if rate is not None and 0 < rate < 1:
            rounds_per_decade = -2 / np.log10(rate)  # the mean square falls by 100
        row = [
            TableCell(line["method"]),
            _number_cell(line["measured"][-1]),
            _number_cell(predicted),
            _number_cell(line["floor"]),
            _number_cell(rate, 6),
            _number_cell(rounds_per_decade),
        ]
        rows.append(row)
    heads = ["method", "distance at the end", "predicted", "floor"]
    return Table([*heads, "rate of the mean square", "rounds per decade"], rows)


def _number_cell(value: float | None, digits: int = 3) -> TableCell:
    if value is None or not np.isfinite(value):
        return _EMPTY
    return TableCell(f"{value:.{digits}g}")
