"""Recipes for strongly connected digraphs: `RandomGeometric(10, radius=0.4).draw(seed=3)`.

A recipe is a value; `draw(seed)` gives the same `Graph` in every process. Time and memory are
proportional to the number of links, so a million clients are possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar, Protocol, runtime_checkable

import numpy as np
from pydantic import AfterValidator, BeforeValidator, ValidationInfo

from spodgt.errors import InvalidNetwork
from spodgt.network.graph import MAX_CLIENTS, Graph
from spodgt.rng import generator, sample_without_replacement
from spodgt.types import Floats, Ints
from spodgt.validation import Field, FieldHint, Number, Whole, recipe

if TYPE_CHECKING:
    from scipy.spatial import cKDTree

__all__ = [
    "Complete",
    "DirectedGeometric",
    "ErdosRenyi",
    "Exponential",
    "Graph",
    "GraphRecipe",
    "KOut",
    "KRegular",
    "RandomGeometric",
    "Ring",
    "Star",
]

_MAX_ATTEMPTS = 1000


@runtime_checkable
class GraphRecipe(Protocol):
    """Draws a digraph for each seed."""

    name: ClassVar[str]

    def __init__(self, *args: float, **fields: float) -> None: ...
    @property
    def clients(self) -> int: ...
    def draw(self, seed: int) -> Graph: ...


RECIPES: dict[str, type[GraphRecipe]] = {}  # by name; the decorator `recipe` adds a class


def _check_degree(value: object, info: ValidationInfo) -> int:
    """Check to how many other clients each client sends; a single client has no links."""
    clients = info.data.get("clients", 2)
    most = max(1, clients - 1)
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 1 <= value <= most:
        raise InvalidNetwork(
            f"{info.field_name} must be a whole number from 1 to clients - 1 = {clients - 1}, "
            f"got {value!r}; use {info.field_name}={min(3, most)}."
        )
    return int(value)


def _check_clients(value: int) -> int:
    if value > MAX_CLIENTS:
        raise InvalidNetwork(
            f"clients must be at most {MAX_CLIENTS:,}, got about 10^{math.log10(value):.0f}; "
            "use clients=10."
        )
    return value


Clients = Annotated[
    Whole,
    Field(ge=1),
    AfterValidator(_check_clients),
    FieldHint("a whole number of at least 1", 10),
]
Degree = Annotated[int, BeforeValidator(_check_degree)]
Radius = Annotated[Number, Field(gt=0), FieldHint("above 0")]
Probability = Annotated[Number, Field(gt=0, le=1), FieldHint("in (0, 1]")]


def _draw_connected(
    recipe: GraphRecipe, attempt: Callable[[np.random.Generator], Graph], seed: int, fix: str
) -> Graph:
    """Draw graphs until one is strongly connected; each attempt has its own random stream."""
    # A large graph that is not connected will not be connected at the next attempt either.
    attempts = max(3, min(_MAX_ATTEMPTS, 10**6 // recipe.clients))
    for number in range(attempts):
        graph = attempt(generator(seed, f"graph:{recipe.name}", number))
        if graph.components()[0] == 1:
            return graph
    raise InvalidNetwork(
        f"{recipe} gave no strongly connected graph in {attempts} draws (seed {seed}); {fix}."
    )


def _kd_tree(positions: Floats) -> cKDTree:
    from scipy.spatial import cKDTree

    return cKDTree(positions)


@recipe(InvalidNetwork, RECIPES)
class RandomGeometric:
    """Clients at random in the unit square; links both ways within `radius` [penrose2003random].

    Args:
        clients: Number of clients.
        radius: Largest distance of a link; the square has side 1.
    """

    name: ClassVar[str] = "random-geometric"
    clients: Clients
    radius: Radius = 0.4

    def draw(self, seed: int) -> Graph:
        return _draw_connected(self, self._attempt, seed, "use a larger radius or more clients")

    def _attempt(self, draws: np.random.Generator) -> Graph:
        positions = draws.random((self.clients, 2))
        i, j = _kd_tree(positions).query_pairs(self.radius, output_type="ndarray").T
        return Graph.of(self.clients, np.r_[i, j], np.r_[j, i], positions)


@recipe(InvalidNetwork, RECIPES)
class DirectedGeometric:
    """Each client has its own transmit radius, uniform in [low, high]: asymmetric wireless links.

    Args:
        clients: Number of clients.
        low: Smallest transmit radius.
        high: Largest transmit radius.
    """

    name: ClassVar[str] = "directed-geometric"
    clients: Clients
    low: Radius = 0.3
    high: Radius = 0.6

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise InvalidNetwork(
                f"low and high must satisfy 0 < low ≤ high, got low={self.low!r}, "
                f"high={self.high!r}; use low=0.3, high=0.6."
            )

    def draw(self, seed: int) -> Graph:
        fix = "use a larger low and high, or more clients"
        return _draw_connected(self, self._attempt, seed, fix)

    def _attempt(self, draws: np.random.Generator) -> Graph:
        positions = draws.random((self.clients, 2))
        radius = draws.uniform(self.low, self.high, self.clients)
        receivers_of = _kd_tree(positions).query_ball_point(positions, radius)
        senders = np.repeat(np.arange(self.clients), list(map(len, receivers_of)))
        return Graph.of(self.clients, np.concatenate(receivers_of), senders, positions)


@recipe(InvalidNetwork, RECIPES)
class Ring:
    """The directed ring: client i sends to i + 1.

    Args:
        clients: Number of clients.
    """

    name: ClassVar[str] = "ring"
    clients: Clients

    def draw(self, seed: int) -> Graph:
        i = np.arange(self.clients)
        return Graph.of(self.clients, (i + 1) % self.clients, i)


@recipe(InvalidNetwork, RECIPES)
class Exponential:
    """The static exponential graph: i sends to i + 1, i + 2, i + 4, … [assran2019stochastic].

    Args:
        clients: Number of clients.
    """

    name: ClassVar[str] = "exponential"
    clients: Clients

    def draw(self, seed: int) -> Graph:
        hops = 2 ** np.arange(max(1, int(np.ceil(np.log2(self.clients)))))
        i, hop = np.meshgrid(np.arange(self.clients), hops, indexing="ij")
        return Graph.of(self.clients, ((i + hop) % self.clients).ravel(), i.ravel())


@recipe(InvalidNetwork, RECIPES)
class Complete:
    """Each client sends to every other.

    Args:
        clients: Number of clients.
    """

    name: ClassVar[str] = "complete"
    clients: Clients

    def draw(self, seed: int) -> Graph:
        i, j = np.divmod(np.arange(self.clients**2), self.clients)
        return Graph.of(self.clients, i, j)


@recipe(InvalidNetwork, RECIPES)
class Star:
    """Client 0 is linked both ways with every other client.

    Args:
        clients: Number of clients.
    """

    name: ClassVar[str] = "star"
    clients: Clients

    def draw(self, seed: int) -> Graph:
        leaves = np.arange(1, self.clients)
        hub = np.zeros_like(leaves)
        return Graph.of(self.clients, np.r_[leaves, hub], np.r_[hub, leaves])


@recipe(InvalidNetwork, RECIPES)
class ErdosRenyi:
    """Each ordered pair is a link with probability `probability`, independently of its reverse.

    Args:
        clients: Number of clients.
        probability: Probability of each link.
    """

    name: ClassVar[str] = "erdos-renyi"
    clients: Clients
    probability: Probability = 0.4

    def draw(self, seed: int) -> Graph:
        return _draw_connected(self, self._attempt, seed, "use a larger probability")

    def _attempt(self, draws: np.random.Generator) -> Graph:
        pairs = self.clients * (self.clients - 1)
        chosen = _bernoulli_successes(draws, pairs, self.probability)
        i, j = np.divmod(chosen, max(1, self.clients - 1))
        return Graph.of(self.clients, i, j + (j >= i))  # skip the diagonal


@recipe(InvalidNetwork, RECIPES)
class KOut:
    """Each client sends to `out` others, drawn at random without replacement.

    Args:
        clients: Number of clients.
        out: Number of other clients to which each client sends.
    """

    name: ClassVar[str] = "k-out"
    clients: Clients
    out: Degree = 3

    def draw(self, seed: int) -> Graph:
        return _draw_connected(self, self._attempt, seed, "use a larger out")

    def _attempt(self, draws: np.random.Generator) -> Graph:
        offsets = sample_without_replacement(
            np.full(self.clients, self.clients - 1),
            min(self.out, self.clients - 1),
            lambda _, tops: draws.integers(0, tops[0] + 1, self.clients),
        )
        senders = np.repeat(np.arange(self.clients), offsets.shape[1])
        receivers = (offsets.ravel() + senders + 1) % self.clients  # never the sender itself
        return Graph.of(self.clients, receivers, senders)


@recipe(InvalidNetwork, RECIPES)
class KRegular:
    """Each client sends to `degree` others and receives from `degree` others.

    One random cycle through all clients makes it strongly connected, so it suits any size; the
    other links are random permutations.

    Args:
        clients: Number of clients.
        degree: Number of out-links and of in-links of each client.
    """

    name: ClassVar[str] = "k-regular"
    clients: Clients
    degree: Degree = 3

    def draw(self, seed: int) -> Graph:
        draws = generator(seed, "graph:k-regular")
        i = np.arange(self.clients)
        cycle = draws.permutation(self.clients)
        targets = np.empty((self.clients, self.degree), np.int64)
        if 3 * self.degree >= self.clients:
            # Permutations of a dense graph would collide: use chords of the cycle.
            chords = draws.permutation(np.arange(2, self.clients))[: self.degree - 1]
            targets[cycle] = cycle[(i[:, None] + np.r_[1, chords]) % self.clients]
        else:
            targets[cycle, 0] = np.roll(cycle, -1)
            for column in range(1, self.degree):
                targets[:, column] = _permutation_avoiding(draws, np.c_[i, targets[:, :column]])
        return Graph.of(self.clients, targets.ravel(), np.repeat(i, self.degree))


def _permutation_avoiding(draws: np.random.Generator, excluded: Ints) -> Ints:
    """A random permutation with permutation[i] not in excluded[i]; collisions are swapped away."""
    permutation = draws.permutation(len(excluded))
    collisions = np.flatnonzero((excluded == permutation[:, None]).any(1))
    while len(collisions):
        partners = draws.integers(0, len(excluded), len(collisions))
        for a, b in zip(collisions, partners, strict=True):
            permutation[a], permutation[b] = permutation[b], permutation[a]
        collisions = np.flatnonzero((excluded == permutation[:, None]).any(1))
    return permutation


def _bernoulli_successes(draws: np.random.Generator, trials: int, probability: float) -> Ints:
    """Indices of the successes of independent trials, by geometric gaps: O(successes)."""
    parts = [np.empty(0, np.int64)]
    last = -1
    while last < trials:
        gaps = draws.geometric(probability, int(1.1 * probability * max(0, trials - last)) + 10)
        parts.append(last + np.cumsum(gaps))
        last = int(parts[-1][-1])
    successes = np.concatenate(parts)
    return successes[successes < trials]


def __dir__() -> list[str]:
    return __all__
