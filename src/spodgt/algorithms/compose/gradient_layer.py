"""Layers that change gradients before the inner method uses them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from spodgt.algorithms.base import S
from spodgt.algorithms.compose.wrapper import Layer, Memory, RoundProxy, update_where
from spodgt.types import Round


@dataclass(frozen=True)
class GradientLayer(Layer[S]):
    """A layer that changes the gradient of every active client."""

    @abstractmethod
    def transform(self, g: Tensor, x: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """New gradients for `g` at `x`, and the new memory; rows of idle clients are ignored."""

    def memory_of_round(self, memory: Memory, round: Round) -> Memory:
        """The memory at the start of a round."""
        return memory

    def why_incompatible(self) -> str | None:
        if self.traits.momentum != "none":
            return None
        return f"needs gradients to filter, but the method takes none; drop {self.key}."

    def init(self, x: Tensor, round: Round) -> Any:
        proxy = _GradientProxy(round, self, self.initial_memory(x))
        state = self.base.init(x, cast(Round, proxy))
        return self.join_state(state, proxy.memory)

    def step(self, state: S, round: Round) -> Any:
        inner, memory = self.split_state(state)
        proxy = _GradientProxy(round, self, self.memory_of_round(memory, round))
        after = self.base.step(cast(S, inner), cast(Round, proxy))
        return self.join_state(after, proxy.memory)


@dataclass
class _GradientProxy(RoundProxy):
    """A round with gradients transformed by a layer."""

    round: Round
    layer: GradientLayer
    memory: Memory

    def grad(self, x: Tensor) -> Tensor:
        computes = self.round.computes
        g, memory = self.layer.transform(self.round.grad(x), x, self.memory)
        self.memory = update_where(computes, memory, self.memory)
        return torch.where(computes, g, torch.zeros_like(g))
