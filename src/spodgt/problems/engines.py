"""Gradients of one module for many clients at once.

Models are flat vectors: the module's parameters in `named_parameters` order. An engine takes stacked
models (clients, parameters) and one batch per client, and returns stacked gradients. Which engine is
fastest depends on the module: a linear layer has a closed form, small dense networks gain from
`vmap`, convolutions on a CPU do not.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from spodgt.errors import InvalidInput
from spodgt.models import Loss, stacked_loss

_CONVOLUTIONS = (nn.modules.conv._ConvNd,)
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU)


class Engine(Protocol):
    """Everything a learning problem asks of a module; `inputs` is (clients, batch, …)."""

    def losses(self, x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor: ...  # (clients,)
    def grads(self, x: Tensor, inputs: Tensor, targets: Tensor, noise: list[int]) -> Tensor: ...
    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor: ...  # shared inputs: (models, samples, …)


def flatten(module: nn.Module) -> Tensor:
    """The module's parameters as one vector, a copy."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


@dataclass(frozen=True, eq=False)
class Layout:
    """Where each parameter of a module lies in the flat vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @staticmethod
    def of(module: nn.Module) -> Layout:
        named = list(module.named_parameters())
        return Layout(tuple(name for name, _ in named), tuple(p.shape for _, p in named))

    @property
    def size(self) -> int:
        return sum(shape.numel() for shape in self.shapes)

    def unflatten(self, x: Tensor) -> dict[str, Tensor]:
        """Views into `x` (…, parameters), by name."""
        pieces = x.split([shape.numel() for shape in self.shapes], -1)
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

    def losses(self, x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(self._logits(x, inputs), targets)

    def grads(self, x: Tensor, inputs: Tensor, targets: Tensor, noise: list[int]) -> Tensor:
        with torch.enable_grad():
            logits = self._logits(x.detach(), inputs).requires_grad_()
            (slope,) = torch.autograd.grad(self.loss(logits, targets).sum(), logits)
        g = torch.empty_like(x)
        W = g[:, : self.classes * self.features].view(-1, self.classes, self.features)
        torch.bmm(slope.mT, inputs.flatten(2), out=W)
        if self.bias:
            g[:, self.classes * self.features :] = slope.sum(1)
        return g

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        W, b = self._split(x)
        flat = inputs.flatten(1) @ W.reshape(-1, self.features).T  # one product for all models
        return flat.reshape(len(inputs), len(x), self.classes).transpose(0, 1) + b


@dataclass(frozen=True, eq=False)
class VmapEngine:
    """All clients in one call through `torch.func.vmap`; fits small dense networks."""

    module: nn.Module
    layout: Layout
    loss: Loss

    def _forward(self, x: Tensor, inputs: Tensor) -> Tensor:
        return functional_call(self.module, self.layout.unflatten(x), (inputs,))  # type: ignore[no-any-return]

    def losses(self, x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        outputs = vmap(self._forward)(x, inputs)
        loss = stacked_loss(self.loss)
        return loss(outputs, targets) if loss else vmap(self.loss)(outputs, targets)

    def grads(self, x: Tensor, inputs: Tensor, targets: Tensor, noise: list[int]) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (g,) = torch.autograd.grad(self.losses(x, inputs, targets).sum(), x)
        return g

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        return vmap(self._forward, in_dims=(0, None))(x, inputs)


@dataclass(frozen=True, eq=False)
class LoopEngine:
    """One client after the other: for convolutions, for dropout, and for whatever `vmap` cannot do."""

    module: nn.Module
    layout: Layout
    loss: Loss

    def _forward(self, x: Tensor, inputs: Tensor) -> Tensor:
        return functional_call(self.module, self.layout.unflatten(x), (inputs,))  # type: ignore[no-any-return]

    def _loss(self, x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss(self._forward(x, inputs), targets)

    def losses(self, x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        return torch.stack([self._loss(*client) for client in zip(x, inputs, targets, strict=True)])

    def grads(self, x: Tensor, inputs: Tensor, targets: Tensor, noise: list[int]) -> Tensor:
        g = torch.empty_like(x)
        random = any(isinstance(part, _RANDOM) for part in self.module.modules())
        self.module.train()
        for client, seed in enumerate(noise):
            with torch.enable_grad(), torch.random.fork_rng(enabled=random):
                if random:
                    torch.manual_seed(seed)  # dropout masks, too, are a function of (seed, round, client)
                own = x[client].detach().requires_grad_()
                (g[client],) = torch.autograd.grad(self._loss(own, inputs[client], targets[client]), own)
        self.module.eval()
        return g

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        return torch.stack([self._forward(model, inputs) for model in x])


def choose(module: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor) -> Engine:
    """The fastest engine that computes the same as the plain loop on a few samples."""
    _check_buffers(module, inputs)
    layout, loop_loss = Layout.of(module), loss
    plain = LoopEngine(module, layout, loop_loss)
    parts = [part for part in module.modules() if not isinstance(part, nn.Sequential | nn.Flatten | nn.Identity)]
    stacked = stacked_loss(loss)
    if len(parts) == 1 and isinstance(parts[0], nn.Linear) and stacked and targets.ndim == 1:
        layer = parts[0]
        return LinearEngine(layer.in_features, layer.out_features, layer.bias is not None, stacked)
    if any(isinstance(part, _CONVOLUTIONS + _RANDOM) for part in parts):
        return plain
    fast = VmapEngine(module, layout, loss)
    return fast if _agree(fast, plain, flatten(module), inputs, targets) else plain


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


def _check_buffers(module: nn.Module, inputs: Tensor) -> None:
    """Refuse modules that change state in their forward pass: clients would share that state."""
    probe = copy.deepcopy(module).train()
    before = {name: buffer.clone() for name, buffer in probe.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng():
        probe(inputs)
    for name, buffer in probe.named_buffers():
        if not torch.equal(before[name], buffer):
            raise InvalidInput(
                f"model must not change buffers while it trains, but {name!r} changed; "
                "replace BatchNorm by torch.nn.GroupNorm."
            )


def check_call(call: Callable[[], Tensor], what: str) -> Tensor:
    """Turn a failing user module or loss into one sentence."""
    try:
        return call()
    except InvalidInput:
        raise
    except Exception as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InvalidInput(f"{what} failed on a few samples of client 0: {first}") from error
