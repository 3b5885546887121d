"""Real peers against virtual time: accuracy against seconds, on the same problem, seed, and shaped links.

python -m benchmarks.peer_virtual [SECONDS] [SEEDS]         writes docs/results/virtual-time.png and .csv
python -m benchmarks.peer_virtual [SECONDS] [SEEDS] --wires  docs/results/virtual-wires.png and .csv; as root

Five peers; a gradient of client i sleeps COMPUTE[i] seconds. On loopback every message to it passes a TCP
relay that holds it for LATENCY[i] seconds (netem may be missing in the kernel). With --wires every peer is in
a network namespace of its own on a bridge, and `tc tbf` lets it send RATE[i] bytes per second to all of its
neighbours together. Virtual time has one bandwidth per link: a client sends to all its neighbours at once, so
each link gets an equal part of RATE[i], less HEADERS. It is given the pace that the peers really had, which a
busy machine makes slower than COMPUTE.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

import spodgt
from spodgt import figures
from spodgt.experiment import Experiment
from spodgt.peer.membership.run_folders import audit_folders, create, free_addresses, issue
from spodgt.peer.options import Deployment, Options
from spodgt.problems import MODELS
from spodgt.problems.data import LabelsPerClient
from spodgt.problems.data.datasets import load
from spodgt.types import Minibatches
from tests.peer.fleet import Fleet
from tests.peer.netns import Wires, status, wait

COMPUTE = (0.20, 0.25, 0.30, 0.35, 0.40)
LATENCY = (0.03, 0.06, 0.09, 0.12, 0.15)
RATE = (1.6e6, 1.2e6, 0.8e6, 0.6e6, 0.4e6)
HEADERS = 0.05  # of the bytes on a wire: TLS, HTTP/2, TCP, IP
OUT = Path(__file__).parents[1] / "docs/results"
TABLES: dict[str, Any] = {
    "run": {"methods": ["spod-gt-memory"], "step_size": 0.05, "rounds": 1},
    "network": {"kind": "exponential", "clients": 5},
    "participation": {"kind": "always"},
    "problem": {"kind": "python", "build": f"{__file__}:build"},
}


class Slow(spodgt.Learning):
    """Images, one label per client, with gradients of a given duration."""

    seconds = 0.0

    def grad(self, x: Tensor, batches: Minibatches) -> Tensor:
        time.sleep(self.seconds)
        return super().grad(x, batches)


def build(clients: int, client: str | None = None) -> Slow:
    """The problem of all clients; `client` is the calling peer."""
    data, svm = load("fashion-mnist-small"), MODELS["svm"]
    model = svm.build(tuple(data.train.inputs.shape[1:]), len(data.classes))
    made: Any = Slow.partitioned(
        model, svm.loss, data, clients=clients, partition=LabelsPerClient(1), batch_size=16
    )
    made.seconds = 0.0 if client is None else COMPUTE[int(client[1:])]
    return made  # type: ignore[no-any-return]


# --- peers -------------------------------------------------------------------------------------------
async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, late: float) -> None:
    """Pass on every chunk `late` seconds after it came, in order."""
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def forward() -> None:
        while True:
            due, data = await queue.get()
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            writer.write(data)
            await writer.drain()
            if not data:
                writer.close()
                return

    sending = asyncio.ensure_future(forward())
    with contextlib.suppress(OSError):
        while data := await reader.read(2**18):
            queue.put_nowait((time.monotonic() + late, data))
    queue.put_nowait((time.monotonic() + late, b""))
    with contextlib.suppress(OSError):
        await sending


@contextlib.contextmanager
def relays(targets: Mapping[str, tuple[str, float]]) -> Iterator[None]:
    """Forward each address to another, late: {listen: (target, seconds)}."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def serve(listen: str, target: str, late: float) -> None:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            host, _, port = target.rpartition(":")
            try:
                far = await asyncio.open_connection(host, int(port))
            except OSError:
                writer.close()
                return
            await asyncio.gather(_relay(reader, far[1], late), _relay(far[0], writer, late))

        host, _, port = listen.rpartition(":")
        await asyncio.start_server(connected, host, int(port))

    for listen, (target, late) in targets.items():
        asyncio.run_coroutine_threadsafe(serve(listen, target, late), loop).result(10)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(loop.stop)


def peers(seconds: float, seed: int) -> pd.DataFrame:
    """One row per report of a peer: its seconds since all had begun, gradients, accuracy."""
    shown, real = free_addresses(5), free_addresses(5)
    late = dict(zip(shown, zip(real, LATENCY, strict=True), strict=True))
    experiment = Experiment.parse(TABLES).override({"run.seeds": [seed]})
    with tempfile.TemporaryDirectory() as folder, relays(late):
        run = Path(folder) / "run"
        create(run, experiment, Deployment(addresses=shown, max_alone=5))
        options = Options(durability="process", report_every=0.5, evaluate_every=1.0)
        with Fleet(run, options) as fleet:
            for name, address in zip(fleet.names, real, strict=True):
                fleet.start(name, options=replace(options, listen=address))
            fleet.rounds(3, 180)
            begun = time.time()
            time.sleep(seconds)
            fleet.stop()
            error = fleet.audit().error
            rows = [row for name in fleet.names for row in fleet.log(name, "status")]
    return as_frame(rows, begun, seed, error)


def as_frame(
    rows: list[dict[str, Any]], begun: float, seed: int, error: float | None
) -> pd.DataFrame:
    """What peers have logged since `begun`."""
    frame = pd.DataFrame(rows)[["client", "time", "gradients", "accuracy"]]
    frame["seconds"] = frame["time"] - begun
    print(f"peers, seed {seed}: audit {error}", flush=True)
    return frame[frame["seconds"] >= 0].assign(seed=seed)


