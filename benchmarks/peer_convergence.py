"""Peers against the simulator at the same number of gradients: SVM on images, one label per client.

python -m benchmarks.peer_convergence [GRADIENTS] [RATE]
python -m benchmarks.peer_convergence GRADIENTS RATE METHOD STEP    two labels per client, peers only
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import spodgt
from spodgt.experiment import Experiment
from spodgt.peer.membership.run_folders import create
from spodgt.peer.options import Deployment, Options
from tests.peer.fleet import Fleet

STEP = 0.05
WINDOW = 0.2  # accuracies from 0.8 to 1.2 times the gradients are averaged: single ones are noisy


def five_peers(*, step_size: float, labels: int, method: str = "spod-gt-memory") -> Experiment:
    """A linear model on images, `labels` classes per client."""
    partition = {"kind": "labels-per-client", "labels": labels}
    return Experiment.parse(
        {
            "run": {"methods": [method], "step_size": step_size, "seeds": 1},
            "network": {"kind": "exponential", "clients": 5},
            "participation": {"kind": "always"},
            "problem": {"data": "fashion-mnist-small", "model": "svm", "partition": partition},
        }
    )


def simulator(gradients: int) -> float:
    """Mean accuracy of the clients' models around that many gradients."""
    problem = spodgt.problems.fashion_mnist_svm(clients=5, labels_per_client=1)
    network, method = spodgt.Network.exponential(5), spodgt.SpodGTMemory(step_size=STEP)
    rounds = int(gradients * (1 + WINDOW))
    result = spodgt.train(
        method, problem, network, spodgt.Always(), rounds=rounds, seeds=[0], evaluations=50
    )
    near = result.frame[(result.frame["round"] - gradients).abs() <= WINDOW * gradients]
    return float(near["accuracy"].mean())


def peers(
    gradients: int,
    rate: float,
    kills: int = 0,
    chaos: Mapping[str, float] | None = None,
    limit: float = 240.0,
    experiment: Experiment = five_peers(step_size=STEP, labels=1),  # noqa: B008
) -> dict[str, Any]:
    """The same, of real peers; `limit` seconds at most."""
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        # a client waits when it is alone, so all begin together
        deployment = Deployment(rounds_per_second=rate, max_alone=20)
        create(run, experiment, deployment)
        options = Options(durability="process", evaluate_every=1.0, report_every=0.5)
        with Fleet(run, options, chaos) as fleet:
            fleet.start()
            fleet.rounds(2, 180)
            begun, due = time.monotonic(), time.monotonic()
            end = gradients * (1 + WINDOW)
            while (
                any(fleet.status(n)["gradients"] < end for n in fleet.names)
                and time.monotonic() - begun < limit
            ):
                time.sleep(0.5)
                if fleet.kills < kills and time.monotonic() >= due:
                    name = draw.choice(fleet.names)
                    fleet.kill(name)
                    fleet.start(name)
                    due = time.monotonic() + gradients / rate / (kills + 1)
            fleet.stop()
            near = {
                n: [
                    r["accuracy"]
                    for r in fleet.log(n, "status")
                    if abs(r["gradients"] - gradients) <= WINDOW * gradients
                ]
                for n in fleet.names
            }
            means = [sum(values) / len(values) for values in near.values() if values]
            return {
                "accuracy": round(sum(means) / max(1, len(means)), 4),
                "gradients": [fleet.status(n)["gradients"] for n in fleet.names],
                "evaluations": [len(values) for values in near.values()],
                "kills": fleet.kills,
                "audit": fleet.audit().error,
                "messages": sum(
                    link["messages"] for n in fleet.names for link in fleet.status(n)["neighbours"]
                )
                // 2,
                "seconds": round(time.monotonic() - begun),
            }


def main() -> None:
    gradients = int(sys.argv[1]) if len(sys.argv) > 1 else 1500
    rate = float(sys.argv[2]) if len(sys.argv) > 2 else 30.0
    if len(sys.argv) > 4:
        method, step = sys.argv[3], float(sys.argv[4])
        chosen = five_peers(step_size=step, labels=2, method=method)
        print(
            f"{method}, step {step}",
            json.dumps(peers(gradients, rate, experiment=chosen)),
            flush=True,
        )
        return
    print("simulator", json.dumps({"accuracy": round(simulator(gradients), 4)}), flush=True)
    print("peers", json.dumps(peers(gradients, rate)), flush=True)
    chaos = {"loss": 0.3, "twice": 0.1, "late": 0.2, "replay": 0.05, "seed": 3.0}
    print(
        "peers, 30 % loss and 15 kill -9", json.dumps(peers(gradients, rate, 15, chaos)), flush=True
    )


if __name__ == "__main__":
    main()
