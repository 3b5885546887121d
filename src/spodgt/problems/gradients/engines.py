"""Gradients of one module for many clients at once.

Models are flat vectors: the module's parameters in `named_parameters` order, then its running statistics
where it keeps any. An engine takes stacked models (clients, columns) and one batch per client, and returns
stacked gradients (clients, parameters). Which engine is fastest depends on the module: a linear layer has
a closed form, small dense networks gain from `vmap`, convolutions on a CPU do not.
"""

from __future__ import annotations

import contextlib
import copy
import math
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap

from spodgt.compiled import Memory, jit, share, usable
from spodgt.errors import InvalidInput
from spodgt.problems.models import Loss, stacked_loss

_CONVOLUTIONS = (nn.modules.conv._ConvNd,)
_RUNNING = (nn.modules.batchnorm._NormBase,)
_ALIGNED = 16  # numbers: tensors begin where vector instructions like them
Noise = Sequence[int] | None  # a seed for each client's dropout; None for gradients without any


class Engine(Protocol):
    """Everything a learning problem asks of a module; `inputs` is (clients, batch, …)."""

    def grads(self, x: Tensor, inputs: Tensor, targets: Tensor, noise: Noise) -> Tensor: ...
    def with_losses(
        self, x: Tensor, inputs: Tensor, targets: Tensor, noise: Noise
    ) -> tuple[Tensor, Tensor]: ...  # losses (clients,), and gradients
    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor: ...  # shared inputs: (models, samples, …)


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

    def views(self, row: Tensor) -> list[Tensor]:
        """Views into the vector `row`, in order."""
        return [
            piece.view(shape) for piece, shape in zip(torch.split(row, self.sizes), self.shapes, strict=True)
        ]

    def unflatten(self, x: Tensor) -> dict[str, Tensor]:
        """Views into `x` (…, parameters), by name."""
        pieces = torch.split(x, self.sizes, -1)
        return {
            name: piece.reshape(*x.shape[:-1], *shape)
            for name, shape, piece in zip(self.names, self.shapes, pieces, strict=True)
        }


