"""FROST: row-stochastic weights alone, the imbalance learnt on the way [xin2019frost].

    x⁺ = A x - α z
    e⁺ = A e                              e⁰ = I: client i holds row i, which tends to the Perron vector
    z⁺ = A z + g⁺/e⁺_ii - g/e_ii          z⁰ = g⁰, with g = ∇f(x)

Nobody needs to know its out-degree. z is the tracker, in the paper's letter: its plain sum is not Σg, so
it is not called y; e is the paper's y. Steps may differ between clients. A must stay the same in all rounds.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from spodgt.algorithms.ab import AB
from spodgt.algorithms.base import Algorithm, Rate, Round, Tensor


class FrostState(NamedTuple):
    x: Tensor
    z: Tensor
    g: Tensor
    e: Tensor  # (clients, clients of a run)


@dataclass(frozen=True)
class Frost(Algorithm[FrostState]):
    name = "frost"
    traits = replace(
        AB.traits,
        source="xin2019frost",
        mixing="pull",
        sporadic_links="no",
        mixes=(("pull", "x"), ("pull", "e"), ("pull", "z")),
        compiled=None,
    )
    step_size: Rate = 0.01  # α

    def init(self, x: Tensor, round: Round) -> FrostState:
        g = round.grad(x)
        width = max(round.clients, int(round.place.max()) + 1)  # runs of a batch may differ in size
        return FrostState(x, g, g, torch.nn.functional.one_hot(round.place, width).to(x))

    def step(self, state: FrostState, round: Round) -> FrostState:
        i = round.place[:, None]
        x = round.pull(state.x) - self.step_size * state.z
        e = round.pull(state.e)
        g = round.grad(x)
        z = round.pull(state.z) + g / e.gather(1, i) - state.g / state.e.gather(1, i)
        return FrostState(x, z, g, e)
