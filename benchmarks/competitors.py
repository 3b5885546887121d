"""spodgt beside its competitors on the same work, each in its own venv: `python benchmarks/competitors.py`.

The work: Fashion-MNIST (the tenth inside the package), ten clients with 600 images each, a fixed undirected
graph, mini-batches of 16, float32, two cores; a linear model (7,850 parameters) and a perceptron (50,890).
Client gradients per second count in steady state, without evaluations. The time to an accuracy (of the
average of the clients' models) begins with training: imports, compilation and starting of actors are left
out for all. Memory is the peak of all processes together, shared pages divided among them.

Competitors run one after the other, and that again for every repeat. Their venvs are kept in the user's
cache; decent-bench needs python3.13 on the PATH. Results: benchmarks/results/competitors.json,
docs/results/benchmark.md and docs/results/benchmark.png; `--draw` only draws the last two anew.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
ADAPTERS = HERE.absolute() / "adapters"
RESULTS = HERE / "results" / "competitors.json"
DOCS = HERE.parent / "docs" / "results"
TORCH = "torch==2.13.0"
TARGET = 0.78  # accuracy that all but the slowest reach in their time


@dataclass(frozen=True)
class Row:
    """One way to do the work.

    Attributes:
        adapter: a file of benchmarks/adapters/, without .py.
        label: what the table calls it.
        computes: what one round is.
        differs: in what this is other work than ours, or wrong; nothing if it is the same.
        needs: what pip installs; nothing for what runs with the Python of this script.
        python: the oldest Python it takes, such as "3.13", if not that of this script.
        arguments: further ones of the adapter.
        local_steps: gradients of a client between two averagings; 0 for one epoch.
        threads: for torch in each process.
        least: seconds that its timed part needs at least, to have several rounds.
    """

    adapter: str
    label: str
    computes: str
    differs: str = ""
    needs: tuple[str, ...] = ()
    python: str = ""
    arguments: tuple[str, ...] = ()
    local_steps: int = 1
    threads: int = 1
    least: float = 0.0


DSGD = "x⁺ = W x − γ g(x)"
ROWS = {
    "spodgt": Row("ours", "spodgt, `dsgd`", DSGD, threads=2, arguments=("1", "dsgd")),
    "spodgt-25": Row(
        "ours", "spodgt, `dsgd`, 25 seeds at once", DSGD,
        "25 runs side by side, each with samples of its own; the time to an accuracy is that of all together",
        threads=2, arguments=("25", "dsgd"),
    ),
    "spodgt-gt": Row(
        "ours", "spodgt, `spod-gt`", "gradient tracking: two mixings a round",
        "more mixing", threads=2, arguments=("1", "spod-gt"),
    ),
    "loop": Row("plain", "a plain PyTorch loop", DSGD),
    "decent-bench": Row(
        "decent", "decent-bench, `DGD`", DSGD, needs=("decent-bench", TORCH), python="3.13",
    ),
    "gossipy": Row(
        "gossip_dfl", "gossipy",
        "a model is pushed to one random neighbour, which averages the two and steps",
        "one neighbour instead of all, so less mixing; nodes act one after the other, on models already "
        "changed in the same round; the whole share of a client is shuffled for each mini-batch; model "
        "and optimiser are copied for each message",
        needs=("gossipy-dfl", TORCH),
    ),
    "flower": Row(
        "flower", "Flower's simulation, `FedAvg`", "a server averages all models after one step",
        "a server and no graph: W = 11ᵀ/n; models are serialised, messages looked for every 0.1 s",
        needs=("flwr[simulation]", TORCH),
    ),
    "flower-epoch": Row(
        "flower", "Flower's simulation, an epoch a round", "a server averages all models after 38 steps",
        "a 38th of the averagings, and those by a server", needs=("flwr[simulation]", TORCH), local_steps=0,
    ),
    "p2pfl": Row(
        "p2p_fl", "p2pfl, an epoch a round",
        "all models are averaged after 38 steps, by passing on partial averages",
        "a 38th of the averagings, and those exact: the graph only carries them; samples are in the same "
        "order in every epoch; an evaluation in every round (here on one image) and waits of up to a second "
        "are part of it; needs torch 2.2",
        needs=("p2pfl[torch,dp]", "pyarrow<19", "huggingface_hub<0.26"), local_steps=0, least=15,
    ),
}  # fmt: skip
SAME = ("loop", "decent-bench")  # compute exactly what `dsgd` of spodgt computes
HIDDEN = {"linear": 0, "perceptron": 64}
TITLES = {
    "linear": "A linear model, 7,850 parameters",
    "perceptron": "A perceptron, 50,890 parameters",
}


# --- the work ----------------------------------------------------------------------------------------
def write_work(folder: Path) -> None:
    """One file for each model, and one more with an epoch between two averagings."""
    import spodgt
    from spodgt.problems.data import load

    sys.path.append(str(HERE.absolute().parent))  # this file is also run as a script
    from benchmarks.adapters.meter import Work

    test = load("fashion-mnist-small").test
    network = spodgt.Network.random_geometric(10, 0.4, seed=1)
    weights = np.zeros((10, 10), np.float32)
    weights[network.receivers, network.senders] = network.w
    weights += np.diag(1 - weights.sum(1))
    for model, hidden in HIDDEN.items():
        build = spodgt.problems.classification
        part = (build(model="mlp", hidden=hidden) if hidden else build(model="logistic")).draw(0)
        order = np.concatenate([part.client_indices[i] for i in range(10)])
        work = Work(
            _pixels(part.samples.inputs.numpy()[order]),
            part.samples.targets.numpy()[order],
            np.cumsum([0, *(len(part.client_indices[i]) for i in range(10))]),
            _pixels(test.inputs.numpy()),
            test.targets.numpy(),
            weights,
            part.start(0)[0].numpy(),
            hidden,
        )
        work.save(folder / f"{model}-1.npz")
        epoch = -(-int(work.bounds[1]) // work.batch)
        replace(work, local_steps=epoch).save(folder / f"{model}-0.npz")


def _pixels(images: Any) -> Any:
    return images.reshape(len(images), -1).astype(np.float32) / 255


# --- venvs -------------------------------------------------------------------------------------------
class CannotRun(Exception):
    """Why a competitor is missing from the table."""


def interpreter(row: Row, cache: Path) -> str:
    """The Python of the venv of a competitor, which is made if it is not there."""
    if not row.needs:
        return sys.executable
    home = (cache / row.adapter).absolute()
    python, complete = home / "bin" / "python", home / "complete"
    if complete.exists():
        return str(python)
    base = sys.executable
    if row.python and sys.version_info < tuple(map(int, row.python.split("."))):
        base = shutil.which(f"python{row.python}") or ""
        if not base:
            raise CannotRun(
                f"needs Python {row.python}, and there is no python{row.python} on the PATH"
            )
    print(f"installing {' '.join(row.needs)}", flush=True)
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *row.needs]
    for command in ([base, "-m", "venv", "--clear", "--without-pip", str(home)], pip):
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            raise CannotRun(f"cannot be installed: {_last_line(ran.stderr)}")
    complete.touch()
    return str(python)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next(
        (line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "no message"
    )


# --- measuring ---------------------------------------------------------------------------------------
class Memory(threading.Thread):
    """The peak of the proportional set sizes of all processes that inherited a mark in their environment."""

    def __init__(self, mark: str) -> None:
        super().__init__(daemon=True)
        self.mark, self.peak, self.over = mark.encode(), 0, threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.5):
            self.peak = max(self.peak, sum(map(self._kilobytes, Path("/proc").glob("[0-9]*"))))

    def _kilobytes(self, process: Path) -> int:
        try:
            if self.mark not in (process / "environ").read_bytes():
                return 0
            lines = (process / "smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended, or belongs to another user
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def measure(row: Row, python: str, work: Path, seconds: float) -> dict[str, Any]:
    """One run of an adapter."""
    seconds = max(seconds, row.least)
    with tempfile.TemporaryDirectory() as folder:
        out, mark = Path(folder) / "out.json", f"SPODGT_BENCHMARK={folder}"
        environment = os.environ | {
            "SPODGT_BENCHMARK": folder,
            "OMP_NUM_THREADS": str(row.threads),
            "OMP_WAIT_POLICY": "PASSIVE",
            "OPENBLAS_NUM_THREADS": "1",  # of evaluations: its threads keep a core busy after each
            "PYTHONPATH": "" if row.needs else os.pathsep.join(filter(None, sys.path)),
        }
        memory = Memory(mark)
        memory.start()
        adapter = ADAPTERS / f"{row.adapter}.py"
        command = [python, str(adapter), str(work), str(out), str(seconds), *row.arguments]
        try:
            ran = subprocess.run(
                command, env=environment, cwd=folder, capture_output=True, text=True,
                timeout=seconds + 60, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as late:
            raise CannotRun(f"had no result after {late.timeout:.0f} s") from None
        finally:
            memory.over.set()
        if not out.exists():
            raise CannotRun(f"failed: {_last_line(ran.stderr)}")
        return {**json.loads(out.read_text()), "peak_mb": memory.peak / 1024}


def add(row: Row, stored: dict[str, Any], one: dict[str, Any]) -> dict[str, Any]:
    """What is stored of a row, with one more run."""
    speeds = [*stored.get("gradients_per_s", []), one["gradients_per_s"]]
    return {
        "label": row.label,
        "versions": one["versions"],
        "gradients_per_s": speeds,
        "seconds_to_target": [*stored.get("seconds_to_target", []), reached(one["curve"])],
        "peak_mb": [*stored.get("peak_mb", []), one["peak_mb"]],
        "curve": one["curve"] if speeds[-1] == max(speeds) else stored["curve"],
    }


def reached(curve: Sequence[Sequence[float]]) -> float | None:
    """Seconds of training until the accuracy was reached."""
    return next((seconds for seconds, _, accuracy in curve if accuracy >= TARGET), None)


# --- the page ----------------------------------------------------------------------------------------
INTRODUCTION = """\
# Compared with other libraries

