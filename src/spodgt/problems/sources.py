"""Data as people have them, read into two tensors where that is possible, else kept as single samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch.utils import data as torch_data

from spodgt.errors import InvalidData
from spodgt.problems.samples import Collate, Loose, Readable, Samples, first_line
from spodgt.problems.trees import Tree, leaves, seeded, tree_map

Source = torch_data.Dataset[object] | Sequence[object] | Mapping[str, object]
Clients = Sequence[Source] | Mapping[str, Source]


@dataclass(frozen=True, eq=False)
class Stack:
    """Samples that lie in tensors: sample i is entry i of every leaf."""

    tree: Tree

    def __len__(self) -> int:
        return len(next(leaves(self.tree)))  # type: ignore[arg-type]

    def __getitem__(self, number: int) -> object:
        return tree_map(lambda leaf: leaf[number], self.tree)  # type: ignore[index]


@dataclass(frozen=True)
class Reader:
    """How data sets are read."""

    collate: Collate | None  # None: torch's own
    cache: bool  # read a torch data set once and keep its samples
    whole: bool  # samples need not be (input, target) pairs

    def read(self, source: object, who: str) -> Samples | Loose:
        """A data set as two tensors, or as single samples where those would not hold it."""
        given = self._opened(source, who)
        if isinstance(given, Stack):
            tree = given.tree
            lengths = {len(leaf) for leaf in leaves(tree)}  # type: ignore[arg-type]
            if len(lengths) > 1:
                raise InvalidData(_unequal(who, tree, lengths))
            plain = isinstance(tree, tuple | list) and len(tree) == 2 and all(map(_is_array, tree))
            if plain and self.collate is None:
                return stacked(*(_tensor(part, who) for part in tree), who=who)  # type: ignore[attr-defined]
            given = Stack(tree_map(lambda leaf: _tensor(leaf, who), tree))
        elif (
            isinstance(given, tuple | list)
            and given
            and self.collate is None
            and not self.whole
            and (found := _pairs(given, who)) is not None
        ):
            return found
        try:
            count = len(given)
        except TypeError:
            raise InvalidData(
                f"{who} must have a length, got {type(source).__name__}; define __len__."
            ) from None
        if not count:
            raise InvalidData(_EMPTY.format(who=who))
        return self.loose([given], [who])

    def loose(self, parts: Sequence[Readable], names: Sequence[str]) -> Loose:
        return Loose(tuple(parts), tuple(names), self.collate or torch_data.default_collate, self.whole)

    def _opened(self, source: object, who: str) -> Readable:
        """What a source holds: tensors, a list of samples, or a data set that is read when needed."""
        if isinstance(source, torch_data.IterableDataset):
            raise InvalidData(
                f"{who} is an IterableDataset, whose samples have no numbers to draw from; give a map-style "
                "Dataset with __len__ and __getitem__."
            )
        if (tensors := _tensors(source)) is not None:
            return Stack(tensors)
        if isinstance(source, Mapping):
            if source and all(map(_is_array, leaves(source))):
                return Stack(source)
        elif isinstance(source, tuple | list):
            if len(source) == 2 and _is_array(source[1]):
                first = source[0]
                if self.whole and isinstance(source, list) and _is_array(first):
                    raise InvalidData(
                        f"{who} is a list of two tensors, which may be two samples or inputs and targets; "
                        "give a tuple (inputs, targets), or the samples in a torch Dataset."
                    )
                if _is_array(first) or (isinstance(first, Mapping | tuple | list) and _all_arrays(first)):
                    return Stack(source)
            return source
        elif hasattr(source, "__getitem__") and not isinstance(
            source, str | bytes | Tensor | np.ndarray | type
        ):
            data = cast(Readable, source)
            return self._cached(data, who) if self.cache else data
        raise InvalidData(
            f"{who} must be a dataset of (input, target) pairs or two tensors, got {type(source).__name__}; "
            "give (inputs, targets), a list of samples or a torch Dataset."
        )

    @staticmethod
    def _cached(data: Readable, who: str) -> list[object]:
        with seeded(0):
            try:
                return [data[i] for i in range(len(data))]
            except Exception as error:
                raise InvalidData(f"{who} failed to give its samples: {first_line(error)}") from error


_EMPTY = "{who} has no samples; give it data or leave it out of the network."


def stacked(inputs: Tensor, targets: Tensor, *, who: str) -> Samples:
    """Checked inputs and targets."""
    for what, part in (("inputs", inputs), ("targets", targets)):
        if not part.ndim:
            raise InvalidData(
                f"{who} must have one of the {what} per sample, got a single number; give a list."
            )
    if len(inputs) != len(targets):
        raise InvalidData(
            f"{who} has {len(inputs)} inputs but {len(targets)} targets; give one target per input."
        )
    if not len(inputs):
        raise InvalidData(_EMPTY.format(who=who))
    if not targets.is_floating_point() and not targets.is_complex():
        targets = targets.long()  # whole numbers of any kind are classes
    if inputs.is_floating_point() and not torch.isfinite(inputs).all():
        raise InvalidData(f"{who} has inputs that are NaN or infinite; clean the data.")
    return Samples(inputs.detach().contiguous(), targets.detach().contiguous())


def _tensors(source: object) -> tuple[Tensor, ...] | None:
    """The tensors of a TensorDataset, or of a subset of one."""
    if type(source) is torch_data.TensorDataset:
        return source.tensors
    if type(source) is torch_data.Subset and (whole := _tensors(source.dataset)) is not None:
        rows = torch.as_tensor(list(source.indices), dtype=torch.int64)
        return tuple(tensor[rows] for tensor in whole)
    return None


def _pairs(given: Sequence[object], who: str) -> Samples | None:
    """A list of (input, target) pairs of equal shape as two tensors; None if they are something else."""
    if not all(isinstance(sample, tuple | list) and len(sample) == 2 for sample in given):
        return None
    pairs = cast(Sequence[tuple[object, object]], given)
    if any(isinstance(part, Mapping | tuple | str) for part in pairs[0]):
        return None
    try:
        inputs = torch.stack([torch.as_tensor(np.asarray(first)) for first, _ in pairs])
        targets = torch.as_tensor(np.asarray([np.asarray(second) for _, second in pairs]))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidData(
            f"{who} must be a dataset of (input, target) pairs of equal shape or two tensors, "
            f"got {type(given).__name__}: {first_line(error)}; for samples of unequal shape give collate=, a "
            "function that turns a list of samples into a batch."
        ) from None
    return stacked(inputs, targets, who=who)


def _is_array(value: object) -> bool:
    return isinstance(value, Tensor | np.ndarray)


def _all_arrays(tree: Tree) -> bool:
    found = list(leaves(tree))
    return bool(found) and all(_is_array(leaf) and leaf.ndim for leaf in found)  # type: ignore[attr-defined]


def _tensor(value: object, who: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    try:
        return torch.as_tensor(value)
    except TypeError as error:
        kind = cast(np.ndarray[tuple[int, ...], np.dtype[np.generic]], value).dtype
        raise InvalidData(
            f"{who} must have numbers, got an array of {kind}; encode it as numbers, or give a list of "
            "samples and collate=."
        ) from error


def _unequal(who: str, tree: Tree, lengths: set[int]) -> str:
    if isinstance(tree, tuple | list) and len(tree) == 2 and all(map(_is_array, tree)):
        inputs, targets = map(len, tree)
        return f"{who} has {inputs} inputs but {targets} targets; give one target per input."
    return f"{who} has tensors of {min(lengths)} to {max(lengths)} samples; all must have as many."
