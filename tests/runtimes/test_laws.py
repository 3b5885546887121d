"""Laws that hold for every digraph, weights and participation; then agreement with slow, literal code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import spodgt
from spodgt.algorithms import ALGORITHMS, method
from spodgt.kernels import links as mixing
from spodgt.kernels.links import BatchLinks
from spodgt.problems import Quadratic, classification
from spodgt.problems.data import IID, Dirichlet, LabelsPerClient, Partition
from spodgt.problems.data.samples import Samples
from spodgt.runtimes.simulator import Simulation
from spodgt.types import Minibatches
from tests.strategies import METHODS, SEEDS, as_run, networks, participations, worlds


def close(ours: Any, theirs: Any, tolerance: float = 1e-12) -> None:
    ours, theirs = np.asarray(ours, float), np.asarray(theirs, float)
    scale = max(1.0, float(np.abs(theirs).max(initial=0)))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * scale)


def train(world: Any, name: str = "spod-gt", rounds: int = 12, **options: Any) -> Any:
    problem, network, participation, seed = world
    chosen = method(name, step_size=0.05)
    settings: dict[str, Any] = {
        "seeds": [seed],
        "dtype": torch.float64,
        "keep_states": True,
        "every": 1,
    } | options
    return spodgt.train(chosen, problem, network, participation, rounds=rounds, **settings)


# --- mixing ----------------------------------------------------------------------------------------
def test_a_client_that_never_comes_breaks_nothing() -> None:
    """Its p is as small as numbers go: K of k-gt and the clock must bear it, also in float32."""
    computes = np.ones((9, 4))
    computes[:, 2] = 0
    tiny_p = np.where(computes.any(0), 1.0, np.finfo(float).tiny)
    trace = spodgt.Trace(computes, np.ones((8, 4, 4)), p=tiny_p)
    network, problem = spodgt.Network.draw(spodgt.graphs.Complete(4)), Quadratic.random(4, 2)
    result = spodgt.compare(METHODS, problem, network, trace, rounds=8, dtype=torch.float32)
    assert not result.diverged
    assert np.isfinite(result.frame[["delay", "loss"]]).all(axis=None)
    tiny = spodgt.compare(
        METHODS, problem, network, spodgt.Beta(0.001, 0.001), rounds=8, seeds=range(4)
    )
    assert not tiny.diverged
    assert np.isfinite(tiny.frame[["delay", "loss"]]).all(axis=None)


@given(worlds(), st.integers(1, 12))
def test_mixing_matrices_are_stochastic_and_use_only_working_links(world: Any, k: int) -> None:
    """Â and B̂, by mixing the identity through a real round, against the definition link by link."""
    _, network, participation, seed = world
    m = network.clients
    problem = Quadratic.random(m, m, seed=seed)
    simulation = Simulation([as_run(network, participation, problem, seed)], dtype=torch.float64)
    round, identity = simulation.rounds.start(k), torch.eye(m, dtype=torch.float64)
    A, B = round.pull(identity).numpy(), round.push(identity).numpy()
    close(A.sum(1), np.ones(m), 1e-14)
    close(B.sum(0), np.ones(m), 1e-14)
    assert A.min() >= -1e-15
    assert B.min() >= -1e-15
    up = np.zeros((m, m), bool)
    up[network.receivers, network.senders] = simulation.batch.live[0].availability.links(
        range(k, k + 1)
    )[0][0]
    for matrix, full in ((A, network.A), (B, network.B)):
        expected = np.where(up, full, 0)
        diagonal = 1 - expected.sum(1 if matrix is A else 0)
        close(matrix, expected + np.diag(diagonal))


@given(networks(least=2), SEEDS)
def test_gossip_is_doubly_stochastic(network: Any, seed: int) -> None:
    both = spodgt.Network.from_adjacency(network.adjacency | network.adjacency.T)
    m, up = both.clients, spodgt.Bernoulli(1.0, 0.5)
    links = up.draw(both, seed).links(range(1, 13))[0]
    assert both.reverse is not None
    pairs = links & links[:, both.reverse]  # a symmetric exchange needs both directions
    trace = spodgt.Trace(np.ones((13, m)), pairs, p_hat=0.5)
    problem = Quadratic.random(m, m)
    W = (
        Simulation([as_run(both, trace, problem)], dtype=torch.float64)
        .rounds.start(3)
        .gossip(torch.eye(m).double())
    )
    close(W.sum(0), np.ones(m), 1e-14)
    close(W.sum(1), np.ones(m), 1e-14)
    close(W, W.T)


@given(st.integers(2, 9), st.integers(1, 3), SEEDS)
def test_dense_sparse_and_compiled_mixing_agree(clients: int, runs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    network = spodgt.Network.draw(spodgt.graphs.ErdosRenyi(clients, 0.6), seed=seed)
    offsets = np.repeat(np.arange(runs) * clients, network.links)
    receivers = np.tile(network.receivers, runs) + offsets
    senders = np.tile(network.senders, runs) + offsets
    links = BatchLinks(runs, runs * clients, receivers, senders)
    x = torch.from_numpy(rng.standard_normal((runs * clients, 3)))
    active, weights = rng.random(len(receivers)) < 0.6, np.tile(network.b, runs)
    operator = mixing.MixingOperator(links, weights, senders, x.dtype)
    compiled = operator(x, active)
    with pytest.MonkeyPatch.context() as patch:
        for limit, dense in ((mixing._MAX_DENSE_CLIENTS, True), (0, False)):
            patch.setattr(mixing, "_MAX_DENSE_CLIENTS", limit)
            assert links.dense == dense
            close(
                mixing.MixingOperator(links, weights, senders, x.dtype, compiled=False)(x, active),
                compiled,
            )


# --- tracking --------------------------------------------------------------------------------------
@given(worlds(), st.sampled_from([name for name in METHODS if name != "k-gt"]))
def test_trackers_sum_to_the_gradients_in_every_round(world: Any, name: str) -> None:
    result = train(world, name)
    state = result.states[world[3]]
    close(state.y.sum(1), state.g.sum(1), 1e-11)
    assert result.frame["tracking"].max() < 1e-10


@given(worlds())
def test_corrections_of_k_gt_sum_to_zero(world: Any) -> None:
    state = train(world, "k-gt", rounds=10).states[world[3]]
    close(state.c.sum(1), torch.zeros_like(state.c.sum(1)), 1e-11)


# --- the paper, literally --------------------------------------------------------------------------
def literally(
    problem: Any, network: Any, availability: Any, rounds: int, name: str
) -> tuple[Any, Any]:
    """The one consistent reading of Algorithm 1 (PAPER-NOTES 0), with loops over clients and links."""
    H, c, A, B = problem.H.numpy(), problem.c.numpy(), network.A, network.B
    m, n, eta = network.clients, problem.parameters, 0.05
    v = availability.computes(range(rounds + 1))
    up = availability.links(range(rounds + 1))[0]
    link = {
        (i, j): number
        for number, (i, j) in enumerate(zip(network.receivers, network.senders, strict=True))
    }

    def gradient(i: int, x: Any, old: Any, k: int) -> Any:
        if not v[k, i]:
            return old if name == "spod-gt-memory" else np.zeros(n)
        weight = 1 / availability.p[i] if name == "spod-gt-importance" else 1.0
        return weight * (H[i] @ (x - c[i]))

    x = [np.zeros(n) for _ in range(m)]
    g = [gradient(i, x[i], np.zeros(n), 0) for i in range(m)]
    y = list(g)
    xs, ys = [np.array(x)], [np.array(y)]
    for k in range(1, rounds + 1):
        half, new = [], []
        for i in range(m):
            own, pulled, pushed = 1.0, np.zeros(n), np.zeros(n)
            kept = 1.0
            for j in range(m):
                if (i, j) in link and up[k, link[i, j]]:  # j → i works
                    pulled += A[i, j] * x[j]
                    pushed += B[i, j] * y[j]
                    own -= A[i, j]
                if (j, i) in link and up[k, link[j, i]]:  # i → j works
                    kept -= B[j, i]
            half.append(kept * y[i] + pushed)
            new.append(own * x[i] + pulled - eta * half[i])
        after = [gradient(i, new[i], g[i], k) for i in range(m)]
        y = [half[i] + after[i] - g[i] for i in range(m)]
        x, g = new, after
        xs.append(np.array(x))
        ys.append(np.array(y))
    return np.array(xs), np.array(ys)


@given(worlds(), st.sampled_from(["spod-gt", "spod-gt-memory", "spod-gt-importance"]))
def test_the_paper_word_for_word(world: Any, name: str) -> None:
    problem, network, participation, seed = world
    state = train(world, name).states[seed]
    x, y = literally(problem, network, participation.draw(network, seed), 12, name)
    close(state.x, x)
    close(state.y, y)


@settings(max_examples=10)
@given(worlds())
def test_baselines_are_the_same_step_under_another_participation(world: Any) -> None:
    """`ab-push-pull` and its like differ from `spod-gt` in who takes part, and in nothing else."""
    problem, network, participation, seed = world
    drawn = participation.draw(network, seed)
    computes, links = drawn.computes(range(13)), drawn.links(range(1, 13))[0]
    all_clients, all_links = np.ones_like(computes), np.ones_like(links)
    for name, v, up in (
        ("ab-push-pull", all_clients, all_links),
        ("g-push-pull", all_clients, links),
        ("sporadic-k-gt", computes, all_links),
    ):
        other = spodgt.Trace(v, up, p=drawn.p, p_hat=drawn.p_hat)
        ours, theirs = train(world, name), train((problem, network, other, seed), "spod-gt")
        close(ours.states[seed].x, theirs.states[seed].x)
        close(ours.frame["delay"], theirs.frame["delay"])


# --- the clock -------------------------------------------------------------------------------------
@given(worlds(), st.sampled_from(["spod-gt", "ab-push-pull", "k-gt"]))
def test_delay_is_the_papers_sum(world: Any, name: str) -> None:
    """x[k] is available at Σ_{r<k} τ(r), every term of τ by hand."""
    problem, network, participation, seed = world
    run = as_run(network, participation, problem, seed, name)
    used, m = run.availability, network.clients
    v, links = used.computes(range(13)), used.links(range(14))[0]
    delay, expected = 0.0, [0.0]
    for r in range(12):
        up, chance = np.zeros((m, m)), np.ones((m, m))
        up[network.receivers, network.senders] = links[r + 1]  # v̂^(r): what mixes x[r] into x[r+1]
        chance[network.receivers, network.senders] = used.p_hat
        for i in range(m):
            tau = v[r, i] / used.p[i]
            into, out = (
                np.flatnonzero(network.adjacency[i]),
                np.flatnonzero(network.adjacency[:, i]),
            )
            tau += sum(up[i, j] / chance[i, j] for j in into) / max(1, len(into))
            tau += sum(up[j, i] / chance[j, i] for j in out) / max(1, len(out))
            delay += tau / m
        expected.append(delay)
    result = train(world, name)
    np.testing.assert_allclose(result.frame["delay"], expected, rtol=1e-12)


@settings(max_examples=12)
@given(worlds(least=2), st.floats(1, 60))
def test_a_run_ends_before_its_delay_and_no_earlier(world: Any, delay: float) -> None:
    problem, network, participation, seed = world
    result = spodgt.train(
        "spod-gt", problem, network, participation, delay=delay, rounds=12, every=1, seeds=[seed]
    )
    assert result.frame["delay"].max() <= delay
    last = int(result.frame["round"].max())
    if last < 12:  # one round more would have been too late
        longer = spodgt.train(
            "spod-gt", problem, network, participation, rounds=last + 1, every=1, seeds=[seed]
        )
        assert longer.frame["delay"].max() > delay


# --- batches ---------------------------------------------------------------------------------------
@settings(max_examples=8)
@given(st.sampled_from(METHODS), SEEDS, st.booleans())
def test_a_batch_is_its_runs_one_by_one(name: str, seed: int, by_delay: bool) -> None:
    """Other graphs, chances and (for k-gt) K in every seed; by delay they end in different rounds."""
    recipe = spodgt.graphs.DirectedGeometric(5, 0.4, 0.9)
    participation = spodgt.Beta(0.7, 0.7, floor=0.05)
    problem = Quadratic.random(5, 3, seed=seed, noise=0.1)
    seeds = [seed % 1000, seed % 1000 + 1, seed % 1000 + 7]
    until: dict[str, Any] = {"delay": 90.0} if by_delay else {"rounds": 15}
    options = until | {"dtype": torch.float64, "keep_states": True, "every": 1, "x0": torch.ones(3)}
    chosen = method(name, step_size=0.05)
    batch = spodgt.train(chosen, problem, recipe, participation, seeds=seeds, **options)
    lengths = set()
    for one in seeds:
        alone = spodgt.train(chosen, problem, recipe, participation, seeds=[one], **options)
        rows = batch.frame[batch.frame["seed"] == one].reset_index(drop=True)
        lengths.add(len(rows))
        for column in rows.columns.drop("method"):
            np.testing.assert_allclose(
                rows[column], alone.frame[column], rtol=1e-12, atol=1e-11, err_msg=column
            )
        for ours, theirs in zip(batch.states[one], alone.states[one], strict=True):
            close(ours, theirs)
        mine = batch.participation[batch.participation["seed"] == one].reset_index(drop=True)
        assert mine.equals(alone.participation)
    if by_delay and name == "spod-gt":
        assert len(lengths) > 1, "choose a delay at which runs end in different rounds"


def test_a_batch_of_learning_runs_is_its_runs_one_by_one() -> None:
    problem = classification(clients=4, partition=LabelsPerClient(2), batch_size=8)
    recipe, participation = spodgt.graphs.RandomGeometric(4, 0.7), spodgt.Beta(0.7, 0.7, floor=0.1)
    options: dict[str, Any] = {"delay": 30.0, "dtype": torch.float64, "evaluations": 2}
    batch = spodgt.train(
        "spod-gt-memory", problem, recipe, participation, seeds=[3, 1, 8], **options
    )
    for seed in (3, 1, 8):
        alone = spodgt.train(
            "spod-gt-memory", problem, recipe, participation, seeds=[seed], **options
        ).frame
        rows = batch.frame[batch.frame["seed"] == seed].reset_index(drop=True)
        np.testing.assert_allclose(
            rows.drop(columns="method").to_numpy(float),
            alone.drop(columns="method").to_numpy(float),
            rtol=1e-9,
            atol=1e-11,
        )


@given(worlds(least=2), st.sampled_from([name for name in METHODS if name != "k-gt"]))
def test_compiled_and_plain_steps_agree(world: Any, name: str) -> None:
    """A user's own subclass, which has no compiled step, does what the method does."""
    problem, network, participation, seed = world
    mine: Any = dataclass(frozen=True)(type("Mine", (ALGORITHMS[name],), {}))
    options: dict[str, Any] = {
        "rounds": 12,
        "seeds": [seed],
        "dtype": torch.float64,
        "keep_states": True,
    }
    plain = spodgt.train(mine(step_size=0.05), problem, network, participation, **options)
    for a, b in zip(train(world, name).states[seed], plain.states[seed], strict=True):
        close(a, b)


