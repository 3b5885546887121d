"""The data of a learning problem: one data set per client, or one that a partition divides among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.utils import data as torch_data

from spodgt import rng
from spodgt.errors import InvalidData, InvalidInput
from spodgt.problems.augment import Windows, crop_and_flip
from spodgt.problems.data import Partition
from spodgt.problems.samples import Holdings, Loose, Samples, without_replacement
from spodgt.problems.sources import Clients, Reader, Source, Stack
from spodgt.problems.trees import Tree, leaves
from spodgt.types import Ints, Minibatches

BatchSize = int | Sequence[int] | None
Batch = tuple[Tree, Tree]  # inputs and targets; or the batch and None, where samples are no such pairs
_READS = 2**32 + 2  # the stream of random transforms, beside those of dropout and augmentation


@dataclass(frozen=True, eq=False)
class ClientData:
    """The data of a learning problem. A batch of runs shares the samples; only the holdings differ."""

    samples: Samples | Loose
    holdings: Holdings
    test: Samples | Loose | None
    batch_size: BatchSize  # one for all, a tuple with one per client, None for everything
    augment: bool = False
    partition: Partition | None = None  # gives the holdings of every seed; None: they are fixed
    names: tuple[str, ...] = ()  # of the clients, for messages; none where they are numbered
    tests: Ints | None = None  # (clients + 1,) client i's own test data are tests[i] … tests[i + 1] - 1
    test_samples: int | None = None  # samples in one evaluation at most

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", _checked(self.batch_size))
        if isinstance(self.batch_size, tuple) and len(self.batch_size) != len(self.holdings):
            raise InvalidInput(
                f"batch_size must be one number or {len(self.holdings)} (one per client), "
                f"got {len(self.batch_size)}; use 16."
            )
        shape = self.samples.inputs.shape[1:] if isinstance(self.samples, Samples) else ()
        if self.augment and len(shape) != 3:
            raise InvalidInput(
                f"augment=True needs images (channels, height, width), got inputs of shape {tuple(shape)}; "
                "use augment=False."
            )
        check_test_samples(self.test_samples)

    @staticmethod
    def read(
        clients: Clients,
        test: Source | Clients | None,
        reader: Reader,
        *,
        batch_size: BatchSize,
        augment: bool,
        test_samples: int | None,
    ) -> ClientData:
        """One data set per client; test data for all, or one data set per client, too."""
        names, sources = _listed(clients)
        parts = [reader.read(each, name) for each, name in zip(sources, names, strict=True)]
        samples = _together(parts, names, reader)
        bounds = np.cumsum([0, *map(len, parts)])
        tests = None
        if test is not None and (own := _one_each(test, clients)) is not None:
            titles = [f"test of {name}" for name in names]
            each_test = [reader.read(each, title) for each, title in zip(own, titles, strict=True)]
            _check_alike([parts[0], *each_test], [names[0], *titles])
            tests = np.cumsum([0, *map(len, each_test)])
            tested: Samples | Loose | None = _together(each_test, titles, reader)
        else:
            tested = None if test is None else reader.read(test, "test")
            _check_alike([parts[0], tested] if tested is not None else [], [names[0], "test"])
        return ClientData(
            samples,
            Holdings(np.arange(bounds[-1]), bounds),
            tested,
            batch_size,
            augment,
            names=tuple(names) if isinstance(clients, Mapping) else (),
            tests=tests,
            test_samples=test_samples,
        )

    def who(self, client: int) -> str:
        """How messages call a client."""
        return self.names[client] if self.names else f"client {client}"

    def draw(self, seed: int) -> ClientData:
        """The data of one run."""
        if self.partition is None:
            return self
        parts = self.partition.split(self.stacked.targets.cpu(), len(self.holdings), seed)
        return replace(self, holdings=Holdings.of(parts))

    @property
    def stacked(self) -> Samples:
        """All samples as two tensors; refused where they are read one by one."""
        if isinstance(self.samples, Samples):
            return self.samples
        raise InvalidInput(
            "this needs the samples of all clients in two tensors, but they are read one by one; give "
            "pairs of tensors, or cache=True for data sets of samples of equal shape."
        )

    def join(self, others: Sequence[ClientData]) -> ClientData:
        """The clients of several runs side by side, these first."""
        if any(other.samples is not self.samples for other in others):
            raise InvalidInput("runs of one batch must share their data; train them in separate calls.")
        runs, sizes = [self, *others], self.batch_size
        if any(isinstance(run.batch_size, tuple) or run.batch_size != sizes for run in runs):
            sizes = tuple(int(n) for run in runs for n in run.batches(np.arange(len(run.holdings))))
        numbers = np.concatenate([run.holdings.numbers for run in runs])
        offsets = np.r_[0, np.cumsum(np.concatenate([run.holdings.sizes for run in runs]))]
        return replace(self, holdings=Holdings(numbers, offsets), batch_size=sizes)

    def to(self, device: torch.device) -> ClientData:
        return replace(self, samples=self.samples.to(device), test=self.test and self.test.to(device))

    def batches(self, rows: Ints) -> Ints:
        """How many samples each of the clients draws: fewer than a batch where it holds fewer."""
        sizes, wanted = self.holdings.sizes[rows], self.batch_size
        if wanted is None:
            return sizes
        return np.minimum(sizes, np.asarray(wanted)[rows] if isinstance(wanted, tuple) else wanted)

    def groups(self, rows: Ints) -> Iterator[tuple[int, Ints | slice]]:
        """Batch sizes, and which of `rows` draw as many: one group, unless some client holds less."""
        batch = self.batches(rows)
        for size in np.unique(batch):
            same = batch == size
            yield int(size), slice(None) if same.all() else np.flatnonzero(same)

    def drawn(self, batches: Minibatches, size: int) -> tuple[Ints, Ints]:
        """(clients, size) which of its own samples each of the clients draws, and their numbers among all."""
        rows = batches.rows
        drawn = without_replacement(*batches[1:], self.holdings.sizes[rows], size)
        return drawn, self.holdings.numbers[self.holdings.offsets[rows, None] + drawn]

    def minibatch(
        self, batches: Minibatches, size: int, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor | list[Tree], Tensor | list[Tree]]:
        """Inputs and targets of the clients `batches.rows`: (clients, size, …), or lists, one for each."""
        drawn, numbers = self.drawn(batches, size)
        if isinstance(self.samples, Loose):
            seeds = (rng.words(batches.keys, batches.k, batches.places, _READS) >> np.uint64(1)).tolist()
            read = [self.samples.read(n, s, device, dtype) for n, s in zip(numbers, seeds, strict=True)]
            return [inputs for inputs, _ in read], [targets for _, targets in read]
        chosen = torch.from_numpy(numbers).to(device)
        inputs = self.samples.inputs[chosen]
        if self.augment:
            inputs = crop_and_flip(inputs, Windows.draw(*batches[1:], drawn))
        return Samples.scaled(inputs, dtype), Samples.targets_as(self.samples.targets[chosen], dtype)

    def some(self, numbers: Ints, device: torch.device, dtype: torch.dtype) -> Batch:
        """A copy of the training samples with these numbers as one batch, read without chance."""
        if isinstance(self.samples, Loose):
            return self.samples.read(numbers, 0, device, dtype)
        return self.samples.take(torch.from_numpy(numbers).to(device), dtype)

    def pieces(
        self, client: int, block: int, device: torch.device, dtype: torch.dtype
    ) -> Iterator[tuple[int, Tree, Tree]]:
        """What a model of this client is tested on (-1: all test data), block by block, with its size."""
        assert self.test is not None
        first, last = 0, len(self.test)
        if client >= 0 and self.tests is not None:
            first, last = (int(bound) for bound in self.tests[client : client + 2])
        count = last - first if self.test_samples is None else min(self.test_samples, last - first)
        for start in range(0, count, block):
            places = np.arange(start, min(start + block, count))
            if isinstance(self.test, Samples) and count == last - first:  # contiguous: nothing is copied
                rows: Tensor | slice = slice(first + start, first + start + len(places))
            else:  # evenly spread, because the first ones may all be of one class
                numbers = first + places * (last - first) // count
                rows = torch.from_numpy(numbers)
            if isinstance(self.test, Loose):
                yield len(places), *self.test.read(numbers, 0, device, dtype)
            else:
                inputs = self.test.floats(rows, dtype)
                yield len(places), inputs, Samples.targets_as(self.test.targets[rows], dtype)

    def labels(self) -> Ints | None:
        """(clients, classes) how many samples of each class a client holds; None without classes."""
        if not isinstance(self.samples, Samples):
            return None
        targets = self.samples.targets.cpu().numpy()
        if targets.ndim != 1 or targets.dtype != np.int64:
            return None
        held = targets[self.holdings.numbers]
        owner = np.repeat(np.arange(len(self.holdings)), self.holdings.sizes)
        counts = np.zeros((len(self.holdings), max(0, int(targets.max())) + 1), np.int64)
        np.add.at(counts, (owner[held >= 0], held[held >= 0]), 1)  # those below zero are ignored by the loss
        return counts

    def arrays(self) -> list[Tensor]:
        """Numbers that tell the data from others: all of them, or the first sample of each client."""
        found: list[Tensor] = []
        for part in (self.samples, self.test):
            if isinstance(part, Samples):
                found += [part.inputs, part.targets]
            elif part is not None:
                firsts = [
                    part.read(np.array([at]), 0, torch.device("cpu"), torch.float32)
                    for at in part.starts[:-1]
                ]
                found += [leaf for leaf in leaves(firsts) if isinstance(leaf, Tensor)]
        return found

    def strays(self, classes: int, ignored: int | None) -> tuple[str, int, int] | None:
        """The first target outside 0 … classes - 1 that is not `ignored`: whose, its number, its value."""
        for who, part in (("train", self.samples), ("test", self.test)):
            if not isinstance(part, Samples) or part.targets.is_floating_point():
                continue
            wrong = (part.targets < 0) | (part.targets >= classes)
            if ignored is not None:
                wrong &= part.targets != ignored
            if wrong.any():
                place = torch.nonzero(wrong)[0]
                number = int(place[0])
                if who == "train" and self.partition is None:  # clients lie one after the other
                    who = self.who(int(np.searchsorted(self.holdings.offsets, number, side="right")) - 1)
                elif who == "test" and self.tests is not None:
                    who = f"test of {self.who(int(np.searchsorted(self.tests, number, side='right')) - 1)}"
                return who, number, int(part.targets[tuple(place)])
        return None

    def has_target(self, value: int) -> bool:
        """Some sample in memory has this target."""
        parts = [part for part in (self.samples, self.test) if isinstance(part, Samples)]
        return any(bool((part.targets == value).any()) for part in parts)


def check_test_samples(most: object) -> None:
    """A whole number of at least 1, or None."""
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        raise InvalidInput(
            f"test_samples must be a whole number of at least 1 or None, got {most!r}; use None for all."
        )


def _listed(clients: object) -> tuple[list[str], list[object]]:
    """The names and data sets of the clients."""
    if isinstance(clients, Mapping):
        names, sources = [f"client {name!r}" for name in clients], list(clients.values())
    else:
        # A single data set, or a pair of tensors, is a likely mistake; a tuple of clients is fine.
        if isinstance(clients, torch_data.Dataset | str | bytes | Tensor | np.ndarray | type):
            clients = None
        try:
            sources = list(clients)  # type: ignore[call-overload]
        except TypeError:
            raise InvalidData(
                "clients must be a list or dict with one dataset per client; "
                "use [(inputs, targets), …], or spodgt.Learning.partitioned for one data set."
            ) from None
        names = [f"client {i}" for i in range(len(sources))]
    if not sources:
        raise InvalidData("clients must hold at least one dataset, got none.")
    return names, sources


def _one_each(test: object, clients: Clients) -> list[object] | None:
    """The test data of each client, if that is what was given."""
    if isinstance(test, Mapping) and isinstance(clients, Mapping) and set(test) == set(clients):
        return [test[name] for name in clients]
    if not isinstance(test, list) or not test or not all(map(_is_source, test)):
        return None
    if len(test) != len(clients):
        raise InvalidData(
            f"test must be one data set or {len(clients)} (one per client), got {len(test)}; "
            "give one data set."
        )
    return list(test)


def _is_source(value: object) -> bool:
    """A data set, and not a sample."""
    if isinstance(value, torch_data.Dataset):
        return True
    if isinstance(value, tuple | list) and all(isinstance(each, Tensor | np.ndarray) for each in value):
        return len(value) == 2 and all(each.ndim for each in value) and len(value[0]) == len(value[1])
    # a list of samples; a tuple is taken as one sample, whose input may have parts
    return (
        isinstance(value, list) and bool(value) and all(isinstance(each, tuple | Mapping) for each in value)
    )


def _together(parts: list[Samples | Loose], names: list[str], reader: Reader) -> Samples | Loose:
    """The samples of all clients, one client after the other."""
    if all(isinstance(part, Samples) for part in parts):
        _check_alike(parts, names)
        plain = [part for part in parts if isinstance(part, Samples)]
        return Samples(torch.cat([p.inputs for p in plain]), torch.cat([p.targets for p in plain]))
    opened = [
        part.parts[0] if isinstance(part, Loose) else Stack((part.inputs, part.targets)) for part in parts
    ]
    return reader.loose(opened, names)


def _checked(given: object) -> BatchSize:
    """A number of at least 1, a tuple of them, or None."""
    if given is None:
        return None
    if isinstance(given, Sequence | np.ndarray) and not isinstance(given, str):
        return tuple(_positive(size) for size in given)
    return _positive(given)


def _positive(size: object) -> int:
    if not isinstance(size, int | np.integer) or isinstance(size, bool) or size < 1:
        raise InvalidInput(f"batch_size must be a whole number of at least 1 or None, got {size!r}; use 16.")
    return int(size)


def _check_alike(parts: Sequence[Samples | Loose], names: Sequence[str]) -> None:
    """Samples in memory must have the shapes and kinds of the first client's."""
    if not all(isinstance(part, Samples) for part in parts):
        return
    for part, who in zip(parts, names, strict=False):
        for what in ("inputs", "targets"):
            ours, theirs = (getattr(each, what) for each in (part, parts[0]))
            if ours.shape[1:] != theirs.shape[1:]:
                raise InvalidData(
                    f"{who} has {what} of shape {tuple(ours.shape[1:])}, {names[0]} of "
                    f"{tuple(theirs.shape[1:])}; all must have the same."
                )
            # of inputs, only bytes are scaled; of targets, whole numbers are classes
            kinds = [
                t.dtype == torch.uint8 if what == "inputs" else t.is_floating_point() for t in (ours, theirs)
            ]
            if kinds[0] != kinds[1]:
                raise InvalidData(
                    f"{who} has {what} of {ours.dtype}, {names[0]} of {theirs.dtype}; all must have the same."
                )
