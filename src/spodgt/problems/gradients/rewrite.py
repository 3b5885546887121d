"""Modules with the same numbers and less work, for small images on a CPU."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from spodgt.compiled import jit
from spodgt.compiled.instructions import LANES, product, wide_product
from spodgt.types import Array

_SMALL = 8192  # weights up to which loops are faster than torch's convolution, pooling and ReLU
_CUT = 4  # the place of a largest number that ReLU cuts off; others are 0 to 3, by rows


def rewritten(module: nn.Module, *, loops: bool) -> nn.Module:
    """The module itself, changed: pooling is before ReLU, and with `loops` both are part of convolutions.

    The largest of some numbers, cut off at zero, is the largest of the numbers cut off at zero, and has the
    same derivatives.
    """
    for part in module.modules():
        if type(part) is nn.Sequential:
            layers, names = part._modules, list(part._modules)
            for before, after in pairwise(names):
                if type(layers[before]) is nn.ReLU and isinstance(layers[after], nn.MaxPool2d):
                    layers[before], layers[after] = layers[after], layers[before]
            for name, pool, relu in zip(names, names[1:], names[2:], strict=False):
                layer = layers[name]
                if loops and _fit(layer, layers[pool]) and type(layers[relu]) is nn.ReLU:
                    layer.__class__ = PooledConvolution
                    layers[pool] = layers[relu] = nn.Identity()
    return module


def _fit(layer: nn.Module | None, pool: nn.Module | None) -> bool:
    """A small convolution, and the largest of every 2×2 pixels."""
    if type(layer) is not nn.Conv2d or type(pool) is not nn.MaxPool2d or pool.return_indices:
        return False
    sizes = zip((pool.kernel_size, pool.stride, pool.padding, pool.dilation), (2, 2, 0, 1), strict=True)
    plain = layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    small = layer.weight.numel() <= _SMALL and not pool.ceil_mode
    return plain and small and all(size in (one, (one, one)) for size, one in sizes)


class PooledConvolution(nn.Conv2d):
    """A convolution, the largest of every 2×2 of its outputs, and ReLU, as one operation."""

    def forward(self, input: Tensor) -> Tensor:
        bias = self.weight.new_zeros(self.out_channels) if self.bias is None else self.bias
        frame = *cast(tuple[int, int], self.padding), *self.stride, *self.dilation
        return cast(Tensor, _Pooled.apply(input, self.weight, bias, frame))  # type: ignore[no-untyped-call]


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *given):  # type: ignore[no-untyped-def]
        out, largest = torch.ops.spodgt.pooled(*given)
        ctx.save_for_backward(largest, *given[:2])
        ctx.frame = given[3]
        return out

    @staticmethod
    def backward(ctx, slopes):  # type: ignore[no-untyped-def]
        down = ctx.needs_input_grad[0]
        by_pixel, *others = torch.ops.spodgt.unpooled(slopes, *ctx.saved_tensors, ctx.frame, down)
        return by_pixel if down else None, *others, None


@lru_cache(64)
def _places(images: torch.Size, weight: torch.Size, frame: tuple[int, ...]) -> tuple[Array, ...]:
    """Where numbers lie in an image within its frame of zeros, channels last, and behind it as many ones.

    Slopes of outputs lie in a frame of their own, each where the output sees its first pixel. What becomes
    rows of a product is filled up to whole eights. A `frame` is padding, stride and dilation (down, right).

    Returns:
        slopes of outputs (2, 2, rows, columns), by the place in the 2×2; rows of the image; the first pixel
        that each output sees; from there on the pixels of all weights, and last the ones, for the bias;
        slopes at all pixels; from there on those that each weight and channel brings back.
    """
    (thick, height, width), (channels, _, high, wide) = images[1:], weight
    up, left, down, right, apart, aside = frame
    lanes, pixels = _eights(channels), np.arange((height + 2 * up) * (width + 2 * left))
    grid = pixels.reshape(height + 2 * up, -1)
    reach = grid[apart * (high - 1), aside * (wide - 1)]
    steps = grid[: apart * high : apart, : aside * wide : aside].reshape(-1, 1)
    seen = grid[: len(grid) - apart * (high - 1) : down, : grid.shape[1] - aside * (wide - 1) : right]
    rows, columns = (size // 2 for size in seen.shape)
    seen = seen[: 2 * rows, : 2 * columns].reshape(rows, 2, columns, 2).transpose(1, 3, 0, 2)
    inner = grid[up : up + height, left : left + width]
    weights = np.append(steps * thick + np.arange(thick), len(pixels) * thick)
    filled = (seen.ravel() * thick, weights, (inner.ravel() + reach) * lanes)
    outputs, weights, around = (np.pad(each, (0, -len(each) % 8), "edge") for each in filled)
    backward = (np.arange(channels) - steps * lanes).ravel()
    return (seen + reach) * lanes, inner[:, 0] * thick, outputs, weights, around, backward


def _eights(count: int) -> int:
    return -(-count // LANES) * LANES


def _last(images: Tensor) -> Array:
    """With channels last."""
    return images.permute(0, 2, 3, 1).contiguous().numpy()


def _forward(images: Tensor, weight: Tensor, bias: Tensor, frame: list[int]) -> tuple[Tensor, Tensor]:
    slopes, *where = _places(images.shape, weight.shape, tuple(frame))
    shape = len(images), *slopes.shape[2:], _eights(len(weight))
    out, largest = images.new_empty(shape), torch.empty(shape, dtype=torch.uint8)
    _pool(_last(images), _last(weight), bias.numpy(), tuple(where[:3]), out.numpy(), largest.numpy())
    return out[..., : len(weight)].permute(0, 3, 1, 2), largest


def _backward(
    slopes: Tensor, largest: Tensor, images: Tensor, weight: Tensor, frame: list[int], down: bool
) -> tuple[Tensor, Tensor, Tensor]:
    where = _places(images.shape, weight.shape, tuple(frame))
    (batch, thick, height, width), (channels, _, high, wide) = images.shape, weight.shape
    if largest.shape[3] > channels:
        slopes = nn.functional.pad(slopes, (0, 0, 0, 0, 0, largest.shape[3] - channels))
    sums = weight.new_zeros(len(where[3]), largest.shape[3])
    below = weight.new_empty(batch * height * width + 8 if down else 0, _eights(thick))
    given = _last(slopes), largest.numpy(), _last(images), _last(weight)
    _slopes(*given, (where[0].ravel(), *where[1:]), sums.numpy(), below.numpy())
    count = thick * high * wide
    return (
        below[:-8, :thick].view(batch if down else 0, height, width, thick).permute(0, 3, 1, 2),
        sums[:count, :channels].view(high, wide, thick, channels).permute(3, 2, 0, 1),
        sums[count, :channels],
    )


_library = torch.library.Library("spodgt", "DEF")  # type: ignore[no-untyped-call]
for _function, _schema in (  # operations of torch, so that recordings can call them
    (_forward, "pooled(Tensor x, Tensor w, Tensor b, int[] f) -> (Tensor, Tensor)"),
    (
        _backward,
        "unpooled(Tensor g, Tensor k, Tensor x, Tensor w, int[] f, bool d) -> (Tensor, Tensor, Tensor)",
    ),
):
    _library.impl(_library.define(_schema), _function, "CPU")  # type: ignore[no-untyped-call]


@jit
def _multiply(x, places, offsets, table, to):  # type: ignore[no-untyped-def]
    """to[n] ← Σ x[places[n] + offsets[t]] · table[t] over t, for whole eights of n."""
    wide = table.shape[1] // (2 * LANES) * 2 * LANES
    for row in range(0, len(places), 8):
        for left in range(0, wide, 2 * LANES):
            wide_product(x, places, offsets, table, to, row, left)
        if wide < table.shape[1]:
            product(x, places, offsets, table, to, row, wide)


@jit
def _frame(image, rows, framed):  # type: ignore[no-untyped-def]
    """Put an image (height, width, channels) into its frame."""
    pixels, width = image.reshape(-1), image[0].size
    for y in range(len(rows)):
        for x in range(width):
            framed[rows[y] + x] = pixels[y * width + x]


@jit
def _pool(images, weight, bias, where, out, largest):  # type: ignore[no-untyped-def]
    """out, largest ← the largest of every 2×2 numbers, cut off at zero, and their place in the 2×2."""
    rows, outputs, pixels = where
    count, lanes, size, weights = weight[0].size, out.shape[3], out[0].size, weight.reshape(-1)
    table = np.zeros((count + 1, lanes), weight.dtype)
    for o in range(len(weight)):
        table[count, o] = bias[o]
        for t in range(count):
            table[t, o] = weights[o * count + t]
    framed = np.zeros(2 * pixels[count], images.dtype)
    framed[pixels[count] :] = 1
    sums = np.empty((len(outputs), lanes), images.dtype)
    four = sums.reshape(-1)
    for b in range(len(images)):
        _frame(images[b], rows, framed)
        _multiply(framed, outputs, pixels[: count + 1], table, sums)
        to, which = out[b].reshape(-1), largest[b].reshape(-1)
        for n in range(size):
            best, place = four[n], 0
            for k in range(1, 4):
                value = four[k * size + n]
                above = (value > best) | np.isnan(value)  # the first of equal ones, the last NaN, as in torch
                best = value if above else best
                place = k if above else place
            to[n] = 0 if best <= 0 else best
            which[n] = _CUT if best <= 0 else place


@jit
def _slopes(slopes, largest, images, weight, where, sums, below):  # type: ignore[no-untyped-def]
    """sums, below ← derivatives by weights and bias, and by pixels if there is room for any."""
    seen, rows, outputs, pixels, around, backward = where
    channels, count, thick = len(weight), weight[0].size, images.shape[3]
    lanes, size, steps, weights = largest.shape[3], largest[0].size, count // thick, weight.reshape(-1)
    table = np.zeros((len(backward), below.shape[1]), weight.dtype)
    for step in range(steps):
        for o in range(channels):
            for c in range(thick):
                table[step * channels + o, c] = weights[(o * steps + step) * thick + c]
    framed = np.zeros(2 * pixels[count], images.dtype)
    framed[pixels[count] :] = 1
    spread = np.zeros(seen[0] + pixels[count] // thick * lanes, images.dtype)
    apart, found = np.empty((len(seen), lanes), images.dtype), np.empty(sums.shape, images.dtype)
    four = apart.reshape(-1)
    for b in range(len(images)):
        slope, which = slopes[b].reshape(-1), largest[b].reshape(-1)
        for k in range(4):
            for n in range(size):
                four[k * size + n] = slope[n] if which[n] == k else 0
        _frame(images[b], rows, framed)
        _multiply(framed, pixels, outputs[: len(seen)], apart, found)
        sums += found
        if len(below):
            for n in range(len(seen)):
                for o in range(lanes):
                    spread[seen[n] + o] = apart[n, o]
            # What is too much of the last eight, the next image writes over.
            _multiply(spread, around, backward, table, below[b * images[b].size // thick :])
