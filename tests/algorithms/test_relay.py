"""Relay: its trees are flooded, nothing is lost on the way, and a root that leaves is replaced."""

from __future__ import annotations

import heapq
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import spodgt
from spodgt.algorithms import method
from spodgt.errors import InvalidInput
from spodgt.network import Network, graphs
from spodgt.participation import Bernoulli, Trace
from spodgt.participation.availability import WaitForClients
from spodgt.participation.tree_routing import TreeRouting
from spodgt.problems import Quadratic
from spodgt.record.record import Record
from spodgt.report.tables import final_table
from spodgt.types import Floats
from tests.helpers import final, make_run, ring_of, states
from tests.strategies import SEEDS, worlds

ROUNDS, STEP, RHO = 40, 0.1, 3.0
NETWORKS = [Network.draw(graphs.ErdosRenyi(6, 0.35), seed=1), ring_of(6)]


def routing(run: Any) -> TreeRouting:
    assert isinstance(run.availability, TreeRouting)
    return run.availability


# --- numbers: the recursion once more, client by client ---------------------------------------------------
def distances(m: int, price: dict[tuple[int, int], float], start: int, back: bool) -> list[float]:
    """Dijkstra by the book; `back` follows links against their direction. Links are (sender, receiver)."""
    far = [np.inf] * m
    far[start], queue = 0.0, [(0.0, start)]
    while queue:
        d, here = heapq.heappop(queue)
        for (j, i), cost in price.items():
            tail, head = (i, j) if back else (j, i)
            if tail == here and d + cost < far[head]:
                far[head] = d + cost
                heapq.heappush(queue, (far[head], head))
    return far


def literally(run: Any, problem: Any, x0: Floats, rho: float) -> tuple[Any, Any, list[int]]:
    """Relay over the links that work, with trees, flood and memory of every client apart."""
    network, base = run.network, run.availability.base
    m, n = x0.shape
    ends = list(zip(network.senders.tolist(), network.receivers.tolist(), strict=True))
    price = {end: 1 / p for end, p in zip(ends, base.p_hat.tolist(), strict=True)}
    sums = [
        sum(distances(m, price, i, False)) + sum(distances(m, price, i, True)) for i in range(m)
    ]
    root = int(np.argmin(sums))
    away, to = distances(m, price, root, False), distances(m, price, root, True)
    down = {
        i: min((away[s] + p, s) for (s, r), p in price.items() if r == i)[1]
        for i in range(m)
        if i != root
    }
    up = {
        j: min((to[r] + p, r) for (s, r), p in price.items() if s == j)[1]
        for j in range(m)
        if j != root
    }

    def grad(i: int, x: Floats) -> Floats:
        return np.asarray(problem.H[i].numpy() @ (x - problem.c[i].numpy()))

    x, y, H = [x0[i].copy() for i in range(m)], [], []
    memory: list[Any] = [None] * m  # (gradient, where it was taken)
    knows = [{i} for i in range(m)]
    began = [-1] * m

    def renewed(k: int) -> list[Floats]:
        for i in np.flatnonzero(base.computes(range(k, k + 1))[0]).tolist():
            memory[i] = grad(i, x[i]), x[i]
        return [
            np.zeros(n) if kept is None else kept[0] + rho * (x[i] - kept[1])
            for i, kept in enumerate(memory)
        ]

    H = renewed(0)
    y = [each.copy() for each in H]
    xs, ys = [np.array(x)], [np.array(y)]
    for k in range(1, ROUNDS + 1):
        working = {
            end for end, on in zip(ends, base.links(range(k, k + 1)).pull[0], strict=True) if on
        }
        on = [len(each) == m for each in knows]
        began = [k if on[i] and began[i] < 0 else began[i] for i in range(m)]
        news = [set(each) for each in knows]
        half, models = [each.copy() for each in y], [each.copy() for each in x]
        for j, i in working:
            pulls, pushes = not on[i] or down.get(i) == j, not on[j] or up.get(j) == i
            if pulls or pushes:
                news[i] |= knows[j]
            if pulls:
                models[i] += (1.0 if on[i] else network.A[i, j]) * (x[j] - x[i])
            if pushes:
                moved = (1.0 if on[j] else network.B[i, j]) * y[j]
                half[i], half[j] = half[i] + moved, half[j] - moved
        for i in range(m):
            models[i] -= STEP * ((1 / m if i == root else 0.0) if on[i] else 1.0) * half[i]
        x, knows, old = models, news, H
        H = renewed(k)
        y = [half[i] + H[i] - old[i] for i in range(m)]
        xs.append(np.array(x))
        ys.append(np.array(y))
    return np.array(xs), np.array(ys), began


