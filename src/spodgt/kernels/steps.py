"""Inputs of compiled rounds: states, the activity of some rounds, and the runs of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from spodgt.kernels.links import BatchLinks
from spodgt.participation.roles import Roles
from spodgt.types import ActiveLinks, Bools, Floats, Ints, Problem, Words

State = tuple[Tensor, ...]  # the NamedTuple of a method, x first


def rebuild(state: State, tensors: Sequence[Tensor]) -> State:
    """A state of the same type with other tensors."""
    state_type: Callable[..., State] = type(state)  # a NamedTuple: arguments are fields
    return state_type(*tensors)


@dataclass(frozen=True, eq=False)
class Activity:
    """Active clients and links of a batch in some rounds."""

    first: int
    computes: Bools  # (1 + rounds, clients): also of the round before the first
    links: ActiveLinks  # (rounds, links)
    cost: Floats  # (rounds, runs): delay between x[k-1] and x[k]
    roles: Roles | None = None  # weights that change between rounds, if any

    @property
    def rounds(self) -> range:
        return range(self.first, self.first + len(self.cost))

    def part(self, rounds: range) -> Activity:
        """Some of these rounds."""
        low = rounds.start - self.first
        high = rounds.stop - self.first
        links = self.links.at(slice(low, high))
        roles = self.roles and self.roles.at(slice(low, high))
        return Activity(
            rounds.start, self.computes[low : high + 1], links, self.cost[low:high], roles
        )


class Batch(Protocol):
    """Several runs: the disjoint union of their networks, in the order of the rows of a state."""

    @property
    def sizes(self) -> Sequence[int]: ...  # clients of each run
    @property
    def starts(self) -> Ints: ...  # the first client of every run, and the end
    @property
    def links(self) -> BatchLinks: ...
    @property
    def weights(self) -> dict[str, Floats]: ...  # (links,) "a", "b" and, for two-way links, "w"
    @property
    def problem(self) -> Problem: ...
    @property
    def keys(self) -> Words: ...  # (clients,) of each client's mini-batches
    @property
    def client_index(self) -> Ints: ...  # (clients,) number of a client in its run
    @property
    def p(self) -> Tensor: ...  # (clients, 1)
