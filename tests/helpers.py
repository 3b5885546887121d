"""Run any method in the simulator and keep every state: the bench of the algorithm tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spodgt.algorithms import ALGORITHMS, method
from spodgt.algorithms.base import Algorithm
from spodgt.algorithms.registry import ALIASES
from spodgt.network import Network
from spodgt.participation import Always, Participation, Trace
from spodgt.problems import Quadratic
from spodgt.runtimes.loop import EvaluationSchedule, Stop, begin, run_rounds
from spodgt.runtimes.simulator import Simulation
from spodgt.runtimes.world import Run, Snapshot
from spodgt.types import Problem

NAMES = tuple(ALGORITHMS)
STEPPING = tuple(name for name in NAMES if ALGORITHMS[name].traits.steps != "none")
# Methods whose step with one client is not a gradient step: averaged gradients, variance reduction.
NOT_DESCENT: frozenset[str] = frozenset()
TRACKERS = tuple(
    name for name in NAMES if {"y", "g"} <= set(ALGORITHMS[name].traits.state)
)  # Σy = Σg
FAMILY = tuple(name for name in NAMES if ALGORITHMS[name].traits.rule is not None)  # Spod-GT's step

KINDS: dict[str, Any] = {  # values of `compress`, one for each kind
    "int8": "int8",
    "top-k": {"kind": "top-k", "share": 0.3},
    "rand-k": {"kind": "rand-k", "share": 0.4},
}


@cache
def golden() -> dict[str, Any]:
    path = Path(__file__).parent / "golden" / "trajectories.json"
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


def golden_problem() -> Quadratic:
    return Quadratic(
        torch.from_numpy(np.array(golden()["H"])), torch.from_numpy(np.array(golden()["c"]))
    )


def golden_trace() -> Trace:
    data = golden()
    return Trace(data["computes"], data["links"], p=data["p"], p_hat=np.array(data["p_hat"]))


def build(name: str | Algorithm, **fields: Any) -> Algorithm:
    """A method with a step size, where it takes one."""
    if isinstance(name, str) and ALIASES.get(name, name) not in STEPPING:
        fields.pop("step_size", None)
    return method(name, **fields)


def make_run(
    algorithm: Algorithm,
    problem: Problem,
    network: Network,
    participation: Participation = Always(),  # noqa: B008
    *,
    x0: Any = None,
    seed: int = 0,
) -> Run:
    """A run as `train` makes it."""
    availability = participation.draw(network, seed)
    fitted = algorithm.fit(availability)
    start = problem.start(seed) if x0 is None else torch.as_tensor(x0).expand(problem.clients, -1)
    return Run(
        seed,
        fitted,
        fitted.with_mixing_weights(network),
        fitted.adapt_availability(availability, network),
        problem,
        start,
    )


def states(runs: Sequence[Run], rounds: int, *, compiled: bool = False) -> list[Any]:
    """The states after rounds 0 to `rounds`, all runs of the batch in one, with or without compiled steps."""
    kept: list[Any] = []

    def observe(snapshot: Snapshot, due: Any, last: Any) -> Any:
        kept.append(type(snapshot.state)(*(tensor.clone() for tensor in snapshot.state)))
        return np.zeros_like(last)

    world = Simulation(runs, dtype=torch.float64, compiled=compiled)
    run_rounds(begin(world), Stop(rounds=rounds), EvaluationSchedule(rounds=1), observe)
    return kept


def final(runs: Run | Sequence[Run], rounds: int) -> Any:
    """The state after `rounds`, without keeping the others."""
    world = Simulation(
        [runs] if isinstance(runs, Run) else runs, dtype=torch.float64, compiled=False
    )
    state = world.held.algorithm.init(world.held.initial_models(), world.rounds.start(0))
    for k in range(1, rounds + 1):
        state = world.held.algorithm.step(state, world.rounds.start(k))
    return state


def ring_of(clients: int) -> Network:
    """A ring with links both ways and one chord, so that W exists and is not too regular."""
    i = np.arange(clients)
    adjacency = np.zeros((clients, clients), bool)
    adjacency[i, (i + 1) % clients] = adjacency[(i + 1) % clients, i] = True
    if clients > 3:
        adjacency[0, 2] = adjacency[2, 0] = True
    return Network.from_adjacency(adjacency)
