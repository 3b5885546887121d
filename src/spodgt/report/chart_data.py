"""The data of a report's charts, as JSON values; small, because they are inside the page.

Numbers have four digits, and long runs are thinned.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spodgt import figures
from spodgt.record import statistics
from spodgt.record.metrics import METRICS, label_of
from spodgt.record.record import Record
from spodgt.record.sweep import label
from spodgt.report.page import ReportPage

MAX_CLIENTS = 200  # of a network that is drawn
_POINTS = 121  # of a curve
_POINTS_OF_SEVERAL_RUNS = 61
_MAX_EVALUATIONS = 200  # of one run
_MAX_PICTURES = 150  # of networks in one page

Json = dict[str, Any]


def build(page: ReportPage, pictures: dict[str, int]) -> Json:
    """The data of all charts of a page.

    Args:
        page: The page.
        pictures: Receives the SVG pictures of networks and their numbers. Cells of a sweep often
            share a network; its picture is in the page once.
    """
    names = statistics.available_metrics(page.results)
    points = _POINTS if len(page.records) == 1 else _POINTS_OF_SEVERAL_RUNS
    sweep = None
    if page.sweep.grid and page.methods:
        sweep = _sweep_data(page, names)
    return {
        "methods": _styles(page),
        "metrics": _metrics(names, page.evaluated_on),
        "sweep": sweep,
        "runs": [_run_data(record, names, points, pictures) for record in page.records],
        "prediction": [_prediction_data(line) for line in prediction_lines(page)],
    }


def _styles(page: ReportPage) -> Json:
    """Colour number and dashes of each method."""
    styles = figures.line_styles(page.methods, page.method_names)
    return {name: {"slot": style.slot, "gaps": style.gaps} for name, style in styles.items()}


def _metrics(names: Sequence[str], evaluated_on: str) -> Json:
    metrics = {}
    for name in names:
        metric = METRICS[name]
        metrics[name] = {
            "label": label_of(name, evaluated_on),
            "log": metric.log,
            "fraction": metric.unit == "fraction",
        }
    return metrics


def prediction_lines(page: ReportPage) -> list[Json]:
    """The prediction of the theory, if the page is a single run that has one."""
    if not page.records or page.sweep.grid or not page.records[0].prediction:
        return []
    lines: list[Json] = page.records[0].prediction["lines"]
    return lines


def _prediction_data(line: Mapping[str, Any]) -> Json:
    rounds = _thinned_indices(len(line["predicted"]))
    return {
        "method": line["method"],
        "at": rounds.tolist(),
        "predicted": _round_all(line["predicted"][k] for k in rounds),
        "rounds": line["rounds"],
        "measured": _round_all(line["measured"]),
        "floor": None if line["floor"] is None else _round(line["floor"]),
    }


def _sweep_data(page: ReportPage, names: Sequence[str]) -> Json:
    """The axes of the grid, and mean and σ of every metric in every cell."""
    axes: Json = {}
    indices: dict[str, dict[Hashable, int]] = {}  # of the values of a key
    for key in page.sweep.grid:
        values = list(dict.fromkeys(page.results[key]))
        positions, is_logarithmic = figures.axis_positions(values)
        axes[key] = {
            "at": positions,
            "texts": [label(value) for value in values],
            "log": is_logarithmic,
            "label": figures.key_label(key),
        }
        indices[key] = {value: index for index, value in enumerate(values)}
    cells = []
    for point, rows in page.results.groupby(list(page.sweep.grid), sort=False):
        position = {}
        for key, value in zip(page.sweep.grid, point, strict=True):
            position[key] = indices[key][value]
        values_by_method = {}
        for method, row in statistics.summary(rows, names).iterrows():
            means = {name: _round_all((row[name], row[f"{name}_std"])) for name in names}
            values_by_method[str(method)] = means
        cells.append({"at": position, "values": values_by_method})
    return {"keys": axes, "cells": cells}


def _run_data(record: Record, names: Sequence[str], points: int, pictures: dict[str, int]) -> Json:
    """Curves, runs of single seeds, last values, clients and networks of one run."""
    frame = record.frame
    names = [name for name in names if name in frame]
    last = statistics.summary(statistics.final(frame), names)
    final = {}
    for name in names:
        final[name] = dict(zip(last.index, _round_all(last[name]), strict=True))
    networks = _networks(record, pictures)
    return {
        "axes": {axis: _curves(record, names, axis, points) for axis in statistics.axes(frame)},
        "seeds": _seeds(record, names),
        "final": final,
        "clients": _clients(record),
        "networks": networks,
        "observed": _observed(record, networks),
    }


def _curves(record: Record, names: Sequence[str], axis: str, points: int) -> Json:
    """Mean and σ over seeds of every metric and method, on a common grid."""
    frame = record.frame
    budget = record.budget if axis == "delay" else None
    grid = statistics.grid_of(frame, axis, points, max(budget or 0, 1e-9))
    bands: Json = {}
    for name in names:
        lines = statistics.lines(frame, name, axis, grid)
        bands[name] = {}
        for method, (_, band) in lines.items():
            bands[name][method] = [_round_all(band.mean), _round_all(band.sigma, 2)]
    return {"x": _round_all(grid, 7), "bands": bands}


def _seeds(record: Record, names: Sequence[str]) -> dict[str, list[Json]]:
    """The evaluations of every seed, by method."""
    frame = record.frame
    columns = (*statistics.axes(frame), *names)
    seeds: dict[str, list[Json]] = {}
    for (method, _), run in frame.groupby(["method", "seed"], sort=False):
        thinned = run.iloc[_thinned_indices(len(run))]
        values = {name: _round_all(thinned[name]) for name in columns}
        seeds.setdefault(str(method), []).append(values)
    return seeds


def _clients(record: Record) -> Json:
    """Data and last metrics of clients: headings, and rows by method and seed."""
    keys = ["method", "seed", "client", "client_name"]  # names are part of the network
    columns = [name for name in record.clients if name not in keys]
    rows_by_method: dict[str, dict[str, list[list[object]]]] = {}
    for (method, seed), part in record.clients.groupby(["method", "seed"], sort=False):
        if len(part) > MAX_CLIENTS:
            continue
        rows = []
        for values in part[columns].itertuples(index=False):
            rows.append([_json_value(value) for value in values])
        rows_by_method.setdefault(str(method), {})[str(seed)] = rows
    return {"heads": columns, "rows": rows_by_method}


def _json_value(value: object) -> object:
    if isinstance(value, int | float | np.number):
        return _round(float(value))
    return str(value)


def _networks(record: Record, pictures: dict[str, int]) -> Json:
    """The networks of all seeds; large ones are left out."""
    networks: Json = {}
    for seed, network in record.drawn().items():
        if network.clients > MAX_CLIENTS:
            continue
        picture = figures.network_svg(network, network.p, network.p_hat)
        if len(pictures) < _MAX_PICTURES:
            pictures.setdefault(picture, len(pictures))
        senders = network.senders.tolist()
        receivers = network.receivers.tolist()
        networks[str(seed)] = {
            "picture": pictures.get(picture),  # None if there are too many
            "names": [network.label(client) for client in range(network.clients)],
            "p": _round_all(network.p),
            "links": list(zip(senders, receivers, _round_all(network.p_hat), strict=True)),
        }
    return networks


def _observed(record: Record, networks: Json) -> Json:
    """Observed frequencies of clients and links, by method and seed."""
    observed: Json = {}
    for method, seeds in record.observed().items():
        observed[method] = {}
        for seed, frequencies in seeds.items():
            if str(seed) in networks:
                observed[method][str(seed)] = {
                    "rounds": frequencies.rounds,
                    "clients": _round_all(frequencies.clients),
                    "links": _round_all(frequencies.links),
                }
    return observed


def _thinned_indices(count: int) -> NDArray[np.int64]:
    """At most `_MAX_EVALUATIONS` evenly spaced indices below `count`, both ends included."""
    return np.unique(np.linspace(0, count - 1, min(count, _MAX_EVALUATIONS)).astype(int))


def _round(value: float, digits: int = 4) -> float | None:
    """Round to significant digits; None for NaN and infinity."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


def _round_all(values: Iterable[float], digits: int = 4) -> list[float | None]:
    return [_round(value, digits) for value in values]
