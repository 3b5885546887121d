"""Flat vectors and the tensors of a module: where each lies, and how they are copied to and fro."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from spodgt.compiled import jit, usable
from spodgt.types import Ints

_ALIGNED = 16  # numbers: tensors begin where vector instructions work best


def flatten(tensors: Iterable[Tensor]) -> Tensor:
    """All numbers as one vector, a copy."""
    return torch.cat([torch.empty(0), *(tensor.detach().reshape(-1) for tensor in tensors)])


@dataclass(frozen=True, eq=False)
class Layout:
    """Where some tensors of a module lie in a flat vector."""

    names: tuple[str, ...] = ()
    shapes: tuple[torch.Size, ...] = ()

    @staticmethod
    def of(module: nn.Module) -> Layout:
        named = list(module.named_parameters())
        return Layout(tuple(name for name, _ in named), tuple(p.shape for _, p in named))

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @property
    def sizes(self) -> list[int]:
        return [shape.numel() for shape in self.shapes]

    def unflatten(self, x: Tensor) -> dict[str, Tensor]:
        """Views into `x` (…, parameters), by name."""
        pieces = torch.split(x, self.sizes, -1)
        return {
            name: piece.reshape(*x.shape[:-1], *shape)
            for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True)
        }


@dataclass(frozen=True, eq=False)
class Packing:
    """Where tensors lie in a flat model, and where in a block whose tensors are aligned and may be permuted.

    A row of `table` is: start in the model, start in the block, and the sizes (outer, inner, last) of a
    tensor that is (outer, inner, last) in the model and (outer, last, inner) in the block.
    """

    table: Ints
    shapes: tuple[torch.Size, ...]
    size: int  # of the block
    channels_last: bool

    @staticmethod
    def of(tensors: Sequence[Tensor], *, channels_last: bool) -> Packing:
        rows, start, at = [], 0, 0
        for tensor in tensors:
            outer, inner, last = 1, tensor.numel(), 1
            if channels_last and tensor.ndim == 4:
                outer, inner, last = tensor.shape[0], tensor.shape[1], math.prod(tensor.shape[2:])
            rows.append((start, at, outer, inner, last))
            start += tensor.numel()
            at += -(-tensor.numel() // _ALIGNED) * _ALIGNED
        table, shapes = np.array(rows, np.int64).reshape(-1, 5), tuple(tensor.shape for tensor in tensors)
        return Packing(table, shapes, at, channels_last)

    def __getitem__(self, some: slice) -> Packing:
        return replace(self, table=self.table[some], shapes=self.shapes[some])

    def views(self, block: Tensor) -> list[Tensor]:
        """The tensors in the block, shaped as their module knows them."""
        found = []
        for at, shape in zip(self.table[:, 1].tolist(), self.shapes, strict=True):
            piece = block[at : at + shape.numel()]
            if self.channels_last and len(shape) == 4:
                found.append(piece.view(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2))
            else:
                found.append(piece.view(shape))
        return found

    def move(self, row: Tensor, block: Tensor, *, inward: bool) -> None:
        """block ← row, or row ← block."""
        if usable(row, block):
            _move(row.numpy(), block.numpy(), self.table, inward)
            return
        starts = self.table[:, 0].tolist()
        for start, shape, slot in zip(starts, self.shapes, self.views(block), strict=True):
            value = row[start : start + shape.numel()].view(shape)
            slot.copy_(value) if inward else value.copy_(slot)


@jit
def _move(row, block, table, inward):  # type: ignore[no-untyped-def]
    """Copy the tensors of `table` (tensors, 5), see `Packing`: block ← row if `inward`, else row ← block."""
    for n in range(len(table)):
        start, at, outer, inner, last = table[n]
        for o in range(outer):
            for i in range(inner):
                for p in range(last):
                    here, there = start + (o * inner + i) * last + p, at + (o * last + p) * inner + i
                    if inward:
                        block[there] = row[here]
                    else:
                        row[here] = block[there]
