"""FROST: gradient tracking with row-stochastic weights only [xin2019frost].

    x⁺ = A x - α z
    e⁺ = A e                          e⁰ = I: client i holds row i, which tends to the Perron vector
    z⁺ = A z + g⁺/e⁺_ii - g/e_ii      z⁰ = g⁰, with g = ∇f(x)

Out-degrees are not needed. z is the tracker, in the paper's letter: its sum is not Σg, so it is not
called y; e is the paper's y. Steps may differ between clients. A must be the same in all rounds.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from spodgt.algorithms.ab import AB
from spodgt.algorithms.base import Algorithm, Rate, Tensor
from spodgt.algorithms.rounds import IndexedRound


class FrostState(NamedTuple):
    x: Tensor
    z: Tensor
    g: Tensor
    e: Tensor  # (clients, clients of a run)


@dataclass(frozen=True)
class Frost(Algorithm[FrostState, IndexedRound]):
    name = "frost"
    traits = replace(
        AB.traits,
        source="xin2019frost",
        mixing="pull",
        sporadic_links="no",
        mixed_fields=(("pull", "x"), ("pull", "e"), ("pull", "z")),
        compiled=None,
    )
    step_size: Rate = 0.01  # α

    def init(self, x: Tensor, round: IndexedRound) -> FrostState:
        g = round.grad(x)
        width = max(round.clients, int(round.client_index.max()) + 1)  # runs differ in size
        return FrostState(x, g, g, torch.nn.functional.one_hot(round.client_index, width).to(x))

    def step(self, state: FrostState, round: IndexedRound) -> FrostState:
        i = round.client_index[:, None]
        x = round.pull(state.x) - self.step_size * state.z
        e = round.pull(state.e)
        g = round.grad(x)
        z = round.pull(state.z) + g / e.gather(1, i) - state.g / state.e.gather(1, i)
        return FrostState(x, z, g, e)
