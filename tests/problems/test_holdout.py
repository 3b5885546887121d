"""Validation data: given, or held out of what the clients train on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import spodgt
from spodgt.errors import InvalidData, InvalidInput
from spodgt.experiment import Experiment
from spodgt.problems import Learning, classification
from spodgt.problems.data import IID
from spodgt.problems.data.samples import Samples

SIZES = (10, 7, 2)
RING = spodgt.Network.ring(3)


def samples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, 4, generator=draw), torch.randint(0, 2, (count,), generator=draw)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def learning(**options: Any) -> Learning:
    given: dict[str, Any] = {"test": samples(9, 100), "batch_size": 4} | options
    clients = given.pop("clients", [samples(size, number) for number, size in enumerate(SIZES)])
    return Learning(model(), nn.CrossEntropyLoss(), clients, **given)


class Rows(Dataset[Any]):
    """A data set that is read sample by sample."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs = inputs
        self.targets = targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return self.inputs[number], self.targets[number]


def loss_on(data: tuple[Tensor, Tensor]) -> float:
    return nn.functional.cross_entropy(model()(data[0]), data[1]).item()


# --- a fraction --------------------------------------------------------------------------------------
def test_a_fraction_splits_the_samples_of_each_client() -> None:
    problem = learning(validation=0.3)
    drawn = problem.draw(5)
    assert drawn.sizes().tolist() == [7, 5, 1]
    assert drawn.data.validation is not None
    assert isinstance(drawn.data.validation.samples, Samples)
    assert isinstance(drawn.data.samples, Samples)
    kept = drawn.data.samples.inputs[torch.from_numpy(drawn.client_indices.indices)]
    both = torch.cat([kept, drawn.data.validation.samples.inputs])
    assert sorted(both[:, 0].tolist()) == sorted(problem.samples.inputs[:, 0].tolist())
    assert problem.sizes().tolist() == list(SIZES)


def test_a_fraction_is_drawn_by_the_seed() -> None:
    problem = learning(validation=0.3)
    first, again, other = (problem.draw(seed).client_indices.indices.tolist() for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_a_fraction_of_a_partition_is_held_out_after_the_partition() -> None:
    problem = classification(clients=4, partition=IID(), validation=0.25)
    whole = classification(clients=4, partition=IID())
    parts = problem.draw(3).client_indices
    for client, own in enumerate(whole.draw(3).client_indices[client] for client in range(4)):
        assert set(parts[client]) < set(own)
        assert len(parts[client]) == round(0.75 * len(own))


def test_samples_that_are_read_one_by_one_are_held_out_alike() -> None:
    sets = [samples(size, number) for number, size in enumerate(SIZES)]
    options: dict[str, Any] = {"validation": 0.3, "test": samples(9, 100)}
    lazy = learning(clients=[Rows(*one) for one in sets], **options).draw(2)
    eager = learning(clients=sets, **options).draw(2)
    x = torch.cat([eager.start(2)] * 2)[:3]
    ours, theirs = lazy.evaluate(x).metrics, eager.evaluate(x).metrics
    torch.testing.assert_close(ours["validation_loss"], theirs["validation_loss"])
    torch.testing.assert_close(ours["validation_accuracy"], theirs["validation_accuracy"])


@pytest.mark.parametrize("fraction", [0, 0.0, 1, 1.5, -0.2, True, float("nan")])
def test_a_fraction_outside_0_and_1_is_refused(fraction: Any) -> None:
    with pytest.raises(
        InvalidInput, match=r"^validation must be data or a fraction above 0 and below 1, got"
    ):
        learning(validation=fraction)


def test_a_fraction_of_single_samples_is_refused() -> None:
    problem = learning(clients=[samples(1, number) for number in range(3)], validation=0.2)
    with pytest.raises(
        InvalidInput, match=r"^client 0 holds 1 sample, so none can be held out to choose by"
    ):
        problem.draw(0)


# --- data sets ---------------------------------------------------------------------------------------
def test_validation_data_are_evaluated_beside_the_test_data() -> None:
    held = samples(6, 200)
    problem = learning(validation=held)
    found = problem.evaluate(problem.start(0), np.arange(3))
    assert found.loss.tolist() == pytest.approx([loss_on(samples(9, 100))] * 3)
    assert found.metrics["validation_loss"].tolist() == pytest.approx([loss_on(held)] * 3)
    assert set(problem.metrics) == {"accuracy", "validation_loss", "validation_accuracy"}


def test_validation_data_of_each_client() -> None:
    sets = [samples(5, 300 + number) for number in range(3)]
    problem = learning(validation=sets)
    found = problem.evaluate(problem.start(0), np.arange(3)).metrics["validation_loss"]
    assert found.tolist() == pytest.approx([loss_on(one) for one in sets])


def test_validation_data_without_test_data() -> None:
    problem = learning(validation=samples(6, 200), test=None)
    found = problem.evaluate(problem.start(0), np.arange(3))
    assert found.loss.isnan().all()
    assert set(found.metrics) == set(problem.metrics) == {"validation_loss", "validation_accuracy"}


def test_validation_data_that_do_not_fit_are_refused() -> None:
    with pytest.raises(
        InvalidData, match=r"^validation has inputs of shape \(3,\), client 0 of \(4,\)"
    ):
        learning(validation=(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long)))
    with pytest.raises(
        InvalidData, match=r"^validation must be one data set or 3 \(one per client\), got 2"
    ):
        learning(validation=[samples(4, 1), samples(4, 2)])
    clients = [(torch.randn(4, 4), torch.randn(4, 2)) for _ in range(3)]
    gaps = (torch.randn(4, 4), torch.full((4, 2), torch.nan))
    with pytest.raises(
        InvalidData, match=r"^validation has a loss of nan at the initial model; clean the data"
    ):
        Learning(model(), nn.MSELoss(), clients, clients[0], validation=gaps)


