"""A report as one HTML file: style, script and data inside, nothing loaded from anywhere.

Tables are made here, so that they can be read without scripts; the interactive parts are drawn by
the scripts of `assets` from the JSON in the page. Every text of a user is escaped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from spodgt import figures
from spodgt.record.metrics import METRICS
from spodgt.record.record import versions
from spodgt.report.collect import Page, RunData, networks, seen
from spodgt.report.pictures import places, words
from spodgt.report.statistics import final, measure_of, methods_of
from spodgt.report.tables import difference_table, final_table, rare_clients, sweep_tables
from spodgt.sweeps.sweep import label

_ASSETS = Path(__file__).parent / "assets"
_SCRIPTS = ("tools", "chart", "report")  # in this order; they share a scope
_LABELS = {
    "accuracy": "accuracy",
    "accuracy_average": "accuracy of the average model",
    "accuracy_worst": "accuracy of the worst client",
    "loss": "loss",
    "consensus_x": "distance of models from their average",
    "consensus_y": "distance of trackers from their average",
    "tracking": "tracking error |Σy − Σg|",
    "train_loss": "training loss",
    "gradient_norm": "gradient norm |∇F|",
    "distance": "distance from the optimum",
}
_LOGARITHMIC = ("consensus_x", "consensus_y", "tracking", "gradient_norm", "distance")
_MOST_LOOKS = 200  # of one run; a longer one is thinned
_MOST_CLIENTS = 200  # of a network that is drawn
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def render(page: Page) -> str:
    """The whole file."""
    style = (_ASSETS / "report.css").read_text(encoding="utf-8")
    script = "\n".join((_ASSETS / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS)
    parts = [_header(page), "<main>", _warnings(page)]
    if page.runs:
        parts += [_sweep(page), _curves(page), _tables(page), _network(page)]
    parts += [_setting(page), "</main>", _footer(page)]
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>{escape(page.title)} · spodgt</title>
<style>
{style}</style>
</head>
<body>
{"".join(parts)}
<script type="application/json" id="data">{_json(payload(page))}</script>
<script>
"use strict";
(() => {{
{script}}})();
</script>
</body>
</html>
"""


# --- what the script draws from --------------------------------------------------------------------
def payload(page: Page) -> dict[str, Any]:
    """The data of the page, small enough to be inside it: numbers to five digits, long runs thinned."""
    methods = methods_of(page.results) if len(page.results) else []
    names = _metrics(page)
    about = {
        name: {
            "label": _LABELS.get(name, name),
            "log": name in _LOGARITHMIC,
            "share": name.startswith("accuracy"),
        }
        for name in names
    }
    return {
        "methods": methods,
        "dashes": [_dash(number) for number in range(len(methods))],
        "metrics": about,
        "sweep": _sweep_data(page, names) if page.grid else None,
        "runs": [_run_data(run, names) for run in page.runs],
    }


def _metrics(page: Page) -> list[str]:
    """The metrics that some run has, the judged one first."""
    have = [name for name in METRICS if name in page.results and page.results[name].notna().any()]
    judged = measure_of(page.results) if len(page.results) else "accuracy"
    order = list(_LABELS)
    return sorted(have, key=lambda name: (name != judged, order.index(name) if name in order else len(order)))


def _dash(number: int) -> str:
    dash = figures.style(number)["linestyle"]
    named = {"-": "none", "--": "8 4", "-.": "9 3 2 3", ":": "2 3"}
    return named[dash] if isinstance(dash, str) else " ".join(f"{2 * step:g}" for step in dash[1])


def _sweep_data(page: Page, names: Sequence[str]) -> dict[str, Any]:
    keys = {}
    for key in page.grid:
        values = list(dict.fromkeys(page.results[key])) if len(page.results) else []
        numbers, logarithmic = places(values) if values else ([], False)
        keys[key] = {
            "values": values,
            "numbers": numbers == values,
            "log": logarithmic,
            "label": words(key),
        }
    rows = [
        {"keys": {key: row[key] for key in page.grid}, "method": row["algorithm"]}
        | {name: _number(row[name]) for name in names if name in row}
        for row in page.results.to_dict("records")
    ]
    return {"keys": keys, "rows": rows}


