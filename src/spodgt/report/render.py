"""A report as one HTML file: style, script and data inside, nothing loaded from anywhere.

Tables are in the HTML, so that they can be read without scripts; charts are drawn by uPlot from the JSON in
the page. Templates escape every text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from numpy.typing import NDArray

from spodgt import figures
from spodgt.record import statistics
from spodgt.record.metrics import METRICS
from spodgt.record.record import Record, versions
from spodgt.record.sweep import label
from spodgt.report.page import Page
from spodgt.report.tables import (
    difference_table,
    final_table,
    prediction_table,
    rare_clients,
    sweep_tables,
)

_HERE = Path(__file__).parent
_POINTS = 121  # of a curve
_FEWER = 61  # of a curve, where there are several runs
_MOST_EVALUATIONS = 200  # of one run; a longer one is thinned
_MOST_CLIENTS = 200  # of a network that is drawn
_MOST_PICTURES = 150  # of networks in one page
_MOST_PAIRS = (
    4000  # of methods in tables of differences; with more, only the chosen reference is there
)


def render(page: Page) -> str:
    """The whole file."""
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # The order of keys is that of the methods, and a browser reads no NaN.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment.get_template("page.html.j2").render(context(page))


def _asset(name: str) -> str:
    return (_HERE / "assets" / name).read_text(encoding="utf-8")


# --- what the templates show ----------------------------------------------------------------------
def context(page: Page) -> dict[str, Any]:
    """Plain values for the templates."""
    pictures: dict[str, int] = {}
    data = payload(page, pictures)
    metrics, keys = list(data["metrics"]), data["sweep"]["keys"] if data["sweep"] else {}
    pairs = len(page.methods) ** 2 * (
        len(page.records) + math.prod(map(len, page.sweep.grid.values()))
    )
    references = page.methods if pairs <= _MOST_PAIRS else [page.reference]
    lines = _prediction(page)
    runs, problems = [], [f"{name}: {error}" for name, error in page.sweep.failures.items()]
    for number, (cell, record) in enumerate(zip(page.cells, page.records, strict=True)):
        for warning in (*record.diverged, *record.stalled):
            problems.append(f"{cell.title}: {warning}" if cell.title else str(warning))
        last = statistics.final(record.frame)
        run = {
            "number": number,
            "title": cell.title,
            "final": final_table(record),
            "differences": {one: difference_table(last, one) for one in references},
            "rare": rare_clients(record, page.reference),
        }
        runs.append(run)
    return {
        "page": page,
        "asset": _asset,
        "data": data,
        "facts": _facts(page),
        "problems": problems,
        "metrics": [(name, METRICS[name].label) for name in metrics],
        "logarithmic": bool(metrics) and METRICS[metrics[0]].log,
        "references": [(name, name) for name in references],
        "keys": [(key, one["label"], list(enumerate(one["texts"]))) for key, one in keys.items()],
        "sweep": sweep_tables(page.results, list(keys), references) if keys else None,
        "judged": METRICS[statistics.primary_metric(page.results)].label,
        "runs": runs,
        "axes": list(_axes(page).items()),
        "more": page.results["cell"].nunique() - len(page.records) if "cell" in page.results else 0,
        "seeds": list(dict.fromkeys(seed for record in page.records for seed in record.drawn())),
        "pictures": list(pictures),
        "shown": any(run["networks"] for run in data["runs"]),
        "most": _MOST_CLIENTS,
        "prediction": prediction_table(lines) if lines else None,
        "made_by": versions()["spodgt"],
    }


def _axes(page: Page) -> dict[str, str]:
    """What curves may be drawn against: the axes that all runs have."""
    found = [statistics.axes(record.frame) for record in page.records]
    return (
        {name: label for name, label in found[0].items() if all(name in one for one in found)}
        if found
        else {}
    )


def _facts(page: Page) -> list[str]:
    """What the run is, in a few words each."""
    facts = []
    config = page.records[0].config if page.records else {}
    run, network, problem = (
        section if isinstance(section := config.get(name), Mapping) else {}
        for name in ("run", "network", "problem")
    )
    if len(page.results):
        seeds = int(page.results.groupby("algorithm")["seed"].nunique().max())
        facts += [f"{seeds} seeds" if seeds != 1 else "1 seed"]
        facts += [f"{len(page.methods)} methods" if len(page.methods) != 1 else "1 method"]
    if run.get("delay"):
        facts.append(f"delay {run['delay']:,.0f}")
    if run.get("rounds"):
        facts.append(f"{run['rounds']:,} rounds")
    if run.get("evaluate_on"):
        facts.append("evaluated on validation data, not on test data")
    if run.get("seconds"):
        facts.append(f"{run['seconds']:,g} virtual seconds")
    if "network.clients" not in page.sweep.grid and "clients" in network:
        facts.append(f"{network['clients']} clients")
    named = [str(problem[key]) for key in ("data", "model") if key in problem] or [
        problem.get("kind", "")
    ]
    facts += [", ".join(named)] if any(named) else []
    if page.sweep.grid:
        facts.append(f"{math.prod(len(values) for values in page.sweep.grid.values())} cells")
    engines = {record.engine for record in page.records if record.engine}
    if engines:
        facts.append(f"engine: {', '.join(sorted(engines))}")
    if page.sweep.seconds:
        facts.append(f"computed in {duration(page.sweep.seconds)}")
    return facts


def duration(seconds: float) -> str:
    """`75` as `1 min 15 s`."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _prediction(page: Page) -> list[dict[str, Any]]:
    """The theory's prediction, where the record of a single run has one."""
    found = page.records[0].prediction if page.records and not page.sweep.grid else None
    return found["lines"] if found else []


