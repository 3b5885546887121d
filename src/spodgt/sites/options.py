"""Options of `spodgt.join`, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spodgt.errors import InvalidInput

_EXAMPLES = {
    "block_steps": 50,
    "block_seconds": 60.0,
    "max_silent_blocks": 10,
    "checkpoint_blocks": 10,
    "linger_seconds": 10.0,
    "weight": 1.0,
    "max_norm": 1.0,
}
_OPTIONAL = ("block_steps", "block_seconds", "max_silent_blocks", "max_norm")


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
        for key, example in _EXAMPLES.items():
            value = getattr(self, key)
            if value is None and key in _OPTIONAL:
                continue
            if not isinstance(value, int | float) or not value > 0:
                raise InvalidInput(f"{key} must be positive, got {value!r}; use {key}={example}.")
        for key in ("block_steps", "max_silent_blocks", "checkpoint_blocks"):
            value = getattr(self, key)
            if value is not None and (math.isinf(value) or value != int(value)):
                raise InvalidInput(
                    f"{key} must be an integer, got {value!r}; use {key}={_EXAMPLES[key]}."
                )
        if math.isinf(self.weight):
            raise InvalidInput(f"weight must be finite, got {self.weight!r}; use weight=1.0.")
        if not isinstance(self.alpha, int | float) or not 0 < self.alpha <= 1:
            raise InvalidInput(f"alpha must be in (0, 1], got {self.alpha!r}; use alpha=1.0.")
        if self.initial not in ("first", "own"):
            raise InvalidInput(
                f"initial must be 'first' or 'own', got {self.initial!r}; use initial='first'."
            )
        if self.durability not in ("power", "process"):
            raise InvalidInput(
                f"durability must be 'power' or 'process', got {self.durability!r}; use 'power'."
            )
