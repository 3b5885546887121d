"""Recipes: frozen dataclasses that check their own fields, from Python and from a TOML table alike.

A recipe is written once, as a class with typed fields:

    @recipe(InvalidNetwork, RECIPES)
    class Ring:
        name: ClassVar[str] = "ring"
        clients: Clients

pydantic checks types and ranges; this module turns what it finds into the one sentence a user gets,
naming the key, the value and the fix: "radius must be above 0, got -0.4; use radius=0.4.".
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, TypeVar, get_args, get_origin

import numpy as np
import pydantic.dataclasses
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typing_extensions import dataclass_transform

from spodgt.errors import InvalidConfig, InvalidInput

__all__ = ["Field"]  # what recipes annotate their fields with, together with the types below

C = TypeVar("C", bound=type)
T = TypeVar("T")
_WORDS: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    bool: "true or false",
    list: "a list",
}
_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")


@dataclass(frozen=True)
class FieldHint:
    """How an error describes a field, where its type and range alone would not say it well."""

    what: str  # as in "radius must be `above 0`"
    example: object = None  # a good value; the field's default if None
    got: str = "got"  # the words before the bad value
    use: str | None = None  # the fix; "name=example" if None


def _plain(value: object) -> object:
    """Numbers of numpy become Python's; anything else is left for pydantic to judge."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


Whole = Annotated[int, BeforeValidator(_plain)]  # an int, never a bool
Number = Annotated[float, BeforeValidator(_plain)]  # a float or an int, never a bool


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, Field))
def recipe(
    error: type[InvalidInput], registry: MutableMapping[str, Any] | None = None
) -> Callable[[C], C]:
    """Make a class a frozen dataclass that raises `error` for bad fields; `registry` keeps it by `name`."""

    def made(cls: C) -> C:
        config = ConfigDict(
            extra="forbid", strict=True, validate_default=True, arbitrary_types_allowed=True
        )
        checked: Any = pydantic.dataclasses.dataclass(cls, frozen=True, config=config)
        inner = checked.__init__

        @functools.wraps(inner)
        def init(self: object, *args: object, **fields: object) -> None:
            try:
                inner(self, *args, **fields)
            except ValidationError as found:
                raise error(_sentence(found, checked)) from None

        checked.__init__, checked.__checked_init__ = init, inner
        if registry is not None:
            registry[checked.name] = checked
        return checked  # type: ignore[no-any-return]

    return made


def from_table(cls: type[T], table: Mapping[str, object], where: str) -> T:
    """Build a recipe from a table of a config; errors name the key as `where.key`."""
    made: Any = cls.__new__(cls)
    try:
        made.__checked_init__(**table)
    except ValidationError as found:
        raise InvalidConfig(_sentence(found, cls, where)) from None
    return made  # type: ignore[no-any-return]


def to_table(made: Any) -> dict[str, object]:
    """The fields of a recipe as plain values for TOML; those left at None or False are left out."""
    fields = [
        (field, getattr(made, field.name)) for field in dataclasses.fields(made) if field.init
    ]
    return {
        field.name: _value(value)
        for field, value in fields
        if value is not None and not (value is False and field.default is False)
    }


def _value(value: Any) -> object:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if hasattr(value, "__checked_init__"):  # a recipe inside a recipe
        return {"kind": value.name, **to_table(value)}
    if isinstance(value, Mapping):
        return {_key(key): _value(each) for key, each in value.items()}
    return [_value(each) for each in value] if isinstance(value, tuple | list | range) else value


def _key(key: object) -> str:
    """A key of TOML, which is text: a link (sender, receiver) is "sender:receiver"."""
    return ":".join(map(str, key)) if isinstance(key, tuple) else str(key)


# --- sentences ---------------------------------------------------------------------------------------
def choices(word: object, known: Iterable[str]) -> str:
    """The nearest of the known words, or all of them."""
    known = list(known)
    if near := difflib.get_close_matches(str(word), known, 1):
        return f"did you mean {near[0]!r}?"
    if len(known) == 2:
        return f"choose {' or '.join(known)}."
    return f"choose from {', '.join(known) or 'nothing'}."


def reject_unknown_keys(table: Mapping[str, object], known: Iterable[str], where: str) -> None:
    """Refuse keys of a table that mean nothing."""
    known = list(known)
    for key, value in table.items():
        if key not in known:
            raise InvalidConfig(_unknown(key, value, known, where))


