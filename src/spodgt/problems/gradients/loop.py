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

from spodgt.problems.data.pytree import Tree, clone
from spodgt.problems.gradients import NO_COLUMNS, DropoutSeeds, Engine, Layout, PerClient
from spodgt.problems.losses import Objective, call_module
from spodgt.problems.random_state import seed_all, seeded
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
    extra: Layout = NO_COLUMNS  # columns behind the parameters; training passes change them
    draws_random_numbers: bool = False  # in a pass, as dropout does
    personal: Layout = NO_COLUMNS  # those of `extra` that are trained here
    personal_step_size: float = 0.0
    copies: dict[tuple[int, torch.device, torch.dtype], ModuleOnRow] = field(
        default_factory=dict, repr=False
    )

    def __getstate__(self) -> dict[str, object]:
        """Without the copies that threads of this process have made."""
        return vars(self) | {"copies": {}}

    def losses_and_gradients(
        self, x: Tensor, inputs: PerClient, targets: PerClient, seeds: DropoutSeeds
    ) -> tuple[Tensor, Tensor]:
        """Losses and gradients, see `Engine.losses_and_gradients`.

        A training pass also updates the columns behind the parameters in `x`: running statistics,
        and personal parameters by one step along their gradient.
        """
        training = seeds is not None
        losses = x.new_empty(len(x))
        gradients = x.new_empty(len(x), self.layout.size)

        def compute_client(client: int) -> None:
            loaded = self._module_for(x)
            loaded.load(x[client], training=training)
            if self.draws_random_numbers and seeds is not None:
                seed_all(seeds[client])  # dropout, too, is a function of (seed, round, client)
            batch = self._with_channels_last(_aligned_copy(inputs[client]))
            with torch.enable_grad():
                loss = self.objective(loaded.module, batch, _aligned_copy(targets[client]))
                loss.backward()  # type: ignore[no-untyped-call]
            losses[client] = loss.detach()
            loaded.move_gradients(gradients[client], self.personal_step_size if training else 0.0)
            if training and self.extra.names:
                loaded.store_extra_columns(x[client])

        with self._randomness(), self._attention():
            for_each_row(x, compute_client, serial=self.draws_random_numbers)
        return losses, gradients

    def _randomness(self) -> AbstractContextManager[None]:
        """Restore the states of the global generators, if passes draw random numbers."""
        return seeded(None) if self.draws_random_numbers else nullcontext()

    def _attention(self) -> AbstractContextManager[None]:
        """Use attention that has a gradient, if the module has any."""
        return differentiable_attention() if self.has_attention else nullcontext()

    @cached_property
    def has_attention(self) -> bool:
        """Whether layers of the module may use the fused attention of torch."""
        layers = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
        return any(isinstance(part, layers) for part in self.module.modules())

    def outputs(self, x: Tensor, inputs: Tree) -> list[Tree]:
        batch = self._with_channels_last(inputs)
        # a copy for each model: a forward pass may write into its inputs
        return self.apply(x, lambda module: call_module(module, clone(batch)))

    def apply(self, x: Tensor, function: Callable[[nn.Module], T]) -> list[T]:
        """The results of a function of every model, as a module in evaluation mode."""
        results = dict[int, T]()

        def compute_model(model: int) -> None:
            loaded = self._module_for(x)
            loaded.load(x[model], training=False)
            with torch.no_grad():
                results[model] = function(loaded.module)

        with seeded(0) if self.draws_random_numbers else nullcontext():
            for_each_row(x, compute_model, serial=self.draws_random_numbers)
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
        """Whether inputs are converted: there are convolutions, all of which support it."""
        layers = [part for part in self.module.modules() if isinstance(part, nn.Conv2d)]
        return bool(layers) and not any(map(_fails_with_channels_last, layers))

    def _with_channels_last(self, batch: Tree) -> Tree:
        """Images with channels last, which is faster for convolutions on a CPU."""
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
        self.first_extra_column = engine.layout.size
        named = dict(self.module.named_parameters())
        self.shared = [named[name] for name in engine.layout.names]
        self.personal = [named[name] for name in engine.personal.names]
        self.parameters: list[tuple[nn.Parameter, Tensor]] = []  # with the view of its values
        self.buffers: list[tuple[nn.Module, str, Tensor]] = []  # owner, name there, and the view
        for name, view in (engine.layout + engine.extra).unflatten(self.row).items():
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

    def store_extra_columns(self, row: Tensor) -> None:
        """Copy running statistics and personal parameters into a client's model."""
        for owner, attribute, view in self.buffers:
            value = getattr(owner, attribute)
            if value is not view:  # the pass has replaced the buffer by a new tensor
                view.copy_(value.detach())
        row[self.first_extra_column :] = self.row[self.first_extra_column :]

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


def _aligned_copy(batch: Tree) -> Tree:
    """The batch of one client, in memory of its own if it is a part of a tensor of all clients.

    This memory is aligned wherever the client stands among the others: matrix products of
    unaligned numbers may differ in their last bits.
    """
    return batch.clone() if isinstance(batch, Tensor) else batch


def for_each_row(x: Tensor, function: Callable[[int], object], *, serial: bool = False) -> None:
    """Call a function with the number of every row, on several threads unless `serial`."""
    threads = torch.get_num_threads()
    if len(x) == 1 or threads == 1 or serial or x.device.type != "cpu":
        for row in range(len(x)):
            function(row)
        return

    remaining = iter(range(len(x)))  # shared: a thread that other work slows down takes fewer

    def compute_remaining_rows(_: int) -> None:
        torch.set_num_threads(1)  # of this thread
        for row in remaining:
            function(row)

    try:
        run_tasks(compute_remaining_rows, range(min(threads, len(x))), sys.maxsize)
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


def _fails_with_channels_last(layer: nn.Conv2d) -> bool:
    """Whether the gradient of the weights may write past its memory with channels last.

    This is a bug of strided 1×1 convolutions of fewer channels than oneDNN takes at once, 8 or 16
    (https://github.com/uxlfoundation/oneDNN/issues/6035).
    """
    return (
        layer.kernel_size == (1, 1)
        and max(layer.stride) > 1
        and layer.in_channels // layer.groups < 16
    )
