"""Reads the data sets that a user gives for clients, tests and validation into `ClientData`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.utils import data as torch_data

from spodgt.errors import InvalidData
from spodgt.network.names import describe_difference
from spodgt.problems.data.client_data import BatchSize, ClientData, client_label
from spodgt.problems.data.client_weights import EQUAL, ClientWeights
from spodgt.problems.data.evaluation_data import EvaluationData, consecutive_ranges
from spodgt.problems.data.holdout import Holdout, check_fraction
from spodgt.problems.data.readers import Array, Clients, Reader, Source, Stack, is_array
from spodgt.problems.data.samples import AnySamples, ClientIndices, LazySamples, Readable, Samples


def read_client_data(
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
    """Read one data set per client, and test and validation data.

    Args:
        clients: one data set per client, in a sequence or in a mapping by name.
        test: data for all clients, or one data set per client; None: no evaluation.
        reader: how data sets are read.
        batch_size: as for `ClientData`.
        augment: as for `ClientData`.
        test_samples: as for `ClientData`.
        validation: data as `test`, or a fraction of the samples of each client.
        client_weights: as for `ClientData`.

    Raises:
        InvalidData: if a data set has an unknown form or the data sets do not fit together.
    """
    sources = _ClientSources.of(clients, reader)
    test_data = sources.read_evaluation_data(test, "test")
    holdout = None
    if isinstance(validation, float | int):
        by_client = test_data is not None and test_data.ranges is not None
        holdout = Holdout(check_fraction(validation), by_client=by_client)
        validation = None
    sizes = [len(part) for part in sources.samples]
    bounds = np.cumsum([0, *sizes])
    return ClientData(
        _concatenate(sources.samples, sources.labels, reader),
        ClientIndices(np.arange(bounds[-1]), bounds),
        test_data,
        batch_size,
        augment,
        names=sources.names,
        test_samples=test_samples,
        validation=sources.read_evaluation_data(validation, "validation"),
        holdout=holdout,
        client_weights=client_weights,
    )


@dataclass(frozen=True, eq=False)
class _ClientSources:
    """The training data of the clients, as given and as read."""

    names: tuple[str, ...]  # empty if clients are numbered
    labels: list[str]  # of the clients in error messages
    given: list[object]  # data sets as the user gave them
    samples: list[AnySamples]  # the same, read
    reader: Reader

    @staticmethod
    def of(clients: object, reader: Reader) -> _ClientSources:
        if isinstance(clients, Mapping):
            names, given = _sources_by_name(clients)
        else:
            names = ()
            given = _source_list(clients)
        if not given:
            raise InvalidData("clients must hold at least one dataset, got none.")
        labels = [client_label(names, client) for client in range(len(given))]
        samples = []
        for source, label in zip(given, labels, strict=True):
            samples.append(reader.read(source, label))
        _check_alike(samples, labels)
        return _ClientSources(names, labels, given, samples, reader)

    def read_evaluation_data(self, given: object, key: str) -> EvaluationData | None:
        """Read test or validation data.

        Args:
            given: one data set for all clients, one per client, or None.
            key: "test" or "validation", for error messages.
        """
        if given is None:
            return None
        sources = self._sources_per_client(given, key)
        if sources is None:
            samples = self.reader.read(given, key)
            _check_alike([self.samples[0], samples], [self.labels[0], key])
            if isinstance(samples, Samples):  # a copy: the caller may change the tensors later
                samples = Samples(samples.inputs.clone(), samples.targets.clone())
            return EvaluationData(samples)
        labels = [f"{key} of {label}" for label in self.labels]
        parts = []
        for source, label in zip(sources, labels, strict=True):
            parts.append(self.reader.read(source, label))
        _check_alike([self.samples[0], *parts], [self.labels[0], *labels])
        ranges = consecutive_ranges([len(part) for part in parts])
        return EvaluationData(_concatenate(parts, labels, self.reader), ranges)

    def _sources_per_client(self, given: object, key: str) -> list[object] | None:
        """The data set of each client, or None if `given` is one data set for all clients.

        A mapping is by client unless it has the form of the data set of a client. A list is by
        client if its entries have the form of data sets and not of samples.
        """
        if isinstance(given, Mapping):
            return self._sources_by_client_name(given, key)
        if not isinstance(given, list) or not given:
            return None
        if not all(self._is_dataset(entry) for entry in given):
            return None
        if len(given) != len(self.given):
            raise InvalidData(
                f"{key} must be one data set or {len(self.given)} (one per client), "
                f"got {len(given)}; give one data set."
            )
        return list(given)

    def _sources_by_client_name(
        self, given: Mapping[object, object], key: str
    ) -> list[object] | None:
        labels = self.names or tuple(map(str, range(len(self.given))))
        by_name = {str(name): source for name, source in given.items()}
        if set(by_name) == set(labels):
            return [by_name[label] for label in labels]
        first = self.given[0]
        if isinstance(first, Mapping) and set(first) == set(given):
            return None
        has_client_names = bool(set(by_name) & set(labels))
        if not has_client_names and not _is_mapping_of_datasets(given):
            return None
        difference = describe_difference(key, by_name, "clients", labels)
        raise InvalidData(
            f"{key} must have one data set for each client, by name, but {difference}; "
            "use the names of clients."
        )

    def _is_dataset(self, entry: object) -> bool:
        """Whether an entry of a list is a data set like those of the clients, and not a sample."""
        if isinstance(entry, torch_data.Dataset):
            return True
        if isinstance(entry, tuple | list) and all(is_array(part) for part in entry):
            return self._is_inputs_and_targets(entry)
        # A list of samples. A tuple is one sample, with an input that may have several parts.
        if not isinstance(entry, list) or not entry:
            return False
        return all(isinstance(sample, tuple | Mapping) for sample in entry)

    def _is_inputs_and_targets(self, arrays: Sequence[object]) -> bool:
        """Whether arrays are the inputs and targets of a data set, and not those of one sample."""
        if len(arrays) != 2:
            return False
        inputs, targets = cast(Sequence[Array], arrays)
        if inputs.ndim == 0 or targets.ndim == 0 or len(inputs) != len(targets):
            return False
        first = self.samples[0]
        if isinstance(first, Samples):  # a data set has one axis more than a sample
            return inputs.ndim != first.inputs.ndim - 1
        given = self.given[0]
        return isinstance(given, tuple | list) and len(given) == 2 and is_array(given[1])


def _is_mapping_of_datasets(given: Mapping[object, object]) -> bool:
    """Whether the values have the form of data sets; a mapping of arrays is one data set."""
    if all(is_array(value) for value in given.values()):
        return False
    return all(_has_dataset_form(value) for value in given.values())


def _sources_by_name(clients: Mapping[object, object]) -> tuple[tuple[str, ...], list[object]]:
    """Names and data sets of the clients.

    Keys 0 … clients - 1 are numbers of clients, as the nodes of a networkx graph; then there are
    no names.
    """
    by_name = {str(name): source for name, source in clients.items()}
    if len(by_name) < len(clients):
        raise InvalidData(
            f"clients must have names that differ as text, got {list(clients)!r}; rename one."
        )
    numbers = [str(number) for number in range(len(by_name))]
    if set(by_name) == set(numbers):
        return (), [by_name[number] for number in numbers]
    return tuple(by_name), list(by_name.values())


def _source_list(clients: object) -> list[object]:
    # A single data set or tensor is a likely mistake.
    if not isinstance(clients, torch_data.Dataset | str | bytes | Tensor | np.ndarray | type):
        try:
            return list(clients)  # type: ignore[call-overload, no-any-return]
        except TypeError:
            pass
    raise InvalidData(
        "clients must be a list or dict with one dataset per client; "
        "use [(inputs, targets), …], or spodgt.Learning.partitioned for one data set."
    )


def _has_dataset_form(value: object) -> bool:
    """Whether a value may be a data set: a torch Dataset, a pair, a list or a mapping."""
    return isinstance(value, torch_data.Dataset | tuple | list | Mapping)


def _concatenate(parts: list[AnySamples], labels: list[str], reader: Reader) -> AnySamples:
    """The samples of all clients, one client after the other."""
    stacked = [part for part in parts if isinstance(part, Samples)]
    if len(stacked) == len(parts):
        inputs = torch.cat([part.inputs for part in stacked])
        targets = torch.cat([part.targets for part in stacked])
        return Samples(inputs, targets)
    datasets: list[Readable] = []
    for part in parts:
        if isinstance(part, LazySamples):
            datasets += part.datasets.datasets
        else:
            datasets.append(Stack((part.inputs, part.targets)))
    return reader.lazy_samples(datasets, labels)


def _check_alike(parts: Sequence[AnySamples], labels: Sequence[str]) -> None:
    """Check that samples in memory have the shapes and types of the first client.

    Raises:
        InvalidData: with the first data set that differs.
    """
    stacked = [part for part in parts if isinstance(part, Samples)]
    if len(stacked) < len(parts):
        return
    for part, label in zip(stacked, labels, strict=True):
        for key, is_alike in (("inputs", _are_both_bytes), ("targets", _are_both_floats)):
            tensor = getattr(part, key)
            first = getattr(stacked[0], key)
            if tensor.shape[1:] != first.shape[1:]:
                raise InvalidData(
                    f"{label} has {key} of shape {tuple(tensor.shape[1:])}, {labels[0]} of "
                    f"{tuple(first.shape[1:])}; all must have the same."
                )
            if not is_alike(tensor, first):
                raise InvalidData(
                    f"{label} has {key} of {tensor.dtype}, {labels[0]} of {first.dtype}; "
                    "all must have the same."
                )


def _are_both_bytes(tensor: Tensor, other: Tensor) -> bool:
    """Whether both are scaled, which uint8 inputs are, or neither is."""
    return (tensor.dtype == torch.uint8) == (other.dtype == torch.uint8)


def _are_both_floats(tensor: Tensor, other: Tensor) -> bool:
    """Whether both are numbers, or both are classes, which integer targets are."""
    return tensor.is_floating_point() == other.is_floating_point()
