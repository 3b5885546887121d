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

The kinds of C and of the compressed models are in `compressors.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from spodgt.algorithms.base import Round, S, exchanges, fraction
from spodgt.algorithms.compose.compressors import COMPRESSORS, Compressor
from spodgt.algorithms.compose.wrapper import Layer, Memory, RoundProxy, update_where
from spodgt.algorithms.rounds import CompressedRound


@dataclass(frozen=True)
class Compression(Layer[S]):
    """`base` with compressed messages.

    Args:
        kind: A key of `COMPRESSORS`: "int8", "top-k" or "rand-k".
        share: Share of the columns and numbers that are sent uncompressed, above 0 and at most 1;
            None: 0.025 for int8, else 0.05.
    """

    name = "compress"
    key = "compress"
    example = '"int8"'
    kind: str = "int8"
    share: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str) or self.kind not in COMPRESSORS:
            raise self.invalid(" or ".join(COMPRESSORS), self.kind)
        is_valid_share = self.share is None or self.share == 1 or fraction(self.share)
        if not is_valid_share or self.share == 0:
            raise self.invalid("with share above 0 and at most 1", self.share)
        memory_names = self.compressor.memory_names
        self.set_traits(self.kind, *memory_names, mixed_fields=(), rule=None, compressed=True)

    @property
    def compressor(self) -> Compressor:
        kind = COMPRESSORS[self.kind]
        return kind(self.share or kind.default_share)

    @property
    def value(self) -> object:
        return self.kind if self.share is None else {"kind": self.kind, "share": self.share}

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
        return self.compressor.message(columns, item)

    def initial_memory(self, x: Tensor) -> Memory:
        return self.compressor.initial_memory(x)

    def init(self, x: Tensor, round: Round) -> Any:
        return self.join_state(self.base.init(x, round), self.initial_memory(x))

    def step(self, state: S, round: Round) -> Any:
        inner, memory = self.split_state(state)
        proxy = _CompressionProxy(cast(CompressedRound, round), self.compressor, memory)
        after = self.base.step(cast(S, inner), cast(Round, proxy))
        new_memory = proxy.memory
        if self.local_steps is not None:  # between exchanges nothing is sent
            new_memory = update_where(exchanges(round.k, self.local_steps), new_memory, memory)
        return self.join_state(after, new_memory)


@dataclass
class _CompressionProxy(RoundProxy):
    """A round with compressed messages."""

    round: CompressedRound
    compressor: Compressor
    memory: Memory

    def pull(self, x: Tensor) -> Tensor:
        return self.compressor.pull(self.round, x)

    def push(self, y: Tensor) -> Tensor:
        mixed, self.memory = self.compressor.push(self.round, y, self.memory)
        return mixed