# --- in the place of test data -----------------------------------------------------------------------
def test_a_problem_on_its_validation_data_has_no_test_data() -> None:
    """Without validation data a fifth is held out, at most as many as the test data are."""
    for given, count, sizes in (
        ({}, 4, [8, 6, 1]),
        ({"validation": 0.3}, 6, [7, 5, 1]),
        ({"validation": samples(6, 200)}, 6, list(SIZES)),
        ({"test": samples(2, 100)}, 2, [8, 6, 1]),
        ({"test": None}, 4, [8, 6, 1]),
    ):
        drawn = learning(**given).on_validation_data().draw(0)
        assert drawn.data.test is not None
        assert len(drawn.data.test) == count
        assert drawn.sizes().tolist() == sizes
        assert set(drawn.metrics) == {"accuracy"}
        tests = samples(9, 100)[0][:, 0].tolist()
        assert isinstance(drawn.data.test.samples, Samples)
        assert not set(drawn.data.test.samples.inputs[:, 0].tolist()) & set(tests)


def test_each_client_is_validated_on_its_own_samples_if_it_is_tested_so() -> None:
    tests = [samples(5, 300 + number) for number in range(3)]
    problem = learning(test=tests)
    drawn = problem.on_validation_data().draw(0)
    assert drawn.data.test is not None
    assert drawn.data.test.ranges is not None
    assert drawn.data.test.ranges.tolist() == [[0, 2], [2, 3], [3, 4]]
    single = learning(clients=[samples(n, n) for n in (5, 1, 5)], test=tests)
    with pytest.raises(InvalidInput, match=r"^client 1 holds 1 sample"):
        single.on_validation_data().draw(0)


# --- in runs -----------------------------------------------------------------------------------------
def test_runs_record_validation_metrics() -> None:
    frame = spodgt.train("spod-gt", learning(validation=0.3), RING, rounds=6, seeds=[0, 1]).frame
    for column in (
        "accuracy",
        "validation_accuracy",
        "validation_loss",
        "validation_accuracy_worst",
    ):
        assert frame[column].notna().all()
    assert frame["validation_loss"].nunique() > frame["round"].nunique(), (
        "each seed has a split of its own"
    )


def test_runs_without_validation_data_are_as_before() -> None:
    frame = spodgt.train("spod-gt", learning(), RING, rounds=2).frame
    assert not [name for name in frame if str(name).startswith("validation")]


def test_configs_hold_out_a_fraction() -> None:
    tables = {"problem": {"kind": "classification", "validation": 0.25}, "network": {"clients": 4}}
    experiment = Experiment.parse(tables)
    assert experiment.to_dict()["problem"]["validation"] == 0.25
    assert "validation_accuracy" in experiment.draw(0).problem.metrics
    assert "validation" not in Experiment().to_dict()["problem"]
    with pytest.raises(
        InvalidInput, match=r"problem\.validation must be a fraction above 0 and below 1, got 2"
    ):
        Experiment.parse({"problem": {"validation": 2}})
    with pytest.raises(InvalidInput, match=r"evaluate_on='tests' is not known; use 'validation'"):
        Experiment.parse({"run": {"evaluate_on": "tests"}})


def test_texts_have_validation_perplexity() -> None:
    tables = {"problem": {"kind": "text", "validation": 0.1, "width": 4, "depth": 1, "context": 8}}
    problem = Experiment.parse(tables | {"network": {"clients": 3}}).draw(0).problem
    x = problem.start(0)[:1]
    found = problem.evaluate(x).metrics
    assert set(found) == set(problem.metrics)
    torch.testing.assert_close(found["validation_perplexity"], found["validation_loss"].exp())