How fast is the simulator, compared with a plain PyTorch loop and other libraries? Measured by
`python benchmarks/competitors.py`, which installs each library into its own environment, in the newest
version that can be installed.

The work is the same for all: a tenth of Fashion-MNIST, ten clients with 600 images each, and mini-batches of
16. The graph is undirected with Metropolis weights W. Initial model and step size are the same, in float32.

- A *client gradient* is one mini-batch of one client. Speed is that of steady state, without evaluations.
- Time to an accuracy starts with training. Imports, compilation and the start of actors are excluded.
- Memory is the peak of all processes together.
- Two cores; spodgt uses two threads, the others one per process, which is their fastest setting.
- With full gradients, spodgt, the plain loop and decent-bench have the same accuracy after the same rounds.
"""


def page(results: dict[str, Any]) -> str:
    lines = [
        *INTRODUCTION.splitlines(),
        "",
        f"On {results['cpu']}. Values are the best of the runs; spread is the distance of the median.",
        "",
        "![client gradients per second, and accuracy against time](benchmark.png)",
    ]
    for model, rows in results["models"].items():
        lines += ["", f"## {TITLES[model]}", "", *table(rows), "", verdict(rows)]
    lines += [
        "",
        "## What each library computes",
        "",
        "| | a round | differs from `dsgd` of spodgt | measured with |",
        "|---|---|---|---|",
    ]
    for name, row in ROWS.items():
        cells = [row.label, row.computes, row.differs or "—", versions(results["models"], name)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def versions(models: dict[str, dict[str, Any]], name: str) -> str:
    """The packages of a row and their versions; empty if it was not measured."""
    for rows in models.values():
        found = rows.get(name, {}).get("versions", {})
        if found:
            return ", ".join(f"{package} {number}" for package, number in found.items())
    return ""


def measured(rows: dict[str, Any], name: str) -> bool:
    return "gradients_per_s" in rows.get(name, {})


def speed(row: dict[str, Any]) -> float:
    """The best of the repeats."""
    return float(max(row["gradients_per_s"]))


def table(rows: dict[str, Any]) -> list[str]:
    lines = [
        "| | client gradients per second | spread | spodgt is faster by | "
        f"seconds to {TARGET:.0%} accuracy | peak memory, MB |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    ours = speed(rows["spodgt"]) if measured(rows, "spodgt") else math.nan
    for row in rows.values():
        name = row["label"]
        if "missing" in row:
            lines.append(f"| {name} | {row['missing']} | | | | |")
            continue
        best, last, runs = speed(row), row["curve"][-1], row["gradients_per_s"]
        times = [seconds for seconds in row["seconds_to_target"] if seconds is not None]
        cells = [
            name,
            _number(best),
            f"{1 - float(np.median(runs)) / best:.0%}, {len(runs)} runs"
            if len(runs) > 1
            else "one run",
            "" if math.isnan(ours) else f"{_number(ours / best)}×",
            _number(min(times)) if times else f"{last[2]:.1%} after {last[0]:.0f} s",
            _number(max(row["peak_mb"])),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def verdict(rows: dict[str, Any]) -> str:
    """The ratio to the fastest that computes the same thing."""
    same = [rows[name] for name in SAME if measured(rows, name)]
    if not same or not measured(rows, "spodgt"):
        return "No other library that computes the same was measured."
    fastest = max(same, key=speed)
    ratio = {
        name: speed(row) / speed(fastest) for name, row in rows.items() if measured(rows, name)
    }
    at_once = f", 25 of them at once {_number(ratio['spodgt-25'])}×" if "spodgt-25" in ratio else ""
    return (
        f"The fastest that computes the same is {fastest['label']}. One run of `dsgd` is "
        f"{_number(ratio['spodgt'])}× as fast{at_once}."
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def draw(results: dict[str, Any], path: Path) -> None:
    """Bars of client gradients per second, and accuracy against time: of the linear model if it is there."""
    from matplotlib.figure import Figure

    stored = results["models"].get("linear") or next(iter(results["models"].values()))
    rows = {name: row for name, row in stored.items() if measured(stored, name)}
    colours = {name: f"C{n}" for n, name in enumerate(ROWS)}
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = list(rows)[::-1]
    speeds = [speed(rows[name]) for name in names]
    left.barh(
        [rows[name]["label"].replace("`", "") for name in names],
        speeds,
        color=[colours[name] for name in names],
    )
    left.set_xscale("log")
    left.set_xlabel("client gradients per second")
    left.set_xlim(right=max(speeds) * 5)
    for n, value in enumerate(speeds):
        left.text(value, n, f" {_number(value)}", va="center", fontsize=8)
    for name, row in rows.items():
        curve = np.array(row["curve"])
        right.plot(np.maximum(curve[:, 0], 1e-3), curve[:, 2], color=colours[name])
    right.axhline(TARGET, color="0.6", lw=0.8, ls=":")
    right.set_xscale("log")
    right.set_xlabel("seconds of training")
    right.set_ylabel("accuracy of the average model")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.tick_params(labelsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def write(results: dict[str, Any], folder: Path = DOCS) -> None:
    (folder / "benchmark.md").write_text(page(results), encoding="utf-8")
    draw(results, folder / "benchmark.png")


# --- the command -------------------------------------------------------------------------------------
def run(
    names: Sequence[str],
    models: Sequence[str],
    seconds: float,
    cache: Path,
    results: dict[str, Any],
) -> None:
    """All rows, one after the other, added to `results`; a failed row has the reason."""
    with tempfile.TemporaryDirectory() as folder:
        write_work(Path(folder))
        for model in models:
            rows = dict(results["models"].get(model, {}))
            for name in names:
                row, work = (
                    ROWS[name],
                    Path(folder) / f"{model}-{min(ROWS[name].local_steps, 1)}.npz",
                )
                try:
                    one = measure(row, interpreter(row, cache), work, seconds)
                except CannotRun as reason:
                    rows.setdefault(name, {"label": row.label, "missing": str(reason)})
                    print(f"{model}, {name}: {reason}", flush=True)
                else:
                    rows[name] = add(row, rows.get(name, {}), one)
                    print(
                        f"{model}, {name}: {_number(one['gradients_per_s'])} client gradients per second",
                        flush=True,
                    )
                results["models"][model] = {name: rows[name] for name in ROWS if name in rows}
                RESULTS.write_text(json.dumps(results) + "\n")  # results are saved after every row


def cpu() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )


def main() -> None:
    import platformdirs

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("name", nargs="*", help=f"of {', '.join(ROWS)}; all if left out")
    parser.add_argument("--model", choices=list(HIDDEN), help="both if left out")
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="timed part of a run; 8 by default"
    )
    parser.add_argument("--repeats", type=int, default=3, help="3 by default")
    parser.add_argument(
        "--cache", type=Path, default=Path(platformdirs.user_cache_dir("spodgt")) / "competitors"
    )
    parser.add_argument(
        "--add", action="store_true", help="keep the stored results, and add to them"
    )
    parser.add_argument(
        "--draw", action="store_true", help="write the page and the picture from the stored results"
    )
    given = parser.parse_args()
    if unknown := set(given.name) - set(ROWS):
        parser.error(f"name {min(unknown)!r} is not known; choose from {', '.join(ROWS)}.")
    results: dict[str, Any] = {"models": {}}
    if RESULTS.exists() and (given.draw or given.add):
        results = json.loads(RESULTS.read_text())
    if not given.draw:
        names = [name for name in ROWS if name in (given.name or ROWS)]
        models = [given.model] if given.model else list(HIDDEN)
        results["cpu"] = cpu()
        for _ in range(given.repeats):
            run(names, models, given.seconds, given.cache, results)
    write(results)


if __name__ == "__main__":
    main()
