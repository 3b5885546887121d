"""The data of a learning problem: one data set per client, or one that a partition divides among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.utils import data as torch_data

from spodgt import rng
from spodgt.errors import InvalidData, InvalidInput
from spodgt.network.names import describe_difference, values_by_client
from spodgt.problems.augment import Windows, crop_and_flip
from spodgt.problems.data import Partition
from spodgt.problems.holdout import FRACTION, Holdout, check_fraction, hold_out
from spodgt.problems.samples import Holdings, Loose, Samples, without_replacement
from spodgt.problems.sources import Clients, Reader, Source, Stack
from spodgt.problems.trees import Tree, leaves
from spodgt.types import Floats, Ints, Minibatches

BatchSize = int | Sequence[int] | Mapping[str, int] | None
ClientWeights = str | Sequence[float] | Mapping[str, float]  # "equal", "samples", or numbers
EQUAL = "equal"
SAMPLES = "samples"
WEIGHTINGS = (EQUAL, SAMPLES)
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
    names: tuple[str, ...] = ()  # of the clients; empty where they are numbered
    tests: Ints | None = None  # (clients, 2) the first of client i's own test samples, and one past the last
    test_samples: int | None = None  # samples in one evaluation at most
    validation: Samples | Loose | None = None  # what models are chosen by
    validations: Ints | None = None  # as `tests`, of the validation data
    holdout: Holdout | None = None  # `draw` holds samples out of training; None: it does not
    client_weights: ClientWeights = EQUAL  # of the clients' losses in the objective; numbers as a tuple
    fixed_scales: Floats | None = None  # (clients,) `loss_scales` where `client_weights` does not tell them

    def __post_init__(self) -> None:
        labels = self.names or tuple(map(str, range(len(self.holdings))))
        object.__setattr__(self, "batch_size", _checked(self.batch_size, labels))
        self._check_weights(labels)
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
        validation: Source | Clients | float | None = None,
        client_weights: ClientWeights = EQUAL,
    ) -> ClientData:
        """One data set per client; test and validation data for all, or one data set per client, too."""
        names, sources = _listed(clients)
        titles = [client_title(names, client) for client in range(len(sources))]
        parts = [reader.read(each, title) for each, title in zip(sources, titles, strict=True)]
        samples = _together(parts, titles, reader)
        bounds = np.cumsum([0, *map(len, parts)])
        tested, tests = _evaluated(test, "test", names, sources, parts[0], reader)
        holdout = None
        if isinstance(validation, float | int):
            holdout = Holdout(check_fraction(validation), by_client=tests is not None)
            validation = None
        validated, validations = _evaluated(validation, "validation", names, sources, parts[0], reader)
        return ClientData(
            samples,
            Holdings(np.arange(bounds[-1]), bounds),
            tested,
            batch_size,
            augment,
            names=names,
            tests=tests,
            test_samples=test_samples,
            validation=validated,
            validations=validations,
            holdout=holdout,
            client_weights=client_weights,
        )

    def who(self, client: int) -> str:
        """The client in an error message."""
        return client_title(self.names, client)

    def reordered(self, order: Ints) -> ClientData:
        """The same clients in another order: client order[i] becomes client i."""
        holdings = Holdings.of([self.holdings[client] for client in order])
        changes: dict[str, object] = {"holdings": holdings}
        if self.names:
            changes["names"] = tuple(self.names[client] for client in order)
        for key in ("batch_size", "client_weights"):
            values = getattr(self, key)
            if isinstance(values, tuple):
                changes[key] = tuple(values[client] for client in order)
        for key in ("tests", "validations", "fixed_scales"):
            rows = getattr(self, key)
            if rows is not None:
                changes[key] = rows[order]
        return replace(self, **changes)  # type: ignore[arg-type]

    # --- the objective Σ w_i F_i / Σ w_i ----------------------------------------------------------------
    def _check_weights(self, labels: Sequence[str]) -> None:
        """Turn numbers into a tuple, one per client."""
        given = self.client_weights
        if isinstance(given, str):
            if given not in WEIGHTINGS:
                raise InvalidInput(
                    f"client_weights={given!r} is not known; use 'equal', 'samples', or numbers above 0."
                )
            return
        if isinstance(given, Mapping):
            if len(labels) == 1 and self.names and len(given) > 1 and self.names[0] in map(str, given):
                # a peer's problem: its only client is one of those that the weights name
                weights = {str(name): _weight(weight) for name, weight in given.items()}
                scale = len(weights) * weights[self.names[0]] / sum(weights.values())
                object.__setattr__(self, "client_weights", (weights[self.names[0]],))
                object.__setattr__(self, "fixed_scales", np.array([scale]))
                return
            given = values_by_client(given, labels, "client_weights")
        if not isinstance(given, Sequence | np.ndarray) or len(given) != len(labels):
            got = f"{len(given)} numbers" if isinstance(given, Sequence | np.ndarray) else repr(given)
            raise InvalidInput(
                f"client_weights must be 'equal', 'samples' or {len(labels)} numbers, one per client, "
                f"got {got}; use 'equal'."
            )
        object.__setattr__(self, "client_weights", tuple(_weight(weight) for weight in given))

    @cached_property
    def loss_scales(self) -> Floats | None:
        """(clients,) n w_i / Σ w: the factors of the clients' losses, whose plain mean is the objective.

        None where all are one.
        """
        if self.fixed_scales is not None:
            scales = self.fixed_scales
        elif self.client_weights == EQUAL:
            return None
        else:
            sizes = self.holdings.sizes
            weights = np.asarray(sizes if self.client_weights == SAMPLES else self.client_weights, np.float64)
            scales = len(weights) * weights / weights.sum()
        return None if (scales == 1).all() else scales

    def draw(self, seed: int) -> ClientData:
        """The data of one run."""
        drawn = self
        if self.partition is not None:
            parts = self.partition.split(self.stacked.targets.cpu(), len(self.holdings), seed)
            drawn = replace(self, holdings=Holdings.of(parts))
        if self.holdout is None:
            return drawn
        held = hold_out(self.samples, drawn.holdings, self.holdout, seed)
        rest = replace(drawn, holdings=held.training, partition=None, holdout=None)
        if self.holdout.replaces_test:
            return replace(rest, test=held.samples, tests=held.ranges)
        return replace(rest, validation=held.samples, validations=held.ranges)

    @property
    def has_validation(self) -> bool:
        """Whether there are validation data, or will be once a seed is drawn."""
        splits_off = self.holdout is not None and not self.holdout.replaces_test
        return self.validation is not None or splits_off

    def on_validation(self) -> ClientData:
        """The same data with the validation data in the place of the test data.

        Without validation data, a part of the training data is held out for it when a seed is drawn.
        """
        if self.validation is not None:
            return replace(
                self, test=self.validation, tests=self.validations, validation=None, validations=None
            )
        fraction = FRACTION if self.holdout is None else self.holdout.fraction
        most = None if self.test is None else len(self.test)
        holdout = Holdout(fraction, self.tests is not None, most, replaces_test=True)
        return replace(self, test=None, tests=None, holdout=holdout)

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
        scales = None
        if any(run.loss_scales is not None for run in runs):
            ones = [np.ones(len(run.holdings)) for run in runs]
            parts = [
                one if run.loss_scales is None else run.loss_scales
                for run, one in zip(runs, ones, strict=True)
            ]
            scales = np.concatenate(parts)
        numbers = np.concatenate([run.holdings.numbers for run in runs])
        offsets = np.r_[0, np.cumsum(np.concatenate([run.holdings.sizes for run in runs]))]
        return replace(
            self,
            holdings=Holdings(numbers, offsets),
            batch_size=sizes,
            names=(),
            client_weights=EQUAL,
            fixed_scales=scales,
        )

    def to(self, device: torch.device) -> ClientData:
        return replace(
            self,
            samples=self.samples.to(device),
            test=self.test and self.test.to(device),
            validation=self.validation and self.validation.to(device),
        )

    def batches(self, rows: Ints) -> Ints:
        """How many samples each of the clients draws: fewer than a batch where it holds fewer."""
        sizes, wanted = self.holdings.sizes[rows], self.batch_size
        if wanted is None:
            return sizes
        assert not isinstance(wanted, Mapping)  # it was put into the order of the clients
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
        return self.samples.scaled(inputs, dtype), Samples.targets_as(self.samples.targets[chosen], dtype)

    def refuse_nonfinite(self, batches: Minibatches, size: int) -> None:
        """Name the first sample of mini-batches that are read when needed that has a NaN or infinity."""
        assert isinstance(self.samples, Loose)
        _, numbers = self.drawn(batches, size)
        seeds = rng.words(batches.keys, batches.k, batches.places, _READS) >> np.uint64(1)
        for drawn, seed in zip(numbers, seeds.tolist(), strict=True):
            self.samples.refuse_nonfinite(drawn, seed)

    def with_raw_bytes(self) -> ClientData:
        """The same data, uint8 inputs as they are."""
        test = None if self.test is None else self.test.with_raw_bytes()
        validation = None if self.validation is None else self.validation.with_raw_bytes()
        return replace(self, samples=self.samples.with_raw_bytes(), test=test, validation=validation)

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
            first, last = (int(bound) for bound in self.tests[client])
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

    def test_numbers(self, client: int) -> Ints:
        """The numbers of the test samples of this client; -1: of all."""
        assert self.test is not None
        if client >= 0 and self.tests is not None:
            first, past_last = self.tests[client]
            return np.arange(first, past_last)
        return np.arange(len(self.test))

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
        for part in (self.samples, self.test, self.validation):
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
                    who = f"test of {self.who(int(np.searchsorted(self.tests[:, 1], number, side='right')))}"
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


def client_title(names: Sequence[str], client: int) -> str:
    """A client in an error message, by name where there are names."""
    return f"client {names[client]!r}" if names else f"client {client}"


def _listed(clients: object) -> tuple[tuple[str, ...], list[object]]:
    """The names of the clients (none where they are numbered) and their data sets.

    Keys 0 … clients - 1 are the numbers of the clients, as the nodes of a networkx graph are.
    """
    names: tuple[str, ...] = ()
    if isinstance(clients, Mapping):
        by_name = {str(name): source for name, source in clients.items()}
        if len(by_name) < len(clients):
            raise InvalidData(
                f"clients must have names that differ as text, got {list(clients)!r}; rename one."
            )
        names = tuple(by_name)
        numbers = tuple(map(str, range(len(by_name))))
        if set(names) == set(numbers):
            by_name = {number: by_name[number] for number in numbers}
            names = ()
        sources = list(by_name.values())
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
    if not sources:
        raise InvalidData("clients must hold at least one dataset, got none.")
    return names, sources


def _evaluated(
    given: object,
    what: str,
    names: Sequence[str],
    sources: Sequence[object],
    first: Samples | Loose,
    reader: Reader,
) -> tuple[Samples | Loose | None, Ints | None]:
    """Test or validation data; and (clients, 2) the range of each client's own, if each has its own."""
    if given is None:
        return None, None
    titles = [client_title(names, client) for client in range(len(sources))]
    own = _one_each(given, what, names, sources, first)
    if own is None:
        samples = reader.read(given, what)
        _check_alike([first, samples], [titles[0], what])
        if isinstance(samples, Samples):  # as training data: later changes by the caller change nothing
            samples = Samples(samples.inputs.clone(), samples.targets.clone())
        return samples, None
    titles_here = [f"{what} of {title}" for title in titles]
    parts = [reader.read(source, title) for source, title in zip(own, titles_here, strict=True)]
    _check_alike([first, *parts], [titles[0], *titles_here])
    bounds = np.cumsum([0, *map(len, parts)])
    return _together(parts, titles_here, reader), np.stack([bounds[:-1], bounds[1:]], 1)


