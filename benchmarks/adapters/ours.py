"""spodgt itself: a method in the simulator, without evaluations: `ours.py … SEEDS METHOD`."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from meter import begin, finish

import spodgt
from spodgt.runtimes.loop import EvaluationSchedule, Stop, run_rounds
from spodgt.runtimes.loop import begin as first
from spodgt.runtimes.simulator import Simulation
from spodgt.runtimes.world import Run, Snapshot

method, seeds = sys.argv.pop(), int(sys.argv.pop())
work, meter = begin()
model = "mlp" if work.hidden else "logistic"
options = {"hidden": work.hidden} if work.hidden else {}
problem = spodgt.problems.classification(model=model, batch_size=work.batch, **options)
network = spodgt.Network.from_adjacency((work.weights > 0) & ~np.eye(work.clients, dtype=bool))
start = torch.from_numpy(work.start).expand(work.clients, -1)
algorithm = spodgt.method(method, step_size=work.step_size)
runs = [
    Run(s, algorithm, network, spodgt.Always().draw(network, s), problem.draw(s), start.clone())
    for s in range(seeds)
]


def observe(now: Snapshot, due: Any, last: Any) -> Any:
    """Told of a round every now and then by the loop that `train` runs, too; ends all runs in the end."""
    over = meter.tick(
        now.k * work.clients * seeds, lambda: now.state.x[: work.clients].mean(0).numpy()
    )
    return np.full_like(last, over)


never = EvaluationSchedule()
# To compile and warm up.
run_rounds(
    first(Simulation(runs)), Stop(rounds=64), never, lambda now, due, last: np.zeros_like(last)
)
meter.start()
run_rounds(first(Simulation(runs)), Stop(rounds=10**9), never, observe)
finish(meter, "spodgt", "torch")
