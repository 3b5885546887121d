"""Optimizers of torch.optim inside methods: one for each client, exactly as torch computes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from spodgt.algorithms import Cosine, method
from spodgt.algorithms.compose.optimizer import OPTIMIZERS
from spodgt.errors import InvalidInput
from spodgt.network import Network, graphs
from spodgt.participation import Bernoulli
from spodgt.problems import Quadratic
from tests.helpers import make_run, states

ARGUMENTS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1},
    "Adam": {"betas": [0.8, 0.9], "amsgrad": True},
    "AdamW": {"weight_decay": 0.1},
    "NAdam": {},
    "RAdam": {"betas": [0.5, 0.6]},
    "Adamax": {},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Adagrad": {"initial_accumulator_value": 0.2},
    "Adadelta": {"rho": 0.5},
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("step_size", [0.05, Cosine(0.05, 20)], ids=str)
def test_a_client_without_links_is_a_torch_training_loop(name: str, step_size: Any) -> None:
    """Two clients that are idle in different rounds, against torch.optim with its learning rate."""
    problem = Quadratic.random(2, 3, seed=1, condition=3)
    network = Network.draw(graphs.Complete(2))
    fields = {"local_steps": 10**6, "optimizer": {"name": name, **ARGUMENTS[name]}}
    algorithm = method("local-gt", step_size=step_size, **fields)
    run = make_run(algorithm, problem, network, Bernoulli(0.6, 1.0), seed=3)
    ours = states([run], 20)
    computes = run.availability.computes(range(20))
    for client in range(2):
        x = ours[0].x[client].clone()
        optimizer = getattr(torch.optim, name)([x], lr=1.0, **ARGUMENTS[name])
        for k in range(1, 21):
            if computes[k - 1, client]:
                rate = step_size.at(k) if isinstance(step_size, Cosine) else step_size
                optimizer.param_groups[0]["lr"] = float(rate)
                x.grad = problem.H[client] @ (x - problem.c[client])
                optimizer.step()
            assert_close(ours[k].x[client], x, rtol=1e-5, atol=1e-6)  # step numbers are float32


def test_every_client_counts_its_own_steps() -> None:
    problem = Quadratic.random(3, 2, seed=1)
    network = Network.ring(3)
    p = np.array([0.2, 0.5, 1.0])
    algorithm = method("local-gt", step_size=0.01, local_steps="1-3", optimizer="Adam")
    run = make_run(algorithm, problem, network, Bernoulli(p, 0.5), seed=1)
    counted = states([run], 30)[-1].optimizer_step.flatten().tolist()
    assert counted == run.availability.computes(range(30)).sum(0).tolist()


@pytest.mark.parametrize("name", ["spod-gt-memory", "fedavg", "dsgd", "mifa"])
def test_sgd_without_arguments_changes_nothing(name: str) -> None:
    network = Network.random_geometric(4, 0.9, seed=1)
    problem = Quadratic.random(4, 2, seed=1)
    ours = states([make_run(method(name, optimizer="SGD"), problem, network)], 12)
    plain = states([make_run(method(name), problem, network)], 12)
    assert_close(ours[-1].x, plain[-1].x, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("LBFGS", "optimizer of spod-gt must be one of SGD, Adam, "),
        ("Rprop", "optimizer of spod-gt must be one of SGD, Adam, "),
        ({"name": "Adam", "lr": 0.1}, "lr=0.1 of Adam is step_size; use step_size."),
        ({"name": "SGD", "beta": 1}, "beta=1 is not an argument of torch.optim.SGD; its arguments"),
        ({"name": "Adam", "betas": [2, 0]}, "optimizer of spod-gt: Invalid beta"),
        ({"momentum": 0.9}, "optimizer of spod-gt must be a name or a table such as"),
        (3, "optimizer of spod-gt must be a name or a table such as"),
    ],
    ids=str,
)
def test_bad_optimizers_are_refused(value: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        method("spod-gt", optimizer=value)
    assert str(caught.value).startswith(message)
