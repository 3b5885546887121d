"""Finds state of a module or a loss that is neither a parameter nor a buffer of floats.

Parameters and float buffers are columns of the model of a client, so every client, run and
checkpoint has its own. All clients and later runs would share any other state that a training pass
changes: a counter, an annealed temperature, a random generator of the module. It is refused.
"""

from __future__ import annotations

import inspect
import random
import types
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from spodgt.errors import InvalidInput
from spodgt.problems.random_state import seeded

_NUMBERS = (bool, int, float, complex)
_CONSTANTS = (*_NUMBERS, str, bytes, type(None))
_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))  # parameters, buffers, hooks and the like
TRACKING_NORMS = (  # layers with running statistics
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.SyncBatchNorm,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
)
_Digests = dict[str, object]  # a comparable value for each object that a pass may change, by name


class CarriedState(NamedTuple):
    """State that a training pass changes."""

    owner: Literal["model", "loss"]
    name: str


def refuse_carried_state(
    module: nn.Module, loss: object, training_pass: Callable[[], object]
) -> None:
    """Refuse state that training passes carry from batch to batch.

    Args:
        module: the module in training mode; its integer buffers and attributes may change.
        loss: the loss, an object or a function.
        training_pass: computes the loss of one batch, always the same.

    Raises:
        InvalidInput: with the name of the state.
    """
    state = find_carried_state(module, loss, training_pass)
    if state is None:
        return
    name = state.name
    if state.owner == "loss":
        raise InvalidInput(
            f"loss must not change from batch to batch, but {name!r} does, and all clients and "
            "later runs would share it; make it a buffer of floats of the model and use "
            "loss(model, batch)."
        )
    raise InvalidInput(
        "model must keep what it changes in training in parameters or buffers of floats, but "
        f"{name!r} is neither, and all clients and later runs would share it; use register_buffer "
        f'with a tensor of floats, and buffers="pull" or personal={name!r}.'
    )


def find_carried_state(
    module: nn.Module, loss: object, training_pass: Callable[[], object]
) -> CarriedState | None:
    """Find the first state that training passes carry from batch to batch.

    The same pass is run twice, from the same parameters, float buffers and random state. An
    attribute that depends on the batch only, such as stored attention weights, is equal after both;
    a counter is not. Arguments are as for `refuse_carried_state`.

    Returns:
        The state; None if there is none.
    """
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    digests = []
    for _ in range(2):
        with torch.no_grad(), seeded(0):
            training_pass()
        digests_of_pass = {}
        for name, digest in _digests_of_module(module).items():
            digests_of_pass[CarriedState("model", name)] = digest
        for name, digest in _digests_of_loss(loss).items():
            digests_of_pass[CarriedState("loss", name)] = digest
        digests.append(digests_of_pass)
        _restore_float_buffers(module, buffers)
    first, second = digests
    for state, digest in second.items():
        if first.get(state) != digest:
            return state
    return None


def _restore_float_buffers(module: nn.Module, before: Mapping[str, Tensor]) -> None:
    for name, value in before.items():
        if value.is_floating_point():
            owner, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(owner), attribute, value.clone())


def _digests_of_module(module: nn.Module) -> _Digests:
    digest = _Digest(module)
    digests: _Digests = {}
    for path, part in module.named_modules():
        prefix = f"{path}." if path else ""
        for name, buffer in part.named_buffers(recurse=False):
            # the batch counter of BatchNorm has no effect if there is a momentum
            counts_batches = name == "num_batches_tracked" and isinstance(part, TRACKING_NORMS)
            if not buffer.is_floating_point() and not counts_batches:
                digests[f"{prefix}{name}"] = digest.of(buffer)
        for name, value in vars(part).items():
            if name not in _MODULE_ATTRIBUTES:
                digests[f"{prefix}{name}"] = digest.of(value)
    return digests


def _digests_of_loss(loss: object) -> _Digests:
    """Buffers and attributes of a loss object, or numbers in the closure of a loss function."""
    if isinstance(loss, nn.Module):
        digests = _digests_of_module(loss)
        for name, buffer in loss.named_buffers():
            digests[name] = _digest_tensor(buffer)
        return {f"loss.{name}": digest for name, digest in digests.items()}
    if isinstance(loss, types.FunctionType):
        around = inspect.getclosurevars(loss)
        digests = {}
        for variables in (around.globals, around.nonlocals):
            for name, value in variables.items():
                if isinstance(value, _NUMBERS):
                    digests[f"loss: {name}"] = value
        return digests
    if isinstance(loss, types.BuiltinFunctionType | type):
        return {}
    digest = _Digest(None)
    attributes = getattr(loss, "__dict__", {})
    return {f"loss.{name}": digest.of(value) for name, value in attributes.items()}


class _Digest:
    """Computes comparable values of objects, to detect changes in place."""

    def __init__(self, module: nn.Module | None) -> None:
        self.visited: set[int] = set()
        if module is not None:  # submodules are compared one by one
            self.visited.update(id(part) for part in module.modules())

    def of(self, value: object) -> object:
        """A value that compares equal as long as the object does not change."""
        if isinstance(value, _CONSTANTS):
            return repr(value)  # NaN equals NaN
        if isinstance(value, Tensor):
            return _digest_tensor(value)
        if isinstance(value, np.ndarray):
            return value.dtype.str, value.shape, zlib.crc32(np.ascontiguousarray(value).tobytes())
        if isinstance(value, _GENERATORS):
            return _digest_generator(value)
        if isinstance(value, type | types.FunctionType | types.MethodType | types.ModuleType):
            return repr(value)
        return self._of_container(value)

    def _of_container(self, value: object) -> object:
        if id(value) in self.visited:
            return type(value).__qualname__
        self.visited.add(id(value))
        if isinstance(value, list | tuple | deque):
            return tuple(map(self.of, value))
        if isinstance(value, set | frozenset):
            return frozenset(map(repr, value))
        if isinstance(value, Mapping):
            return tuple((repr(key), self.of(value[key])) for key in value)
        return type(value).__qualname__, self.of(getattr(value, "__dict__", None))


_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


def _digest_generator(value: object) -> object:
    """The state of a random generator."""
    if isinstance(value, torch.Generator):
        return _digest_tensor(value.get_state())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return repr(value.get_state(legacy=False))
    assert isinstance(value, random.Random)
    return value.getstate()


def _digest_tensor(value: Tensor) -> object:
    if value.layout != torch.strided or value.device.type == "meta":
        return str(value.layout), value.shape
    numbers = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return str(value.dtype), value.shape, zlib.crc32(numbers.tobytes())
