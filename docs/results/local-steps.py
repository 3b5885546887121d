"""Local steps with gradient tracking against its relatives: Fashion-MNIST, equal gradients and bytes.

    python docs/results/local-steps.py run one-label      # or: run dirichlet; run cnn
    python docs/results/local-steps.py summary

`run` appends the final accuracies to local-steps.csv and skips what is there, so it continues after an
interruption. Step sizes are chosen on seeds 100 and 101 in runs of a third of the length; the reported
seeds are 0 to 9. `summary` writes local-steps-summary.csv and local-steps.png.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import spodgt
from spodgt.problems.data.partitions import Dirichlet, LabelsPerClient

HERE = Path(__file__).parent
RUNS = HERE / "local-steps.csv"
COLUMNS = (
    "setting",
    "inner",
    "method",
    "step_size",
    "seed",
    "rounds",
    "accuracy",
    "worst",
    "bytes",
)

ROUNDS = 1575  # 150 blocks of 10.5 rounds on average
TUNING_ROUNDS = ROUNDS // 3
TUNING_SEEDS = (100, 101)
TITLES = {"one-label": "one label", "dirichlet": "Dirichlet 0.1", "cnn": "one label, CNN"}
SEEDS = range(10)
RATES = {"SGD": (0.01, 0.03, 0.1), "AdamW": (0.001, 0.003, 0.01)}
# Averaging sends one vector in a message and the others two: half the block length, equal bytes.
METHODS: dict[str, dict[str, Any]] = {
    "local-gt": {"local_steps": "1-20"},
    "tracked-diloco": {"local_steps": "1-20"},
    "local-sgp": {"local_steps": "1-10"},
    "spod-gt-memory": {"local_steps": "1-20"},
    "fedavg": {"local_steps": 10},
    "scaffold": {"local_steps": 10},
}
INNER: dict[str, dict[str, Any]] = {
    "SGD": {},
    "AdamW": {"adam": True, "weight_decay": 0.01},  # AdamW, for all clients in one tensor
}


class Setting(NamedTuple):
    """Data, model and number of seeds."""

    partition: Any
    model: str
    options: dict[str, int]
    inner: tuple[str, ...] = ("AdamW", "SGD")
    seeds: range = SEEDS
    rates_of: str | None = None  # the setting with the step sizes to use; None: chosen here


SETTINGS = {
    "one-label": Setting(LabelsPerClient(1), "mlp", {"hidden": 32}),
    "dirichlet": Setting(Dirichlet(0.1), "mlp", {"hidden": 32}),
    "cnn": Setting(LabelsPerClient(1), "cnn", {"width": 4}, ("AdamW",), range(3), "one-label"),
}


def train(setting: Setting, cell: dict[str, Any], seed: int, rounds: int) -> dict[str, Any]:
    """One run; the final mean and worst accuracy of the clients, and the bytes sent over links."""
    name = cell["method"]
    problem = spodgt.problems.classification(
        "fashion-mnist-small", setting.model, partition=setting.partition, **setting.options
    )
    step_size = {"schedule": "cosine", "start": cell["step_size"], "rounds": rounds}
    fields = {**METHODS[name], **INNER[cell["inner"]]}
    result = spodgt.train(
        spodgt.method(name, step_size=step_size, **fields),
        problem,
        spodgt.graphs.ErdosRenyi(10, 0.25),
        spodgt.Beta(1, 1, floor=0.2),  # p and p̂ uniform, at least 0.2
        rounds=rounds,
        seeds=[seed],
        evaluations=1,
        gradient_norm=False,
        workers=1,
        progress=False,
    )
    if result.diverged:
        return {"accuracy": 0.1, "worst": 0.1, "bytes": float("nan")}
    last = result.frame.iloc[-1]
    accuracy = float(last["accuracy"])
    return {"accuracy": accuracy, "worst": float(last["accuracy_worst"]), "bytes": last["bytes"]}


# --- runs ----------------------------------------------------------------------------------------
def read() -> list[dict[str, str]]:
    """The runs so far."""
    if not RUNS.exists():
        return []
    with RUNS.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def add(name: str, cell: dict[str, Any], seed: int, rounds: int) -> None:
    """Compute a run and append it, unless it is there."""
    row = {"setting": name, **cell, "seed": seed, "rounds": rounds}
    for known in read():
        if all(known[key] == str(value) for key, value in row.items()):
            return
    row |= train(SETTINGS[name], cell, seed, rounds)
    is_new = not RUNS.exists()
    with RUNS.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if is_new:
            writer.writeheader()
        row["accuracy"] = f"{row['accuracy']:.4f}"
        row["worst"] = f"{row['worst']:.4f}"
        writer.writerow(row)
    print(row, flush=True)


def best_rate(name: str, inner: str, method: str) -> float:
    """The step size with the best mean accuracy of the tuning runs."""
    accuracies: dict[float, list[float]] = {}
    for row in read():
        key = (row["setting"], row["inner"], row["method"])
        if key == (name, inner, method) and int(row["seed"]) in TUNING_SEEDS:
            accuracies.setdefault(float(row["step_size"]), []).append(float(row["accuracy"]))
    return max(accuracies, key=lambda rate: sum(accuracies[rate]) / len(accuracies[rate]))


def cells(name: str) -> Iterator[dict[str, Any]]:
    for inner in SETTINGS[name].inner:
        for method in METHODS:
            yield {"inner": inner, "method": method}


def run(name: str) -> None:
    setting = SETTINGS[name]
    if setting.rates_of is None:
        for cell in cells(name):
            for rate in RATES[cell["inner"]]:
                for seed in TUNING_SEEDS:
                    add(name, {**cell, "step_size": rate}, seed, TUNING_ROUNDS)
    for seed in setting.seeds:
        for cell in cells(name):
            rate = best_rate(setting.rates_of or name, cell["inner"], cell["method"])
            add(name, {**cell, "step_size": rate}, seed, ROUNDS)


# --- summary -------------------------------------------------------------------------------------
def summary() -> None:
    """Mean and interval of each cell; of the tuning runs only those with the best step size."""
    import pandas as pd
    from scipy import stats

    frame = pd.read_csv(RUNS)
    groups = ["setting", "inner", "rounds", "method", "step_size"]
    rows = []
    for key, runs in frame.groupby(groups, sort=False):
        setting, inner, rounds, method, step_size = key
        if rounds == TUNING_ROUNDS and step_size != best_rate(setting, inner, method):
            continue
        count = len(runs)
        half = float("nan")
        if count > 2:
            half = stats.t.ppf(0.975, count - 1) * runs["accuracy"].std() / count**0.5
        mean = runs["accuracy"].mean()
        rows.append((*key, count, mean, half, runs["worst"].mean(), runs["bytes"].mean() / 1e6))
    names = [*groups, "seeds", "accuracy", "half", "worst", "MB"]
    table = pd.DataFrame(rows, columns=names)
    table.to_csv(HERE / "local-steps-summary.csv", index=False, float_format="%.4g")
    print(table.to_string())
    draw(table, frame)


def draw(table: Any, frame: Any) -> None:
    """Bars of means over full runs, a dot per seed, and 95 % intervals."""
    import matplotlib.pyplot as plt

    table = table[table["rounds"] == ROUNDS]
    frame = frame[frame["rounds"] == ROUNDS]
    panels = list(table.groupby(["setting", "inner"], sort=False))
    figure, axes = plt.subplots(2, 3, figsize=(10, 5.6), sharey=True)
    for axis, ((setting, inner), part) in zip(axes.flat, panels, strict=False):
        part = part.set_index("method").reindex(list(METHODS))
        has_server = part.index.isin(["fedavg", "scaffold"])
        colors = ["0.7" if server else "tab:blue" for server in has_server]
        places = range(len(part))
        axis.barh(places, part["accuracy"], xerr=part["half"], color=colors, capsize=3)
        runs = frame[(frame["setting"] == setting) & (frame["inner"] == inner)]
        for place, method in enumerate(part.index):
            accuracies = runs.loc[runs["method"] == method, "accuracy"]
            axis.plot(accuracies, [place] * len(accuracies), "k.", markersize=3)
        axis.set_yticks(places, part.index)
        axis.set_xlim(0, 0.9)
        axis.set_title(f"{TITLES[setting]}, {inner}", fontsize=10)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    axes[0][0].invert_yaxis()
    figure.supxlabel("test accuracy")
    figure.tight_layout()
    figure.savefig(HERE / "local-steps.png", dpi=130)


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run(sys.argv[2])
    else:
        summary()
