"""Rounds with the members that only some methods or layers need.

A method names the round it needs in its base: `class FedAvg(Algorithm[FedAvgState, ServerRound])`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from spodgt.algorithms.compose.codecs import Codec, IntervalQuantizer
from spodgt.types import Round


class IndexedRound(Round, Protocol):
    """A round with client numbers."""

    @property
    def client_index(self) -> Tensor: ...  # (clients,) number of a client in its run
    @property
    def clients(self) -> int: ...  # clients of a run; of the largest, if runs of a batch differ


class BlockRound(Round, Protocol):
    """A round with the ends of blocks of local steps (`participation.local_blocks`)."""

    @property
    def block_ends(self) -> Tensor: ...  # (clients, 1) bool: clients that end a block


class PushRound(Round, Protocol):
    """A round with the diagonal of the push matrix."""

    @property
    def push_self_weight(self) -> Tensor: ...  # (clients, 1) diag B̂, the share not sent


class GossipRound(Round, Protocol):
    """A round with gossip in differences, which loses no digits where models nearly agree."""

    def gossip_difference(self, x: Tensor) -> Tensor: ...  # (Ŵ - I) x as Σ_j ŵ_ij (x_j - x_i)


class ServerRound(Round, Protocol):
    """A round with a server."""

    def average(self, x: Tensor) -> Tensor: ...  # the mean over all clients of a run, in each row
    @property
    def client_weight(self) -> Tensor: ...  # (clients, 1) n w_i / Σ w, a factor of `grad`


class TreeRound(IndexedRound, Protocol):
    """A round of a method that routes over spanning trees."""

    @property
    def step_weight(self) -> Tensor: ...  # (clients, 1) factor of the step; 1 without trees
    @property
    def reset_tracker(self) -> Tensor: ...  # (clients, 1) bool: trackers that restart


class CompressedRound(Round, Protocol):
    """A round of a runtime with compressed messages.

    Codecs of models depend on the round of the sender, which may differ from the receiver's.
    """

    def pull(
        self, x: Tensor, codec: Callable[[int], IntervalQuantizer] | None = None
    ) -> Tensor: ...
    def push(self, y: Tensor, codec: Codec | None = None) -> Tensor: ...
    def mix_columns(self, x: Tensor, how: str, columns: Callable[[int], slice]) -> Tensor:
        """x with the columns of this round mixed; `how` is "pull" or "push"."""
        ...