def _run_data(run: RunData, names: Sequence[str]) -> dict[str, Any]:
    looks: dict[str, dict[str, Any]] = {}
    columns = ["delay", "round", *(name for name in names if name in run.frame)]
    for (method, seed), rows in run.frame.groupby(["algorithm", "seed"], sort=False):
        keep = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _MOST_LOOKS)).astype(int))
        looks.setdefault(str(method), {})[str(seed)] = {
            column: _numbers(rows[column].to_numpy()[keep]) for column in columns
        }
    small = {seed: net for seed, net in networks(run).items() if len(net["p"]) <= _MOST_CLIENTS}
    nets = {
        str(seed): {
            "places": [_numbers(place) for place in net["places"]],
            "p": _numbers(net["p"]),
            "links": [
                [int(j), int(i), _number(chance)]
                for (j, i), chance in zip(net["links"], net["p_hat"], strict=True)
            ],
        }
        for seed, net in small.items()
    }
    observed = {
        method: {
            str(seed): {
                "rounds": one["rounds"],
                "clients": _numbers(one["clients"]),
                "links": _numbers(one["links"]),
            }
            for seed, one in seeds.items()
            if seed in small
        }
        for method, seeds in seen(run).items()
    }
    return {"looks": looks, "networks": nets, "seen": observed, "budget": {"delay": run.budget}}


def _number(value: Any) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _numbers(values: Iterable[Any]) -> list[float | None]:
    return [_number(value) for value in values]


def _json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# --- the parts of the page -------------------------------------------------------------------------
def _header(page: Page) -> str:
    kicker = f"Figure {escape(page.figure)} of the paper" if page.figure else "A comparison of methods"
    scale = f'<p class="soft">{escape(page.scale)}</p>' if page.scale else ""
    claim = f'<p class="claim"><b>The paper:</b> {escape(page.paper)}</p>' if page.paper else ""
    facts = "".join(f"<li>{escape(fact)}</li>" for fact in _facts(page))
    return f"""<header>
<p class="kicker">spodgt · {kicker}</p>
<h1>{escape(page.title)}</h1>
<button id="theme" class="theme" type="button" title="light or dark" aria-label="light or dark">◐</button>
{scale}<ul class="facts">{facts}</ul>{claim}
</header>
"""


def _facts(page: Page) -> list[str]:
    facts = []
    run: Mapping[str, Any] = page.runs[0].config.get("run", {}) if page.runs else {}
    config = page.runs[0].config if page.runs else {}
    if page.runs:
        counts = page.results.groupby("algorithm")["seed"].nunique() if len(page.results) else pd.Series([0])
        facts.append(f"{int(counts.max())} seeds" if counts.max() != 1 else "1 seed")
        facts.append(f"{len(methods_of(page.results))} methods")
    if isinstance(run, Mapping) and run:
        if run.get("delay"):
            facts.append(f"delay {run['delay']:,.0f}")
        if run.get("rounds"):
            facts.append(f"{run['rounds']:,} rounds")
        if "network.clients" not in page.grid and "clients" in config["network"]:
            facts.append(f"{config['network']['clients']} clients")
        problem = config["problem"]
        facts.append(
            ", ".join(str(problem[key]) for key in ("data", "model") if key in problem) or problem["kind"]
        )
    if page.grid:
        facts.append(f"{math.prod(len(values) for values in page.grid.values())} cells")
    if page.seconds:
        facts.append(f"computed in {duration(page.seconds)}")
    return facts


def duration(seconds: float) -> str:
    """`75` as `1 min 15 s`."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _warnings(page: Page) -> str:
    items = [f"{name}: {error}" for name, error in page.failures.items()]
    items += [f"{run.title}: {text}" if run.title else text for run in page.runs for text in run.stopped]
    texts = []
    if page.missing or any(not run.complete for run in page.runs):
        names = f" Not run yet: {', '.join(page.missing)}." if page.missing else ""
        texts.append(f"<p>This is not finished; run it again to go on.{escape(names)}</p>")
    if items:
        entries = "".join(f"<li>{escape(item)}</li>" for item in items)
        texts.append(f"<p>What went wrong:</p><ul>{entries}</ul>")
    return f'<div class="warning">{"".join(texts)}</div>' if texts else ""


def _select(name: str, text: str, options: Iterable[tuple[str, str]]) -> str:
    choices = "".join(f'<option value="{escape(value)}">{escape(shown)}</option>' for value, shown in options)
    return f'<label>{escape(text)} <select id="{name}">{choices}</select></label>'


def _metric_options(page: Page) -> list[tuple[str, str]]:
    return [(name, _LABELS.get(name, name)) for name in _metrics(page)]


def _sweep(page: Page) -> str:
    if not page.grid or not len(page.results):
        return ""
    controls = [_select("sweep-metric", "metric", _metric_options(page))]
    if len(page.grid) > 1:
        controls.append(_select("sweep-key", "against", [(key, words(key)) for key in page.grid]))
        for number, key in enumerate(page.grid):
            values = [(str(value), label(value)) for value in dict.fromkeys(page.results[key])]
            controls.append(_select(f"fix-{number}", words(key), values))
    keys = " and ".join(words(key) for key in page.grid)
    return f"""<section>
