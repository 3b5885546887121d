"""RelaySum on a tree of two-way links [vogels2021relaysum], with tracking and memory: nobody leads.

    z = (x, h, 1)                  h = ∇L(x) where a client computes, else its last one
    t_i += t_j - e, t_j += t_i - e, e⁺ = t_i + t_j - e     on the edges i, j that work; t⁰ = z⁰, e⁰ = 0
    x⁺ = x + β (X/n - x) - η H/n, t⁺ = t + z⁺ - z          (X, H, n) = t: Σx, Σh, Σ1 as far as known

e: what the ends of an edge have told each other. Errors in t and e stay, so both are in double precision.
From the paper: relayed sums and counts; its RelaySGD has β = 1 and no H. Who does not know the tree waits.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from spodgt.algorithms.base import (
    Algorithm,
    Availability,
    Fraction,
    Network,
    Rate,
    Tensor,
    Traits,
)
from spodgt.algorithms.rounds import TreeRound
from spodgt.participation.availability import symmetric_links, wait_for_clients
from spodgt.participation.tree_routing import TreeRouting
from spodgt.tensors import widened


class RelaySumState(NamedTuple):
    x: Tensor
    h: Tensor
    total: Tensor  # t
    edge: Tensor  # e of the edge towards the middle


@dataclass(frozen=True)
class RelaySum(Algorithm[RelaySumState, TreeRound]):
    name = "relay-sum"
    traits = Traits(
        source="vogels2021relaysum", mixing="pull+push", sporadic_clients="yes", sporadic_links="yes",
        two_way=True, mixed_fields=(("pull", "total"),), tracking=True, exact="yes", vectors=2,
    )  # fmt: skip
    step_size: Rate = 0.01  # η
    averaging: Fraction = 1.0  # β
    patience: Fraction = 0.5  # rates p^(1 - patience); 0: never waits

    def adapt_availability(self, availability: Availability, network: Network) -> Availability:
        return TreeRouting(
            symmetric_links(wait_for_clients(availability, self.patience), network),
            network,
            leads=False,
        )

    def init(self, x: Tensor, round: TreeRound) -> RelaySumState:
        return RelaySumState(x, g := round.grad(x), z := _stacked(x, g), torch.zeros_like(z))

    def step(self, state: RelaySumState, round: TreeRound) -> RelaySumState:
        x, h, t, e = state
        works, above = (
            round.pull(place := round.client_index[:, None].to(t)) != place,
            round.pull(t),
        )
        below = round.push(t - e) - torch.where(works, 0, t - e)
        t, e = t + below + torch.where(works, above - e, 0), torch.where(works, t + above - e, e)
        X, H, n = t[:, : x.shape[1]], t[:, x.shape[1] : -1], t[:, -1:]
        x = (
            x
            + self.averaging * round.step_weight * (X / n - x)
            - self.step_size * (round.step_weight * H / n)
        ).to(x)
        z = _stacked(x, g := torch.where(round.computes, round.grad(x), h))
        t = torch.where(round.reset_tracker, z, t + z - _stacked(state.x, h))
        return RelaySumState(x, g, t, torch.where(round.reset_tracker, 0, e))


def _stacked(x: Tensor, h: Tensor) -> Tensor:
    return widened(torch.cat([x, h, torch.ones_like(x[:, :1])], 1))