@pytest.mark.parametrize("rho", [0.0, RHO])
@pytest.mark.parametrize("patience", [0.0, 0.5])
@pytest.mark.parametrize(
    "network",
    [Network.draw(graphs.ErdosRenyi(5, 0.4), seed=2), ring_of(6)],
    ids=["one-way", "two-way"],
)
def test_relay_client_by_client(network: Network, patience: float, rho: float) -> None:
    m, rng = network.clients, np.random.default_rng(3)
    problem, x0 = Quadratic.random(m, 2, seed=1), rng.standard_normal((m, 2))
    participation = Bernoulli(rng.uniform(0.2, 0.9, m), rng.uniform(0.2, 0.9, network.links))
    algorithm = method("relay", step_size=STEP, proximal=rho, patience=patience)
    run = make_run(algorithm, problem, network, participation, x0=x0, seed=4)
    x, y, began = literally(run, problem, x0, rho)
    kept = states([run], ROUNDS)
    np.testing.assert_allclose(torch.stack([state.x for state in kept]), x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(torch.stack([state.y for state in kept]), y, rtol=0, atol=1e-12)
    assert 1 < min(began) < max(began) < ROUNDS  # one by one
    assert routing(run).epochs[0].flood.ready.tolist() == began


def relay_sum_literally(run: Any, problem: Any, x0: Floats, beta: float) -> Any:
    """RelaySum with a message for every direction of every edge; only tree and flood are the run's own."""
    network, base, used = run.network, run.availability.base, routing(run)
    m, d = x0.shape
    edges = [(int(i), int(j)) for i, j in zip(network.receivers, network.senders, strict=True)]
    links = [
        edge for edge, on in zip(edges, used.epochs[0].trees.down, strict=True) if on
    ]  # (outer, inner)
    x, h = [x0[i].copy() for i in range(m)], [np.zeros(d) for _ in range(m)]

    def compute(k: int) -> None:
        for i in np.flatnonzero(base.computes(range(k, k + 1))[0]).tolist():
            h[i] = np.asarray(problem.H[i].numpy() @ (x[i] - problem.c[i].numpy()))

    compute(0)
    got: dict[
        tuple[int, int], Any
    ] = {}  # (from, to) → the sums over all behind that edge, and their number
    out, ready = [np.array(x)], used.epochs[0].flood.ready
    for k in range(1, ROUNDS + 1):
        working = {
            edge for edge, on in zip(edges, base.links(range(k, k + 1)).pull[0], strict=True) if on
        }
        sent = {}
        for one, other in links:
            if (one, other) in working and max(ready[one], ready[other]) <= k:
                assert (other, one) in working
                for i, j in (
                    (one, other),
                    (other, one),
                ):  # all that i knows, but not what came from j
                    others = [got[a, b] for a, b in got if b == i and a != j]
                    sent[i, j] = np.concatenate([x[i], h[i], [1]]) + sum(others)
        got |= sent
        for i in np.flatnonzero(ready <= k).tolist():
            total = np.concatenate([x[i], h[i], [1]]) + sum(got[a, b] for a, b in got if b == i)
            X, H, n = total[:d], total[d:-1], total[-1]
            x[i] = x[i] + beta * (X / n - x[i]) - STEP * H / n
        compute(k)
        out.append(np.array(x))
    return np.array(out)


@pytest.mark.parametrize("beta", [1.0, 0.3])
def test_relay_sum_client_by_client(beta: float) -> None:
    network, rng = Network.random_geometric(6, 0.6, seed=3), np.random.default_rng(3)
    problem, x0 = Quadratic.random(6, 2, seed=1), rng.standard_normal((6, 2))
    participation = Bernoulli(rng.uniform(0.2, 0.9, 6), rng.uniform(0.2, 0.9, network.links))
    algorithm = method("relay-sum", step_size=STEP, averaging=beta)
    run = make_run(algorithm, problem, network, participation, x0=x0, seed=4)
    ours = torch.stack([state.x for state in states([run], ROUNDS)])
    np.testing.assert_allclose(
        ours, relay_sum_literally(run, problem, x0, beta), rtol=0, atol=1e-12
    )
    assert routing(run).roots == ()


def test_relay_sum_knows_all_sums_once_nothing_changes() -> None:
    """With a step of next to nothing, every client's totals are those of all, each counted once."""
    network, problem = Network.random_geometric(7, 0.5, seed=1), Quadratic.random(7, 2, seed=1)
    x0 = np.random.default_rng(1).standard_normal((7, 2))
    algorithm = method("relay-sum", step_size=1e-300, averaging=1e-300)
    state = final(make_run(algorithm, problem, network, Bernoulli(1.0, 0.5), x0=x0), 200)
    everything = torch.cat([state.x, state.h, torch.ones(7, 1)], 1).sum(0)
    assert_close(state.total, everything.expand(7, 5), rtol=0, atol=1e-12)


# --- exact --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rho", [0.0, 1.0])
@pytest.mark.parametrize(
    "network",
    [Network.draw(graphs.ErdosRenyi(6, 0.35), seed=1), ring_of(6)],
    ids=["one-way", "two-way"],
)
def test_exact_on_quadratics(network: Network, rho: float) -> None:
    problem = Quadratic.random(6, 3, seed=2, condition=3)
    rng = np.random.default_rng(0)
    participation = Bernoulli(rng.uniform(0.2, 1, 6), rng.uniform(0.2, 1, network.links))
    run = make_run(
        method("relay", step_size=0.1, proximal=rho), problem, network, participation, seed=1
    )
    state = final(run, 1500)
    assert_close(state.x, problem.optimum().expand(6, 3), rtol=0, atol=1e-12)
    assert_close(state.y, torch.zeros(6, 3).double(), rtol=0, atol=1e-12)


def leaving(network: Network, who: int, when: int, rounds: int, seed: int = 0) -> Trace:
    """Everything works half of the time, until one client is gone."""
    rng = np.random.default_rng(seed)
    computes = rng.random((rounds + 1, network.clients)) < 0.6
    links = rng.random((rounds, network.links)) < 0.6
    computes[when:, who] = False
    links[when - 1 :, (network.receivers == who) | (network.senders == who)] = False
    return Trace(computes, links, p=0.6, p_hat=0.6)


@pytest.mark.parametrize("directed", [True, False])
def test_a_root_that_leaves_is_replaced_and_the_others_reach_their_optimum(directed: bool) -> None:
    network = (
        Network.draw(graphs.ErdosRenyi(6, 0.7), seed=3)
        if directed
        else Network.draw(graphs.Complete(6))
    )
    problem = Quadratic.random(6, 2, seed=2, condition=3)
    algorithm = method("relay", step_size=0.1)
    first = (
        routing(make_run(algorithm, problem, network, leaving(network, 0, 2000, 60)))
        .epochs[0]
        .trees.root
    )
    run = make_run(algorithm, problem, network, leaving(network, first, 200, 1600))
    before, after = routing(run).epochs
    assert before.trees.root == first
    assert after.trees.root != first
    assert not after.trees.members[first]
    assert 200 + 10 < after.first < after.restart + 2 < 300  # noticed, then heard by all
    others = torch.from_numpy(after.trees.members)
    kept = states([run], 1600)
    best = problem.optimum(after.trees.members.astype(float)).expand(5, 2)
    assert_close(kept[-1].x[others], best, rtol=0, atol=1e-12)
    assert_close(kept[after.restart].y, kept[after.restart].g, rtol=0, atol=0)
    for state in kept:
        assert_close(state.y.sum(0), state.g.sum(0), rtol=0, atol=1e-11)
    moved = (
        kept[after.first + 5].x - kept[after.first].x
    )  # nobody steps before all have heard, the gone one never
    assert after.restart < after.first + 5 or not moved.any()
    assert_close(kept[-1].x[first], kept[210].x[first], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["relay", "relay-sum"])
def test_a_client_on_the_way_that_leaves_is_left_out(name: str) -> None:
    network = Network.draw(graphs.Complete(5))
    problem = Quadratic.random(5, 2, seed=1, condition=3)
    run = make_run(method(name, step_size=0.1), problem, network, leaving(network, 3, 100, 1500))
    assert routing(run).epochs[-1].trees.members.tolist() == [True, True, True, False, True]
    state = final(run, 1500)
    best = problem.optimum(np.array([1.0, 1, 1, 0, 1]))
    assert_close(state.x[[0, 1, 2, 4]], best.expand(4, 2), rtol=0, atol=1e-12)


# --- laws ---------------------------------------------------------------------------------------------
@given(worlds(rounds=40), st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 2.0]))
@settings(max_examples=40)
def test_trackers_sum_to_the_memory_through_the_switch(
    world: Any, patience: float, rho: float
) -> None:
    problem, network, participation, seed = world
    chosen = method("relay", step_size=0.05, patience=patience, proximal=rho)
    result = spodgt.train(
        chosen,
        problem,
        network,
        participation,
        rounds=40,
        seeds=[seed],
        dtype=torch.float64,
        keep_states=True,
    )
    state = result.states[seed]
    scale = max(1.0, float(state.g.abs().max()))
    assert_close(state.y.sum(1), state.g.sum(1), rtol=0, atol=1e-11 * scale)


