"""Laws that every method in the list must keep; a new file is covered by being listed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from spodgt.algorithms import ALGORITHMS, Cosine, method
from spodgt.algorithms.registry import ALIASES
from spodgt.network import Network, graphs
from spodgt.participation import Always, Bernoulli, Trace
from spodgt.participation.availability import (
    AvailabilityOverride,
    RandomActivation,
    symmetric_links,
)
from spodgt.problems import Quadratic
from spodgt.runtimes.simulator import Simulation
from spodgt.runtimes.world import Run
from tests.helpers import (
    FAMILY,
    NAMES,
    NOT_DESCENT,
    STEPPING,
    TRACKERS,
    build,
    final,
    golden,
    golden_problem,
    golden_trace,
    make_run,
    ring_of,
    states,
)

EXACT = [name for name in NAMES if ALGORITHMS[name].traits.exact != "no"]
SUMS = (
    "extra",
    "d2",
    "relay-sum",
    "gt-dsgd",
)  # carry sums from round to round that nothing corrects
# A client that talks to nobody goes to its own minimum, whatever the step; row-stochastic averaging
# weights clients by a Perron vector, whatever the step (test_local_steps_baselines).
INEXACT = [
    name
    for name in STEPPING
    if ALGORITHMS[name].traits.exact == "no"
    and ALGORITHMS[name].traits.mixing != "none"
    and ALGORITHMS[name].traits.activation == "all"
    and name != "local-sgd"
]


def traits_of(name: str) -> Any:
    return ALGORITHMS[ALIASES.get(name, name)].traits


def world_of(name: str, seed: int = 0, clients: int = 5) -> Network:
    """A network on which the method may run: one-way wherever it can."""
    if not traits_of(name).directed:
        return Network.random_geometric(clients, 0.7, seed=seed)
    return Network.draw(graphs.ErdosRenyi(clients, 0.4), seed=seed)


def hardest(name: str) -> Any:
    """The most sporadic participation that the method does not refuse."""
    traits = traits_of(name)
    return Bernoulli(
        1.0 if traits.sporadic_clients == "no" else 0.6,
        1.0 if traits.sporadic_links == "no" else 0.6,
    )


def fields_of(name: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"local_steps": 3} if traits_of(name).local_steps else {}
    return {**fields, "lazy": True} if name == "d2" else fields


# --- numbers -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", golden()["x"])
@pytest.mark.parametrize("compiled", [False, True])
def test_golden_trajectories(name: str, compiled: bool) -> None:
    data = golden()
    network = Network.from_adjacency(
        data["undirected" if traits_of(name).mixing == "gossip" else "digraph"]
    )
    every = 3 if name == "k-gt" else 1
    algorithm = method(
        name, step_size=data["step_size"], **({"local_steps": 3} if every > 1 else {})
    )
    participation = (
        golden_trace() if name in FAMILY else Always()
    )  # the others were made with all active
    run = make_run(algorithm, golden_problem(), network, participation, x0=np.array(data["x0"]))
    kept = states([run], every * (len(data["x"][name]) - 1), compiled=compiled)[::every]
    for letter in ("x", "y"):
        if name in data[letter]:
            ours = torch.stack([getattr(state, letter) for state in kept])
            assert_close(ours, torch.from_numpy(np.array(data[letter][name])), rtol=0, atol=1e-12)


# --- the contract ------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pure_and_true_to_shape_and_dtype(name: str, dtype: torch.dtype) -> None:
    problem = Quadratic.random(5, 3, seed=1, noise=0.1)
    algorithm = build(name, step_size=0.1, **fields_of(name))
    run = make_run(algorithm, problem, world_of(name), hardest(name))
    world = Simulation([run], dtype=dtype, compiled=False)
    state = world.held.algorithm.init(world.held.initial_models(), world.rounds.start(0))
    for k in range(1, 8):
        before = [tensor.clone() for tensor in state]
        after, again = (world.held.algorithm.step(state, world.rounds.start(k)) for _ in range(2))
        for old, kept, new, same in zip(before, state, after, again, strict=True):
            assert torch.equal(old, kept)
            assert torch.equal(new, same)
            assert new.dtype == old.dtype  # sums that nothing corrects may be in double precision
            assert new.shape == old.shape
            assert len(new) == 5
        assert type(after) is type(state)
        assert after._fields[0] == "x"
        assert after.x.dtype == dtype
        state = after


@pytest.mark.parametrize("name", NAMES)
def test_one_gradient_a_round_and_only_where_active(name: str) -> None:
    problem = Quadratic.random(5, 2, seed=1, noise=0.1)
    run = make_run(build(name, **fields_of(name)), problem, world_of(name), hardest(name))
    world = Simulation([run], compiled=False)
    state = world.held.algorithm.init(world.held.initial_models(), world.rounds.start(0))
    for k in range(1, 21):
        state = world.held.algorithm.step(state, world.rounds.start(k))
    first = 1 if name == "subgradient-push" else 0  # its first round only mixes
    expected = run.availability.computes(range(first, 21)).sum(0)
    assert np.array_equal(world.tally().gradients, expected)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_DESCENT])
def test_one_client_is_gradient_descent(name: str) -> None:
    problem = Quadratic.random(1, 3, seed=2)
    x, descent = torch.tensor([[1.0, -2.0, 3.0]]).double(), []
    kept = states(
        [make_run(build(name, step_size=0.3), problem, Network.draw(graphs.Complete(1)), x0=x)], 12
    )
    for _ in range(13):
        descent.append(x)
        x = x - 0.3 * problem.full(x, np.arange(1))[1]
    if name == "gossip":
        descent = [descent[0]] * 13
    if name == "subgradient-push":  # mixes before its first gradient
        descent = [descent[0], *descent[:-1]]
    assert_close(torch.stack([state.x for state in kept]), torch.stack(descent), rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_a_common_optimum_is_a_fixed_point(name: str) -> None:
    problem = Quadratic.random(5, 3, seed=3)
    common = replace(problem, c=problem.c[:1].expand(5, 3).clone())
    run = make_run(
        build(name, step_size=0.2, **fields_of(name)),
        common,
        world_of(name, 1),
        hardest(name),
        x0=common.c,
    )
    assert_close(final(run, 30).x, common.c, rtol=0, atol=1e-13)


# --- the limit ---------------------------------------------------------------------------------------
def distance(
    name: str, rounds: int, step_size: float, participation: Any, **fields: Any
) -> torch.Tensor:
    """How far from the optimum the models of two runs end, each on a network and problem of its own."""
    problems = [Quadratic.random(5, 2, seed=seed, condition=3) for seed in (1, 2)]
    algorithm = build(name, step_size=step_size, **fields_of(name) | fields)
    runs = [
        make_run(algorithm, problem, world_of(name, seed), participation, seed=seed)
        for seed, problem in zip((1, 2), problems, strict=True)
    ]
    best = torch.cat([problem.optimum().expand(5, 2) for problem in problems])
    off: torch.Tensor = final(runs, rounds).x - best
    far: torch.Tensor = off.norm(dim=1)
    return far.view(2, 5)


@pytest.mark.parametrize("name", EXACT)
def test_exact_methods_reach_the_optimum(name: str) -> None:
    alone = (
        traits_of(name).activation != "all"
    )  # few move in a round, so more rounds and longer steps
    step = 0.15 if alone else 0.04 if name == "frost" else 0.1  # the tracker of FROST is a sum
    step = (
        0.3 if traits_of(name).uses_stale_models else step
    )  # only what stays of a tracker moves a model
    rounds = 2600 if alone else 1000 if name == "relay-sum" else 700  # what is relayed comes late
    assert distance(name, rounds, step, Always()).max() < 1e-10


@pytest.mark.parametrize(
    "name", [n if n in SUMS else pytest.param(n, marks=pytest.mark.slow) for n in EXACT]
)
def test_exact_methods_do_not_drift_in_single_precision(name: str) -> None:
    problem = Quadratic.random(5, 3, seed=1, condition=3, spread=2.0)
    step = 0.02 if name == "frost" else 0.05  # the tracker of FROST is a sum
    step = 0.2 if traits_of(name).activation != "all" or traits_of(name).uses_stale_models else step
    algorithm = build(name, step_size=step, **fields_of(name))
    world = Simulation([make_run(algorithm, problem, world_of(name, 1))], dtype=torch.float32)
    state, away = world.init(), []
    for first in (1, 2001, 4001):
        state = world.advance(state, range(first, first + 2000))
        away.append(float((state[0].double() - problem.optimum()).norm(dim=1).max()))
    assert away[0] < 1e-3
    assert max(away[1:]) < away[0] + 1e-5


@pytest.mark.parametrize("name", [n for n in EXACT if traits_of(n).exact == "yes" and "yes" in (
    traits_of(n).sporadic_clients, traits_of(n).sporadic_links)])  # fmt: skip
def test_exact_methods_reach_it_under_what_they_bear(name: str) -> None:
    rounds = 2000 if name == "relay-sum" else 900
    assert distance(name, rounds, 0.1, hardest(name)).max() < 1e-10


@pytest.mark.parametrize("name", INEXACT)
def test_the_bias_of_a_constant_step_shrinks_with_it(name: str) -> None:
    near, far = (
        distance(name, 600, step, Always()).square().mean(1).sqrt() for step in (0.03, 0.06)
    )
    assert (near > 1e-4).all()
    assert (far < 0.5).all()
    assert ((far / near > 1.6) & (far / near < 2.4)).all()  # of order η


@pytest.mark.parametrize("name", ["dsgd", "dgd", "dspodfl"])
def test_dsgd_stops_where_it_must(name: str) -> None:
    problem, network = (
        Quadratic.random(5, 2, seed=1, condition=3),
        Network.random_geometric(5, 0.7, seed=1),
    )
    # x = W x - η H (x - c)  ⇔  ((I - W)⊗I + η H) x = η H c
    laplacian = torch.from_numpy(np.kron(np.eye(5) - network.W, np.eye(2)))
    H = torch.block_diag(*problem.H)  # type: ignore[no-untyped-call]
    limit = torch.linalg.solve(laplacian + 0.1 * H, 0.1 * H @ problem.c.flatten()).view(5, 2)
    run = make_run(method(name, step_size=0.1), problem, network)
    assert_close(final(run, 700).x, limit, rtol=0, atol=1e-12)


def test_k_gt_goes_on_after_a_schedule_that_ends_with_zero() -> None:
    problem, network = Quadratic.random(5, 2, seed=1), Network.directed_geometric(5, seed=3)
    algorithm = method("k-gt", step_size=Cosine(0.05, 30), local_steps=4)
    kept = states([make_run(algorithm, problem, network)], 80)
    assert torch.isfinite(kept[-1].c).all()
    consensus = [float((state.x - state.x.mean(0)).norm()) for state in kept]
    assert consensus[80] < 0.1 * consensus[32]  # models are still mixed


def test_spod_gt_leans_towards_busy_clients() -> None:
    """Its limit is near the minimiser of Σ p_i F_i; importance weights and memory go to the true one."""
    problem, p = Quadratic.random(4, 2, seed=5, condition=3), np.array([1.0, 0.2, 0.6, 0.9])
    network, participation = Network.draw(graphs.ErdosRenyi(4, 0.6), seed=1), Bernoulli(p, 0.8)
    mean = {}
    for name in ("spod-gt", "spod-gt-importance", "spod-gt-memory"):
        runs = [
            make_run(method(name, step_size=0.03), problem, network, participation, seed=seed)
            for seed in range(6)
        ]
        mean[name] = torch.stack([state.x.mean(0) for state in states(runs, 1000)[400:]]).mean(0)
    true, leaning = problem.optimum(), problem.optimum(p)
    assert (true - leaning).norm() > 0.1
    assert (mean["spod-gt"] - leaning).norm() < 0.25 * (mean["spod-gt"] - true).norm()
    assert (mean["spod-gt-importance"] - true).norm() < 0.25 * (
        mean["spod-gt-importance"] - leaning
    ).norm()
    assert (mean["spod-gt-memory"] - true).norm() < 1e-3


def test_gossip_reaches_the_average_and_keeps_it() -> None:
    x0 = np.random.default_rng(0).standard_normal((5, 3))
    kept = states([make_run(method("gossip"), Quadratic.random(5, 3), ring_of(5), x0=x0)], 400)
    for state in kept[::50]:
        assert_close(state.x.mean(0), torch.from_numpy(x0.mean(0)), rtol=0, atol=1e-13)
    assert_close(kept[-1].x, torch.from_numpy(x0.mean(0)).expand(5, 3), rtol=0, atol=1e-12)
    assert_close(kept[1].x, kept[1].x)  # and a round moves one pair only
    assert int((kept[1].x != kept[0].x).any(1).sum()) == 2


# --- conservation ------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", TRACKERS)
@given(clients=st.integers(2, 5), seed=st.integers(0, 2**20))
@settings(deadline=None, max_examples=12)
def test_trackers_keep_the_total_whoever_is_active(name: str, clients: int, seed: int) -> None:
    draws = np.random.default_rng(seed)
    two = traits_of(name).mixing == "gossip"
    network = (
        ring_of(clients) if two else Network.draw(graphs.ErdosRenyi(clients, 0.5), seed=seed % 1000)
    )
    trace = Trace(
        draws.random((9, clients)) < 0.5, draws.random((8, network.links)) < 0.5, 0.5, 0.5
    )
    problem = Quadratic.random(
        clients, 2, seed=seed, noise=1.0
    )  # an old gradient must not be redrawn
    availability = trace.draw(network, seed)  # raw, whatever the method would make of it
    if two:
        availability = symmetric_links(availability, network)
    run = Run(seed, method(name, step_size=0.1), network, availability, problem, problem.start(0))
    for state in states([run], 8):
        contributions = state.c if name == "local-gt" else state.g
        assert_close(state.y.sum(0), contributions.sum(0), rtol=0, atol=1e-12)


def test_frost_and_gt_dsgd_track_in_their_own_way() -> None:
    """FROST: Perron-weighted; GT-DSGD: the gradients one round old."""
    problem, network = (
        Quadratic.random(5, 2, seed=4, noise=0.5),
        Network.draw(graphs.ErdosRenyi(5, 0.5), seed=2),
    )
    left = np.linalg.matrix_power(network.A, 200)[0]
    state = final(make_run(method("frost"), problem, network), 200)
    assert_close(torch.from_numpy(left) @ state.z, (state.g * 1.0).sum(0), rtol=0, atol=1e-9)
    state = final(make_run(method("gt-dsgd"), problem, ring_of(5)), 20)
    assert_close(state.y.sum(0), state.old.sum(0), rtol=0, atol=1e-12)


# --- batches -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_runs_is_its_runs(name: str) -> None:
    """Seeds, networks, problems, participation, step sizes and K all differ between the runs."""
    fields = [{"step_size": 0.05 * (seed + 1)} for seed in range(3)]
    if traits_of(name).local_steps:
        fields = [f | {"local_steps": 2 + seed} for seed, f in enumerate(fields)]
    runs = [
        make_run(
            build(name, **fields[seed]),
            Quadratic.random(5, 2, seed=seed, noise=0.1),
            world_of(name, seed),
            hardest(name),
            seed=seed,
        )
        for seed in range(3)
    ]
    together = final(runs, 15)
    for part in range(3):
        alone = final(runs[part], 15)
        for batch, single in zip(together, alone, strict=True):
            assert_close(batch[5 * part : 5 * part + 5], single, rtol=1e-12, atol=1e-12)


# --- availabilities that methods make ----------------------------------------------------------------
def test_a_pair_has_one_draw_and_one_probability() -> None:
    network = Network.random_geometric(6, 0.6, seed=1)
    base = Bernoulli(0.5, np.linspace(0.1, 0.9, network.links)).draw(network, 3)
    assert network.reverse is not None
    pairs = symmetric_links(base, network)
    pull, push = pairs.links(range(200))
    assert push is None
    assert np.array_equal(pull, pull[:, network.reverse])
    assert np.array_equal(pairs.p_hat, pairs.p_hat[network.reverse])
    lower = np.arange(network.links) < network.reverse
    assert np.array_equal(pull[:, lower], base.links(range(200))[0][:, lower])
    assert np.array_equal(pairs.computes(range(20)), base.computes(range(20)))


@pytest.mark.parametrize("pairs", [False, True])
def test_one_client_wakes_and_all_get_their_turn(pairs: bool) -> None:
    network = ring_of(5) if pairs else Network.draw(graphs.ErdosRenyi(5, 0.5), seed=2)
    base = Bernoulli(0.3, 0.3).draw(network, 1)
    woken = RandomActivation(base, network, pairs)
    rounds = range(1, 4001)
    links, computes = woken.links(rounds), woken.computes(rounds)
    pull, push = links.pull, links.pushing
    assert (pull.sum(1) == (2 if pairs else 1)).all()
    assert (push.sum(1) == (2 if pairs else 1)).all()
    ends = np.zeros_like(computes)
    for active in (pull, push):
        k, link = np.nonzero(active)
        ends[k, network.receivers[link]] = ends[k, network.senders[link]] = True
    assert np.array_equal(ends, computes)  # those involved, and nobody else
    assert woken.computes(range(1)).all()
    wakes = (
        network.senders[np.nonzero(push)[1]] if not pairs else network.senders[np.nonzero(pull)[1]]
    )
    assert np.bincount(wakes, minlength=5).min() > 0.1 * len(wakes)
    assert woken.p is base.p
    assert woken.p_hat is base.p_hat
    assert np.array_equal(woken.computes(range(7, 9)), woken.computes(range(9))[7:])


def test_what_methods_make_of_an_availability() -> None:
    """Who waits is charged for everybody; the ceilings use no link."""
    network, participation = Network.random_geometric(5, 0.7, seed=1), Bernoulli(0.3, 0.4)
    base = participation.draw(network, 0)
    for name in NAMES:
        traits = traits_of(name)
        used = build(name, **fields_of(name)).fit(base).adapt_availability(base, network)
        rounds = range(1, 61)
        if traits.activation == "all" and traits.mixing not in ("none", "server"):
            assert used.computes(rounds).all() == (traits.sporadic_clients == "waits"), name
            links = used.links(rounds)[0]
            busy = links[2::3].all() if traits.local_steps else links.all()
            assert busy == (traits.sporadic_links == "waits"), name
        if traits.mixing in ("none", "server"):
            assert not used.links(rounds)[0].any()
        assert used.seed == base.seed
    assert (method("sgd").adapt_availability(base, network).p == 1).all()
    assert isinstance(
        method("k-gt").fit(base).adapt_availability(base, network), AvailabilityOverride
    )
