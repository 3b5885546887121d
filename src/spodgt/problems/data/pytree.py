"""Pytrees: samples, batches and outputs as nested dicts, tuples and lists of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

Tree = object  # a leaf, or a dict, tuple, named tuple or list of trees


def tree_map(function: Callable[[object], object], tree: Tree) -> Tree:
    """Apply `function` to every leaf; returns a tree of the same structure."""
    if isinstance(tree, Mapping):
        return _rebuild(tree, {key: tree_map(function, value) for key, value in tree.items()})
    if isinstance(tree, tuple | list):
        return _rebuild(tree, [tree_map(function, value) for value in tree])
    return function(tree)


def leaves(tree: Tree) -> Iterator[object]:
    """All leaves, depth first."""
    if isinstance(tree, Mapping):
        for value in tree.values():
            yield from leaves(value)
    elif isinstance(tree, tuple | list):
        for value in tree:
            yield from leaves(value)
    else:
        yield tree


def tensor_leaves(tree: Tree) -> list[Tensor]:
    """All leaves that are tensors, depth first."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Tensor)]


def concat(trees: Sequence[Tree]) -> Tree:
    """Concatenate trees of equal structure: tensors along their first axis.

    Of leaves that are not tensors, that of the first tree is returned.
    """
    first = trees[0]
    if isinstance(first, Mapping):
        merged = {}
        for key in first:
            merged[key] = concat([tree[key] for tree in trees])  # type: ignore[index]
        return _rebuild(first, merged)
    if isinstance(first, tuple | list):
        return _rebuild(first, [concat(parts) for parts in zip(*trees, strict=True)])
    if isinstance(first, Tensor):
        tensors = [tree for tree in trees if isinstance(tree, Tensor)]
        if first.ndim == 0:
            return torch.stack(tensors)
        return torch.cat(tensors)
    return first


def copy_to(tree: Tree, device: torch.device, dtype: torch.dtype) -> Tree:
    """Copy all tensors to a device, those of floats as `dtype`; user code may modify the copy."""

    def copy_leaf(leaf: object) -> object:
        if not isinstance(leaf, Tensor):
            return leaf
        if leaf.is_floating_point():
            return leaf.to(device, dtype, copy=True)
        return leaf.to(device, copy=True)

    return tree_map(copy_leaf, tree)


def clone(tree: Tree) -> Tree:
    """Clone all tensors of a tree."""

    def clone_leaf(leaf: object) -> object:
        return leaf.clone() if isinstance(leaf, Tensor) else leaf

    return tree_map(clone_leaf, tree)


def _rebuild(like: Tree, parts: dict[object, Tree] | list[Tree]) -> Tree:
    """Convert `parts` to the container type of `like`."""
    container = type(like)
    if container in (dict, list):
        return parts
    try:
        if hasattr(like, "_fields"):  # a NamedTuple
            return container(*parts)
        return container(parts)  # type: ignore[call-arg]
    except TypeError:  # a mapping with another constructor, such as defaultdict
        return parts
