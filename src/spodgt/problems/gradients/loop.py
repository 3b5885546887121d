"""One client after the other, through a copy of the module that belongs to the thread."""

from __future__ import annotations

import contextlib
import copy
import math
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from spodgt.compiled import jit, share, usable
from spodgt.problems.gradients import Engine, Layout, Many, Noise
from spodgt.problems.objective import Objective
from spodgt.problems.trees import Tree, call, clone, seed_all, seeded

T = TypeVar("T")

_ALIGNED = 16  # numbers: tensors begin where vector instructions work best


@dataclass(frozen=True, eq=False)
class LoopEngine(Engine):
    """One client after the other, on every thread: for dropout, for BatchNorm, for what others cannot do.

    A client's model is copied into a shell of the module, one shell per thread, which then runs as any
    module does, with weights in the memory layout that suits convolutions. Each client stays on one thread:
    threads that share an operator wait for each other at its end, which on a busy machine takes ten times
    as long as the work.
    """

    module: nn.Module
    layout: Layout
    objective: Objective
    statistics: Layout = field(default_factory=Layout)  # behind the parameters; training passes change them
    random: bool = False  # passes draw random numbers
    personal: Layout = field(default_factory=Layout)  # those of the columns behind that are trained here
    personal_step_size: float = 0.0
    shells: dict[tuple[int, torch.device, torch.dtype], Shell] = field(default_factory=dict, repr=False)

    def with_losses(self, x: Tensor, inputs: Many, targets: Many, noise: Noise) -> tuple[Tensor, Tensor]:
        losses, g = x.new_empty(len(x)), x.new_empty(len(x), self.layout.size)

        def one(client: int) -> None:
            with torch.enable_grad(), self._filled(x[client], training=noise is not None) as shell:
                if self.random and noise is not None:
                    seed_all(noise[client])  # dropout, too, is a function of (seed, round, client)
                loss = self.objective(shell.module, self.image(inputs[client]), targets[client])
                losses[client] = loss.detach()
                shell.gradient(loss, g[client])
                if noise is not None:
                    shell.descend(self.personal_step_size)

        with seeded(None) if self.random else contextlib.nullcontext():
            each_row(x, one, serial=self.random)
        return losses, g

    def outputs(self, x: Tensor, inputs: Tree) -> list[Tree]:
        shared = self.image(inputs)
        return self.apply(x, lambda module: call(module, clone(shared)))  # a forward pass may write into it

    def apply(self, x: Tensor, work: Callable[[nn.Module], T]) -> list[T]:
        """What `work` makes of every model, as a module in evaluation mode."""
        out = dict[int, T]()

        def one(model: int) -> None:
            with torch.no_grad(), self._filled(x[model], training=False) as shell:
                out[model] = work(shell.module)

        with seeded(0) if self.random else contextlib.nullcontext():
            each_row(x, one, serial=self.random)
        return [out[model] for model in range(len(x))]

    @contextlib.contextmanager
    def _filled(self, row: Tensor, *, training: bool) -> Iterator[Shell]:
        """This thread's shell with the model of one client in it; new statistics go back to `row`."""
        key = threading.get_ident(), row.device, row.dtype
        if key not in self.shells:
            self.shells[key] = Shell(self, row)
        shell = self.shells[key]
        if shell.module.training != training:
            shell.module.train(training)
        shell.copy(row, shell.values, slice(None), inward=True)
        yield shell
        if training:
            shell.copy(row, shell.values, slice(shell.trained, None), inward=False)

    @cached_property
    def channels_last(self) -> bool:
        layers = [part for part in self.module.modules() if isinstance(part, nn.Conv2d)]
        return bool(layers) and not any(map(_overruns, layers))

    def weight(self, value: Tensor) -> Tensor:
        """A parameter in the memory layout that suits convolutions."""
        if self.channels_last and value.ndim == 4:
            return value.contiguous(memory_format=torch.channels_last)
        return value

    def image(self, batch: Tree) -> Tree:
        """Inputs with channels last, which on a CPU is faster for convolutions and what is between them."""
        if not self.channels_last or not isinstance(batch, Tensor) or batch.ndim != 4:
            return batch
        _, channels, height, width = batch.shape
        if channels == 1:  # fits both layouts; these strides say which is meant
            return batch.contiguous().as_strided(batch.shape, (height * width, 1, width, 1))
        return batch.contiguous(memory_format=torch.channels_last)


