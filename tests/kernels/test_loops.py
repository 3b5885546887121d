"""Compiled loops against their plain counterparts: equal to rounding, whatever the threads and the batch."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import spodgt
from spodgt import engine, rng
from spodgt.algorithms.base import Algorithm, TrackingState
from spodgt.engine import cache_directory, loops_enabled, use_engine
from spodgt.kernels.links import BatchLinks, MixingOperator
from spodgt.problems import Quadratic
from spodgt.problems.gradients.linear import LinearEngine
from spodgt.problems.learning import Learning
from spodgt.problems.losses import Loss, cross_entropy, multi_margin, one_vs_rest
from spodgt.problems.minibatch_gradients import sample_without_replacement
from spodgt.problems.models import linear
from spodgt.runtimes.loop import EvaluationSchedule, Stop, begin, run_rounds
from spodgt.runtimes.simulator import Simulation
from spodgt.runtimes.world import Run, Snapshot, Tally
from spodgt.types import Bools, Floats, Ints, Minibatches, Round

needs_loops = pytest.mark.skipif(not loops_enabled(), reason="compiled loops are switched off")
FAMILY = [
    "spod-gt",
    "spod-gt-memory",
    "spod-gt-importance",
    "ab-push-pull",
    "g-push-pull",
    "sporadic-k-gt",
]
Register = Callable[[type[Algorithm]], type[Algorithm]]


def toy_problem(
    loss: Loss = multi_margin,
    *,
    clients: int = 4,
    batch_size: int | None = 5,
    dtype: torch.dtype = torch.uint8,
    sizes: Sequence[int] | None = None,
    model: torch.nn.Module | None = None,
) -> Learning:
    draws = torch.Generator().manual_seed(1)
    data = []
    for size in sizes or [12] * clients:
        inputs = torch.randint(0, 256, (size, 1, 3, 3), generator=draws, dtype=torch.uint8)
        inputs = inputs if dtype == torch.uint8 else inputs.to(dtype) / 255
        data.append((inputs, torch.randint(0, 3, (size,), generator=draws)))
    return Learning(model or linear((1, 3, 3), 3), loss, data, batch_size=batch_size)


def runs_of(
    problem: Learning | Quadratic,
    name: str,
    count: int = 2,
    *,
    chance: float = 0.6,
    step_size: float = 0.3,
) -> list[Run]:
    runs = []
    for seed in range(count):
        network = spodgt.Network.draw(
            spodgt.graphs.ErdosRenyi(problem.clients, 0.6), seed=seed, weights="random"
        )
        available = spodgt.Bernoulli(chance, chance).draw(network, seed)
        method = spodgt.method(name, step_size=step_size * (seed + 1)).fit(available)
        draws = torch.Generator().manual_seed(seed)
        start = torch.randn(problem.clients, problem.parameters, generator=draws)
        runs.append(
            Run(
                seed, method, network, method.adapt_availability(available, network), problem, start
            )
        )
    return runs


def after(
    runs: Sequence[Run], rounds: int, *, compiled: bool, dtype: torch.dtype = torch.float64
) -> tuple[Any, Tally]:
    world = Simulation(runs, dtype=dtype, compiled=compiled)
    assert (world.rounds.compiled_rounds is not None) == compiled
    state = begin(world).state
    for k in range(1, rounds + 1):
        state = world.advance(state, range(k, k + 1))
    return state, world.tally()


@needs_loops
@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("sizes", [None, [3, 12, 7, 5]], ids=["equal", "fewer than a batch"])
def test_a_fused_step_is_the_step_of_the_method(name: str, sizes: list[int] | None) -> None:
    runs = runs_of(toy_problem(sizes=sizes), name)
    (fast, fast_tally), (plain, plain_tally) = (
        after(runs, 25, compiled=True),
        after(runs, 25, compiled=False),
    )
    for ours, theirs in zip(fast, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(fast_tally, plain_tally, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("sizes", [None, [3, 12, 7, 5]], ids=["equal", "fewer than a batch"])
@pytest.mark.parametrize("threads", [1, 2])
def test_rounds_of_a_network_are_the_same_with_compiled_mixing(
    sizes: list[int] | None, threads: int
) -> None:
    layers = torch.nn.Linear(9, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)
    problem = toy_problem(
        cross_entropy, sizes=sizes, model=torch.nn.Sequential(torch.nn.Flatten(), *layers)
    )
    runs = runs_of(problem, "spod-gt")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        world = Simulation(runs, dtype=torch.float64)
        assert world.rounds.compiled_rounds is None  # networks run the method's own step
        state = world.advance(begin(world).state, range(1, 26))
        assert torch.get_num_threads() == threads
        with use_engine("plain"):
            plain = Simulation(runs, dtype=torch.float64)
            expected = plain.advance(begin(plain).state, range(1, 26))
    finally:
        torch.set_num_threads(before)
    for ours, theirs in zip(state, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for counts, expected_counts in zip(world.tally(), plain.tally(), strict=True):
        np.testing.assert_array_equal(counts, expected_counts)


class Doubled(Learning):
    """A problem with gradients of its own."""

    def grad(self, x: torch.Tensor, batches: Minibatches) -> torch.Tensor:
        return 2 * super().grad(x, batches)


def test_gradients_of_a_subclass_are_its_own() -> None:
    data = [(torch.randn(6, 3), torch.arange(6) % 2) for _ in range(4)]
    model = torch.nn.Linear(3, 2)
    problem = Doubled(model, cross_entropy, data, batch_size=2)
    assert problem.linear_data(torch.float32) is None
    assert Simulation(runs_of(problem, "spod-gt")).rounds.compiled_rounds is None
    once = Learning(model, cross_entropy, data, batch_size=2)
    ours, _ = after(runs_of(problem, "sgd", step_size=0.1), 9, compiled=False)
    theirs, _ = after(runs_of(once, "sgd", step_size=0.2), 9, compiled=False)
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-12, atol=1e-12)


@needs_loops
@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("sizes", [None, [3, 12, 7, 5]], ids=["equal", "fewer than a batch"])
def test_many_rounds_in_one_call_are_the_rounds_one_by_one(
    name: str, sizes: list[int] | None
) -> None:
    runs = runs_of(toy_problem(sizes=sizes), name, count=3)
    one_by_one, tally = after(runs, 37, compiled=True)
    world = Simulation(runs, dtype=torch.float64)
    state = world.advance(begin(world).state, range(1, 17))
    state = world.advance(state, range(17, 38))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(state, one_by_one, strict=True))
    for ours, theirs in zip(world.tally(), tally, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@dataclass(frozen=True)
class Outside(spodgt.SpodGT):
    """A method from outside the package, which declares the compiled step as its own."""

    name = "outside"
    traits = replace(spodgt.SpodGT.traits, source="spodgt")


@dataclass(frozen=True)
class Changed(spodgt.SpodGT):
    """It steps twice as far and declares nothing."""

    name = "changed"

    def step(self, state: TrackingState, round: Round) -> TrackingState:
        y = round.push(state.y)
        x = round.pull(state.x) - 2 * (self.step_size * y)
        g = round.grad(x)
        return type(state)(x, y + g - state.g, g)


@pytest.fixture
def registered() -> Iterator[Register]:
    yield spodgt.register
    for name in ("outside", "changed"):
        spodgt.ALGORITHMS.pop(name, None)


@needs_loops
def test_a_method_from_outside_gets_the_compiled_step_by_declaring_it(registered: Register) -> None:
    registered(Outside)
    runs = runs_of(toy_problem(), "outside")
    (fast, fast_tally), (plain, plain_tally) = (
        after(runs, 25, compiled=True),
        after(runs, 25, compiled=False),
    )
    for ours, theirs in zip((*fast, *fast_tally), (*plain, *plain_tally), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_method_with_a_step_of_its_own_is_never_given_another(registered: Register) -> None:
    registered(Changed)
    runs = runs_of(toy_problem(), "changed", step_size=0.1)
    assert Simulation(runs, dtype=torch.float64).rounds.compiled_rounds is None
    twice = runs_of(toy_problem(), "spod-gt", step_size=0.2)
    (ours, _), (theirs, _) = after(runs, 9, compiled=False), after(twice, 9, compiled=False)
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "stop", [Stop(rounds=45), Stop(delay=60.0), Stop(rounds=30, delay=70.0)], ids=str
)
@pytest.mark.parametrize(
    "schedule",
    [EvaluationSchedule(rounds=7), EvaluationSchedule(delay=9.0), EvaluationSchedule()],
    ids=str,
)
def test_a_stride_passes_no_evaluation_and_no_end(stop: Stop, schedule: EvaluationSchedule) -> None:
    """Long strides see the same models at the same moments as single rounds, for runs that end apart."""
    seen: dict[int, list[tuple[Any, ...]]] = {}
    for stride in (1, 16):
        world = Simulation(
            runs_of(toy_problem(), "spod-gt", count=3, chance=0.4), dtype=torch.float64
        )
        seen[stride] = []

        def observe(
            snapshot: Snapshot, due: Bools, last: Bools, looks: list[tuple[Any, ...]] = seen[stride]
        ) -> Bools:
            parts = torch.split(snapshot.state[0], list(snapshot.world.sizes))
            for at in np.flatnonzero(due):
                looks.append(
                    (
                        snapshot.k,
                        int(snapshot.world.runs[at]),
                        snapshot.delay[at],
                        parts[at].clone(),
                    )
                )
            return np.zeros_like(last)

        run_rounds(begin(world), stop, schedule, observe, stride)
    assert [look[:3] for look in seen[1]] == [look[:3] for look in seen[16]]
    assert all(torch.equal(a[3], b[3]) for a, b in zip(seen[1], seen[16], strict=True))
    assert len({look[1] for look in seen[1]}) == 3


def test_strides_grow_where_rounds_are_short_and_never_where_they_are_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Someone who presses Ctrl-C while a large network trains must not wait for many rounds of it."""

    def observed(seconds: float) -> list[int]:
        clock = iter(np.arange(1000) * seconds)
        monkeypatch.setattr("spodgt.runtimes.loop.time.monotonic", lambda: next(clock))
        seen: list[int] = []

        def observe(snapshot: Snapshot, due: Bools, last: Bools) -> Bools:
            seen.append(snapshot.k)
            return np.zeros_like(last)

        world = Simulation(runs_of(toy_problem(), "spod-gt"), dtype=torch.float64)
        run_rounds(begin(world), Stop(rounds=200), EvaluationSchedule(), observe)
        return seen

    assert observed(1e-6) == [0, 1, 3, 7, 15, 31, 63, 64, 128, 192, 200]
    assert observed(5.0) == list(range(201))


