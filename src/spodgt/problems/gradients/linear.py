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
from spodgt.compiled.code import SPAN
from spodgt.compiled.instructions import (
    SOME,
    dots,
    fetch,
    learn,
    many_registers,
    room,
    scores_of_one,
    scores_of_some,
    sums_of_one,
    sums_of_some,
    weigh,
    widen,
)
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
TOGETHER = 32  # gradients whose mini-batches are drawn at once
_NEAR = 2**16  # bytes of such mini-batches
_CHUNK = 400  # features, about, of a chunk: a tile stays in the first-level cache


def chunk_size(features: int) -> int:
    """Features in a chunk. Scores are sums over chunks in their order, whoever adds them up."""
    count = max(1, (features + _CHUNK // 2) // _CHUNK)
    return (-(-features // count) + 15) // 16 * 16


chunk_of = jit_part(chunk_size)


@jit_part
def lanes(numbers):  # type: ignore[no-untyped-def]
    """How many of these numbers 64 bytes hold; numba would divide, as it does for a range with a step."""
    return 16 if numbers.itemsize == 4 else 8 if numbers.itemsize == 8 else 64 // numbers.itemsize


@jit_part
def fill_tile(inputs, samples, span, first, size, unit, tile):  # type: ignore[no-untyped-def]
    """tile (TILE, size) ← the features first … first + size - 1 of a span of samples, times `unit`."""
    low, high = span
    for s in range(low, high):
        if size >= lanes(tile):
            widen(inputs, samples[s], first, size, unit, tile, s - low)
        else:
            for d in range(size):
                tile[s - low, d] = unit * tile.dtype.type(inputs[samples[s], first + d])


@jit_part
def score_tile(model, tile, span, base, chunk, classes, shape, scores):  # type: ignore[no-untyped-def]
    """scores[:, low:high] (classes, samples) += what a chunk of features adds, in `tile`; the last, the bias.

    `span` is (low, high), `base` the sample that the tile begins with, `chunk` where features begin, how many
    there are, and of how many; `classes` is a range. The first chunk sets the scores. `shape` says where the
    weights of class c begin in the model, and where its bias is: c · stride, and left + c · apart.
    """
    (low, high), (begin, end), (first, size, features) = span, classes, chunk
    last, sums, zero, (stride, left, apart, bias) = high - 1, room(model), model.dtype.type(0), shape
    biased = bias and first + size == features
    for c in range(begin, end, 2):
        e = min(c + 1, end - 1)  # the last of an odd number is its own partner
        W, V = c * stride + first, e * stride + first
        for s in range(low, high, 4):  # four samples and two classes share one pass
            rows = s - base, min(s + 1, last) - base, min(s + 2, last) - base, min(s + 3, last) - base
            if size >= lanes(model):
                dots(model, W, V, tile, rows, size, sums)
            else:
                for n in range(8):
                    total, at = zero, V if n >= 4 else W
                    for d in range(size):
                        total += model[at + d] * tile[min(s + n % 4, last) - base, d]
                    sums[n] = total
            for q in range(c, e + 1):
                more = model[left + q * apart] if biased else zero
                _add_scores(scores[q], sums, 4 * (q - c), (s, high), first, more)


@jit_part
def score_batch(model, inputs, samples, count, unit, classes, shape, tile, scores):  # type: ignore[no-untyped-def]
    """scores (classes, count) ← those of a mini-batch, for a range of classes; see `score_tile`."""
    size, features = chunk_of(inputs.shape[1]), inputs.shape[1]
    for first in range(0, features, size):
        width = min(size, features - first)
        chunk = first, width, features
        if many_registers(tile) and count <= TILE and width % lanes(tile) == 0:
            _score_samples(model, inputs, samples, count, unit, chunk, classes, shape, scores)
            continue
        for s in range(0, count, TILE):
            span = s, min(s + TILE, count)
            fill_tile(inputs, samples, span, first, width, unit, tile)
            score_tile(model, tile, span, s, chunk, classes, shape, scores)


@jit_part
def _score_samples(model, inputs, samples, count, unit, chunk, classes, shape, scores):  # type: ignore[no-untyped-def]
    """`score_tile` without a tile, for at most TILE samples and a chunk of whole vectors."""
    (c, end), (first, size, features), (stride, left, apart, bias) = classes, chunk, shape
    last, sums, zero = count - 1, room(model), model.dtype.type(0)
    biased = bias and first + size == features
    while c < end:
        some, W = SOME if end - c >= SOME else 1, c * stride + first
        for s in range(0, count, 4):
            rows = samples[s], samples[min(s + 1, last)], samples[min(s + 2, last)], samples[min(s + 3, last)]
            if some > 1:
                scores_of_some(model, W, stride, inputs, rows, first, size, unit, sums)
            else:
                scores_of_one(model, W, stride, inputs, rows, first, size, unit, sums)
            for q in range(c, c + some):
                more = model[left + q * apart] if biased else zero
                _add_scores(scores[q], sums, 4 * (q - c), (s, count), first, more)
        c += some


@jit_part
def _add_scores(row, sums, at, span, first, more):  # type: ignore[no-untyped-def]
    """Four scores of a class, fewer at the end, from sums[at] on; the first chunk sets them."""
    s, high = span
    if first > 0:
        for n in range(min(4, high - s)):
            row[s + n] = row[s + n] + sums[at + n] + more
    elif s + 4 <= high:  # in a loop, LLVM would ask first whether it is long
        row[s], row[s + 1] = sums[at] + more, sums[at + 1] + more
        row[s + 2], row[s + 3] = sums[at + 2] + more, sums[at + 3] + more
    else:
        for n in range(high - s):
            row[s + n] = sums[at + n] + more


@jit_part
def add_slopes(slopes, span, samples, tile, size, classes, totals):  # type: ignore[no-untyped-def]
    """totals (classes, size) += Σ slopes[c, s] × sample s, in `tile`, over a span of `samples`."""
    (low, high), (begin, end) = span, classes
    rows, by, one = room(samples), room(tile), tile.dtype.type(1)
    most = (SPAN >> 6) * lanes(tile)
    for c in range(begin, end):
        count, left = 0, size - size
        for s in range(low, high):  # hinges leave most slopes at zero
            rows[count], by[count] = s - low, slopes[c, s]
            count += slopes[c, s] != 0
        while count > 0 and left < size:
            to = totals, c, left
            weigh(to, one, to, tile, rows, by, count, left, min(most, size - left))
            left += most


@jit_part
def sum_batch(slopes, inputs, samples, count, chunk, unit, classes, tile, totals):  # type: ignore[no-untyped-def]
    """totals (classes, size) ← Σ slopes[c, s] × sample s, over a mini-batch and a range of classes.

    `chunk` is (first, size): some of the features.
    """
    (c, end), (first, size) = classes, chunk
    if count <= TILE and size >= lanes(tile):
        while c < end:
            if end - c >= SOME:
                sums_of_some(inputs, samples, count, first, unit, slopes, c, totals, size)
                c += SOME
            else:
                sums_of_one(inputs, samples, count, first, unit, slopes, c, totals, size)
                c += 1
        return
    totals[c:end, :size] = 0
    for s in range(0, count, TILE):
        span = s, min(s + TILE, count)
        fill_tile(inputs, samples, span, first, size, unit, tile)
        add_slopes(slopes, span, samples, tile, size, classes, totals)


@jit_part
def sum_slopes(slopes, span, classes, total):  # type: ignore[no-untyped-def]
    """total ← Σ slopes[:, s] over a span of samples, for a range of classes: the gradient by their biases."""
    for c in range(classes[0], classes[1]):
        total[c - classes[0]] = 0
        for s in range(span[0], span[1]):
            total[c - classes[0]] += slopes[c, s]


@jit_part
def draw_samples(draw, data, batch, samples):  # type: ignore[no-untyped-def]
    """samples (batch,) ← the numbers of the mini-batch that `draw` = (row, key, place, k) names."""
    (row, key, place, k), (numbers, offsets, inputs, targets, _, _, _, _) = draw, data
    start = offsets[row]
    draw_batch(key, place, k, offsets[row + 1] - start, samples[:batch])
    for s in range(batch):
        samples[s] = numbers[start + samples[s]]
    for s in range(batch):  # they lie anywhere in memory, and will be read soon
        fetch(targets, samples[s], 0, 0)
        image, d = inputs[samples[s]], row - row
        while d < len(image):
            fetch(image, d, 0, 0)
            d += lanes(image)


@jit
def linear_gradients(state, add, models, batches, data, memory, weight, first, last):  # type: ignore[no-untyped-def]
    """g[at] ← weight × gradient at x[at] for at = models[first:last]; with `add`, y[at] += its change.

    `state` is x, g, y, each (models, parameters). For every task, `models` is the row of x, `batches` (a
    Minibatches) names its draw from `data` (a LinearData), `weight` multiplies its gradient; all are
    (tasks,). `memory` is for mini-batches of one size (`gradient_memory`).
    """
    together = max(1, min(TOGETHER, _NEAR // (memory[-1] * data[2].shape[1] * data[2].itemsize)))
    for low in range(first, last, together):
        high = min(low + together, last)
        draw_tasks(batches, data, memory, low, high)
        learn_tasks(state, add, models, data, memory, weight, low, high)


@jit_part
def draw_tasks(batches, data, memory, first, last):  # type: ignore[no-untyped-def]
    """The mini-batches of at most TOGETHER tasks; what they consist of is fetched meanwhile."""
    (rows, keys, places, k), (_, _, samples, _, _, batch) = batches, memory
    for task in range(first, last):
        begin = (task - first) * batch
        draw = rows[task], keys[task], places[task], k
        draw_samples(draw, data, batch, samples[begin : begin + batch])


@jit
def learn_tasks(state, add, models, data, memory, weight, first, last):  # type: ignore[no-untyped-def]
    """`linear_gradients` of tasks whose mini-batches are drawn."""
    (x, g, y), (tile, scores, drawn, total, biases, batch) = state, memory
    _, _, inputs, targets, scale, classes, bias, loss = data
    features, zero = inputs.shape[1], first - first  # a literal 0 would be another type
    size, every, unit = chunk_of(features), (zero, classes), x.dtype.type(scale)
    shape = features, classes * features, zero + 1, bias
    # Small batches go through the same tile, step by step: one alone waits for its own numbers all the time.
    whole = features * x.itemsize <= SPAN and batch <= TILE
    group = TILE // batch if whole else 1
    for task in range(first, last, group):
        some, begin = min(group, last - task), (task - first) * batch
        samples = drawn[begin : begin + some * batch]
        if whole:
            fill_tile(inputs, samples, (zero, some * batch), zero, features, unit, tile)
        else:
            score_batch(x[models[task]], inputs, samples, batch, unit, every, shape, tile, scores)
        for n in range(some if whole else 0):
            model, span = x[models[task + n]], (n * batch, n * batch + batch)
            score_tile(model, tile, span, zero, (zero, features, features), every, shape, scores)
        slopes(loss, scores, targets, samples, some * batch, batch)
        for n in range(some):
            at, factor, left = models[task + n], x.dtype.type(weight[task + n]), zero
            begin, end = n * batch, n * batch + batch
            while whole and left < classes:
                which = left, begin, end
                learn(y[at], g[at], left * features, factor, add, tile, scores, which, features)
                left += 1
            while not whole and left < features:
                width = min(size, features - left)
                sum_batch(scores, inputs, samples, batch, (left, width), unit, every, tile, total)
                for c in range(classes):
                    _change(g[at], y[at], c * features + left, total[c], width, factor, add)
                left += size
            if bias:
                sum_slopes(scores, (begin, end), every, biases)
                _change(g[at], y[at], classes * features, biases, classes, factor, add)


@jit_part
def _change(g, y, left, new, size, factor, add):  # type: ignore[no-untyped-def]
    """g ← factor × new, in `size` columns from `left` on; with `add`, y += its change."""
    if add:
        for d in range(size):
            y[left + d] += factor * new[d] - g[left + d]
    for d in range(size):
        g[left + d] = factor * new[d]


def score_shape(classes: int, batch: int) -> tuple[int, int]:
    """Of memory for scores: a class begins with a line of the cache, so that threads write to lines apart."""
    return classes, -(-batch // TILE) * TILE


def gradient_memory(data: LinearData, batch: int, kind: np.dtype[np.generic]) -> tuple[Array | int, ...]:
    """What `linear_gradients` works in, for mini-batches of so many samples."""
    size, classes = chunk_size(data.inputs.shape[1]), data.classes
    tile, scores, total = ((TILE, size), score_shape(classes, batch), (classes, size))
    floats = [aligned(shape, kind) for shape in (tile, scores, total, (classes,))]
    return *floats[:2], np.empty(TOGETHER * batch, np.int64), *floats[2:], batch


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
