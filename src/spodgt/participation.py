"""Who computes and which links work in round k, as a pure function of (seed, k).

A participation is a recipe; `draw(network, seed)` gives the `Availability` of one run. Round 0 has
only computing clients; the links of round k ≥ 1 mix x[k-1] into x[k].
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from spodgt import rng
from spodgt.errors import InvalidInput
from spodgt.network import Network
from spodgt.types import Availability, Bools, Floats, Ints, LinkPair


@runtime_checkable
class Participation(Protocol):
    """A recipe for availability, drawn anew for every seed."""

    name: ClassVar[str]

    def draw(self, network: Network, seed: int) -> Availability: ...


# --- availabilities: participation drawn for one network and one seed ------------------------------
@dataclass(frozen=True, eq=False)
class Independent:
    """Every client computes with its own p, every link works with its own p̂, all independent."""

    p: Floats
    p_hat: Floats
    seed: int
    length: int | None = None

    @property
    def idle_clients(self) -> bool:
        return bool((self.p < 1).any())

    @property
    def idle_links(self) -> bool:
        return bool((self.p_hat < 1).any())

    def computes(self, rounds: range) -> Bools:
        return rng.bernoulli(rng.key(self.seed, "clients"), rounds, self.p)

    def links(self, rounds: range) -> LinkPair:
        return _same(rng.bernoulli(rng.key(self.seed, "links"), rounds, self.p_hat))


@dataclass(frozen=True, eq=False)
class Recorded:
    """Availability read from arrays, round by round."""

    p: Floats
    p_hat: Floats
    client_table: Bools  # (rounds + 1, clients)
    link_table: Bools  # (rounds, links)
    seed: int = 0

    @property
    def length(self) -> int | None:
        return min(len(self.client_table) - 1, len(self.link_table))

    @property
    def idle_clients(self) -> bool:
        return not self.client_table.all()

    @property
    def idle_links(self) -> bool:
        return not self.link_table.all()

    def computes(self, rounds: range) -> Bools:
        return _at(self.client_table, rounds, 0)

    def links(self, rounds: range) -> LinkPair:
        return _same(_at(self.link_table, rounds, 1))


@dataclass(frozen=True, eq=False)
class Chosen:
    """One link a round, drawn uniformly; only its two ends compute. A two-way link carries both ways."""

    p: Floats
    p_hat: Floats
    network: Network
    seed: int
    pairs: bool  # the reverse link works too
    length: int | None = None
    idle_clients: bool = True
    idle_links: bool = True

    def _link(self, rounds: range) -> Ints:
        draw = rng.uniform(rng.key(self.seed, "links"), np.asarray(rounds))
        return np.asarray((draw * self.network.links).astype(np.int64))

    def computes(self, rounds: range) -> Bools:
        link = self._link(rounds)
        active = np.zeros((len(rounds), self.network.clients), bool)
        active[np.arange(len(rounds)), self.network.receivers[link]] = True
        active[np.arange(len(rounds)), self.network.senders[link]] = True
        return active

    def links(self, rounds: range) -> LinkPair:
        link = self._link(rounds)
        active = np.zeros((len(rounds), self.network.links), bool)
        active[np.arange(len(rounds)), link] = True
        if self.pairs and self.network.reverse is not None:
            active[np.arange(len(rounds)), self.network.reverse[link]] = True
        return _same(active)


@dataclass(frozen=True, eq=False)
class Overlay:
    """What a method makes of an availability; `p` and `p_hat` stay, so the clock still charges them."""

    base: Availability
    all_clients: bool = False
    all_links: bool = False
    every: int = 1  # links are used only in rounds divisible by it
    pairs: Ints | None = None  # every link's reverse: both work as the lower-numbered one does

    @property
    def p(self) -> Floats:
        return self.base.p

    @property
    def p_hat(self) -> Floats:
        if self.pairs is None or self.all_links:
            return self.base.p_hat
        return self.base.p_hat[self._lower]  # a pair has one draw, so it has one probability

    @property
    def seed(self) -> int:
        return self.base.seed

    @property
    def length(self) -> int | None:
        return None if self.all_clients and self.all_links else self.base.length

    @property
    def idle_clients(self) -> bool:
        return not self.all_clients and self.base.idle_clients

    @property
    def idle_links(self) -> bool:
        return self.every > 1 or (not self.all_links and self.base.idle_links)

    @cached_property
    def _lower(self) -> Ints:
        assert self.pairs is not None
        return np.minimum(np.arange(len(self.pairs)), self.pairs)

    def computes(self, rounds: range) -> Bools:
        if self.all_clients:
            return np.ones((len(rounds), len(self.p)), bool)
        return self.base.computes(rounds)

    def links(self, rounds: range) -> LinkPair:
        if self.all_links:
            pull, push = _same(np.ones((len(rounds), len(self.p_hat)), bool))
        else:
            pull, push = self.base.links(rounds)
            if self.pairs is not None:
                pull, push = _same(pull[:, self._lower])
        if self.every == 1:
            return pull, push
        now = (np.asarray(rounds) % self.every == 0)[:, None]
        return _same(pull & now) if pull is push else (pull & now, push & now)


def two_way(availability: Availability, network: Network) -> Availability:
    """One draw for each pair of clients: a symmetric exchange needs both directions or none."""
    return Overlay(availability, pairs=network.reverse)


@dataclass(frozen=True, eq=False)
class Woken:
    """One client wakes in every round, drawn uniformly, and draws one in- and one out-neighbour.

    It pulls from the first and pushes to the second; as a pair, it and the first exchange both ways.
    Only the clients involved compute, and all of them in round 0. It waits for whom it has drawn.
    """

    base: Availability
    network: Network
    pairs: bool = False
    computing: bool = True
    length: int | None = None
    idle_clients: bool = True
    idle_links: bool = True

    @property
    def p(self) -> Floats:
        return self.base.p

    @property
    def p_hat(self) -> Floats:
        return self.base.p_hat

    @property
    def seed(self) -> int:
        return self.base.seed

    @cached_property
    def _out(self) -> Ints:
        """Links by sender; the network keeps them by receiver."""
        return np.argsort(self.network.senders, kind="stable")

    def _drawn(self, rounds: range) -> tuple[Ints, Ints, Ints]:
        """Who wakes, and its in- and out-link, in every round."""
        u = rng.uniform(rng.key(self.seed, "wake"), np.asarray(rounds)[:, None], np.arange(3)[None, :])
        into, out = self.network.in_degree, self.network.out_degree
        i = (u[:, 0] * self.network.clients).astype(np.int64)
        pull = (np.cumsum(into) - into)[i] + (u[:, 1] * into[i]).astype(np.int64)
        push = self._out[(np.cumsum(out) - out)[i] + (u[:, 2] * out[i]).astype(np.int64)]
        return i, pull, push

    def computes(self, rounds: range) -> Bools:
        active = np.zeros((len(rounds), self.network.clients), bool)
        if not self.computing:
            return active
        if self.network.links:
            i, pull, push = self._drawn(rounds)
            active[np.arange(len(rounds)), i] = True
            active[np.arange(len(rounds)), self.network.senders[pull]] = True
            if not self.pairs:
                active[np.arange(len(rounds)), self.network.receivers[push]] = True
        active[(np.asarray(rounds) == 0) | (not self.network.links)] = True
        return active

    def links(self, rounds: range) -> LinkPair:
        pulled = np.zeros((len(rounds), self.network.links), bool)
        if not self.network.links:
            return _same(pulled)
        _, pull, push = self._drawn(rounds)
        pulled[np.arange(len(rounds)), pull] = True
        if self.pairs and self.network.reverse is not None:
            pulled[np.arange(len(rounds)), self.network.reverse[pull]] = True
            return _same(pulled)
        pushed = np.zeros_like(pulled)
        pushed[np.arange(len(rounds)), push] = True
        return pulled, pushed


@dataclass(frozen=True, eq=False)
class Served:
    """No links are used: models meet at a server, which the clock does not charge for.

    With `alone` one machine that never idles does all the work, so every client computes at p = 1.
    """

    base: Availability
    alone: bool = False
    idle_links: bool = True

    @property
    def p(self) -> Floats:
        return np.ones_like(self.base.p) if self.alone else self.base.p

    @property
    def p_hat(self) -> Floats:
        return self.base.p_hat

    @property
    def seed(self) -> int:
        return self.base.seed

    @property
    def length(self) -> int | None:
        return None if self.alone else self.base.length

    @property
    def idle_clients(self) -> bool:
        return not self.alone and self.base.idle_clients

    def computes(self, rounds: range) -> Bools:
        return np.ones((len(rounds), len(self.p)), bool) if self.alone else self.base.computes(rounds)

    def links(self, rounds: range) -> LinkPair:
        return _same(np.zeros((len(rounds), len(self.p_hat)), bool))


# --- recipes ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Always:
    """Every client computes and every link works, in every round."""

    name: ClassVar[str] = "always"

    def draw(self, network: Network, seed: int) -> Availability:
        return Overlay(Independent(np.ones(network.clients), np.ones(network.links), seed), True, True)


@dataclass(frozen=True)
class Bernoulli:
    """Given probabilities: a number for all, or one per client (`p`) and one per link (`p_hat`).

    `p_hat` may be (links,) in the network's order or a (clients, clients) matrix [receiver, sender].
    """

    name: ClassVar[str] = "bernoulli"
    p: Any = 0.5
    p_hat: Any = 0.5

    def draw(self, network: Network, seed: int) -> Availability:
        p = _probabilities(self.p, network.clients, "p", "client")
        p_hat = _probabilities(_on_links(self.p_hat, network), network.links, "p_hat", "link")
        return Independent(p, p_hat, seed)


@dataclass(frozen=True)
class Beta:
    """p and p̂ drawn from Beta(alpha, beta) for every client and link, never below `floor`.

    Beta(0.5, 0.5) is the paper's setting: most are near 0 or near 1, and 1/p has no mean.
    """

    name: ClassVar[str] = "beta"
    alpha: float = 0.5
    beta: float = 0.5
    floor: float = 0.0

    def __post_init__(self) -> None:
        for key in ("alpha", "beta"):
            if not getattr(self, key) > 0:
                raise InvalidInput(f"{key} must be above 0, got {getattr(self, key)!r}; use {key}=0.5.")
        if not 0 <= self.floor < 1:
            raise InvalidInput(f"floor must be in [0, 1), got {self.floor!r}; use floor=0.05.")

    def draw(self, network: Network, seed: int) -> Availability:
        least = max(self.floor, float(np.finfo(float).tiny))  # a draw may underflow to zero
        p = rng.generator(seed, "beta:p").beta(self.alpha, self.beta, network.clients)
        p_hat = rng.generator(seed, "beta:p_hat").beta(self.alpha, self.beta, network.links)
        return Independent(np.maximum(p, least), np.maximum(p_hat, least), seed)


@dataclass(frozen=True)
class EveryK:
    """Every client computes in every round; links work only in every `rounds`-th."""

    name: ClassVar[str] = "every-k"
    rounds: int = 5

    def __post_init__(self) -> None:
        if not isinstance(self.rounds, int) or self.rounds < 1:
            raise InvalidInput(
                f"rounds must be a whole number of at least 1, got {self.rounds!r}; use rounds=5."
            )

    def draw(self, network: Network, seed: int) -> Availability:
        return Overlay(Always().draw(network, seed), every=self.rounds)


@dataclass(frozen=True)
class OneLink:
    """Gossip: one link a round, drawn uniformly, and only its two ends compute."""

    name: ClassVar[str] = "one-link"
    pairs: bool = False  # a two-way link carries both ways at once

    def draw(self, network: Network, seed: int) -> Availability:
        if not network.links:
            raise InvalidInput("one-link needs a network with at least one link, got one client; use always.")
        degree = network.in_degree + network.out_degree
        both = network.reverse is not None and self.pairs
        p_hat = np.full(network.links, (2 if both else 1) / network.links)
        return Chosen(degree / network.links, p_hat, network, seed, both)


@dataclass(frozen=True, eq=False)
class Trace:
    """Replay recorded availability.

    `computes` is (rounds + 1, clients); `links` is (rounds, clients, clients) as [receiver, sender],
    or (rounds, links) in the network's order. `p` and `p_hat` default to the observed frequencies.
    """

    name: ClassVar[str] = "trace"
    computes: Any
    links: Any
    p: Any = None
    p_hat: Any = None
    source: str = field(default="arrays", kw_only=True)

    @classmethod
    def read(cls, path: str | Path) -> Trace:
        """Read a CSV or Parquet table with columns round, receiver, sender, up.

        A row with receiver = sender says that this client computes in that round; any other that the
        link sender → receiver works in it. What has no row is down.
        """
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


PARTICIPATIONS: dict[str, type[Participation]] = {
    recipe.name: recipe for recipe in (Always, Bernoulli, Beta, EveryK, OneLink, Trace)
}


def as_availability(participation: Participation, network: Network, seed: int) -> Availability:
    if not isinstance(participation, Participation):
        raise InvalidInput(
            f"participation must be one of {', '.join(PARTICIPATIONS)}, got {type(participation).__name__}; "
            "use spodgt.Beta(0.5, 0.5)."
        )
    return participation.draw(network, seed)


def _same(links: Bools) -> LinkPair:
    """One indicator gates both the model and the tracker on a link."""
    return links, links


def _at(table: Bools, rounds: range, first: int) -> Bools:
    """Rows of a recorded table; before its first and after its last round nothing happens."""
    rows = np.asarray(rounds) - first
    known = (rows >= 0) & (rows < len(table))
    out = np.zeros((len(rounds), table.shape[1]), bool)
    out[known] = table[rows[known]]
    return out


def _numbers(value: ArrayLike, name: str) -> Floats:
    try:
        return np.asarray(value, float)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must be numbers in (0, 1], got {value!r:.60}; use {name}=0.5.") from None


def _on_links(p_hat: ArrayLike, network: Network) -> Floats:
    array = _numbers(p_hat, "p_hat")
    if array.shape == (network.clients, network.clients) and array.ndim == 2:
        return np.asarray(array[network.receivers, network.senders])
    return array


def _probabilities(value: ArrayLike, count: int, name: str, each: str) -> Floats:
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
