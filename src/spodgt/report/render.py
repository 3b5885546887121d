"""A report as one HTML file with its style, script and data; nothing is loaded from elsewhere.

Tables are in the HTML, so that they can be read without scripts; charts are drawn by uPlot from the
JSON in the page. Templates escape every text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from spodgt.record import statistics
from spodgt.record.metrics import METRICS, label_of
from spodgt.record.record import versions
from spodgt.report import chart_data
from spodgt.report.page import ReportPage
from spodgt.report.tables import (
    difference_table,
    final_table,
    prediction_table,
    rare_clients,
    sweep_tables,
)

_HERE = Path(__file__).parent
_MAX_PAIRS = 4000  # pairs of methods in tables of differences; above, one reference only


def render(page: ReportPage) -> str:
    """The HTML of a report."""
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Keys are in the order of the methods; JavaScript cannot parse NaN.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment.get_template("page.html.j2").render(context(page))


def context(page: ReportPage) -> dict[str, Any]:
    """The values for the templates."""
    pictures: dict[str, int] = {}
    data = chart_data.build(page, pictures)
    metrics = list(data["metrics"])
    references = _references(page)
    values: dict[str, Any] = {
        "page": page,
        "asset": _asset,
        "data": data,
        "facts": _facts(page),
        "problems": _problems(page),
        "metrics": [(name, label_of(name, page.evaluated_on)) for name in metrics],
        "logarithmic": bool(metrics) and METRICS[metrics[0]].log,
        "references": [(name, name) for name in references],
        "primary_metric": label_of(statistics.primary_metric(page.results), page.evaluated_on),
        "runs": _runs(page, references),
        "axes": list(_axes(page).items()),
        "more": _number_of_other_cells(page),
        "seeds": _seeds(page),
        "pictures": list(pictures),
        "shown": any(run["networks"] for run in data["runs"]),
        "most": chart_data.MAX_CLIENTS,
        "made_by": versions()["spodgt"],
        "keys": [],
        "sweep": None,
        "prediction": None,
    }
    if data["sweep"]:
        keys = data["sweep"]["keys"]
        for key, axis in keys.items():
            values["keys"].append((key, axis["label"], list(enumerate(axis["texts"]))))
        values["sweep"] = sweep_tables(page.results, list(keys), references, page.evaluated_on)
    lines = chart_data.prediction_lines(page)
    if lines:
        values["prediction"] = prediction_table(lines)
    return values


def _asset(name: str) -> str:
    return (_HERE / "assets" / name).read_text(encoding="utf-8")


def _references(page: ReportPage) -> list[str]:
    """The methods that can be chosen as the reference of the differences."""
    tables = len(page.records) + math.prod(len(values) for values in page.sweep.grid.values())
    if len(page.methods) ** 2 * tables <= _MAX_PAIRS:
        return page.methods
    return [page.reference]


def _problems(page: ReportPage) -> list[str]:
    """Failed cells, and runs that diverged or stalled."""
    problems = [f"{name}: {error}" for name, error in page.sweep.failures.items()]
    for cell, record in zip(page.cells, page.records, strict=True):
        for warning in (*record.diverged, *record.stalled):
            problems.append(f"{cell.title}: {warning}" if cell.title else str(warning))
    return problems


def _runs(page: ReportPage, references: list[str]) -> list[dict[str, Any]]:
    """The tables of each run."""
    runs = []
    for number, (cell, record) in enumerate(zip(page.cells, page.records, strict=True)):
        last = statistics.final(record.frame)
        run = {
            "number": number,
            "title": cell.title,
            "final": final_table(record),
            "differences": {method: difference_table(last, method) for method in references},
            "rare": rare_clients(record, page.reference),
        }
        runs.append(run)
    return runs


def _axes(page: ReportPage) -> dict[str, str]:
    """Labels of the axes that all runs have, such as delay and rounds."""
    if not page.records:
        return {}
    shared, *others = [statistics.axes(record.frame) for record in page.records]
    for axes in others:
        shared = {name: label for name, label in shared.items() if name in axes}
    return shared


def _number_of_other_cells(page: ReportPage) -> int:
    """Cells with results that are not in the page."""
    if "cell" not in page.results:
        return 0
    return int(page.results["cell"].nunique()) - len(page.records)


def _seeds(page: ReportPage) -> list[int]:
    """The seeds of all runs, in their order."""
    seeds: dict[int, None] = {}
    for record in page.records:
        seeds |= dict.fromkeys(record.drawn())
    return list(seeds)


def _facts(page: ReportPage) -> list[str]:
    """Short facts about the result, for the head of the page."""
    facts: list[str] = []
    if len(page.results):
        seeds = int(page.results.groupby("method")["seed"].nunique().max())
        facts.append(_count(seeds, "seed"))
        facts.append(_count(len(page.methods), "method"))
    if page.records:
        facts += _config_facts(page.records[0].config, page.sweep.grid)
    if page.sweep.grid:
        facts.append(f"{math.prod(len(values) for values in page.sweep.grid.values())} cells")
    engines = {record.engine for record in page.records if record.engine}
    if engines:
        facts.append(f"engine: {', '.join(sorted(engines))}")
    if page.sweep.seconds:
        facts.append(f"computed in {duration(page.sweep.seconds)}")
    return facts


def _config_facts(config: Mapping[str, Any], swept: Mapping[str, object]) -> list[str]:
    """Length, size and problem of a run, as far as its config has them."""
    facts = []
    run = _section(config, "run")
    if run.get("delay"):
        facts.append(f"delay {run['delay']:,.0f}")
    if run.get("rounds"):
        facts.append(f"{run['rounds']:,} rounds")
    if run.get("evaluate_on"):
        facts.append("evaluated on validation data, not on test data")
    if run.get("seconds"):
        facts.append(f"{run['seconds']:,g} virtual seconds")
    network = _section(config, "network")
    if "network.clients" not in swept and "clients" in network:
        facts.append(f"{network['clients']} clients")
    problem = _section(config, "problem")
    names = [str(problem[key]) for key in ("data", "model") if key in problem]
    if names:
        facts.append(", ".join(names))
    elif problem.get("kind"):
        facts.append(problem["kind"])
    return facts


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A table of a config; empty if the run was made from Python objects."""
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}


def _count(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    """`75` as `1 min 15 s`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
