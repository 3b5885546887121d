"""Relay: push-pull with memory over two spanning trees with one root, after [pu2020push].

    y½ = B̂ y                     up: every client forwards its tracker towards the root
    x⁺ = Â x - η s ⊙ y½          down: every client takes the model of its parent; s_r = 1/m, else 0
    h⁺ = ∇L(x⁺), o⁺ = x⁺         for active clients; an idle one keeps both
    H⁺ = h⁺ + ρ (x⁺ - o⁺)        ρ = 0: plain memory; H = 0 before a client's first gradient
    y⁺ = y½ + H⁺ - H             so Σy = ΣH in every round

Only the root steps. A client without knowledge of the trees steps as in `spod-gt-memory` (s = 1).
With all clients active it is [you2024bary] with steps of the root only; on a star, [ying2025exact]
with one local step.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, Fraction, Network, NotNegative, Rate, Traits
from spodgt.algorithms.rounds import TreeRound
from spodgt.participation.availability import wait_for_clients
from spodgt.participation.tree_routing import TreeRouting
from spodgt.types import Availability


class RelayState(NamedTuple):
    x: Tensor
    y: Tensor
    g: Tensor  # H
    fixed: Tensor  # h - ρ o
    slope: Tensor  # (clients, 1) ρ, 0 before the first gradient


@dataclass(frozen=True)
class Relay(Algorithm[RelayState, TreeRound]):
    name = "relay"
    traits = Traits(
        source="spodgt", mixing="pull+push", sporadic_clients="yes", sporadic_links="yes",
        compiled="linear", root=True, tracking=True, exact="yes", vectors=2,
        mixed_fields=(("push", "y"), ("pull", "x")),
    )  # fmt: skip
    step_size: Rate = 0.01  # η
    proximal: NotNegative = 0.0  # ρ
    patience: Fraction = 0.5  # participation rates are p^(1 - patience); 0: never waits

    def adapt_availability(self, availability: Availability, network: Network) -> Availability:
        return TreeRouting(wait_for_clients(availability, self.patience), network)

    def init(self, x: Tensor, round: TreeRound) -> RelayState:
        zero = torch.zeros_like(x)
        return self._with_gradients(RelayState(x, zero, zero, zero, zero[:, :1]), zero, x, round)

    def step(self, state: RelayState, round: TreeRound) -> RelayState:
        y = round.push(state.y)
        x = round.pull(state.x) - self.step_size * (round.step_weight * y)
        return self._with_gradients(state, y, x, round)

    def _with_gradients(
        self, state: RelayState, y: Tensor, x: Tensor, round: TreeRound
    ) -> RelayState:
        slope = torch.where(round.computes, self.proximal, state.slope)
        fixed = torch.where(round.computes, round.grad(x) - slope * x, state.fixed)
        g = fixed + slope * x
        return RelayState(x, torch.where(round.reset_tracker, g, y + g - state.g), g, fixed, slope)
