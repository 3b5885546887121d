"""Fingerprints of modules and losses: class, settings, and the bytecode of functions.

The texts below decide whether a run may be resumed: a changed text makes old runs look different.
"""

from __future__ import annotations

import functools
import types
import zlib
from collections.abc import Iterable
from typing import cast

from torch import Tensor, nn

from spodgt.problems.models.torch_internals import forward_hooks

_CONSTANTS = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, tuple, set, frozenset, dict)
_CALLABLES = (
    functools.partial,
    types.MethodType,
    types.FunctionType,
    types.BuiltinFunctionType,
    type,
)
_MAX_DEPTH = 8


def fingerprint(value: object) -> str:
    """Eight hexadecimal digits of what a module or function computes, without its tensors."""
    return f"{zlib.crc32(_describe(value, _MAX_DEPTH).encode()):08x}"


def loss_tensors(loss: object) -> list[Tensor]:
    """Parameters and buffers of a loss module, such as class weights; empty for a function."""
    if not isinstance(loss, nn.Module):
        return []
    return [tensor.detach() for tensor in loss.state_dict().values()]


def _describe(value: object, depth: int) -> str:
    """A text that is equal for equal objects in different processes."""
    if isinstance(value, _CONSTANTS):
        return repr(value)
    if depth == 0:
        return type(value).__qualname__
    if isinstance(value, _CONTAINERS):
        return _describe_container(value, depth)
    if isinstance(value, _CALLABLES):
        return _describe_callable(value, depth)
    if isinstance(value, nn.Module):
        modules = [f"{name}={_describe_layer(part, depth)}" for name, part in value.named_modules()]
        return ";".join(modules)
    return type(value).__qualname__  # also of a tensor


def _describe_container(value: object, depth: int) -> str:
    if isinstance(value, dict):
        pairs = [f"{key!r}:{_describe(item, depth - 1)}" for key, item in value.items()]
        return f"{{{','.join(pairs)}}}"
    items = [_describe(item, depth - 1) for item in cast(Iterable[object], value)]
    return f"[{','.join(items)}]"


def _describe_callable(value: object, depth: int) -> str:
    if isinstance(value, functools.partial):
        parts = (value.func, value.args, value.keywords)
        return f"partial({','.join(_describe(part, depth - 1) for part in parts)})"
    if isinstance(value, types.MethodType):
        function = _describe(value.__func__, depth - 1)
        return f"{function} of {_describe(value.__self__, depth - 1)}"
    if isinstance(value, types.FunctionType):
        return _describe_function(value, depth)
    assert isinstance(value, types.BuiltinFunctionType | type)
    return f"{value.__module__}.{value.__qualname__}"


def _describe_function(function: types.FunctionType, depth: int) -> str:
    """Bytecode, constants, names, closure and defaults of a function."""
    code = function.__code__
    constants = [constant for constant in code.co_consts if isinstance(constant, _CONSTANTS)]
    closure = [cell.cell_contents for cell in function.__closure__ or ()]
    surroundings = [constants, code.co_names, closure, function.__defaults__]
    return f"{function.__qualname__}({code.co_code.hex()},{_describe(surroundings, depth - 1)})"


def _describe_layer(module: nn.Module, depth: int) -> str:
    """A module without its children: class, public attributes, hooks and forward method."""
    settings = {}
    for name, value in vars(module).items():
        if not name.startswith("_") and name != "training":
            settings[name] = value
    is_from_torch = type(module).__module__.partition(".")[0] == "torch"
    forward = None if is_from_torch else type(module).forward
    parts = [settings, forward_hooks(module), forward]
    return f"{type(module).__qualname__}{_describe(parts, depth)}"
