"""Write docs/results from the folders of `spodgt reproduce`: no number in them is typed by hand.

    python tools/results.py runs/reproduce-laptop --out docs/results
    python tools/results.py runs/cnn --suffix=-cnn --title="a CNN of width 8"

For every experiment that was run: NAME.md with the figure, the command, the time, the tables and what the
paper says; NAME.csv (every cell, method and seed), NAME-summary.csv, NAME-differences.csv; the figure as
PNG and PDF. `notes/NAME.md` in the same folder is written by a person and goes into the page as it is.
A suffix makes pages of their own for a figure in another setting. The index keeps the rows of pages
that are not written now.
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
from spodgt.figures import words
from spodgt.record import Record, statistics
from spodgt.record.models import read_model
from spodgt.record.sweep import label
from spodgt.report.page import Page
from spodgt.report.render import duration
from spodgt.report.tables import RARE
from spodgt.sweeps import grid as experiments
from spodgt.theory import perron_vectors

_PROBABILITIES = ["below 0.01", "0.01 to 0.1", "0.1 to 0.5", "above 0.5"]
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
    (given.out / "README.md").write_text(index(rows), encoding="utf-8")


def publish(name: str, page: Page, out: Path, absent: Sequence[str]) -> None:
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


def text(name: str, page: Page, out: Path, absent: Sequence[str]) -> Iterator[str]:
    metric = statistics.primary_metric(page.results)
    yield f"# Figure {page.sweep.figure}: {page.title}\n"
    yield f"![{page.title}]({name}.png)\n"
    yield f"**The paper:** {page.sweep.paper}\n"
    yield f"**Ours:** {verdict(page)}\n"
    yield f"```\n{page.command}\n```\n"
    yield f"{page.setting[:1].upper()}{page.setting[1:]}. {cost(page)}"
    yield f"As PDF: [{name}.pdf]({name}.pdf).\n"
    if absent:
        keys = ", ".join(map(words, page.sweep.grid))
        yield f"**Not complete:** not run at {keys} = {'; '.join(absent)}.\n"
    diverged = page.results[page.results["diverged"]]
    if len(diverged):
        runs = ", ".join(f"{row.algorithm} (seed {row.seed})" for row in diverged.itertuples())
        yield f"**Diverged:** {runs}; their last finite evaluation is what counts.\n"
    yield f"## {metric.capitalize()} at the end, mean ± sigma over seeds\n"
    yield from mean_table(page, metric)
    yield f"\n## Lead of {reference(page)} over the others, paired over seeds\n"
    yield "Mean difference, Student's 95 % interval, and in how many seeds it is ahead.\n"
    yield from lead_table(page)
    if not page.sweep.grid:
        yield "\n## Seed by seed\n"
        yield from seed_table(page, metric)
        yield "\n## What the seeds drew\n"
        yield "A client that rarely computes weighs next to nothing in what Spod-GT learns: it settles where "
        yield "Σ p_i F_i is least, not Σ F_i. K is that of K-GT, ⌈mean 1/p⌉.\n"
        yield from draw_table(page)
        yield from recall_part(page)
    yield from step_part(page, metric)
    notes = out / "notes" / f"{name}.md"
    if notes.exists():
        yield f"\n## Where ours differs, and why\n\n{notes.read_text(encoding='utf-8').strip()}"
    files = ", ".join(
        f"[{name}{part}.csv]({name}{part}.csv)" for part in ("", "-summary", "-differences")
    )
    yield f"\nNumbers: {files}."


def verdict(page: Page) -> str:
    """How the paper's claim fares among the paper's methods, in one sentence of numbers."""
    table = summaries(page)
    table = table[table["algorithm"].isin(PAPERS)]
    leads = differences(page)
    keys = list(page.sweep.grid)
    cells = (
        [((), table)] if not keys else [(at, part) for at, part in table.groupby(keys, sort=False)]
    )
    first, sentences = 0, []
    for at, part in cells:
        ranked = part.sort_values("accuracy", ascending=False)["algorithm"].tolist()
        first += ranked[0] == "spod-gt"
        rival = next(method for method in ranked if method != "spod-gt")
        at = at if isinstance(at, tuple) else (at,)
        here = leads[leads["method"] == rival]
        for key, value in zip(keys, at, strict=True):
            here = here[here[key] == value]
        if not keys:
            one = here.iloc[0]
            sentences.append(
                f"Spod-GT's lead over the best of the paper's baselines, {rival}, is {one['mean']:+.3f} "
                f"in accuracy (95 % interval {one['low']:+.3f} to {one['high']:+.3f}, "
                f"ahead in {one['ahead']} of {one['seeds']} seeds)."
            )
    if keys:
        sentences.append(
            f"Spod-GT has the highest mean of the paper's five methods in {first} of {len(cells)} settings."
        )
    winners = [
        statistics.summary(rows, ["accuracy"])["accuracy"].idxmax() for _, rows in groups(page)
    ]
    if not keys:
        sentences.append(f"First of all is {winners[0]}.")
    else:
        best = max(winners, key=winners.count)
        sentences.append(
            f"Of all methods, {best} is first in {winners.count(best)} of {len(cells)}."
        )
    idle = sum(not learned(record) for record in page.records)
    if idle:
        where = f" in {idle} of {len(cells)} settings" if keys else ""
        sentences.append(
            f"But nothing was learned{where}: at the end no method's mean is {_LEARNED} above the start."
        )
    return " ".join(sentences)


def learned(run: Record) -> bool:
    """Whether any method ended clearly above the accuracy that the models started with."""
    values = run.frame.groupby(["algorithm", "seed"], sort=False)["accuracy"]
    gains = (values.last() - values.first()).groupby("algorithm").mean()
    return bool(gains.max() >= _LEARNED)


def missing(name: str, page: Page) -> list[str]:
    """The settings of the experiment that the page does not have: the values of its keys."""
    present = [point for point, _ in groups(page)]
    return [label(point) for point in experiments.load(name).points() if point not in present]


# --- tables -----------------------------------------------------------------------------------------
def groups(page: Page) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    keys = list(page.sweep.grid)
    if not keys:
        return [({}, page.results)]
    parts = page.results.groupby(keys, sort=False)
    return [
        (dict(zip(keys, at if isinstance(at, tuple) else (at,), strict=True)), rows)
        for at, rows in parts
    ]


def reference(page: Page) -> str:
    return statistics.reference(page.methods)


def summaries(page: Page) -> pd.DataFrame:
    known = statistics.available_metrics(page.results)
    tables = [
        statistics.summary(rows, [*known, "round", "delay"]).reset_index().assign(**point)
        for point, rows in groups(page)
    ]
    table = pd.concat(tables, ignore_index=True)
    return table[[*page.sweep.grid, *(name for name in table if name not in page.sweep.grid)]]


def differences(page: Page) -> pd.DataFrame:
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


def mean_table(page: Page, metric: str) -> Iterator[str]:
    methods, rows = page.methods, []
    for point, part in groups(page):
        means = statistics.summary(part, [metric])
        best = means[metric].max() if statistics.better(metric) > 0 else means[metric].min()
        cells = [label(value) for value in point.values()]
        for method in methods:
            one: Any = means.loc[method] if method in means.index else None
            shown = "–" if one is None else f"{one[metric]:.3f} ± {one[f'{metric}_std']:.3f}"
            cells.append(f"**{shown}**" if one is not None and one[metric] == best else shown)
        rows.append(cells)
    yield from table([*(words(key) for key in page.sweep.grid), *methods], rows)


def lead_table(page: Page) -> Iterator[str]:
    found = differences(page)
    others, rows = list(dict.fromkeys(found["method"])), []
    for point, _ in groups(page):
        here = found
        for key, value in point.items():
            here = here[here[key] == value]
        cells = [label(value) for value in point.values()]
        for method in others:
            one = here[here["method"] == method].iloc[0]
            cells.append(
                f"{one['mean']:+.3f} [{one['low']:+.3f}, {one['high']:+.3f}], {one['ahead']}/{one['seeds']}"
            )
        rows.append(cells)
    yield from table([*(words(key) for key in page.sweep.grid), *others], rows)


def seed_table(page: Page, metric: str) -> Iterator[str]:
    methods = page.methods
    wide = page.results.pivot_table(index="seed", columns="algorithm", values=metric)
    rows = [
        [str(seed), *(f"{row[method]:.3f}" for method in methods)] for seed, row in wide.iterrows()
    ]
    yield from table(["seed", *methods], rows)


def draw_table(page: Page) -> Iterator[str]:
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


def step_part(page: Page, metric: str) -> Iterator[str]:
    """Where the networks differ: what a step counts for on each, next to what Spod-GT made of it."""
    keys = [key for key in page.sweep.grid if key.startswith("network.")]
    if not keys:
        return
    yield "\n## What a step counts for, seed by seed\n"
    yield "Gradients gather at clients by π̂, and models are heard by φ̂: on the average gradient a step "
    yield "size counts for m φ̂ᵀπ̂ times itself, 1 where mixing is even, next to nothing where gradients "
    yield f"gather at clients that nobody hears. In brackets the {metric} of {reference(page)} at the end.\n"
    ends = page.results[page.results["algorithm"] == reference(page)].set_index(["cell", "seed"])[
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
        [*map(words, keys), *(f"seed {seed}" for seed in ends.index.unique("seed"))], rows
    )


def recall_part(page: Page) -> Iterator[str]:
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
    yield "\n## Whose classes are known\n"
    yield "Recall of a class by the average model at the end, mean over the classes whose client computes so "
    yield "often, all seeds together.\n"
    wide = known.pivot_table(
        index="p of its client", columns="method", values="recall", observed=True
    )
    count = known[known["method"] == methods[0]].groupby("p of its client", observed=True).size()
    rows = [
        [str(at), str(count[at]), *(f"{row[method]:.2f}" for method in methods)]
        for at, row in wide.iterrows()
    ]
    yield from table(["p of its client", "classes", *methods], rows)


def cost(page: Page) -> str:
    """The time it took, counted in the processes that did it."""
    if not page.sweep.seconds:
        return ""
    cells = f"{len(page.records)} cells, " if len(page.records) > 1 else ""
    made, time = page.sweep.versions, duration(page.sweep.seconds)
    return f"{cells}{time} of computing; spodgt {made['spodgt']}, torch {made['torch']}. "


_HEADS = ["figure", "experiment", "state", "what came out", "time"]


def row(stem: str, name: str, page: Page) -> list[str]:
    """The index's line on a page."""
    spec = experiments.load(name)
    state = f"{len(page.records)} of {len(spec.points())} cells" if missing(name, page) else "done"
    seconds = duration(page.sweep.seconds) if page.sweep.seconds else ""
    return [spec.figure, f"[{page.title}]({stem}.md)", state, verdict(page), seconds]


def known_rows(path: Path) -> dict[str, list[str]]:
    """The lines of the index that is there, by the names of their pages."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    cells = [
        line.strip("| ").split(" | ") for line in lines if "](" in line and line.startswith("| ")
    ]
    return {one[1].rpartition("](")[2].removesuffix(".md)"): one for one in cells}


def index(rows: dict[str, list[str]]) -> str:
    """All figures of the paper, also those that are not there yet, each followed by its other settings."""
    ordered = []
    for name in experiments.names():
        spec = experiments.load(name)
        ordered.append(rows.get(name, [spec.figure, spec.title, "not run yet", "", ""]))
        ordered += [rows[stem] for stem in sorted(rows) if stem.startswith(f"{name}-")]
    lines = [
        "# The paper's experiments, rerun",
        "",
        "Made by `tools/results.py` from real runs; every page names its command. The time is that of all "
        "cells of a figure, added up, also of cells that ran side by side; figures share cells, so all "
        "together take less than the sum.",
        "",
        *table(_HEADS, ordered),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    try:
        main()
    except SpodgtError as error:
        raise SystemExit(f"results: {error}") from None