def each_row(x: Tensor, one: Callable[[int], object], *, serial: bool = False) -> None:
    """Call `one` with the number of every row, each on one thread; one after the other if `serial`."""
    threads = torch.get_num_threads()
    if len(x) == 1 or threads == 1 or serial or x.device.type != "cpu":
        for row in range(len(x)):
            one(row)
        return

    waiting = iter(range(len(x)))  # shared: a thread that other work slows down takes fewer of them

    def some(*_: int) -> None:
        torch.set_num_threads(1)  # of this thread
        for row in waiting:
            one(row)

    try:
        share(min(threads, len(x)), sys.maxsize, some)
    finally:
        torch.set_num_threads(threads)


def _overruns(layer: nn.Conv2d) -> bool:
    """With channels last, the gradient of this layer's weights may write past its memory.

    So it is with strided 1×1 convolutions of fewer channels than oneDNN takes at once, which is 8 or 16
    (https://github.com/uxlfoundation/oneDNN/issues/6035).
    """
    return layer.kernel_size == (1, 1) and max(layer.stride) > 1 and layer.in_channels // layer.groups < 16


class Shell:
    """A copy of a module whose memory one client after the other fills with its model.

    Its parameters and statistics lie in one block, its gradients in another, each tensor aligned and in the
    memory layout that suits convolutions: a model comes and a gradient goes in one pass, whatever the number
    of layers. A row of `table` is: start in the model, start in the block, and the sizes (outer, inner, last)
    of a tensor that is (outer, inner, last) in the model and (outer, last, inner) in the block.
    """

    def __init__(self, engine: LoopEngine, like: Tensor) -> None:
        self.module = copy.deepcopy(engine.module).to(like.device, like.dtype)
        parameters = dict(self.module.named_parameters())
        named = parameters | dict(self.module.named_buffers())
        tensors = [named[name] for name in (*engine.layout.names, *engine.statistics.names)]
        self.trained, self.shapes = len(engine.layout.names), [tensor.shape for tensor in tensors]
        self.personal, self.channels_last = (
            [parameters[n] for n in engine.personal.names],
            engine.channels_last,
        )
        rows, start, at = [], 0, 0
        for shape in self.shapes:
            outer, inner, last = 1, shape.numel(), 1
            if self.channels_last and len(shape) == 4:
                outer, inner, last = shape[0], shape[1], math.prod(shape[2:])
            rows.append((start, at, outer, inner, last))
            start += shape.numel()
            at += -(-shape.numel() // _ALIGNED) * _ALIGNED
        self.table = np.array(rows, np.int64)
        self.values, self.slopes = (like.new_zeros(at) for _ in range(2))
        for tensor, value, slope in zip(
            tensors, self._views(self.values), self._views(self.slopes), strict=True
        ):
            tensor.data = value
            if isinstance(tensor, nn.Parameter):
                tensor.grad = slope

    def _views(self, block: Tensor) -> Iterator[Tensor]:
        """The tensors in a block, shaped as the module knows them."""
        for at, shape in zip(self.table[:, 1].tolist(), self.shapes, strict=True):
            piece = block[at : at + shape.numel()]
            if self.channels_last and len(shape) == 4:
                yield piece.view(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2)
            else:
                yield piece.view(shape)

    def copy(self, row: Tensor, block: Tensor, some: slice, *, inward: bool) -> None:
        """block ← row, or row ← block, for some of the tensors."""
        if usable(row, block):
            _copy(row.numpy(), block.numpy(), self.table[some], inward)
            return
        tensors = list(zip(self.table[:, 0].tolist(), self.shapes, self._views(block), strict=True))
        for start, shape, slot in tensors[some]:
            value = row[start : start + shape.numel()].view(shape)
            slot.copy_(value) if inward else value.copy_(slot)

    def gradient(self, loss: Tensor, row: Tensor) -> None:
        """row ← the gradient of `loss`."""
        self.slopes.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        self.copy(row, self.slopes, slice(self.trained), inward=False)

    def descend(self, step_size: float) -> None:
        """One step of what is trained right here, along the gradient that was just taken."""
        with torch.no_grad():
            for parameter in self.personal:
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=step_size)


@jit
def _copy(row, block, table, inward):  # type: ignore[no-untyped-def]
    """Copy the tensors of `table` (tensors, 5), see `Shell`: block ← row if `inward`, else row ← block."""
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