def _one_each(
    given: object, what: str, names: Sequence[str], sources: Sequence[object], first: Samples | Loose
) -> list[object] | None:
    """The test or validation data of each client, or None where `given` is one data set for all.

    A dict is by client unless it has the form of a client's own data set. A list is by client if its
    entries have the form of data sets and not of samples.
    """
    if isinstance(given, Mapping):
        return _tests_by_name(given, what, names, sources)
    if not isinstance(given, list) or not given:
        return None
    if not all(_is_source(each, sources[0], first) for each in given):
        return None
    if len(given) != len(sources):
        raise InvalidData(
            f"{what} must be one data set or {len(sources)} (one per client), got {len(given)}; "
            "give one data set."
        )
    return list(given)


def _tests_by_name(
    given: Mapping[object, object], what: str, names: Sequence[str], sources: Sequence[object]
) -> list[object] | None:
    labels = names or tuple(map(str, range(len(sources))))
    by_name = {str(name): source for name, source in given.items()}
    if set(by_name) == set(labels):
        return [by_name[label] for label in labels]
    same_form = isinstance(sources[0], Mapping) and set(sources[0]) == set(given)
    plain = all(isinstance(value, Tensor | np.ndarray) for value in given.values())
    shares_names = bool(set(by_name) & set(labels))
    if same_form or (not shares_names and (plain or not all(map(_holds_samples, given.values())))):
        return None
    difference = describe_difference(what, by_name, "clients", labels)
    raise InvalidData(
        f"{what} must have one data set for each client, by name, but {difference}; use the names of clients."
    )


