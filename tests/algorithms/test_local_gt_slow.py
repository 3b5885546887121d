"""Local steps with gradient tracking on ten clients and five random digraphs: limits and conservation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from spodgt.algorithms import Cosine, method
from spodgt.network import Network, graphs
from spodgt.participation import Bernoulli
from spodgt.problems import Quadratic
from spodgt.runtimes.events.durations import Time
from spodgt.runtimes.events.world import EventWorld
from spodgt.runtimes.world import Run
from tests.helpers import final, make_run

pytestmark = pytest.mark.slow

CLIENTS = 10
ROUNDS = 12_000
SHORT = 8_000
ADAM = 10_500  # rounds: 1,000 blocks of 10.5 steps
MOMENTUM = {"name": "SGD", "momentum": 0.9}
SPREAD = np.geomspace(0.1 / 30, 0.1, CLIENTS).tolist()  # step sizes 30 times apart
COSINE = Cosine(0.003, ADAM, end=3e-7)
DELAYS = Time(
    compute={"kind": "lognormal", "median": 0.1, "sigma": 0.6},
    latency={"kind": "uniform", "low": 0.0, "high": 0.6},
    tick=0.1,
)


def sporadic_runs(**fields: Any) -> list[Run]:
    """p and p̂ between 0.2 and 1, block lengths 1 to 20 drawn anew, over five digraphs."""
    runs = []
    for seed in range(5):
        network = Network.draw(graphs.ErdosRenyi(CLIENTS, 0.3), seed=seed)
        draws = np.random.default_rng(seed)
        p = draws.uniform(0.2, 1, CLIENTS)
        participation = Bernoulli(p, draws.uniform(0.2, 1, network.links))
        problem = Quadratic.random(CLIENTS, 10, seed=seed, condition=10)
        algorithm = method("local-gt", local_steps="1-20", **fields)
        runs.append(make_run(algorithm, problem, network, participation, seed=seed))
    return runs


def worst_error(runs: list[Run], x: torch.Tensor) -> float:
    """Largest relative distance of a client from the optimum of its run."""
    errors = []
    for number, run in enumerate(runs):
        assert isinstance(run.problem, Quadratic)
        optimum = run.problem.optimum()
        rows = x[number * CLIENTS : (number + 1) * CLIENTS]
        errors.append(float((rows - optimum).norm(dim=1).max() / optimum.norm()))
    print("errors", " ".join(f"{error:.1e}" for error in errors))
    return max(errors)


@pytest.mark.parametrize(
    ("fields", "rounds", "limit"),
    [
        ({"step_size": 0.1}, ROUNDS, 1e-8),
        ({"step_size": 0.02, "optimizer": MOMENTUM}, ROUNDS, 1e-8),
        ({"step_size": SPREAD}, ROUNDS, 1e-8),
        ({"step_size": COSINE, "optimizer": "Adam"}, ADAM, 1e-6),
    ],
    ids=["SGD", "momentum", "step sizes 30 times apart", "Adam"],
)
def test_worst_client_reaches_the_optimum(
    fields: dict[str, Any], rounds: int, limit: float
) -> None:
    runs = sporadic_runs(**fields)
    state = final(runs, rounds)
    assert worst_error(runs, state.x) < limit
    for number in range(len(runs)):
        rows = slice(number * CLIENTS, (number + 1) * CLIENTS)
        scale = float(state.c[rows].abs().max())
        assert float((state.y[rows].sum(0) - state.c[rows].sum(0)).abs().max()) < 1e-12 * scale


@pytest.mark.parametrize(
    ("fields", "rounds", "limit"),
    [
        ({"step_size": 0.1}, SHORT, 1e-8),
        ({"step_size": 0.02, "optimizer": MOMENTUM}, SHORT, 1e-8),
        ({"step_size": SPREAD}, ROUNDS, 1e-8),
        ({"step_size": COSINE, "optimizer": "Adam"}, ADAM, 1e-6),
    ],
    ids=["SGD", "momentum", "step sizes 30 times apart", "Adam"],
)
def test_late_messages_do_not_move_the_limit(
    fields: dict[str, Any], rounds: int, limit: float
) -> None:
    """In virtual time; conservation there is tested in test_local_gt.py."""
    run = sporadic_runs(**fields)[0]
    world = EventWorld([run], DELAYS, dtype=torch.float64)
    state = world.init()
    state = world.advance(state, range(1, rounds + 1))
    assert worst_error([run], state[0]) < limit
