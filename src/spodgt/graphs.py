"""Recipes for strongly connected digraphs: `RandomGeometric(10, radius=0.4).draw(seed=3)`.

A recipe is a value; `draw(seed)` gives the same `Graph` everywhere. Link j → i is stored as
receiver i, sender j. Everything is O(links), so a million clients are no special case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from spodgt.errors import InvalidNetwork
from spodgt.rng import generator

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_MOST_REDRAWS = 1000


@dataclass(frozen=True, eq=False)
class Graph:
    """A digraph by its links, sorted by receiver, then sender; no self-loops, no repeats."""

    clients: int
    receivers: Ints  # (links,)
    senders: Ints  # (links,)
    positions: Floats | None = None  # (clients, 2) in the unit square, for geometric graphs

    @staticmethod
    def of(clients: int, receivers: Any, senders: Any, positions: Floats | None = None) -> Graph:
        """Sort the links and drop self-loops and repeats."""
        code = np.asarray(receivers, np.int64) * clients + np.asarray(senders, np.int64)
        code = np.unique(code)
        receivers, senders = np.divmod(code, clients)
        keep = receivers != senders
        return Graph(clients, receivers[keep], senders[keep], positions)

    def matrix(self) -> csr_array:
        """The sparse boolean adjacency: row i holds who client i receives from."""
        ones = np.ones(len(self.receivers), dtype=bool)
        return coo_array((ones, (self.receivers, self.senders)), shape=(self.clients, self.clients)).tocsr()

    def components(self) -> tuple[int, Ints]:
        """Number of strongly connected components, and the component of every client."""
        count, labels = connected_components(self.matrix(), directed=True, connection="strong")
        return int(count), labels.astype(np.int64)


@runtime_checkable
class Recipe(Protocol):
    """Something that draws a digraph for every seed."""

    name: ClassVar[str]

    @property
    def clients(self) -> int: ...

    def draw(self, seed: int) -> Graph: ...


def _check_clients(clients: int) -> None:
    if not isinstance(clients, int | np.integer) or clients < 1:
        raise InvalidNetwork(f"clients must be a whole number of at least 1, got {clients!r}; use clients=10.")


def _redraw(recipe: Recipe, seed: int, attempt: Callable[[np.random.Generator], Graph], fix: str) -> Graph:
    """Draw until strongly connected; the number of the attempt is part of the stream."""
    redraws = max(3, min(_MOST_REDRAWS, 10**6 // recipe.clients))  # a large graph that fails will fail again
    for number in range(redraws):
        graph = attempt(generator(seed, f"graph:{recipe.name}", number))
        if graph.components()[0] == 1:
            return graph
    raise InvalidNetwork(
        f"{recipe} gave no strongly connected graph in {redraws} draws (seed {seed}); {fix}."
    )


@dataclass(frozen=True)
class RandomGeometric:
    """Clients at random in the unit square; links both ways within `radius` [penrose2003random]."""

    name: ClassVar[str] = "random-geometric"
    clients: int
    radius: float = 0.4

    def __post_init__(self) -> None:
        _check_clients(self.clients)
        if not 0 < self.radius:
            raise InvalidNetwork(f"radius must be above 0, got {self.radius!r}; use radius=0.4.")

    def draw(self, seed: int) -> Graph:
        def attempt(draws: np.random.Generator) -> Graph:
            positions = draws.random((self.clients, 2))
            i, j = cKDTree(positions).query_pairs(self.radius, output_type="ndarray").T
            return Graph.of(self.clients, np.r_[i, j], np.r_[j, i], positions)

        return _redraw(self, seed, attempt, "use a larger radius or more clients")


@dataclass(frozen=True)
class DirectedGeometric:
    """Each client has its own transmit radius, uniform in [low, high]: asymmetric wireless links."""

    name: ClassVar[str] = "directed-geometric"
    clients: int
    low: float = 0.3
    high: float = 0.6

    def __post_init__(self) -> None:
        _check_clients(self.clients)
        if not 0 < self.low <= self.high:
            raise InvalidNetwork(
                f"low and high must satisfy 0 < low ≤ high, got low={self.low!r}, high={self.high!r}; "
                "use low=0.3, high=0.6."
            )

    def draw(self, seed: int) -> Graph:
        def attempt(draws: np.random.Generator) -> Graph:
            positions = draws.random((self.clients, 2))
            radius = draws.uniform(self.low, self.high, self.clients)
            tree = cKDTree(positions)
            heard = tree.query_ball_point(positions, radius)  # client j is heard by heard[j]
            senders = np.repeat(np.arange(self.clients), [len(near) for near in heard])
            return Graph.of(self.clients, np.concatenate(heard), senders, positions)

        return _redraw(self, seed, attempt, "use a larger low and high, or more clients")


@dataclass(frozen=True)
class Ring:
    """The directed ring: client i sends to i + 1."""

    name: ClassVar[str] = "ring"
    clients: int

    def __post_init__(self) -> None:
        _check_clients(self.clients)

    def draw(self, seed: int) -> Graph:
        i = np.arange(self.clients)
        return Graph.of(self.clients, (i + 1) % self.clients, i)


@dataclass(frozen=True)
class Exponential:
    """Client i sends to i + 1, i + 2, i + 4, …: the static exponential graph [assran2019stochastic]."""

    name: ClassVar[str] = "exponential"
    clients: int

    def __post_init__(self) -> None:
        _check_clients(self.clients)

    def draw(self, seed: int) -> Graph:
        hops = 2 ** np.arange(max(1, int(np.ceil(np.log2(self.clients)))))
        i, hop = np.meshgrid(np.arange(self.clients), hops, indexing="ij")
        return Graph.of(self.clients, ((i + hop) % self.clients).ravel(), i.ravel())


@dataclass(frozen=True)
class Complete:
    """Every client sends to every other."""

    name: ClassVar[str] = "complete"
    clients: int

    def __post_init__(self) -> None:
        _check_clients(self.clients)

    def draw(self, seed: int) -> Graph:
        i, j = np.divmod(np.arange(self.clients**2), self.clients)
        return Graph.of(self.clients, i, j)


@dataclass(frozen=True)
class Star:
    """Client 0 in the middle, links both ways."""

    name: ClassVar[str] = "star"
    clients: int

    def __post_init__(self) -> None:
        _check_clients(self.clients)

    def draw(self, seed: int) -> Graph:
        leaves = np.arange(1, self.clients)
        hub = np.zeros_like(leaves)
        return Graph.of(self.clients, np.r_[leaves, hub], np.r_[hub, leaves])


@dataclass(frozen=True)
class ErdosRenyi:
    """Every ordered pair is a link with probability `probability`, independently of its reverse."""

    name: ClassVar[str] = "erdos-renyi"
    clients: int
    probability: float = 0.4

    def __post_init__(self) -> None:
        _check_clients(self.clients)
        if not 0 < self.probability <= 1:
            raise InvalidNetwork(
                f"probability must be in (0, 1], got {self.probability!r}; use probability=0.4."
            )

    def draw(self, seed: int) -> Graph:
        def attempt(draws: np.random.Generator) -> Graph:
            pairs = self.clients * (self.clients - 1)
            chosen = np.flatnonzero(draws.random(pairs) < self.probability)
            i, j = np.divmod(chosen, max(1, self.clients - 1))
            return Graph.of(self.clients, i, j + (j >= i))  # skip the diagonal

        return _redraw(self, seed, attempt, "use a larger probability")


@dataclass(frozen=True)
class KOut:
    """Every client sends to `out` others, drawn at random without repeats."""

    name: ClassVar[str] = "k-out"
    clients: int
    out: int = 3

    def __post_init__(self) -> None:
        _check_clients(self.clients)
        if not 1 <= self.out <= max(1, self.clients - 1):
            raise InvalidNetwork(
                f"out must be between 1 and clients - 1 = {self.clients - 1}, got {self.out!r}; use out=3."
            )

    def draw(self, seed: int) -> Graph:
        def attempt(draws: np.random.Generator) -> Graph:
            others = _distinct(draws, self.clients, self.clients - 1, self.out)
            senders = np.repeat(np.arange(self.clients), self.out)
            receivers = (others.ravel() + senders + 1) % self.clients  # never oneself
            return Graph.of(self.clients, receivers, senders)

        return _redraw(self, seed, attempt, "use a larger out")


@dataclass(frozen=True)
class KRegular:
    """Every client sends to `degree` others and hears `degree` others: a union of random cycles.

    One cycle through all clients is enough to be strongly connected, so it suits any size.
    """

    name: ClassVar[str] = "k-regular"
    clients: int
    degree: int = 3

    def __post_init__(self) -> None:
        _check_clients(self.clients)
        if not 1 <= self.degree <= max(1, self.clients - 1):
            raise InvalidNetwork(
                f"degree must be between 1 and clients - 1 = {self.clients - 1}, got {self.degree!r}; "
                "use degree=3."
            )

    def draw(self, seed: int) -> Graph:
        draws = generator(seed, "graph:k-regular")
        cycles = [draws.permutation(self.clients) for _ in range(self.degree)]
        receivers = np.concatenate([np.roll(cycle, -1) for cycle in cycles])
        return Graph.of(self.clients, receivers, np.concatenate(cycles))


def _distinct(draws: np.random.Generator, rows: int, size: int, count: int) -> Ints:
    """For every row `count` distinct whole numbers below `size` (Floyd's sampling, all rows at once)."""
    chosen = np.empty((rows, min(count, size)), np.int64)
    for column, top in enumerate(range(size - chosen.shape[1], size)):
        pick = draws.integers(0, top + 1, rows)
        taken = (chosen[:, :column] == pick[:, None]).any(1)
        chosen[:, column] = np.where(taken, top, pick)
    return chosen


RECIPES: dict[str, type[Recipe]] = {
    recipe.name: recipe
    for recipe in (
        RandomGeometric,
        DirectedGeometric,
        Ring,
        Exponential,
        Complete,
        Star,
        ErdosRenyi,
        KOut,
        KRegular,
    )
}
