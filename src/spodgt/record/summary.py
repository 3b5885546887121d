"""The summary of a record: a table with one row per method, its text, and the notes below it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

import numpy as np

from spodgt.record import statistics
from spodgt.record.metrics import METRICS, label_of

if TYPE_CHECKING:
    import pandas as pd

    from spodgt.record.record import Record

_HIDDEN = ("gradients", "messages", "diverged")  # columns that the text does not show


def summary_table(record: Record) -> pd.DataFrame:
    """See `Record.summary`."""
    from spodgt.record.frames import with_old_names

    last = statistics.final(record.frame)
    # Of the whole frame: a metric that all runs have lost at the end is shown as NaN.
    metrics = [name for name in statistics.available_metrics(record.frame) if METRICS[name].column]
    first, *others = metrics or ["loss"]
    seconds = ["seconds"] if _has_values(last, "seconds") else []
    traffic = ["bytes"] if _has_values(last, "bytes") else []
    averaged = [first, *others, "delay", "round", *seconds, *traffic]
    table = statistics.summary(last, averaged).reset_index()
    for name in ("gradients", "messages"):
        table[name] = table["method"].map(_mean_per_seed(record, name))
    diverged = [run.method for run in record.diverged]
    table["diverged"] = [diverged.count(name) for name in table["method"]]
    columns = ["method", first, f"{first}_std", *others, "delay", *seconds, "round"]
    columns += ["gradients", "messages", *traffic, "seeds", "diverged"]
    return with_old_names(table[columns].rename(columns={"round": "rounds"}))


def _mean_per_seed(record: Record, column: str) -> dict[str, float]:
    """The sum of a column of the table of participation, mean over seeds, by method."""
    if column not in record.participation:
        return {}
    sums = record.participation.groupby("method")[column].sum()
    seeds = record.frame.groupby("method")["seed"].nunique()
    means = {}
    for method, count in sums.items():
        means[str(method)] = float(count) / int(seeds.get(method, 1))
    return means


def summary_text(record: Record) -> str:
    """The summary in 80 columns: metrics of the last models, best first, and costs per seed."""
    table = _printed_table(record).to_string(index=False)
    return "\n".join([table, *_divergence_notes(record), *summary_notes(record)])


def summary_html(record: Record) -> str:
    """The same as `summary_text` for a notebook."""
    table = str(_printed_table(record).to_html(index=False))
    notes = [*_divergence_notes(record), *summary_notes(record)]
    return table + "".join(f"<p>{escape(note)}</p>" for note in notes)


def _printed_table(record: Record) -> pd.DataFrame:
    """The summary with its values as short texts."""
    import pandas as pd

    metric = record.primary_metric
    summary = summary_table(record)
    summary = summary.sort_values(metric, ascending=statistics.better(metric) < 0)
    hidden = [*_HIDDEN]
    if metric != "loss":
        hidden.append("loss")
    if "seconds" in summary:
        hidden.append("delay")
    headings = {
        f"{metric}_std": "± σ",
        f"{metric}_average": "average",
        f"{metric}_worst": "worst",
    }
    table = {}
    for name in summary.columns.drop(hidden, errors="ignore"):
        cells = []
        for value, seeds in zip(summary[name], summary["seeds"], strict=True):
            has_value = seeds > 1 or name != f"{metric}_std"  # one seed has no deviation
            cells.append(_cell(name, value) if has_value else "–")
        table[headings.get(name, name)] = cells
    return pd.DataFrame(table, dtype=str)


def _divergence_notes(record: Record) -> list[str]:
    notes = []
    summary = summary_table(record)
    for row in summary[summary["diverged"] > 0].to_dict("records"):
        notes.append(f"{row['method']} diverged in {row['diverged']} of {row['seeds']} seeds.")
    return notes


def summary_latex(record: Record) -> str:
    """The summary as a LaTeX table of the package booktabs, best first, without costs."""
    metric = record.primary_metric
    summary = summary_table(record)
    summary = summary.sort_values(metric, ascending=statistics.better(metric) < 0)
    clock = "seconds" if "seconds" in summary else "delay"
    lines = [r"\begin{tabular}{lrrr}", r"\toprule"]
    heading = label_of(metric, record.evaluated_on)
    lines.append(f"method & {_latex(heading)} & rounds & {clock} \\\\")
    lines.append(r"\midrule")
    for number, row in enumerate(summary.to_dict("records")):
        time = f"{row[clock]:.4g}" if clock == "seconds" else f"{row[clock]:.0f}"
        value = _latex_value(row, metric)
        if number == 0 and len(summary) > 1:
            value = _bold(value)
        cells = [
            _latex(str(row["method"])),
            value,
            f"{row['rounds']:.0f}",
            time,
        ]
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def _latex_value(row: Mapping[Hashable, float], metric: str) -> str:
    """Mean ± σ of a row of the summary; without σ if there is one seed."""
    if row["diverged"]:
        return "diverged"
    mean = float(row[metric])
    if math.isnan(mean):
        return "--"
    value = _latex_number(mean, metric, 4)
    if row["seeds"] > 1:
        value += r" \pm " + _latex_number(float(row[f"{metric}_std"]), metric, 2)
    return f"${value}$"


def _bold(value: str) -> str:
    """A number of LaTeX in bold face; text remains as it is."""
    return rf"$\mathbf{{{value.strip('$')}}}$" if value.startswith("$") else value


def _latex_number(value: float, metric: str, digits: int) -> str:
    """Fractions have four decimals, so that columns are aligned; others significant digits."""
    if metric in METRICS and METRICS[metric].unit == "fraction":
        return f"{value:.4f}"
    mantissa, _, exponent = f"{value:.{digits}g}".partition("e")
    if not exponent:
        return mantissa
    return rf"{mantissa} \cdot 10^{{{int(exponent)}}}"


def _latex(text: str) -> str:
    """Text with the special characters of LaTeX escaped."""
    for character in "_%&#":
        text = text.replace(character, "\\" + character)
    return text


def summary_notes(record: Record) -> list[str]:
    """Sentences below a table of results: which models are evaluated, and the cost of a round."""
    return [
        *_evaluation_notes(record),
        *_local_step_notes(record),
        *_stop_notes(record),
        *_best_notes(record),
        *_waiting_notes(record),
    ]


def _evaluation_notes(record: Record) -> list[str]:
    """One sentence if the values are not of test data."""
    if record.evaluated_on != "validation":
        return []
    return ["Evaluated on validation data, not on test data."]


def _local_step_notes(record: Record) -> list[str]:
    """One sentence with the methods that take local steps."""
    methods = []
    for method in record.methods:
        steps = record.traits.get(method, {}).get("local_steps")
        if steps:
            methods.append(f"{method} (K = {_range(steps)})")
    if not methods:
        return []
    return [f"With local steps, evaluated after the last exchange: {', '.join(methods)}."]


def _waiting_notes(record: Record) -> list[str]:
    """One sentence if methods that wait are compared by rounds with methods that do not."""
    waiting = [name for name in record.methods if record.traits.get(name, {}).get("waits")]
    others = [name for name in record.methods if name not in waiting]
    compared_by_rounds = record.budget is None and "seconds" not in record.frame
    if not waiting or not others or not compared_by_rounds:
        return []
    delay = statistics.final(record.frame).groupby("method")["delay"].mean()
    slower = [method for method in waiting if delay[method] > delay[others].max()]
    if not slower:
        return []
    return [
        f"Compared by rounds, but a round of {' and of '.join(slower)} waits for idle clients or "
        "links and takes longer (column delay); give a delay to compare at equal delay."
    ]


def _stop_notes(record: Record) -> list[str]:
    """One sentence for each method and reason for which runs stopped early."""
    counts: dict[tuple[str, str], int] = {}
    for run in record.stopped:
        key = (run.method, run.reason)
        counts[key] = counts.get(key, 0) + 1
    seeds = record.frame.groupby("method")["seed"].nunique()
    notes = []
    for (method, reason), count in counts.items():
        runs = "" if seeds[method] == 1 else f" in {count} of {seeds[method]} seeds"
        notes.append(f"{method} stopped early{runs}: {reason}.")
    return notes


def _best_notes(record: Record) -> list[str]:
    """One line for each method whose best models are kept."""
    notes = []
    for method in record.methods:
        runs = [run for run in record.best if run.method == method]
        if not runs:
            continue
        metric = label_of(runs[0].metric, record.evaluated_on)
        value = np.mean([run.value for run in runs])
        rounds = _range([run.round for run in runs])
        seeds = "" if len(runs) == 1 else f", mean of {len(runs)} seeds"
        notes.append(f"best: {method} at round {rounds}: {metric} {value:.4g}{seeds}")
    return notes


def _has_values(table: pd.DataFrame, column: str) -> bool:
    """Whether a column has values other than zero: methods without messages have no bytes."""
    return column in table and bool((table[column].fillna(0) != 0).any())


def _cell(column: str, value: float | str) -> str:
    """A value of the summary as `print(result)` shows it."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if column == "bytes":
        return short_bytes(float(value))
    if column in ("delay", "rounds"):
        return f"{float(value):,.0f}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _range(values: Sequence[int]) -> str:
    """`5`, or `3 to 9` if seeds differ."""
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def short_count(count: float) -> str:
    """At most five characters: 9,999, 38.9k, 132k, 12.3M, 4.5G."""
    if not np.isfinite(count):
        return "–"
    if count < 9_999.5:
        return f"{count:,.0f}"
    return _scaled(count, ("k", "M", "G"))


def short_bytes(count: float) -> str:
    """At most seven characters: 999 B, 83.2 kB, 1.2 MB."""
    if not np.isfinite(count):
        return "–"
    if count < 999.5:
        return f"{count:.0f} B"
    return _scaled(count, (" kB", " MB", " GB", " TB"))


def _scaled(count: float, units: Sequence[str]) -> str:
    """A number of at least 1,000 in thousands, millions, …, with about three digits."""
    for unit in units:
        count /= 1000
        if count < 99.95:
            return f"{count:.1f}{unit}"
        if count < 999.5:
            return f"{count:.0f}{unit}"
    return f"{count:,.0f}{units[-1]}"
