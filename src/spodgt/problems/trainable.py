"""A module with its loss, ready to give the gradients of many clients."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from spodgt import rng
from spodgt.errors import InvalidInput
from spodgt.problems.client_data import ClientData
from spodgt.problems.gradients import Engine
from spodgt.problems.gradients.choose import check_call, choose, multiplications, side_effects
from spodgt.problems.gradients.layout import Layout, flatten
from spodgt.problems.losses import Loss, stacked_loss

_PROBE = 4  # samples used to try a module out


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
        model: nn.Module,
        loss: Loss,
        data: ClientData,
        *,
        keep_weights: bool,
        same_start: bool,
        buffers: str | None,
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
        outputs = check_call(lambda: _attempt(module.float(), loss, inputs, targets), "model and loss")
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


def _attempt(module: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> Tensor:
    outputs: Tensor = module(inputs)
    value = loss(outputs, targets)
    if value.ndim:
        raise InvalidInput(
            f"loss must return one number, got shape {tuple(value.shape)}; use reduction='mean'."
        )
    return outputs
