"""The tables of a report, as HTML that needs no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from spodgt.report.collect import Page, RunData, seen
from spodgt.report.pictures import words
from spodgt.report.statistics import (
    Difference,
    measure_of,
    methods_of,
    paired,
    reference_of,
    summary,
)
from spodgt.sweeps.sweep import label

_RARE = 0.01  # a client that computes in fewer rounds than this share is hardly heard
_HEADS = {
    "accuracy": "accuracy",
    "accuracy_average": "average model",
    "accuracy_worst": "worst client",
    "loss": "loss",
    "distance": "distance to optimum",
}


def number(value: float) -> str:
    """Three places for what lies between 0.001 and 1, else three digits."""
    if not np.isfinite(value):
        return "–"
    size = abs(value)
    return f"{value:.3f}" if 1e-3 <= size < 10 or size == 0 else f"{value:.3g}"


def interval(one: Difference) -> str:
    """`0.012 … 0.134`, in places that suit both ends."""
    if not np.isfinite(one.low):
        return "–"
    places = ".3f" if max(abs(one.low), abs(one.high)) >= 1e-2 else ".2e"
    return f"{one.low:{places}} … {one.high:{places}}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, texts: bool = False) -> str:
    """Cells are HTML, heads are text; columns of `texts` stand left."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    kind = ' class="texts"' if texts else ""
    return (
        f'<div class="scroll"><table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def final_table(last: pd.DataFrame, activity: pd.DataFrame) -> str:
    """Mean ± sigma of the last models, best first, and the work each method did."""
    measure = measure_of(last)
    metrics = [name for name in _HEADS if name in last and (name == measure or last[name].notna().any())]
    metrics.sort(key=lambda name: name != measure)
    means = summary(last, [*metrics, "round", "delay"])
    means = means.sort_values(measure, ascending=measure == "loss")
    groups = activity.groupby("algorithm")
    done = {name: groups[name].sum().to_dict() for name in ("gradients", "messages")}
    rows = []
    for place, (method, row) in enumerate(means.iterrows()):
        cells = [f"<b>{escape(str(method))}</b>" if place == 0 else escape(str(method))]
        for name in metrics:
            spread = f" <small>± {number(row[f'{name}_std'])}</small>" if row["seeds"] > 1 else ""
            cells.append(f"{number(row[name])}{spread}")
        cells += [f"{row['round']:,.0f}", f"{row['delay']:,.0f}"]
        for column in ("gradients", "messages"):
            cells.append(f"{done[column][str(method)]:,.0f}" if str(method) in done[column] else "–")
        rows.append(cells)
    heads = ["method", *(_HEADS[name] for name in metrics), "rounds", "delay", "gradients", "messages"]
    note = "<p class='soft'>Rounds and delay are means over seeds, gradients and messages sums.</p>"
    return table(heads, rows) + note


def difference_table(last: pd.DataFrame) -> str:
    """How far the reference leads every other method."""
    measure, reference = measure_of(last), reference_of(methods_of(last))
    found = paired(last, measure, reference)
    if not found:
        return '<p class="soft">One method alone has no differences.</p>'
    ends = [end for one in found for end in (one.low, one.high, one.mean) if np.isfinite(end)]
    reach = max(map(abs, ends)) or 1.0
    rows = [
        [
            escape(one.method),
            f"{one.mean:+.3f}" if abs(one.mean) >= 1e-3 or not one.mean else f"{one.mean:+.2e}",
            interval(one),
            _forest(one, reach),
            f"{one.ahead} of {one.seeds}",
            f'<span class="{_class(one)}">{_sentence(one)}</span>',
        ]
        for one in sorted(found, key=lambda one: one.mean)
    ]
    heads = [f"{reference} minus …", f"lead in {measure}", "95 % interval", "", "seeds ahead", ""]
    note = (
        f"<p class='soft'>Differences of the last models within a seed: same network, clients and data. "
        f"Above zero {escape(reference)} is better. Student's interval over seeds; "
        "where it holds zero the question is open.</p>"
    )
    return table(heads, rows) + note


def _class(one: Difference) -> str:
    return one.verdict if one.verdict in ("ahead", "behind") else "open"


def _sentence(one: Difference) -> str:
    words_of = {"ahead": "ahead", "behind": "behind", "open": "open", "one seed": "one seed says little"}
    return words_of[one.verdict]


def _forest(one: Difference, reach: float) -> str:
    def x(value: float) -> float:
        return 85 + 80 * value / reach

    span = (
        f'<line class="span" x1="{x(one.low):.1f}" x2="{x(one.high):.1f}" y1="9" y2="9"/>'
        if np.isfinite(one.low)
        else ""
    )
    return (
        f'<svg class="forest {_class(one)}" viewBox="0 0 170 18" aria-hidden="true">'
        f'<line class="zero" x1="85" x2="85" y1="1" y2="17"/>{span}'
        f'<circle cx="{x(one.mean):.1f}" cy="9" r="3.5"/></svg>'
    )


def sweep_tables(page: Page) -> str:
    """A row for each cell: mean ± sigma of every method, and the reference's lead over each."""
    measure, methods = measure_of(page.results), methods_of(page.results)
    reference = reference_of(methods)
    keys = list(page.grid)
    first: list[list[str]] = []
    second: list[list[str]] = []
    for values, rows in page.results.groupby(keys, sort=False):
        names = [escape(label(value)) for value in (values if isinstance(values, tuple) else (values,))]
        means = summary(rows, [measure])
        best = means[measure].max() if measure == "accuracy" else means[measure].min()
        first.append(names + [_mean(means, method, measure, best) for method in methods])
        leads = {one.method: one for one in paired(rows, measure, reference)}
        second.append(names + [_lead(leads.get(method)) for method in methods if method != reference])
    heads = [words(key) for key in keys]
    others = [method for method in methods if method != reference]
    return (
        f"<h3>{escape(measure.capitalize())}, mean ± sigma</h3>{table([*heads, *methods], first)}"
        f"<h3>Lead of {escape(reference)}, with 95 % interval</h3>{table([*heads, *others], second)}"
        f"<p class='soft'>Paired over seeds; above zero {escape(reference)} is better.</p>"
    )


def _mean(means: pd.DataFrame, method: str, measure: str, best: float) -> str:
    if method not in means.index:
        return "–"
    row: Any = means.loc[method]
    text = f"{number(row[measure])} <small>± {number(row[f'{measure}_std'])}</small>"
    return f"<b>{text}</b>" if row[measure] == best else text


def _lead(one: Difference | None) -> str:
    if one is None:
        return "–"
    return f'<span class="{_class(one)}">{one.mean:+.3f}</span> <small>{interval(one)}</small>'


def rare_clients(run: RunData) -> str:
    """Which clients the reference hardly heard: their data weigh next to nothing in what it learned."""
    observed = seen(run)
    if not observed:
        return ""
    reference = reference_of(list(observed))
    rows: list[list[str]] = []
    chances = run.activity[(run.activity["algorithm"] == reference) & (run.activity["kind"] == "client")]
    for seed, one in observed[reference].items():
        p = chances.loc[chances["seed"] == seed, "probability"].to_numpy()
        shares: Any = one["clients"]
        rare = [client for client in np.argsort(p) if shares[client] < _RARE]
        if rare:
            names = ", ".join(f"{client} (p = {p[client]:.2g})" for client in rare)
            never = ", ".join(str(client) for client in rare if shares[client] == 0) or "none"
            rows.append([str(seed), escape(names), escape(never)])
    if not rows:
        return f"<p>{escape(reference)} heard every client in {_RARE:.0%} of its rounds or more.</p>"
    heads = ["seed", f"clients that {reference} heard in fewer than {_RARE:.0%} of rounds", "never"]
    return f"<h3>Hardly heard</h3>{table(heads, rows, texts=True)}"