@dataclass(frozen=True, eq=False)
class LinearEngine:
    """A single linear layer: logits and gradients are batched matrix products."""

    features: int
    classes: int
    bias: bool
    loss: Loss

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        W = x[:, : self.classes * self.features].reshape(-1, self.classes, self.features)
        b = x[:, self.classes * self.features :] if self.bias else x.new_zeros(len(x), self.classes)
        return W, b[:, None]

    def _logits(self, x: Tensor, inputs: Tensor) -> Tensor:
        W, b = self._split(x)
        return torch.baddbmm(b, inputs.flatten(2), W.mT)

    def grads(self, x: Tensor, inputs: Tensor, targets: Tensor, noise: Noise) -> Tensor:
        return self.with_losses(x, inputs, targets, noise)[1]

    def with_losses(self, x: Tensor, inputs: Tensor, targets: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            logits = self._logits(x.detach(), inputs).requires_grad_()
            losses = self.loss(logits, targets)
            (slope,) = torch.autograd.grad(losses.sum(), logits)
        g = torch.empty_like(x)
        W = g[:, : self.classes * self.features].view(-1, self.classes, self.features)
        torch.bmm(slope.mT, inputs.flatten(2), out=W)
        if self.bias:
            g[:, self.classes * self.features :] = slope.sum(1)
        return losses.detach(), g

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        return self.products(x, inputs).mT + self._split(x)[1]

    def products(self, x: Tensor, inputs: Tensor) -> Tensor:
        """(models, classes, samples): outputs before the bias, one product for all models."""
        flat = self._split(x)[0].reshape(-1, self.features) @ inputs.flatten(1).T
        return flat.view(len(x), self.classes, len(inputs))


@dataclass(frozen=True, eq=False)
class VmapEngine:
    """All clients in one call through `torch.func.vmap`; fits small dense networks."""

    module: nn.Module
    layout: Layout
    loss: Loss

    def _forward(self, x: Tensor, inputs: Tensor) -> Tensor:
        return functional_call(self.module, self.layout.unflatten(x), (inputs,))  # type: ignore[no-any-return]

    def grads(self, x: Tensor, inputs: Tensor, targets: Tensor, noise: Noise) -> Tensor:
        return self.with_losses(x, inputs, targets, noise)[1]

    def with_losses(self, x: Tensor, inputs: Tensor, targets: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        loss = stacked_loss(self.loss) or vmap(self.loss)
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            losses = loss(vmap(self._forward)(x, inputs), targets)
            (g,) = torch.autograd.grad(losses.sum(), x)
        return losses.detach(), g

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        return vmap(self._forward, in_dims=(0, None))(x, inputs)


@dataclass(frozen=True, eq=False)
class LoopEngine:
    """One client after the other, on every thread: for convolutions, for dropout, for what `vmap` cannot do.

    A client's model is copied into a shell of the module, one shell per thread, which then runs as any
    module does; its weights lie there as convolutions like them best. Each client stays on one thread:
    threads that share an operator wait for each other at its end, which on a busy machine takes ten times
    as long as the work.
    """

    module: nn.Module
    layout: Layout
    loss: Loss
    statistics: Layout = field(default_factory=Layout)  # behind the parameters; training passes change them
    random: bool = False  # training passes draw random numbers
    memory: Memory = field(default_factory=Memory, repr=False)
    shells: dict[tuple[int, torch.device, torch.dtype], Shell] = field(default_factory=dict, repr=False)

    def grads(self, x: Tensor, inputs: Tensor, targets: Tensor, noise: Noise) -> Tensor:
        return self.with_losses(x, inputs, targets, noise)[1]

    def with_losses(self, x: Tensor, inputs: Tensor, targets: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        losses, g = x.new_empty(len(x)), self.memory.like(x, self.layout.size)

        def one(client: int) -> None:
            with torch.enable_grad(), self._filled(x[client], training=noise is not None) as shell:
                if self.random and noise is not None:
                    torch.manual_seed(noise[client])  # dropout, too, is a function of (seed, round, client)
                loss = self.loss(shell.module(self._image(inputs[client])), targets[client])
                losses[client] = loss.detach()
                shell.gradient(loss, g[client])

        with torch.random.fork_rng(enabled=self.random):
            self._each(x, one)
        return losses, g

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        inputs, out = self._image(inputs), dict[int, Tensor]()

        def one(model: int) -> None:
            with torch.no_grad(), self._filled(x[model], training=False) as shell:
                out[model] = shell.module(inputs)

        self._each(x, one)
        return torch.stack([out[model] for model in range(len(x))])

    def _each(self, x: Tensor, one: Callable[[int], None]) -> None:
        """Call `one` with the number of every row; random numbers are drawn for one after the other."""
        threads = torch.get_num_threads()
        if len(x) == 1 or threads == 1 or self.random or x.device.type != "cpu":
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

    @contextlib.contextmanager
    def _filled(self, row: Tensor, *, training: bool) -> Iterator[Shell]:
        """This thread's shell with the model of one client in it; new statistics go back to `row`."""
        key = threading.get_ident(), row.device, row.dtype
        if key not in self.shells:
            self.shells[key] = Shell(self.module, self.statistics, row, channels_last=self._channels_last)
        shell = self.shells[key]
        if shell.module.training != training:
            shell.module.train(training)
        shell.fill(row)
        yield shell
        if training:
            shell.return_statistics(row)

    @cached_property
    def _channels_last(self) -> bool:
        layers = [part for part in self.module.modules() if isinstance(part, nn.Conv2d)]
        return bool(layers) and not any(map(_overruns, layers))

    def _image(self, batch: Tensor) -> Tensor:
        """Inputs with channels last, which on a CPU is faster for convolutions and what is between them."""
        if not self._channels_last or batch.ndim != 4:
            return batch
        _, channels, height, width = batch.shape
        if channels == 1:  # fits both layouts; these strides say which is meant
            return batch.contiguous().as_strided(batch.shape, (height * width, 1, width, 1))
        return batch.contiguous(memory_format=torch.channels_last)


def _overruns(layer: nn.Conv2d) -> bool:
    """With channels last, the gradient of this layer's weights may write past its memory.

    So it is with strided 1×1 convolutions of fewer channels than oneDNN takes at once, which is 8 or 16
    (https://github.com/uxlfoundation/oneDNN/issues/6035).
    """
    return layer.kernel_size == (1, 1) and max(layer.stride) > 1 and layer.in_channels // layer.groups < 16


class Shell:
    """A copy of a module whose memory one client after the other fills with its model.

    Its parameters and statistics lie in one block, its gradients in another, each tensor as convolutions like
    it: a model comes and a gradient goes in one pass, whatever the number of layers.
    """

    def __init__(self, module: nn.Module, statistics: Layout, like: Tensor, *, channels_last: bool) -> None:
        self.module = copy.deepcopy(module).to(like.device, like.dtype)
        buffers = dict(self.module.named_buffers())
        parameters = list(self.module.parameters())
        tensors = [*parameters, *(buffers[name] for name in statistics.names)]
        self.places = Places.of(tensors, channels_last=channels_last)
        self.trained = self.places[: len(parameters)]
        self.tracked = self.places[len(parameters) :]
        self.values, self.slopes = (like.new_zeros(self.places.size) for _ in range(2))
        for tensor, value in zip(tensors, self.places.views(self.values), strict=True):
            tensor.data = value
        for part, slope in zip(parameters, self.trained.views(self.slopes), strict=True):
            part.grad = slope if part.requires_grad else None  # what is frozen keeps a gradient of zero

    def fill(self, row: Tensor) -> None:
        self.places.move(row, self.values, inward=True)

    def return_statistics(self, row: Tensor) -> None:
        self.tracked.move(row, self.values, inward=False)

    def gradient(self, loss: Tensor, row: Tensor) -> None:
        """row ← the gradient of `loss`."""
        self.slopes.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        self.trained.move(row, self.slopes, inward=False)


@dataclass(frozen=True, eq=False)
class Places:
    """Where tensors lie in a flat model, and where in a shell's block.

    A row of `table` is: start in the model, start in the block, and the sizes (outer, inner, places) of a
    tensor that is (outer, inner, places) in the model and (outer, places, inner) in the block.
    """

    table: NDArray[np.int64]
    shapes: tuple[torch.Size, ...]
    size: int  # of the block
    channels_last: bool

    @staticmethod
    def of(tensors: Sequence[Tensor], *, channels_last: bool) -> Places:
        rows, start, at = [], 0, 0
        for tensor in tensors:
            outer, inner, places = 1, tensor.numel(), 1
            if channels_last and tensor.ndim == 4:
                outer, inner, places = tensor.shape[0], tensor.shape[1], math.prod(tensor.shape[2:])
            rows.append((start, at, outer, inner, places))
            start += tensor.numel()
            at += -(-tensor.numel() // _ALIGNED) * _ALIGNED
        table, shapes = np.array(rows, np.int64).reshape(-1, 5), tuple(tensor.shape for tensor in tensors)
        return Places(table, shapes, at, channels_last)

    def __getitem__(self, some: slice) -> Places:
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
    for n in range(len(table)):
        start, at, outer, inner, places = table[n]
        for o in range(outer):
            for i in range(inner):
                for p in range(places):
                    here, there = start + (o * inner + i) * places + p, at + (o * places + p) * inner + i
                    if inward:
                        block[there] = row[here]
                    else:
                        row[here] = block[there]


def choose(
    module: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, statistics: Layout, *, random: bool
) -> Engine:
    """The fastest engine that computes the same as the plain loop on a few samples."""
    plain = LoopEngine(module, Layout.of(module), loss, statistics, random)
    parts = [
        part for part in module.modules() if not isinstance(part, nn.Sequential | nn.Flatten | nn.Identity)
    ]
    frozen = not all(part.requires_grad for part in module.parameters())
    if frozen or random or statistics.names or any(isinstance(part, _CONVOLUTIONS) for part in parts):
        return plain
    stacked = stacked_loss(loss)
    fast: list[Engine] = [VmapEngine(module, plain.layout, loss)]
    if len(parts) == 1 and isinstance(parts[0], nn.Linear) and stacked and targets.ndim == 1:
        layer = parts[0]
        fast.insert(0, LinearEngine(layer.in_features, layer.out_features, layer.bias is not None, stacked))
    x = flatten(module.parameters())  # a class of its own may do something else in its forward pass
    return next((engine for engine in fast if _agree(engine, plain, x, inputs, targets)), plain)


def _agree(fast: Engine, plain: Engine, x: Tensor, inputs: Tensor, targets: Tensor) -> bool:
    models, batches = torch.stack([x, x]), torch.stack([inputs, inputs])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # vmap warns where it falls back to a slow loop of its own
            ours = fast.grads(models, batches, torch.stack([targets, targets]), [0, 0])
    except (RuntimeError, UserWarning, ValueError, IndexError):
        return False
    theirs = plain.grads(models, batches, torch.stack([targets, targets]), [0, 0])
    return torch.allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def habits(module: nn.Module, inputs: Tensor) -> tuple[Layout, bool]:
    """What a training pass changes besides gradients: running statistics, and the random state.

    Whole-number buffers, such as BatchNorm's count of batches, only steer a running average and are left
    to themselves.
    """
    probe = copy.deepcopy(module).train()
    before = {name: buffer.clone() for name, buffer in probe.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng():
        state = torch.get_rng_state()
        check_call(lambda: probe(inputs), "model in training mode")
        random = not torch.equal(state, torch.get_rng_state())
    norms = {name: part for name, part in probe.named_modules() if isinstance(part, _RUNNING)}
    for name, part in norms.items():
        if part.track_running_stats and part.momentum is None:
            raise InvalidInput(
                f"{name} must have a momentum to average over rounds, got None; use momentum=0.1."
            )
    found = {}
    for name, buffer in probe.named_buffers():
        tracked = name.rpartition(".")[0] in norms  # even where a few samples left it as it was
        if buffer.is_floating_point() and (tracked or not torch.equal(before[name], buffer)):
            found[name] = buffer.shape
    return Layout(tuple(found), tuple(found.values())), random


def multiplications(module: nn.Module, inputs: Tensor) -> int:
    """What one sample costs in a forward pass: every weight, once for each place a convolution visits."""
    total = sum(part.numel() for part in module.parameters())

    def visit(part: nn.Module, _: object, output: Tensor) -> None:
        nonlocal total
        weight = part.weight
        assert isinstance(weight, Tensor)
        total += weight.numel() * (math.prod(output.shape[2:]) - 1)

    hooks = [
        part.register_forward_hook(visit) for part in module.modules() if isinstance(part, _CONVOLUTIONS)
    ]
    with torch.no_grad():
        module(inputs)
    for hook in hooks:
        hook.remove()
    return total


def check_call(call: Callable[[], Tensor], what: str) -> Tensor:
    """Turn a failing user module or loss into one sentence."""
    try:
        return call()
    except InvalidInput:
        raise
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InvalidInput(f"{what} failed on a few samples of client 0: {first}") from error
