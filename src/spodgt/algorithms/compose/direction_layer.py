"""Layers that change the direction of steps."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, S
from spodgt.algorithms.compose.wrapper import (
    Layer,
    Memory,
    RoundProxy,
    ScaledDirection,
    Wrapper,
    update_where,
    with_rate,
)
from spodgt.algorithms.rounds import TreeRound
from spodgt.types import Round


@dataclass(frozen=True)
class DirectionLayer(Layer[S]):
    """A layer that changes the direction of every client's step: tracker, or gradient.

    Clients that take no step keep their models and memory. A zero direction does not mean that: the
    gradient of a hinge loss is zero if the batch is separated. If clients step along their own
    gradients, the state has a column for the clients that took one.
    """

    @abstractmethod
    def transform(self, y: Tensor, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The new direction for `y` at the models `x`, and the new memory."""

    @property
    def follows_own_gradients(self) -> bool:
        """Whether clients step only after a gradient of their own."""
        method: Algorithm = self.base
        while isinstance(method, Wrapper):
            method = method.base
        traits = method.traits
        if traits.activation != "all":
            return False
        return not traits.idle_steps or (not traits.tracking and traits.exact == "no")

    def set_traits(self, suffix: str, *memory_names: str, **changes: object) -> None:
        if self.follows_own_gradients:
            memory_names = (*memory_names, f"{self.key}_active")
        super().set_traits(suffix, *memory_names, **changes)

    def why_incompatible(self) -> str | None:
        if self.traits.direction:
            return None
        return f"has no direction to step along; drop {self.key}, or use spod-gt-memory."

    def init(self, x: Tensor, round: Round) -> Any:
        proxy = _ActivityProxy(round, torch.zeros_like(round.computes))
        state = self.base.init(x, cast(Round, proxy))
        memory = self._with_activity(self.initial_memory(x), proxy.has_gradient.to(x))
        return self.join_state(state, memory)

    def step(self, state: S, round: Round) -> Any:
        inner, memory = self.split_state(state)
        proxy = _ActivityProxy(round, round.computes)
        if self.follows_own_gradients:
            proxy.has_gradient = memory[-1] != 0
            memory = memory[:-1]
        direction = _Direction(self, inner.x, memory, proxy)
        method = with_rate(self.base, lambda rate: ScaledDirection.prepend(direction, rate))
        after = method.step(cast(S, inner), cast(Round, proxy))
        memory = self._with_activity(direction.memory, proxy.has_gradient.to(inner.x))
        return self.join_state(after, memory)

    def _with_activity(self, memory: Memory, has_gradient: Tensor) -> Memory:
        """The memory with the column of clients that took a gradient, if the state has one."""
        if self.follows_own_gradients:
            return (*memory, has_gradient)
        return memory


@dataclass
class _ActivityProxy(RoundProxy):
    """A round that records which clients took the last gradients."""

    round: Round
    has_gradient: Tensor  # (clients, 1) bool

    def grad(self, x: Tensor) -> Tensor:
        self.has_gradient = self.round.computes
        return self.round.grad(x)


@dataclass
class _Direction:
    """The transform of one round; clients that take no step keep their direction and memory."""

    layer: DirectionLayer
    x: Tensor
    memory: Memory
    proxy: _ActivityProxy

    def __call__(self, y: Tensor) -> Tensor:
        takes_step = self._takes_step()
        transformed, memory = self.layer.transform(y, self.x, self.memory)
        self.memory = update_where(takes_step, memory, self.memory)
        return torch.where(takes_step, transformed, y)

    def _takes_step(self) -> Tensor:
        """(clients, 1) bool."""
        traits = self.layer.traits
        round = self.proxy.round
        if traits.activation != "all":
            return round.computes
        if self.layer.follows_own_gradients:
            return self.proxy.has_gradient
        if traits.uses_trees:
            return cast(TreeRound, round).step_weight != 0
        return torch.ones_like(round.computes)