# --- who is asked ----------------------------------------------------------------------------------
class Watched(Quadratic):
    """A quadratic that writes down who is asked for a gradient, and in which round."""

    asked: list[tuple[int, tuple[int, ...]]] = []  # noqa: RUF012

    def grad(self, x: Tensor, batches: Minibatches) -> Tensor:
        Watched.asked.append((batches.k, tuple(map(int, batches.rows))))
        assert len(x) == len(batches.rows)
        return super().grad(x, batches)


@given(worlds(), st.sampled_from(METHODS))
def test_idle_clients_are_never_asked(world: Any, name: str) -> None:
    problem, network, participation, seed = world
    Watched.asked = []
    train((Watched(problem.H, problem.c), network, participation, seed), name, gradient_norm=False)
    used = as_run(network, participation, problem, seed, name).availability
    active = used.computes(range(13))
    expected = [
        (k, tuple(map(int, np.flatnonzero(active[k])))) for k in range(13) if active[k].any()
    ]
    assert Watched.asked == expected


@pytest.mark.parametrize("model", ["svm", "mlp"])
def test_data_of_idle_clients_are_never_touched(model: str) -> None:
    """Poison in the data of a client that never computes must not spread."""
    problem = classification(model=model, clients=4, partition=IID(), batch_size=8)
    computes = np.ones((13, 4))
    computes[:, 2] = 0
    trace = spodgt.Trace(computes, np.ones((12, 4, 4)), p=0.5)
    for seed in (0, 1):
        drawn = problem.draw(seed)
        poisoned = drawn.samples.inputs.double() / 255
        poisoned[drawn.client_indices[2]] = torch.nan
        seen = Samples(poisoned, drawn.samples.targets)
        sick = drawn._with(replace(drawn.data, samples=seen, partition=None))
        result = spodgt.train(
            "spod-gt",
            sick,
            spodgt.Network.draw(spodgt.graphs.Complete(4)),
            trace,
            rounds=12,
            seeds=[seed],
            dtype=torch.float64,
            gradient_norm=False,
            evaluations=1,
        )
        assert not result.diverged
        assert np.isfinite(result.frame["loss"]).all()