@needs_loops
def test_a_run_is_the_same_bit_for_bit_alone_and_in_a_batch() -> None:
    runs = runs_of(toy_problem(), "spod-gt-memory", count=3)
    together, _ = after(runs, 20, compiled=True, dtype=torch.float32)
    for number, run in enumerate(runs):
        alone, _ = after([run], 20, compiled=True, dtype=torch.float32)
        for whole, own in zip(together, alone, strict=True):
            assert torch.equal(whole[4 * number : 4 * number + 4], own)


@needs_loops
def test_the_number_of_threads_changes_nothing() -> None:
    problem = spodgt.problems.fashion_mnist_svm(6, 10)
    runs = runs_of(problem, "spod-gt", count=2, step_size=0.01)
    threads, states = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            states.append(after(runs, 5, compiled=True, dtype=torch.float32)[0])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


def mix(
    links: BatchLinks, x: torch.Tensor, weights: Floats, active: Bools, keepers: Ints
) -> torch.Tensor:
    """The mixing matrix of the active links times x."""
    operator = MixingOperator(links, weights, keepers, x.dtype)
    return operator(x, active)


@pytest.mark.parametrize("width", [5, 8, 57, 130, 961])
def test_rows_of_any_width_and_more_neighbours_than_fit_at_once_are_mixed(width: int) -> None:
    clients, draws = 90, np.random.default_rng(width)
    receivers, senders = np.nonzero(~np.eye(clients, dtype=bool))
    links = BatchLinks(1, clients, receivers, senders)
    weights, active = draws.random(len(senders)) / clients, draws.random(len(senders)) < 0.9
    x = torch.from_numpy(draws.standard_normal((clients, width)))
    theirs = MixingOperator(links, weights, receivers, x.dtype, compiled=False)(x, active)
    for dtype, far in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        ours = mix(links, x.to(dtype), weights, active, receivers)
        torch.testing.assert_close(ours.double(), theirs, rtol=far, atol=far)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 8), st.integers(1, 3), st.integers(0, 2**32 - 1), st.booleans())