def one_of(known: Iterable[str]) -> BeforeValidator:
    """A check of a text field: it must be one of the known words, which may grow later."""

    def check(value: object, info: pydantic.ValidationInfo) -> object:
        if value not in list(known):
            raise ValueError(f"{info.field_name}={value!r} is not known; {choices(value, known)}")
        return value

    return BeforeValidator(check)


def _unknown(key: object, value: object, known: list[str], where: str) -> str:
    return f"{key}={value!r} is not a key of {where}; {choices(key, known)}"


def _sentence(found: ValidationError, cls: Any, where: str = "") -> str:
    """The first thing that is wrong, in one sentence; keys that mean nothing come first."""
    errors = found.errors(include_url=False)
    first = next((each for each in errors if each["type"] in _UNKNOWN), errors[0])
    fields: dict[str, FieldInfo] = cls.__pydantic_fields__
    prefix = f"{where}." if where else ""
    if first["type"] in _UNKNOWN:
        return _unknown(first["loc"][-1], first["input"], list(fields), where or cls.__name__)
    key = str(first["loc"][0]) if first["loc"] else ""
    if first["loc"] and isinstance(first["loc"][0], int):  # given by position
        key = next(iter(list(fields)[first["loc"][0] :]), "")
    if first["type"] == "value_error":  # raised by a check of ours, which says it all
        return f"{prefix if key in fields else ''}{first['ctx']['error']}"
    if key not in fields:
        return f"{cls.__name__} takes {', '.join(fields)}, got {first['input']!r}."
    told = _Told.of(key, fields[key])
    if first["type"] == "missing":
        return f"{prefix}{key} is missing; add {told.example(toml=bool(where))}."
    return prefix + told.bad(first["input"], toml=bool(where), kind=first["type"].endswith("_type"))


def _kind(annotation: object) -> type:
    """The plain type inside an annotation: int of `Annotated[int, …] | None`, list of `list[str]`."""
    plain = get_origin(annotation) or annotation
    if plain in _WORDS:
        return plain
    inner = (_kind(each) for each in get_args(annotation))
    return next((each for each in inner if each is not object), object)


@dataclass(frozen=True)
class _Told:
    """What can be told of a field: its type, its range, and a good value."""

    key: str
    kind: type
    bound: str  # "above 0", "at least 1", or nothing
    good: object
    must: FieldHint | None

    @staticmethod
    def of(key: str, info: FieldInfo) -> _Told:
        kind = _kind(info.annotation)
        must = next((each for each in info.metadata if isinstance(each, FieldHint)), None)
        limits = {type(each).__name__: each for each in info.metadata}
        bound = f"above {limits['Gt'].gt}" if "Gt" in limits else ""
        bound = f"at least {limits['Ge'].ge}" if "Ge" in limits else bound
        good = must.example if must and must.example is not None else None
        good = info.examples[0] if good is None and info.examples else good
        return _Told(key, kind, bound, info.default if good is None else good, must)

    def example(self, *, toml: bool) -> str:
        if self.good is PydanticUndefined:  # a field without a default or an example
            return f"{self.key} = …" if toml else f"{self.key}=…"
        if not toml:
            return f"{self.key}={self.good!r}"
        good = float(self.good) if self.kind is float and isinstance(self.good, int) else self.good
        return f"{self.key} = {json.dumps(good)}"

    def bad(self, value: object, *, toml: bool, kind: bool) -> str:
        """The sentence about a bad value; a config is told of a wrong type and a wrong number apart."""
        word = _WORDS.get(self.kind, "something else")
        if toml and kind:
            return f"{self.key} must be {word}, got {value!r}; use {self.example(toml=True)}."
        if toml and self.kind is float and isinstance(value, int):
            value = float(value)
        if self.must is not None:
            use = self.must.use or self.example(toml=False)
            return f"{self.key} must be {self.must.what}, {self.must.got} {value!r}; use {use}."
        if toml:
            return f"{self.key} must be {self.bound}, got {value!r}; use {self.key} = {self.good}."
        of = f"{word} {self.bound}".replace("number at least", "number of at least").strip()
        return f"{self.key} must be {of}, got {value!r}; use {self.example(toml=False)}."
