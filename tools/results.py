"""Write docs/results from the folders of `spodgt reproduce`: no number in them is typed by hand.

    python tools/results.py runs/reproduce-laptop --out docs/results
    python tools/results.py runs/cnn --suffix=-cnn --title="a CNN of width 8"

For every experiment that was run: NAME.md with the figure, the command, the time, the tables and the
statement of the paper; NAME.csv (every cell, method and seed), NAME-summary.csv,
NAME-differences.csv; the figure as PNG and PDF. `notes/NAME.md` in the same folder is written by
hand; the page includes it. A suffix makes separate pages for a figure in another setting. The index
keeps the rows of pages that are not written now.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from spodgt import report
from spodgt.errors import SpodgtError
from spodgt.experiment import Experiment
from spodgt.figures import key_label
from spodgt.record import Record, statistics
from spodgt.record.models import read_model
from spodgt.record.sweep import label
from spodgt.report.page import ReportPage
from spodgt.report.render import duration
from spodgt.report.tables import RARE
from spodgt.sweeps import grid as experiments
from spodgt.theory import perron_vectors

_PROBABILITIES = ["below 0.01", "0.01 to 0.1", "0.1 to 0.5", "above 0.5"]
_BACK = "[All figures](README.md)."
_LEARNED = 0.02  # a gain in accuracy that is no accident
PAPERS = (
    "spod-gt",
    "ab-push-pull",
    "g-push-pull",
    "k-gt",
    "sporadic-k-gt",
)  # the methods of the paper


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        help="folders of spodgt reproduce; the first that has one wins",
    )
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--suffix", default="", help="added to the names of the pages")
    parser.add_argument("--title", default="", help="what is different, added to the titles")
    given = parser.parse_args()
    (given.out / "notes").mkdir(parents=True, exist_ok=True)
    rows = known_rows(given.out / "README.md")
    for name in experiments.names():
        folder = next(
            (runs / name for runs in given.runs if (runs / name / "sweep.json").exists()), None
        )
        if folder is None:
            print(f"{name}: not run")
            continue
        page = report.read(folder)
        if len(page.results):
            if given.title:
                page = replace(
                    page, sweep=replace(page.sweep, title=f"{page.title}, {given.title}")
                )
            stem = name + given.suffix
            publish(stem, page, given.out, missing(name, page))
            rows[stem] = row(stem, name, page)
            print(f"{name}: {given.out / stem}.md")
    notes = given.out / "notes/README.md"
    about = notes.read_text(encoding="utf-8") if notes.exists() else ""
    (given.out / "README.md").write_text(index(rows, about), encoding="utf-8")


def publish(name: str, page: ReportPage, out: Path, absent: Sequence[str]) -> None:
    """One page with its tables and pictures; `absent` are the settings that were not run."""
    report.draw(page)
    for suffix in ("png", "pdf"):
        shutil.copyfile(page.folder / f"figure.{suffix}", out / f"{name}.{suffix}")
    page.results.drop(columns="cell").to_csv(out / f"{name}.csv", index=False, float_format="%.6g")
    summaries(page).to_csv(out / f"{name}-summary.csv", index=False, float_format="%.6g")
    differences(page).to_csv(out / f"{name}-differences.csv", index=False, float_format="%.6g")
    (out / f"{name}.md").write_text(
        "\n".join(text(name, page, out, absent)) + "\n", encoding="utf-8"
    )


def text(name: str, page: ReportPage, out: Path, absent: Sequence[str]) -> Iterator[str]:
    metric = statistics.primary_metric(page.results)
    claim = f"**Claim of the paper:** {page.sweep.paper}"
    result = f"**Result:** {verdict(page)}"
    path = out / "notes" / f"{name}.md"
    notes = path.read_text(encoding="utf-8").strip() if path.exists() else ""
    yield f"# Figure {page.sweep.figure}: {page.title}\n"
    if not any(learned(record) for record in page.records):
        yield f"{claim} {result} {notes}\n"
        yield f"<!-- not run: takes minutes to hours -->\n```sh\n{page.command}\n```\n"
        yield _BACK
        return
    yield f"![{page.title}]({name}.png)\n"
    yield f"{claim}\n"
    yield f"{result}\n"
    if notes:
        yield f"{notes}\n"
    if absent:
        keys = ", ".join(map(key_label, page.sweep.grid))
        yield f"**Not complete:** not run at {keys} = {'; '.join(absent)}.\n"
    yield from tables(page, metric)
    yield "## Repeat it\n"
    yield f"<!-- not run: takes minutes to hours -->\n```sh\n{page.command}\n```\n"
    yield f"{page.setting[:1].upper()}{page.setting[1:]}. {cost(page)}\n"
    files = [f"[{name}{part}.csv]({name}{part}.csv)" for part in ("", "-summary", "-differences")]
    yield f"Numbers of every cell, method and seed: {', '.join(files)}. Figure: [PDF]({name}.pdf).\n"
    yield _BACK


def tables(page: ReportPage, metric: str) -> Iterator[str]:
    yield f"## Final {metric}\n"
    leads = "" if page.sweep.grid else " Leads are paired over seeds."
    yield f"Mean ± standard deviation over seeds, best in bold.{leads}"
    diverged = page.results[page.results["diverged"]]
    if len(diverged):
        runs = ", ".join(f"{row.method} (seed {row.seed})" for row in diverged.itertuples())
        yield f"Diverged: {runs}; the last finite evaluation counts."
    yield ""
    yield from grid_table(page, metric) if page.sweep.grid else method_table(page, metric)
    yield ""
    if not page.sweep.grid:
        yield "## Draws of the seeds\n"
        yield "K is the number of local steps of `k-gt`, ⌈mean 1/p⌉.\n"
        yield from draw_table(page)
        yield ""
        yield from recall_part(page)
    yield from step_part(page, metric)


def verdict(page: ReportPage) -> str:
    """How the paper's claim fares among the paper's methods, in one sentence of numbers."""
    table = summaries(page)
    table = table[table["method"].isin(PAPERS)]
    leads = differences(page)
    keys = list(page.sweep.grid)
    cells = (
        [((), table)] if not keys else [(at, part) for at, part in table.groupby(keys, sort=False)]
    )
    first, sentences = 0, []
    for at, part in cells:
        ranked = part.sort_values("accuracy", ascending=False)["method"].tolist()
        first += ranked[0] == "spod-gt"
        rival = next(method for method in ranked if method != "spod-gt")
        at = at if isinstance(at, tuple) else (at,)
        here = leads[leads["method"] == rival]
        for key, value in zip(keys, at, strict=True):
            here = here[here[key] == value]
        if not keys:
            one = here.iloc[0]
            sentences.append(
                f"Lead of Spod-GT over {rival}, the best baseline of the paper: {one['mean']:+.3f} "
                f"[{one['low']:+.3f}, {one['high']:+.3f}], ahead in {one['ahead']} of {one['seeds']} seeds."
            )
    if keys:
        sentences.append(
            f"Spod-GT is the best of the paper's five methods in {first} of {len(cells)} settings."
        )
    winners = [
        statistics.summary(rows, ["accuracy"])["accuracy"].idxmax() for _, rows in groups(page)
    ]
    if not keys:
        sentences.append(f"Best of all methods: {winners[0]}.")
    else:
        best = max(winners, key=winners.count)
        sentences.append(f"Best of all methods: {best}, in {winners.count(best)} of {len(cells)}.")
    idle = sum(not learned(record) for record in page.records)
    if idle and not keys:
        return f"No method learns: no final mean is {_LEARNED} above the start."
    if idle:
        where = f" in {idle} of {len(cells)} settings"
        sentences.append(f"No method learns{where}: no final mean is {_LEARNED} above the start.")
    return " ".join(sentences)


def learned(run: Record) -> bool:
    """Whether any method ended clearly above the accuracy that the models started with."""
    values = run.frame.groupby(["method", "seed"], sort=False)["accuracy"]
    gains = (values.last() - values.first()).groupby("method").mean()
    return bool(gains.max() >= _LEARNED)


def missing(name: str, page: ReportPage) -> list[str]:
    """The settings of the experiment that the page does not have: the values of its keys."""
    present = [point for point, _ in groups(page)]
    return [label(point) for point in experiments.load(name).points() if point not in present]


# --- tables -----------------------------------------------------------------------------------------
def groups(page: ReportPage) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    keys = list(page.sweep.grid)
    if not keys:
        return [({}, page.results)]
    parts = page.results.groupby(keys, sort=False)
    return [
        (dict(zip(keys, at if isinstance(at, tuple) else (at,), strict=True)), rows)
        for at, rows in parts
    ]


def reference(page: ReportPage) -> str:
    return statistics.reference(page.methods)


def summaries(page: ReportPage) -> pd.DataFrame:
    known = statistics.available_metrics(page.results)
    tables = [
        statistics.summary(rows, [*known, "round", "delay"]).reset_index().assign(**point)
        for point, rows in groups(page)
    ]
    table = pd.concat(tables, ignore_index=True)
    return table[[*page.sweep.grid, *(name for name in table if name not in page.sweep.grid)]]


def differences(page: ReportPage) -> pd.DataFrame:
    metric = statistics.primary_metric(page.results)
    rows = [
        {**point, **{key: getattr(one, key) for key in one.__dataclass_fields__}, "metric": metric}
        for point, part in groups(page)
        for one in statistics.paired(part, metric, reference(page))
    ]
    return pd.DataFrame(rows)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def shown(means: pd.DataFrame, method: str, metric: str) -> str:
    """Mean ± standard deviation of a method, in bold if it is the best."""
    if method not in means.index:
        return "–"
    one: Any = means.loc[method]
    best = means[metric].max() if statistics.better(metric) > 0 else means[metric].min()
    value = f"{one[metric]:.3f} ± {one[f'{metric}_std']:.3f}"
    return f"**{value}**" if one[metric] == best else value


def grid_table(page: ReportPage, metric: str) -> Iterator[str]:
    """Settings against methods; the larger number of them has the rows."""
    keys = ", ".join(map(key_label, page.sweep.grid))
    settings = []
    columns = []
    for point, part in groups(page):
        means = statistics.summary(part, [metric])
        settings.append(", ".join(label(value) for value in point.values()))
        columns.append([shown(means, method, metric) for method in page.methods])
    if len(settings) < len(page.methods):
        rows = [list(row) for row in zip(page.methods, *columns, strict=True)]
        yield from table([keys, *settings], rows)
    else:
        rows = [[at, *column] for at, column in zip(settings, columns, strict=True)]
        yield from table([keys, *page.methods], rows)


def method_table(page: ReportPage, metric: str) -> Iterator[str]:
    """One row per method: its mean, and the lead of the reference over it."""
    means = statistics.summary(page.results, [metric])
    leads = differences(page).set_index("method")
    rows = []
    for method in page.methods:
        cells = ["", "", ""]
        if method in leads.index:
            one = leads.loc[method]
            interval = f"[{one['low']:+.3f}, {one['high']:+.3f}]"
            cells = [f"{one['mean']:+.3f}", interval, f"{one['ahead']} of {one['seeds']}"]
        rows.append([method, shown(means, method, metric), *cells])
    lead = f"lead of {reference(page)}"
    yield from table(["method", metric, lead, "95 % interval", "seeds ahead"], rows)


def draw_table(page: ReportPage) -> Iterator[str]:
    record, rows = page.records[0], []
    observed = record.observed().get(reference(page), {})
    for seed, net in record.drawn().items():
        computed = observed[seed].clients if seed in observed else np.full(net.clients, np.nan)
        rare = [
            f"{client} (p = {net.p[client]:.1e})"
            for client in np.argsort(net.p)
            if computed[client] < RARE
        ]
        steps = f"{int(np.ceil(np.mean(1 / net.p))):,}"
        rows.append(
            [
                str(seed),
                f"{net.p.min():.1e}",
                f"{net.p_hat.min():.1e}",
                steps,
                ", ".join(rare) or "none",
            ]
        )
    heads = [
        "seed",
        "least p",
        "least p̂",
        "K of K-GT",
        "clients that compute in fewer than 1 % of rounds",
    ]
    yield from table(heads, rows)


def step_part(page: ReportPage, metric: str) -> Iterator[str]:
    """Where the networks differ: what a step counts for on each, next to what Spod-GT made of it."""
    keys = [key for key in page.sweep.grid if key.startswith("network.")]
    if not keys:
        return
    yield "## Effective step size\n"
    yield "The average gradient is followed with step m φ̂ᵀπ̂ η, where φ̂ and π̂ are the Perron vectors."
    yield f"The table has m φ̂ᵀπ̂ of each seed, and in brackets the final {metric} of {reference(page)}.\n"
    ends = page.results[page.results["method"] == reference(page)].set_index(["cell", "seed"])[
        metric
    ]
    rows = []
    for cell, record in zip(page.cells, page.records, strict=True):
        config, row = record.config, []
        experiment = Experiment.parse(config)
        for seed, end in ends[cell.name].items():
            network, availability = experiment.draw_network(int(str(seed)))
            phi, pi = perron_vectors(network, availability.p_hat)
            row.append(f"{network.clients * phi @ pi:.2f} ({end:.3f})")
        rows.append(
            [*(label(config["network"][key.removeprefix("network.")]) for key in keys), *row]
        )
    yield from table(
        [*map(key_label, keys), *(f"seed {seed}" for seed in ends.index.unique("seed"))], rows
    )
    yield ""


def recall_part(page: ReportPage) -> Iterator[str]:
    """With one label per client: how well a class is known, by how often its client computes."""
    record = page.records[0]
    config = record.config
    if config["problem"].get("partition", {}).get("labels") != 1:
        return
    problem: Any = Experiment.parse(config).base_problem
    networks, found = record.drawn(), []
    methods = page.methods
    test = problem.data.test.samples
    inputs, _ = test.take(slice(None), torch.float32)
    for seed in networks:
        part = problem.draw(seed)
        held = [int(part.samples.targets[part.client_indices[i]][0]) for i in range(part.clients)]
        for method in methods:
            named = read_model(page.cells[0].folder, method, seed, None)
            model = torch.cat([named[name].flatten() for name in problem.layout.names])
            guess = problem.model.engine.outputs(model[None], inputs)[0].argmax(-1)
            for client, held_label in enumerate(held):
                right = float((guess[test.targets == held_label] == held_label).float().mean())
                found.append((method, float(networks[seed].p[client]), right))
    known = pd.DataFrame(found, columns=["method", "p", "recall"])
    known["p of its client"] = pd.cut(known["p"], [0, 0.01, 0.1, 0.5, 1], labels=_PROBABILITIES)
    yield "## Recall of a class by the p of its client\n"
    yield "Final recall of the average model, mean over the classes of these clients, all seeds.\n"
    wide = known.pivot_table(
        index="method", columns="p of its client", values="recall", observed=True
    )
    count = known[known["method"] == methods[0]].groupby("p of its client", observed=True).size()
    heads = [f"p {at} ({count[at]} classes)" for at in wide.columns]
    rows = [[method, *(f"{value:.2f}" for value in wide.loc[method])] for method in methods]
    yield from table(["method", *heads], rows)
    yield ""


def cost(page: ReportPage) -> str:
    """The time it took, counted in the processes that did it."""
    if not page.sweep.seconds:
        return ""
    cells = f"{len(page.records)} cells, " if len(page.records) > 1 else ""
    made, time = page.sweep.versions, duration(page.sweep.seconds)
    return f"{cells}{time} of computing; spodgt {made['spodgt']}, torch {made['torch']}. "


_HEADS = ["figure", "experiment", "result", "time"]


def row(stem: str, name: str, page: ReportPage) -> list[str]:
    """The index's line on a page."""
    spec = experiments.load(name)
    state = f"{len(page.records)} of {len(spec.points())} cells. " if missing(name, page) else ""
    seconds = duration(page.sweep.seconds).replace(" ", "\u00a0") if page.sweep.seconds else ""
    picture = f"![Figure {spec.figure}]({stem}.png)"
    title = f"**{spec.figure}** [{page.title}]({stem}.md)"
    return [picture, title, state + verdict(page), seconds]


def known_rows(path: Path) -> dict[str, list[str]]:
    """The lines of the index that is there, by the names of their pages."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    cells = [
        line.strip("| ").split(" | ") for line in lines if "](" in line and line.startswith("| ")
    ]
    return {one[1].rpartition("](")[2].removesuffix(".md)"): one for one in cells}


def index(rows: dict[str, list[str]], notes: str) -> str:
    """All figures of the paper, also those that are not there yet, each followed by its other settings."""
    ordered = []
    for name in experiments.names():
        spec = experiments.load(name)
        ordered.append(rows.get(name, [spec.figure, spec.title, "not run yet", ""]))
        ordered += [rows[stem] for stem in sorted(rows) if stem.startswith(f"{name}-")]
    heading = "# The paper's figures, rerun"
    return "\n".join([heading, "", notes.strip(), "", *table(_HEADS, ordered)]) + "\n"


if __name__ == "__main__":
    try:
        main()
    except SpodgtError as error:
        raise SystemExit(f"results: {error}") from None
