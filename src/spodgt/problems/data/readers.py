"""Reads data sets in the forms that users have, into two tensors if possible."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils import data as torch_data

from spodgt._util.text import first_line
from spodgt.errors import InvalidData
from spodgt.problems.data.pytree import Tree, leaves, tree_map
from spodgt.problems.data.samples import (
    AnySamples,
    Collate,
    JoinedDatasets,
    LazySamples,
    Readable,
    Samples,
)
from spodgt.problems.random_state import seeded

Source = torch_data.Dataset[object] | Sequence[object] | Mapping[str, object]
Clients = Sequence[Source] | Mapping[str, Source]
Array = Tensor | np.ndarray[tuple[int, ...], np.dtype[np.generic]]


@dataclass(frozen=True, eq=False)
class Stack:
    """A tree of arrays as a map-style data set: sample i is entry i of every leaf."""

    tree: Tree

    def __len__(self) -> int:
        return len(next(leaves(self.tree)))  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> object:
        return tree_map(lambda leaf: leaf[index], self.tree)  # type: ignore[index]


@dataclass(frozen=True)
class Reader:
    """Reads data sets.

    Args:
        collate: turns a list of samples into a batch; None: that of torch.
        cache: whether torch data sets are read once and their samples kept in memory.
        whole_batches: whether samples may have any form, for a loss(model, batch).
    """

    collate: Collate | None
    cache: bool
    whole_batches: bool

    def read(self, source: object, client_label: str) -> AnySamples:
        """Read a data set into two tensors, or keep its samples apart if that is impossible.

        Args:
            source: the data set, see `_open`.
            client_label: name of the data set in error messages.

        Raises:
            InvalidData: if it has no samples, no length, or an unknown form.
        """
        opened = self._open(source, client_label)
        if isinstance(opened, Stack):
            opened = _stack_of_tensors(opened, client_label)
            if _is_pair_of_arrays(opened.tree) and self.collate is None:
                inputs, targets = cast(tuple[Tensor, Tensor], opened.tree)
                return to_samples(inputs, targets, client_label)
        elif isinstance(opened, tuple | list) and opened and self._may_stack_pairs:
            samples = _stack_pairs(opened, client_label)
            if samples is not None:
                return samples
        if _length(opened, source, client_label) == 0:
            raise InvalidData(_no_samples(client_label))
        return self.lazy_samples([opened], [client_label])

    def lazy_samples(self, datasets: Sequence[Readable], labels: Sequence[str]) -> LazySamples:
        """Data sets that lie one after the other, read sample by sample."""
        collate = self.collate or torch_data.default_collate
        joined = JoinedDatasets(tuple(datasets), tuple(labels))
        return LazySamples(joined, collate, self.whole_batches)

    @property
    def _may_stack_pairs(self) -> bool:
        return self.collate is None and not self.whole_batches

    def _open(self, source: object, client_label: str) -> Readable:
        """Detect the form of a data set.

            TensorDataset, or a Subset of one   Stack
            mapping of arrays                   Stack
            (inputs, targets) of arrays         Stack
            list or tuple of samples            the sequence itself
            map-style Dataset                   itself, or a list of its samples if `cache`

        Raises:
            InvalidData: for an IterableDataset, a DataLoader, and for any other type.
        """
        if isinstance(source, torch_data.IterableDataset):
            raise InvalidData(
                f"{client_label} is an IterableDataset, which has no random access; give a "
                "map-style Dataset with __len__ and __getitem__."
            )
        _refuse_data_frame(source, client_label)
        if isinstance(source, torch_data.DataLoader):
            raise InvalidData(
                f"{client_label} is a DataLoader, which has batches instead of samples; give "
                "loader.dataset."
            )
        tensors = _tensors_of_dataset(source)
        if tensors is not None:
            return Stack(tensors)
        if _is_mapping_of_arrays(source):
            return Stack(source)
        if isinstance(source, tuple | list):
            self._refuse_ambiguous_list(source, client_label)
            return Stack(source) if _is_inputs_and_targets(source) else source
        if _is_map_style_dataset(source):
            return _read_all(source, client_label) if self.cache else source
        raise InvalidData(
            f"{client_label} must be a dataset of (input, target) pairs or two tensors, got "
            f"{type(source).__name__}; give (inputs, targets), a list of samples or a torch "
            "Dataset."
        )

    def _refuse_ambiguous_list(self, source: Sequence[object], client_label: str) -> None:
        """Refuse a list of two arrays that may be a pair of arrays or two samples."""
        if self.whole_batches and isinstance(source, list) and _is_pair_of_arrays(source):
            raise InvalidData(
                f"{client_label} is a list of two tensors, which may be two samples or inputs and "
                "targets; give a tuple (inputs, targets), or the samples in a torch Dataset."
            )


def _refuse_data_frame(source: object, client_label: str) -> None:
    """Refuse a table of pandas or polars, or a pair with one: its items are columns, not samples."""
    parts = source if isinstance(source, tuple | list) else [source]
    for part in parts[:2]:
        name = type(part).__name__
        if name in ("DataFrame", "Series"):
            raise InvalidData(
                f"{client_label} holds a {name}; give arrays of its columns, such as "
                '(frame[["a", "b"]].to_numpy("float32"), frame["label"].to_numpy()).'
            )


def _stack_of_tensors(stack: Stack, client_label: str) -> Stack:
    """The arrays of a stack as tensors, checked for equal lengths."""
    _check_equal_lengths(stack.tree, client_label)
    return Stack(tree_map(lambda leaf: _to_tensor(leaf, client_label), stack.tree))


def to_samples(inputs: Tensor, targets: Tensor, client_label: str) -> Samples:
    """Check inputs and targets in two tensors.

    Args:
        inputs: (samples, …).
        targets: (samples, …); integers of any type are classes and become int64.
        client_label: name of the data set in error messages.

    Raises:
        InvalidData: if the lengths differ or are zero, or inputs are NaN or infinite.
    """
    for name, tensor in (("inputs", inputs), ("targets", targets)):
        if not tensor.ndim:
            raise InvalidData(
                f"{client_label} must have one of the {name} per sample, got a single number; "
                "give a list."
            )
    if len(inputs) != len(targets):
        raise InvalidData(_unequal_pair(client_label, len(inputs), len(targets)))
    if not len(inputs):
        raise InvalidData(_no_samples(client_label))
    if not targets.is_floating_point() and not targets.is_complex():
        targets = targets.long()
    if inputs.is_floating_point() and not torch.isfinite(inputs).all():
        is_finite = torch.isfinite(inputs).reshape(len(inputs), -1).all(1)
        first = int(torch.nonzero(~is_finite)[0])
        raise InvalidData(
            f"{client_label} has inputs that are NaN or infinite, first in sample {first}; "
            "clean the data."
        )
    return Samples(inputs.detach().contiguous(), targets.detach().contiguous())


# --- forms of data sets --------------------------------------------------------------------------
def is_array(value: object) -> bool:
    """Whether a value is a tensor or a NumPy array."""
    return isinstance(value, Tensor | np.ndarray)


def _is_pair_of_arrays(tree: Tree) -> bool:
    return isinstance(tree, tuple | list) and len(tree) == 2 and all(map(is_array, tree))


def _is_inputs_and_targets(source: tuple[object, ...] | list[object]) -> bool:
    """Whether `source` is (inputs, targets): an array or a tree of arrays, and an array."""
    if len(source) != 2 or not is_array(source[1]):
        return False
    inputs = source[0]
    if is_array(inputs):
        return True
    return isinstance(inputs, Mapping | tuple | list) and _is_tree_of_arrays(inputs)


def _is_tree_of_arrays(tree: Tree) -> bool:
    """Whether there are leaves, and all of them are arrays with a first axis."""
    arrays = list(leaves(tree))
    if not arrays:
        return False
    return all(is_array(array) and cast(Array, array).ndim > 0 for array in arrays)


def _is_mapping_of_arrays(source: object) -> bool:
    return isinstance(source, Mapping) and bool(source) and all(map(is_array, leaves(source)))


def _is_map_style_dataset(source: object) -> TypeGuard[Readable]:
    """Whether `source` is indexable, but not an array, a text, a mapping or a class."""
    excluded = (str, bytes, Tensor, np.ndarray, type, Mapping)
    return hasattr(source, "__getitem__") and not isinstance(source, excluded)


def _tensors_of_dataset(source: object) -> tuple[Tensor, ...] | None:
    """The tensors of a TensorDataset, or of a subset of one; None for anything else."""
    # The exact types: a subclass may transform its samples.
    if type(source) is torch_data.TensorDataset:
        return source.tensors
    if type(source) is not torch_data.Subset:
        return None
    tensors = _tensors_of_dataset(source.dataset)
    if tensors is None:
        return None
    rows = torch.as_tensor(list(source.indices), dtype=torch.int64)
    return tuple(tensor[rows] for tensor in tensors)


# --- conversion ----------------------------------------------------------------------------------
def _read_all(dataset: Readable, client_label: str) -> list[object]:
    with seeded(0):
        try:
            return [dataset[index] for index in range(len(dataset))]
        except Exception as error:
            raise InvalidData(
                f"{client_label} failed to give its samples: {first_line(error)}"
            ) from error


def _stack_pairs(samples: Sequence[object], client_label: str) -> Samples | None:
    """Stack (input, target) pairs of equal shape; None if the samples have another form."""
    if not all(isinstance(sample, tuple | list) and len(sample) == 2 for sample in samples):
        return None
    pairs = cast(Sequence[tuple[object, object]], samples)
    if any(isinstance(part, Mapping | tuple | str) for part in pairs[0]):
        return None
    try:
        inputs = torch.stack([torch.as_tensor(np.asarray(pair[0])) for pair in pairs])
        targets = torch.as_tensor(np.asarray([np.asarray(pair[1]) for pair in pairs]))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidData(
            f"{client_label} must be a dataset of (input, target) pairs of equal shape or two "
            f"tensors, got {type(samples).__name__}: {first_line(error)}; for samples of unequal "
            "shape give collate=, a function that turns a list of samples into a batch."
        ) from None
    return to_samples(inputs, targets, client_label)


def _to_tensor(value: object, client_label: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        value = value.copy()  # arrays of pandas are read-only, of which torch warns
    try:
        return torch.as_tensor(value)
    except TypeError as error:
        dtype = cast(Array, value).dtype
        raise InvalidData(
            f"{client_label} must have numbers, got an array of {dtype}; encode it as numbers, or "
            "give a list of samples and collate=."
        ) from error


def _length(opened: Readable, source: object, client_label: str) -> int:
    try:
        return len(opened)
    except TypeError:
        raise InvalidData(
            f"{client_label} must have a length, got {type(source).__name__}; define __len__."
        ) from None


def _check_equal_lengths(tree: Tree, client_label: str) -> None:
    lengths = [len(leaf) for leaf in leaves(tree)]  # type: ignore[arg-type]
    if len(set(lengths)) <= 1:
        return
    if _is_pair_of_arrays(tree):
        raise InvalidData(_unequal_pair(client_label, *lengths))
    raise InvalidData(
        f"{client_label} has tensors of {min(lengths)} to {max(lengths)} samples; "
        "all must have as many."
    )


def _unequal_pair(client_label: str, inputs: int, targets: int) -> str:
    return f"{client_label} has {inputs} inputs but {targets} targets; give one target per input."


def _no_samples(client_label: str) -> str:
    return f"{client_label} has no samples; give it data or leave it out of the network."
