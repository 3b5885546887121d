"""A report as one HTML file: style, script and data inside, nothing loaded from anywhere.

Tables are in the HTML, so that they can be read without scripts; charts are drawn by uPlot from the JSON in
the page. Templates escape every text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from spodgt import figures
from spodgt.record import statistics
from spodgt.record.metrics import METRICS
from spodgt.record.record import Record, versions
from spodgt.record.sweep import label
from spodgt.report.page import Page
from spodgt.report.tables import (
    Table,
    difference_table,
    final_table,
    prediction_table,
    rare_clients,
    sweep_tables,
)

_HERE = Path(__file__).parent
_STYLES = ("uplot/uPlot.min.css", "report.css")
_SCRIPTS = ("uplot/uPlot.iife.min.js", "report.js")
_POINTS = 121  # of a curve
_FEWER = 61  # of a curve, where there are several runs
_MOST_EVALUATIONS = 200  # of one run; a longer one is thinned
_MOST_CLIENTS = 200  # of a network that is drawn
_MOST_PICTURES = 150  # of networks in one page
_MOST_PAIRS = 4000  # of methods in tables of differences; with more, only the chosen reference is there
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def render(page: Page) -> str:
    """The whole file.

    Args:
        page: What it shows.
    """
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(context(page))


# --- what the templates show ----------------------------------------------------------------------
def context(page: Page) -> dict[str, Any]:
    """Plain values for the templates.

    Args:
        page: What the report shows.
    """
    pictures: dict[str, int] = {}
    data = payload(page, pictures)
    pairs = len(page.methods) ** 2 * (len(page.records) + math.prod(map(len, page.sweep.grid.values())))
    references = page.methods if pairs <= _MOST_PAIRS else [page.reference]
    runs = [_run(page, number, references) for number in range(len(page.records))]
    lines = _prediction(page)
    return {
        "page": page,
        "policy": _POLICY,
        "style": _assets(_STYLES),
        "script": _assets(_SCRIPTS),
        "data": _json(data),
        "facts": _facts(page),
        "problems": [f"{name}: {error}" for name, error in page.sweep.failures.items()] + _diverged(page),
        "unfinished": not page.sweep.complete,
        "metrics": [(name, METRICS[name].label) for name in data["metrics"]],
        "logarithmic": bool(data["metrics"]) and next(iter(data["metrics"].values()))["log"],
        "references": [(name, name) for name in references],
        "keys": [(key, figures.words(key), _values(page, key)) for key in page.sweep.grid],
        "sweep": sweep_tables(page.results, list(page.sweep.grid), references)
        if page.sweep.grid and len(page.results)
        else None,
        "judged": METRICS[statistics.judged(page.results)].label if len(page.results) else "",
        "runs": runs,
        "more": page.results["cell"].nunique() - len(page.records) if "cell" in page.results else 0,
        "seeds": list(dict.fromkeys(seed for record in page.records for seed in record.drawn())),
        "pictures": list(pictures),
        "prediction": prediction_table(lines) if lines else None,
        "versions": page.sweep.versions,
        "made_by": versions()["spodgt"],
    }


def _assets(names: Sequence[str]) -> str:
    return "\n".join((_HERE / "assets" / name).read_text(encoding="utf-8") for name in names)


def _run(page: Page, number: int, references: list[str]) -> dict[str, Any]:
    record = page.records[number]
    last = statistics.final(record.frame)
    rare = rare_clients(record, page.reference)
    return {
        "number": number,
        "title": page.cells[number].title,
        "final": final_table(record),
        "differences": {one: difference_table(last, one) for one in references},
        "rare": rare if isinstance(rare, Table) else None,
        "rare_text": "" if isinstance(rare, Table) else rare,
    }


def _values(page: Page, key: str) -> list[tuple[str, str]]:
    values = list(dict.fromkeys(page.results[key])) if len(page.results) else []
    return [(str(number), label(value)) for number, value in enumerate(values)]


def _diverged(page: Page) -> list[str]:
    pairs = zip(page.cells, page.records, strict=True)
    found = [(cell.title, str(each)) for cell, record in pairs for each in record.diverged]
    return [f"{title}: {text}" if title else text for title, text in found]


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
    if "network.clients" not in page.sweep.grid and "clients" in network:
        facts.append(f"{network['clients']} clients")
    named = [str(problem[key]) for key in ("data", "model") if key in problem] or [problem.get("kind", "")]
    facts += [", ".join(named)] if any(named) else []
    if page.sweep.grid:
        facts.append(f"{math.prod(len(values) for values in page.sweep.grid.values())} cells")
    if page.sweep.seconds:
        facts.append(f"computed in {duration(page.sweep.seconds)}")
    return facts


def duration(seconds: float) -> str:
    """`75` as `1 min 15 s`.

    Args:
        seconds: A time.
    """
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _prediction(page: Page) -> list[dict[str, Any]]:
    """The theory's prediction, where the record of a single run has one."""
    found = page.records[0].prediction if page.records and not page.sweep.grid else None
    return list(found["lines"]) if found else []