def test_compiled_mixing_is_torchs_mixing(clients: int, runs: int, seed: int, many: bool) -> None:
    draws = np.random.default_rng(seed)
    ends = [(i, j) for i in range(clients) for j in range(clients) if i != j]
    pairs = sorted(
        (r * clients + i, r * clients + j)
        for r in range(runs)
        for i, j in ends
        if draws.random() < 0.5
    )
    receivers, senders = (np.array([p[end] for p in pairs], np.int64) for end in (0, 1))
    total = runs * clients
    links = BatchLinks(1 if many else runs, total, receivers, senders)
    weights, active = draws.random(len(pairs)) / clients, draws.random(len(pairs)) < 0.5
    x = torch.from_numpy(draws.standard_normal((total, 3)))
    for keeper in (receivers, senders):
        theirs = MixingOperator(links, weights, keeper, x.dtype, compiled=False)(x, active)
        ours = mix(links, x, weights, active, keeper)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_mixed_differences_are_the_mixed_rows_minus_the_rows() -> None:
    draws = np.random.default_rng(0)
    receivers, senders = np.nonzero(~np.eye(6, dtype=bool))
    links = BatchLinks(1, 6, receivers, senders)
    weights, active = draws.random(30) / 6, draws.random(30) < 0.7
    x = torch.from_numpy(draws.standard_normal((6, 1500)))
    differences = links.mix_differences(x, weights, active)
    mixed = mix(links, x, weights, active, receivers)
    torch.testing.assert_close(differences, mixed - x, rtol=1e-12, atol=1e-12)


