"""Private attributes of torch, which has no public API for them; each has a fallback.

If a future torch removes an attribute, hooks are not found and `MultiheadAttention` is not drawn
anew; nothing else depends on them.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

_FORWARD_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_BACKWARD_HOOKS = ("_backward_hooks", "_backward_pre_hooks")


def forward_hooks(module: nn.Module) -> list[Callable[..., object]]:
    """The forward hooks of a module, without those of its children, then its forward pre-hooks."""
    hooks: list[Callable[..., object]] = []
    for attribute in _FORWARD_HOOKS:
        hooks += (getattr(module, attribute, None) or {}).values()
    return hooks


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has hooks of its own, forward or backward."""
    return any(getattr(module, name, None) for name in _FORWARD_HOOKS + _BACKWARD_HOOKS)


def has_gradient_hooks(parameter: Tensor) -> bool:
    """Whether `parameter.register_hook` was called."""
    return bool(getattr(parameter, "_backward_hooks", None))


def reset_method(module: nn.Module) -> Callable[[], object] | None:
    """The method that draws the parameters of a module anew; None if it has none."""
    for name in ("reset_parameters", "_reset_parameters"):  # the second: MultiheadAttention
        method = getattr(module, name, None)
        if callable(method):
            return method  # type: ignore[no-any-return]
    return None
