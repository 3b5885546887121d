"""The columns of a flat model: shared and personal parameters, running statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Literal

from torch import Tensor, nn

from spodgt.errors import InvalidInput
from spodgt.problems.gradients import Layout
from spodgt.problems.models.initialization import Init

Patterns = str | Sequence[str] | None


@dataclass(frozen=True)
class ModelOptions:
    """How a model is initialised and which of its parameters are exchanged; see `Learning`."""

    init: Init = "given"
    same_start: bool = True
    buffers: Literal["pull"] | None = None
    shared: Patterns = None
    personal: Patterns = None
    personal_step_size: float = 0.01

    def check(self) -> None:
        """Raise `InvalidInput` for the first option with an invalid value."""
        if self.buffers not in (None, "pull"):
            raise InvalidInput(
                f"buffers must be 'pull' or None, got {self.buffers!r}; use buffers='pull'."
            )
        if self.shared is not None and self.personal is not None:
            raise InvalidInput(
                "shared and personal must not both be given; what is not one is the other."
            )
        step_size = self.personal_step_size
        is_number = isinstance(step_size, int | float) and not isinstance(step_size, bool)
        if not is_number or not 0 <= step_size < float("inf"):
            raise InvalidInput(
                f"personal_step_size must be a number of at least 0, got {step_size!r}; "
                "use personal_step_size=0.01."
            )

    @property
    def pattern_key(self) -> Literal["shared", "personal"]:
        """The option that holds the patterns."""
        return "personal" if self.shared is None else "shared"

    @property
    def patterns(self) -> list[str]:
        """The patterns of `pattern_key` as a list."""
        given = self.personal if self.shared is None else self.shared
        if isinstance(given, str):
            return [given]
        return list(given or ())

    def matches(self, name: str) -> bool:
        """Whether a name matches one of the patterns."""
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)


@dataclass(frozen=True, eq=False)
class ModelColumns:
    """The parts of a flat model, in this order; frozen parameters are constants of the module."""

    shared: Layout  # parameters that methods train and clients exchange
    running: Layout  # running statistics that are exchanged with them
    personal: Layout  # parameters that each client trains itself
    local: Layout  # running statistics that are not exchanged

    @staticmethod
    def of(module: nn.Module, statistics: Layout, options: ModelOptions) -> ModelColumns:
        """Divide the parameters and running statistics of a module by the patterns of the options.

        Args:
            module: the model.
            statistics: buffers that training changes.
            options: patterns of names.

        Raises:
            InvalidInput: if a pattern matches nothing, splits a tied parameter or leaves no
                parameter to exchange, or if running statistics would be exchanged unasked.
        """
        parameters = {}
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                parameters[name] = parameter
        all_buffers = dict(module.named_buffers())
        buffers = {name: all_buffers[name] for name in statistics.names}
        personal = _personal_names([*parameters, *buffers], options)
        _check_tied_parameters(module, personal, options)
        columns = ModelColumns(
            shared=_layout_without(parameters, personal),
            running=_layout_without(buffers, personal),
            personal=_layout_of(parameters, personal),
            local=_layout_of(buffers, personal),
        )
        if not columns.shared.size:
            raise InvalidInput(
                f"{options.pattern_key} must leave some parameters to exchange, got "
                f"{options.shared or options.personal!r}; of {', '.join(parameters)} none is."
            )
        if columns.running.names and options.buffers != "pull":
            raise InvalidInput(
                "model must not change buffers while it trains, but "
                f"{columns.running.names[0]!r} changes; replace BatchNorm by torch.nn.GroupNorm, "
                'or use buffers="pull" to exchange them with the models.'
            )
        return columns

    @cached_property
    def extra(self) -> Layout:
        """All columns behind the shared parameters."""
        return self.running + self.personal + self.local

    @property
    def private(self) -> int:
        """Number of columns that never leave their client."""
        return self.personal.size + self.local.size

    @cached_property
    def all(self) -> Layout:
        """All columns."""
        return self.shared + self.extra


def _layout_of(tensors: Mapping[str, Tensor], names: set[str]) -> Layout:
    return Layout.of({name: tensor for name, tensor in tensors.items() if name in names})


def _layout_without(tensors: Mapping[str, Tensor], names: set[str]) -> Layout:
    return Layout.of({name: tensor for name, tensor in tensors.items() if name not in names})


def _personal_names(names: list[str], options: ModelOptions) -> set[str]:
    """The names of parameters and statistics that are not exchanged."""
    for pattern in options.patterns:
        is_used = isinstance(pattern, str) and any(fnmatchcase(name, pattern) for name in names)
        if not is_used:
            raise InvalidInput(
                f"{options.pattern_key} has {pattern!r}, which matches nothing that is trained; "
                f"choose from {', '.join(names)}."
            )
    matched = {name for name in names if options.matches(name)}
    if options.pattern_key == "personal":
        return matched
    return set(names) - matched


def _check_tied_parameters(module: nn.Module, personal: set[str], options: ModelOptions) -> None:
    """Refuse patterns that match the second name of a tied parameter but not its first.

    A tied parameter is divided by its first name.
    """
    first_names = {id(parameter): name for name, parameter in module.named_parameters()}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        first = first_names[id(parameter)]
        if name == first or not parameter.requires_grad:
            continue
        is_first_matched = (first in personal) == (options.pattern_key == "personal")
        if options.matches(name) and not is_first_matched:
            raise InvalidInput(
                f"{options.pattern_key} has a pattern for {name!r}, which is tied to {first!r} "
                f"and is treated alike; add {first!r}, or name only what is not tied."
            )
