"""Gradients by the literal loop: the module itself, one client after the other."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor, nn

from spodgt.problems.data.pytree import Tree, clone, seed_all, seeded
from spodgt.problems.gradients import NO_COLUMNS, Engine, Layout, Many, Noise
from spodgt.problems.losses import Objective, call_module
from spodgt.thread_pool import run_tasks

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class LoopEngine(Engine):
    """Plain autograd through the module, one client at a time: the engine of networks on a CPU.

    Each thread has a copy of the module. A client's flat model is copied into it, then the loss is
    computed and differentiated as in any PyTorch program. Each client is computed by one thread:
    threads that divide the work of an operator wait for each other at its end, which on a busy
    machine takes ten times as long as the work.
    """

    module: nn.Module
    layout: Layout
    objective: Objective
    statistics: Layout = NO_COLUMNS  # behind the parameters; training passes change them
    random: bool = False  # passes draw random numbers
    personal: Layout = NO_COLUMNS  # columns of `statistics` that are trained here
    personal_step_size: float = 0.0
    copies: dict[tuple[int, torch.device, torch.dtype], ModuleOnRow] = field(
        default_factory=dict, repr=False
    )

    def __getstate__(self) -> dict[str, object]:
        """Without the copies that threads of this process have made."""
        return vars(self) | {"copies": {}}

    def with_losses(
        self, x: Tensor, inputs: Many, targets: Many, noise: Noise
    ) -> tuple[Tensor, Tensor]:
        """Losses and gradients, see `Engine.with_losses`.

        A training pass also updates the columns behind the parameters in `x`: running statistics,
        and personal parameters by one step along their gradient.
        """
        training = noise is not None
        losses = x.new_empty(len(x))
        gradients = x.new_empty(len(x), self.layout.size)

        def one_client(client: int) -> None:
            own = self._module_for(x)
            own.load(x[client], training=training)
            if self.random and noise is not None:
                seed_all(noise[client])  # dropout, too, is a function of (seed, round, client)
            batch = self.image(_own_copy(inputs[client]))
            with torch.enable_grad():
                loss = self.objective(own.module, batch, _own_copy(targets[client]))
                loss.backward()  # type: ignore[no-untyped-call]
            losses[client] = loss.detach()
            own.move_gradients(gradients[client], self.personal_step_size if training else 0.0)
            if training and self.statistics.names:
                own.store_statistics(x[client])

        with self._randomness(), self._attention():
            each_row(x, one_client, serial=self.random)
        return losses, gradients

    def _randomness(self) -> AbstractContextManager[None]:
        """Restore the states of the global generators, if passes draw random numbers."""
        return seeded(None) if self.random else nullcontext()

    def _attention(self) -> AbstractContextManager[None]:
        """Use attention that has a gradient, if the module has any."""
        return differentiable_attention() if self.has_attention else nullcontext()

    @cached_property
    def has_attention(self) -> bool:
        """Whether layers of the module may use the fused attention of torch."""
        layers = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
        return any(isinstance(part, layers) for part in self.module.modules())

    def outputs(self, x: Tensor, inputs: Tree) -> list[Tree]:
        shared = self.image(inputs)
        # a copy for each model: a forward pass may write into its inputs
        return self.apply(x, lambda module: call_module(module, clone(shared)))

    def apply(self, x: Tensor, work: Callable[[nn.Module], T]) -> list[T]:
        """What `work` makes of every model, as a module in evaluation mode."""
        results = dict[int, T]()

        def one_model(model: int) -> None:
            own = self._module_for(x)
            own.load(x[model], training=False)
            with torch.no_grad():
                results[model] = work(own.module)

        with seeded(0) if self.random else nullcontext():
            each_row(x, one_model, serial=self.random)
        return [results[model] for model in range(len(x))]

    def _module_for(self, x: Tensor) -> ModuleOnRow:
        """This thread's copy of the module, for models like those of `x`."""
        key = threading.get_ident(), x.device, x.dtype
        if key not in self.copies:
            self.copies[key] = ModuleOnRow(self, x[0])
        return self.copies[key]

    @property
    def max_block(self) -> int:
        """Fewer samples for convolutions, so that the activations of a block stay in the cache."""
        return 128 if self.channels_last else 1024

    def with_objective(self, objective: Objective) -> LoopEngine:
        """The same engine with another loss or precision."""
        return replace(self, objective=objective, copies={})

    @cached_property
    def channels_last(self) -> bool:
        layers = [part for part in self.module.modules() if isinstance(part, nn.Conv2d)]
        return bool(layers) and not any(map(_overruns, layers))

    def image(self, batch: Tree) -> Tree:
        """Inputs with channels last, which is faster for convolutions on a CPU."""
        if not self.channels_last or not isinstance(batch, Tensor) or batch.ndim != 4:
            return batch
        _, channels, height, width = batch.shape
        if channels == 1:  # fits both layouts; these strides say which is meant
            return batch.contiguous().as_strided(batch.shape, (height * width, 1, width, 1))
        return batch.contiguous(memory_format=torch.channels_last)


