"""Gradients of one module for many clients at once.

Models are flat vectors: the module's trained and exchanged parameters in `named_parameters` order,
then what clients keep besides: running statistics, personal parameters. An engine takes stacked
models (clients, columns) and one batch per client, and returns stacked gradients (clients,
parameters). A single linear layer has a closed form (`linear`). Other modules run as they are, a
client at a time (`loop`). An accelerator takes all clients at once (`vmap`), except for modules
that draw random numbers or keep statistics. The engine is selected by
`models.engine_selection.select_engine`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from spodgt.problems.data.pytree import Tree
from spodgt.problems.losses import Loss, Objective

DropoutSeeds = Sequence[int] | None  # one per client; None: evaluation mode, without dropout
PerClient = Tensor | Sequence[Tree]  # (clients, …), or one tree of any form per client


class LinearLayer(NamedTuple):
    """A model that is a single linear layer, as compiled loops need it."""

    classes: int
    bias: bool
    loss: Loss  # one of `losses.LOSSES`


class Engine(Protocol):
    """Computes losses, gradients and outputs of many models of one module."""

    @property
    def linear_layer(self) -> LinearLayer | None:
        """The layer of a module that is a single linear layer; None for other modules."""
        return None

    @property
    def max_block(self) -> int | None:
        """Samples in one call of `outputs` at most; None: as many as fit into memory."""
        return None

    def with_objective(self, objective: Objective) -> Engine:
        """The same engine for a loss with other tensors, or with another precision."""
        ...

    def losses_and_gradients(
        self, x: Tensor, inputs: PerClient, targets: PerClient, seeds: DropoutSeeds
    ) -> tuple[Tensor, Tensor]:
        """Losses and gradients.

        Args:
            x: (clients, columns) models.
            inputs: one batch for each client; the module may write into batches of a sequence.
            targets: of these batches.
            seeds: of the random numbers (dropout) of each client in training mode, empty for
                modules without any; None: evaluation mode.

        Returns:
            (clients,) losses and (clients, parameters) gradients.
        """
        ...

    def outputs(
        self, x: Tensor, inputs: Tree
    ) -> PerClient: ...  # of every model on the same inputs


def flatten(tensors: Iterable[Tensor]) -> Tensor:
    """All numbers as one vector, a copy."""
    return torch.cat([torch.empty(0), *(tensor.detach().reshape(-1) for tensor in tensors)])


@dataclass(frozen=True, eq=False)
class Layout:
    """Where some tensors of a module lie in a flat vector."""

    names: tuple[str, ...] = ()
    shapes: tuple[torch.Size, ...] = ()

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> Layout:
        return Layout(tuple(tensors), tuple(tensor.shape for tensor in tensors.values()))

    def __add__(self, other: Layout) -> Layout:
        """This one, with the other behind it."""
        return Layout(self.names + other.names, self.shapes + other.shapes)

    @cached_property
    def sizes(self) -> list[int]:
        return [shape.numel() for shape in self.shapes]

    @cached_property
    def size(self) -> int:
        return sum(self.sizes)

    def unflatten(self, x: Tensor) -> dict[str, Tensor]:
        """Views into `x` (…, parameters), by name."""
        pieces = zip(self.names, self.shapes, torch.split(x, self.sizes, -1), strict=True)
        return {name: piece.reshape((*x.shape[:-1], *shape)) for name, shape, piece in pieces}


NO_COLUMNS = Layout()
