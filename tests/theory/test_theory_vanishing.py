"""The corollaries as tools."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from spodgt import Bernoulli, Learning, Network, SpodGT, method, theory, train
from spodgt.errors import InvalidInput


@settings(deadline=None)
@given(
    rounds=st.integers(0, 10**8),
    samples=st.lists(st.integers(1, 10**6), min_size=1, max_size=5),
    idleness=st.floats(0, 0.99),
    batch=st.floats(0.01, 100),
)
def test_vanishing_schedule(rounds: int, samples: list[int], idleness: float, batch: float) -> None:
    """p and the sampling variance are off their ideal by the constant over √(K+1), no more."""
    found = theory.vanishing_schedule(
        rounds, samples, step_size=0.3, idleness=idleness, batch=batch
    )
    root, D, B = math.sqrt(rounds + 1), np.array(samples), found.batch_size
    assert found.step_size == pytest.approx(0.3 / root)
    assert ((found.p > 0) & (found.p <= 1)).all()
    assert found.p == pytest.approx(1 - idleness / root)
    assert ((B >= 1) & (B <= D)).all()
    variance = (1 - B / D) / B
    assert (variance <= 1 / (batch * root) * (1 + 1e-9)).all()


def test_vanishing_schedule_vanishes() -> None:
    """What does not shrink with η in the Theorem, S + 5T, falls like 1/√(K+1)."""

    def gap(rounds: int) -> float:
        plan = theory.vanishing_schedule(rounds, [100] * 3, step_size=1e-3)
        data = theory.Data(1, 1, 0, 1, 1, samples=100, batch=plan.batch_size)
        found = theory.constants(Network.ring(3), plan.p, 1.0, data, plan.step_size)
        return found.noise + 5 * found.sporadicity

    assert gap(10**6 - 1) <= gap(10**4 - 1) / 9
    plan = theory.vanishing_schedule(99, [50, 100], idleness=[0.1, 0.5])
    assert plan.p == pytest.approx([0.99, 0.95])
    assert plan.batch_size.tolist() == [9, 10]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rounds": -1}, "rounds must be at least 0, got -1; use "),
        ({"samples": [0, 3]}, "samples must be at least 1 for every client, got 0; "),
        ({"idleness": 1.0}, r"idleness must be in \[0, 1\), got 1.0; use "),
        ({"step_size": 0.0}, "step_size must be positive and finite, got 0.0; use "),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        theory.vanishing_schedule(**{"rounds": 10, "samples": [5, 5], **change})


def test_step_sizes_that_never_grow_need_one_check() -> None:
    """Corollary nonincreasing: Ψ shrinks with the step size, so round 0 decides."""
    data = theory.Data(1, 0, 0, 0, 0, 1, 1)
    bound = theory.constants(Network.ring(3), 1, 1, data, 1e-5).lr_bound_prop1
    assert isinstance(bound, float)
    falling = 0.9 * bound / np.sqrt(1 + np.arange(20))
    found = [theory.constants(Network.ring(3), 1, 1, data, eta).rho_Psi for eta in falling]
    radius = [each for each in found if isinstance(each, float)]
    assert len(radius) == 20
    assert all(later <= earlier < 1 for earlier, later in itertools.pairwise(radius))


def test_vanishing_schedule_is_what_train_accepts() -> None:
    data = [
        (torch.randn(n, 3, generator=torch.Generator().manual_seed(n)), torch.arange(n) % 2)
        for n in (9, 20, 30)
    ]
    problem = Learning(nn.Linear(3, 2), nn.CrossEntropyLoss(), data)
    plan = theory.vanishing_schedule(50, problem.client_indices.sizes)
    planned = plan.batches(problem)
    assert planned.batches(np.arange(3)).tolist() == plan.batch_size.tolist()
    algorithm = method("spod-gt", step_size=plan.schedule)
    result = train(
        algorithm,
        planned,
        Network.ring(3),
        plan.participation(0.9),
        rounds=plan.rounds,
        seeds=[0, 1],
    )
    assert np.isfinite(result.frame["train_loss"].iloc[-1])
    # a batch of runs draws what each run alone draws
    alone = train(
        algorithm, planned, Network.ring(3), plan.participation(0.9), rounds=plan.rounds, seeds=[1]
    )
    both = result.frame[result.frame["seed"] == 1][
        "loss" if "loss" in alone.frame else "train_loss"
    ]
    assert both.to_numpy() == pytest.approx(
        alone.frame[both.name].to_numpy(), nan_ok=True, rel=1e-5
    )
    assert result.frame[result.frame["seed"] == 1]["consensus_x"].to_numpy() == pytest.approx(
        alone.frame["consensus_x"].to_numpy(), rel=1e-4
    )
    with pytest.raises(InvalidInput, match="batch_size must be one number or 3"):
        problem.with_batch_size([1, 2])
    with pytest.raises(InvalidInput, match="whole number"):
        problem.with_batch_size([1, 2, 0])
    assert isinstance(plan.participation(), Bernoulli)
    assert SpodGT(plan.step_size).step_size == pytest.approx(plan.schedule.at(1))
