"""Compiled loops for mini-batch gradients of a linear model.

`linear.LinearEngine` has the same in PyTorch.

Models are read and written in padded rows: for every class its weights, its bias if there is one,
and zeros up to a whole cache line, `stride` numbers in all (`padded_stride`). A row of a flat model
is (classes × features) weights, class by class, then the biases; `copy_padded` converts.

Two rules make these loops fast in plain numba. Arrays are flat and rows are offsets into them: a
slice of an array costs as much as a hundred additions. Offsets are unsigned: numba tests signed
ones for counting from the end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spodgt.engine import compiled_dot_product, compiled_loop, inlined_loop
from spodgt.problems.protocols import LinearData
from spodgt.random_draws import draw_without_replacement
from spodgt.types import Array, Ints

UINT = np.uint64
_CACHE_LINE = 64  # bytes
_TILE = 6400  # numbers of a tile of samples, about: it stays in the first-level cache
_SHORTEST = 64  # numbers of a chunk at least
_MARGIN = 0  # losses by their numbers in `losses.LOSSES`
_CROSS_ENTROPY = 1


# --- memory --------------------------------------------------------------------------------------
class Scratch(NamedTuple):
    """Memory for one gradient."""

    tile: Array  # samples as floats, some numbers of each
    scores: Array  # (classes × samples,)
    samples: Ints  # (largest mini-batch,)
    model: Array  # one padded row
    gradient: Array  # one padded row

    @staticmethod
    def create(data: LinearData, largest_batch: int, dtype: np.dtype[np.generic]) -> Scratch:
        """Memory for mini-batches of up to so many samples."""
        samples = _padded_batch(largest_batch)
        width = data.classes * padded_stride(data, dtype)
        # a bound of samples × `chunk_length`, for this number of samples and all smaller ones
        tile = aligned_zeros(3 * _TILE // 2 + samples * (3 * _SHORTEST // 2 + 16), dtype)
        scores = aligned_zeros(data.classes * samples, dtype)
        drawn = np.zeros(largest_batch, np.int64)
        return Scratch(
            tile, scores, drawn, aligned_zeros(width, dtype), aligned_zeros(width, dtype)
        )


def aligned_zeros(size: int, dtype: np.dtype[np.generic]) -> Array:
    """Zeros that begin with a cache line."""
    line = _CACHE_LINE // dtype.itemsize
    memory = np.zeros(size + line, dtype)
    first = -memory.ctypes.data % _CACHE_LINE // dtype.itemsize
    return memory[first : first + size]


def padded_stride(data: LinearData, dtype: np.dtype[np.generic]) -> int:
    """Numbers of one class in a padded row: weights, bias, zeros up to a whole cache line."""
    line = _CACHE_LINE // dtype.itemsize
    return -(-(int(data.inputs.shape[1]) + data.bias) // line) * line


def chunk_length(stride: int, batch: int) -> int:
    """Numbers of a class that are used together, so that a tile of the mini-batch stays in a cache.

    It depends on the client's own mini-batch alone, so a run has the same results in every batch of
    runs.
    """
    longest = max(_SHORTEST, _TILE // _padded_batch(batch))
    chunks = max(1, round(stride / longest))
    return -(-stride // (16 * chunks)) * 16


def _padded_batch(batch: int) -> int:
    """Samples are processed eight at a time."""
    return -(-batch // 8) * 8


@compiled_loop
def copy_padded(flat, at, padded, to, data, stride, back):  # type: ignore[no-untyped-def]
    """Copy the flat model at flat[at] to the padded row at padded[to], or `back`."""
    features = UINT(data.inputs.shape[1])
    classes = UINT(data.classes)
    for c in range(classes):
        weights = at + c * features
        row = to + c * stride
        bias = at + classes * features + c
        if back:
            for n in range(features):
                flat[weights + n] = padded[row + n]
            if data.bias:
                flat[bias] = padded[row + features]
        else:
            for n in range(features):
                padded[row + n] = flat[weights + n]
            if data.bias:
                padded[row + features] = flat[bias]


# --- the gradient of one client ------------------------------------------------------------------
@compiled_loop
def minibatch_gradient(model, at, gradient, data, stride, draw, scratch):  # type: ignore[no-untyped-def]
    """gradient ← the gradient of the mean loss of a mini-batch, for the padded model at model[at].

    Args:
        model: flat array of padded rows.
        at: where the row of the client begins, unsigned.
        gradient: one padded row.
        data: a `LinearData`.
        stride: of padded rows, unsigned.
        draw: (row of the client in `data`, key of its mini-batches, client, round, batch size,
            `chunk_length`).
        scratch: a `Scratch`.
    """
    row, key, client, k, batch, chunk_size = draw
    samples = scratch.samples[:batch]
    start = data.offsets[row]
    draw_without_replacement(key, k, client, data.offsets[row + 1] - start, samples)
    for n in range(batch):
        samples[n] = data.numbers[start + samples[n]]

    tile = scratch.tile
    scores = scratch.scores
    features = UINT(data.inputs.shape[1])
    inputs = data.inputs.reshape(-1)
    columns = UINT((batch + 7) // 8 * 8)  # of scores: samples, and zeros
    chunk = UINT(chunk_size)
    classes = UINT(data.classes)
    scale = model.dtype.type(data.scale)
    bias = model.dtype.type(1 if data.bias else 0)
    for n in range(classes * columns):
        scores[n] = 0
    for first in range(UINT(0), stride, chunk):
        size = min(chunk, stride - first)
        _fill_tile(tile, size, inputs, features, samples, first, scale, bias)
        _add_scores(model, at + first, stride, tile, size, scores, classes, columns)
    loss_slopes(data.loss, scores, classes, columns, data.targets, samples)
    for first in range(UINT(0), stride, chunk):
        size = min(chunk, stride - first)
        if chunk < stride:
            _fill_tile(tile, size, inputs, features, samples, first, scale, bias)
        for c in range(classes):
            for s in range(UINT(0), columns, UINT(8)):
                _add_samples(
                    gradient, c * stride + first, tile, s * size, scores, c * columns + s, size
                )


@compiled_loop
def _fill_tile(tile, size, inputs, features, samples, first, scale, bias):  # type: ignore[no-untyped-def]
    """tile ← numbers first … first + size of every sample, then 1 for the bias, then zeros."""
    kind = tile.dtype.type
    given = min(size, features - first) if first < features else UINT(0)
    for s in range(len(samples)):
        at = UINT(s) * size
        source = UINT(samples[s]) * features + first
        for n in range(given):
            tile[at + n] = scale * kind(inputs[source + n])
        for n in range(given, size):
            tile[at + n] = bias if first + n == features else 0
    for n in range(UINT(len(samples)) * size, UINT((len(samples) + 7) // 8 * 8) * size):
        tile[n] = 0


@compiled_dot_product
def _add_scores(model, at, stride, tile, size, scores, classes, columns):  # type: ignore[no-untyped-def]
    """scores (classes, columns) += model · samples, for the chunk of numbers in `tile`."""
    for c in range(UINT(0), classes, UINT(2)):
        # the last of an odd number of classes is its own partner
        d = min(c + UINT(1), classes - UINT(1))
        for s in range(UINT(0), columns, UINT(4)):
            sums = _dot_products(model, at + c * stride, at + d * stride, tile, s * size, size)
            to = c * columns + s
            scores[to] += sums[0]
            scores[to + UINT(1)] += sums[1]
            scores[to + UINT(2)] += sums[2]
            scores[to + UINT(3)] += sums[3]
            if d > c:
                to = d * columns + s
                scores[to] += sums[4]
                scores[to + UINT(1)] += sums[5]
                scores[to + UINT(2)] += sums[6]
                scores[to + UINT(3)] += sums[7]


@inlined_loop
def _dot_products(model, c, d, tile, s, size):  # type: ignore[no-untyped-def]
    """Products of the two classes at c and d with the four samples from s on."""
    t = s + size
    u = t + size
    v = u + size
    cs = ct = cu = cv = ds = dt = du = dv = model.dtype.type(0)
    for n in range(size):
        cs += model[c + n] * tile[s + n]
        ct += model[c + n] * tile[t + n]
        cu += model[c + n] * tile[u + n]
        cv += model[c + n] * tile[v + n]
        ds += model[d + n] * tile[s + n]
        dt += model[d + n] * tile[t + n]
        du += model[d + n] * tile[u + n]
        dv += model[d + n] * tile[v + n]
    return cs, ct, cu, cv, ds, dt, du, dv


@inlined_loop
def _add_samples(gradient, at, tile, s, slopes, w, size):  # type: ignore[no-untyped-def]
    """gradient += Σ slopes · samples, for the eight samples from s on; the first eight set it."""
    t = s + size
    u = t + size
    v = u + size
    a, b, c, d = slopes[w], slopes[w + UINT(1)], slopes[w + UINT(2)], slopes[w + UINT(3)]
    e, f, g, h = slopes[w + UINT(4)], slopes[w + UINT(5)], slopes[w + UINT(6)], slopes[w + UINT(7)]
    more = UINT(4) * size
    is_first = s == UINT(0)
    for n in range(size):
        total = gradient.dtype.type(0) if is_first else gradient[at + n]
        total += a * tile[s + n] + b * tile[t + n] + c * tile[u + n] + d * tile[v + n]
        total += (
            e * tile[s + more + n]
            + f * tile[t + more + n]
            + g * tile[u + more + n]
            + h * tile[v + more + n]
        )
        gradient[at + n] = total


@compiled_loop
def loss_slopes(loss, scores, classes, columns, targets, samples):  # type: ignore[no-untyped-def]
    """In place: scores (classes, columns) ← derivatives of the mean loss of `samples`.

    Further columns become zero. `loss` is a value of `losses.LOSSES`.
    """
    count = UINT(len(samples))
    for c in range(classes):
        for s in range(count, columns):
            scores[c * columns + s] = 0
    for s in range(count):
        target = UINT(targets[samples[s]])
        if loss == _MARGIN:
            _margin_slopes(scores, s, target, classes, columns, count)
        elif loss == _CROSS_ENTROPY:
            _cross_entropy_slopes(scores, s, target, classes, columns, count)
        else:
            _hinge_slopes(scores, s, target, classes, columns, count)


@compiled_loop
def _margin_slopes(scores, s, target, classes, columns, count):  # type: ignore[no-untyped-def]
    """The slopes of sample s of `losses.multi_margin`; `target` is its class."""
    kind = scores.dtype.type
    unit = kind(1) / (kind(classes) * kind(count))
    threshold = scores[target * columns + s] - kind(1)
    total = kind(0)
    for c in range(classes):
        at = c * columns + s
        scores[at] = unit if scores[at] > threshold else kind(0)
        total += scores[at]
    scores[target * columns + s] = unit - total  # the class itself is part of the total


@compiled_loop
def _cross_entropy_slopes(scores, s, target, classes, columns, count):  # type: ignore[no-untyped-def]
    """The slopes of sample s of `losses.cross_entropy`; `target` is its class."""
    kind = scores.dtype.type
    mean = kind(1) / kind(count)
    top = scores[target * columns + s]
    for c in range(classes):
        top = max(top, scores[c * columns + s])
    total = kind(0)
    for c in range(classes):
        at = c * columns + s
        scores[at] = np.exp(scores[at] - top)
        total += scores[at]
    for c in range(classes):
        scores[c * columns + s] *= mean / total
    scores[target * columns + s] -= mean


@compiled_loop
def _hinge_slopes(scores, s, target, classes, columns, count):  # type: ignore[no-untyped-def]
    """The slopes of sample s of `losses.one_vs_rest`; `target` is its class."""
    kind = scores.dtype.type
    one = kind(1)
    unit = one / (kind(classes) * kind(count))
    own = scores[target * columns + s]
    for c in range(classes):
        at = c * columns + s
        scores[at] = unit if one + scores[at] > 0 else kind(0)
    scores[target * columns + s] = -unit if one - own > 0 else kind(0)


# --- gradients of many clients -------------------------------------------------------------------
@compiled_loop
def linear_gradients(x, gradients, data, stride, draws, rows, batch, chunk, scratch):  # type: ignore[no-untyped-def]
    """gradients[row] ← the mini-batch gradient at the flat model x[row], for the rows given.

    Args:
        x, gradients: (models, parameters).
        data: a `LinearData`.
        stride: of padded rows.
        draws: a `Minibatches` for these rows, in their order.
        rows: (n,) which models.
        batch: samples of every mini-batch.
        chunk: `chunk_length` of these mini-batches.
        scratch: a `Scratch`.
    """
    flat_x = x.reshape(-1)
    flat_gradients = gradients.reshape(-1)
    zero = UINT(0)
    for n in range(len(rows)):
        at = UINT(rows[n]) * UINT(x.shape[1])
        copy_padded(flat_x, at, scratch.model, zero, data, UINT(stride), False)
        draw = draws.rows[n], draws.keys[n], draws.client_index[n], draws.k, batch, chunk
        minibatch_gradient(scratch.model, zero, scratch.gradient, data, UINT(stride), draw, scratch)
        copy_padded(flat_gradients, at, scratch.gradient, zero, data, UINT(stride), True)
