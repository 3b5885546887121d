"""Gradients of one module for many clients at once.

Models are flat vectors: the module's parameters in `named_parameters` order, then its running statistics
where it keeps any. An engine takes stacked models (clients, columns) and one batch per client, and returns
stacked gradients (clients, parameters). Which engine is fastest depends on the module: a linear layer has
a closed form (`linear`), small dense networks gain from `vmap`, convolutions on a CPU do not (`loop`).
`choose` takes the fastest one that agrees with the plain loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

Noise = Sequence[int] | None  # a seed for each client's dropout; None for gradients without any


class Engine(Protocol):
    """Everything a learning problem asks of a module; `inputs` is (clients, batch, …)."""

    def grads(self, x: Tensor, inputs: Tensor, targets: Tensor, noise: Noise) -> Tensor:
        return self.with_losses(x, inputs, targets, noise)[1]

    def with_losses(
        self, x: Tensor, inputs: Tensor, targets: Tensor, noise: Noise
    ) -> tuple[Tensor, Tensor]: ...  # losses (clients,), and gradients
    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor: ...  # shared inputs: (models, samples, …)
