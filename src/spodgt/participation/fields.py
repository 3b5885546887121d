"""Types and checks of the fields of `correlated` participations, from Python and from a config."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Annotated

import numpy as np
from pydantic import BeforeValidator, SkipValidation, ValidationInfo

from spodgt._util.text import short_repr
from spodgt.errors import InvalidConfig
from spodgt.participation.recipes import (
    PARTICIPATIONS,
    Numbers,
    Participation,
    check_participation,
)
from spodgt.types import Ints
from spodgt.validation import Field, FieldHint, Number, Whole, choices, from_table

PHASES = ("random", "east-west")
_MAX_ROUNDS = 2**53  # whole numbers up to this one are exact as floats
_DURATION_HINT = "numbers of rounds of at least 1"


@dataclass(frozen=True)
class NumbersField:
    """Validator of a field of one number, or one per client or link in a list or dict."""

    least: float
    most: float
    requirement: str  # in errors
    example: str

    def check(self, value: object, info: ValidationInfo) -> Numbers:
        numbers = list(value.values()) if isinstance(value, Mapping) else value
        array = np.empty(0)
        if isinstance(numbers, int | float | list | tuple | np.ndarray):
            array = np.asarray(numbers)
        is_numeric = array.dtype.kind in "iuf" and array.ndim < 2 and array.size > 0
        if not is_numeric or not ((array >= self.least) & (array <= self.most)).all():
            name = info.field_name
            raise ValueError(
                f"{name} must be {self.requirement}, got {short_repr(value)}; "
                f"use {name}={self.example}."
            )
        if isinstance(value, Mapping):
            return dict(zip(value, array.tolist(), strict=True))
        return tuple(array.tolist()) if array.ndim else float(array)


def check_inner_participation(value: object) -> Participation:
    """A participation, or the table of one in a config."""
    if not isinstance(value, Mapping):
        check_participation(value)
        return value  # type: ignore[return-value]
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in PARTICIPATIONS:
        raise InvalidConfig(f"of.kind={kind!r} is not known; {choices(kind, PARTICIPATIONS)}")
    fields = {key: item for key, item in value.items() if key != "kind"}
    return from_table(PARTICIPATIONS[kind], fields, "of")


def check_participations(value: object) -> tuple[Participation, ...]:
    if not isinstance(value, list | tuple) or len(value) < 2:
        raise InvalidConfig(
            f"of must be a list of at least two participations, got {short_repr(value)}; add one."
        )
    return tuple(check_inner_participation(item) for item in value)


def check_phase(value: object) -> str | tuple[float, ...]:
    if isinstance(value, str) and value in PHASES:
        return value
    if isinstance(value, list | tuple | np.ndarray):
        array = np.asarray(value)
        is_numeric = array.dtype.kind in "iuf" and array.ndim == 1 and array.size > 0
        if is_numeric and ((array >= 0) & (array < 1)).all():
            return tuple(array.tolist())
    raise ValueError(
        f"phase must be {' or '.join(map(repr, PHASES))}, or numbers in [0, 1), one per client, "
        f"got {short_repr(value)}; use phase={PHASES[0]!r}."
    )


def check_groups(value: object) -> Groups | None:
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return dict(zip(value, _check_regions(list(value.values())), strict=True))
    return _check_regions(value)


def _check_regions(value: object) -> tuple[str | int, ...]:
    """Names or numbers of regions, one per client."""
    regions = value if isinstance(value, list | tuple) else []
    if regions and all(isinstance(region, str | Integral) for region in regions):
        return tuple(region if isinstance(region, str) else int(region) for region in regions)
    raise ValueError(
        f"groups must be a list of names or numbers, one per client, got {short_repr(value)}; "
        "use groups=[0, 0, 1]."
    )


Groups = Sequence[str | int] | Mapping[str, str | int] | Ints
Durations = Annotated[
    Numbers,
    SkipValidation,
    BeforeValidator(NumbersField(1, _MAX_ROUNDS, _DURATION_HINT, "20.0").check),
]
Probabilities = Annotated[
    Numbers,
    SkipValidation,
    BeforeValidator(NumbersField(0, 1, "numbers in [0, 1]", "0.5").check),
]
Duration = Annotated[
    Number, Field(ge=1, le=_MAX_ROUNDS), FieldHint("a number of rounds of at least 1", 20.0)
]
Probability = Annotated[Number, Field(ge=0, le=1), FieldHint("in [0, 1]", 0.5)]
Count = Annotated[Whole, Field(ge=1, le=_MAX_ROUNDS), FieldHint("a whole number of at least 1")]