def test_mixed_differences_of_equal_rows_are_zero() -> None:
    network = spodgt.Network.random_geometric(6, 0.7, seed=0)
    assert network.w is not None
    links = BatchLinks(1, 6, network.receivers, network.senders)
    x = torch.randn(8).expand(6, 8).contiguous()
    assert not links.mix_differences(x, network.w, np.ones(len(network.w), bool)).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 7, 8, 16, 17, 33, 63, 64, 100, 130])
def test_rows_of_any_length_and_many_links_are_mixed(width: int, dtype: torch.dtype) -> None:
    """Long and short pieces, those that overlap, and more links than a loop takes at once."""
    draws = np.random.default_rng(width)
    on = (
        draws.random((150, 150)) < np.linspace(0, 1, 150)[:, None]
    )  # clients with none to all in-links
    receivers, senders = np.nonzero(on & ~np.eye(150, dtype=bool))
    weights, active = draws.random(len(senders)) / 150, draws.random(len(senders)) < 0.7
    x = torch.from_numpy(draws.standard_normal((150, width))).to(dtype)
    links = BatchLinks(1, 150, receivers, senders)
    mixed = mix(links, x, weights, active, receivers)
    theirs = MixingOperator(links, weights, receivers, dtype, compiled=False)(x, active)
    torch.testing.assert_close(
        mixed, theirs, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-13
    )
    alone = [mix(links, x[:, c : c + 1], weights, active, receivers) for c in range(width)]
    assert torch.equal(mixed, torch.cat(alone, 1))  # a number does not depend on the piece it is in


