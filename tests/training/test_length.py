"""The length of runs in epochs, and the default number of evaluations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

import spodgt
from spodgt.errors import InvalidInput
from spodgt.experiment import Experiment
from spodgt.training import api

NETWORK = spodgt.Network.ring(3)
GENERATOR = torch.Generator().manual_seed(0)


def blobs(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(count, 4, generator=GENERATOR)
    return inputs, (inputs[:, 0] > 0).long()


SIZES = (300, 12, 50)  # of unequal clients; one holds less than a mini-batch
CLIENTS = [blobs(size) for size in SIZES]


def learning(**options: Any) -> spodgt.Learning:
    torch.manual_seed(0)
    return spodgt.Learning(nn.Linear(4, 2), nn.CrossEntropyLoss(), CLIENTS, **options)


def rounds_of(problem: spodgt.Learning, epochs: float, **options: Any) -> int:
    result = spodgt.train("spod-gt", problem, NETWORK, epochs=epochs, **options)
    return int(result.frame["round"].max())


# --- epochs --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("batch_size", "epochs", "rounds"),
    [
        (16, 1, 9),  # 362 samples, 16 + 12 + 16 in a round
        (16, 3, 25),
        (16, 0.01, 1),
        (None, 7, 7),  # full gradients
        ([60, 4, 10], 2, 10),  # 74 samples in a round
    ],
)
def test_an_epoch_uses_as_many_samples_as_all_clients_hold(
    batch_size: Any, epochs: float, rounds: int
) -> None:
    assert rounds_of(learning(batch_size=batch_size), epochs) == rounds


def test_all_methods_have_the_same_epochs() -> None:
    result = spodgt.compare(["spod-gt", "k-gt", "sgd"], learning(), NETWORK, epochs=2)
    samples_per_round = 16 + 12 + 16
    gradients = result.summary()["gradients"] / 3 - 1  # of each client, without the first one
    assert (gradients * samples_per_round >= 2 * sum(SIZES)).all()
    assert ((gradients - 1) * samples_per_round < 2 * sum(SIZES)).all()


def test_samples_that_are_held_out_are_not_counted() -> None:
    assert rounds_of(learning(batch_size=[10, 1, 1]), 1) == 31  # 362 / 12
    assert rounds_of(learning(batch_size=[10, 1, 1], validation=0.5), 1) == 16  # 181 / 12


def test_epochs_and_rounds_end_at_the_first_limit() -> None:
    assert rounds_of(learning(), 1, rounds=4) == 4
    assert rounds_of(learning(), 1, rounds=40) == 9


def test_epochs_can_be_extended(tmp_path: Path) -> None:
    options: dict[str, Any] = {"out": tmp_path / "run", "every": 5}
    assert rounds_of(learning(), 1, **options) == 9
    assert rounds_of(learning(), 2, resume=True, **options) == 17
    extended = spodgt.Result.read(tmp_path / "run").frame
    unbroken = spodgt.train("spod-gt", learning(), NETWORK, epochs=2, every=5).frame
    rows = extended[extended["round"] != 9].reset_index(drop=True)  # the end of the first call
    pd.testing.assert_frame_equal(rows, unbroken)
    with pytest.raises(
        InvalidInput, match=r"epochs is 2\.0 there and 1\.0 here; a run can be extended"
    ):
        rounds_of(learning(), 1, resume=True, **options)


CONFIG = """
[run]
methods = ["spod-gt"]
epochs = 2
seeds = 1

[network]
clients = 3
radius = 0.9

[problem]
kind = "python"
build = "problem.py:build"
"""
PROBLEM = """
import torch
from torch import nn

import spodgt


def build(clients):
    data = [(torch.randn(20 * (i + 1), 4), torch.zeros(20 * (i + 1)).long()) for i in range(clients)]
    return spodgt.Learning(nn.Linear(4, 2), nn.CrossEntropyLoss(), data, batch_size=10)
