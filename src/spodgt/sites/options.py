"""Options of `spodgt.join`, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

from spodgt.errors import InvalidInput


@dataclass(frozen=True)
class BlockOptions:
    """When a block ends, what is exchanged and what is saved; see `spodgt.join`."""

    block_steps: int | None = None
    block_seconds: float | None = None
    alpha: float = 1.0
    weight: float = 1.0
    max_norm: float | None = None
    max_silent_blocks: int | None = 10
    initial: str = "first"
    durability: str = "power"
    linger_seconds: float = 10.0
    checkpoint_blocks: int = 10

    def __post_init__(self) -> None:
        if self.block_steps is not None:
            _check_integer("block_steps", self.block_steps, example=50)
        if self.block_seconds is not None:
            _check_positive("block_seconds", self.block_seconds, example=60.0)
        if self.max_norm is not None:
            _check_positive("max_norm", self.max_norm, example=1.0)
        if self.max_silent_blocks is not None:
            _check_integer("max_silent_blocks", self.max_silent_blocks, example=10)
        _check_integer("checkpoint_blocks", self.checkpoint_blocks, example=10)
        _check_positive("linger_seconds", self.linger_seconds, example=10.0)
        _check_positive("weight", self.weight, example=1.0)
        if math.isinf(self.weight):
            raise InvalidInput(f"weight must be finite, got {self.weight!r}; use weight=1.0.")
        if not (_is_number(self.alpha) and 0 < self.alpha <= 1):
            raise InvalidInput(f"alpha must be in (0, 1], got {self.alpha!r}; use alpha=1.0.")
        _check_choice("initial", self.initial, ("first", "own"))
        _check_choice("durability", self.durability, ("power", "process"))


def _is_number(value: object) -> bool:
    """Whether a value is a number of Python or NumPy; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def _check_positive(name: str, value: float, example: float) -> None:
    if not (_is_number(value) and value > 0):
        raise InvalidInput(
            f"{name} must be a positive number, got {value!r}; use {name}={example}."
        )


def _check_integer(name: str, value: float, example: int) -> None:
    _check_positive(name, value, example)
    if math.isinf(value) or value != int(value):
        raise InvalidInput(f"{name} must be an integer, got {value!r}; use {name}={example}.")


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        names = " or ".join(map(repr, choices))
        raise InvalidInput(f"{name} must be {names}, got {value!r}; use {name}={choices[0]!r}.")
