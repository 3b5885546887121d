"""Running mean of every client's models over about the last fifth of the rounds, for evaluation.

    z_k = mean of x_s, …, x_k       k - s between ⅔ and 1¼ of the share φ of k

Training is that of the inner method; z is evaluated in addition to x and is part of checkpoints.
Two means start at rounds that grow by the factor (1 - 1¼ φ)^-½: the older one is reported, and the
younger replaces it when a third starts.
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

_MAX_SHARE = 0.75  # the factor diverges at 0.8


@dataclass(frozen=True)
class RunningMean(Layer[S]):
    """`base` with a running mean of its models over the last `share` (φ) of the rounds."""

    name = "running-mean"
    key = "running_mean"
    example = "0.2"
    share: float = 0.2

    def __post_init__(self) -> None:
        is_number = isinstance(self.share, int | float) and not isinstance(self.share, bool)
        if not is_number or not 0 < self.share <= _MAX_SHARE:
            raise self.invalid(f"above 0 and at most {_MAX_SHARE}", self.share)
        self.set_traits("mean", "mean", "younger_mean")

    def first_rounds(self, k: int) -> tuple[int, int]:
        """The first rounds of the older and the younger mean in round k."""
        factor = (1 - 1.25 * self.share) ** -0.5
        older = 0
        younger = 0
        following = 1
        while following <= k:
            older = younger
            younger = following
            following = max(younger + 1, math.ceil(younger * factor))
        return older, younger

    def init(self, x: Tensor, round: Round) -> Any:
        inner: State = self.base.init(x, round)
        return self.join_state(inner, (inner.x, inner.x))

    def step(self, state: S, round: Round) -> Any:
        inner, means = self.split_state(state)
        after: State = self.base.step(inner, round)  # type: ignore[arg-type]
        k = round.k
        if isinstance(k, int):
            return self.join_state(after, self._update(means, after.x, k))
        updated = tuple(torch.empty_like(mean) for mean in means)
        for client_round in sorted(set(k.flatten().tolist())):
            rows = (k == client_round)[:, 0]
            row_means = tuple(mean[rows] for mean in means)
            parts = self._update(row_means, after.x[rows], client_round)
            for mean, part in zip(updated, parts, strict=True):
                mean[rows] = part
        return self.join_state(after, updated)

    def _update(self, means: Memory, x: Tensor, k: int) -> Memory:
        """The two means after round k."""
        mean, younger_mean = means
        older, younger = self.first_rounds(k)
        if younger == k:  # a mean starts: the younger one becomes the older one
            return younger_mean + (x - younger_mean) / (k - older + 1), x
        mean = mean + (x - mean) / (k - older + 1)
        younger_mean = younger_mean + (x - younger_mean) / (k - younger + 1)
        return mean, younger_mean
