"""Predicted against measured on quadratics, and when nothing can be predicted."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from spodgt import Always, Beta, EveryK, Network, Quadratic, compare, method, theory
from spodgt.algorithms.base import Algorithm
from spodgt.participation import Bernoulli, Participation
from spodgt.participation.availability import AvailabilityOverride
from spodgt.runtimes.world import Draw

NETWORK = Network.ring(3)
PROBLEM = Quadratic.random(3, 2, noise=0.1)
SPORADIC = Bernoulli([1.0, 0.5, 0.8], 0.9)


def drawn(
    seeds: range, participation: Participation = SPORADIC, problem: Quadratic = PROBLEM
) -> dict[int, Draw]:
    return {
        seed: Draw(seed, NETWORK, participation.draw(NETWORK, seed), problem, problem.start(seed))
        for seed in seeds
    }


def measured(
    methods: list[Algorithm], seeds: range, rounds: int = 200, every: int = 8
) -> pd.DataFrame:
    options: dict[str, Any] = {"rounds": rounds, "every": every, "dtype": torch.float64}
    return compare(methods, PROBLEM, NETWORK, SPORADIC, seeds=seeds, **options).frame


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    names = ("spod-gt", "spod-gt-memory", "ab-push-pull", "sporadic-k-gt", "k-gt")
    methods = [method(name, step_size=0.05) for name in names]
    found = theory.prediction(drawn(range(8)), methods, measured(methods, range(8)))
    assert found is not None
    assert list(found) == ["lines"]
    return list(found["lines"])


def test_runs_follow_the_prediction(lines: list[dict[str, Any]]) -> None:
    """Also of methods that use all clients or links: what counts is the availability they make."""
    names = [line["method"] for line in lines]
    assert names == ["spod-gt", "spod-gt-memory", "ab-push-pull", "sporadic-k-gt"]
    for line in lines:
        at, predicted = np.array(line["measured"]), np.array(line["predicted"])[line["rounds"]]
        assert at[0] == pytest.approx(predicted[0], rel=1e-6)
        away = np.abs(np.log(at / predicted))
        assert away[:10].max() < 0.2
        assert away.max() < 0.7  # near the floor eight seeds scatter
        assert at[-8:].mean() == pytest.approx(line["floor"], rel=0.3)
        assert 0 < line["rate"] < 1


def test_shape_of_a_prediction(lines: list[dict[str, Any]]) -> None:
    """What a report draws from: plain numbers, ready for JSON."""
    assert json.loads(json.dumps(lines, allow_nan=False)) == lines
    for line in lines:
        assert list(line) == ["method", "seeds", "rounds", "measured", "predicted", "floor", "rate"]
        assert line["seeds"] == list(range(8))
        assert len(line["rounds"]) == len(line["measured"]) > 20
        assert len(line["predicted"]) == line["rounds"][-1] + 1 == 201
        assert all(isinstance(value, int) for value in (*line["seeds"], *line["rounds"]))
        numbers = (*line["measured"], *line["predicted"], line["floor"], line["rate"])
        assert all(isinstance(value, float) for value in numbers)


def test_evaluations_by_delay_are_taken_together() -> None:
    chosen = [method("spod-gt", step_size=0.05)]
    frame = compare(
        chosen, PROBLEM, NETWORK, SPORADIC, seeds=range(4), delay=600, evaluations=20
    ).frame
    found = theory.prediction(drawn(range(4)), chosen, frame)
    assert found is not None
    (line,) = found["lines"]
    assert line["rounds"] == sorted(set(line["rounds"]))
    assert len(line["rounds"]) <= 27
    assert line["measured"][0] == pytest.approx(line["predicted"][0], rel=1e-5)


@pytest.mark.filterwarnings("ignore::spodgt.errors.DivergenceWarning")
def test_divergence_ends_the_curve() -> None:
    chosen = [method("spod-gt", step_size=50.0)]
    found = theory.prediction(
        drawn(range(2)), chosen, measured(chosen, range(2), rounds=400, every=5)
    )
    assert found is not None
    (line,) = found["lines"]
    assert line["rate"] > 1
    assert line["floor"] is None
    assert np.isfinite(line["predicted"]).all()


@pytest.mark.parametrize(
    "chosen",
    [
        method("spod-gt", step_size=0.05, momentum=0.5),
        method("spod-gt", step_size={"schedule": "inverse-sqrt", "start": 0.05}),
        method("spod-gt", step_size=[0.05, 0.04, 0.03]),
        method("dsgd", step_size=0.05),
    ],
    ids=lambda chosen: chosen.name,
)
def test_no_prediction_for_other_dynamics(chosen: Algorithm) -> None:
    frame = pd.DataFrame({"method": [chosen.name], "seed": [0], "round": [0], "distance": [1.0]})
    assert theory.prediction(drawn(range(1)), [chosen], frame) is None
    plain = method("spod-gt", step_size=0.05)
    assert theory.prediction(drawn(range(1)), [plain], frame.assign(method="spod-gt")) is not None
    assert (
        theory.prediction(drawn(range(1), EveryK(3)), [plain], frame.assign(method="spod-gt"))
        is None
    )
    assert theory.prediction(drawn(range(1)), [plain], frame.drop(columns="distance")) is None


@pytest.mark.parametrize(
    "participation", [Always(), SPORADIC, Beta(0.5, 0.5)], ids=lambda each: each.name
)
def test_independent_participation(participation: Participation) -> None:
    available = participation.draw(NETWORK, 0)
    found = theory.independent_probabilities(available)
    assert found is not None
    assert found[0] == pytest.approx(available.p)
    assert found[1] == pytest.approx(available.p_hat)
    ones = theory.independent_probabilities(
        AvailabilityOverride(available, all_clients=True, all_links=True)
    )
    assert ones is not None
    assert ones[0].tolist() == ones[1].tolist() == [1, 1, 1]
    (half, links) = theory.independent_probabilities(
        AvailabilityOverride(available, all_clients=True)
    ) or (
        None,
        None,
    )
    assert half is not None
    assert links is not None
    assert half.tolist() == [1, 1, 1]
    assert links == pytest.approx(available.p_hat)


def test_dependent_participation() -> None:
    for dependent in (
        EveryK(3).draw(NETWORK, 0),
        AvailabilityOverride(SPORADIC.draw(NETWORK, 0), every=2),
        AvailabilityOverride(SPORADIC.draw(NETWORK, 0), pairs=np.arange(3)),
        AvailabilityOverride(EveryK(3).draw(NETWORK, 0), all_links=True),
    ):
        assert theory.independent_probabilities(dependent) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Overview", theory.TheorySummary),
        ("overview", theory.summarize),
        ("independent", theory.independent_probabilities),
    ],
)
def test_deprecated_names_of_the_theory_warn_with_the_new_name(old: str, new: object) -> None:
    with pytest.warns(DeprecationWarning, match=f"spodgt.theory.{old} is deprecated; use spodgt"):
        assert getattr(theory, old) is new
