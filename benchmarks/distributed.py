"""The distributed runtime: time per round against processes, bytes against the bound, large vectors.

    python benchmarks/distributed.py [--rounds 50] [--json distributed.json]

Starts its own processes on this machine with `torchrun`. The bound is one vector for every active link
between two processes, for each vector that is mixed; a client's vector is sent to a process once, however
many clients there need it, so less than the bound may be sent.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

PROCESSES = (1, 2, 4)  # more than the number of cores measures little
LARGE = 45_000_000  # bytes


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--models", default="svm,resnet")
    options = parser.parse_args()
    if "RANK" in os.environ:
        work(options.rounds, options.models.split(","), options.json)
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for processes in PROCESSES:
            out = Path(folder) / f"{processes}.json"
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
            command += [f"--nproc-per-node={processes}", __file__, "--json", str(out)]
            command += ["--rounds", str(options.rounds), "--models", options.models]
            threads = str(max(1, (os.cpu_count() or 1) // processes))
            subprocess.run(
                command, check=True, timeout=900, env=os.environ | {"OMP_NUM_THREADS": threads}
            )
            rows += json.loads(out.read_text())
    for row in rows:
        print(
            "  ".join(
                f"{key} {v:.3g}" if isinstance(v, float) else f"{key} {v}" for key, v in row.items()
            )
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2))


# --- in every process --------------------------------------------------------------------------------
def work(rounds: int, models: list[str], out: Path) -> None:
    from spodgt.runtimes.distributed.process_group import join

    group = join()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    rows = [
        train(group, model, rounds if model == "svm" else max(3, rounds // 10)) for model in models
    ]
    if group.size == 2:
        rows += [exchange(group, ways) for ways in (1, 2)]
    if group.rank == 0:
        out.write_text(json.dumps(rows))


def problem_of(model: str, clients: int) -> Any:
    from spodgt.problems import classification
    from spodgt.problems.models import MODELS

    if model != "resnet":
        return classification(model=model, clients=clients)
    name = next((name for name in ("resnet18", "resnet-18", "resnet") if name in MODELS), "cnn")
    return classification(model=name, clients=clients, width=16)


def train(group: Any, model: str, rounds: int) -> dict[str, Any]:
    """Seconds per round of Spod-GT, and what was sent against the bound."""
    from spodgt.algorithms import method
    from spodgt.network import Network
    from spodgt.participation import Bernoulli
    from spodgt.runtimes.distributed.world import DistributedWorld
    from spodgt.runtimes.world import Run

    clients = 10
    network = Network.random_geometric(clients, radius=0.4, seed=0)
    problem = problem_of(model, clients)
    availability = Bernoulli(0.5, 0.5).draw(network, 0)
    run = Run(0, method("spod-gt"), network, availability, problem, problem.start(0))
    world = DistributedWorld([run], group)
    owner = world.block.owner
    state = world.advance(world.init(), range(1, 2))  # compiled
    before, bound, times = (world.messenger.bytes, world.messenger.messages), 0, []
    for k in range(2, rounds + 2):
        activity = world.batch.activity.starting_with(k)
        pull = activity.links.pull[k - activity.first]
        crossing = pull & (owner[network.receivers] != owner[network.senders])
        bound += 2 * int(crossing.sum()) * problem.parameters * 4
        began = time.perf_counter()
        state = world.advance(state, range(k, k + 1))
        times.append(time.perf_counter() - began)
    sent = group.sum(
        torch.tensor([world.messenger.bytes - before[0], world.messenger.messages - before[1]])
    )
    return {
        "model": model,
        "parameters": problem.parameters,
        "processes": group.size,
        "ms_per_round": 1e3 * statistics.mean(times),
        "bytes": int(sent[0]),
        "bound": bound,
        "ratio": int(sent[0]) / bound if bound else float("nan"),
        "messages_per_round": int(sent[1]) / rounds,
    }


def exchange(group: Any, ways: int, repeats: int = 15) -> dict[str, Any]:
    """Vectors of 45 MB through the runtime's own messages, against a plain copy of as many bytes."""
    from spodgt.runtimes.distributed.client_blocks import BlockTraffic
    from spodgt.runtimes.distributed.messages import FieldKey, Messenger, MixedTensor

    x, peer, row = torch.randn(1, LARGE // 4), 1 - group.rank, np.array([0])
    sends = {peer: row} if ways == 2 or group.rank == 0 else {}
    receives = {peer: row} if ways == 2 or group.rank == 1 else {}
    messenger, times, copies, target = Messenger(group), [], [], torch.empty_like(x)
    item = MixedTensor(FieldKey("pull", None), x, BlockTraffic(sends, receives))
    for k in range(repeats):
        group.sum(torch.zeros(1))  # start together
        began = time.perf_counter()
        (message,) = messenger.send_receive(k, 0, [item]).values()
        message.close()
        group.sum(torch.zeros(1))  # until both are done
        times.append(time.perf_counter() - began)
        if group.rank == 0:  # alone, while the other waits
            began = time.perf_counter()
            for _ in range(ways):
                target.copy_(x)
            copies.append(time.perf_counter() - began)
    copies = copies or [float("nan")]
    return {
        "model": f"{ways} × 45 MB, {'both ways' if ways == 2 else 'one way'}",
        "processes": 2,
        "ms": 1e3 * statistics.median(times),
        "copy_ms": 1e3 * statistics.median(copies),
        "times_copy": statistics.median(times) / statistics.median(copies),
        "fastest_times_copy": min(times) / min(copies),
    }


if __name__ == "__main__":
    main()
