"""The data of a learning problem: one data set per client, or one that a partition divides among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from spodgt.errors import InvalidData, InvalidInput
from spodgt.problems.augment import Windows, crop_and_flip
from spodgt.problems.data import Partition
from spodgt.problems.samples import Holdings, Samples, Source, read_samples, without_replacement
from spodgt.types import Ints, Minibatches

BatchSize = int | Sequence[int] | None


@dataclass(frozen=True, eq=False)
class ClientData:
    """The data of a learning problem. A batch of runs shares the samples; only the holdings differ."""

    samples: Samples
    holdings: Holdings
    test: Samples | None
    batch_size: BatchSize  # one for all, a tuple with one per client, None for everything
    augment: bool = False
    partition: Partition | None = None  # gives the holdings of every seed; None: they are fixed

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", _checked(self.batch_size))
        if isinstance(self.batch_size, tuple) and len(self.batch_size) != len(self.holdings):
            raise InvalidInput(
                f"batch_size must be one number or {len(self.holdings)} (one per client), "
                f"got {len(self.batch_size)}; use 16."
            )
        if self.augment and self.samples.inputs.ndim != 4:
            shape = tuple(self.samples.inputs.shape[1:])
            raise InvalidInput(
                f"augment=True needs images (channels, height, width), got inputs of shape {shape}; "
                "use augment=False."
            )

    @staticmethod
    def read(
        clients: Sequence[Source], test: Source | None, batch_size: BatchSize, augment: bool
    ) -> ClientData:
        """One data set per client."""
        parts = [read_samples(each, f"client {i}") for i, each in enumerate(clients)]
        if not parts:
            raise InvalidData("clients must hold at least one dataset, got none.")
        for i, part in enumerate(parts):
            _check_alike(part, f"client {i}", parts[0])
            kinds = [each.inputs.dtype for each in (part, parts[0])]
            if (kinds[0] == torch.uint8) != (kinds[1] == torch.uint8):  # of these, only bytes are scaled
                raise InvalidData(
                    f"client {i} has inputs of {kinds[0]}, client 0 of {kinds[1]}; all must have the same."
                )
        tested = None if test is None else read_samples(test, "test")
        if tested is not None:
            _check_alike(tested, "test", parts[0])
        whole = Samples(torch.cat([p.inputs for p in parts]), torch.cat([p.targets for p in parts]))
        bounds = np.cumsum([0, *map(len, parts)])
        return ClientData(whole, Holdings(np.arange(bounds[-1]), bounds), tested, batch_size, augment)

    def draw(self, seed: int) -> ClientData:
        """The data of one run."""
        if self.partition is None:
            return self
        parts = self.partition.split(self.samples.targets.cpu(), len(self.holdings), seed)
        return replace(self, holdings=Holdings.of(parts))

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

    def minibatch(self, batches: Minibatches, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """(clients, size, …) inputs, not yet scaled, and targets of the clients `batches.rows`."""
        rows, who = batches.rows, batches[1:]
        drawn = without_replacement(*who, self.holdings.sizes[rows], size)
        chosen = torch.from_numpy(self.holdings.numbers[self.holdings.offsets[rows, None] + drawn]).to(device)
        inputs = self.samples.inputs[chosen]
        if self.augment:
            inputs = crop_and_flip(inputs, Windows.draw(*who, drawn))
        return inputs, self.samples.targets[chosen]

    def labels(self) -> Ints | None:
        """(clients, classes) how many samples of each class a client holds; None without classes."""
        targets = self.samples.targets.cpu().numpy()
        if targets.ndim != 1 or targets.dtype != np.int64:
            return None
        held = targets[self.holdings.numbers]
        owner = np.repeat(np.arange(len(self.holdings)), self.holdings.sizes)
        counts = np.zeros((len(self.holdings), max(0, int(targets.max())) + 1), np.int64)
        np.add.at(counts, (owner[held >= 0], held[held >= 0]), 1)  # those below zero are ignored by the loss
        return counts

    def check_targets(self, classes: int) -> None:
        """Say which target is the first outside 0 … classes - 1, if one is."""
        for who, part in (("train", self.samples), ("test", self.test)):
            if part is None or part.targets.ndim != 1:
                continue
            wrong = torch.nonzero((part.targets < 0) | (part.targets >= classes))
            if len(wrong):
                number = int(wrong[0])
                if who == "train" and self.partition is None:  # clients lie one after the other
                    who = f"client {int(np.searchsorted(self.holdings.offsets, number, side='right')) - 1}"
                raise InvalidData(
                    f"{who} has target {int(part.targets[number])}, but the model has {classes} outputs, so "
                    f"targets are 0 to {classes - 1}; relabel the data or give the model more outputs."
                )


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


def _check_alike(part: Samples, who: str, first: Samples) -> None:
    for what in ("inputs", "targets"):
        ours, theirs = (tuple(getattr(each, what).shape[1:]) for each in (part, first))
        if ours != theirs:
            raise InvalidData(
                f"{who} has {what} of shape {ours}, client 0 of {theirs}; all must have the same."
            )
