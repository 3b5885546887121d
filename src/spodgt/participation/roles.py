"""Roles of clients and links that change between rounds: mixing weights and step weights.

Tree routing assigns them: after an epoch has begun, only links of its trees have a weight, and only
its root takes steps.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from spodgt.types import Bools, Floats


class Roles(NamedTuple):
    """Weights of links and clients, one row per round; or of one round, without the first axis."""

    a: Floats  # (rounds, links) pull weights
    b: Floats  # (rounds, links) push weights
    step_weight: Floats  # (rounds, clients) factor of a client's step; 0: takes no step
    reset_tracker: Bools  # (rounds, clients) trackers that restart from the gradient

    def at(self, which: int | slice) -> Roles:
        """One round or a range of rounds."""
        return Roles(
            self.a[which], self.b[which], self.step_weight[which], self.reset_tracker[which]
        )


@runtime_checkable
class HasRoles(Protocol):
    """An availability with weights that change between rounds."""

    @property
    def roots(self) -> tuple[int, ...]: ...  # the root of each epoch, in order
    def roles(self, rounds: range) -> Roles: ...
