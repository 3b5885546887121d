"""Recipes for strongly connected digraphs: `RandomGeometric(10, radius=0.4).draw(seed=3)`.

A recipe is a value; `draw(seed)` gives the same `Graph` everywhere. Link j → i is stored as
receiver i, sender j. Everything is O(links), so a million clients are no special case.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike
from pydantic import AfterValidator, BeforeValidator, ValidationInfo

from spodgt._util.text import short_repr
from spodgt.errors import InvalidNetwork
from spodgt.network.graph import MOST_CLIENTS, Named, check_ends, check_names, order_of
from spodgt.rng import distinct, generator
from spodgt.types import Floats, Ints
from spodgt.validation import Field, FieldHint, Number, Whole, recipe

if TYPE_CHECKING:
    from scipy.spatial import cKDTree

_MOST_REDRAWS = 1000


@dataclass(frozen=True, eq=False)
class Graph(Named):
    """A digraph by its links, which are kept sorted by receiver, then sender; no self-loops, no repeats."""

    clients: int
    receivers: Ints  # (links,)
    senders: Ints  # (links,)
    positions: Floats | None = None  # (clients, 2) in the unit square, for geometric graphs
    names: tuple[str, ...] | None = (
        None  # one per client; None: clients are called by their numbers
    )
    weights: Floats | None = (
        None  # (links,) of edges that have some, as they were given; NaN: no number
    )
    loops: Floats | None = None  # (clients,) weights of self-loops, NaN where a client has none

    def __post_init__(self) -> None:
        ends = check_ends(self.clients, self.receivers, self.senders)
        order = order_of(self.clients, *ends)
        values = {"receivers": ends[0], "senders": ends[1], "weights": self.weights}
        for name, value in values.items():
            kept = value if value is None or order is None else np.asarray(value)[order]
            object.__setattr__(self, name, kept)
        object.__setattr__(self, "names", check_names(self.names, self.clients))

    @staticmethod
    def of(
        clients: int,
        receivers: ArrayLike,
        senders: ArrayLike,
        positions: Floats | None = None,
        names: tuple[str, ...] | None = None,
        weights: Floats | None = None,
    ) -> Graph:
        """Drop self-loops, whose weights are kept as `loops`, and repeats.

        clients: how many. receivers, senders: numbers of clients, one per link. positions, names: of the
        clients. weights: of the links.
        """
        into, out = check_ends(clients, receivers, senders)
        if weights is not None and np.shape(weights) != into.shape:
            raise InvalidNetwork(
                f"weights must be {len(into)}, one per link, got {short_repr(weights)}."
            )
        code = into * clients + out
        if weights is None:
            receiver, sender = np.divmod(np.unique(code), max(1, clients))
            keep = receiver != sender
            return Graph(clients, receiver[keep], sender[keep], positions, names)
        code, first = np.unique(code, return_index=True)
        receiver, sender = np.divmod(code, max(1, clients))
        keep, weights, loops = (
            receiver != sender,
            np.asarray(weights, float)[first],
            np.full(clients, np.nan),
        )
        loops[receiver[~keep]] = weights[~keep]
        return Graph(clients, receiver[keep], sender[keep], positions, names, weights[keep], loops)

    def components(self) -> tuple[int, Ints]:
        """Number of strongly connected components, and the component of every client."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        ones = np.ones(len(self.receivers), dtype=bool)
        adjacency = coo_array(
            (ones, (self.receivers, self.senders)), shape=(self.clients, self.clients)
        )
        count, labels = connected_components(adjacency.tocsr(), directed=True, connection="strong")
        return int(count), labels.astype(np.int64)


@runtime_checkable
class Recipe(Protocol):
    """Something that draws a digraph for every seed."""

    name: ClassVar[str]

    @property
    def clients(self) -> int: ...

    def draw(self, seed: int) -> Graph: ...


RECIPES: dict[str, type[Recipe]] = {}  # by name; a new graph is one class with the decorator below


def _others(value: object, info: ValidationInfo) -> object:
    """Check to how many others each client sends; one client alone sends to nobody, whatever is asked."""
    clients = info.data.get("clients", 2)
    most = max(1, clients - 1)
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 1 <= value <= most:
        raise InvalidNetwork(
            f"{info.field_name} must be a whole number from 1 to clients - 1 = {clients - 1}, got {value!r}; "
            f"use {info.field_name}={min(3, most)}."
        )
    return int(value)


