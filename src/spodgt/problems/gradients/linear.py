"""Gradients of a linear model: the closed form in torch, and one compiled pass that does the same.

The compiled pass draws the batch, scores it and adds up the slopes. Pixels are turned from bytes into floats
inside the loop, so the data stay small; a client reads its model once and writes its gradient once.
A model is (classes × features) weights, class by class, then `classes` biases if the layer has any.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spodgt.compiled import jit, jit_sum, share
from spodgt.problems.gradients import Engine, Many, Noise
from spodgt.problems.losses import LOSSES, Loss, add_losses, slopes
from spodgt.problems.samples import draw_batch
from spodgt.problems.trees import Tree


@dataclass(frozen=True, eq=False)
class LinearEngine(Engine):
    """A single linear layer: logits and gradients are batched matrix products."""

    features: int
    classes: int
    bias: bool
    loss: Loss  # one of LOSSES

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        W = x[:, : self.classes * self.features].reshape(-1, self.classes, self.features)
        b = x[:, self.classes * self.features :] if self.bias else x.new_zeros(len(x), self.classes)
        return W, b[:, None]

    def with_losses(self, x: Tensor, inputs: Many, targets: Many, noise: Noise) -> tuple[Tensor, Tensor]:
        assert isinstance(inputs, Tensor)
        W, b = self._split(x.detach())
        with torch.enable_grad():
            logits = torch.baddbmm(b, inputs.flatten(2), W.mT).requires_grad_()
            losses = self.loss(logits, targets)
            (slope,) = torch.autograd.grad(losses.sum(), logits)
        g = torch.empty_like(x)
        W = g[:, : self.classes * self.features].view(-1, self.classes, self.features)
        torch.bmm(slope.mT, inputs.flatten(2), out=W)
        if self.bias:
            g[:, self.classes * self.features :] = slope.sum(1)
        return losses.detach(), g

    def outputs(self, x: Tensor, inputs: Tree) -> Tensor:
        assert isinstance(inputs, Tensor)
        return self.products(x, inputs).mT + self._split(x)[1]

    def products(self, x: Tensor, inputs: Tensor) -> Tensor:
        """(models, classes, samples): outputs before the bias, one product for all models."""
        flat = self._split(x)[0].reshape(-1, self.features) @ inputs.flatten(1).T
        return flat.view(len(x), self.classes, len(inputs))


# --- compiled gradients -------------------------------------------------------------------------------
@jit_sum
def _four(W, p0, p1, p2, p3):  # type: ignore[no-untyped-def]
    """The scores of four samples p (features,) with the weights W (features,) of one class."""
    zero = W.dtype.type(0)
    t0, t1, t2, t3 = zero, zero, zero, zero
    for d in range(len(W)):
        t0 += W[d] * p0[d]
        t1 += W[d] * p1[d]
        t2 += W[d] * p2[d]
        t3 += W[d] * p3[d]
    return t0, t1, t2, t3


@jit_sum
def _one(W, p):  # type: ignore[no-untyped-def]
    """The score of one sample."""
    total = W.dtype.type(0)
    for d in range(len(W)):
        total += W[d] * p[d]
    return total


@jit
def _score(model, pixels, bias, scores):  # type: ignore[no-untyped-def]
    """scores (batch, classes) ← the outputs of `model` (parameters,) on `pixels` (batch, features)."""
    batch, features = pixels.shape
    classes = scores.shape[1]
    for c in range(classes):
        W = model[c * features : (c + 1) * features]
        b = model[classes * features + c] if bias else model.dtype.type(0)
        s = 0
        while s + 4 <= batch:  # four samples share one pass over the weights
            four = _four(W, pixels[s], pixels[s + 1], pixels[s + 2], pixels[s + 3])
            for n in range(4):
                scores[s + n, c] = four[n] + b
            s += 4
        while s < batch:
            scores[s, c] = _one(W, pixels[s]) + b
            s += 1


@jit
def _collect(scores, pixels, factor, bias, total, g, y, add):  # type: ignore[no-untyped-def]
    """g (parameters,) ← factor × gradient of one model; with `add`, y (parameters,) += its change.

    `scores` (batch, classes) holds the derivative of the loss by every score, `pixels` (batch, features)
    the samples; `total` (features,) is used as memory.
    """
    batch, features = pixels.shape
    classes, zero = scores.shape[1], total.dtype.type(0)
    for c in range(classes):
        for d in range(features):
            total[d] = 0
        slope, s = zero, 0
        while s < batch:
            four = s + 4 <= batch
            u0, u1, u2, u3 = scores[s, c], zero, zero, zero
            if four:
                u1, u2, u3 = scores[s + 1, c], scores[s + 2, c], scores[s + 3, c]
            slope += u0 + u1 + u2 + u3
            p0 = pixels[s]
            if not four:
                for d in range(features):
                    total[d] += u0 * p0[d]
            elif u0 != 0 or u1 != 0 or u2 != 0 or u3 != 0:  # hinges leave most slopes at zero
                p1, p2, p3 = pixels[s + 1], pixels[s + 2], pixels[s + 3]
                for d in range(features):
                    total[d] += u0 * p0[d] + u1 * p1[d] + u2 * p2[d] + u3 * p3[d]
            s += 4 if four else 1
        part = slice(c * features, (c + 1) * features)
        to_y, to_g = y[part], g[part]
        if add:
            for d in range(features):
                to_y[d] += factor * total[d] - to_g[d]
        for d in range(features):
            to_g[d] = factor * total[d]
        if bias:
            left = classes * features + c
            if add:
                y[left] += factor * slope - g[left]
            g[left] = factor * slope


@jit
def linear_gradients(state, add, models, batches, data, batch, weight, first, last):  # type: ignore[no-untyped-def]
    """g[at] ← weight × gradient at x[at] for at = models[first:last]; with `add`, y[at] += its change.

    `state` is x, g, y, each (models, parameters). For every task, `models` is the row of x, `batches` (a
    Minibatches) names its draw from `data` (a LinearData), `weight` multiplies its gradient; all are
    (tasks,). Every client draws `batch` samples.
    """
    (x, g, y), (rows, keys, places, k) = state, batches
    numbers, offsets, inputs, targets, scale, classes, bias, loss = data
    features = inputs.shape[1]
    pixels = np.empty((batch, features), x.dtype)
    scores = np.empty((batch, classes), x.dtype)
    total = np.empty(features, x.dtype)
    chosen = np.empty(batch, np.int64)
    unit = x.dtype.type(scale)
    for task in range(first, last):
        row, at = rows[task], models[task]
        start, size = offsets[row], offsets[row + 1] - offsets[row]
        draw_batch(keys[task], places[task], k, size, chosen)
        for s in range(batch):
            image, to = inputs[numbers[start + chosen[s]]], pixels[s]
            for d in range(features):
                to[d] = unit * x.dtype.type(image[d])
        _score(x[at], pixels, bias, scores)
        for s in range(batch):
            slopes(loss, scores[s], targets[numbers[start + chosen[s]]], batch)
        _collect(scores, pixels, x.dtype.type(weight[task]), bias, total, g[at], y[at], add)


# --- compiled evaluation ------------------------------------------------------------------------------
@jit
def _grade(x, products, targets, bias, loss, losses, right, first, last):  # type: ignore[no-untyped-def]
    """losses[n] += losses and right[n] += right answers of the models n = first … last - 1; see `grade`.

    `products` (models, classes, samples) become scores here, by adding the bias where there is one.
    """
    _, classes, count = products.shape
    left, zero = x.shape[1] - classes, x.dtype.type(0)
    own, top, total = np.empty(count, x.dtype), np.empty(count, x.dtype), np.empty(count, x.dtype)
    best = np.empty(count, np.int32)
    for n in range(first, last):
        scores = products[n]
        for c in range(classes):
            b, row = x[n, left + c] if bias else zero, scores[c]
            if c == 0:
                for s in range(count):
                    row[s] += b
                    top[s], best[s], total[s] = row[s], 0, 0
            else:
                for s in range(count):
                    row[s] += b
                    higher = row[s] > top[s]
                    top[s] = row[s] if higher else top[s]
                    best[s] = c if higher else best[s]
        for s in range(count):
            own[s] = scores[targets[s], s]
            right[n] += best[s] == targets[s]
        add_losses(loss, scores, own, top, total, losses, n)


def grade(
    layer: LinearEngine, x: Tensor, inputs: Tensor, targets: Tensor, losses: Tensor, right: Tensor
) -> None:
    """Add each model's losses and right answers on some samples to `losses` and `right` (models,)."""
    products = layer.products(x, inputs)
    how = targets.numpy(), layer.bias, LOSSES[layer.loss]
    views = x.numpy(), products.numpy(), *how, losses.numpy(), right.numpy()
    share(len(x), products.numel(), lambda first, last: _grade(*views, first, last))
