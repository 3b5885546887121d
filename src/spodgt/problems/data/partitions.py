"""Who holds which samples: recipes that deal one data set out to the clients.

Every sample goes to at most one client, every client gets at least one, and the deal is a pure
function of (targets, clients, seed).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator

from spodgt.errors import InvalidData
from spodgt.rng import generator
from spodgt.validation import Field, Must, Number, Whole, recipe

Indices = NDArray[np.int64]

_DRAWS = 1_000  # attempts at a Dirichlet deal in which every client has the minimum
_FEWER = "use fewer clients or more samples"


@runtime_checkable
class Partition(Protocol):
    """A recipe for dealing samples out."""

    def split(self, targets: torch.Tensor, clients: int, seed: int) -> list[Indices]:
        """One sorted array of indices into `targets` `(N,)` per client; the arrays are disjoint."""
        ...


PARTITIONS: dict[str, type[Partition]] = {}  # all kinds a config knows, by name


@recipe(InvalidData, PARTITIONS)
class IID:
    """All samples, shuffled and dealt out evenly: sizes differ by at most one."""

    name: ClassVar[str] = "iid"

    def split(self, targets: torch.Tensor, clients: int, seed: int) -> list[Indices]:
        """See `Partition.split`."""
        labels, draws = _checked(targets, clients, seed)
        return _finished(np.array_split(draws.permutation(len(labels)), clients), _FEWER)


@recipe(InvalidData, PARTITIONS)
class LabelsPerClient:
    """Every client gets samples of exactly `labels` classes, the usual hard case of federated learning.

    Every class is held before one is held twice, and the holders of a class share it evenly. A class
    with fewer samples than holders cannot reach all of them; classes that nobody holds stay unused.
    """

    name: ClassVar[str] = "labels-per-client"
    labels: Annotated[  # 1 … number of classes among the targets
        Whole,
        Field(ge=1),
        Must("a whole number of classes for each client from 1 on", 1, got="but is", use="1"),
    ]

    def split(self, targets: torch.Tensor, clients: int, seed: int) -> list[Indices]:
        """See `Partition.split`."""
        labels, draws = _checked(targets, clients, seed)
        classes = np.unique(labels)
        if self.labels > len(classes):
            raise InvalidData(
                f"labels must be at most {len(classes)}, the number of classes in the targets, "
                f"but is {self.labels}; lower it."
            )
        held = np.zeros(len(classes), np.int64)  # by how many clients so far
        holders: list[list[int]] = [[] for _ in classes]
        for client in range(clients):
            rarest = np.lexsort((draws.random(len(classes)), held))[: self.labels]
            held[rarest] += 1
            for c in rarest:
                holders[c].append(client)
        parts: list[list[Indices]] = [[] for _ in range(clients)]
        for c, members in enumerate(holders):
            if members:
                samples = draws.permutation(np.flatnonzero(labels == classes[c]))
                shares = np.array_split(samples, len(members))
                for client, share in zip(draws.permutation(members), shares, strict=True):
                    parts[client].append(share)
        return _finished([np.concatenate(part) for part in parts], "raise labels, or " + _FEWER)


@recipe(InvalidData, PARTITIONS)
class Dirichlet:
    """Each class is dealt out in proportions drawn from a symmetric Dirichlet(α) [hsu2019measuring].

    Small `alpha` gives clients few classes, large `alpha` comes near to `IID`. The whole deal is drawn
    again until every client has `minimum` samples, so the law is conditional on that.
    """

    name: ClassVar[str] = "dirichlet"
    alpha: Annotated[
        Number,
        Field(gt=0, le=1e6),
        Must(
            "a number above 0 and at most 1000000",
            0.5,
            got="but is",
            use="0.1 for clients that differ much, 10 for alike, or IID",
        ),
    ]
    minimum: Annotated[
        Whole,
        Field(ge=1),
        Must("a whole number of samples for each client from 1 on", 1, got="but is", use="1"),
    ] = 1

    def split(self, targets: torch.Tensor, clients: int, seed: int) -> list[Indices]:
        """See `Partition.split`."""
        labels, draws = _checked(targets, clients, seed)
        if self.minimum * clients > len(labels):
            raise InvalidData(
                f"minimum must be at most {len(labels) // clients}, as {clients} clients share {len(labels)} "
                f"samples, but is {self.minimum}; lower it, or {_FEWER}."
            )
        _, counts = np.unique(labels, return_counts=True)
        best: Indices | None = None
        for _ in range(_DRAWS):
            cuts = self._cuts(draws, counts, clients)
            sizes = np.diff(cuts, axis=1).sum(0)
            if best is None or sizes.min() > best.min():
                best = sizes
            if sizes.min() >= self.minimum:
                return _finished(self._deal(draws, labels, cuts), _FEWER)
        assert best is not None
        raise InvalidData(
            f"Dirichlet({self.alpha}) should leave no client with fewer samples than {self.minimum}, "
            f"but in the best of {_DRAWS} draws client {int(best.argmin())} gets {int(best.min())}; "
            f"raise alpha, {'lower minimum, ' if self.minimum > 1 else ''}or {_FEWER}."
        )

    def _cuts(self, draws: np.random.Generator, counts: Indices, clients: int) -> Indices:
        """Where each class is cut: `(classes, clients + 1)` positions from 0 to its count."""
        shares = draws.dirichlet(np.full(clients, self.alpha), len(counts))
        ends = np.rint(shares.cumsum(1) * counts[:, None]).astype(np.int64)
        ends[:, -1] = counts  # whatever rounding did, no sample is lost
        return np.pad(ends, ((0, 0), (1, 0)))

    def _deal(self, draws: np.random.Generator, labels: NDArray[Any], cuts: Indices) -> list[Indices]:
        rows = [
            np.split(draws.permutation(np.flatnonzero(labels == label)), ends[1:-1])
            for label, ends in zip(np.unique(labels), cuts, strict=True)
        ]
        return [np.concatenate(part) for part in zip(*rows, strict=True)]


def _indices(given: Any) -> tuple[tuple[int, ...], ...]:
    try:
        return tuple(tuple(operator.index(i) for i in part) for part in given)
    except TypeError as error:
        raise InvalidData(
            f"indices must be one sequence of whole numbers for each client, but {error}; "
            "write it like [[0, 2], [1]]."
        ) from error


@recipe(InvalidData, PARTITIONS)
class Explicit:
    """The samples of every client, given: `Explicit([[0, 2], [1]])`; the seed changes nothing."""

    name: ClassVar[str] = "explicit"
    indices: Annotated[Sequence[Sequence[int]], BeforeValidator(_indices), Must("a list", [[0, 1], [2]])]

    def split(self, targets: torch.Tensor, clients: int, seed: int) -> list[Indices]:
        """See `Partition.split`."""
        labels, _ = _checked(targets, clients, seed)
        if len(self.indices) != clients:
            raise InvalidData(
                f"indices must have one list for each of {clients} clients, but has {len(self.indices)}; "
                "add or remove lists, or change the number of clients."
            )
        owner = np.full(len(labels), -1)
        for client, part in enumerate(self.indices):
            for i in part:
                if not 0 <= i < len(labels):
                    raise InvalidData(
                        f"indices of client {client} must be from 0 to {len(labels) - 1}, "
                        f"but {i} is among them; remove it."
                    )
                if owner[i] >= 0:
                    raise InvalidData(
                        f"indices must give every sample to one client at most, but sample {i} is given "
                        f"to client {owner[i]} and again to client {client}; remove one."
                    )
                owner[i] = client
        parts = [np.array(part, np.int64) for part in self.indices]
        return _finished(parts, "give it samples or leave it out")


def _checked(targets: torch.Tensor, clients: int, seed: int) -> tuple[NDArray[Any], np.random.Generator]:
    labels = np.asarray(targets)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise InvalidData(
            f"targets must be one whole number for each sample, but have shape {labels.shape} and type "
            f"{labels.dtype}; pass the labels as an int64 tensor (N,)."
        )
    clients = _positive("clients", clients, "clients")
    if clients > len(labels):
        raise InvalidData(
            f"clients must be at most {len(labels)}, the number of samples, but is {clients}, "
            f"which leaves client {len(labels)} empty; {_FEWER}."
        )
    try:
        return labels, generator(operator.index(seed), "partition")
    except (TypeError, ValueError) as error:
        raise InvalidData(f"seed must be a whole number from 0 on, but is {seed!r}; use 0.") from error


def _positive(name: str, value: int, what: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise InvalidData(f"{name} must be a whole number of {what} from 1 on, but is {value!r}; use 1.")
    return number


def _finished(parts: Sequence[Indices], fix: str) -> list[Indices]:
    for client, part in enumerate(parts):
        if len(part) == 0:
            raise InvalidData(f"every client must get a sample, but client {client} gets none; {fix}.")
    return [np.sort(part).astype(np.int64) for part in parts]
