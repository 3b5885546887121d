"""Message compression with error feedback: int8 quantization, top-k and rand-k sparsification.

For methods that push trackers and pull models:

    y½ = y + (B̂ - I) c                  c = C(y), quantized or sparse; y - c remains in the tracker
    x½_i = x_i + Σ_j a_ij h_j(x_i)      h_j: the step from x_i towards the compressed model of j

Columns of B̂ - I sum to zero, so Σy = Σg holds for every C: the compression error never leaves the
tracker and is sent later (error feedback). C(0) = 0 and the error of C is a fraction of y, so an
exact method stays exact.

Models do not tend to zero, and differences to earlier models need equal copies at both ends, which
links that fail put out of step. Instead, int8 quantization defines an interval around each number,
and a receiver moves towards the nearer end; a few columns, drawn in every round, are uncompressed.
No memory is needed: every column is mixed with weights between 0 and a_ij, rows sum to one, and
models that agree do not change. This is like links that fail, so methods that are exact over these
stay exact.

    int8       8 bits per number, one scale per 64 numbers; 1 of 40 columns of models uncompressed
    top-k      a share of the tracker's numbers with their indices; the same share of model columns
    rand-k     a share of the columns of both

Top-k selects by accumulated size: w⁺ = w + |y| + ε max|y|, and 0 once sent.
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
from spodgt.algorithms.compose.wrapper import Layer, Memory, RoundProxy, update_where
from spodgt.algorithms.rounds import CompressedRound

_DEFAULT_SHARES = {"int8": EXACT_SHARE, "top-k": 0.05, "rand-k": 0.05}
_PRIORITY_GROWTH = 0.01  # ε: a number that is always small is sent after about 100 others


@dataclass(frozen=True)
class Compression(Layer[S]):
    """`base` with compressed messages.

    Args:
        kind: "int8", "top-k" or "rand-k".
        share: Share of the columns and numbers that are sent uncompressed, above 0 and at most 1;
            None: 0.025 for int8, else 0.05.
    """

    name = "compress"
    key = "compress"
    example = '"int8"'
    kind: str = "int8"
    share: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in _DEFAULT_SHARES:
            raise self.invalid(" or ".join(_DEFAULT_SHARES), self.kind)
        is_valid_share = self.share is None or self.share == 1 or fraction(self.share)
        if not is_valid_share or self.share == 0:
            raise self.invalid("with share above 0 and at most 1", self.share)
        memory_names = ["waited"] if self.kind == "top-k" else []
        self.set_traits(self.kind, *memory_names, mixed_fields=(), rule=None, compressed=True)

    @property
    def value(self) -> object:
        return self.kind if self.share is None else {"kind": self.kind, "share": self.share}

    @property
    def share_or_default(self) -> float:
        return self.share or _DEFAULT_SHARES[self.kind]

    def why_incompatible(self) -> str | None:
        traits = self.base.traits
        pushes_and_pulls = traits.mixing == "pull+push" and traits.tracking
        # trees need the same numbers at both ends of an edge
        if not pushes_and_pulls or traits.activation != "all" or traits.uses_trees:
            return (
                f"does not push trackers and pull models; drop {self.key}, or use spod-gt-memory."
            )
        if traits.sporadic_links == "no":
            return f"needs whole models in every round; drop {self.key}, or use spod-gt-memory."
        return None

    def message(self, columns: int, item: int) -> int:
        if self.kind == "int8":
            models = Int8Intervals.of_round(columns, 0, self.share_or_default)
            return Int8Codec().size(columns, item) + models.size(columns, item)
        count = math.ceil(columns * self.share_or_default)
        if self.kind == "top-k":
            return SparseCodec(count).size(columns, item) + item * count
        return 2 * item * count

    def initial_memory(self, x: Tensor) -> Memory:
        return (torch.zeros_like(x),) if self.kind == "top-k" else ()

    def init(self, x: Tensor, round: Round) -> Any:
        return self.join_state(self.base.init(x, round), self.initial_memory(x))

    def step(self, state: S, round: Round) -> Any:
        inner, memory = self.split_state(state)
        compressed_round = cast(CompressedRound, round)
        proxy = _CompressionProxy(compressed_round, self.kind, self.share_or_default, memory)
        after = self.base.step(cast(S, inner), cast(Round, proxy))
        new_memory = proxy.memory
        if self.local_steps is not None:  # between exchanges nothing is sent
            new_memory = update_where(exchanges(round.k, self.local_steps), new_memory, memory)
        return self.join_state(after, new_memory)


@dataclass
class _CompressionProxy(RoundProxy):
    """A round with compressed messages."""

    round: CompressedRound
    kind: str
    share: float
    memory: Memory

    def pull(self, x: Tensor) -> Tensor:
        columns = x.shape[1]
        if self.kind == "int8":
            return self.round.pull(x, partial(self._intervals, columns))
        return self.round.mix_columns(x, "pull", partial(columns_of_round, columns, self.share))

    def push(self, y: Tensor) -> Tensor:
        if self.kind == "rand-k":
            columns = partial(columns_of_round, y.shape[1], self.share)
            return self.round.mix_columns(y, "push", columns)
        compressed, codec = self._compress(y)
        return y + (self.round.push(compressed, codec) - compressed)

    def _intervals(self, columns: int, k: int) -> Int8Intervals:
        return Int8Intervals.of_round(columns, k, self.share)

    def _compress(self, y: Tensor) -> tuple[Tensor, Codec]:
        """The compressed tracker c, and a codec that is lossless for it."""
        if self.kind == "int8":
            return Int8Codec().quantize(y), Int8Codec()
        (priority,) = self.memory
        size = y.abs()
        priority = priority + size + _PRIORITY_GROWTH * size.amax(1, keepdim=True)
        count = math.ceil(y.shape[1] * self.share)
        selected = torch.zeros_like(y, dtype=torch.bool)
        selected = selected.scatter(1, priority.topk(count, 1).indices, True)
        self.memory = (priority.masked_fill(selected, 0.0),)
        return torch.where(selected, y, torch.zeros_like(y)), SparseCodec(count)
