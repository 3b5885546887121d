"""Gradients of a linear model in one compiled pass: draw the batch, score it, add up the slopes.

Pixels are turned from bytes into floats inside the loop, so the data stay small; a client reads its
model once and writes its gradient once. The draws are those of `samples.without_replacement`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from spodgt.compiled import jit, jit_sum, share
from spodgt.problems.models import Loss, cross_entropy, multi_margin, one_vs_rest
from spodgt.rng import word
from spodgt.types import Minibatches

Array = NDArray[Any]
LOSSES: dict[Loss, int] = {multi_margin: 0, cross_entropy: 1, one_vs_rest: 2}


@jit
def _draw(key, place, k, size, chosen):  # type: ignore[no-untyped-def]
    """Floyd's sampling without replacement of len(chosen) numbers below size."""
    count = len(chosen)
    if size == count:
        for column in range(count):
            chosen[column] = column
        return
    base = word(word(key, k), place)
    for column in range(count):
        top = size - count + column
        u = np.float64(word(base, column) >> np.uint64(11)) * 2.0**-53
        pick = np.int64(u * (top + 1))
        for before in range(column):
            if chosen[before] == pick:
                pick = top
                break
        chosen[column] = pick


@jit_sum
def _four(W, p0, p1, p2, p3):  # type: ignore[no-untyped-def]
    """The scores of four samples."""
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
    total = W.dtype.type(0)
    for d in range(len(W)):
        total += W[d] * p[d]
    return total


@jit
def _slopes(loss, scores, target, batch):  # type: ignore[no-untyped-def]
    """Turn the scores of one sample into the derivative of the mean loss by them, in place."""
    classes = len(scores)
    one = scores.dtype.type(1)
    if loss == 0:
        unit = one / scores.dtype.type(classes * batch)
        own, total = scores[target], scores.dtype.type(0)
        for c in range(classes):
            hit = c != target and one - own + scores[c] > 0
            scores[c] = unit if hit else 0
            total += scores[c]
        scores[target] = -total
    elif loss == 1:
        top = scores[0]
        for c in range(1, classes):
            top = max(top, scores[c])
        total = scores.dtype.type(0)
        for c in range(classes):
            scores[c] = np.exp(scores[c] - top)
            total += scores[c]
        unit = one / (total * scores.dtype.type(batch))
        for c in range(classes):
            scores[c] *= unit
        scores[target] -= one / scores.dtype.type(batch)
    else:
        unit = one / scores.dtype.type(classes * batch)
        for c in range(classes):
            sign = one if c == target else -one
            scores[c] = -sign * unit if one - sign * scores[c] > 0 else 0


@jit
def linear_gradients(  # type: ignore[no-untyped-def]
    x,
    g,
    y,
    add,
    models,
    rows,
    keys,
    places,
    k,
    data,
    batch,
    weight,
    first,
    last,
):
    numbers, offsets, inputs, targets, scale, classes, bias, loss = data
    features = inputs.shape[1]
    zero = x.dtype.type(0)
    pixels = np.empty((batch, features), x.dtype)
    scores = np.empty((batch, classes), x.dtype)
    total = np.empty(features, x.dtype)
    chosen = np.empty(batch, np.int64)
    unit = x.dtype.type(scale)
    for task in range(first, last):
        row, at = rows[task], models[task]
        start, size = offsets[row], offsets[row + 1] - offsets[row]
        _draw(keys[task], places[task], k, size, chosen)
        for s in range(batch):
            image, to = inputs[numbers[start + chosen[s]]], pixels[s]
            for d in range(features):
                to[d] = unit * x.dtype.type(image[d])
        for c in range(classes):
            W = x[at, c * features : (c + 1) * features]
            b = x[at, classes * features + c] if bias else zero
            s = 0
            while s + 4 <= batch:  # four samples share one pass over the weights
                four = _four(W, pixels[s], pixels[s + 1], pixels[s + 2], pixels[s + 3])
                for n in range(4):
                    scores[s + n, c] = four[n] + b
                s += 4
            while s < batch:
                scores[s, c] = _one(W, pixels[s]) + b
                s += 1
        for s in range(batch):
            _slopes(loss, scores[s], targets[numbers[start + chosen[s]]], batch)
        factor = x.dtype.type(weight[task])
        for c in range(classes):
            for d in range(features):
                total[d] = 0
            slope, s = zero, 0
            while s < batch:
                four = s + 4 <= batch
                u0 = scores[s, c]
                u1, u2, u3 = (
                    (scores[s + 1, c], scores[s + 2, c], scores[s + 3, c]) if four else (zero, zero, zero)
                )
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
            to_y, to_g = y[at, part], g[at, part]
            if add:
                for d in range(features):
                    to_y[d] += factor * total[d] - to_g[d]
            for d in range(features):
                to_g[d] = factor * total[d]
            if bias:
                left = classes * features + c
                if add:
                    y[at, left] += factor * slope - g[at, left]
                g[at, left] = factor * slope


@jit
def _grade(x, products, targets, classes, bias, loss, losses, right, first, last):  # type: ignore[no-untyped-def]
    left, count, zero = x.shape[1] - classes, len(targets), x.dtype.type(0)
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
        for c in range(classes):
            row = scores[c]
            if loss == 0:
                for s in range(count):
                    total[s] += max(zero, 1 - own[s] + row[s])
            elif loss == 1:
                for s in range(count):
                    total[s] += np.exp(row[s] - top[s])
            else:
                for s in range(count):
                    total[s] += max(zero, 1 + row[s])
        for s in range(count):
            if loss == 0:
                losses[n] += (total[s] - 1) / classes  # without the class itself
            elif loss == 1:
                losses[n] += np.log(total[s]) + top[s] - own[s]
            else:
                losses[n] += (total[s] - max(zero, 1 + own[s]) + max(zero, 1 - own[s])) / classes


def grade(x: Tensor, products: Tensor, targets: Tensor, layer: Any, losses: Tensor, right: Tensor) -> None:
    """Add each model's losses and right answers on some samples; changes `products` (models, classes, …).

    `layer` tells classes, bias and loss.
    """
    how = layer.classes, layer.bias, LOSSES[layer.loss]
    views = x.numpy(), products.numpy(), targets.numpy(), *how, losses.numpy(), right.numpy()
    share(len(x), products.numel(), lambda first, last: _grade(*views, first, last))


class LinearData(NamedTuple):
    """A linear problem as the compiled loops read it."""

    numbers: Array  # client i holds the samples numbers[offsets[i] : offsets[i + 1]]
    offsets: Array
    inputs: Array  # (samples, features): bytes, or floats of the models' kind
    targets: Array
    scale: float  # what turns an input into a feature
    classes: int
    bias: bool
    loss: int  # a value of LOSSES


def gradients(
    x: Tensor,
    g: Tensor,
    y: Tensor | None,
    models: Array,
    batches: Minibatches,
    data: LinearData,
    batch: int,
    weight: Array,
) -> None:
    """Write gradients at `x[models]` to `g[models]`, times `weight`; with `y`, add their change to it."""
    views = x.numpy(), g.numpy(), (g if y is None else y).numpy(), y is not None
    who = models, *batches
    share(
        len(models),
        len(models) * x.shape[1] * batch,
        lambda first, last: linear_gradients(*views, *who, data, batch, weight, first, last),
    )
