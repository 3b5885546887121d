"""Virtual time: gradients per second beside the rounds of the simulator, and memory with 10,000 clients.

python benchmarks/virtual.py [speed|memory]
"""

from __future__ import annotations

import resource
import sys
import time

import torch
from torch.utils.data import TensorDataset

import spodgt
from spodgt.experiment import Experiment
from spodgt.runtimes.events.world import EventWorld
from spodgt.runtimes.simulator import Simulation
from spodgt.runtimes.world import Run, World

LATE = spodgt.Time({"kind": "lognormal", "median": 1.0, "sigma": 0.5}, latency=0.2)


def run_of(problem: object, network: object) -> Run:
    experiment = Experiment.of("spod-gt-memory", problem, network, rounds=10)  # type: ignore[arg-type]
    return Run.of(experiment.draw(0), experiment.methods[0])


def speed(world: World, seconds: float = 3.0) -> float:
    """Gradients of all clients per second of this process."""
    state, k = world.init(), 0
    begun, before = 0.0, 0
    while not begun or time.process_time() - begun < seconds:
        if k == 64:  # compiled and warm
            begun, before = time.process_time(), int(world.tally().gradients.sum())
        count = min(16, len(world.costs(k + 1)))
        state = world.advance(state, range(k + 1, k + 1 + count))
        k += count
    return (int(world.tally().gradients.sum()) - before) / (time.process_time() - begun)


def memory(clients: int = 10_000, features: int = 400) -> None:
    """Peak memory beyond the data against the memory of the states x, y, g."""
    inputs, targets = torch.randn(2 * clients, features), torch.randint(10, (2 * clients,))
    own = [
        TensorDataset(inputs[2 * i : 2 * i + 2], targets[2 * i : 2 * i + 2]) for i in range(clients)
    ]
    problem = spodgt.Learning(
        torch.nn.Linear(features, 10), torch.nn.CrossEntropyLoss(), own, own[0], batch_size=2
    )
    run = run_of(problem, spodgt.Network.draw(spodgt.graphs.KRegular(clients, 3)))
    small = run_of(
        spodgt.problems.fashion_mnist_svm(clients=4), spodgt.Network.draw(spodgt.graphs.Complete(4))
    )
    speed(EventWorld([small], LATE), 0.1)  # compile
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    world = EventWorld([run], LATE)
    state = world.init()
    for k in range(1, 7):
        world.costs(k)
        state = world.advance(state, range(k, k + 1))
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        states = sum(tensor.numel() * tensor.element_size() for tensor in state)
        pool, row = world.executors[0].context.pool, state[0].shape[1] * state[0].element_size()
        held = (pool.model_slots.capacity + pool.tracker_slots.capacity) * row
        print(
            f"tick {k}: states {states / 1e6:.0f} MB, copies {held / 1e6:.0f} MB, peak {used / states:.2f}×"
        )


def main() -> None:
    wanted = sys.argv[1:] or ["speed", "memory"]
    if "speed" in wanted:
        problem = spodgt.problems.fashion_mnist_svm(clients=10)
        run = run_of(problem, spodgt.graphs.RandomGeometric(10, 0.4))
        worlds = {
            "rounds": Simulation([run]),
            "virtual time, equal clients": EventWorld([run], spodgt.Time(1.0)),
            "virtual time, stragglers and latency": EventWorld([run], LATE),
        }
        for name, world in worlds.items():
            print(f"{name}: {speed(world):,.0f} gradients per second", flush=True)
    if "memory" in wanted:
        memory()


if __name__ == "__main__":
    main()