def _holds_samples(value: object) -> bool:
    """Whether a value has the form of a data set: a torch data set, a pair, a list or a dict of arrays."""
    return isinstance(value, torch_data.Dataset | tuple | list | Mapping)


def _is_source(value: object, source: object, first: Samples | Loose) -> bool:
    """Whether an entry of a list is a data set, as the clients' are, and not a sample.

    Args:
        value: the entry.
        source: the data set of the first client, as it was given.
        first: the same as it was read.
    """
    if isinstance(value, torch_data.Dataset):
        return True
    if isinstance(value, tuple | list) and all(isinstance(each, Tensor | np.ndarray) for each in value):
        if len(value) != 2 or not all(each.ndim for each in value) or len(value[0]) != len(value[1]):
            return False
        if isinstance(first, Samples):  # a data set has one axis more than a sample
            return bool(value[0].ndim != first.inputs.ndim - 1)
        return (
            isinstance(source, tuple | list)
            and len(source) == 2
            and isinstance(source[1], Tensor | np.ndarray)
        )
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


def _weight(weight: object) -> float:
    is_number = isinstance(weight, int | float | np.number) and not isinstance(weight, bool)
    if not is_number or not 0 < weight < float("inf"):  # type: ignore[operator]
        raise InvalidInput(f"client_weights must be numbers above 0, got {weight!r}; use 1.0.")
    return float(weight)  # type: ignore[arg-type]


def _checked(given: object, labels: Sequence[str]) -> BatchSize:
    """A number of at least 1, a tuple of them, or None; a dict is by client."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        given = values_by_client(given, labels, "batch_size")
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