@settings(max_examples=15)
@given(
    st.integers(1, 12),
    st.integers(0, 1000),
    st.sampled_from([IID(), LabelsPerClient(2), Dirichlet(0.5)]),
)
def test_every_sample_goes_to_at_most_one_client(
    clients: int, seed: int, partition: Partition
) -> None:
    drawn = classification(clients=clients, partition=partition).draw(seed)
    assert len(drawn.client_indices) == clients
    assert drawn.client_indices.sizes.min() >= 1
    assert len(np.unique(drawn.client_indices.indices)) == len(drawn.client_indices.indices)


# --- limits ----------------------------------------------------------------------------------------
def test_memory_reaches_the_true_optimum_under_beta() -> None:
    result = spodgt.train(
        spodgt.method("spod-gt-memory", step_size=0.1),
        Quadratic.random(6, 3, seed=1, condition=3, spread=3),
        spodgt.graphs.DirectedGeometric(6, 0.4, 0.9),
        spodgt.Beta(0.5, 0.5, floor=0.2),
        rounds=2500,
        seeds=range(3),
        dtype=torch.float64,
        evaluations=1,
    )
    assert result.final()["distance"].max() < 1e-8
    assert result.final()["gradient_norm"].max() < 1e-8


def test_spod_gt_settles_at_the_weighted_optimum_in_the_mean() -> None:
    """Around argmin Σ p_i F_i, not argmin Σ F_i: the bias that the memory variant removes."""
    problem = Quadratic.random(5, 2, seed=4, condition=3, spread=2)
    network = spodgt.Network.directed_geometric(5, 0.5, 0.9, seed=1)
    p = np.array([0.9, 0.3, 0.6, 0.2, 1.0])
    result = spodgt.train(
        spodgt.method("spod-gt", step_size=0.01),
        problem,
        network,
        spodgt.Bernoulli(p, 0.7),
        rounds=2000,
        seeds=range(6),
        dtype=torch.float64,
        keep_states=True,
        evaluations=1,
    )
    mean = torch.stack([state.x[600:].mean((0, 1)) for state in result.states.values()]).mean(0)
    true, weighted = problem.optimum(), problem.optimum(p)
    bias = float((true - weighted).norm())
    assert bias > 0.1
    assert float((mean - weighted).norm()) < 0.1 * bias
    assert float((mean - true).norm()) > 0.9 * bias