@needs_loops
@pytest.mark.parametrize(
    ("features", "classes"),
    [
        (1, 3),
        (7, 3),
        (8, 3),
        (15, 3),
        (17, 3),
        (49, 3),
        (56, 3),
        (57, 3),
        (130, 3),
        (128, 5),
        (130, 7),
        (816, 11),
    ],
)
@pytest.mark.parametrize("batch_size", [1, 4, 5, 16, 17])
def test_compiled_gradients_of_any_size_are_those_of_the_engine(
    features: int, classes: int, batch_size: int
) -> None:
    """Of more clients than are drawn at once; several small batches, or a part of one, in a tile."""
    draws, clients = torch.Generator().manual_seed(features), 40
    data = []
    for _ in range(clients):
        inputs = torch.randn(20, features, generator=draws, dtype=torch.float64)
        data.append((inputs, torch.randint(0, classes, (20,), generator=draws)))
    problem = Learning(
        torch.nn.Linear(features, classes), cross_entropy, data, batch_size=batch_size
    )
    rows, keys = np.arange(clients), np.full(clients, rng.key(5, "batch"))
    x = torch.randn(clients, problem.parameters, generator=draws, dtype=torch.float64)
    assert problem.linear_data(torch.float64) is not None
    found = problem.grad(x, Minibatches(rows, keys, rows, 9))
    drawn = sample_without_replacement(keys, rows, 9, np.full(clients, 20), batch_size)
    held = problem.client_indices
    chosen = torch.from_numpy(held.indices[held.offsets[:-1, None] + drawn])
    inputs, targets = problem.samples.take(chosen, torch.float64)
    expected = problem.model.engine.losses_and_gradients(x, inputs, targets, [])[1]
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@needs_loops
@pytest.mark.parametrize("loss", [multi_margin, cross_entropy, one_vs_rest])
@pytest.mark.parametrize("batch_size", [1, 4, 7, None])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64])
def test_compiled_gradients_are_those_of_the_engine(
    loss: Loss, batch_size: int | None, dtype: torch.dtype
) -> None:
    problem = toy_problem(loss, batch_size=batch_size, dtype=dtype)
    x = torch.randn(4, problem.parameters, dtype=torch.float64)
    rows, keys = np.array([0, 2, 3]), np.full(3, rng.key(5, "batch"))
    assert problem.linear_data(torch.float64) is not None
    g = problem.grad(x[rows], Minibatches(rows, keys, rows, 9))
    size = batch_size or 12
    drawn = sample_without_replacement(keys, rows, 9, np.full(3, 12), size)
    held = problem.client_indices
    chosen = torch.from_numpy(held.indices[held.offsets[rows, None] + drawn])
    inputs, targets = problem.samples.take(chosen, torch.float64)
    assert isinstance(problem.model.engine, LinearEngine)
    torch.testing.assert_close(
        g,
        problem.model.engine.losses_and_gradients(x[rows], inputs, targets, [])[1],
        rtol=1e-10,
        atol=1e-12,
    )


