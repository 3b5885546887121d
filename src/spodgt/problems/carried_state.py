"""State of a module or a loss that is neither a parameter nor a buffer of floats.

Parameters and float buffers are columns of a client's model: every client, run and checkpoint has its own.
Anything else that a pass changes (a counter, an annealed temperature, a random generator of the module) would
be shared by all clients, and a second run would start where the first one ended: it is refused by name.
"""

from __future__ import annotations

import inspect
import random
import types
import zlib
from collections import deque
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from spodgt.errors import InvalidInput
from spodgt.problems.trees import seeded

_NUMBERS = (bool, int, float, complex)
_CONSTANTS = (*_NUMBERS, str, bytes, type(None))
_MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))  # parameters, buffers, hooks and the like
_TRACKING_NORMS = nn.modules.batchnorm._NormBase
_Digests = dict[str, object]  # something comparable for everything that a pass may change, by name


def refuse_carried_state(module: nn.Module, loss: object, training_pass: Callable[[], object]) -> None:
    """Refuse state that training passes through `module` and `loss` carry from batch to batch.

    Args:
        module: the module in training mode; its integer buffers and attributes may be changed here.
        loss: the loss, an object or a function.
        training_pass: computes the loss of one batch, always the same.
    """
    name = find_carried_state(module, loss, training_pass)
    if name is None:
        return
    if name.startswith("loss"):
        raise InvalidInput(
            f"loss must not change from batch to batch, but {name!r} does, and all clients and later runs "
            "would share it; make it a buffer of floats of the model and use loss(model, batch)."
        )
    raise InvalidInput(
        f"model must keep what it changes in training in parameters or buffers of floats, but {name!r} is "
        "neither, and all clients and later runs would share it; use register_buffer with a tensor of "
        f'floats, and buffers="pull" or personal={name!r}.'
    )


def find_carried_state(module: nn.Module, loss: object, training_pass: Callable[[], object]) -> str | None:
    """The name of the first state that training passes carry along; see `refuse_carried_state`.

    The same pass is made twice, from the same parameters, float buffers and random state. What a pass only
    derives from its batch, such as attention weights that are kept for a picture, is then the same both
    times; a counter is not.
    """
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    digests = []
    for _ in range(2):
        with torch.no_grad(), seeded(0):
            training_pass()
        digests.append(_digests_of_module(module) | _digests_of_loss(loss))
        _restore_float_buffers(module, buffers)
    first, second = digests
    for name, digest in second.items():
        if first.get(name) != digest:
            return name
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
            # BatchNorm's count of batches has no effect where a momentum is given
            counts_batches = name == "num_batches_tracked" and isinstance(part, _TRACKING_NORMS)
            if not buffer.is_floating_point() and not counts_batches:
                digests[f"{prefix}{name}"] = digest.of(buffer)
        for name, value in vars(part).items():
            if name not in _MODULE_ATTRIBUTES:
                digests[f"{prefix}{name}"] = digest.of(value)
    return digests


def _digests_of_loss(loss: object) -> _Digests:
    """Buffers and attributes of a loss object, or the numbers around a loss function."""
    if isinstance(loss, nn.Module):
        digests = _digests_of_module(loss)
        for name, buffer in loss.named_buffers():
            digests[name] = _digest_tensor(buffer)
        return {f"loss.{name}": digest for name, digest in digests.items()}
    if isinstance(loss, types.FunctionType):
        around = inspect.getclosurevars(loss)
        variables = {**around.globals, **around.nonlocals}
        return {f"loss: {name}": value for name, value in variables.items() if isinstance(value, _NUMBERS)}
    if isinstance(loss, types.BuiltinFunctionType | type):
        return {}
    digest = _Digest(None)
    attributes = getattr(loss, "__dict__", {})
    return {f"loss.{name}": digest.of(value) for name, value in attributes.items()}


class _Digest:
    """Values by which to compare an object with itself after it may have changed in place."""

    def __init__(self, module: nn.Module | None) -> None:
        self.visited: set[int] = set()
        if module is not None:  # its parts are looked at one by one
            self.visited.update(id(part) for part in module.modules())

    def of(self, value: object) -> object:
        if isinstance(value, _CONSTANTS):
            return repr(value)  # NaN equals NaN
        if isinstance(value, Tensor):
            return _digest_tensor(value)
        if isinstance(value, np.ndarray):
            return value.dtype.str, value.shape, zlib.crc32(np.ascontiguousarray(value).tobytes())
        if isinstance(value, torch.Generator):
            return _digest_tensor(value.get_state())
        if isinstance(value, np.random.Generator):
            return repr(value.bit_generator.state)
        if isinstance(value, np.random.RandomState):
            return repr(value.get_state(legacy=False))
        if isinstance(value, random.Random):
            return value.getstate()
        if isinstance(value, type | types.FunctionType | types.MethodType | types.ModuleType):
            return repr(value)
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


def _digest_tensor(value: Tensor) -> object:
    if value.layout != torch.strided or value.device.type == "meta":
        return str(value.layout), value.shape
    numbers = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    return str(value.dtype), value.shape, zlib.crc32(numbers.tobytes())
