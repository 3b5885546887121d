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

from spodgt.compiled import aligned, jit, jit_part, share
from spodgt.compiled.instructions import SPAN, dots, fetch, room, weigh, widen
from spodgt.problems.gradients import Engine, Many, Noise
from spodgt.problems.losses import LOSSES, Loss, add_losses, slopes
from spodgt.problems.samples import draw_batch
from spodgt.problems.trees import Tree
from spodgt.types import Array, Floats, Ints, LinearData, Minibatches


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


def chunk_size(features: int) -> int:
    """Features in a chunk. Scores are sums over chunks in their order, whoever adds them up."""
    count = max(1, (features + _CHUNK // 2) // _CHUNK)
    return (-(-features // count) + 15) // 16 * 16


chunk_of = jit_part(chunk_size)


@jit
def fill_tile(inputs, samples, span, first, size, unit, tile):  # type: ignore[no-untyped-def]
    """tile (TILE, size) ← the features first … first + size - 1 of a span of samples, times `unit`."""
    low, high = span
    short = size - size % (64 // tile.itemsize)
    for s in range(low, high):
        widen(inputs, samples[s], first, short, unit, tile, s - low)
        for d in range(short, size):
            tile[s - low, d] = unit * tile.dtype.type(inputs[samples[s], first + d])


@jit
def score_tile(model, tile, span, first, size, features, classes, scores):  # type: ignore[no-untyped-def]
    """scores[:, low:high] (classes, samples) += what the features first … first + size - 1 add, in `tile`.

    `span` is (low, high), `classes` a range; the first chunk sets the scores.
    """
    (low, high), (begin, end), sums = span, classes, room(model)
    last, short = high - low - 1, size - size % (64 // model.itemsize)
    if first == 0:
        scores[begin:end, low:high] = 0
    for c in range(begin, end, 2):
        e = min(c + 1, end - 1)  # the last of an odd number is its own partner
        W, V = c * features + first, e * features + first
        for s in range(0, last + 1, 4):  # four samples and two classes share one pass
            rows = s, min(s + 1, last), min(s + 2, last), min(s + 3, last)
            dots(model, W, V, tile, rows, short, sums)
            for q in range(c, e + 1):
                for n in range(min(4, last + 1 - s)):
                    scores[q, low + s + n] += sums[4 * (q - c) + n]
        if short < size:
            for s in range(low, high):
                for q in range(c, e + 1):
                    total = scores[q, s]
                    for d in range(short, size):
                        total += model[q * features + first + d] * tile[s - low, d]
                    scores[q, s] = total


@jit
def add_slopes(slopes, span, samples, tile, size, classes, totals):  # type: ignore[no-untyped-def]
    """totals (classes, size) += Σ slopes[c, s] × sample s, in `tile`, over a span of `samples`."""
    (low, high), (begin, end) = span, classes
    rows, by, one = room(samples), room(tile), tile.dtype.type(1)
    most = SPAN // tile.itemsize
    for c in range(begin, end):
        count = 0
        for s in range(low, high):  # hinges leave most slopes at zero
            rows[count], by[count] = s - low, slopes[c, s]
            count += slopes[c, s] != 0
        for left in range(0, size if count > 0 else 0, most):
            to = totals, c, left
            weigh(to, one, to, tile, rows, by, count, left, min(most, size - left))


@jit_part
def sum_slopes(slopes, batch, classes, total):  # type: ignore[no-untyped-def]
    """total ← Σ slopes[:, s] over a batch, for a range of classes: the gradient by their biases."""
    for c in range(classes[0], classes[1]):
        total[c - classes[0]] = 0
        for s in range(batch):
            total[c - classes[0]] += slopes[c, s]


@jit_part
def slopes_of(model, batch, targets, samples, bias, loss, scores):  # type: ignore[no-untyped-def]
    """scores (classes, samples), without biases, ← the derivative of the loss by every score.

    `samples` are the numbers of the samples, of which the first `batch` count.
    """
    left = len(model) - len(scores)
    for c in range(len(scores) if bias else 0):
        for s in range(batch):
            scores[c, s] += model[left + c]
    slopes(loss, scores, targets, samples, batch)


@jit_part
def draw_samples(draw, data, batch, samples):  # type: ignore[no-untyped-def]
    """samples (batch,) ← the numbers of the mini-batch that `draw` = (row, key, place, k) names."""
    (row, key, place, k), (numbers, offsets, inputs, _, _, _, _, _) = draw, data
    start = offsets[row]
    draw_batch(key, place, k, offsets[row + 1] - start, samples[:batch])
    for s in range(batch):
        samples[s] = numbers[start + samples[s]]
    for s in range(batch):  # they lie anywhere in memory, and will be read soon
        image = inputs[samples[s]]
        for d in range(0, len(image), 64 // image.itemsize):
            fetch(image, d, 0, 0)


@jit
def linear_gradients(state, add, models, batches, data, memory, weight, first, last):  # type: ignore[no-untyped-def]
    """g[at] ← weight × gradient at x[at] for at = models[first:last]; with `add`, y[at] += its change.

    `state` is x, g, y, each (models, parameters). For every task, `models` is the row of x, `batches` (a
    Minibatches) names its draw from `data` (a LinearData), `weight` multiplies its gradient; all are
    (tasks,). `memory` is for mini-batches of one size (`gradient_memory`).
    """
    (x, g, y), (rows, keys, places, k), (tile, scores, samples, total, biases) = state, batches, memory
    _, _, inputs, targets, scale, classes, bias, loss = data
    features, batch = inputs.shape[1], len(samples)
    size, every = chunk_of(features), (first - first, classes)  # a literal 0 would be another type
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
                if features > size or batch > TILE:  # else it is there still
                    fill_tile(inputs, samples, span, left, width, unit, tile)
                add_slopes(scores, span, samples, tile, width, every, total)
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


def score_shape(classes: int, batch: int) -> tuple[int, int]:
    """Of memory for scores: a class begins with a line of the cache, so that threads write to lines apart."""
    return classes, -(-batch // TILE) * TILE


def gradient_memory(data: LinearData, batch: int, kind: np.dtype[np.generic]) -> tuple[Array, ...]:
    """What `linear_gradients` works in, for mini-batches of so many samples."""
    size, classes = chunk_size(data.inputs.shape[1]), data.classes
    tile, scores, total = ((TILE, size), score_shape(classes, batch), (classes, size))
    floats = [aligned(shape, kind) for shape in (tile, scores, total, (classes,))]
    return *floats[:2], np.empty(batch, np.int64), *floats[2:]


def add_gradients(
    state: tuple[Array, ...],
    add: bool,
    models: Ints,
    batches: Minibatches,
    data: LinearData,
    batch: int,
    weight: Floats,
) -> None:
    """`linear_gradients` of all tasks, on as many threads as are worth waking."""

    def work(first: int, last: int) -> None:
        memory = gradient_memory(data, batch, state[0].dtype)
        linear_gradients(state, add, models, batches, data, memory, weight, first, last)

    share(len(models), len(models) * state[0].shape[1] * batch, work)


# --- compiled evaluation ------------------------------------------------------------------------------
@jit
def _grade(x, products, targets, bias, loss, losses, right, memory, first, last):  # type: ignore[no-untyped-def]
    """losses[n] += losses and right[n] += right answers of the models n = first … last - 1; see `grade`.

    `products` (models, classes, samples) become scores here, by adding the bias where there is one.
    `memory` is four times (samples,) to work in.
    """
    _, classes, count = products.shape
    (own, top, total, best), left, zero = memory, x.shape[1] - classes, x.dtype.type(0)
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
    count, kind = len(targets), views[0].dtype

    def work(first: int, last: int) -> None:
        memory = *(np.empty(count, kind) for _ in range(3)), np.empty(count, np.int32)
        _grade(*views, memory, first, last)

    share(len(x), products.numel(), work)
