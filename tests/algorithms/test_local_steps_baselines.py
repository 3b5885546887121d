"""Where averaging and pseudo-gradients end, for which local-gt is exact."""

from __future__ import annotations

import numpy as np
import torch
from torch.testing import assert_close

from spodgt.algorithms import method
from spodgt.network import Network, graphs
from spodgt.participation import Bernoulli
from spodgt.problems import Quadratic
from tests.helpers import final, make_run, states


def test_row_stochastic_averaging_ends_near_the_minimiser_by_perron_weights() -> None:
    problem = Quadratic.random(5, 2, seed=1, condition=3)
    network = Network.draw(graphs.ErdosRenyi(5, 0.4), seed=1)
    perron = np.linalg.matrix_power(network.A, 500)[0]
    run = make_run(method("local-sgd", step_size=0.002, local_steps=2), problem, network)
    x = final(run, 8000).x
    weighted = problem.optimum(perron)
    assert float((x - weighted).norm(dim=1).max()) < 0.02
    assert float((x - problem.optimum()).norm(dim=1).min()) > 0.05


def test_baselines_are_biased_where_local_gt_is_exact() -> None:
    """Clients that take different numbers of local steps."""
    biased = ["tracked-diloco", "local-sgp", "local-sgd", "fedavg"]
    problem = Quadratic.random(5, 2, seed=1, condition=3)
    network = Network.draw(graphs.ErdosRenyi(5, 0.4), seed=1)
    participation = Bernoulli(np.linspace(0.2, 1, 5), 0.7)
    errors = {}
    for each in (*biased, "local-gt", "scaffold"):
        algorithm = method(each, step_size=0.05, local_steps=8)
        run = make_run(algorithm, problem, network, participation, seed=1)
        errors[each] = float((final(run, 3000).x - problem.optimum()).norm(dim=1).max())
    assert errors["local-gt"] < 1e-8
    assert errors["scaffold"] < 1e-8
    assert min(errors[name] for name in biased) > 1e-2


def test_pseudo_gradients_are_conserved() -> None:
    problem = Quadratic.random(5, 2, seed=1, noise=0.5)
    network = Network.draw(graphs.ErdosRenyi(5, 0.4), seed=1)
    algorithm = method("tracked-diloco", step_size=0.05, local_steps="1-6", nesterov=0.5)
    run = make_run(algorithm, problem, network, Bernoulli(0.5, 0.5), seed=1)
    for state in states([run], 60):
        assert_close(state.y.sum(0), state.c.sum(0), rtol=0, atol=1e-12)


def test_control_variates_of_scaffold_are_the_gradients_at_the_optimum() -> None:
    problem = Quadratic.random(5, 2, seed=1, condition=3)
    network = Network.draw(graphs.ErdosRenyi(5, 0.4), seed=1)
    run = make_run(method("scaffold", step_size=0.05), problem, network, Bernoulli(0.5, 1.0))
    state = final(run, 2000)
    x = state.x
    assert_close(x, problem.optimum().expand(5, 2), rtol=0, atol=1e-9)
    gradients = problem.full(x, np.arange(5))[1]
    assert_close(state.own, gradients, rtol=0, atol=1e-8)
    assert_close(state.c, torch.zeros_like(x), rtol=0, atol=1e-8)