@given(worlds(least=2, rounds=40), SEEDS)
@settings(max_examples=30)
def test_links_are_the_trees_only_where_prices_are_known(world: Any, start: int) -> None:
    """Pure in the rounds; what is used works; columns and rows are those of trees once all know."""
    problem, network, participation, seed = world
    run = make_run(method("relay", patience=0.0), problem, network, participation, seed=seed)
    used, first = routing(run), start % 30 + 1
    rounds = range(first, first + 9)
    links, roles = used.links(rounds), used.roles(rounds)
    again = routing(
        make_run(method("relay", patience=0.0), problem, network, participation, seed=seed)
    )
    whole = again.links(range(1, 50))
    assert np.array_equal(whole.pull[first - 1 : first + 8], links.pull)
    assert np.array_equal(whole.pushing[first - 1 : first + 8], links.pushing)
    assert not (links.used & ~used.base.links(rounds).used).any()
    epoch = used.epochs[0]
    if epoch.flood.ready.max() <= first and len(used.epochs) == 1:
        assert not (links.pull & ~epoch.trees.down).any()
        assert not (links.pushing & ~epoch.trees.up).any()
        assert (roles.step_weight.sum(1) == 1 / network.clients).all()
        assert (roles.step_weight[:, epoch.trees.root] > 0).all()
        assert (roles.a == 1).all()
        assert (roles.b == 1).all()