def _not_too_many(value: int) -> int:
    if value > MOST_CLIENTS:
        raise InvalidNetwork(
            f"clients must be at most {MOST_CLIENTS:,}, got about 10^{math.log10(value):.0f}; use clients=10."
        )
    return value


Clients = Annotated[
    Whole, Field(ge=1), AfterValidator(_not_too_many), FieldHint("a whole number of at least 1", 10)
]
Others = Annotated[int, BeforeValidator(_others)]
Radius = Annotated[Number, Field(gt=0), FieldHint("above 0")]
Probability = Annotated[Number, Field(gt=0, le=1), FieldHint("in (0, 1]")]


def _redraw(
    recipe: Recipe, seed: int, attempt: Callable[[np.random.Generator], Graph], fix: str
) -> Graph:
    """Draw until strongly connected; the number of the attempt is part of the stream."""
    redraws = max(
        3, min(_MOST_REDRAWS, 10**6 // recipe.clients)
    )  # a large graph that fails will fail again
    for number in range(redraws):
        graph = attempt(generator(seed, f"graph:{recipe.name}", number))
        if graph.components()[0] == 1:
            return graph
    raise InvalidNetwork(
        f"{recipe} gave no strongly connected graph in {redraws} draws (seed {seed}); {fix}."
    )


def _tree(positions: Floats) -> cKDTree:
    from scipy.spatial import cKDTree

    return cKDTree(positions)


@recipe(InvalidNetwork, RECIPES)
class RandomGeometric:
    """Clients at random in the unit square; links both ways within `radius` [penrose2003random].

    Args:
        clients: How many.
        radius: The largest distance of a link; the square has side 1.
    """

    name: ClassVar[str] = "random-geometric"
    clients: Clients
    radius: Radius = 0.4

    def draw(self, seed: int) -> Graph:
        def attempt(draws: np.random.Generator) -> Graph:
            positions = draws.random((self.clients, 2))
            i, j = _tree(positions).query_pairs(self.radius, output_type="ndarray").T
            return Graph.of(self.clients, np.r_[i, j], np.r_[j, i], positions)

        return _redraw(self, seed, attempt, "use a larger radius or more clients")


@recipe(InvalidNetwork, RECIPES)
class DirectedGeometric:
    """Each client has its own transmit radius, uniform in [low, high]: asymmetric wireless links.

    Args:
        clients: How many.
        low: The smallest transmit radius.
        high: The largest.
    """

    name: ClassVar[str] = "directed-geometric"
    clients: Clients
    low: Radius = 0.3
    high: Radius = 0.6

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise InvalidNetwork(
                f"low and high must satisfy 0 < low ≤ high, got low={self.low!r}, high={self.high!r}; "
                "use low=0.3, high=0.6."
            )

    def draw(self, seed: int) -> Graph:
        def attempt(draws: np.random.Generator) -> Graph:
            positions = draws.random((self.clients, 2))
            radius = draws.uniform(self.low, self.high, self.clients)
            tree = _tree(positions)
            near = tree.query_ball_point(positions, radius)  # client j reaches those of near[j]
            senders = np.repeat(np.arange(self.clients), list(map(len, near)))
            return Graph.of(self.clients, np.concatenate(near), senders, positions)

        return _redraw(self, seed, attempt, "use a larger low and high, or more clients")


@recipe(InvalidNetwork, RECIPES)
class Ring:
    """The directed ring: client i sends to i + 1.

    Args:
        clients: How many.
    """

    name: ClassVar[str] = "ring"
    clients: Clients

    def draw(self, seed: int) -> Graph:
        i = np.arange(self.clients)
        return Graph.of(self.clients, (i + 1) % self.clients, i)


@recipe(InvalidNetwork, RECIPES)
class Exponential:
    """Client i sends to i + 1, i + 2, i + 4, …: the static exponential graph [assran2019stochastic].

    Args:
        clients: How many.
    """

    name: ClassVar[str] = "exponential"
    clients: Clients

    def draw(self, seed: int) -> Graph:
        hops = 2 ** np.arange(max(1, int(np.ceil(np.log2(self.clients)))))
        i, hop = np.meshgrid(np.arange(self.clients), hops, indexing="ij")
        return Graph.of(self.clients, ((i + hop) % self.clients).ravel(), i.ravel())


@recipe(InvalidNetwork, RECIPES)
class Complete:
    """Every client sends to every other.

    Args:
        clients: How many.
    """

    name: ClassVar[str] = "complete"
    clients: Clients

    def draw(self, seed: int) -> Graph:
        i, j = np.divmod(np.arange(self.clients**2), self.clients)
        return Graph.of(self.clients, i, j)


@recipe(InvalidNetwork, RECIPES)
class Star:
    """Client 0 in the middle, links both ways.

    Args:
        clients: How many.
    """

    name: ClassVar[str] = "star"
    clients: Clients

    def draw(self, seed: int) -> Graph:
        leaves = np.arange(1, self.clients)
        hub = np.zeros_like(leaves)
        return Graph.of(self.clients, np.r_[leaves, hub], np.r_[hub, leaves])


@recipe(InvalidNetwork, RECIPES)
class ErdosRenyi:
    """Every ordered pair is a link with probability `probability`, independently of its reverse.

    Args:
        clients: How many.
        probability: Of each link.
    """

    name: ClassVar[str] = "erdos-renyi"
    clients: Clients
    probability: Probability = 0.4

    def draw(self, seed: int) -> Graph:
        def attempt(draws: np.random.Generator) -> Graph:
            chosen = _successes(draws, self.clients * (self.clients - 1), self.probability)
            i, j = np.divmod(chosen, max(1, self.clients - 1))
            return Graph.of(self.clients, i, j + (j >= i))  # skip the diagonal

        return _redraw(self, seed, attempt, "use a larger probability")


@recipe(InvalidNetwork, RECIPES)
class KOut:
    """Every client sends to `out` others, drawn at random without repeats.

    Args:
        clients: How many.
        out: To how many others each client sends.
    """

    name: ClassVar[str] = "k-out"
    clients: Clients
    out: Others = 3

    def draw(self, seed: int) -> Graph:
        def attempt(draws: np.random.Generator) -> Graph:
            others = distinct(
                np.full(self.clients, self.clients - 1),
                min(self.out, self.clients - 1),
                lambda _, tops: draws.integers(0, tops[0] + 1, self.clients),
            )
            senders = np.repeat(np.arange(self.clients), others.shape[1])
            receivers = (others.ravel() + senders + 1) % self.clients  # never oneself
            return Graph.of(self.clients, receivers, senders)

        return _redraw(self, seed, attempt, "use a larger out")


@recipe(InvalidNetwork, RECIPES)
class KRegular:
    """Every client sends to `degree` others and receives from `degree` others.

    One random cycle through all clients makes it strongly connected, so it suits any size; the other
    links are random permutations.

    Args:
        clients: How many.
        degree: To and from how many others each client has a link.
    """

    name: ClassVar[str] = "k-regular"
    clients: Clients
    degree: Others = 3

    def draw(self, seed: int) -> Graph:
        draws, i = generator(seed, "graph:k-regular"), np.arange(self.clients)
        cycle = draws.permutation(self.clients)
        targets = np.empty((self.clients, self.degree), np.int64)
        if (
            3 * self.degree >= self.clients
        ):  # dense: permutations would clash, so the cycle with random chords
            more = draws.permutation(np.arange(2, self.clients))[: self.degree - 1]
            targets[cycle] = cycle[(i[:, None] + np.r_[1, more]) % self.clients]
        else:
            targets[cycle, 0] = np.roll(cycle, -1)
            for column in range(1, self.degree):
                targets[:, column] = _permutation(draws, np.c_[i, targets[:, :column]])
        return Graph.of(self.clients, targets.ravel(), np.repeat(i, self.degree))


def _permutation(draws: np.random.Generator, taken: Ints) -> Ints:
    """A random permutation that sends no i to one of `taken[i]`; the few clashes are swapped away."""
    to = draws.permutation(len(taken))
    while len(clash := np.flatnonzero((taken == to[:, None]).any(1))):
        for a, b in zip(clash, draws.integers(0, len(taken), len(clash)), strict=True):
            to[a], to[b] = to[b], to[a]
    return to


def _successes(draws: np.random.Generator, trials: int, probability: float) -> Ints:
    """Which of many independent trials succeed, by the gaps between successes: O(successes)."""
    found, last = [np.empty(0, np.int64)], -1
    while last < trials:
        gaps = draws.geometric(probability, int(1.1 * probability * max(0, trials - last)) + 10)
        found.append(last + np.cumsum(gaps))
        last = int(found[-1][-1])
    chosen = np.concatenate(found)
    return chosen[chosen < trials]
