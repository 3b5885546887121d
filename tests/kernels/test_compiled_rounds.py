"""The compiled step of any linear method: traced from the method's own step, and equal to it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import spodgt
from spodgt.algorithms import ALGORITHMS, Cosine, InverseSqrt
from spodgt.algorithms.base import GradientState
from spodgt.algorithms.dsgd import DSGD
from spodgt.errors import SpodgtError
from spodgt.kernels.compiled_rounds import CompiledRounds
from spodgt.kernels.program import trace
from spodgt.kernels.tracing import NotLinear
from spodgt.problems.learning import Learning
from spodgt.runtimes.simulator import Simulation
from spodgt.runtimes.world import Draw, Run
from spodgt.thread_pool import run_tasks
from spodgt.types import Round
from tests.kernels.test_loops import needs_loops, toy_problem

DECLARED = sorted(name for name, cls in ALGORITHMS.items() if cls.traits.compiled)
LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "schedule": {"step_size": InverseSqrt(0.1)},
    "momentum": {"momentum": 0.5},
    "l2": {"l2": 0.1},
    "both": {"step_size": Cosine(0.1, rounds=20, warmup=3), "momentum": 0.5},
}
SIZES = [12, 5, 3, 12, 12, 7]  # some hold fewer samples than a batch


def runs_of(
    name: str,
    layers: dict[str, Any],
    count: int = 2,
    problem: Learning | None = None,
    step_size: Any = 0.1,
) -> list[Run]:
    """Runs whose networks, step sizes and numbers of local steps differ."""
    problem, traits, runs = (
        problem or toy_problem(clients=6, sizes=SIZES),
        ALGORITHMS[name].traits,
        [],
    )
    for seed in range(count):
        network = spodgt.Network.draw(spodgt.graphs.ErdosRenyi(6, 0.6), seed=seed, weights="random")
        if not traits.directed:
            network = spodgt.Network.random_geometric(6, 0.7, seed=seed)
        p, p_hat = (
            (0.6, 1.0)[how == "no"] for how in (traits.sporadic_clients, traits.sporadic_links)
        )
        method = spodgt.method(name, **({"lazy": True} if name == "d2" else {}), **layers)
        if "step_size" not in layers:
            method = spodgt.method(method, step_size=step_size * (seed + 1))
        start = torch.randn(6, problem.parameters, generator=torch.Generator().manual_seed(seed))
        available = spodgt.Bernoulli(p * (1 - 0.3 * seed), p_hat).draw(network, seed)
        if traits.sporadic_clients == "no":
            available = spodgt.Bernoulli(1.0, p_hat).draw(network, seed)
        runs.append(Run.of(Draw(seed, network, available, problem, start), method))
    return runs


def compiled_rounds(world: Simulation) -> CompiledRounds:
    assert world.rounds.compiled_rounds is not None
    return world.rounds.compiled_rounds


def equal(one: Sequence[Tensor], two: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@needs_loops
@pytest.mark.parametrize("name", DECLARED)
@pytest.mark.parametrize("layers", LAYERS)
def test_the_compiled_step_is_the_step_of_the_method(name: str, layers: str) -> None:
    try:
        runs = runs_of(name, LAYERS[layers])
        fast, plain = (Simulation(runs, dtype=torch.float64, compiled=how) for how in (True, False))
        world = fast.batch.algorithm
    except SpodgtError:
        return  # the method refuses a schedule
    assert world.traits.compiled is not None
    ours, theirs = fast.init(), plain.init()
    ours = fast.advance(fast.advance(ours, range(1, 8)), range(8, 26))
    theirs = plain.advance(theirs, range(1, 26))
    assert compiled_rounds(fast).tables is not None  # it was not the method's own step
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)
    for counted, expected in zip(fast.tally(), plain.tally(), strict=True):
        np.testing.assert_array_equal(counted, expected)


@pytest.mark.parametrize("name", ["spod-gt", "push-diging", "k-gt", "relay", "extra"])
def test_a_run_is_the_same_bit_for_bit_alone_in_a_batch_and_in_other_strides(name: str) -> None:
    runs = runs_of(name, {}, 3)
    world = Simulation(runs)
    together = world.advance(world.init(), range(1, 31))
    for number, run in enumerate(runs):
        alone = Simulation([run])
        state = alone.init()
        for first, last in ((1, 2), (2, 19), (19, 31)):
            state = alone.advance(state, range(first, last))
        assert equal([tensor[6 * number : 6 * number + 6] for tensor in together], state)


@pytest.mark.parametrize("model", ["svm", "mlp"])
def test_the_number_of_threads_changes_nothing(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spodgt.thread_pool._SERIAL", 0)
    monkeypatch.setattr("spodgt.thread_pool.os.cpu_count", lambda: 8)
    problem = spodgt.problems.classification(model=model, clients=6)
    threads, states = torch.get_num_threads(), []
    try:
        for number in (1, 2, 4):
            torch.set_num_threads(number)
            world = Simulation(runs_of("spod-gt-memory", {}, 3, problem, 0.01))
            states.append(world.advance(world.advance(world.init(), range(1, 8)), range(8, 15)))
    finally:
        torch.set_num_threads(threads)
    assert all(equal(states[0], other) for other in states[1:])


def test_a_failing_task_ends_the_call_when_all_threads_have_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spodgt.thread_pool.thread_count", lambda: 4)
    done: list[int] = []

    def task(n: int) -> None:
        if n == 1:
            raise RuntimeError("task 1")
        time.sleep(0.05)
        done.append(n)

    with pytest.raises(RuntimeError, match="task 1"):
        run_tasks(task, range(4), 10**9)
    before = len(done)
    time.sleep(0.1)
    assert len(done) == before


@needs_loops
@pytest.mark.parametrize(
    ("bias", "features", "batch_size", "dtype"),
    [  # every pair of values
        (True, 9, 4, torch.uint8),
        (False, 9, 20, torch.float64),
        (True, 48, 20, torch.uint8),
        (False, 48, 4, torch.float64),
        (True, 100, 4, torch.float64),
        (False, 100, 20, torch.uint8),
    ],
)
def test_models_of_any_shape_are_followed(
    bias: bool, features: int, batch_size: int, dtype: torch.dtype
) -> None:
    draws, data = torch.Generator().manual_seed(features), []
    for _ in range(6):
        inputs = torch.randint(0, 256, (24, features), generator=draws, dtype=torch.uint8)
        inputs = inputs if dtype == torch.uint8 else inputs.to(dtype) / 255
        data.append((inputs, torch.randint(0, 13, (24,), generator=draws)))
    model = torch.nn.Linear(features, 13, bias=bias)
    problem = Learning(model, torch.nn.CrossEntropyLoss(), data, batch_size=batch_size)
    runs = runs_of("spod-gt", {}, 1, problem)
    fast, plain = (Simulation(runs, dtype=torch.float64, compiled=how) for how in (True, False))
    ours, theirs = (world.advance(world.init(), range(1, 16)) for world in (fast, plain))
    assert compiled_rounds(fast).tables is not None
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


def test_a_step_size_for_every_client_is_followed() -> None:
    steps = torch.linspace(0.05, 0.3, 6, dtype=torch.float64)[:, None]
    runs = runs_of("ab", {"step_size": steps}, 1)
    fast, plain = (Simulation(runs, dtype=torch.float64, compiled=how) for how in (True, False))
    ours, theirs = (world.advance(world.init(), range(1, 16)) for world in (fast, plain))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@dataclass(frozen=True)
class Signs(DSGD):
    """A step that is not linear, declared as if it were."""

    name = "signs"
    traits = replace(DSGD.traits, source="spodgt")

    def step(self, state: GradientState, round: Round) -> GradientState:
        x = round.gossip(state.x) - self.step_size * torch.sign(state.g)
        return GradientState(x, round.grad(x))


@dataclass(frozen=True)
class Lazy(DSGD):
    """A linear method from outside the package: half a mixing, and old gradients count."""

    name = "lazy"
    traits = replace(DSGD.traits, source="spodgt")

    def step(self, state: GradientState, round: Round) -> GradientState:
        x = (state.x + round.gossip(state.x)) / 2 - self.step_size * state.g
        return GradientState(x, round.grad(x) + 0.5 * state.g)


@needs_loops
@pytest.mark.parametrize(("method", "linear"), [(Signs, False), (Lazy, True)])
def test_a_method_from_outside_is_followed_if_it_is_linear(method: Any, linear: bool) -> None:
    runs = [replace(run, algorithm=method(step_size=0.1)) for run in runs_of("dsgd", {})]
    fast, plain = (Simulation(runs, dtype=torch.float64, compiled=how) for how in (True, False))
    ours, theirs = (world.advance(world.init(), range(1, 16)) for world in (fast, plain))
    assert (compiled_rounds(fast).tables is not None) == linear
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


def test_what_no_program_can_say_is_refused() -> None:
    world = Simulation(runs_of("dsgd", {}), compiled=False)
    with pytest.raises(NotLinear):
        trace(Signs(), world.init())
    assert trace(world.held.algorithm, world.init()).fields == ["x", "g"]