def test_patience_is_a_rate_between_as_available_and_always() -> None:
    network = Network.draw(graphs.Complete(3))
    base = Bernoulli([1.0, 0.25, 0.0004], 0.25).draw(network, 0)
    drawn = WaitForClients(base, 0.5)
    rates = drawn.computes(range(20000)).mean(0)
    np.testing.assert_allclose(
        rates, [1.0, 0.5, 0.004], atol=0.02
    )  # the last ten times as often, no more
    assert 0.002 < rates[2] < 0.006
    np.testing.assert_allclose(drawn.links(range(4000)).pull.mean(0), 0.5, atol=0.04)
    assert drawn.p is base.p  # the clock charges 1/p, waited for or not
    run = make_run(
        method("relay"), Quadratic.random(3, 2), network, Trace(np.ones((9, 3)), np.ones((8, 6)))
    )
    assert not isinstance(routing(run).base, WaitForClients)  # a record is what it is


def test_the_root_is_named_in_the_tables_and_the_report(tmp_path: Path) -> None:
    network, problem, half = (
        Network.draw(graphs.ErdosRenyi(5, 0.5), seed=2),
        Quadratic.random(5, 2),
        Bernoulli(0.5, 0.5),
    )
    result = spodgt.compare(
        ["spod-gt", "relay"], problem, network, half, rounds=20, seeds=[2], out=tmp_path
    )
    roots = result.participation[result.participation["root"]]
    root = routing(make_run(method("relay"), problem, network, half, seed=2)).roots[0]
    assert roots[["method", "seed", "kind", "receiver"]].values.tolist() == [
        ["relay", 2, "client", root]
    ]
    named = f"relay has a root, through which everything passes: client {root} (seed 2)."
    assert named in final_table(Record.read(tmp_path)).note


def test_patience_is_a_fraction() -> None:
    message = r"^patience of relay must be a number above 0 and at most 1, got 2"
    with pytest.raises(InvalidInput, match=message):
        method("relay", patience=2.0)


def test_a_step_of_zero_at_the_end_of_a_schedule_breaks_nothing() -> None:
    cosine = {"schedule": "cosine", "start": 0.1, "rounds": 10}
    run = make_run(
        method("relay", step_size=cosine, proximal=1.0), Quadratic.random(4, 2), ring_of(4)
    )
    assert torch.isfinite(torch.cat(list(final(run, 30)), 1)).all()