# --- what the script draws from -------------------------------------------------------------------
def payload(page: Page, pictures: dict[str, int]) -> dict[str, Any]:
    """The data of the page, small enough to be inside it: numbers to four digits, long runs thinned.

    `pictures` collects the networks that are drawn, each once: the cells of a sweep often share them.
    """
    names, styles = statistics.available_metrics(page.results), figures.line_styles(page.methods)
    shown = {name: METRICS[name] for name in names}
    points = _POINTS if len(page.records) == 1 else _FEWER
    return {
        "methods": {
            name: {"slot": style.slot, "gaps": style.gaps} for name, style in styles.items()
        },
        "metrics": {
            name: {"label": metric.label, "log": metric.log, "fraction": metric.unit == "fraction"}
            for name, metric in shown.items()
        },
        "sweep": _sweep_data(page, names) if page.sweep.grid and page.methods else None,
        "runs": [_run_data(record, names, points, pictures) for record in page.records],
        "prediction": [_line_data(line) for line in _prediction(page)],
    }


def _line_data(line: Mapping[str, Any]) -> dict[str, Any]:
    at = _thinned(len(line["predicted"]))
    return {
        "method": line["method"],
        "at": at.tolist(),
        "predicted": _numbers(line["predicted"][n] for n in at),
        "rounds": line["rounds"],
        "measured": _numbers(line["measured"]),
        "floor": None if line["floor"] is None else _number(line["floor"]),
    }


def _sweep_data(page: Page, names: Sequence[str]) -> dict[str, Any]:
    keys, numbers = {}, {}
    for key in page.sweep.grid:
        values = list(dict.fromkeys(page.results[key]))
        at, logarithmic = figures.axis(values)
        texts = [label(value) for value in values]
        keys[key] = {"at": at, "texts": texts, "log": logarithmic, "label": figures.words(key)}
        numbers[key] = {value: number for number, value in enumerate(values)}
    cells = []
    for point, rows in page.results.groupby(list(page.sweep.grid), sort=False):
        found = {
            str(method): {name: _numbers((row[name], row[f"{name}_std"])) for name in names}
            for method, row in statistics.summary(rows, names).iterrows()
        }
        chosen = {
            key: numbers[key][value] for key, value in zip(page.sweep.grid, point, strict=True)
        }
        cells.append({"at": chosen, "values": found})
    return {"keys": keys, "cells": cells}


