"""Partitions: recipes that divide one data set among the clients.

Every sample belongs to at most one client, every client has at least one, and a partition is a pure
function of (targets, clients, seed).
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar, Protocol, SupportsIndex, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator

from spodgt.errors import InvalidData, InvalidInput, UnusedDataWarning
from spodgt.rng import generator
from spodgt.validation import Field, FieldHint, Number, Whole, recipe

__all__ = ["IID", "BySpeaker", "Dirichlet", "Explicit", "LabelsPerClient", "Partition"]

Indices = NDArray[np.int64]

_TRIALS = 1_000  # attempts at a Dirichlet deal in which every client has the minimum
_FEWER = "use fewer clients or more samples"


@runtime_checkable
class Partition(Protocol):
    """A recipe that divides samples among clients."""

    def split(self, targets: torch.Tensor, clients: int, seed: int) -> list[Indices]:
        """One sorted array of indices into `targets` for each client; the arrays are disjoint.

        Args:
            targets: (N,) labels of the samples.
            clients: Number of clients.
            seed: Of random partitions.
        """
        ...


PARTITIONS: dict[str, type[Partition]] = {}  # by their names in a config


def _count_hint(what: str) -> FieldHint:
    return FieldHint(
        f"a whole number of {what} for each client from 1 on", 1, got="but is", use="1"
    )


_ALPHA = FieldHint(
    "a number above 0 and at most 1000000",
    0.5,
    got="but is",
    use="0.1 for clients that differ much, 10 for alike, or IID",
)


@recipe(InvalidData, PARTITIONS)
class IID:
    """All samples, shuffled and divided evenly: sizes differ by at most one."""

    name: ClassVar[str] = "iid"

    def split(self, targets: torch.Tensor, clients: int, seed: int) -> list[Indices]:
        labels, draws = _check_arguments(targets, clients, seed)
        return _sort_parts(np.array_split(draws.permutation(len(labels)), clients), _FEWER)


@recipe(InvalidData, PARTITIONS)
class LabelsPerClient:
    """Every client gets samples of exactly `labels` classes, a hard case of federated learning.

    Every class is assigned once before one is assigned twice, and the clients of a class share it
    evenly. A class with fewer samples than clients cannot reach all of them; classes without a
    client remain unused, with a warning.
    """

    name: ClassVar[str] = "labels-per-client"
    labels: Annotated[Whole, Field(ge=1), _count_hint("classes")]  # classes of each client

    def split(self, targets: torch.Tensor, clients: int, seed: int) -> list[Indices]:
        labels, draws = _check_arguments(targets, clients, seed)
        classes = np.unique(labels)
        if self.labels > len(classes):
            raise InvalidData(
                f"labels must be at most {len(classes)}, the number of classes in the targets, "
                f"but is {self.labels}; lower it."
            )
        holds = np.zeros((clients, len(classes)), bool)
        for client in range(clients):
            rarest = np.lexsort((draws.random(len(classes)), holds.sum(0)))[: self.labels]
            holds[client, rarest] = True
        unused = int((~holds.any(0)).sum())
        if unused:
            warnings.warn(
                f"LabelsPerClient({self.labels}) gives {clients} clients {len(classes) - unused} "
                f"of {len(classes)} classes: training samples of the other {unused} are not used, "
                "while test data keep all classes; use more clients, or more labels for each.",
                UnusedDataWarning,
                stacklevel=2,
            )
        parts: list[list[Indices]] = [[] for _ in range(clients)]
        for label, is_holder in zip(classes, holds.T, strict=True):
            if is_holder.any():
                samples = draws.permutation(np.flatnonzero(labels == label))
                pieces = np.array_split(samples, is_holder.sum())
                holders = draws.permutation(np.flatnonzero(is_holder))
                for client, piece in zip(holders, pieces, strict=True):
                    parts[client].append(piece)
        return _sort_parts([np.concatenate(part) for part in parts], "raise labels, or " + _FEWER)


@recipe(InvalidData, PARTITIONS)
class Dirichlet:
    """Each class is divided in proportions from a symmetric Dirichlet(α) [hsu2019measuring].

    Small `alpha` gives clients few classes, large `alpha` approaches `IID`. The proportions are
    drawn again until every client has `minimum` samples, so the distribution is conditional on
    that.
    """

    name: ClassVar[str] = "dirichlet"
    alpha: Annotated[Number, Field(gt=0, le=1e6), _ALPHA]  # concentration α
    minimum: Annotated[Whole, Field(ge=1), _count_hint("samples")] = 1  # samples of each client

    def split(self, targets: torch.Tensor, clients: int, seed: int) -> list[Indices]:
        labels, draws = _check_arguments(targets, clients, seed)
        if self.minimum * clients > len(labels):
            raise InvalidData(
                f"minimum must be at most {len(labels) // clients}, as {clients} clients share "
                f"{len(labels)} samples, but is {self.minimum}; lower it, or {_FEWER}."
            )
        classes, counts = np.unique(labels, return_counts=True)
        best = np.full(clients, -1)
        for _ in range(_TRIALS):
            shares = draws.dirichlet(np.full(clients, self.alpha), len(classes))
            ends = np.rint(shares.cumsum(1) * counts[:, None]).astype(np.int64)
            ends[:, -1] = counts  # whatever rounding did, no sample is lost
            sizes = np.diff(ends, axis=1, prepend=0).sum(0)
            if sizes.min() >= self.minimum:
                pieces = []  # by class, then by client
                for label, cuts in zip(classes, ends[:, :-1], strict=True):
                    samples = draws.permutation(np.flatnonzero(labels == label))
                    pieces.append(np.split(samples, cuts))
                parts = [np.concatenate(part) for part in zip(*pieces, strict=True)]
                return _sort_parts(parts, _FEWER)
            best = max(best, sizes, key=np.min)
        raise InvalidData(
            f"Dirichlet({self.alpha}) should leave no client with fewer samples than "
            f"{self.minimum}, but in the best of {_TRIALS} draws client {int(best.argmin())} gets "
            f"{int(best.min())}; "
            f"raise alpha, {'lower minimum, ' if self.minimum > 1 else ''}or {_FEWER}."
        )


def _to_tuples(given: Iterable[Iterable[SupportsIndex]]) -> tuple[tuple[int, ...], ...]:
    try:
        return tuple(tuple(operator.index(i) for i in part) for part in given)
    except TypeError as error:
        raise InvalidData(
            f"indices must be one sequence of whole numbers for each client, but {error}; "
            "write it like [[0, 2], [1]]."
        ) from error


@recipe(InvalidData, PARTITIONS)
class Explicit:
    """Given samples of each client: `Explicit([[0, 2], [1]])`; the same for every seed.

    Args:
        indices: One list of sample indices per client.
    """

    name: ClassVar[str] = "explicit"
    indices: Annotated[
        Sequence[Sequence[int]], BeforeValidator(_to_tuples), FieldHint("a list", [[0, 1], [2]])
    ]

    def split(self, targets: torch.Tensor, clients: int, seed: int) -> list[Indices]:
        labels, _ = _check_arguments(targets, clients, seed)
        if len(self.indices) != clients:
            raise InvalidData(
                f"indices must have one list for each of {clients} clients, "
                f"but has {len(self.indices)}; add or remove lists, or change the number of "
                "clients."
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
                        f"indices must give every sample to one client at most, but sample {i} is "
                        f"given to client {owner[i]} and again to client {client}; remove one."
                    )
                owner[i] = client
        parts = [np.array(part, np.int64) for part in self.indices]
        return _sort_parts(parts, "give it samples or leave it out")


@recipe(InvalidData, PARTITIONS)
class BySpeaker:
    """One speaker per client: client i holds all windows of speaker i, for every seed."""

    name: ClassVar[str] = "by-speaker"

    def split(self, targets: torch.Tensor, clients: int, seed: int) -> list[Indices]:
        labels, _ = _check_arguments(targets, clients, seed)
        speakers = int(labels.max()) + 1
        if clients > speakers:
            raise InvalidData(
                f"clients must be at most {speakers}, the number of speakers, but is {clients}; "
                "use fewer."
            )
        return _sort_parts(
            [np.flatnonzero(labels == speaker) for speaker in range(clients)], _FEWER
        )


def _check_arguments(
    targets: torch.Tensor, clients: int, seed: int
) -> tuple[NDArray[np.integer], np.random.Generator]:
    """Check the arguments of `Partition.split`; returns the labels and the random generator."""
    labels = np.asarray(targets)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise InvalidData(
            f"targets must be one whole number for each sample, but have shape {labels.shape} and "
            f"type {labels.dtype}; pass the labels as an int64 tensor (N,)."
        )
    if isinstance(clients, bool) or not isinstance(clients, int | np.integer) or clients < 1:
        raise InvalidData(
            f"clients must be a whole number of clients from 1 on, but is {clients!r}; use 1."
        )
    if clients > len(labels):
        raise InvalidData(
            f"clients must be at most {len(labels)}, the number of samples, but is {clients}, "
            f"which leaves client {len(labels)} empty; {_FEWER}."
        )
    try:
        return labels, generator(seed, "partition")
    except InvalidInput as error:
        raise InvalidData(str(error)) from None


def _sort_parts(parts: Sequence[Indices], fix: str) -> list[Indices]:
    """The parts, each sorted; an empty one raises `InvalidData`, which ends with `fix`."""
    for client, part in enumerate(parts):
        if len(part) == 0:
            raise InvalidData(
                f"every client must get a sample, but client {client} gets none; {fix}."
            )
    return [np.sort(part).astype(np.int64) for part in parts]


def __dir__() -> list[str]:
    return __all__