"""


def test_epochs_in_configs_and_on_the_command_line(tmp_path: Path, cli: Any) -> None:
    (tmp_path / "problem.py").write_text(PROBLEM)
    config = tmp_path / "run.toml"
    config.write_text(CONFIG)
    ends = []
    for number, options in enumerate([[], ["--epochs", "3"], ["--rounds", "5"]]):
        out = tmp_path / f"run-{number}"
        code, _, err = cli("run", config, "--out", out, "--quiet", *options)
        assert code == 0, err
        ends.append(pd.read_parquet(out / "metrics.parquet")["round"].max())
    assert ends == [8, 12, 5]  # 120 samples, 30 in a round
    summary = json.loads((tmp_path / "run-1" / "summary.json").read_text())
    assert summary["methods"][0]["rounds"] == 12


def test_epochs_in_sweeps_and_searches(tmp_path: Path) -> None:
    problem = learning(test=CLIENTS[0])
    swept = spodgt.sweep(
        "spod-gt", problem, NETWORK, grid={"epochs": [1, 2]}, out=tmp_path / "sweep"
    )
    assert sorted(swept.results["round"]) == [9, 17]
    tuned = spodgt.tune(["spod-gt"], problem, NETWORK, epochs=4, out=tmp_path / "tune")
    assert tuned.steps["spod-gt"] > 0
    assert tuned.experiment.run.epochs == 4


@pytest.mark.parametrize(
    ("problem", "options", "sentence"),
    [
        (spodgt.Quadratic.random(3, 2), {}, "epochs=2 needs a problem with samples"),
        (learning(), {"time": spodgt.Time(0.1)}, "epochs=2 counts rounds, which virtual time"),
    ],
)
def test_problems_without_epochs_are_refused(problem: Any, options: Any, sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        spodgt.train("spod-gt", problem, NETWORK, epochs=2, **options)


@pytest.mark.parametrize("epochs", [0, -1, float("inf")])
def test_epochs_are_numbers_above_zero(epochs: float) -> None:
    with pytest.raises(InvalidInput, match="epochs"):
        spodgt.train("spod-gt", learning(), NETWORK, epochs=epochs)


# --- evaluations ---------------------------------------------------------------------------------
def count(problem: Any, **options: Any) -> int:
    """Evaluations of a run, without those of its first and last round."""
    return len(spodgt.train("spod-gt", problem, NETWORK, **options).frame) - 1


@pytest.mark.parametrize("limit", [{"rounds": 500}, {"delay": 1500.0}])
def test_cheap_evaluations_are_fifty(limit: Any) -> None:
    assert count(learning(test=CLIENTS[0]), **limit) == 50
    assert count(spodgt.Quadratic.random(3, 2), **limit) == 50
    assert count(learning(test=CLIENTS[0]), evaluations=10, **limit) == 10


def test_expensive_evaluations_are_twenty_five(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = learning(test=CLIENTS[0])
    assert problem.evaluation_work == 4 * 300 * 10  # models, test samples, parameters
    monkeypatch.setattr(api, "_MAX_CHEAP_EVALUATION", 11999)
    assert count(problem, rounds=500) == 25


def test_runs_of_versions_that_wrote_the_default_are_continued(tmp_path: Path) -> None:
    """They have `evaluations = 25` in config.toml; the spacing of the first call stays."""
    options: dict[str, Any] = {"out": tmp_path / "run"}
    spodgt.train("spod-gt", learning(), NETWORK, rounds=100, evaluations=25, **options)
    result = spodgt.train("spod-gt", learning(), NETWORK, rounds=200, resume=True, **options)
    assert list(result.frame["round"]) == list(range(0, 201, 4))


def test_the_default_is_not_a_key_of_configs() -> None:
    tables = Experiment.parse({"run": {"rounds": 5}}).to_dict()
    assert not tables["run"].keys() & {"evaluations", "epochs"}
