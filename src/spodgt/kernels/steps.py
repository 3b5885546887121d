"""What compiled rounds see of a world: states, the activity of some rounds, and the runs of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from spodgt.kernels.links import Links
from spodgt.participation.roles import Roles
from spodgt.types import ActiveLinks, Bools, Floats, Ints, Problem, Words

State = tuple[Tensor, ...]  # a method's NamedTuple, which begins with x


def rebuild(state: State, tensors: Sequence[Tensor]) -> State:
    """A state of the same kind with other tensors."""
    make: Callable[..., State] = type(state)  # a NamedTuple takes its fields one by one
    return make(*tensors)


@dataclass(frozen=True, eq=False)
class Activity:
    """Who does what in some rounds of a whole batch."""

    first: int
    computes: Bools  # (1 + rounds, clients): the round before the first, too
    links: ActiveLinks  # (rounds, links)
    cost: Floats  # (rounds, runs): delay between x[k-1] and x[k]
    roles: Roles | None = (
        None  # weights of links and parts of clients, where they change between rounds
    )

    @property
    def rounds(self) -> range:
        return range(self.first, self.first + len(self.cost))

    def part(self, rounds: range) -> Activity:
        """Some of these rounds."""
        low, high = rounds.start - self.first, rounds.stop - self.first
        links = self.links.at(slice(low, high))
        roles = self.roles and self.roles.at(slice(low, high))
        return Activity(
            rounds.start, self.computes[low : high + 1], links, self.cost[low:high], roles
        )


class Batch(Protocol):
    """Several runs side by side: the disjoint union of their networks, in the order of rows of a state."""

    @property
    def sizes(self) -> Sequence[int]: ...  # clients of each run
    @property
    def starts(self) -> Ints: ...  # the first client of every run, and the end
    @property
    def links(self) -> Links: ...
    @property
    def weights(
        self,
    ) -> dict[str, Floats]: ...  # (links,) by "a", "b" and, where links are two-way, "w"
    @property
    def problem(self) -> Problem: ...
    @property
    def keys(self) -> Words: ...  # (clients,) of each client's mini-batches
    @property
    def client_index(self) -> Ints: ...  # (clients,) number in its own run
    @property
    def p(self) -> Tensor: ...  # (clients, 1)
