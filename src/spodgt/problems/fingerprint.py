"""What tells one module or loss from another: its class, its settings, and the code of functions in it."""

from __future__ import annotations

import functools
import types
import zlib

from torch import Tensor, nn

_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def fingerprint(what: object) -> str:
    """Eight letters that change with what a module or function computes, weights and buffers apart."""
    return f"{zlib.crc32(_text(what).encode()):08x}"


def tensors_of(what: object) -> list[Tensor]:
    """The weights and buffers of a loss, such as those of classes."""
    return [t.detach() for t in what.state_dict().values()] if isinstance(what, nn.Module) else []


def _text(what: object, depth: int = 8) -> str:
    if isinstance(what, _PLAIN):
        return repr(what)
    if isinstance(what, Tensor) or depth == 0:
        return type(what).__qualname__
    inner = functools.partial(_text, depth=depth - 1)
    if isinstance(what, list | tuple | set | frozenset):
        return f"[{','.join(map(inner, what))}]"
    if isinstance(what, dict):
        return f"{{{','.join(f'{key!r}:{inner(value)}' for key, value in what.items())}}}"
    if isinstance(what, functools.partial):
        return f"partial({inner(what.func)},{inner(what.args)},{inner(what.keywords)})"
    if isinstance(what, types.MethodType):
        return f"{inner(what.__func__)} of {inner(what.__self__)}"
    if isinstance(what, types.FunctionType):
        code = what.__code__
        parts = [each for each in code.co_consts if isinstance(each, _PLAIN)]
        held = [cell.cell_contents for cell in what.__closure__ or ()]
        used = inner([parts, code.co_names, held, what.__defaults__])
        return f"{what.__qualname__}({code.co_code.hex()},{used})"
    if isinstance(what, types.BuiltinFunctionType | type):
        return f"{what.__module__}.{what.__qualname__}"
    if isinstance(what, nn.Module):
        own = [f"{name}={_module(part, depth)}" for name, part in what.named_modules()]
        return ";".join(own)
    return type(what).__qualname__


def _module(part: nn.Module, depth: int) -> str:
    """A module without its children: class, forward pass and plain settings; hooks are functions."""
    held = {
        name: value for name, value in vars(part).items() if not name.startswith("_") and name != "training"
    }
    hooks = list(part._forward_hooks.values()) + list(part._forward_pre_hooks.values())
    forward = type(part).forward if type(part).__module__.partition(".")[0] != "torch" else None
    return f"{type(part).__qualname__}{_text([held, hooks, forward], depth)}"
