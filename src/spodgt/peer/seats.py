"""What a client does in an epoch: the weights of its links and, where the method has a root, its trees.

Without a root every client does the same in every epoch. With one, gradients go up a tree to the root, and
models come down another. The prices 1/p̂ of links and the root are in the signed manifest, so every client
computes the same trees and nothing has to be flooded. An epoch has a `Crew`: its root, and who is absent. It
is told with the epoch, in every frame:

- who goes on without a neighbour adds it to the absent; an absent root is replaced by the best of the others;
- who hears that it counts as absent begins an epoch in which it does not, under the root that it finds;
- a root whose disk was set back begins an epoch under another: an old model never leads, and in an epoch
  nobody passes on anything before the root's model has come;
- what two crews know is put together, in the next epoch if it is more than the later one knew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from spodgt.network import Network
from spodgt.network.trees import Trees, cheapest_trees
from spodgt.peer.protocol import LEADERLESS, Crew
from spodgt.types import Bools, Floats


class Part(NamedTuple):
    """One client's part in an epoch; links by the neighbour's name."""

    out: Mapping[str, float]  # b of every out-link, 0 where it carries no mass
    into: Mapping[str, float]  # a of every in-link, 0 where its models are not taken
    sends: frozenset[str]  # the out-links in use
    hears: frozenset[str]  # the in-links in use
    lead: float = 1.0  # its part of the step


@dataclass(frozen=True, eq=False)
class Seats:
    """The network as one client sees it, under one manifest.

    Args:
        name: The client.
        places: Of the clients with links, by name, in the order of `network`.
        network: Who can talk, with the weights of methods without a root.
        prices: (links,) what the use of each link costs; None: the method has no root.
        root: Its name, in the first epoch; "": the best one.
    """

    name: str
    places: Mapping[str, int]
    network: Network
    prices: Floats | None = None
    root: str = ""

    # --- crews -----------------------------------------------------------------------------------
    @property
    def first(self) -> Crew:
        """The crew with which a manifest begins."""
        if self.prices is None:
            return LEADERLESS
        return Crew(0, self.places[self.root] if self.root in self.places else self._best(()))

    def fits(self, crew: Crew) -> bool:
        """Whether it can be one of this manifest."""
        known = set(self.places.values())
        if self.prices is None:
            return crew == LEADERLESS
        return crew.root in known - crew.absent and {place for place, _ in crew.marks} <= known

    def without(self, crew: Crew, names: Iterable[str] = (), *, stale: bool = False) -> Crew:
        """The crew of the next epoch, in which `names` are absent, too.

        Args:
            crew: Of this epoch.
            names: Neighbours that are gone.
            stale: This client's own model is old: it does not lead.
        """
        if self.prices is None:
            return crew
        gone = {self.places[name] for name in names if name in self.places} - crew.absent
        own = {self.places.get(self.name, -1)} if stale else set()
        return self._led(_counted(crew, gone), own)

    def present(self, crew: Crew) -> Crew:
        """The crew with this client."""
        return _counted(crew, {self.places.get(self.name, -1)} & crew.absent)

    def merged(self, ours: Crew, theirs: Crew) -> Crew:
        """What both know, the same for both sides: who went or came back last, and the latest root."""
        if self.prices is None:
            return theirs
        later = max(ours, theirs, key=lambda crew: (crew.term, -crew.root))
        marks = dict(ours.marks)
        for place, times in theirs.marks:
            marks[place] = max(times, marks.get(place, 0))
        return self._led(later._replace(marks=tuple(sorted(marks.items()))), set())

    def _led(self, crew: Crew, unfit: set[int]) -> Crew:
        """The crew with a root that is there and reaches as many as any other."""
        best = self._best(crew.absent, unfit)
        out = crew.root in crew.absent | unfit
        if out or self._trees(crew).members.sum() < self._trees(crew._replace(root=best)).members.sum():
            return crew._replace(term=crew.term + 1, root=best)
        return crew

    def _best(self, absent: Iterable[int], unfit: Iterable[int] = ()) -> int:
        """The place of the best root; of the unfit only if nobody else is there."""
        there = self._there(absent)
        able = there & self._there(unfit)
        trees = cheapest_trees(self.network, self._prices, there, leaders=able if able.any() else there)
        return list(self.places.values())[trees.root]

    # --- trees -----------------------------------------------------------------------------------
    @property
    def _prices(self) -> Floats:
        assert self.prices is not None, "the method has a root"
        return self.prices

    def _there(self, absent: Iterable[int]) -> Bools:
        return ~np.isin(list(self.places.values()), list(absent))

    def _trees(self, crew: Crew) -> Trees:
        leaders = np.array(list(self.places.values())) == crew.root
        return cheapest_trees(self.network, self._prices, self._there(crew.absent), leaders=leaders)

    def leader(self, crew: Crew) -> str:
        """The name of the root; "" without one."""
        return next((name for name, place in self.places.items() if place == crew.root), "")

    def absent(self, crew: Crew) -> list[str]:
        """The names of those who are absent."""
        return [name for name, place in self.places.items() if place in crew.absent]

    def part(self, crew: Crew | None = None) -> Part:
        """What the client does in an epoch of this crew, or of the first one."""
        network, names = self.network, list(self.places)
        if self.prices is None:
            a, b, lead = network.a, network.b, 1.0
            used = np.ones(network.links, bool)
        else:
            crew = crew or self.first
            trees = self._trees(crew)
            a, b, used = trees.down.astype(float), trees.up.astype(float), trees.up | trees.down
            lead = 1 / trees.members.sum() if self.leader(crew) == self.name else 0.0
        ends = [(names[i], names[j]) for i, j in zip(network.receivers, network.senders, strict=True)]
        out = {e: i for e, (i, j) in enumerate(ends) if j == self.name}
        into = {e: j for e, (i, j) in enumerate(ends) if i == self.name}
        return Part(
            {name: float(b[e]) for e, name in out.items()},
            {name: float(a[e]) for e, name in into.items()},
            frozenset(name for e, name in out.items() if used[e]),
            frozenset(name for e, name in into.items() if used[e]),
            float(lead),
        )


def _counted(crew: Crew, places: set[int]) -> Crew:
    """The crew after these have gone or come back."""
    marks = dict(crew.marks)
    return crew._replace(marks=tuple(sorted({**marks, **{p: marks.get(p, 0) + 1 for p in places}}.items())))
