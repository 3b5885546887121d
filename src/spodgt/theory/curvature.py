"""The largest curvature of each client's loss, by power iteration on Hessian-vector products."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from spodgt import rng
from spodgt.problems import Learning
from spodgt.problems.losses import Loss, stacked_loss
from spodgt.types import Floats

_BLOCK = 2048  # samples of one product
_ITERATIONS = 60
_CLOSE = 1e-3  # residual relative to the eigenvalue at which to stop
_FLAT = 1e-7  # curvature relative to the gradient below which there is none


def largest_eigenvalues(
    problem: Learning, points: Sequence[Tensor], seed: int
) -> tuple[Floats, Floats] | None:
    """max |λ(∇²F_i)| at each point and client, and its residual ‖Hv - λv‖.

    Returns:
        Two arrays (points, clients); None if every Hessian is zero.

    Raises:
        NotImplementedError: torch cannot differentiate the loss twice.
    """
    values = np.zeros((len(points), problem.clients))
    residuals = np.zeros_like(values)
    loss = _twice_differentiable(problem)
    module = copy.deepcopy(problem.model.module).float().eval()
    starts = torch.from_numpy(
        rng.generator(seed, "curvature").standard_normal((problem.clients, problem.parameters))
    ).to(points[0])
    for k, x in enumerate(points):
        for client in range(problem.clients):
            v = starts[client] / starts[client].norm()
            for _ in range(_ITERATIONS):
                Hv, slope = _hessian_times(problem, module, loss, x, v, client)
                size = float(Hv.norm())
                if size <= _FLAT * slope:
                    values[k, client] = 0.0
                    residuals[k, client] = 0.0
                    break
                rayleigh = float(v @ Hv)
                values[k, client] = abs(rayleigh)
                residuals[k, client] = float((Hv - rayleigh * v).norm())
                v = Hv / size
                if residuals[k, client] <= _CLOSE * abs(rayleigh):
                    break
            if values[k, client]:
                starts[client] = v  # the next point starts from this eigenvector
        if k == 0 and not values.any():
            return None  # without curvature at a generic point the loss is piecewise linear
    return values, residuals


def _twice_differentiable(problem: Learning) -> Loss:
    """The loss in a form with second derivatives, which some losses of torch do not have."""
    objective = problem.model.objective
    if objective.calls_model:
        raise NotImplementedError("a loss that calls the model itself")
    if objective.ignore_index is not None:
        return objective.loss_of
    return stacked_loss(objective.loss) or objective.loss


def _hessian_times(
    problem: Learning, module: nn.Module, loss: Loss, x: Tensor, v: Tensor, client: int
) -> tuple[Tensor, float]:
    """∇²F_i(x) v, and ‖∇F_i(x)‖."""
    n = problem.parameters
    own = torch.from_numpy(problem.client_indices[client])
    running = problem.model.columns.extra.unflatten(x[n:])
    scales = problem.loss_scales
    scale = 1.0 if scales is None else float(scales[client])
    product = torch.zeros(n)
    gradient = torch.zeros(n)
    for rows in torch.split(own, _BLOCK):
        inputs, targets = problem.samples.take(rows, x.dtype)
        with torch.enable_grad():
            theta = x[:n].detach().requires_grad_()
            outputs = functional_call(module, problem.layout.unflatten(theta) | running, (inputs,))
            part = loss(outputs, targets) * (scale * len(rows) / len(own))
            (g,) = torch.autograd.grad(part, theta, create_graph=True)
            gradient += g.detach()
            if g.requires_grad:  # a loss that is linear in the model has a constant gradient
                try:
                    (Hv,) = torch.autograd.grad(g @ v, theta, allow_unused=True)
                except RuntimeError as error:
                    raise NotImplementedError(str(error)) from error
                product += 0 if Hv is None else Hv
    return product, float(gradient.norm())
