"""Local steps with gradient tracking: push-pull of models and block means [spodgt].

    z  = x - η (g + y - c)            g: the client's gradient at x; an idle client has z = x
    c⁺ = c + α (mean of g - c)        at the end of a block, over its gradients; else c⁺ = c
    x⁺ = Â z                          models of clients that end a block, over active links
    y⁺ = B̂ (y + c⁺ - c)               trackers of the same clients, over the same links

A client ends a block after `local_steps` of its rounds: K, one K per client, or "1-20" for lengths
drawn anew for each block. Received messages are applied between any two local steps. y⁰ = c⁰ = 0,
and each line changes Σy and Σc equally, so Σy + messages in flight = Σc always. A state at rest has
equal x, y = 0 and c_i = ∇F_i(x), so Σ∇F_i = 0 whatever the block lengths, step sizes, participation
and α; for every client then g + y - c = 0, so the same holds with `optimizer="SGD"`, with and
without momentum.

With all clients active, one K and α = 1 it is `k-gt` [liu2025decentralized]. In SCAFFOLD
[karimireddy2020scaffold] a server has the mean of the c in place of y. α < 1 averages noisy block
means.
"""

from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import torch

from spodgt.algorithms.base import Rate, Share, Tensor
from spodgt.algorithms.block_steps import BlockSteps
from spodgt.algorithms.rounds import BlockRound
from spodgt.algorithms.spod_gt_memory import SpodGTMemory
from spodgt.participation.local_blocks import BlockLengths, check_block_lengths


class LocalGTState(NamedTuple):
    x: Tensor
    y: Tensor
    c: Tensor  # the contribution to the trackers
    g: Tensor
    active: Tensor  # (clients, 1) 1 if g is a gradient, 0 if the client was idle
    s: Tensor  # sum of the gradients of the block
    h: Tensor  # (clients, 1) their number


@dataclass(frozen=True)
class LocalGT(BlockSteps[LocalGTState, BlockRound]):
    name = "local-gt"
    traits = replace(
        SpodGTMemory.traits, source="spodgt", mixed_fields=(), local_steps=True, rule=None,
        compiled=None, idle_steps=False,
    )  # fmt: skip
    step_size: Rate = 0.01  # η
    local_steps: Annotated[BlockLengths, check_block_lengths] = 5
    averaging: Share = 1.0  # α

    def init(self, x: Tensor, round: BlockRound) -> LocalGTState:
        zero = x.new_zeros(x.shape)
        active = round.computes.to(x)
        return LocalGTState(x, zero, zero, round.grad(x), active, zero, torch.zeros_like(active))

    def step(self, state: LocalGTState, round: BlockRound) -> LocalGTState:
        x, y, c, g, active, s, h = state
        z = torch.where(active > 0, x - self.step_size * (g + y - c), x)
        s = s + g
        h = h + active
        ends = round.block_ends & (h > 0)
        if ends.any():
            mean = s / h.clamp(min=1)
            change = torch.where(ends, self.averaging * (mean - c), torch.zeros_like(c))
            c = c + change
            y = y + change
            s = torch.where(ends, torch.zeros_like(s), s)
            h = torch.where(ends, torch.zeros_like(h), h)
        x = round.pull(z)
        y = round.push(y)
        return LocalGTState(x, y, c, round.grad(x), round.computes.to(x), s, h)