def wired(seconds: float, seed: int) -> pd.DataFrame:
    """The same in network namespaces with limited rates."""
    wires = Wires(5, "spv")
    experiment = Experiment.parse(TABLES).override({"run.seeds": [seed]})
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        addresses = [f"10.77.0.{i + 1}:7000" for i in range(5)]
        names = create(run, experiment, Deployment(addresses=addresses, max_alone=5)).names
        for name in names:
            issue(run, name)
        try:
            wires.build()
            for i, rate in enumerate(RATE):
                wires.limit(i, rate)
            wires.start(run, names, "--evaluate-every", "1")
            wait(lambda: all(status(run, name).get("k", 0) >= 3 for name in names), 180)
            begun = time.time()
            time.sleep(seconds)
            wires.stop()
            error = audit_folders([run / name for name in names]).error
            logs = [(run / name / "log.jsonl").read_text().splitlines() for name in names]
        finally:
            wires.remove()
    rows = [row for lines in logs for row in map(json.loads, lines) if row["event"] == "status"]
    return as_frame(rows, begun, seed, error)


def pace(frame: pd.DataFrame) -> tuple[list[float], float]:
    """Seconds that each client's round really took, and how long before `begun` they had begun."""
    paces, heads = [], []
    for _, own in frame.groupby("client"):
        slope, start = np.polyfit(own["seconds"], own["gradients"], 1)
        paces.append(float(1 / slope))
        heads.append(start / slope)
    return paces, float(np.median(heads))


# --- virtual time and the picture --------------------------------------------------------------------
def shaped(wires: bool) -> dict[str, Any]:
    """The links in virtual time: numbers by [receiver, sender]."""
    if not wires:
        return {"latency": [[late] * 5 for late in LATENCY]}
    network, _ = Experiment.parse(TABLES).draw_network(0)
    out = np.bincount(network.senders, minlength=5)
    return {"bandwidth": [[rate * (1 - HEADERS) / out[j] for j, rate in enumerate(RATE)]] * 5}


def virtual(seconds: float, compute: list[float], seeds: list[int], wires: bool) -> pd.DataFrame:
    time = {"compute": compute, "tick": 0.5, **shaped(wires)}
    experiment = Experiment.parse(
        {**TABLES, "time": time, "run": {**TABLES["run"], "seconds": seconds}}
    )
    experiment = experiment.override({"run.rounds": None, "run.seeds": seeds, "run.every": 2})
    return spodgt.run(experiment, progress=False).frame[["seed", "seconds", "accuracy"]]


def main() -> None:
    wires, numbers = "--wires" in sys.argv, [word for word in sys.argv[1:] if word != "--wires"]
    seconds = float(numbers[0]) if numbers else 100.0
    count = int(numbers[1]) if len(numbers) > 1 else 2
    grid, found = np.arange(5.0, seconds - 2, 5.0), []
    for seed in range(count):
        real = (wired if wires else peers)(seconds, seed)
        compute, head = pace(real)
        print(
            f"seed {seed}: seconds of a round {np.round(compute, 3)}, begun {head:.1f} s earlier",
            flush=True,
        )
        curves = [
            np.interp(grid, own["seconds"], own["accuracy"]) for _, own in real.groupby("client")
        ]
        found.append({"seed": seed, "compute": compute, "head": head, "peers": np.mean(curves, 0)})
    spread = []
    for one in found:
        others = virtual(seconds + one["head"] + 5, one["compute"], [0, 1, 2, 3, 4], wires)
        curves = [
            np.interp(grid + one["head"], own["seconds"], own["accuracy"])
            for _, own in others.groupby("seed")
        ]
        one["virtual"], one["sigma"] = curves[one["seed"]], np.std(curves, 0, ddof=1)
        spread.append(curves)
    write(grid, found, np.concatenate(spread), "virtual-wires" if wires else "virtual-time")


def write(grid: Any, found: list[dict[str, Any]], spread: Any, name: str) -> None:
    columns = ("seed", "peers", "virtual", "sigma")
    table = pd.concat(
        [pd.DataFrame({"seconds": grid} | {key: one[key] for key in columns}) for one in found]
    )
    off, sigma = (table["peers"] - table["virtual"]).abs(), table["sigma"]
    print(f"difference at equal seconds: mean {off.mean():.4f}, largest {off.max():.4f}")
    print(
        f"sigma over seeds: mean {sigma.mean():.4f}; {(off <= 2 * sigma).mean():.0%} within two sigma"
    )
    table.round(4).to_csv(OUT / f"{name}.csv", index=False)
    figures.preload()
    figure, axes = figures.new_figure(7.2, 4.4)
    mean, deviation = spread.mean(0), spread.std(0)
    axes.fill_between(
        grid, mean - deviation, mean + deviation, color="0.85", label="virtual time, five seeds ± σ"
    )
    for one, colour in zip(found, figures.COLOURS, strict=False):
        axes.plot(grid, one["virtual"], color=colour, label=f"virtual time, seed {one['seed']}")
        axes.plot(
            grid,
            one["peers"],
            "o",
            color=colour,
            markersize=4,
            label=f"five real peers, seed {one['seed']}",
        )
    axes.set_xlabel("seconds")
    axes.set_ylabel("test accuracy, mean over clients")
    axes.legend(frameon=False, ncols=2, loc="lower right", fontsize="small")
    figures.save(figure, OUT / f"{name}.png")


if __name__ == "__main__":
    main()