@pytest.mark.parametrize("name", METHODS)
def test_one_client_is_plain_gradient_descent(name: str) -> None:
    problem = Quadratic.random(1, 3, seed=2)
    chosen = (
        method(name, step_size=0.1)
        if name != "k-gt"
        else method(name, step_size=0.1, local_steps=1)
    )
    options: dict[str, Any] = {
        "rounds": 20,
        "dtype": torch.float64,
        "keep_states": True,
        "x0": torch.ones(3),
    }
    x = spodgt.train(chosen, problem, spodgt.Network.ring(1), **options).states[0].x
    expected = torch.ones(3, dtype=torch.float64)
    for k in range(21):
        close(x[k, 0], expected)
        expected = expected - 0.1 * problem.H[0] @ (expected - problem.c[0])


@given(worlds())
def test_sampled_chances_are_what_the_clock_charges(world: Any) -> None:
    """p and p̂ of every availability are probabilities, and its tables have the promised shapes."""
    _, network, participation, seed = world
    drawn = participation.draw(network, seed)
    assert drawn.p.shape == (network.clients,)
    assert drawn.p_hat.shape == (network.links,)
    for chances in (drawn.p, drawn.p_hat):
        assert ((chances > 0) & (chances <= 1)).all()
    assert drawn.computes(range(3, 9)).shape == (6, network.clients)
    assert drawn.links(range(3, 9))[0].shape == (6, network.links)
    np.testing.assert_array_equal(drawn.computes(range(3, 9))[2], drawn.computes(range(5, 6))[0])
    np.testing.assert_array_equal(drawn.links(range(3, 9))[0][2], drawn.links(range(5, 6))[0][0])


@given(networks(least=2), SEEDS, st.data())
def test_frequencies_match_the_chances(network: Any, seed: int, data: Any) -> None:
    participation = data.draw(participations(network))
    assume(not isinstance(participation, spodgt.Trace | spodgt.EveryK))
    drawn = participation.draw(network, seed)
    rounds = 3000
    seen = drawn.computes(range(1, rounds + 1)).mean(0)
    used = drawn.links(range(1, rounds + 1))[0].mean(0)
    for observed, chance in ((seen, drawn.p), (used, drawn.p_hat)):
        sigma = np.sqrt(chance * (1 - chance) / rounds)
        assert (np.abs(observed - chance) <= 5.5 * sigma + 1e-12).all()
