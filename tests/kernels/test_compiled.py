"""Compiled loops against their plain counterparts: equal to rounding, whatever the threads and the batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import spodgt
from spodgt import rng
from spodgt.algorithms.base import Algorithm, TrackingState
from spodgt.compiled import Loop, announced, finite, jit
from spodgt.compiled.instructions import exp
from spodgt.kernels.mixing import Buffers, Links
from spodgt.kernels.sums import spread
from spodgt.participation.delay import Costs
from spodgt.problems import Quadratic
from spodgt.problems.gradients.linear import LinearEngine
from spodgt.problems.learning import Learning
from spodgt.problems.losses import Loss, cross_entropy, multi_margin, one_vs_rest
from spodgt.problems.models import linear
from spodgt.problems.samples import draw_batch, without_replacement
from spodgt.runtimes.loop import EvaluationSchedule, Stop, begin, run_rounds
from spodgt.runtimes.simulator import Simulation, Simulator
from spodgt.runtimes.world import Draw, Run, Saved, Snapshot, Tally
from spodgt.types import Bools, Minibatches, Round

FAMILY = ["spod-gt", "spod-gt-memory", "spod-gt-importance", "ab-push-pull", "g-push-pull", "sporadic-k-gt"]
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
    problem: Learning | Quadratic, name: str, count: int = 2, *, chance: float = 0.6, step_size: float = 0.3
) -> list[Run]:
    runs = []
    for seed in range(count):
        network = spodgt.Network.erdos_renyi(problem.clients, 0.6, seed=seed, weights="random")
        available = spodgt.Bernoulli(chance, chance).draw(network, seed)
        method = spodgt.method(name, step_size=step_size * (seed + 1)).fit(available)
        draws = torch.Generator().manual_seed(seed)
        start = torch.randn(problem.clients, problem.parameters, generator=draws)
        runs.append(Run(seed, method, network, method.uses(available, network), problem, start))
    return runs


def after(
    runs: Sequence[Run], rounds: int, *, compiled: bool, dtype: torch.dtype = torch.float64
) -> tuple[Any, Tally]:
    world = Simulation(runs, dtype=dtype, compiled=compiled)
    assert (world.step is not None) == compiled
    state = begin(world).state
    for k in range(1, rounds + 1):
        state = world.advance(state, range(k, k + 1))
    return state, world.tally()


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("sizes", [None, [3, 12, 7, 5]], ids=["equal", "fewer than a batch"])
def test_a_fused_step_is_the_step_of_the_method(name: str, sizes: list[int] | None) -> None:
    runs = runs_of(toy_problem(sizes=sizes), name)
    (fast, fast_tally), (plain, plain_tally) = after(runs, 25, compiled=True), after(runs, 25, compiled=False)
    for ours, theirs in zip(fast, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(fast_tally, plain_tally, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("sizes", [None, [3, 12, 7, 5]], ids=["equal", "fewer than a batch"])
@pytest.mark.parametrize("threads", [1, 2])
def test_gradients_one_by_one_are_those_of_the_method(
    name: str, sizes: list[int] | None, threads: int
) -> None:
    layers = torch.nn.Linear(9, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)
    problem = toy_problem(cross_entropy, sizes=sizes, model=torch.nn.Sequential(torch.nn.Flatten(), *layers))
    runs = runs_of(problem, name)
    models = torch.zeros(4, problem.parameters)
    assert problem.singly(models, models.clone(), models.clone(), np.ones(4)) is not None
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        fast, plain = (after(runs, 25, compiled=compiled) for compiled in (True, False))
        world = Simulation(runs, dtype=torch.float64)
        state = world.advance(begin(world).state, range(1, 26))
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for ours, theirs in zip(fast[0], plain[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(fast[1], plain[1], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(state, fast[0], strict=True))


class Doubled(Learning):
    """A problem with gradients of its own."""

    def grad(self, x: torch.Tensor, batches: Minibatches) -> torch.Tensor:
        return 2 * super().grad(x, batches)


def test_gradients_of_a_subclass_are_its_own() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    data = [(torch.randn(6, 3), torch.arange(6) % 2) for _ in range(4)]
    problem = Doubled(model, cross_entropy, data, batch_size=2)
    runs = runs_of(problem, "spod-gt")
    for ours, theirs in zip(after(runs, 9, compiled=True)[0], after(runs, 9, compiled=False)[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", FAMILY)
def test_a_fused_step_serves_problems_without_a_compiled_gradient(name: str) -> None:
    runs = runs_of(spodgt.Quadratic.random(5, 3, noise=0.1), name, step_size=0.05)
    for ours, theirs in zip(
        after(runs, 25, compiled=True)[0], after(runs, 25, compiled=False)[0], strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("sizes", [None, [3, 12, 7, 5]], ids=["equal", "fewer than a batch"])
def test_many_rounds_in_one_call_are_the_rounds_one_by_one(name: str, sizes: list[int] | None) -> None:
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


def test_a_method_from_outside_gets_the_compiled_step_by_declaring_it(registered: Register) -> None:
    registered(Outside)
    runs = runs_of(toy_problem(), "outside")
    (fast, fast_tally), (plain, plain_tally) = after(runs, 25, compiled=True), after(runs, 25, compiled=False)
    for ours, theirs in zip((*fast, *fast_tally), (*plain, *plain_tally), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_method_with_a_step_of_its_own_is_never_given_another(registered: Register) -> None:
    registered(Changed)
    runs = runs_of(toy_problem(), "changed", step_size=0.1)
    assert Simulation(runs, dtype=torch.float64).step is None
    twice = runs_of(toy_problem(), "spod-gt", step_size=0.2)
    (ours, _), (theirs, _) = after(runs, 9, compiled=False), after(twice, 9, compiled=False)
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", FAMILY)
def test_whole_rows_for_many_clients_are_the_same_exchange(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = runs_of(spodgt.Quadratic.random(5, 3, noise=0.1), name, step_size=0.05)
    blocks, _ = after(runs, 9, compiled=True)
    monkeypatch.setattr("spodgt.kernels.tracking._MANY", 1)
    rows, _ = after(runs, 9, compiled=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(rows, blocks, strict=True))


@pytest.mark.parametrize("stop", [Stop(rounds=45), Stop(delay=60.0), Stop(rounds=30, delay=70.0)], ids=str)
@pytest.mark.parametrize(
    "schedule", [EvaluationSchedule(rounds=7), EvaluationSchedule(delay=9.0), EvaluationSchedule()], ids=str
)
def test_a_stride_passes_no_evaluation_and_no_end(stop: Stop, schedule: EvaluationSchedule) -> None:
    """Long strides see the same models at the same moments as single rounds, for runs that end apart."""
    seen: dict[int, list[tuple[Any, ...]]] = {}
    for stride in (1, 16):
        world = Simulation(runs_of(toy_problem(), "spod-gt", count=3, chance=0.4), dtype=torch.float64)
        seen[stride] = []

        def observe(
            snapshot: Snapshot, due: Bools, last: Bools, looks: list[tuple[Any, ...]] = seen[stride]
        ) -> Bools:
            parts = snapshot.world.split(snapshot.state[0])
            for at in np.flatnonzero(due):
                looks.append(
                    (snapshot.k, int(snapshot.world.runs[at]), snapshot.delay[at], parts[at].clone())
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


def test_a_run_is_the_same_bit_for_bit_alone_and_in_a_batch() -> None:
    runs = runs_of(toy_problem(), "spod-gt-memory", count=3)
    together, _ = after(runs, 20, compiled=True, dtype=torch.float32)
    for number, run in enumerate(runs):
        alone, _ = after([run], 20, compiled=True, dtype=torch.float32)
        for whole, own in zip(together, alone, strict=True):
            assert torch.equal(whole[4 * number : 4 * number + 4], own)


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


@pytest.mark.parametrize("width", [5, 8, 57, 130, 961])
def test_rows_of_any_width_and_more_neighbours_than_fit_at_once_are_mixed(width: int) -> None:
    clients, draws = 90, np.random.default_rng(width)
    receivers, senders = np.nonzero(~np.eye(clients, dtype=bool))
    links = Links(1, clients, receivers, senders)
    weights, active = draws.random(len(senders)) / clients, draws.random(len(senders)) < 0.9
    x = torch.from_numpy(draws.standard_normal((clients, width)))
    kept = np.ones(clients) - np.bincount(receivers, np.where(active, weights, 0.0))
    theirs = links.plain(x, np.where(active, weights, 0.0), active, kept)
    for dtype, far in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        ours = links.mix(x.to(dtype), weights, active, keeper=receivers)
        torch.testing.assert_close(ours.double(), theirs, rtol=far, atol=far)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 8), st.integers(1, 3), st.integers(0, 2**32 - 1), st.booleans())
def test_compiled_mixing_is_torchs_mixing(clients: int, runs: int, seed: int, many: bool) -> None:
    draws = np.random.default_rng(seed)
    ends = [(i, j) for i in range(clients) for j in range(clients) if i != j]
    pairs = sorted(
        (r * clients + i, r * clients + j) for r in range(runs) for i, j in ends if draws.random() < 0.5
    )
    receivers, senders = (np.array([p[end] for p in pairs], np.int64) for end in (0, 1))
    total = runs * clients
    links = Links(1 if many else runs, total, receivers, senders)
    weights, active = draws.random(len(pairs)) / clients, draws.random(len(pairs)) < 0.5
    x = torch.from_numpy(draws.standard_normal((total, 3)))
    for keeper in (receivers, senders):
        moved = np.where(active, weights, 0.0)
        kept = np.ones(total) - np.bincount(keeper, moved, minlength=total)
        theirs = links.plain(x, moved, active, kept)
        ours = links.mix(x, weights, active, keeper=keeper)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 7, 8, 16, 17, 33, 63, 64, 100, 130])
def test_rows_of_any_length_and_many_links_are_mixed(width: int, dtype: torch.dtype) -> None:
    """Long and short pieces, those that overlap, and more links than a loop takes at once."""
    draws = np.random.default_rng(width)
    on = draws.random((150, 150)) < np.linspace(0, 1, 150)[:, None]  # clients with none to all in-links
    receivers, senders = np.nonzero(on & ~np.eye(150, dtype=bool))
    weights, active = draws.random(len(senders)) / 150, draws.random(len(senders)) < 0.7
    x = torch.from_numpy(draws.standard_normal((150, width))).to(dtype)
    moved = np.where(active, weights, 0.0)
    kept = np.ones(150) - np.bincount(receivers, moved, minlength=150)
    links = Links(1, 150, receivers, senders)
    mixed = links.mix(x, weights, active, keeper=receivers)
    theirs = links.plain(x, moved, active, kept)
    torch.testing.assert_close(mixed, theirs, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-13)
    alone = [links.mix(x[:, c : c + 1].contiguous(), weights, active, keeper=receivers) for c in range(width)]
    assert torch.equal(mixed, torch.cat(alone, 1))  # a number does not depend on the piece it is in


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [3, 49, 100, 130])
@pytest.mark.parametrize("alike", [True, False])
def test_lasting_weights_give_the_same_numbers(
    width: int, dtype: torch.dtype, alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are laid out for networks that leave the caches."""
    draws = np.random.default_rng(width)
    on = draws.random((150, 150)) < np.linspace(0, 0.5, 150)[:, None]
    receivers, senders = np.nonzero(on & ~np.eye(150, dtype=bool))
    x = torch.from_numpy(draws.standard_normal((150, width))).to(dtype)
    for keeper in (receivers, senders):
        links, most = Links(1, 150, receivers, senders), np.bincount(keeper, minlength=150).max()
        for share in (1.0, 0.6):
            active = draws.random(len(senders)) < share
            weights = (draws.random(150)[keeper] if alike else draws.random(len(senders))) / most
            first = links.mix(x, weights, active, keeper=keeper)
            with monkeypatch.context() as patch:
                patch.setattr("spodgt.kernels.mixing.SCATTERED", 1)
                again = [links.mix(x, weights, active, keeper=keeper, lasting=True) for _ in range(2)]
            assert all(torch.equal(first, one) for one in again)


