"""The running mean of every client's models over about the last fifth of the rounds, to be reported.

    z_k = mean of x_s, …, x_k       k - s between ⅔ and 1¼ of the share φ of k

Training is that of the inner method; z is evaluated beside x and kept in the checkpoint. Two means begin at
rounds that grow by the factor (1 - 1¼ φ)^-½: the older one is reported, and the younger takes its place when
a third begins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spodgt.algorithms.base import S, State
from spodgt.algorithms.compose.wrapper import Layer, Memory
from spodgt.types import Round

_MOST = 0.75  # of the rounds: above, the factor runs away


@dataclass(frozen=True)
class RunningMean(Layer[S]):
    """`base`, and the mean of its last models."""

    name = "running-mean"
    key, example = "running_mean", "0.2"
    share: float = 0.2  # φ

    def __post_init__(self) -> None:
        number = isinstance(self.share, int | float) and not isinstance(self.share, bool)
        if not number or not 0 < self.share <= _MOST:
            raise self.refuse(f"above 0 and at most {_MOST}", self.share)
        self.declares("mean", "mean", "younger_mean")

    def begins(self, k: int) -> tuple[int, int]:
        """The first rounds of the two means of round k, the older one first."""
        before, last, factor = 0, 0, (1 - 1.25 * self.share) ** -0.5
        while (following := max(last + 1, math.ceil(last * factor))) <= k:
            before, last = last, following
        return before, last

    def init(self, x: Tensor, round: Round) -> Any:
        inner: State = self.base.init(x, round)
        return self.whole(inner, (inner.x, inner.x))

    def step(self, state: S, round: Round) -> Any:
        inner, means = self.parts(state)
        after: State = self.base.step(inner, round)  # type: ignore[arg-type]
        k: int | Tensor = round.k
        if isinstance(k, int):
            return self.whole(after, self._means(means, after.x, k))
        both = torch.empty_like(means[0]), torch.empty_like(means[1])
        for own in sorted({*k.flatten().tolist()}):  # clients are in rounds of their own
            rows = (k == own)[:, 0]
            parts = self._means((means[0][rows], means[1][rows]), after.x[rows], own)
            both[0][rows], both[1][rows] = parts
        return self.whole(after, both)

    def _means(self, means: Memory, x: Tensor, k: int) -> Memory:
        """The two means of round k."""
        mean, younger = means
        before, last = self.begins(k)
        if last == k:
            return younger + (x - younger) / (k - before + 1), x
        return mean + (x - mean) / (k - before + 1), younger + (x - younger) / (k - last + 1)
