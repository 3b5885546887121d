"""RelaySum on a spanning tree of two-way links [vogels2021relaysum], with tracking and memory.

    z = (x, h, 1)                  h = ∇L(x) of active clients, else the last one
    t_i += t_j - e, t_j += t_i - e, e⁺ = t_i + t_j - e     on active edges i, j; t⁰ = z⁰, e⁰ = 0
    x⁺ = x + β (X/n - x) - η H/n, t⁺ = t + z⁺ - z          (X, H, n) = t: sums of x, h and 1 so far

e: the sum that both ends of an edge have exchanged. Errors in t and e persist, so both are in
double precision. Relayed sums and counts are the paper's; its RelaySGD has β = 1 and no H. There is
no root; clients without knowledge of the tree take no steps.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from spodgt.algorithms.base import Algorithm, Availability, Fraction, Network, Rate, Tensor, Traits
from spodgt.algorithms.hyperparameters import Share
from spodgt.algorithms.rounds import TreeRound
from spodgt.participation.availability import symmetric_links, wait_for_clients
from spodgt.participation.tree_routing import TreeRouting
from spodgt.tensors import widened


class RelaySumState(NamedTuple):
    x: Tensor
    h: Tensor
    total: Tensor  # t
    edge: Tensor  # e of the edge to the parent


@dataclass(frozen=True)
class RelaySum(Algorithm[RelaySumState, TreeRound]):
    name = "relay-sum"
    traits = Traits(
        source="vogels2021relaysum", mixing="pull+push", sporadic_clients="yes", sporadic_links="yes",
        two_way=True, mixed_fields=(("pull", "total"),), tracking=True, exact="yes", vectors=2,
    )  # fmt: skip
    step_size: Rate = 0.01  # η
    averaging: Share = 1.0  # β
    patience: Fraction = 0.5  # participation rates are p^(1 - patience); 0: never waits

    def adapt_availability(self, availability: Availability, network: Network) -> Availability:
        symmetric = symmetric_links(wait_for_clients(availability, self.patience), network)
        return TreeRouting(symmetric, network, leads=False)

    def init(self, x: Tensor, round: TreeRound) -> RelaySumState:
        h = round.grad(x)
        z = _concatenate(x, h)
        return RelaySumState(x, h, z, torch.zeros_like(z))

    def step(self, state: RelaySumState, round: TreeRound) -> RelaySumState:
        x, h, t, e = state
        index = round.client_index[:, None].to(t)
        is_active = round.pull(index) != index  # whether the edge to the parent is
        parent = round.pull(t)
        children = round.push(t - e) - torch.where(is_active, 0, t - e)
        total = t + children + torch.where(is_active, parent - e, 0)
        e = torch.where(is_active, t + parent - e, e)
        X, H, n = torch.split(total, [x.shape[1], x.shape[1], 1], 1)
        towards_mean = self.averaging * round.step_weight * (X / n - x)
        x = (x + towards_mean - self.step_size * (round.step_weight * H / n)).to(x)
        h = torch.where(round.computes, round.grad(x), h)
        z = _concatenate(x, h)
        total = torch.where(round.reset_tracker, z, total + z - _concatenate(state.x, state.h))
        return RelaySumState(x, h, total, torch.where(round.reset_tracker, 0, e))


def _concatenate(x: Tensor, h: Tensor) -> Tensor:
    return widened(torch.cat([x, h, torch.ones_like(x[:, :1])], 1))
