"""Laws of local steps with gradient tracking: conservation, fixed point, exactness, block lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from spodgt.algorithms import Cosine, method
from spodgt.algorithms.registry import describe
from spodgt.errors import InvalidInput
from spodgt.network import Network, graphs
from spodgt.participation import Bernoulli
from spodgt.participation.local_blocks import block_ends, with_local_blocks
from spodgt.problems import Quadratic
from spodgt.runtimes.events.durations import Time
from spodgt.runtimes.events.world import EventWorld
from spodgt.runtimes.simulator import Simulation
from spodgt.runtimes.world import Run
from tests.helpers import final, make_run, ring_of, states
from tests.strategies import worlds

LENGTHS = st.sampled_from([1, 3, "1-4", "2-7"])
OPTIMIZERS = st.sampled_from(
    [None, "SGD", {"name": "SGD", "momentum": 0.5}, "Adam", {"name": "AdamW", "weight_decay": 0.1}]
)
DELAYS = Time(
    compute={"kind": "lognormal", "median": 0.1, "sigma": 0.6},
    latency={"kind": "uniform", "low": 0.0, "high": 0.4},
    tick=0.1,
)


def sporadic_run(seed: int = 1, clients: int = 6, **fields: Any) -> Run:
    """p and p̂ between 0.2 and 1, over a random digraph."""
    network = Network.draw(graphs.ErdosRenyi(clients, 0.4), seed=seed)
    draws = np.random.default_rng(seed)
    participation = Bernoulli(draws.uniform(0.2, 1, clients), draws.uniform(0.2, 1, network.links))
    problem = Quadratic.random(clients, 3, seed=seed, condition=3)
    algorithm = method("local-gt", **fields)
    return make_run(algorithm, problem, network, participation, seed=seed)


def error(run: Run, x: Tensor) -> float:
    """Distance of the worst client from the optimum."""
    assert isinstance(run.problem, Quadratic)
    return float((x - run.problem.optimum()).norm(dim=1).max())


# --- conservation --------------------------------------------------------------------------------
@given(worlds(rounds=20), LENGTHS, OPTIMIZERS, st.floats(0.05, 1))
@settings(deadline=None, max_examples=40)
def test_trackers_sum_to_the_contributions(
    world: Any, lengths: Any, optimizer: Any, averaging: float
) -> None:
    problem, network, participation, seed = world
    fields = {"local_steps": lengths, "optimizer": optimizer, "averaging": averaging}
    algorithm = method("local-gt", step_size=0.1, **fields)
    run = make_run(algorithm, problem, network, participation, seed=seed)
    for state in states([run], 20):
        scale = max(1.0, float(state.y.abs().sum()))
        assert_close(state.y.sum(0), state.c.sum(0), rtol=0, atol=1e-12 * scale)


@pytest.mark.parametrize("lengths", [3, "1-8"])
@pytest.mark.parametrize("optimizer", [None, "Adam"])
def test_trackers_and_messages_in_flight_sum_to_the_contributions(
    lengths: Any, optimizer: Any
) -> None:
    """In virtual time, after every batch of activations."""
    run = sporadic_run(step_size=0.05, local_steps=lengths, optimizer=optimizer)
    world = EventWorld([run], DELAYS, dtype=torch.float64)
    state = world.init()
    executor = world.executors[0]
    was_in_flight = False
    for k in range(1, 120):
        executor.costs(k)
        for batch in executor.ticks[k - executor.first_tick].batches:
            executor.compute(state, [batch])
            flight = executor.in_flight_mass()
            mass = state[1].sum(0)
            if flight is not None:
                mass = mass + flight
                was_in_flight |= bool(flight.abs().max() > 1e-3)
            scale = max(1.0, float(state[1].abs().sum()))
            assert_close(mass, state[2].sum(0), rtol=0, atol=1e-12 * scale)
    assert was_in_flight


# --- fixed point and limit -----------------------------------------------------------------------
# With Adam's ε of 1e-8 the fixed point is not stable: steps along 1e-8 are as long as those along 1.
@pytest.mark.parametrize(
    "optimizer",
    [
        None,
        {"name": "SGD", "momentum": 0.9},
        {"name": "Adam", "eps": 1.0},
        {"name": "RMSprop", "eps": 1.0},
    ],
    ids=str,
)
def test_the_optimum_is_a_fixed_point(optimizer: Any) -> None:
    """x = x*, y = 0, c_i = ∇F_i(x*): no pattern of links, clients and blocks moves it."""
    run = sporadic_run(step_size=0.1, local_steps="1-5", optimizer=optimizer)
    assert isinstance(run.problem, Quadratic)
    start = states([run], 0)[0]
    x = run.problem.optimum().expand(6, 3).clone()
    gradients = run.problem.full(x, np.arange(6))[1]
    zero = torch.zeros_like(x)
    at_rest = start._replace(x=x, c=gradients, g=gradients * start.active)
    world = Simulation([run], dtype=torch.float64, compiled=False)
    state = at_rest
    for k in range(1, 40):
        state = world.held.algorithm.step(state, world.rounds.start(k))
    assert_close(state.x, x, rtol=0, atol=1e-12)
    assert_close(state.y, zero, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "fields",
    [
        {"local_steps": "1-20"},
        {"local_steps": [1, 2, 4, 8, 12, 20]},
        {"local_steps": "1-20", "averaging": 0.3},
        {"local_steps": "1-20", "optimizer": {"name": "SGD", "momentum": 0.9}, "step_size": 0.01},
        {"local_steps": "1-20", "clip_tracker": 0.5},
        {"local_steps": "1-20", "step_size": [0.2 / 30, 0.2, 0.1, 0.02, 0.05, 0.01]},
    ],
    ids=str,
)
def test_the_limit_is_exact(fields: dict[str, Any]) -> None:
    """Block lengths drawn anew, step sizes 30 times apart, momentum: within 1e-8 of the optimum."""
    run = sporadic_run(**{"step_size": 0.1, **fields})
    assert error(run, final(run, 4000).x) < 1e-8


def test_adam_with_a_cosine_schedule_reaches_the_optimum() -> None:
    fields: dict[str, Any] = {"local_steps": "1-20", "optimizer": "Adam"}
    run = sporadic_run(step_size=Cosine(0.02, 3000, end=2e-6), **fields)
    assert error(run, final(run, 3000).x) < 1e-6


def test_late_messages_do_not_move_the_limit() -> None:
    run = sporadic_run(step_size=0.1, local_steps="1-6")
    world = EventWorld([run], DELAYS, dtype=torch.float64)
    state = world.init()
    state = world.advance(state, range(1, 3001))
    assert error(run, state[0]) < 1e-8


def test_l2_is_tracked_and_weight_decay_of_an_optimizer_is_not() -> None:
    rate = 0.1
    tracked = sporadic_run(step_size=0.1, local_steps="1-8", l2=rate)
    decayed = sporadic_run(
        step_size=0.1, local_steps="1-8", optimizer={"name": "SGD", "weight_decay": rate}
    )
    problem = tracked.problem
    assert isinstance(problem, Quadratic)
    curvature = problem.H.mean(0) + rate * torch.eye(3, dtype=torch.float64)
    target = torch.einsum("iab,ib->a", problem.H, problem.c) / 6
    regularised = torch.linalg.solve(curvature, target)
    assert float((final(tracked, 3000).x - regularised).norm(dim=1).max()) < 1e-8
    assert float((final(decayed, 3000).x - regularised).norm(dim=1).max()) > 1e-3


def test_clipped_gradients_move_the_limit() -> None:
    run = sporadic_run(step_size=0.1, local_steps="1-8", clip_gradient=0.3)
    assert error(run, final(run, 3000).x) > 1e-2


# --- the recursion, written out ------------------------------------------------------------------
ADAM_STEP = 0.03
BETAS = (0.9, 0.999)
EPS = 1e-8


class WrittenOut:
    """One client of the recursion with Adam, in NumPy."""

    def __init__(self, h: np.ndarray, centre: np.ndarray) -> None:
        self.h = h
        self.centre = centre
        self.x, self.y, self.c, self.s, self.m, self.v = np.zeros((6, len(centre)))
        self.steps_of_block = 0
        self.steps = 0

    def local_step(self) -> None:
        gradient = self.h @ (self.x - self.centre)
        self.s += gradient
        self.steps_of_block += 1
        corrected = gradient + self.y - self.c
        self.steps += 1
        self.m = BETAS[0] * self.m + (1 - BETAS[0]) * corrected
        self.v = BETAS[1] * self.v + (1 - BETAS[1]) * corrected**2
        m = self.m / (1 - BETAS[0] ** self.steps)
        v = self.v / (1 - BETAS[1] ** self.steps)
        self.x = self.x - ADAM_STEP * m / (np.sqrt(v) + EPS)

    def end_block(self) -> None:
        if self.steps_of_block:
            contribution = self.s / self.steps_of_block
            self.y = self.y + contribution - self.c
            self.c = contribution
            self.s = np.zeros_like(self.s)
            self.steps_of_block = 0


def test_every_step_with_adam_is_that_of_the_recursion_written_out() -> None:
    """Moments remain local and stand still while a client is idle; models mix after the step."""
    run = sporadic_run(step_size=ADAM_STEP, local_steps="1-5", optimizer="Adam")
    assert isinstance(run.problem, Quadratic)
    network = run.network
    quadratics = zip(run.problem.H.numpy(), run.problem.c.numpy(), strict=True)
    clients = [WrittenOut(h, centre) for h, centre in quadratics]
    found = states([run], 150)
    rounds = range(151)
    computes = run.availability.computes(rounds)
    used_links = run.availability.links(rounds).pull
    ends = block_ends(run.availability, rounds)
    for k in range(1, 151):
        for client in np.flatnonzero(computes[k - 1]):
            clients[client].local_step()
        for client in np.flatnonzero(ends[k]):
            clients[client].end_block()
        x = np.stack([client.x for client in clients])
        y = np.stack([client.y for client in clients])
        for link in np.flatnonzero(used_links[k]):
            receiver = network.receivers[link]
            sender = network.senders[link]
            clients[receiver].x += network.a[link] * (x[sender] - x[receiver])
            clients[receiver].y += network.b[link] * y[sender]
            clients[sender].y -= network.b[link] * y[sender]
        for name in ("x", "y", "c"):
            expected = np.stack([getattr(client, name) for client in clients])
            assert np.abs(getattr(found[k], name).numpy() - expected).max() < 1e-10, (k, name)


# --- relatives -----------------------------------------------------------------------------------
def test_one_block_length_and_all_active_is_k_gt() -> None:
    network = Network.draw(graphs.ErdosRenyi(5, 0.5), seed=2)
    problem = Quadratic.random(5, 3, seed=1)
    runs = []
    for name in ("local-gt", "k-gt"):
        algorithm = method(name, step_size=0.05, local_steps=4)
        runs.append(make_run(algorithm, problem, network, seed=1))
    for ours, theirs in zip(states(runs[:1], 24), states(runs[1:], 24), strict=True):
        assert_close(ours.x, theirs.x, rtol=0, atol=1e-12)


# --- block lengths -------------------------------------------------------------------------------
def blocks_of(lengths: Any, seed: int = 3) -> Callable[[range], Any]:
    network = ring_of(4)
    availability = Bernoulli(0.5, 0.9).draw(network, seed)
    blocks = with_local_blocks(availability, network, lengths, "local_steps")
    return lambda rounds: block_ends(blocks, rounds)


def test_lengths_are_drawn_for_each_client_and_block() -> None:
    ends = blocks_of("3-6")(range(20000))
    for client in range(4):
        found = np.diff(np.flatnonzero(ends[:, client]), prepend=0)
        assert set(found) == {3, 4, 5, 6}
        counts = np.bincount(found, minlength=7)[3:]
        assert np.abs(counts / counts.sum() - 0.25).max() < 0.03
    assert not np.array_equal(ends[:, 0], ends[:, 1])
    assert not ends[0].any()


@given(st.integers(0, 5000), st.integers(1, 60), st.sampled_from(["1-20", "2-3", 4, (1, 2, 3, 4)]))
def test_block_ends_are_a_function_of_the_round(first: int, count: int, lengths: Any) -> None:
    rounds = range(first, first + count)
    full = blocks_of(lengths)(range(6000))
    assert np.array_equal(blocks_of(lengths)(rounds), full[first : first + count])


def test_links_are_used_at_the_end_of_blocks_of_the_sender() -> None:
    run = sporadic_run(local_steps="1-9")
    rounds = range(1, 400)
    active = run.availability.links(rounds).pull
    ends = block_ends(run.availability, rounds)
    assert active.any()
    assert not active[~ends[:, run.network.senders]].any()


@pytest.mark.parametrize("value", [0, -1, 2.5, "5", "3-1", "0-4", [], [1, 0], True, None])
def test_bad_block_lengths_are_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^local_steps of local-gt must be a whole number"):
        method("local-gt", local_steps=value)


def test_one_length_per_client_of_the_network() -> None:
    with pytest.raises(InvalidInput, match="one number or 6, one per client, got 2"):
        sporadic_run(local_steps=[1, 2])


# --- runs ----------------------------------------------------------------------------------------
def test_a_config_and_its_description_are_equal() -> None:
    for lengths in (4, "1-20", [1, 2, 3]):
        built = method("local-gt", local_steps=lengths, optimizer={"name": "SGD", "momentum": 0.9})
        assert method(**describe(built)) == built


def test_a_batch_with_optimizers_is_its_runs() -> None:
    fields: dict[str, Any] = {"local_steps": "1-6", "optimizer": "NAdam", "step_size": 0.02}
    runs = [sporadic_run(seed, **fields) for seed in range(3)]
    together = final(runs, 25)
    for number, run in enumerate(runs):
        alone = final(run, 25)
        for batch, single in zip(together, alone, strict=True):
            assert torch.equal(batch[6 * number : 6 * number + 6], single)
