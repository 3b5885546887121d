"""The objective Σ w_i F_i / Σ w_i: the same for gradients, records, baselines and theory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import spodgt
from spodgt import rng
from spodgt.errors import InvalidInput
from spodgt.experiment import Experiment
from spodgt.problems.data import Dirichlet
from spodgt.record import Record
from spodgt.report.tables import final_table
from spodgt.types import Minibatches

WEIGHTS = {"equal": (1, 1, 1), "samples": (4, 6, 12), "given": (1, 2, 5)}


class Bias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.b.expand(len(x), 1)


def constant(count: int, value: float) -> tuple[Tensor, Tensor]:
    return torch.zeros(count, 1), torch.full((count, 1), value)


def problem_of(weighting: str, model: nn.Module | None = None, **options: Any) -> spodgt.Learning:
    """Three clients of 4, 6 and 12 samples."""
    draws = torch.Generator().manual_seed(3)
    data = []
    for size in WEIGHTS["samples"]:
        inputs = torch.randn(size, 5, generator=draws)
        data.append((inputs, inputs[:, :3].argmax(1)))
    weights: Any = WEIGHTS["given"] if weighting == "given" else weighting
    torch.manual_seed(0)
    model = nn.Linear(5, 3) if model is None else model
    return spodgt.Learning(model, nn.CrossEntropyLoss(), data, client_weights=weights, **options)


# --- what is minimised ----------------------------------------------------------------------------------
OPTIMA: list[tuple[Any, float]] = [("equal", 0.5), ("samples", 9 / 909), ([1.0, 3.0], 0.75)]
OTHERS = ("fedavg", "sgd", "mifa", "k-gt", "relay")


@pytest.mark.parametrize(
    ("name", "weights", "optimum"),
    [
        *(("spod-gt-memory", *case) for case in OPTIMA),
        *((name, "samples", 9 / 909) for name in OTHERS),
        *(pytest.param(name, "equal", 0.5, marks=pytest.mark.slow) for name in OTHERS),
        *(pytest.param(name, [1.0, 3.0], 0.75, marks=pytest.mark.slow) for name in OTHERS),
    ],
)
def test_all_methods_minimise_the_weighted_mean(name: str, weights: Any, optimum: float) -> None:
    """900 zeros against 9 ones."""
    data = [constant(900, 0.0), constant(9, 1.0)]
    problem = spodgt.Learning(Bias(), nn.MSELoss(), data, batch_size=None, client_weights=weights)
    method = spodgt.method(name, step_size=0.04)
    result = spodgt.train(
        method, problem, spodgt.Network.draw(spodgt.graphs.Complete(2)), rounds=400, every=400
    )
    assert float(result.state_dict()["b"]) == pytest.approx(optimum, abs=1e-4)
    last = result.frame.iloc[-1]
    assert last["train_loss"] == pytest.approx(optimum * (1 - optimum), abs=1e-4)
    assert last["gradient_norm"] == pytest.approx(0, abs=1e-3)


def test_local_steps_of_fedavg_have_no_bias() -> None:
    """The server weighs models: long local steps of clients with the same curvature end at the optimum."""
    data = [constant(900, 0.0), constant(9, 1.0)]
    problem = spodgt.Learning(Bias(), nn.MSELoss(), data, batch_size=None, client_weights="samples")
    method = spodgt.method("fedavg", step_size=0.3, local_steps=7)
    result = spodgt.train(
        method, problem, spodgt.Network.draw(spodgt.graphs.Complete(2)), rounds=70, every=70
    )
    assert float(result.state_dict()["b"]) == pytest.approx(9 / 909, abs=1e-6)


@pytest.mark.parametrize("weighting", WEIGHTS)
@pytest.mark.parametrize("model", ["linear", "network"])
def test_mean_of_gradients_is_the_gradient_of_the_weighted_mean(weighting: str, model: str) -> None:
    given = (
        nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)) if model == "network" else None
    )
    problem = problem_of(weighting, given, batch_size=None)
    x = problem.start(0).double()
    losses, full = problem.full(x, np.arange(3))
    rows = np.arange(3)
    g = problem.grad(x, Minibatches(rows, np.repeat(rng.key(0, "batch"), 3), rows, 1))
    torch.testing.assert_close(g, full, rtol=1e-6, atol=1e-8)

    module = problem.module(problem.start(0)[0]).double()
    weights = torch.tensor(WEIGHTS[weighting], dtype=torch.float64)
    own = [
        nn.functional.cross_entropy(
            module(problem.samples.inputs[held].double()), problem.samples.targets[held]
        )
        for held in (problem.client_indices[client] for client in range(3))
    ]
    expected = (weights * torch.stack(own)).sum() / weights.sum()
    assert float(losses.mean()) == pytest.approx(expected.item(), rel=1e-6)
    torch.autograd.backward(expected)
    flat = torch.cat(
        [
            parameter.grad.flatten()
            for parameter in module.parameters()
            if parameter.grad is not None
        ]
    )
    torch.testing.assert_close(full.mean(0), flat, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("name", ["spod-gt", "dsgd", "fedavg"])
def test_seeds_in_a_batch_are_weighted_as_alone(name: str) -> None:
    """Partitions differ by seed, so do the numbers of samples."""
    problem = spodgt.problems.classification(
        clients=4, partition=Dirichlet(0.3), client_weights="samples", batch_size=4
    )
    network = spodgt.Network.draw(spodgt.graphs.Complete(4))
    both = spodgt.train(
        name, problem, network, rounds=6, seeds=[1, 2], gradient_norm=True, dtype=torch.float64
    )
    for seed in (1, 2):
        alone = spodgt.train(name, problem, network, rounds=6, seeds=[seed], dtype=torch.float64)
        torch.testing.assert_close(both.models[name, seed], alone.models[name, seed])
    weights = both.clients.groupby("seed")["weight"].sum()
    assert weights.tolist() == pytest.approx([1, 1])
    shares = both.clients["samples"] / both.clients.groupby("seed")["samples"].transform("sum")
    assert both.clients["weight"].tolist() == pytest.approx(shares.tolist())


def test_a_part_of_the_samples_keeps_the_weights_of_all() -> None:
    from spodgt.problems.data.samples import ClientIndices

    problem = problem_of("samples")
    parts = [problem.client_indices[client][:2] for client in range(3)]
    thin = problem.with_client_indices(ClientIndices.from_parts(parts))
    assert problem.loss_scales is not None
    assert thin.loss_scales is not None
    assert thin.loss_scales.tolist() == problem.loss_scales.tolist()


# --- said, written, refused -----------------------------------------------------------------------------
def test_the_objective_is_recorded(tmp_path: Path) -> None:
    network = spodgt.Network.draw(spodgt.graphs.Complete(3))
    for weighting, words in (
        ("equal", "every client weighs the same"),
        ("samples", "numbers of samples"),
    ):
        result = spodgt.train(
            "sgd", problem_of(weighting), network, rounds=1, out=tmp_path / weighting
        )
        assert words in result.objective
        assert words in Record.read(tmp_path / weighting).objective
        assert words in final_table(result).note
    assert "client_weights" in result.config["problem"]["settings"]
    with pytest.raises(InvalidInput, match="client_weights"):
        spodgt.train(
            "sgd", problem_of("given"), network, rounds=1, out=tmp_path / "samples", resume=True
        )


def test_a_config_says_how_clients_weigh() -> None:
    tables = {
        "problem": {"client_weights": "samples", "partition": {"kind": "dirichlet", "alpha": 0.5}}
    }
    experiment = Experiment.parse(tables)
    assert Experiment.parse(experiment.to_dict()).problem == experiment.problem
    problem = experiment.draw(0).problem
    assert isinstance(problem, spodgt.Learning)
    assert problem.weighting == "samples"
    with pytest.raises(InvalidInput, match=r"problem\.client_weights='size' is not known"):
        Experiment.parse({"problem": {"client_weights": "size"}})


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ("size", "client_weights='size' is not known; use 'equal'"),
        ([1.0, 2.0], "3 numbers, one per client, got 2 numbers"),
        ([1.0, 0.0, 2.0], "numbers above 0, got 0.0"),
        ([1.0, float("nan"), 2.0], "numbers above 0, got nan"),
        (5, "got 5"),
    ],
)
def test_bad_weights_are_refused(weights: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        spodgt.Learning(Bias(), nn.MSELoss(), [constant(3, 0.0)] * 3, client_weights=weights)


def test_one_client_of_many_takes_its_weight_from_those_of_all() -> None:
    """As the problem of a peer, which has its own data alone."""
    data = {"north": constant(900, 0.0), "south": constant(9, 1.0)}
    sizes = {"north": 900, "south": 9}
    both = spodgt.Learning(Bias(), nn.MSELoss(), data, client_weights=sizes)
    assert both.loss_scales is not None
    for client, name in enumerate(data):
        one = spodgt.Learning(Bias(), nn.MSELoss(), {name: data[name]}, client_weights=sizes)
        assert one.loss_scales is not None
        assert one.loss_scales[0] == pytest.approx(both.loss_scales[client])


def test_theory_estimates_follow_the_weights() -> None:
    from spodgt.theory.curvature import largest_eigenvalues

    def curvatures(weighting: str) -> Any:
        problem = problem_of(weighting)
        found = largest_eigenvalues(problem, [problem.start(0)[0]], 0)
        assert found is not None
        return found[0][0]

    scales = problem_of("given").loss_scales
    np.testing.assert_allclose(curvatures("given"), scales * curvatures("equal"), rtol=1e-2)
