"""Step sizes that change, momentum, and batches of both, around any method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from spodgt.algorithms import (
    ALGORITHMS,
    Constant,
    Cosine,
    Inverse,
    InverseSqrt,
    Momentum,
    Scheduled,
    describe,
    method,
    stack,
)
from spodgt.algorithms.base import Algorithm, LocalSteps
from spodgt.algorithms.compose.schedules import SCHEDULES
from spodgt.algorithms.spod_gt import SpodGT
from spodgt.errors import InvalidConfig, InvalidInput
from spodgt.network import Network, graphs
from spodgt.participation import Always, Bernoulli
from spodgt.problems import Quadratic
from spodgt.runtimes.simulator import Simulation
from tests.helpers import NAMES, NOT_DESCENT, STEPPING, build, final, make_run, ring_of, states

FREE = [name for name in STEPPING if ALGORITHMS[name].traits.steps != "constant"]
PER_CLIENT = [
    name
    for name in STEPPING
    if ALGORITHMS[name].traits.steps == "per client" and ALGORITHMS[name].traits.exact != "no"
]


def traits_of(name: str) -> Any:
    return ALGORITHMS[name].traits


def slow_if_alone(name: str) -> Any:
    """Where few move in a round, many rounds are needed."""
    return (
        name if traits_of(name).activation == "all" else pytest.param(name, marks=pytest.mark.slow)
    )


def bench(
    algorithm: Algorithm,
    rounds: int,
    *,
    participation: Any = Always(),  # noqa: B008
    x0: Any = None,
) -> list[Any]:
    problem = Quadratic.random(5, 2, seed=1, condition=3)
    return states([make_run(algorithm, problem, ring_of(5), participation, x0=x0)], rounds)


# --- schedules ---------------------------------------------------------------------------------------
def test_schedules_by_hand() -> None:
    assert [InverseSqrt(0.6).at(k) for k in (1, 4, 9)] == pytest.approx([0.6, 0.3, 0.2])
    assert [Inverse(0.6).at(k) for k in (1, 2, 3)] == pytest.approx([0.6, 0.3, 0.2])
    assert [Inverse(0.6, scale=10).at(k) for k in (1, 11, 21)] == pytest.approx([0.6, 0.3, 0.2])
    assert InverseSqrt(0.6, scale=10).at(31) == pytest.approx(0.3)
    cosine = Cosine(0.5, rounds=10, end=0.1)
    assert [float(cosine.at(k)) for k in (1, 6, 11, 99)] == pytest.approx([0.5, 0.3, 0.1, 0.1])
    assert float(Cosine(0.5, rounds=10).at(11)) == 0
    assert Constant(0.2).at(7) == 0.2


@pytest.mark.parametrize("name", FREE)
@pytest.mark.parametrize(
    "schedule", [InverseSqrt(0.2), Inverse(0.2, 5), Cosine(0.2, 20, 0.01)], ids=lambda s: s.name
)
def test_a_schedule_is_another_number_in_every_round(name: str, schedule: Any) -> None:
    """The wrapped method against the method rebuilt by hand for every round."""
    fields: dict[str, Any] = {"local_steps": 3} if ALGORITHMS[name].traits.local_steps else {}
    is_held = issubclass(ALGORITHMS[name], LocalSteps)  # between two exchanges
    problem, network = Quadratic.random(5, 2, seed=1, noise=0.1), ring_of(5)
    run = make_run(method(name, step_size=schedule, **fields), problem, network)
    ours = states([run], 9)[-1]
    world = Simulation([run], dtype=torch.float64, compiled=False)
    state = method(name, **fields).init(world.held.initial_models(), world.rounds.start(0))
    for k in range(1, 10):
        held = (k - 1) // 3 * 3 + 1 if is_held else k
        state = method(name, step_size=float(schedule.at(held)), **fields).step(
            state, world.rounds.start(k)
        )
    for a, b in zip(ours, state, strict=True):
        assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_a_decaying_step_takes_the_bias_away() -> None:
    best = Quadratic.random(5, 2, seed=1, condition=3).optimum()
    far = bench(method("dsgd", step_size=0.2), 600)[-1].x
    near = bench(method("dsgd", step_size=Inverse(0.2, scale=40)), 600)[-1].x
    assert (near - best).norm() < 0.2 * (far - best).norm()


@pytest.mark.parametrize("name", [slow_if_alone(name) for name in PER_CLIENT])
def test_trackers_are_exact_with_a_step_of_their_own(name: str) -> None:
    rates = np.linspace(0.06, 0.12, 5) / (
        3 if name == "frost" else 1
    )  # its tracker is a sum, not an average
    fields: dict[str, Any] = {"local_steps": 2} if name == "k-gt" else {}
    problem = Quadratic.random(5, 2, seed=1, condition=3)
    run = make_run(method(name, step_size=rates.tolist(), **fields), problem, ring_of(5))
    x = final(run, 700 if traits_of(name).activation == "all" else 3000).x
    assert_close(x, problem.optimum().expand(5, 2), rtol=0, atol=1e-8)


# --- momentum ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", [name for name in STEPPING if name not in NOT_DESCENT])
def test_momentum_on_one_client_is_the_heavy_ball(name: str) -> None:
    problem, x = Quadratic.random(1, 3, seed=2), torch.tensor([[1.0, -2.0, 3.0]]).double()
    fields: dict[str, Any] = {"local_steps": 5} if ALGORITHMS[name].traits.local_steps else {}
    algorithm = method(name, step_size=0.2, momentum=0.8, **fields)
    kept = states([make_run(algorithm, problem, Network.draw(graphs.Complete(1)), x0=x)], 12)
    ball, before, restarts = [x], x, ALGORITHMS[name].traits.momentum == "restarted"
    for k in range(1, 13):
        if restarts and k > 1 and (k - 1) % 5 == 0:
            before = x  # an exchange has just been
        x, before = x - 0.2 * problem.full(x, np.arange(1))[1] + 0.8 * (x - before), x
        ball.append(x)
    if name == "subgradient-push":
        ball = [ball[0], *ball[:-1]]
    assert_close(torch.stack([state.x for state in kept]), torch.stack(ball), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "name", [slow_if_alone(name) for name in NAMES if traits_of(name).exact == "yes"]
)
def test_exact_methods_stay_exact_with_momentum(name: str) -> None:
    fields: dict[str, Any] = (
        {"local_steps": 3} if name == "k-gt" else {"lazy": True} if name == "d2" else {}
    )
    problem = Quadratic.random(5, 2, seed=1, condition=3)
    step = 0.02 if name == "frost" else 0.15 if traits_of(name).uses_stale_models else 0.05
    run = make_run(method(name, step_size=step, momentum=0.5, **fields), problem, ring_of(5))
    x = final(run, 600 if traits_of(name).activation == "all" else 4000).x
    assert_close(x, problem.optimum().expand(5, 2), rtol=0, atol=1e-8)


def test_an_idle_clients_momentum_waits() -> None:
    kept = bench(
        method("spod-gt", step_size=0.1, momentum=0.9), 30, participation=Bernoulli(0.5, 0.5)
    )
    computes = Bernoulli(0.5, 0.5).draw(ring_of(5), 0).computes(range(31))
    for k in range(1, 31):
        idle = torch.from_numpy(~computes[k])
        assert torch.equal(kept[k].momentum[idle], kept[k - 1].momentum[idle])
        assert (kept[k].g[idle] == 0).all()
        assert_close(kept[k].y.sum(0), kept[k].g.sum(0), rtol=0, atol=1e-12)


# --- building ----------------------------------------------------------------------------------------
def test_method_wraps_and_names() -> None:
    both = method("spod-gt", step_size=InverseSqrt(0.1), momentum=0.9)
    assert both == Momentum(Scheduled(SpodGT(), InverseSqrt(0.1)), 0.9)
    assert both.name == "spod-gt+inverse-sqrt+momentum"
    assert both.traits == replace(
        SpodGT.traits, state=("x", "y", "g", "momentum"), compiled="linear"
    )
    assert (
        method("spod-gt", step_size={"schedule": "inverse-sqrt", "start": 0.1}, momentum=0.9)
        == both
    )
    assert method(SpodGT(step_size=InverseSqrt(0.1)), momentum=0.9) == both
    assert method(both) == both
    assert method(both, momentum=0.0) == Scheduled(SpodGT(), InverseSqrt(0.1))
    assert method(both, step_size=0.3, momentum=0) == SpodGT(0.3)
    assert method("spod-gt", step_size={"schedule": "constant", "start": 0.1}) == SpodGT(0.1)
    assert method("spod-gt", momentum=0.9).name == "spod-gt+momentum"
    plain = SpodGT(0.2)
    assert method(plain) is plain


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "step",
    [0.2, [0.1, 0.2], InverseSqrt(0.2, 3.0), Cosine(torch.tensor([[0.1], [0.3]]).double(), 7)],
    ids=str,
)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_description_builds_the_method_again(name: str, step: Any, momentum: float) -> None:
    fields = {} if name == "gossip" else {"step_size": step}
    built = method(name, **fields, momentum=momentum)
    again = method(**describe(built))
    assert describe(again) == describe(built)
    assert str(again) == str(built)


MISTAKES = [
    ({"step_size": 0}, "step_size of spod-gt must be a number above 0, got 0; use step_size=0.01."),
    (
        {"step_size": True},
        "step_size of spod-gt must be a number above 0, got True; use step_size=0.01.",
    ),
    (
        {"step_size": "fast"},
        "step_size of spod-gt must be a number above 0, got 'fast'; use step_size=0.01.",
    ),
    (
        {"step_size": float("nan")},
        "step_size of spod-gt must be a number above 0, got nan; use step_size=0.01.",
    ),
    (
        {"step_size": ["a"]},
        "step_size of spod-gt must be a number above 0, got ['a']; use step_size=0.01.",
    ),
    (
        {"step_size": {"schedule": "linear", "start": 1}},
        "schedule of step_size must be one of constant, inverse, inverse-sqrt, cosine, got 'linear'.",
    ),
    (
        {"step_size": {"schedule": "inverse", "begin": 1}},
        "begin=1 is not a field of inverse; its fields are start, warmup, scale.",
    ),
    (
        {"step_size": {"schedule": "cosine"}},
        "step_size with schedule 'cosine' needs a start; add start = 0.1.",
    ),
    (
        {"step_size": {"schedule": "inverse", "start": -1}},
        "start of inverse must be a number above 0, got -1; use start=0.01.",
    ),
    (
        {"step_size": {"schedule": "cosine", "start": 1, "rounds": 2.5}},
        "rounds of cosine must be a whole number above 0, got 2.5; use rounds=5.",
    ),
    ({"momentum": 1}, "momentum of spod-gt must be in [0, 1), got 1; use momentum=0.9."),
    ({"momentum": "0.9"}, "momentum of spod-gt must be in [0, 1), got '0.9'; use momentum=0.9."),
    (
        {"pace": 1},
        "pace=1 is not a field of spod-gt; its fields are step_size, local_steps, compress, weights, "
        "clip_tracker, adam, optimizer, weight_decay, momentum, l2, clip_gradient, running_mean.",
    ),
    (
        {"adam": {"gamma": 1}},
        "gamma=1 is not a field of adam; its fields are beta1, beta2, epsilon, amsgrad.",
    ),
    (
        {"adam": {"beta2": 1.0}},
        "adam of spod-gt must be with beta2 in [0, 1), got 1.0; use adam=True.",
    ),
    (
        {"adam": {"epsilon": 0}},
        "epsilon of spod-gt+adam must be a number above 0, got 0; use epsilon=0.01.",
    ),
    (
        {"clip_tracker": -1},
        "clip_tracker of spod-gt must be a number above 0, got -1; use clip_tracker=0.01.",
    ),
    (
        {"clip_gradient": True},
        "clip_gradient of spod-gt must be a number above 0, got True; use clip_gradient=0.01.",
    ),
    ({"l2": "much"}, "l2 of spod-gt must be a number above 0, got 'much'; use l2=0.01."),
    (
        {"local_steps": 2.5},
        "local_steps of spod-gt must be a whole number above 0, a list with one per client, "
        'or a range "1-20", got 2.5; use local_steps=5.',
    ),
    (
        {"step_size": {"schedule": "constant", "start": 0.1, "warmup": -3}},
        "warmup of constant must be a whole number above 0, got -3; use warmup=5.",
    ),
]


@pytest.mark.parametrize(("fields", "message"), MISTAKES, ids=str)
def test_mistakes_are_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        method("spod-gt", **fields)
    assert str(caught.value) == message


def test_other_mistakes_are_named() -> None:
    with pytest.raises(
        InvalidConfig, match=r"^method 'spot-gt' is not known; did you mean 'spod-gt'\?$"
    ):
        method("spot-gt")
    with pytest.raises(
        InvalidConfig,
        match=r"step_size=0.1 is not a field of gossip; its fields are local_steps, compress, weights, ",
    ):
        method("gossip", step_size=0.1)
    with pytest.raises(
        InvalidInput, match=r"local_steps of k-gt must be a whole number above 0, got 2.5"
    ):
        method("k-gt", local_steps=2.5)


# --- batches -----------------------------------------------------------------------------------------
STEPS = [
    [0.1, 0.2],
    [[0.1] * 5, [0.2] * 5],
    [InverseSqrt(0.1), InverseSqrt(0.2, 7)],
    [Cosine(torch.full((5, 1), 0.1).double())] * 2,
]


@pytest.mark.parametrize("name", ["spod-gt", "k-gt", "next", "dfedavg"])
@pytest.mark.parametrize("steps", STEPS, ids=str)
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_batch_of_wrapped_methods_is_its_runs(name: str, steps: Any, momentum: float) -> None:
    """The numbers of a method, a schedule and K may differ between runs."""
    local = ALGORITHMS[name].traits.local_steps
    runs = [
        make_run(
            build(
                name, step_size=step, momentum=momentum, **({"local_steps": 2 + n} if local else {})
            ),
            Quadratic.random(5, 2, seed=n),
            ring_of(5),
            seed=n,
        )
        for n, step in enumerate(steps)
    ]
    together = final(runs, 9).x
    for n, run in enumerate(runs):
        assert_close(together[5 * n : 5 * n + 5], final(run, 9).x, rtol=1e-12, atol=1e-12)


def test_runs_of_different_size_in_a_batch() -> None:
    for name in ("frost", "spod-gt", "fedavg"):
        runs = [
            make_run(
                method(name, step_size=0.1 * m), Quadratic.random(m, 2, seed=m), ring_of(m), seed=m
            )
            for m in (3, 4)
        ]
        together = final(runs, 8).x
        assert_close(together[:3], final(runs[0], 8).x, rtol=1e-12, atol=1e-12)
        assert_close(together[3:], final(runs[1], 8).x, rtol=1e-12, atol=1e-12)


def test_stacked_numbers_have_the_precision_of_the_run() -> None:
    runs = [SpodGT(0.1), SpodGT(0.2)]
    assert stack([SpodGT(0.1)] * 2, [2, 3]) == SpodGT(0.1)
    double: Any = stack(runs, [2, 3])
    assert double.step_size.dtype == torch.float64
    assert double.step_size.flatten().tolist() == [0.1, 0.1, 0.2, 0.2, 0.2]
    single: Any = stack([method("spod-gt", step_size=[0.1, 0.2])], [2], dtype=torch.float32)
    assert single.step_size.dtype == torch.float32
    counts: Any = stack([method("k-gt", local_steps=2), method("k-gt", local_steps=3)], [1, 1])
    assert counts.local_steps.dtype == torch.int64


def test_every_schedule_is_listed() -> None:
    assert {cls.__name__ for cls in SCHEDULES.values()} == {
        "Constant",
        "Inverse",
        "InverseSqrt",
        "Cosine",
    }