<h2>Against {escape(keys)}</h2>
<p class="soft">The last model of every run: mean over seeds, bars of one sigma.
Click a method to hide it, drag to zoom.</p>
<div class="controls">{"".join(controls)}
<button id="sweep-reset" type="button" hidden>Reset zoom</button></div>
<div class="legend" id="sweep-legend"></div>
<figure class="chart" id="sweep"></figure>
{sweep_tables(page)}
</section>
"""


def _curves(page: Page) -> str:
    options = [(str(number), run.title) for number, run in enumerate(page.runs)]
    which = _select("run", "cell", options) if page.grid else ""
    more = len(page.results["cell"].unique()) - len(page.runs) if "cell" in page.results else 0
    note = (
        f'<p class="soft">{more} more cells have reports of their own: spodgt report CELL.</p>'
        if more > 0
        else ""
    )
    judged = _metrics(page)[0] in _LOGARITHMIC
    return f"""<section>
<h2>Over time</h2>
<p class="soft">Mean over seeds with a band of one sigma; numbers in the legend are those of the last models.
Point at a curve to read it, click a method to hide it, drag to zoom.</p>{note}
<div class="controls">{which}{_select("metric", "metric", _metric_options(page))}
{_select("against", "against", [("delay", "total delay"), ("round", "round")])}
<label><input type="checkbox" id="log"{" checked" if judged else ""}> logarithmic</label>
<label><input type="checkbox" id="seeds"> every seed</label>
<button id="curves-reset" type="button" hidden>Reset zoom</button></div>
<div class="legend" id="curves-legend"></div>
<figure class="chart" id="curves"></figure>
</section>
"""


def _tables(page: Page) -> str:
    panels = []
    for number, run in enumerate(page.runs):
        last = final(run.frame)
        inner = f"{final_table(last, run.activity)}<h3>Differences, seed by seed</h3>{difference_table(last)}"
        panels.append(f'<div data-run="{number}"{" hidden" if number else ""}>{inner}</div>')
    return f"<section><h2>At the end</h2>{''.join(panels)}</section>\n"


def _network(page: Page) -> str:
    if not any(len(run.activity) for run in page.runs):
        return ""
    seeds = list(dict.fromkeys(str(seed) for run in page.runs for seed in run.frame["seed"]))
    methods = methods_of(page.results)
    rare = "".join(
        f'<div data-run="{number}"{" hidden" if number else ""}>{rare_clients(run)}</div>'
        for number, run in enumerate(page.runs)
    )
    choices = [(seed, seed) for seed in seeds]
    return f"""<section>
<h2>Network and participation</h2>
<p class="soft">Clients compute with chance p, links work with chance p̂, drawn anew for every seed.
A method that waits for everyone lies above the diagonal; it pays for that with delay.</p>
<div class="controls">{_select("network-seed", "seed", choices)}
{_select("network-method", "method", [(method, method) for method in methods])}
<span class="soft" id="network-note"></span></div>
<div class="pair">
<figure class="network"><div id="network"></div><figcaption>
<span class="scale-bar">0 <i></i> 1&ensp;p of clients and p̂ of links; point at one to read it</span>
</figcaption></figure>
<figure class="scatter"><div id="participation"></div><figcaption>
<span class="dot" style="background:var(--accent)"></span>clients&ensp;
<span class="dot" style="border:1.5px solid var(--m1)"></span>links</figcaption></figure>
</div>
{rare}
<details><summary>Every client</summary><div class="scroll" id="clients"></div></details>
</section>
"""


def _setting(page: Page) -> str:
    made = page.runs[0].versions if page.runs else versions()
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(text)}</td></tr>" for name, text in made.items())
    rerun = (
        f"<p>The same again, with the same numbers:</p><pre>{escape(page.command)}</pre>"
        if page.command
        else '<p class="soft">This was run from Python; call the same script to run it again.</p>'
    )
    return f"""<section>
<h2>How to run it again</h2>
{rerun}
<details open><summary>Settings</summary><pre>{escape(page.source)}</pre></details>
<details><summary>Versions</summary><div class="scroll"><table>{rows}</table></div></details>
</section>
"""


def _footer(page: Page) -> str:
    names = "results.csv, results.parquet" if page.grid else "metrics.parquet, participation.parquet"
    return (
        f"<footer>Made by spodgt {escape(versions()['spodgt'])}. The numbers are in {names}, "
        "figures for a paper in figure.png, figure.svg and figure.pdf beside this file.</footer>"
    )
