"""Modules with the same numbers and less work, for small images on a CPU."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

_THIN = 32  # weights of one output channel below which a product of matrices is faster than a convolution


class ThinConvolution(nn.Conv2d):
    """A convolution of few channels, mostly the first: a product with the pixels below each weight."""

    @staticmethod
    def fits(layer: nn.Module) -> bool:
        return (
            type(layer) is nn.Conv2d
            and layer.groups == 1
            and layer.padding_mode == "zeros"
            and not isinstance(layer.padding, str)
            and layer.weight[0].numel() <= _THIN
        )

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim != 4 or input.requires_grad:  # derivatives by pixels would cost more than is saved
            return super().forward(input)
        (up, left), (high, wide) = cast(tuple[int, int], self.padding), self.kernel_size
        framed = functional.pad(input, (left, left, up, up)).contiguous()
        batch, channels, height, width = framed.shape
        (down, right), (apart, aside) = self.stride, self.dilation
        rows = (height - apart * (high - 1) - 1) // down + 1
        columns = (width - aside * (wide - 1) - 1) // right + 1
        image, channel, row, _ = framed.stride()
        seen = framed.as_strided(
            (channels, high, wide, batch, rows, columns),
            (channel, apart * row, aside, image, down * row, right),
        )
        weight, count = self.weight.flatten(1), self.weight[0].numel()
        if self.bias is not None:
            weight = torch.cat([weight, self.bias[:, None]], 1)
        pixels = framed.new_empty(weight.shape[1], batch * rows * columns)
        pixels[:count].view(seen.shape).copy_(seen)
        pixels[count:].fill_(1)  # for the bias
        product = pixels.t() @ weight.t()
        return product.view(batch, rows, columns, self.out_channels).permute(0, 3, 1, 2)


class HalvingPool(nn.MaxPool2d):
    """The largest of every 2×2 pixels, by pairs: faster where nobody asks which of them it was."""

    @staticmethod
    def fits(layer: nn.Module) -> bool:
        if type(layer) is not nn.MaxPool2d or layer.return_indices or layer.ceil_mode:
            return False
        sizes = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
        return all(size in (one, (one, one)) for size, one in zip(sizes, (2, 2, 0, 1), strict=True))

    def forward(self, input: Tensor) -> Tensor:
        if input.requires_grad:
            return functional.max_pool2d(input, 2)
        height, width = (size // 2 * 2 for size in input.shape[-2:])
        rows = torch.maximum(input[..., 0:height:2, :], input[..., 1:height:2, :])
        return torch.maximum(rows[..., 0:width:2], rows[..., 1:width:2])


def rewritten(module: nn.Module) -> nn.Module:
    """The module itself, changed: thin convolutions are products, and pooling is cheap and before ReLU.

    The largest of some numbers, cut off at zero, is the largest of the numbers cut off at zero, and has the
    same derivatives.
    """
    for part in module.modules():
        if ThinConvolution.fits(part):
            part.__class__ = ThinConvolution
        if HalvingPool.fits(part):
            part.__class__ = HalvingPool
        if type(part) is nn.Sequential:
            names = list(part._modules)
            for before, after in pairwise(names):
                if type(part._modules[before]) is nn.ReLU and isinstance(part._modules[after], nn.MaxPool2d):
                    part._modules[before], part._modules[after] = part._modules[after], part._modules[before]
    return module
