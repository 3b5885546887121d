"""The page of the performance history, from benchmarks/results/history.jsonl."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

HISTORY = Path(__file__).parents[1] / "benchmarks" / "results" / "history.jsonl"
RATIO = "times_loop"
DRAWN = {  # workload: how the picture names it
    "svm, 1 × 10 clients, half active": "SVM, one run",
    "svm, 25 × 10 clients, half active": "SVM, 25 runs",
    "logistic, 1 × 10 clients, half active": "logistic, one run",
    "mlp, 10 clients, batch 16": "perceptron",
    "cnn width 8, 10 clients, batch 16": "CNN",
    "mlp, 10 clients, batch 16, 5 seeds, 2 workers": "perceptron, 5 seeds",
    "cnn width 8, 10 clients, batch 16, 5 seeds, 2 workers": "CNN, 5 seeds",
}
COLORS = ("#0072B2", "#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#E69F00", "#000000")


@dataclass(frozen=True)
class Measurement:
    """One ratio of one workload."""

    date: str
    commit: str
    cpu: str
    workload: str
    value: float


def read(path: Path = HISTORY) -> list[Measurement]:
    """All ratios against the plain loop, oldest first."""
    found = []
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        cpu = line["cpu"].replace("(R)", "").removesuffix(" Processor")
        for workload, ratios in line["ratios"].items():
            if RATIO in ratios:
                found.append(
                    Measurement(line["date"], line["commit"], cpu, workload, ratios[RATIO])
                )
    return found


def table(measurements: list[Measurement] | None = None) -> str:
    """The newest ratio of each workload beside the one before it on the same kind of CPU."""
    by_workload: dict[str, list[Measurement]] = {}
    for measurement in read() if measurements is None else measurements:
        by_workload.setdefault(measurement.workload, []).append(measurement)
    lines = ["| workload | before | newest | commit | date | CPU |", "|---|---|---|---|---|---|"]
    for workload, series in by_workload.items():
        newest = series[-1]
        same_cpu = [each.value for each in series[:-1] if each.cpu == newest.cpu]
        before = f"{same_cpu[-1]:.3g}" if same_cpu else "–"
        lines.append(
            f"| {workload} | {before} | {newest.value:.3g} | `{newest.commit}` "
            f"| {newest.date} | {newest.cpu} |"
        )
    return "\n".join(lines)


def draw(path: Path, measurements: list[Measurement] | None = None) -> None:
    """Ratios against the order of measurements; filled marks are those of an Intel CPU."""
    from matplotlib.figure import Figure

    measurements = read() if measurements is None else measurements
    order = list(dict.fromkeys(each.commit for each in measurements))
    figure = Figure(figsize=(7.2, 5.2), layout="constrained")
    axes = figure.subplots()
    for (workload, label), color in zip(DRAWN.items(), COLORS, strict=True):
        series = [each for each in measurements if each.workload == workload]
        if not series:
            continue  # not measured yet
        places = [order.index(each.commit) for each in series]
        axes.plot(places, [each.value for each in series], color=color, label=label)
        for place, each in zip(places, series, strict=True):
            fill = color if "Intel" in each.cpu else "white"
            axes.plot(place, each.value, "o", color=color, markerfacecolor=fill)
    axes.set_yscale("log")
    ticks = (1, 2, 5, 10, 20, 50, 100)
    axes.set_yticks(ticks, [str(tick) for tick in ticks])
    axes.yaxis.minorticks_off()
    axes.set_ylabel("times the plain PyTorch loop")
    axes.set_xticks(range(len(order)), order, rotation=60, fontsize=8)
    axes.set_xlabel("commit")
    axes.grid(alpha=0.25)
    figure.legend(ncols=4, fontsize=9, loc="outside upper center", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
