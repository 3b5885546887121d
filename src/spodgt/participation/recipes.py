"""Who computes and which links work in round k, as a pure function of (seed, k).

A participation is a recipe; `draw(network, seed)` gives the `Availability` of one run. Round 0 has
only computing clients; the links of round k ≥ 1 mix x[k-1] into x[k].
"""

from __future__ import annotations

from dataclasses import field
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Protocol, runtime_checkable

import numpy as np

from spodgt import rng
from spodgt.errors import InvalidInput
from spodgt.network import Network
from spodgt.participation.availability import Chosen, Independent, Overlay, Recorded
from spodgt.types import Availability, Floats
from spodgt.validation import Field, Must, Number, Whole, recipe


@runtime_checkable
class Participation(Protocol):
    """A recipe for availability, drawn anew for every seed."""

    name: ClassVar[str]

    def draw(self, network: Network, seed: int) -> Availability: ...


PARTICIPATIONS: dict[str, type[Participation]] = {}  # all kinds a config knows, by name
Shape = Annotated[Number, Field(gt=0, allow_inf_nan=False), Must("a number above 0")]


@recipe(InvalidInput, PARTICIPATIONS)
class Always:
    """Every client computes and every link works, in every round."""

    name: ClassVar[str] = "always"

    def draw(self, network: Network, seed: int) -> Availability:
        return Overlay(Independent(np.ones(network.clients), np.ones(network.links), seed), True, True)


@recipe(InvalidInput, PARTICIPATIONS)
class Bernoulli:
    """Given probabilities, in (0, 1].

    Args:
        p: That a client computes: one number for all, or (clients,).
        p_hat: That a link works: one number, (links,) in the network's order, or (clients, clients) as
            [receiver, sender].
    """

    name: ClassVar[str] = "bernoulli"
    p: object = 0.5
    p_hat: object = 0.5

    def draw(self, network: Network, seed: int) -> Availability:
        p = _probabilities(self.p, network.clients, "p", "client")
        p_hat = _probabilities(_on_links(self.p_hat, network), network.links, "p_hat", "link")
        return Independent(p, p_hat, seed)


@recipe(InvalidInput, PARTICIPATIONS)
class Beta:
    """p and p̂ drawn from Beta(alpha, beta) for every client and link, never below `floor`.

    Beta(0.5, 0.5) is the paper's setting: most are near 0 or near 1, and 1/p has no mean.

    Args:
        alpha: First parameter of the distribution.
        beta: Second parameter.
        floor: The smallest probability, in [0, 1).
    """

    name: ClassVar[str] = "beta"
    alpha: Shape = 0.5
    beta: Shape = 0.5
    floor: Annotated[Number, Field(ge=0, lt=1), Must("in [0, 1)", 0.05)] = 0.0

    def draw(self, network: Network, seed: int) -> Availability:
        least = max(self.floor, float(np.finfo(float).tiny))  # a draw may underflow to zero
        p = rng.generator(seed, "beta:p").beta(self.alpha, self.beta, network.clients)
        p_hat = rng.generator(seed, "beta:p_hat").beta(self.alpha, self.beta, network.links)
        return Independent(np.maximum(p, least), np.maximum(p_hat, least), seed)


@recipe(InvalidInput, PARTICIPATIONS)
class EveryK:
    """Every client computes in every round; links work only in every `rounds`-th.

    Args:
        rounds: How many rounds lie between two exchanges.
    """

    name: ClassVar[str] = "every-k"
    rounds: Annotated[Whole, Field(ge=1), Must("a whole number of at least 1")] = 5

    def draw(self, network: Network, seed: int) -> Availability:
        return Overlay(Always().draw(network, seed), every=self.rounds)


@recipe(InvalidInput, PARTICIPATIONS)
class OneLink:
    """Gossip: one link a round, drawn uniformly, and only its two ends compute.

    Args:
        pairs: A two-way link carries both ways at once.
    """

    name: ClassVar[str] = "one-link"
    pairs: bool = False

    def draw(self, network: Network, seed: int) -> Availability:
        if not network.links:
            raise InvalidInput("one-link needs a network with at least one link, got one client; use always.")
        degree = network.in_degree + network.out_degree
        both = network.reverse is not None and self.pairs
        p_hat = np.full(network.links, (2 if both else 1) / network.links)
        return Chosen(degree / network.links, p_hat, network, seed, both)


