"""Old names of traits, hooks and members of rounds: they warn until the next release."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from spodgt._util.deprecation import renamed_attributes, warn_renamed

TRAITS = {
    "talks": "activation",
    "mixes": "mixed_fields",
    "reweighs": "degree_reweighting",
    "short": "compressed",
    "remembers": "uses_stale_models",
}
ACTIVATIONS = {"pair": "edge", "waker": "edge-initiator", "client": "node"}
HOOKS = {"uses": "adapt_availability", "weighs": "with_mixing_weights"}
ROUND_MEMBERS = {
    "place": "client_index",
    "kept": "push_self_weight",
    "lead": "step_weight",
    "restarts": "reset_tracker",
}

C = TypeVar("C")


@renamed_attributes(ROUND_MEMBERS)
class OldRoundNames:
    """Base of the rounds of runtimes."""


def accept_old_traits(cls: type[C]) -> type[C]:
    """Class decorator: `Traits` with old names of arguments and attributes."""
    new_init: Callable[..., None] = cls.__init__

    @wraps(new_init)
    def init(self: C, **given: object) -> None:
        new_init(self, **_rename_traits(given))

    cls.__init__ = init  # type: ignore[method-assign, assignment]
    return renamed_attributes(TRAITS)(cls)


def _rename_traits(given: dict[str, object]) -> dict[str, object]:
    renamed = {key: value for key, value in given.items() if key not in TRAITS}
    for old_name in TRAITS.keys() & given.keys():
        warn_renamed(f"{old_name} of Traits", TRAITS[old_name], stacklevel=4)
        renamed[TRAITS[old_name]] = given[old_name]
    activation = renamed.get("activation")
    if activation in ACTIVATIONS:
        renamed["activation"] = ACTIVATIONS[str(activation)]
    return renamed


def adopt_old_hooks(cls: type) -> None:
    """Give methods that override `uses` or `weighs` these under the new names."""
    for old_name, new_name in HOOKS.items():
        if old_name in vars(cls):
            warn_renamed(f"{cls.__name__}.{old_name}", new_name, stacklevel=4)
            setattr(cls, new_name, vars(cls)[old_name])