# --- what the script draws from -------------------------------------------------------------------
def payload(page: Page, pictures: dict[str, int]) -> dict[str, Any]:
    """The data of the page, small enough to be inside it: numbers to four digits, long runs thinned.

    Args:
        page: What the report shows.
        pictures: Collects the networks that are drawn, each once: the cells of a sweep often share them.
    """
    names = statistics.known(page.results) if len(page.results) else []
    styles = figures.line_styles(page.methods)
    points = _POINTS if len(page.records) == 1 else _FEWER
    return {
        "methods": {name: {"slot": style.slot, "gaps": style.gaps} for name, style in styles.items()},
        "metrics": {
            name: {
                "label": METRICS[name].label,
                "log": METRICS[name].log,
                "fraction": METRICS[name].unit == "fraction",
            }
            for name in names
        },
        "sweep": _sweep_data(page, names) if page.sweep.grid and len(page.results) else None,
        "runs": [_run_data(record, names, points, pictures) for record in page.records],
        "prediction": [_line_data(line) for line in _prediction(page)],
    }


def _line_data(line: Mapping[str, Any]) -> dict[str, Any]:
    predicted = line["predicted"]
    at = np.unique(np.linspace(0, len(predicted) - 1, min(len(predicted), _MOST_EVALUATIONS)).astype(int))
    return {
        "method": line["method"],
        "at": at.tolist(),
        "predicted": _numbers(predicted[n] for n in at),
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
            for method, row in statistics.summary(rows, list(names)).iterrows()
        }
        chosen = {key: numbers[key][value] for key, value in zip(page.sweep.grid, point, strict=True)}
        cells.append({"at": chosen, "values": found})
    return {"keys": keys, "cells": cells}


def _run_data(record: Record, names: Sequence[str], points: int, pictures: dict[str, int]) -> dict[str, Any]:
    frame = record.frame
    names = [name for name in names if name in frame]
    axes = {}
    for against, end in (("delay", record.budget), ("round", None)):
        grid = np.linspace(0, max(end or 0, float(frame[against].max()), 1e-9), points)
        found = statistics.available(frame, against, grid)
        axes[against] = {
            "x": _numbers(grid),
            "bands": {
                name: {
                    method: [_numbers(band.mean), _numbers(band.sigma, 2)]
                    for method, band in ((m, statistics.band(frame, name, rows)) for m, rows in found.items())
                }
                for name in names
            },
        }
    last = statistics.summary(statistics.final(frame), names)
    return {
        "axes": axes,
        "seeds": _evaluations(record, names),
        "final": {name: dict(zip(last.index, _numbers(last[name]), strict=True)) for name in names},
        **_networks(record, pictures),
    }


def _evaluations(record: Record, names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for (method, _), rows in record.frame.groupby(["algorithm", "seed"], sort=False):
        keep = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _MOST_EVALUATIONS)).astype(int))
        columns = {name: _numbers(rows[name].to_numpy()[keep]) for name in ("delay", "round", *names)}
        found.setdefault(str(method), []).append(columns)
    return found


def _networks(record: Record, pictures: dict[str, int]) -> dict[str, Any]:
    small = {seed: net for seed, net in record.drawn().items() if net.clients <= _MOST_CLIENTS}
    networks = {
        str(seed): {
            "picture": _picture(figures.network_svg(net, net.p, net.p_hat), pictures),
            "p": _numbers(net.p),
            "links": [
                [int(j), int(i), _number(works)]
                for j, i, works in zip(net.senders, net.receivers, net.p_hat, strict=True)
            ],
        }
        for seed, net in small.items()
    }
    observed = {
        method: {
            str(seed): {
                "rounds": one.rounds,
                "clients": _numbers(one.clients),
                "links": _numbers(one.links),
            }
            for seed, one in seeds.items()
            if seed in small
        }
        for method, seeds in record.observed().items()
    }
    return {"networks": networks, "observed": observed}


def _picture(picture: str, pictures: dict[str, int]) -> int | None:
    """The number of a picture; None where there are too many."""
    if picture not in pictures and len(pictures) >= _MOST_PICTURES:
        return None
    return pictures.setdefault(picture, len(pictures))


def _number(value: float, digits: int = 4) -> float | None:
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def _numbers(values: Iterable[float], digits: int = 4) -> list[float | None]:
    return [_number(value, digits) for value in values]


def _json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
