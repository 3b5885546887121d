"""Estimates on problems whose constants are known."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from spodgt import Learning, Quadratic, theory
from spodgt.errors import InvalidInput
from spodgt.theory.curvature import largest_eigenvalues
from spodgt.theory.estimates import fit
from spodgt.types import Minibatches


def clients(
    count: int = 3, samples: int = 40, features: int = 4, classes: int = 3, seed: int = 0
) -> list[tuple[Tensor, Tensor]]:
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        inputs = draw.normal(size=(samples, features)) + draw.normal(size=features)
        found.append(
            (torch.from_numpy(inputs).float(), torch.from_numpy(draw.integers(0, classes, samples)))
        )
    return found


def least_squares(data: list[tuple[Tensor, Tensor]]) -> Learning:
    """Targets are numbers: F_i is quadratic with Hessian 2 mean(aaᵀ)."""
    targets = [x @ torch.arange(1.0, x.shape[1] + 1) / 3 + 0.1 * x[:, 0].sin() for x, _ in data]
    pairs = [(x, y[:, None]) for (x, _), y in zip(data, targets, strict=True)]
    return Learning(nn.Linear(4, 1, bias=False), nn.MSELoss(), pairs, batch_size=5)


def test_quadratic_is_exact() -> None:
    problem = Quadratic.random(4, 3, seed=1, noise=0.3)
    found = theory.estimate(problem)
    H, c = problem.H.numpy(), problem.c.numpy()
    assert found.curvature == "exact"
    assert found.L.value == pytest.approx(np.linalg.eigvalsh(H)[:, -1])
    assert found.sigma0.value == pytest.approx(np.full(4, 0.3 * np.sqrt(3)))
    assert not found.sigma1.value.any()
    # |∇F_i|² <= δ₀² + δ₁²|∇F|² holds everywhere, and is touched
    x = np.random.default_rng(0).normal(size=(20000, 3)) * np.geomspace(0.1, 30, 20000)[:, None]
    own = np.einsum("iab,nib->nia", H, x[:, None] - c)
    bound = found.delta0.value**2 + found.delta1.value**2 * (own.mean(1) ** 2).sum(
        -1, keepdims=True
    )
    ratio = (own**2).sum(-1) / bound
    assert ratio.max() <= 1 + 1e-12
    assert (ratio.max(0) > 0.9).all()


def test_power_iteration_finds_the_curvature_of_least_squares() -> None:
    data = clients()
    problem = least_squares(data)
    found = theory.estimate(problem)
    assert found.curvature == "power iteration"
    exact = [np.linalg.eigvalsh(2 * (x.T @ x / len(x)).double().numpy())[-1] for x, _ in data]
    assert found.L.value == pytest.approx(exact, rel=1e-3)
    assert (found.L.low <= found.L.value).all()
    assert (found.L.high >= found.L.value).all()
    assert found.batch.tolist() == [5, 5, 5]
    assert found.samples.tolist() == [40, 40, 40]


def test_curvature_of_logistic_regression() -> None:
    """Against the Hessian written out: mean over samples of (diag s - ssᵀ) ⊗ aaᵀ, s the softmax."""
    data = clients()
    problem = Learning(nn.Linear(4, 3), nn.CrossEntropyLoss(), data)
    x = problem.start(3)[0]
    found = largest_eigenvalues(problem, [x], seed=0)
    assert found is not None
    values, residuals = found
    for client, (inputs, _) in enumerate(data):
        a = torch.cat([inputs, torch.ones(len(inputs), 1)], 1).double()
        W = torch.cat([x[:12].reshape(3, 4), x[12:, None]], 1).double()
        s = torch.softmax(a @ W.T, 1)
        middle = torch.diag_embed(s) - s[:, :, None] * s[:, None]
        H = torch.einsum("ncd,na,nb->cadb", middle, a, a).reshape(15, 15) / len(a)
        exact = float(torch.linalg.eigvalsh(H)[-1])
        assert values[0, client] == pytest.approx(exact, rel=1e-4)
        assert abs(values[0, client] - exact) <= residuals[0, client] + 1e-5
    assert (theory.estimate(problem, seed=3, points=4).L.value >= values[0] * (1 - 1e-4)).all()


def test_noise_of_mini_batches() -> None:
    """At the first point, s(σ₀² + σ₁²|∇F|²) is the variance of mini-batches as they are drawn."""
    problem = least_squares(clients())
    found = theory.estimate(problem, points=12, draws=40)  # all samples: no error of sampling
    x = problem.start(0)
    rows, rounds = np.arange(3), 800
    _, full = problem.full(x, rows)
    square = np.zeros(3)
    for k in range(rounds):
        g = problem.grad(x, Minibatches(rows, np.full(3, 7, np.uint64), rows, k))
        square += (g - full).square().sum(1).double().numpy() / rounds
    s = (1 - 5 / 40) / 5
    bounding: Any = found.bounding()
    bound = s * (bounding.sigma0**2 + bounding.sigma1**2 * found.gradient_norms[0] ** 2)
    assert (square <= bound * 1.1).all()
    fitted = s * (found.sigma0.value**2 + found.sigma1.value**2 * found.gradient_norms[0] ** 2)
    assert square == pytest.approx(fitted, rel=0.3)


def test_hinges_have_no_curvature() -> None:
    problem = Learning(nn.Linear(4, 3), nn.MultiMarginLoss(), clients())
    found = theory.estimate(problem, points=8)
    assert found.curvature == "secants"
    assert any("piecewise linear" in note for note in found.notes)
    assert (found.L.value > 0).all()
    assert np.isinf(found.L.high).all()
    assert found.as_dict()["L"]["high"] == ["inf"] * 3


def test_losses_that_torch_cannot_differentiate_twice() -> None:
    problem = Learning(nn.Linear(4, 3), nn.MultiMarginLoss(p=2), clients(samples=10))
    found = theory.estimate(problem, points=5)
    assert found.curvature == "secants"
    assert any("cannot differentiate" in note for note in found.notes)


def test_bounds_hold_at_every_point_and_few_samples_are_said() -> None:
    found = theory.estimate(least_squares(clients(samples=60)), points=10, most=30)
    assert any("30 samples" in note for note in found.notes)
    for one in (found.sigma0, found.sigma1, found.delta0, found.delta1):
        assert (one.low <= one.value).all()
        assert (one.value <= one.high).all()
    with pytest.raises(InvalidInput, match="points must be at least 3"):
        theory.estimate(least_squares(clients()), points=1)
    with pytest.raises(InvalidInput, match="problem must be"):
        theory.estimate(None)  # type: ignore[arg-type]


def test_running_statistics_are_carried() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    problem = Learning(model, nn.CrossEntropyLoss(), clients(), buffers="pull")
    assert (theory.estimate(problem, points=4).L.value > 0).all()


def test_fit_is_non_negative_least_squares() -> None:
    from scipy.optimize import nnls

    draw = np.random.default_rng(0)
    square = draw.random(9)
    for slope, level in ((2.0, 1.0), (-1.0, 3.0), (3.0, -0.5), (0.0, 0.0)):
        response = np.maximum(level + slope * square + 0.3 * draw.normal(size=(4, 9)), 0)
        a, b = fit(square, response)
        for row, found in zip(response, zip(a, b, strict=True), strict=True):
            expected, _ = nnls(np.stack([np.ones(9), square], 1), row)
            assert found == pytest.approx(expected, abs=1e-9)