class ModuleOnRow:
    """A copy of a module whose parameters and buffers are views of one flat model (columns,).

    To load a client's model is to copy its row: a forward pass may write into parameters, as that
    of `nn.Embedding` with `max_norm` does. The parameters remain the same objects, so that
    everything that refers to them (tied layers, lists of parameters, the flat weights of recurrent
    layers) sees the values of this client. `torch.func.functional_call` replaces them by other
    tensors, which such references miss.
    """

    def __init__(self, engine: LoopEngine, like: Tensor) -> None:
        self.module = copy.deepcopy(engine.module).to(like.device, like.dtype)
        self.row = torch.empty_like(like, requires_grad=False)
        self.first_statistic = engine.layout.size
        named = dict(self.module.named_parameters())
        self.shared = [named[name] for name in engine.layout.names]
        self.personal = [named[name] for name in engine.personal.names]
        self.parameters: list[tuple[nn.Parameter, Tensor]] = []  # with the view of its values
        self.buffers: list[tuple[nn.Module, str, Tensor]] = []  # owner, name there, and the view
        for name, view in (engine.layout + engine.statistics).unflatten(self.row).items():
            if name in named:
                self.parameters.append((named[name], view))
            else:
                owner, _, attribute = name.rpartition(".")
                self.buffers.append((self.module.get_submodule(owner), attribute, view))

    def load(self, row: Tensor, *, training: bool) -> None:
        """Copy a client's model into the module."""
        if self.module.training != training:
            self.module.train(training)
        self.row.copy_(row.detach())
        for parameter, view in self.parameters:  # user code may have set another tensor
            parameter.data = view
        for owner, attribute, view in self.buffers:
            setattr(owner, attribute, view)

    def store_statistics(self, row: Tensor) -> None:
        """Copy running statistics and personal parameters into a client's model."""
        for owner, attribute, view in self.buffers:
            value = getattr(owner, attribute)
            if value is not view:  # the pass has replaced the buffer by a new tensor
                view.copy_(value.detach())
        row[self.first_statistic :] = self.row[self.first_statistic :]

    def move_gradients(self, target: Tensor, personal_step_size: float) -> None:
        """Move the gradients of the last backward pass into `target` (parameters,).

        Personal parameters take one step along theirs instead.
        """
        torch.cat([_flat_gradient(parameter) for parameter in self.shared], out=target)
        for parameter in self.personal:
            parameter.data.sub_(
                _flat_gradient(parameter).view_as(parameter), alpha=personal_step_size
            )
        for parameter in (*self.shared, *self.personal):
            parameter.grad = None


def _flat_gradient(parameter: nn.Parameter) -> Tensor:
    """The gradient as one dense vector; zero where the loss does not depend on the parameter."""
    if parameter.grad is None:
        return parameter.new_zeros(parameter.numel())
    return parameter.grad.to_dense().reshape(-1)


def _own_copy(batch: Tree) -> Tree:
    """The batch of one client, in memory of its own if it is a part of a tensor of all clients.

    This memory is aligned wherever the client stands among the others: matrix products of
    unaligned numbers may differ in their last bits.
    """
    return batch.clone() if isinstance(batch, Tensor) else batch


def each_row(x: Tensor, one: Callable[[int], object], *, serial: bool = False) -> None:
    """Call `one` with the number of every row, on several threads unless `serial`."""
    threads = torch.get_num_threads()
    if len(x) == 1 or threads == 1 or serial or x.device.type != "cpu":
        for row in range(len(x)):
            one(row)
        return

    waiting = iter(range(len(x)))  # shared: a thread that other work slows down takes fewer of them

    def some(_: int) -> None:
        torch.set_num_threads(1)  # of this thread
        for row in waiting:
            one(row)

    try:
        run_tasks(some, range(min(threads, len(x))), sys.maxsize)
    finally:
        torch.set_num_threads(threads)


@contextmanager
def differentiable_attention() -> Iterator[None]:
    """Switch off the fused attention of `nn.TransformerEncoder`, which has no gradient."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def _overruns(layer: nn.Conv2d) -> bool:
    """With channels last, the gradient of this layer's weights may write past its memory.

    So it is with strided 1×1 convolutions of fewer channels than oneDNN takes at once, which is 8
    or 16 (https://github.com/uxlfoundation/oneDNN/issues/6035).
    """
    return (
        layer.kernel_size == (1, 1)
        and max(layer.stride) > 1
        and layer.in_channels // layer.groups < 16
    )