def _run_data(
    record: Record, names: Sequence[str], points: int, pictures: dict[str, int]
) -> dict[str, Any]:
    frame = record.frame
    names = [name for name in names if name in frame]
    axes: dict[str, Any] = {}
    known = statistics.axes(frame)
    for against in known:
        end = record.budget if against == "delay" else None
        grid = statistics.grid_of(frame, against, points, max(end or 0, 1e-9))
        ends = statistics.curve_ends(frame, against)
        axes[against] = {"x": _numbers(grid, 7), "bands": {name: {} for name in names}}
        for method, rows in statistics.available(frame, against, grid).items():
            for name in names:
                band = statistics.band(frame, name, rows, grid <= ends[method])
                axes[against]["bands"][name][method] = [
                    _numbers(band.mean),
                    _numbers(band.sigma, 2),
                ]
    seeds: dict[str, list[dict[str, Any]]] = {}
    for (algorithm, _), run in frame.groupby(["algorithm", "seed"], sort=False):
        kept = run.iloc[_thinned(len(run))]
        columns = {name: _numbers(kept[name]) for name in (*known, *names)}
        seeds.setdefault(str(algorithm), []).append(columns)
    last = statistics.summary(statistics.final(frame), names)
    final = {name: dict(zip(last.index, _numbers(last[name]), strict=True)) for name in names}
    parts = {"clients": _clients(record), **_networks(record, pictures)}
    return {"axes": axes, "seeds": seeds, "final": final, **parts}


def _clients(record: Record) -> dict[str, Any]:
    """What clients hold and how good their last models are: headings, and rows by method and seed."""
    keys = ["algorithm", "seed", "client", "client_name"]  # the page has the names from the network
    columns = [name for name in record.clients if name not in keys]
    rows: dict[str, dict[str, list[list[Any]]]] = {}
    for (method, seed), part in record.clients.groupby(keys[:2], sort=False):
        if len(part) <= _MOST_CLIENTS:
            values = [
                [_plain(value) for value in row] for row in part[columns].itertuples(index=False)
            ]
            rows.setdefault(str(method), {})[str(seed)] = values
    return {"heads": columns, "rows": rows}


def _plain(value: object) -> object:
    return _number(float(value)) if isinstance(value, int | float | np.number) else str(value)


def _networks(record: Record, pictures: dict[str, int]) -> dict[str, Any]:
    networks: dict[str, Any] = {}
    for seed, net in record.drawn().items():
        if net.clients <= _MOST_CLIENTS:
            picture = figures.network_svg(net, net.p, net.p_hat)
            if len(pictures) < _MOST_PICTURES:
                pictures.setdefault(picture, len(pictures))
            links = zip(
                net.senders.tolist(), net.receivers.tolist(), _numbers(net.p_hat), strict=True
            )
            networks[str(seed)] = {
                "picture": pictures.get(picture),  # None where there are too many
                "names": [net.label(client) for client in range(net.clients)],
                "p": _numbers(net.p),
                "links": list(links),
            }
    observed = {
        method: {
            str(seed): {
                "rounds": one.rounds,
                "clients": _numbers(one.clients),
                "links": _numbers(one.links),
            }
            for seed, one in seeds.items()
            if str(seed) in networks
        }
        for method, seeds in record.observed().items()
    }
    return {"networks": networks, "observed": observed}


def _thinned(count: int) -> NDArray[np.int64]:
    """Numbers below `count`, evenly spread and not too many."""
    return np.unique(np.linspace(0, count - 1, min(count, _MOST_EVALUATIONS)).astype(int))


def _number(value: float, digits: int = 4) -> float | None:
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def _numbers(values: Iterable[float], digits: int = 4) -> list[float | None]:
    return [_number(value, digits) for value in values]
