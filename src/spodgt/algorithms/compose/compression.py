"""Fewer bytes in a message, and nothing lost: `compress`, for methods that push trackers and pull models.

    y½ = y + (B̂ - I) c                     c = C(y): 8 bits a number, or some numbers only; y - c stays
    x½_i = x_i + Σ_j a_ij h_j(x_i)         h_j: the way from x_i to what client j says of its model

Columns of B̂ - I sum to zero, so Σy = Σg holds whatever C is: what a message does not say has never left the
tracker, and is said later. C(0) = 0 and the error of C is a fraction of y, so an exact method stays exact.

Models do not vanish, and differences to earlier models need copies that are the same at both ends, which
links that fail put out of step. Here 8 bits say an interval around each number, and a receiver goes towards
its nearer end; a few columns, drawn anew in every round, are said exactly. Without any memory, every column
is then mixed by weights between 0 and a_ij, rows sum to one, and models that agree stay where they are: the
same as links that fail, so methods that are exact over these stay exact.

    int8       8 bits a number, a scale for every 64; models send 1 column of 40 exactly, too
    top-k      a share of the tracker's numbers, with their places; the same share of the models' columns
    rand-k     a share of the columns of both

Top-k takes the numbers that have waited longest for their size: w⁺ = w + |y| + ε max|y|, and 0 once sent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from spodgt.algorithms.base import Round, S, exchanges, fraction
from spodgt.algorithms.compose.codecs import (
    EXACT_SHARE,
    Codec,
    Int8Codec,
    Int8Intervals,
    SparseCodec,
    columns_of_round,
)
from spodgt.algorithms.compose.wrapper import Layer, Memory
from spodgt.algorithms.rounds import CompressedRound

_SHARES = {"int8": EXACT_SHARE, "top-k": 0.05, "rand-k": 0.05}
_PATIENCE = 0.01  # ε: a number that is always small waits for about 100 others


@dataclass(frozen=True)
class Compress(Layer[S]):
    """`base` with short messages."""

    name = "compress"
    key, example = "compress", '"int8"'
    kind: str = "int8"
    share: float | None = (
        None  # of columns that are sent as they are, and of numbers; None: 0.05, or 0.025
    )

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in _SHARES:
            raise self.refuse(" or ".join(_SHARES), self.kind)
        if (
            self.share is not None
            and not (fraction(self.share) and self.share > 0)
            and self.share != 1
        ):
            raise self.refuse("with share above 0 and at most 1", self.share)
        more = ("waited",) if self.kind == "top-k" else ()
        self.declares(self.kind, *more, mixed_fields=(), rule=None, compressed=True)

    @property
    def value(self) -> object:
        return self.kind if self.share is None else {"kind": self.kind, "share": self.share}

    def unfit(self) -> str | None:
        traits = self.base.traits
        trees = traits.root or traits.two_way  # both ends of an edge must have the same numbers
        if (
            traits.mixing != "pull+push"
            or not traits.tracking
            or traits.activation != "all"
            or trees
        ):
            return (
                f"does not push trackers and pull models; drop {self.key}, or use spod-gt-memory."
            )
        if traits.sporadic_links == "no":
            return f"needs whole models in every round; drop {self.key}, or use spod-gt-memory."
        return None

    def message(self, columns: int, item: int) -> int:
        share = self.share or _SHARES[self.kind]
        if self.kind == "int8":
            return Int8Codec().size(columns, item) + Int8Intervals.of_round(columns, 0, share).size(
                columns, item
            )
        some = math.ceil(columns * share)
        return item * some + (
            SparseCodec(some).size(columns, item) if self.kind == "top-k" else item * some
        )

    def begin(self, x: Tensor) -> Memory:
        return (torch.zeros_like(x),) if self.kind == "top-k" else ()

    def init(self, x: Tensor, round: Round) -> Any:
        return self.whole(self.base.init(x, round), self.begin(x))

    def step(self, state: S, round: Round) -> Any:
        inner, memory = self.parts(state)
        short = _Short(
            cast(CompressedRound, round), self.kind, self.share or _SHARES[self.kind], memory
        )
        after = self.base.step(cast(S, inner), cast(Round, short))
        memory = self._after(round, memory, short.memory)
        return self.whole(after, memory)

    def _after(self, round: Round, before: Memory, pushed: Memory) -> Memory:
        """The memory after a round; between exchanges nothing is sent, and it remains as it was."""
        if self.local_steps is None:
            return pushed
        due = exchanges(round.k, self.local_steps)
        return tuple(torch.where(due, new, old) for new, old in zip(pushed, before, strict=True))


@dataclass
class _Short:
    """A round whose messages are short; everything else is the round's own."""

    round: CompressedRound
    kind: str
    share: float
    memory: Memory

    def pull(self, x: Tensor) -> Tensor:
        if self.kind == "int8":
            return self.round.pull(x, lambda k: Int8Intervals.of_round(x.shape[1], k, self.share))
        return self.round.mix_columns(x, "pull", partial(columns_of_round, x.shape[1], self.share))

    def push(self, y: Tensor) -> Tensor:
        if self.kind == "rand-k":
            return self.round.mix_columns(
                y, "push", partial(columns_of_round, y.shape[1], self.share)
            )
        said, code = self._said(y)
        return y + (self.round.push(said, code) - said)

    def _said(self, y: Tensor) -> tuple[Tensor, Codec]:
        """What a message says of y, and how."""
        if self.kind == "int8":
            return Int8Codec().quantize(y), Int8Codec()
        (waited,), size = self.memory, y.abs()
        waited = waited + size + _PATIENCE * size.amax(1, keepdim=True)
        count = math.ceil(y.shape[1] * self.share)
        now = torch.zeros_like(y, dtype=torch.bool).scatter(1, waited.topk(count, 1).indices, True)
        self.memory = (waited.masked_fill(now, 0.0),)
        return torch.where(now, y, torch.zeros_like(y)), SparseCodec(count)

    def __getattr__(self, name: str) -> object:
        return getattr(self.round, name)
