"""Measure relay, relay-sum and running means, and write the pages about them.

    python docs/results/relay.py run runs/relay              # everything; continues if it was stopped
    python docs/results/relay.py run runs/relay svm-iid      # one setting
    python docs/results/relay.py write runs/relay            # docs/results/relay.md and .csv

`write` also updates the table in docs/explanation/theory.md. No number in the tables is typed by hand.
Seeds 200 to 209 are used only here; step sizes were chosen on other seeds. The page includes
docs/results/notes/relay.md, which is written by hand.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

import spodgt
from spodgt import figures
from spodgt.problems import Learning, classification
from spodgt.problems.data import IID, LabelsPerClient
from spodgt.record import Record, statistics
from spodgt.report.render import duration
from spodgt.theory import perron_vectors

SEEDS, DELAY = range(200, 210), 5000.0
GRAPH, PARTICIPATION = spodgt.graphs.RandomGeometric(10, 0.4), spodgt.Beta(0.5, 0.5)
DOCS = Path(__file__).parents[1]
_BEGIN, _END = "<!-- seeds: generated -->", "<!-- seeds: end -->"


class Setting(NamedTuple):
    title: str
    data: str
    model: str
    labels: int | None  # per client; None: IID
    methods: tuple[str, ...]  # name,field=value,…

    def problem(self) -> Learning:
        partition = IID() if self.labels is None else LabelsPerClient(self.labels)
        linear = self.model == "svm"
        options = {} if linear else {"width": 8}
        return classification(
            self.data, self.model, clients=10, partition=partition, batch_size=16,
            test_samples=None if linear else 2000, **options,
        )  # fmt: skip


_SVM = (
    "relay,step_size=0.1,running_mean=0.2",
    "relay-sum,step_size=0.1,running_mean=0.2",
    "spod-gt-memory,step_size=0.03,running_mean=0.2",
    "spod-gt-memory,step_size=0.1",
    "spod-gt-memory,step_size=0.03,weights=working",
)
_SPRING, _STEADY = "relay,step_size=0.1,proximal=10", "relay,step_size=0.1,patience=0"
_ONE = (*_SVM, "spod-gt-memory,step_size=0.01", _STEADY, _SPRING)
_CNN = ("relay,step_size=0.01,running_mean=0.2", "spod-gt-memory,step_size=0.01,running_mean=0.2")
_LONGER = "spod-gt-memory,step_size=0.03,running_mean=0.2"
SETTINGS = {
    "svm-one": Setting(
        "Fashion-MNIST, linear SVM, one label per client", "fashion-mnist", "svm", 1, _ONE
    ),
    "svm-iid": Setting(
        "Fashion-MNIST, linear SVM, IID", "fashion-mnist", "svm", None, (*_SVM, _SPRING)
    ),
    "cnn-fmnist": Setting(
        "Fashion-MNIST, CNN of width 8, one label", "fashion-mnist", "cnn", 1, (*_CNN, _LONGER)
    ),
    "cnn-cifar": Setting(
        "CIFAR-10, CNN of width 8, one label per client", "cifar-10", "cnn", 1, _CNN
    ),
}


# --- running -----------------------------------------------------------------------------------------
def run(folder: Path, name: str) -> None:
    """All methods of a setting: linear models with all seeds at once, networks seed by seed."""
    setting, problem = SETTINGS[name], SETTINGS[name].problem()
    linear = setting.model == "svm"
    for seeds in [list(SEEDS)] if linear else [[seed] for seed in SEEDS]:
        for label in setting.methods:
            out = folder / name / f"{label.replace(',', '_')}_{seeds[0]}"
            if finished(out):
                continue
            method, *fields = label.split(",")
            words = dict(field.split("=") for field in fields)
            values = {key: each if each.isalpha() else float(each) for key, each in words.items()}
            result = spodgt.train(
                spodgt.method(method, **values), problem, GRAPH, PARTICIPATION, delay=DELAY, seeds=seeds,
                evaluations=25 if linear else 5, gradient_norm=False, out=out, resume=out.exists(),
            )  # fmt: skip
            print(name, label, seeds[0], result.summary()["accuracy"].tolist(), flush=True)


def finished(out: Path) -> bool:
    """Also of an older version, whose checkpoint could not be read: its record is complete and stays."""
    return (out / "summary.json").exists() and Record.read(out).complete


# --- reading -----------------------------------------------------------------------------------------
def read(folder: Path, name: str) -> tuple[pd.DataFrame, float]:
    """The evaluations of all finished runs of a setting, and the seconds they took.

    What is reported as a running mean is another model, so it is another method here.
    """
    parts, seconds = [], 0.0
    for label in SETTINGS[name].methods:
        method = label.removesuffix(",running_mean=0.2").replace(",", " ", 1).replace(",", ", ")
        for path in sorted((folder / name).glob(f"{label.replace(',', '_')}_2*")):
            if not finished(path):
                continue
            frame = Record.read(path).frame
            seconds += json.loads((path / "summary.json").read_text("utf-8"))["seconds"]
            parts.append(frame.assign(method=method))
            if "accuracy_mean" in frame:
                means = frame.assign(
                    method=f"{method}, running mean", accuracy=frame["accuracy_mean"]
                )
                parts.append(means)
    return pd.concat(parts, ignore_index=True), seconds


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def best_memory(last: pd.DataFrame) -> str | None:
    """The rival: spod-gt-memory with its best step size."""
    means = last.groupby("method")["accuracy"].mean()
    plain = [
        each for each in means.index if each.startswith("spod-gt-memory step") and "," not in each
    ]
    return max(plain, key=lambda each: means[each]) if plain else None


def draw(frame: pd.DataFrame, rival: str, path: Path) -> None:
    """The curves of relay as it is, of its relatives and of the rival."""
    names = {}
    for label in statistics.methods(frame):
        name, _, rest = label.partition(" ")
        options = [each for each in rest.split(", ") if not each.startswith("step_size")]
        if label == rival or (name != "spod-gt-memory" and options in ([], ["running mean"])):
            names[label] = ", ".join([name, *options])
    shown = frame[frame["method"].isin(names)]
    shown = shown.assign(method=shown["method"].map(names))
    figures.save(figures.plot_curves(shown, "accuracy", end=DELAY), path)


def section(title: str, name: str, last: pd.DataFrame, rival: str) -> Iterator[str]:
    methods, wide = (
        statistics.methods(last),
        last.pivot(index="seed", columns="method", values="accuracy"),
    )
    yield f"## {title}\n"
    yield f"![accuracy against delay](relay-{name}.png)\n"
    rows = []
    for each in methods:
        values, leads = wide[each].dropna(), (wide[each] - wide[rival]).dropna()
        found = next(
            (one for one in statistics.paired(last, "accuracy", each) if one.method == rival), None
        )
        spread = f" ± {values.std():.3f}" if len(values) > 1 else ""
        cells = ["", ""]
        if found is not None:
            ends = f" [{found.low:+.3f}, {found.high:+.3f}]" if found.seeds > 1 else ""
            cells = [f"{found.mean:+.3f}{ends}, {found.ahead}/{found.seeds}", f"{leads.min():+.3f}"]
        rows.append(
            [each, f"{values.mean():.3f}{spread}", f"{values.min():.3f}", str(len(values)), *cells]
        )
    heads = ["method", "accuracy", "worst seed", "seeds"]
    yield (
        table([*heads, f"lead over {rival}: 95 % interval, seeds ahead", "smallest lead"], rows)
        + "\n"
    )


# --- draws -------------------------------------------------------------------------------------------
def drawn(seed: int) -> list[str]:
    """A seed, the factor m φᵀπ on its step size, and its two smallest p."""
    network = spodgt.Network.draw(GRAPH, seed=seed)
    available = PARTICIPATION.draw(network, seed)
    phi, pi = perron_vectors(network, available.p_hat)
    smallest = np.sort(available.p)[:2]
    factor = network.clients * float(phi @ pi)
    return [str(seed), f"{factor:.2f}", f"{smallest[0]:.2g}, {smallest[1]:.2g}"]


def seeds_table(last: pd.DataFrame) -> str:
    """One row per seed: its draw, and the accuracies with one label per client."""
    wide = last.pivot(index="seed", columns="method", values="accuracy")
    every = ("spod-gt-memory step_size=0.03", "relay step_size=0.1", "relay-sum step_size=0.1")
    shown = [name for name in every if name in wide]
    heads = ["seed", "m φᵀπ", "two smallest p"]
    rows = [[*drawn(seed), *(f"{wide.loc[seed, name]:.3f}" for name in shown)] for seed in SEEDS]
    return table([*heads, *(name.split(" ")[0] for name in shown)], rows)


def write(folder: Path) -> None:
    parts, every = ["# Relay at tuned step sizes\n"], []
    parts.append((DOCS / "results/notes/relay.md").read_text("utf-8"))
    for name, setting in SETTINGS.items():
        if any((folder / name).glob("*/summary.json")):
            frame, seconds = read(folder, name)
            last = statistics.final(frame)
            if not (rival := best_memory(last)):
                continue  # nothing to compare with yet
            draw(frame, rival, DOCS / f"results/relay-{name}.png")
            parts += section(setting.title, name, last, rival)
            parts.append(f"Time on one core of a shared machine: {duration(seconds)}.\n")
            every.append(last.assign(setting=name))
    (DOCS / "results/relay.md").write_text("\n".join(parts), "utf-8")
    columns = ["setting", "method", "seed", "round", "delay", "accuracy", "loss"]
    together = pd.concat(every)
    together[columns].to_csv(DOCS / "results/relay.csv", index=False, float_format="%.6g")
    before, _, rest = (DOCS / "explanation/theory.md").read_text("utf-8").partition(_BEGIN)
    drawn_table = seeds_table(together[together["setting"] == "svm-one"])
    text = f"{before}{_BEGIN}\n{drawn_table}\n{_END}{rest.partition(_END)[2]}"
    (DOCS / "explanation/theory.md").write_text(text, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["run", "write"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("settings", nargs="*", default=list(SETTINGS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.action == "write":
        write(given.folder)
    else:
        for name in given.settings:
            run(given.folder, name)


if __name__ == "__main__":
    main()
