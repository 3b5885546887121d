"""Samples, batches and outputs as trees: dicts, tuples and lists of tensors, as deep as they come.

Also here: user code called with the random state of torch, numpy and Python set, and left as it was.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

Tree = object  # a leaf, or a dict, tuple, named tuple or list of trees


def tree_map(change: Callable[[object], object], tree: Tree) -> Tree:
    """The same tree with every leaf changed."""
    if isinstance(tree, Mapping):
        return _rebuilt(tree, {key: tree_map(change, value) for key, value in tree.items()})
    if isinstance(tree, tuple | list):
        return _rebuilt(tree, [tree_map(change, value) for value in tree])
    return change(tree)


def leaves(tree: Tree) -> Iterator[object]:
    """All leaves, in order."""
    if isinstance(tree, Mapping | tuple | list):
        for part in tree.values() if isinstance(tree, Mapping) else tree:
            yield from leaves(part)
    else:
        yield tree


def concat(trees: Sequence[Tree]) -> Tree:
    """Trees of the same structure as one: tensors one behind the other along their first axis."""
    first = trees[0]
    if isinstance(first, Mapping):
        return _rebuilt(first, {key: concat([tree[key] for tree in trees]) for key in first})  # type: ignore[index]
    if isinstance(first, tuple | list):
        return _rebuilt(first, [concat(parts) for parts in zip(*trees, strict=True)])
    if isinstance(first, Tensor):
        return torch.cat([tree if tree.ndim else tree[None] for tree in trees if isinstance(tree, Tensor)])
    return first


def fresh(tree: Tree, device: torch.device, dtype: torch.dtype) -> Tree:
    """A copy whose floating-point tensors have this type: what user code may write into."""

    def copied(leaf: object) -> object:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.to(device, dtype if leaf.is_floating_point() else leaf.dtype, copy=True)

    return tree_map(copied, tree)


def clone(tree: Tree) -> Tree:
    """A copy, as it is."""
    return tree_map(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, tree)


def call(module: nn.Module, inputs: Tree) -> Tree:
    """Several inputs are passed on as several arguments: model(*inputs) or model(**inputs)."""
    if isinstance(inputs, Mapping):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple | list) else module(inputs)


def _rebuilt(like: Tree, parts: dict[object, Tree] | list[Tree]) -> Tree:
    kind = type(like)
    if kind in (dict, list):
        return parts
    try:
        return kind(*parts) if hasattr(like, "_fields") else kind(parts)  # type: ignore[call-arg]
    except TypeError:  # a mapping with a constructor of its own, such as defaultdict
        return parts


# --- randomness of user code ----------------------------------------------------------------------------
def seed_all(seed: int) -> None:
    """Set the random state that user code may draw from."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Random draws in here are a function of `seed` (None: they go on), and those outside do not notice."""
    before = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng():
        if seed is not None:
            seed_all(seed)
        try:
            yield
        finally:
            np.random.set_state(before[0])  # noqa: NPY002
            random.setstate(before[1])


def random_state() -> tuple[object, ...]:
    """Something that changes whenever a random number is drawn."""
    position = np.random.get_state(legacy=False)["state"]["pos"]  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), position, random.getstate()
