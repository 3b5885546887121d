"""Methods of this package against published recursions, written down here once more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from spodgt.algorithms import method
from spodgt.network import Network, graphs
from spodgt.participation import Bernoulli
from spodgt.problems import Quadratic
from spodgt.types import Floats
from tests.helpers import make_run, states

STEP = 0.05
ROUNDS = 60
# The parent of every client; client 0 is the root.
STAR = [0, 0, 0, 0, 0, 0, 0]
BINARY = [0, 0, 0, 1, 1, 2, 2]


def gradient(problem: Quadratic, x: Floats) -> Floats:
    return np.asarray(np.einsum("mij,mj->mi", problem.H.numpy(), x - problem.c.numpy()))


# --- relay and B-ary tree push-pull [you2024bary] -------------------------------------------------------
def tree_matrix(parents: list[int]) -> Floats:
    """R of BTPP: a client takes over the model of its parent, the root keeps its own; C = Rᵀ."""
    R = np.zeros((len(parents), len(parents)))
    R[np.arange(len(parents)), parents] = 1.0
    return R


def btpp(problem: Quadratic, parents: list[int], x: Floats, *, only_root: bool) -> Floats:
    """x⁺ = R (x - η/n y), y⁺ = C y + g⁺ - g; with `only_root` no other node subtracts its tracker."""
    R = tree_matrix(parents)
    C = R.T
    rates = np.full((len(parents), 1), STEP / len(parents))
    if only_root:
        rates[1:] = 0.0
    g = gradient(problem, x)
    y = g
    models = [x]
    for _ in range(ROUNDS):
        x = R @ (x - rates * y)
        new = gradient(problem, x)
        y = C @ y + new - g
        g = new
        models.append(x)
    return np.array(models)


@dataclass
class TreeRound:
    """A round of `relay` once all clients know the trees; in round 0 only the root computes."""

    k: int
    problem: Quadratic
    R: Tensor

    @property
    def computes(self) -> Tensor:
        return (
            torch.arange(len(self.R))[:, None] == 0
            if self.k == 0
            else torch.ones(len(self.R), 1).bool()
        )

    @property
    def reset_tracker(self) -> Tensor:
        return torch.zeros(len(self.R), 1, dtype=torch.bool)

    @property
    def step_weight(self) -> Tensor:
        lead = torch.zeros(len(self.R), 1, dtype=torch.float64)
        lead[0] = 1 / len(self.R)
        return lead

    def pull(self, x: Tensor) -> Tensor:
        return self.R @ x

    def push(self, y: Tensor) -> Tensor:
        return self.R.T @ y

    def grad(self, x: Tensor) -> Tensor:
        return self.computes * torch.from_numpy(gradient(self.problem, x.numpy()))


def relay_on_a_tree(problem: Quadratic, parents: list[int], x: Floats) -> Floats:
    algorithm: Any = method("relay", step_size=STEP)
    R = torch.from_numpy(tree_matrix(parents))
    state = algorithm.init(torch.from_numpy(x), TreeRound(0, problem, R))
    models = [state.x.numpy()]
    for k in range(1, ROUNDS + 1):
        state = algorithm.step(state, TreeRound(k, problem, R))
        models.append(state.x.numpy())
    return np.array(models)


@pytest.mark.parametrize(
    ("parents", "only_root"),
    [
        pytest.param(STAR, False, id="star: BTPP itself"),
        pytest.param(BINARY, True, id="binary tree: BTPP whose root alone steps"),
    ],
)
def test_relay_with_everyone_present_is_btpp(parents: list[int], only_root: bool) -> None:
    """The roots have the same models; the others have in relay what they have in BTPP one round before.

    BTPP steps before it mixes, relay after: a client copies its parent's model before that has stepped. In
    turn gradients reach the root's step one round earlier, so clients begin one round later here.
    """
    problem = Quadratic.random(7, 3, seed=1, condition=3)
    x = np.tile(np.random.default_rng(0).standard_normal(3), (7, 1))
    theirs = btpp(problem, parents, x, only_root=only_root)
    ours = relay_on_a_tree(problem, parents, x)
    assert abs(theirs[-1] - theirs[0]).max() > 0.1
    np.testing.assert_allclose(ours[:, 0], theirs[:, 0], rtol=0, atol=1e-12)
    np.testing.assert_allclose(ours[1:, 1:], theirs[:-1, 1:], rtol=0, atol=1e-12)


# --- spod-gt-memory and push-pull with device sampling [hsieh2023push] --------------------------------------
def matrices(run: Any, k: int) -> tuple[Floats, Floats]:
    """Â and B̂ of round k: rows of the first and columns of the second sum to one."""
    network = run.network
    works = run.availability.links(range(k, k + 1)).pull[0]
    A = np.zeros((network.clients, network.clients))
    B = np.zeros_like(A)
    A[network.receivers, network.senders] = network.a * works
    B[network.receivers, network.senders] = network.b * works
    return A + np.diag(1 - A.sum(1)), B + np.diag(1 - B.sum(0))


def test_spod_gt_memory_is_push_pull_with_device_sampling_but_for_the_order() -> None:
    """Sampled gradients G, random Â and B̂: w⁺ = Â⁺ (w - η y), y⁺ = B̂⁺ (y + G⁺ - G).

    w is Âx and y is B̂y of `spod-gt-memory`. What differs is where gradients are taken: at w - η y, before
    models are mixed; push-pull with device sampling takes them at w⁺.
    """
    network = Network.draw(graphs.ErdosRenyi(6, 0.5), seed=2, weights="random")
    problem = Quadratic.random(6, 3, seed=1)
    x = np.random.default_rng(1).standard_normal((6, 3))
    algorithm = method("spod-gt-memory", step_size=STEP)
    run = make_run(algorithm, problem, network, Bernoulli(0.6, 0.6), x0=x, seed=3)
    kept = states([run], ROUNDS)

    sampled = run.availability.computes(range(ROUNDS + 1))[:, :, None]
    G = sampled[0] * gradient(problem, x)
    A, B = matrices(run, 1)
    w = A @ x
    y = B @ G
    for k in range(1, ROUNDS + 1):
        x = w - STEP * y
        new = np.where(sampled[k], gradient(problem, x), G)
        np.testing.assert_allclose(kept[k].x, x, rtol=0, atol=1e-12)
        np.testing.assert_allclose(kept[k].y, y + new - G, rtol=0, atol=1e-12)
        A, B = matrices(run, k + 1)
        w = A @ x
        y = B @ (y + new - G)
        G = new
