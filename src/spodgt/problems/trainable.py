"""A module with its loss, ready to give the gradients of many clients.

Here a module is tried out: what training changes in it, what it costs, which engine fits it.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from spodgt import rng
from spodgt.errors import InvalidInput
from spodgt.problems.client_data import ClientData
from spodgt.problems.gradients import Engine, Layout, flatten
from spodgt.problems.gradients.linear import LinearEngine
from spodgt.problems.gradients.loop import LoopEngine
from spodgt.problems.gradients.vmap import VmapEngine
from spodgt.problems.losses import Loss, stacked_loss

_PROBE = 4  # samples used to try a module out
_CONVOLUTIONS = nn.modules.conv._ConvNd
_RUNNING = nn.modules.batchnorm._NormBase
_NO_LAYERS = (nn.Sequential, nn.Flatten, nn.Identity)


@dataclass(frozen=True, eq=False)
class Trainable:
    """The model of a learning problem; nothing here depends on who holds which samples."""

    model: nn.Module  # as it was given; never changed
    loss: Loss
    engine: Engine
    layout: Layout  # the parameters in a flat model
    running: Layout  # the running statistics behind them
    cost: int  # multiplications for one sample
    keep_weights: bool
    same_start: bool

    @staticmethod
    def of(
        model: nn.Module, loss: Loss, data: ClientData, keep_weights: bool, same_start: bool, buffers: object
    ) -> Trainable:
        """Try the model on a few samples, refuse what cannot be trained, and choose its engine."""
        if not isinstance(model, nn.Module):
            raise InvalidInput(f"model must be a torch.nn.Module, got {type(model).__name__}.")
        if not callable(loss):
            raise InvalidInput(
                f"loss must be callable, got {type(loss).__name__}; use torch.nn.CrossEntropyLoss()."
            )
        if buffers not in (None, "pull"):
            raise InvalidInput(f"buffers must be 'pull' or None, got {buffers!r}; use buffers='pull'.")
        module = copy.deepcopy(model).eval()
        if not any(p.numel() for p in module.parameters() if p.requires_grad):
            raise InvalidInput("model must have parameters to train, got none.")
        inputs, targets = data.samples.take(slice(0, _PROBE), torch.float32)
        with _trying("model and loss"):
            outputs = module.float()(inputs)
            shape = tuple(loss(outputs, targets).shape)
        if shape:
            raise InvalidInput(f"loss must return one number, got shape {shape}; use reduction='mean'.")
        if stacked_loss(loss) is not None:  # compiled losses trust that targets are classes of the model
            data.check_targets(outputs.shape[-1])
        running, random = side_effects(module, inputs)
        if running.names and buffers != "pull":
            raise InvalidInput(
                f"model must not change buffers while it trains, but {running.names[0]!r} changes; replace "
                'BatchNorm by torch.nn.GroupNorm, or use buffers="pull" to exchange them with the models.'
            )
        engine = choose(module, loss, inputs, targets, running, random=random)
        cost = multiplications(module, inputs)
        return Trainable(model, loss, engine, Layout.of(module), running, cost, keep_weights, same_start)

    def start(self, seed: int, clients: int) -> Tensor:
        """(clients, parameters) initial models."""
        starts = 1 if self.same_start or self.keep_weights else clients
        models = [flatten(self._initial(seed, client).parameters()) for client in range(starts)]
        return torch.stack(models).expand(clients, -1)

    def statistics(self, seed: int, clients: int) -> Tensor:
        """(clients, columns) initial running statistics, equal on all clients."""
        buffers = dict(self._initial(seed, 0).named_buffers()) if self.running.names else {}
        return flatten(buffers[name] for name in self.running.names).expand(clients, -1)

    def _initial(self, seed: int, client: int) -> nn.Module:
        """The module with its own initialisation under a generator of (seed, client)."""
        module = copy.deepcopy(self.model)
        if self.keep_weights:
            return module
        with torch.random.fork_rng():
            torch.manual_seed(rng.torch_generator(seed, "start", client).initial_seed())
            for part in module.modules():
                reset = getattr(part, "reset_parameters", None)
                if callable(reset):
                    reset()
        return module

    def filled(self, x: Tensor) -> nn.Module:
        """A copy of the given module with the model x (columns,) in it, in evaluation mode on the CPU."""
        self.check_columns(x[None])
        module, n = copy.deepcopy(self.model).cpu().eval(), self.layout.size
        slots = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, value in (self.layout.unflatten(x[:n]) | self.running.unflatten(x[n:])).items():
                slots[name].copy_(value)
        return module

    def to(self, device: torch.device, dtype: torch.dtype) -> Trainable:
        """With the numbers of the loss, such as weights of classes, on this device; modules follow models."""
        if not isinstance(self.loss, nn.Module) or not list(self.loss.buffers()):
            return self
        loss = copy.deepcopy(self.loss).to(device, dtype)
        return replace(self, loss=loss, engine=replace(self.engine, loss=loss))  # type: ignore[type-var]

    def check_columns(self, x: Tensor) -> None:
        """Say so if models (n, columns) are not parameters and running statistics."""
        wanted = self.layout.size + self.running.size
        if x.shape[1] != wanted:
            some = f", {self.running.size} of them running statistics" if self.running.names else ""
            raise InvalidInput(f"models must have {wanted} columns, got {x.shape[1]}{some}.")


def choose(
    module: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, statistics: Layout, *, random: bool
) -> Engine:
    """The fastest engine that computes the same as the plain loop on a few samples."""
    plain = LoopEngine(module, Layout.of(module), loss, statistics, random)
    parts = [part for part in module.modules() if not isinstance(part, _NO_LAYERS)]
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


def side_effects(module: nn.Module, inputs: Tensor) -> tuple[Layout, bool]:
    """What a training pass changes besides gradients: running statistics, and the random state.

    Whole-number buffers, such as BatchNorm's count of batches, only steer a running average and are left
    to themselves.
    """
    probe = copy.deepcopy(module).train()
    before = {name: buffer.clone() for name, buffer in probe.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng():
        state = torch.get_rng_state()
        with _trying("model in training mode"):
            probe(inputs)
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
    """What one sample costs in a forward pass: every weight, once for each position a convolution visits."""
    total, hooks = sum(part.numel() for part in module.parameters()), []

    def visit(part: nn.Module, _: object, output: Tensor) -> None:
        nonlocal total
        assert isinstance(part, _CONVOLUTIONS)
        total += part.weight.numel() * (math.prod(output.shape[2:]) - 1)

    for part in module.modules():
        if isinstance(part, _CONVOLUTIONS):
            hooks.append(part.register_forward_hook(visit))
    with torch.no_grad():
        module(inputs)
    for hook in hooks:
        hook.remove()
    return total


@contextmanager
def _trying(what: str) -> Iterator[None]:
    """Turn a failing user module or loss into one sentence."""
    try:
        yield
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InvalidInput(f"{what} failed on a few samples of client 0: {first}") from error
