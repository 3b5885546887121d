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
    """(points, clients) of max |λ(∇²F_i)| and of its residual ‖Hv - λv‖; None where every Hessian is zero.

    NotImplementedError where torch cannot differentiate the loss twice.
    """
    values = np.zeros((len(points), problem.clients))
    residuals = np.zeros_like(values)
    # the losses here can be differentiated twice, some of torch's own cannot
    objective = problem.model.objective
    if objective.calls_model:
        raise NotImplementedError("a loss that calls the model itself")
    loss = stacked_loss(objective.loss) or objective.loss
    if objective.ignore_index is not None:
        loss = objective.of
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
                    values[k, client] = residuals[k, client] = 0.0
                    break
                rayleigh = float(v @ Hv)
                values[k, client], residuals[k, client] = (
                    abs(rayleigh),
                    float((Hv - rayleigh * v).norm()),
                )
                v = Hv / size
                if residuals[k, client] <= _CLOSE * abs(rayleigh):
                    break
            if values[k, client]:
                starts[client] = v  # the next point starts from this eigenvector
        if k == 0 and not values.any():
            return None  # a loss without curvature at one point in general position is piecewise linear
    return values, residuals


def _hessian_times(
    problem: Learning, module: nn.Module, loss: Loss, x: Tensor, v: Tensor, client: int
) -> tuple[Tensor, float]:
    """∇²F_i(x) v, and ‖∇F_i(x)‖."""
    n, own = problem.parameters, torch.from_numpy(problem.client_indices[client])
    running = problem.model.columns.extra.unflatten(x[n:])
    scales = problem.loss_scales
    scale = 1.0 if scales is None else float(scales[client])
    product, gradient = torch.zeros(n), torch.zeros(n)
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
