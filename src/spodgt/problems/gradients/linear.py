"""Gradients of a linear model: the closed form in torch, and one compiled pass that does the same.

The compiled pass draws the batch, scores it and adds up the slopes, chunk of features by chunk of features.
Pixels are turned from bytes into floats inside the loop, so the data stay small.
A model is (classes × features) weights, class by class, then `classes` biases if the layer has any.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spodgt.compiled import jit, jit_part, jit_sum, share
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
TILE = 16  # samples that are turned into floats at once
_CHUNK = 400  # features, about, of a chunk: a tile stays in the first-level cache


@jit_part
def chunk_of(features):  # type: ignore[no-untyped-def]
    """Features in a chunk. Scores are sums over chunks in their order, whoever adds them up."""
    count = max(1, (features + _CHUNK // 2) // _CHUNK)
    return (-(-features // count) + 15) // 16 * 16


@jit
def fill_tile(inputs, samples, span, first, size, unit, tile):  # type: ignore[no-untyped-def]
    """tile (TILE, size) ← the features first … first + size - 1 of a span of samples, times `unit`."""
    low, high = span
    for s in range(low, high):
        image, to = inputs[samples[s], first : first + size], tile[s - low, :size]
        for d in range(size):
            to[d] = unit * tile.dtype.type(image[d])


@jit_sum
def score_tile(model, tile, span, first, size, features, classes, scores):  # type: ignore[no-untyped-def]
    """scores[low:high] (samples, classes) += what the features first … first + size - 1 add, in `tile`.

    `span` is (low, high), `classes` a range; the first chunk sets the scores.
    """
    (low, high), (begin, end), zero = span, classes, model.dtype.type(0)
    last = high - low - 1
    for c in range(begin, end, 2):
        e = min(c + 1, end - 1)  # the last of an odd number is its own partner
        W = model[c * features + first : c * features + first + size]
        V = model[e * features + first : e * features + first + size]
        for s in range(0, last + 1, 4):  # four samples and two classes share one pass
            p0, p1 = tile[s, :size], tile[min(s + 1, last), :size]
            p2, p3 = tile[min(s + 2, last), :size], tile[min(s + 3, last), :size]
            t0, t1, t2, t3, u0, u1, u2, u3 = zero, zero, zero, zero, zero, zero, zero, zero
            for d in range(size):
                t0 += W[d] * p0[d]
                t1 += W[d] * p1[d]
                t2 += W[d] * p2[d]
                t3 += W[d] * p3[d]
                u0 += V[d] * p0[d]
                u1 += V[d] * p1[d]
                u2 += V[d] * p2[d]
                u3 += V[d] * p3[d]
            for n in range(min(4, last + 1 - s)):
                r, t = low + s + n, t0 if n == 0 else t1 if n == 1 else t2 if n == 2 else t3
                u = u0 if n == 0 else u1 if n == 1 else u2 if n == 2 else u3
                old_t, old_u = scores[r, c], scores[r, e]
                scores[r, c] = t if first == 0 else old_t + t
                scores[r, e] = u if first == 0 else old_u + u


@jit
def add_slopes(slopes, span, tile, size, classes, totals):  # type: ignore[no-untyped-def]
    """totals (classes, size) += Σ slopes[s, c] × sample s, in `tile`, over a span of samples.

    Two classes share one pass. Samples go in fixed fours, so that a sum does not depend on its partner.
    """
    (low, high), (begin, end) = span, classes
    for c in range(begin, end, 2):
        e = min(c + 1, end - 1)  # the last of an odd number goes alone
        one, two = totals[c, :size], totals[e, :size]
        for s in range(low, high - 3, 4):
            u0, u1, u2, u3 = slopes[s, c], slopes[s + 1, c], slopes[s + 2, c], slopes[s + 3, c]
            v0, v1, v2, v3 = slopes[s, e], slopes[s + 1, e], slopes[s + 2, e], slopes[s + 3, e]
            first = u0 != 0 or u1 != 0 or u2 != 0 or u3 != 0  # hinges leave most slopes at zero
            second = e != c and (v0 != 0 or v1 != 0 or v2 != 0 or v3 != 0)
            p0, p1 = tile[s - low, :size], tile[s - low + 1, :size]
            p2, p3 = tile[s - low + 2, :size], tile[s - low + 3, :size]
            if first and second:
                for d in range(size):
                    one[d] += u0 * p0[d] + u1 * p1[d] + u2 * p2[d] + u3 * p3[d]
                    two[d] += v0 * p0[d] + v1 * p1[d] + v2 * p2[d] + v3 * p3[d]
            elif first or second:
                to = one if first else two
                if second:
                    u0, u1, u2, u3 = v0, v1, v2, v3
                for d in range(size):
                    to[d] += u0 * p0[d] + u1 * p1[d] + u2 * p2[d] + u3 * p3[d]
        for s in range(high - (high - low) % 4, high):
            p0 = tile[s - low, :size]
            for q in range(c, e + 1):
                u0, to = slopes[s, q], totals[q, :size]
                for d in range(size):
                    to[d] += u0 * p0[d]


@jit_part
def sum_slopes(slopes, batch, classes, total):  # type: ignore[no-untyped-def]
    """total ← Σ slopes[s] over a batch, for a range of classes: the gradient by their biases."""
    for c in range(classes[0], classes[1]):
        total[c - classes[0]] = 0
        for s in range(batch):
            total[c - classes[0]] += slopes[s, c]


@jit_part
def slopes_of(model, batch, targets, samples, bias, loss, scores):  # type: ignore[no-untyped-def]
    """scores (samples, classes), without biases, ← the derivative of the loss by every score.

    `samples` are the numbers of the samples, of which the first `batch` count.
    """
    classes = scores.shape[1]
    left = len(model) - classes
    for s in range(batch):
        for c in range(classes if bias else 0):
            scores[s, c] += model[left + c]
        slopes(loss, scores[s], targets[samples[s]], batch)


@jit_part
def draw_samples(draw, data, batch, samples):  # type: ignore[no-untyped-def]
    """samples (batch,) ← the numbers of the mini-batch that `draw` = (row, key, place, k) names."""
    (row, key, place, k), (numbers, offsets, _, _, _, _, _, _) = draw, data
    start = offsets[row]
    draw_batch(key, place, k, offsets[row + 1] - start, samples[:batch])
    for s in range(batch):
        samples[s] = numbers[start + samples[s]]


@jit
def linear_gradients(state, add, models, batches, data, batch, weight, first, last):  # type: ignore[no-untyped-def]
    """g[at] ← weight × gradient at x[at] for at = models[first:last]; with `add`, y[at] += its change.

    `state` is x, g, y, each (models, parameters). For every task, `models` is the row of x, `batches` (a
    Minibatches) names its draw from `data` (a LinearData), `weight` multiplies its gradient; all are
    (tasks,). Every client draws `batch` samples.
    """
    (x, g, y), (rows, keys, places, k) = state, batches
    _, _, inputs, targets, scale, classes, bias, loss = data
    features = inputs.shape[1]
    size, every = chunk_of(features), (first - first, classes)  # a literal 0 would be another type
    tile, scores = np.empty((TILE, size), x.dtype), np.empty((batch, classes), x.dtype)
    samples = np.empty(batch, np.int64)
    total, biases = np.empty((classes, size), x.dtype), np.empty(classes, x.dtype)
    unit = x.dtype.type(scale)
    for task in range(first, last):
        at, factor = models[task], x.dtype.type(weight[task])
        draw_samples((rows[task], keys[task], places[task], k), data, batch, samples)
        for left in range(0, features, size):
            width = min(size, features - left)
            for low in range(0, batch, TILE):
                span = low, min(low + TILE, batch)
                fill_tile(inputs, samples, span, left, width, unit, tile)
                score_tile(x[at], tile, span, left, width, features, every, scores)
        slopes_of(x[at], batch, targets, samples, bias, loss, scores)
        for left in range(0, features, size):
            width = min(size, features - left)
            total[:] = 0
            for low in range(0, batch, TILE):
                span = low, min(low + TILE, batch)
                fill_tile(inputs, samples, span, left, width, unit, tile)
                add_slopes(scores, span, tile, width, every, total)
            for c in range(classes):
                place = slice(c * features + left, c * features + left + width)
                _change(g[at, place], y[at, place], total[c, :width], factor, add)
        if bias:
            sum_slopes(scores, batch, every, biases)
            place = slice(classes * features, classes * features + classes)
            _change(g[at, place], y[at, place], biases, factor, add)


@jit_part
def _change(g, y, new, factor, add):  # type: ignore[no-untyped-def]
    """g ← factor × new; with `add`, y += its change."""
    if add:
        for d in range(len(new)):
            y[d] += factor * new[d] - g[d]
    for d in range(len(new)):
        g[d] = factor * new[d]


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