@pytest.mark.parametrize("loss", [multi_margin, cross_entropy, one_vs_rest])
@pytest.mark.parametrize("bias", [True, False])
def test_the_plain_engine_evaluates_linear_models_alike(loss: Loss, bias: bool) -> None:
    draws = torch.Generator().manual_seed(2)
    test = torch.rand(50, 1, 3, 3, generator=draws), torch.randint(0, 3, (50,), generator=draws)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(9, 3, bias=bias))
    problem = Learning(module, loss, [test], test=test)
    x = torch.randn(4, problem.parameters, dtype=torch.float64, generator=draws) * 3
    ours = problem.evaluate(x)
    with use_engine("plain"):
        theirs = problem.evaluate(x)
    torch.testing.assert_close(ours.loss, theirs.loss)
    torch.testing.assert_close(ours.metrics["accuracy"], theirs.metrics["accuracy"])


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 20), st.integers(0, 20), st.integers(0, 2**20), st.integers(0, 2**32 - 1))
def test_compiled_draws_are_the_vectorised_draws(count: int, more: int, k: int, seed: int) -> None:
    key, size = rng.key(seed, "batch"), count + more
    asked = np.array([key]), np.array([3]), k, np.array([size]), count
    ours = sample_without_replacement(*asked)[0]
    with use_engine("plain"):
        theirs = sample_without_replacement(*asked)[0]
    assert ours.tolist() == theirs.tolist()
    assert len(set(ours.tolist())) == count
    assert 0 <= ours.min() <= ours.max() < size


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**40), st.integers(0, 30), st.integers(0, 2**32 - 1))
def test_compiled_bernoulli_draws_are_uniform_draws_below_the_chance(
    first: int, count: int, seed: int
) -> None:
    chances, key = np.random.default_rng(seed).random(count), rng.key(seed, "links")
    rounds = range(first, first + 4)
    theirs = rng.uniform(key, np.asarray(rounds)[:, None], np.arange(count)[None]) < chances
    np.testing.assert_array_equal(rng.bernoulli(key, rounds, chances), theirs)
    for chance in (0.0, 5e-324, 0.3, 1.0, *chances[:1]):
        one = np.broadcast_to(np.array([chance]), count)
        theirs = rng.uniform(key, np.asarray(rounds)[:, None], np.arange(count)[None]) < one
        np.testing.assert_array_equal(rng.bernoulli(key, rounds, one), theirs)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 400), st.integers(1, 12), st.integers(0, 2**32 - 1), st.booleans())
def test_compiled_markov_chains_are_those_of_numpy(
    first: int, chains: int, seed: int, known: bool
) -> None:
    draws = np.random.default_rng(seed)
    start, stay, come = draws.random((3, chains))
    before = draws.random(chains) < 0.5 if known and first else None
    asked = rng.key(seed, "links"), range(first, first + 5), start, stay, come, before
    ours = rng.markov(*asked)
    with use_engine("plain"):
        np.testing.assert_array_equal(ours, rng.markov(*asked))


# --- compilation ---------------------------------------------------------------------------------
CALL = """
import sys
from spodgt import engine
from spodgt.random_draws import random_uniform
import numpy as np
said = []
with engine.announce_compilation(lambda: said.append("compiling")):
    random_uniform(np.uint64(1), 2)
    if not random_uniform.stats.cache_hits:
        import time
        time.sleep(0.5)
print(said, dict(random_uniform.stats.cache_hits) != {}, random_uniform.stats.cache_path)
"""


def call_in_a_process(**env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CALL],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_loops
def test_compilation_is_announced_once_and_cached(tmp_path: Path) -> None:
    first = call_in_a_process(NUMBA_CACHE_DIR=str(tmp_path))
    assert first.startswith("['compiling'] False")
    assert str(tmp_path) in first
    assert call_in_a_process(NUMBA_CACHE_DIR=str(tmp_path)).startswith("[] True")


@needs_loops
def test_loops_are_compiled_where_the_cache_folder_cannot_be_written(tmp_path: Path) -> None:
    """The chosen folder is a file; numba then takes another one, or compiles in every process."""
    (tmp_path / "file").write_text("")
    found = call_in_a_process(NUMBA_CACHE_DIR=str(tmp_path / "file"))
    assert str(tmp_path) not in found


def test_the_cache_has_a_folder_for_each_version_of_the_loops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """numba does not see that a loop in another file has changed."""
    before = cache_directory()
    engine._source_digest.cache_clear()
    monkeypatch.setattr(engine, "_LOOP_FILES", engine._LOOP_FILES[:-1])
    assert cache_directory() != before
    engine._source_digest.cache_clear()


def test_all_files_with_loops_are_part_of_the_digest() -> None:
    source = Path(engine.__file__).parent
    decorator = re.compile(r"^@(compiled_loop|compiled_dot_product|inlined_loop)$", re.MULTILINE)
    found = [p for p in source.rglob("*.py") if decorator.search(p.read_text(encoding="utf-8"))]
    assert {str(path.relative_to(source)) for path in found} == {*engine._LOOP_FILES}