@pytest.mark.parametrize("name", sorted(spodgt.ALGORITHMS))
def test_the_order_of_rows_changes_no_number(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """States, tallies and restarts of a network whose neighbours stand together in memory."""
    traits = spodgt.ALGORITHMS[name].traits
    p = 0.6 if traits.sporadic_clients != "no" else 1.0
    p_hat = 0.6 if traits.sporadic_links != "no" else 1.0
    problem = spodgt.problems.fashion_mnist_svm(300, 2)
    network = spodgt.Network.random_geometric(300, 0.12, seed=3)
    runs = []
    for seed in range(2):
        drawn = spodgt.Bernoulli(p, p_hat).draw(network, seed)
        part = problem.draw(seed)
        runs.append(Run.of(Draw(seed, network, drawn, part, part.start(seed)), spodgt.method(name)))
    found = []
    for near in (4096, 40):  # all rows are near each other, or only the next ones
        monkeypatch.setattr("spodgt.kernels.order._NEAR", near)
        monkeypatch.setattr("spodgt.kernels.order._GROUP", 20)
        monkeypatch.setattr("spodgt.runtimes.arranged.SCATTERED", 1)
        world = Simulation(runs)
        assert (world.arranged is not None) == (near == 40)
        state = world.advance(world.init(), range(1, 5))
        fewer, state = world.keep(np.array([False, True]), state)
        state = fewer.advance(state, range(5, 8))
        (whole,) = fewer.gather(state, np.array([True])) or []
        names, tally = fewer.algorithm.traits.state, Tally(*(count.copy() for count in fewer.counts))
        kept = {field: tensor.clone() for field, tensor in zip(names, whole.state, strict=True)}
        saved = Saved(7, np.zeros(1), fewer.runs, kept, whole.statistics, tally)
        state = fewer.advance(state, range(8, 10))
        (whole,) = fewer.gather(state, np.array([True])) or []
        again = Simulator(torch.device("cpu")).restore(runs, torch.float32, saved)
        (other,) = again.world.gather(again.world.advance(again.state, range(8, 10)), np.array([True])) or []
        assert all(torch.equal(a, b) for a, b in zip(whole.state, other.state, strict=True))
        found.append([*whole.state, *map(torch.from_numpy, world.counts)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def alike_in_one_pass_and_in_two(draw: Draw, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    states = []
    for short in (0, 10**6):
        monkeypatch.setattr("spodgt.kernels.tracking._SHORT", short)
        world = Simulation([Run.of(draw, spodgt.method(name))])
        states.append(world.advance(world.init(), range(1, 8)))
    assert all(torch.equal(a, b) and a.isfinite().all() for a, b in zip(*states, strict=True))


@pytest.mark.parametrize("name", ["spod-gt", "spod-gt-memory", "spod-gt-importance"])
def test_a_round_in_one_pass_is_that_in_two(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = spodgt.problems.fashion_mnist_svm(300, 2)
    network = spodgt.Network.random_geometric(300, 0.12, seed=3)
    part = problem.draw(1)
    draw = Draw(1, network, spodgt.Bernoulli(0.5, 0.5).draw(network, 1), part, part.start(1))
    alike_in_one_pass_and_in_two(draw, name, monkeypatch)


@pytest.mark.parametrize("side", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("name", ["spod-gt", "spod-gt-importance"])
def test_short_rows_in_one_pass_are_those_in_two(
    side: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both states mixed at once, and blocks that go to memory while the next is made; 237 is no multiple."""
    draws = torch.Generator().manual_seed(side)
    inputs = torch.randint(0, 256, (237, 3, 1, side, side), generator=draws, dtype=torch.uint8)
    labels = torch.randint(0, 2, (237, 3), generator=draws)
    problem = Learning(
        linear((1, side, side), 2), multi_margin, list(zip(inputs, labels, strict=True)), batch_size=2
    )
    network = spodgt.Network.random_geometric(237, 0.15, seed=3)
    start = torch.randn(237, problem.parameters, generator=draws)
    draw = Draw(1, network, spodgt.Bernoulli(0.5, 0.5).draw(network, 1), problem, start)
    alike_in_one_pass_and_in_two(draw, name, monkeypatch)


@pytest.mark.parametrize("count", [2**18, 2**18 + 13, 2**18 + 24])
def test_the_clock_of_many_links_adds_up_as_numpy_does(count: int) -> None:
    draws = np.random.default_rng(count)
    active, each = draws.random((3, count)) < 0.5, draws.random(count)
    found = Costs(each[:1], each).transmission(active)
    np.testing.assert_array_equal(found, np.where(active, each, 0.0).sum(-1))


def test_buffers_are_lent_again_only_when_the_state_lies_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spodgt.kernels.mixing._LARGE", 1)
    buffers, x = Buffers(), torch.zeros(3, 4)
    first, second = buffers.like(x), buffers.like(x)
    assert first.data_ptr() != second.data_ptr()
    assert buffers.like(x).data_ptr() not in (first.data_ptr(), second.data_ptr())  # none was given back
    buffers.reclaim((first, second[1:]))  # a view holds a buffer, too
    again = [buffers.like(x).data_ptr() for _ in range(2)]
    assert first.data_ptr() not in again
    assert second.data_ptr() not in again
    buffers.reclaim((x.double(),))  # of another type: nothing is kept
    assert buffers.like(x.double()).dtype == torch.float64


@pytest.mark.parametrize("name", sorted(spodgt.ALGORITHMS))
def test_memory_that_is_used_again_changes_no_method(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A world lends the same buffers round after round; a state must never lie in one that is lent again."""
    traits = spodgt.ALGORITHMS[name].traits
    p_hat = 0.6 if traits.sporadic_links != "no" else 1.0
    p = 0.6 if traits.sporadic_clients != "no" else 1.0
    problem = spodgt.Quadratic.random(6, 3, noise=0.1)
    network = spodgt.Network.random_geometric(6, 0.7, seed=3)
    run = Run.of(
        Draw(3, network, spodgt.Bernoulli(p, p_hat).draw(network, 3), problem, problem.start(3)),
        spodgt.method(name),
    )
    states = []
    for large in (2**18, 1):
        monkeypatch.setattr("spodgt.kernels.mixing._LARGE", large)
        world = Simulation([run], dtype=torch.float64, compiled=False)
        states.append(world.advance(world.init(), range(1, 41)))
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


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
    problem = Learning(torch.nn.Linear(features, classes), cross_entropy, data, batch_size=batch_size)
    rows, keys = np.arange(clients), np.full(clients, rng.key(5, "batch"))
    x, g, y = torch.randn(3, clients, problem.parameters, generator=draws, dtype=torch.float64)
    new_g, new_y, weight = g.clone(), y.clone(), np.linspace(1, 2, clients)
    assert problem.grad_into(x, new_g, new_y, rows, Minibatches(rows, keys, rows, 9), weight)
    drawn = without_replacement(keys, rows, 9, np.full(clients, 20), batch_size)
    chosen = torch.from_numpy(problem.holdings.numbers[problem.holdings.offsets[:-1, None] + drawn])
    inputs, targets = problem.samples.take(chosen, torch.float64)
    expected = torch.from_numpy(weight)[:, None] * problem.trained.engine.grads(x, inputs, targets, [])
    torch.testing.assert_close(new_g, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(new_y, y + expected - g, rtol=1e-10, atol=1e-12)


@jit
def _exps(numbers, out):  # type: ignore[no-untyped-def]
    for n in range(len(numbers)):
        out[n] = exp(numbers[n])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exp_is_right_to_the_last_bits_and_leaves_nan(dtype: type[np.floating[Any]]) -> None:
    smallest = np.finfo(dtype).smallest_normal
    numbers = np.concatenate([-np.linspace(0, 85, 200_001), -np.geomspace(1e-30, 1, 1000)]).astype(dtype)
    odd = np.array([0, -0.0, -1e9, -np.inf, np.nan], dtype)
    found, odd_found = np.empty_like(numbers), np.empty_like(odd)
    _exps(numbers, found)
    _exps(odd, odd_found)
    exact = np.exp(numbers.astype(np.longdouble))
    assert np.max(np.abs(found - exact) / exact) < np.finfo(dtype).eps
    assert odd_found[:2].tolist() == [1, 1]
    assert (odd_found[2:4] < 2 * smallest).all()
    assert np.isnan(odd_found[4])


@pytest.mark.parametrize("loss", [multi_margin, cross_entropy, one_vs_rest])
@pytest.mark.parametrize("batch_size", [1, 4, 7, None])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64])
def test_compiled_gradients_are_those_of_the_engine(
    loss: Loss, batch_size: int | None, dtype: torch.dtype
) -> None:
    problem = toy_problem(loss, batch_size=batch_size, dtype=dtype)
    x = torch.randn(4, problem.parameters, dtype=torch.float64)
    rows, keys = np.array([0, 2, 3]), np.full(3, rng.key(5, "batch"))
    g = torch.zeros(3, problem.parameters, dtype=torch.float64)
    assert problem.grad_into(x[rows], g, None, np.arange(3), Minibatches(rows, keys, rows, 9), np.ones(3))
    size = batch_size or 12
    drawn = without_replacement(keys, rows, 9, np.full(3, 12), size)
    chosen = torch.from_numpy(problem.holdings.numbers[problem.holdings.offsets[rows, None] + drawn])
    inputs, targets = problem.samples.take(chosen, torch.float64)
    assert isinstance(problem.trained.engine, LinearEngine)
    torch.testing.assert_close(
        g, problem.trained.engine.grads(x[rows], inputs, targets, []), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("loss", [multi_margin, cross_entropy, one_vs_rest])
@pytest.mark.parametrize("bias", [True, False])
def test_compiled_grades_are_the_plain_losses_and_accuracies(
    loss: Loss, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws = torch.Generator().manual_seed(2)
    test = torch.rand(50, 1, 3, 3, generator=draws), torch.randint(0, 3, (50,), generator=draws)
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(9, 3, bias=bias))
    problem = Learning(module, loss, [test], test=test)
    x = torch.randn(4, problem.parameters, dtype=torch.float64, generator=draws) * 3
    ours = problem.evaluate(x)
    monkeypatch.setattr("spodgt.problems.learning.usable", lambda *_: False)
    theirs = problem.evaluate(x)
    torch.testing.assert_close(ours.loss, theirs.loss)
    torch.testing.assert_close(ours.metrics["accuracy"], theirs.metrics["accuracy"])


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 2**32 - 1), st.booleans())
def test_compiled_measures_are_plain_measures(clients: int, width: int, seed: int, double: bool) -> None:
    x = torch.from_numpy(np.random.default_rng(seed).standard_normal((clients, width)))
    x = x if double else x.float()
    plain = float((x - x.mean(0)).square().sum(1).mean().sqrt())
    assert spread(x) == pytest.approx(plain, rel=1e-5, abs=1e-6)
    assert finite(x)
    for odd in (float("nan"), float("inf"), -float("inf")):
        broken = x.clone()
        broken[seed % clients, seed % width] = odd
        assert not finite(broken)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 20), st.integers(0, 20), st.integers(0, 2**20), st.integers(0, 2**32 - 1))
def test_compiled_draws_are_the_vectorised_draws(count: int, more: int, k: int, seed: int) -> None:
    key, size, chosen = rng.key(seed, "batch"), count + more, np.empty(count, np.int64)
    draw_batch(key, 3, k, size, chosen)
    asked = np.array([key]), np.array([3]), k, np.array([size]), count
    compiled = without_replacement(*asked)[0]
    with mock.patch("spodgt.problems.samples.usable", return_value=False):
        theirs = without_replacement(*asked)[0]
    assert chosen.tolist() == theirs.tolist() == compiled.tolist()
    assert len(set(chosen.tolist())) == count
    assert 0 <= chosen.min() <= chosen.max() < size


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


def outer(x: Any) -> Any:
    return inner(x) + 1


@jit
def inner(x):  # type: ignore[no-untyped-def]
    return 2 * x


def test_a_loop_is_compiled_by_its_first_call_with_the_loops_it_calls() -> None:
    assert isinstance(inner, Loop)
    assert jit(outer)(3) == 7
    assert not isinstance(inner, Loop)  # numba's own, as numba needs it


def test_compiling_is_announced_once_and_only_when_it_happens() -> None:

    @numba.njit
    def double(number: Any) -> Any:
        return 2 * number

    said: list[str] = []
    with announced(lambda: said.append("compiling")):
        assert double(1) == 2
        assert double(1.5) == 3.0
    assert said == ["compiling"]
    with announced(lambda: said.append("again")):
        assert double(2) == 4
    assert said == ["compiling"]


def test_loops_are_compiled_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only installation and home: numba finds no folder for its cache."""
    from numba.core import caching

    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])

    def twice(x):  # type: ignore[no-untyped-def]
        return 2 * x

    assert jit(twice)(21) == 42


def test_rows_that_are_fetched_ahead_are_mixed_as_others(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = np.random.default_rng(0)
    receivers, senders = np.repeat(np.arange(50), 4), draws.integers(0, 50, 200)
    links, x = Links(1, 50, receivers, senders), torch.from_numpy(draws.standard_normal((50, 21)))
    weights, active = draws.random(200) / 4, draws.random(200) < 0.5
    near = links.mix(x, weights, active, keeper=receivers)
    monkeypatch.setattr("spodgt.kernels.mixing.SCATTERED", 1)
    assert torch.equal(links.mix(x, weights, active, keeper=receivers), near)
