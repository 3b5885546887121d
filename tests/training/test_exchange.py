"""Methods with local steps are evaluated as of their last exchange; what is kept is the trajectory itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import spodgt
from spodgt.algorithms import ALGORITHMS
from spodgt.problems import Quadratic
from tests.training.test_resume import StopAt

PROBLEM = Quadratic.random(5, 4, seed=3, noise=0.3)
RECIPE = spodgt.graphs.RandomGeometric(5, 0.9)
SPORADIC = spodgt.Beta(0.7, 0.7, floor=0.2)
METHODS: dict[str, tuple[Any, Any]] = {
    "fedavg": (spodgt.method("fedavg", local_steps=4), SPORADIC),
    "dfedavg": (spodgt.method("dfedavg", local_steps=5, momentum=0.5), spodgt.Always()),
    "k-gt": (spodgt.method("k-gt", local_steps=7), SPORADIC),
    "k-gt, K of each seed": (spodgt.method("k-gt"), SPORADIC),
    "compiled layer": (spodgt.method("spod-gt", local_steps=6), SPORADIC),
    "layers": (
        spodgt.method("spod-gt-memory", adam=True, clip_tracker=1.0, local_steps=3),
        SPORADIC,
    ),
}
ROUNDS = 40


def periods(result: spodgt.Result, method: Any) -> dict[int, int]:
    """The rounds between two exchanges, by seed."""
    return {seed: method.fit(draw.availability).period for seed, draw in result.draws.items()}


@pytest.mark.parametrize("name", METHODS)
def test_metrics_are_of_the_last_exchange_and_states_of_every_round(name: str) -> None:
    method, participation = METHODS[name]
    result = spodgt.train(
        method, PROBLEM, RECIPE, participation,
        rounds=ROUNDS, every=1, seeds=[0, 1, 2], keep_states=True, dtype=torch.float64,
    )  # fmt: skip
    optimum = PROBLEM.optimum().double()
    for seed, period in periods(result, method).items():
        assert period > 1
        x = result.states[seed].x
        assert len(x) == ROUNDS + 1
        assert torch.equal(result.models[result.methods[0], seed], x[-1]), (
            "the model is that of the end"
        )
        assert not torch.equal(x[ROUNDS - 1], x[ROUNDS - 2]), "states go on between exchanges"
        rows = result.frame[result.frame["seed"] == seed]
        assert rows["round"].tolist() == list(range(ROUNDS + 1)), (
            "rows are where they were asked for"
        )
        exchanged = x[np.arange(ROUNDS + 1) // period * period]
        distance = (exchanged - optimum).square().sum(2).mean(1).sqrt()
        np.testing.assert_allclose(rows["distance"], distance.numpy(), rtol=1e-9)
        spread = (exchanged - exchanged.mean(1, keepdim=True)).square().sum(2).mean(1).sqrt()
        np.testing.assert_allclose(rows["consensus_x"], spread.numpy(), rtol=1e-6, atol=1e-12)
        assert rows["delay"].is_monotonic_increasing
        assert rows["delay"].nunique() > ROUNDS // period, "the clock does not wait for exchanges"


@pytest.mark.parametrize("name", ["fedavg", "dfedavg", "k-gt"])
def test_accuracy_does_not_depend_on_where_the_last_round_falls(name: str) -> None:
    problem = spodgt.problems.fashion_mnist_svm(clients=5, labels_per_client=1)
    method = spodgt.method(name, local_steps=5)

    def accuracies(rounds: int) -> list[float]:
        result = spodgt.train(method, problem, RECIPE, rounds=rounds, evaluations=1, seeds=[0])
        row = result.summary().iloc[0]
        return [
            row["accuracy"],
            row["accuracy_average"],
            row["accuracy_worst"],
            result.clients["loss"].sum(),
        ]

    expected = accuracies(20)
    for rounds in (21, 23, 24):
        assert accuracies(rounds) == expected, rounds
    assert accuracies(25) != expected


def test_a_run_that_ends_by_delay_shows_its_last_exchange() -> None:
    method = spodgt.method("k-gt", local_steps=9)
    result = spodgt.train(
        method,
        PROBLEM,
        RECIPE,
        SPORADIC,
        delay=150.0,
        evaluations=4,
        seeds=[0, 1],
        dtype=torch.float64,
    )
    last = result.final()
    assert (last["round"] % 9 != 0).any(), "one of them ends between exchanges"
    for seed, end in last.set_index("seed").iterrows():
        whole = spodgt.train(
            method, PROBLEM, RECIPE, SPORADIC, rounds=int(end["round"]) // 9 * 9, seeds=[int(str(seed))],
            dtype=torch.float64,
        )  # fmt: skip
        assert whole.final()["distance"].item() == pytest.approx(end["distance"], rel=1e-9)


@pytest.mark.parametrize("name", ["fedavg", "k-gt", "compiled layer"])
def test_a_run_resumed_or_extended_between_exchanges_shows_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("spodgt.training.observer._REPORT_SECONDS", 0.0)
    method, participation = METHODS[name]
    common: dict[str, Any] = {"every": 1, "seeds": [0, 1]}
    whole = spodgt.train(method, PROBLEM, RECIPE, participation, rounds=33, **common)

    def go(rounds: int, **options: Any) -> spodgt.Result:
        options |= common | {"rounds": rounds, "out": tmp_path / "run"}
        return spodgt.train(method, PROBLEM, RECIPE, participation, **options)

    label = whole.methods[0]
    assert not go(23, progress=StopAt(label, 10)).complete
    assert go(23, resume=True).complete
    result = go(33, resume=True)
    pd.testing.assert_frame_equal(result.frame, whole.frame, check_exact=True)
    pd.testing.assert_frame_equal(result.clients, whole.clients, check_exact=True)


@pytest.mark.parametrize("name", ["dfedavg", "compiled layer", "layers"])
def test_virtual_time_evaluates_at_exchanges(tmp_path: Path, name: str) -> None:
    """With equal times all clients exchange in the same ticks, so metrics change there only."""
    method, _ = METHODS[name]
    ring = spodgt.Network.from_networkx(nx.cycle_graph(5))
    options: dict[str, Any] = {
        "time": spodgt.Time(compute=0.01, latency=0.001),
        "every": 1,
        "seeds": [0],
    }
    result = spodgt.train(method, PROBLEM, ring, seconds=0.6, keep_states=True, **options)
    ((seed, period),) = periods(result, method).items()
    moves = int((result.states[seed].x.diff(dim=0) != 0).any(2).any(1).sum())
    assert moves > 2 * period, "models move in many ticks"
    shown = result.frame["distance"].nunique()
    assert 2 < shown <= moves // period + 2
    out = tmp_path / "run"
    spodgt.train(method, PROBLEM, ring, seconds=0.31, out=out, **options)
    extended = spodgt.train(method, PROBLEM, ring, seconds=0.6, out=out, resume=True, **options)
    pd.testing.assert_frame_equal(extended.frame, result.frame, check_exact=True)


def test_running_statistics_are_of_the_last_exchange() -> None:
    """BatchNorm goes on between exchanges, too; what is evaluated does not."""
    draws = torch.Generator().manual_seed(0)
    data = [(torch.randn(12, 3, generator=draws) + n, torch.arange(12) % 2) for n in range(4)]
    torch.manual_seed(0)
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2))
    problem = spodgt.Learning(
        net, nn.CrossEntropyLoss(), data, test=data[1], batch_size=4, buffers="pull"
    )
    method = spodgt.method("fedavg", step_size=0.1, local_steps=6)

    def last(rounds: int) -> pd.DataFrame:
        result = spodgt.train(method, problem, spodgt.Network.ring(4), rounds=rounds, seeds=[0])
        return result.final()[["loss", "accuracy"]]

    assert last(12).equals(last(15))
    assert not last(12).equals(last(18))


def test_methods_with_local_steps_declare_their_period() -> None:
    draw = spodgt.train("spod-gt", PROBLEM, RECIPE, SPORADIC, rounds=1).draws[0]
    for name, kind in ALGORITHMS.items():
        method = kind().fit(draw.availability)
        assert (method.period > 1) == kind.traits.local_steps, name
    layered = spodgt.method("spod-gt-memory", local_steps=4, momentum=0.5, compress="int8")
    assert layered.period == 4
    assert spodgt.method("k-gt", local_steps=3, momentum=0.5).period == 3