@recipe(InvalidInput)
class Trace:
    """Replay recorded availability.

    Args:
        computes: (rounds + 1, clients), who computes; round 0 included.
        links: Which links work: (rounds, clients, clients) as [receiver, sender], or (rounds, links) in the
            network's order.
        p: Probabilities that the delay clock charges, as in `Bernoulli`; observed frequencies if None.
        p_hat: Likewise, of links.
        source: Where it was read from.
    """

    name: ClassVar[str] = "trace"
    computes: object
    links: object
    p: object = None
    p_hat: object = None
    source: str = field(default="arrays", kw_only=True)

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:  # arrays have no one answer
        return self is other

    @classmethod
    def read(cls, path: str | Path) -> Trace:
        """Read a CSV or Parquet table with columns round, receiver, sender, up.

        A row with receiver = sender says that this client computes in that round; any other that the
        link sender → receiver works in it. What has no row is down.

        Args:
            path: The file.
        """
        import pandas as pd

        path = Path(path)
        columns = ["round", "receiver", "sender", "up"]
        try:
            table = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
            missing = [name for name in columns if name not in table.columns]
            if missing:
                raise InvalidInput(
                    f"trace {path} must have columns {', '.join(columns)}, but lacks {missing[0]}."
                )
            k, i, j, up = (table[name].to_numpy(dtype=np.int64) for name in columns)
        except FileNotFoundError:
            raise InvalidInput(f"trace {path} does not exist; give a CSV or Parquet file.") from None
        except (ValueError, OSError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"trace {path} cannot be read as a table of whole numbers: {error}.") from None
        if not len(k) or min(k.min(), i.min(), j.min()) < 0:
            raise InvalidInput(f"trace {path} must have rows with numbers of at least 0.")
        rounds, clients = int(k.max()), int(max(i.max(), j.max())) + 1
        computes = np.zeros((rounds + 1, clients), bool)
        links = np.zeros((rounds + 1, clients, clients), bool)
        own = i == j
        computes[k[own], i[own]] = up[own] != 0
        links[k[~own], i[~own], j[~own]] = up[~own] != 0
        return cls(computes, links[1:], source=str(path))

    def draw(self, network: Network, seed: int) -> Availability:
        computes = np.asarray(self.computes) != 0
        if computes.ndim != 2 or computes.shape[1] != network.clients:
            raise InvalidInput(
                f"computes must be (rounds + 1, {network.clients}) for this network, got {computes.shape}."
            )
        links = np.asarray(self.links) != 0
        m = network.clients
        if links.ndim == 3 and links.shape[1:] == (m, m):
            stray = links.any(0)
            stray[network.receivers, network.senders] = False
            np.fill_diagonal(stray, False)
            if stray.any():
                i, j = np.argwhere(stray)[0]
                raise InvalidInput(
                    f"links has link {j} → {i}, which the network lacks; add it to the network."
                )
            links = links[:, network.receivers, network.senders]
        elif links.ndim != 2 or links.shape[1] != network.links:
            raise InvalidInput(
                f"links must be (rounds, {m}, {m}) or (rounds, {network.links}) here, got {links.shape}."
            )
        if len(computes) != len(links) + 1:
            raise InvalidInput(
                f"computes must have one round more than links (round 0 has no links), "
                f"got {len(computes)} and {len(links)}."
            )
        # A client that never computed has observed frequency zero: the clock never charges it.
        p = computes.mean(0) if self.p is None else _probabilities(self.p, m, "p", "client")
        p_hat = links.mean(0) if len(links) else np.ones(network.links)
        if self.p_hat is not None:
            p_hat = _probabilities(_on_links(self.p_hat, network), network.links, "p_hat", "link")
        tiny = float(np.finfo(float).tiny)
        return Recorded(np.maximum(p, tiny), np.maximum(p_hat, tiny), computes, links, seed)


@recipe(InvalidInput, PARTICIPATIONS)
class TraceFile:
    """Recorded availability in a file; it is read when it is first needed.

    Args:
        path: A table in the form of `Trace.read`.
    """

    name: ClassVar[str] = "trace"
    path: Annotated[str, Must("text in quotes", "file.csv")]

    @cached_property
    def trace(self) -> Trace:
        """What the file holds."""
        return Trace.read(self.path)

    def draw(self, network: Network, seed: int) -> Availability:
        return self.trace.draw(network, seed)


def check_participation(participation: object) -> None:
    """Refuse what is no participation; a class of them is none."""
    if isinstance(participation, Participation) and not isinstance(participation, type):
        return
    got, fix = type(participation).__name__, "use spodgt.Beta(0.5, 0.5)."
    if isinstance(participation, type):
        got, fix = f"the class {participation.__name__}", f"use spodgt.{participation.__name__}() instead."
    raise InvalidInput(f"participation must be one of {', '.join(PARTICIPATIONS)}, got {got}; {fix}")


def as_availability(participation: Participation, network: Network, seed: int) -> Availability:
    """Draw a participation for one network and seed, or say that it is none."""
    check_participation(participation)
    return participation.draw(network, seed)


def _numbers(value: object, name: str) -> Floats:
    try:
        return np.asarray(value, float)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must be numbers in (0, 1], got {value!r:.60}; use {name}=0.5.") from None


def _on_links(p_hat: object, network: Network) -> Floats:
    array = _numbers(p_hat, "p_hat")
    if array.shape == (network.clients, network.clients) and array.ndim == 2:
        return np.asarray(array[network.receivers, network.senders])
    return array


def _probabilities(value: object, count: int, name: str, each: str) -> Floats:
    array = _numbers(value, name)
    if array.shape not in ((), (count,)):
        raise InvalidInput(
            f"{name} must be one number or {count} (one per {each}), got shape {array.shape}; use {name}=0.5."
        )
    array = np.broadcast_to(array, (count,)).copy()
    bad = ~((array > 0) & (array <= 1))
    if bad.any():
        where = int(np.argmax(bad))
        raise InvalidInput(
            f"{name} must be in (0, 1], but {each} {where} has {array[where]:.3g}; "
            f"a {each} that never takes part does not belong to the network."
        )
    return array
