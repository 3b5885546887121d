"""Recipes: frozen dataclasses that check their own fields, from Python and from a TOML table alike.

A recipe is written once, as a class with typed fields:

    @recipe(InvalidNetwork, RECIPES)
    class Ring:
        name: ClassVar[str] = "ring"
        clients: Clients

pydantic checks types and ranges; this module converts its errors to one sentence with the key, the
value and the fix: "radius must be above 0, got -0.4; use radius=0.4.".
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
from pydantic_core import ErrorDetails, PydanticUndefined
from typing_extensions import dataclass_transform

from spodgt.errors import InvalidConfig, InvalidInput

__all__ = ["Field"]  # recipes annotate their fields with it and with the types below

C = TypeVar("C", bound=type)
T = TypeVar("T")
_TYPE_NAMES: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    bool: "true or false",
    list: "a list",
}
_UNKNOWN_KEY = ("unexpected_keyword_argument", "extra_forbidden")  # error types of pydantic
_CONFIG = ConfigDict(
    extra="forbid", strict=True, validate_default=True, arbitrary_types_allowed=True
)


@dataclass(frozen=True)
class FieldHint:
    """How errors describe a field, if its type and range are not enough.

    Args:
        requirement: As in "radius must be `above 0`".
        example: A valid value; None: the default of the field.
        got: The words before the invalid value.
        use: The fix, after "use"; None: "name=example".
    """

    requirement: str
    example: object = None
    got: str = "got"
    use: str | None = None


def _to_python_number(value: object) -> object:
    """Convert numbers of NumPy to numbers of Python; pydantic checks all other values."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return value


Whole = Annotated[int, BeforeValidator(_to_python_number)]  # an int, never a bool
Number = Annotated[float, BeforeValidator(_to_python_number)]  # a float or an int, never a bool


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, Field))
def recipe(
    error: type[InvalidInput], registry: MutableMapping[str, Any] | None = None
) -> Callable[[C], C]:
    """Class decorator: a frozen dataclass that checks its fields.

    Args:
        error: Raised for invalid fields.
        registry: Receives the class under its `name`.
    """

    def decorate(cls: C) -> C:
        checked: Any = pydantic.dataclasses.dataclass(cls, frozen=True, config=_CONFIG)
        checked.__checked_init__ = checked.__init__
        checked.__init__ = _init_raising(error, checked)
        if registry is not None:
            registry[checked.name] = checked
        return checked  # type: ignore[no-any-return]

    return decorate


def _init_raising(error: type[InvalidInput], cls: Any) -> Callable[..., None]:
    """The constructor of a recipe, with errors in one sentence."""

    @functools.wraps(cls.__checked_init__)
    def init(self: object, *args: object, **fields: object) -> None:
        try:
            cls.__checked_init__(self, *args, **fields)
        except ValidationError as invalid:
            raise error(_describe(invalid, cls)) from None

    return init


def from_table(cls: type[T], table: Mapping[str, object], where: str) -> T:
    """Create a recipe from a table of a config.

    Args:
        cls: The class.
        table: Its fields.
        where: Name of the table; errors name a key as "where.key".
    """
    created: Any = cls.__new__(cls)
    try:
        created.__checked_init__(**table)
    except ValidationError as invalid:
        raise InvalidConfig(_describe(invalid, cls, where)) from None
    return created  # type: ignore[no-any-return]


def to_table(instance: Any) -> dict[str, object]:
    """The fields of a recipe as plain values for TOML, without None and without a default False."""
    table = {}
    for field in dataclasses.fields(instance):
        if not field.init:
            continue
        value = getattr(instance, field.name)
        is_default_false = value is False and field.default is False
        if value is not None and not is_default_false:
            table[field.name] = _to_toml(value)
    return table


def to_kind_table(instance: Any) -> dict[str, object]:
    """As `to_table`, with the name of the recipe as `kind`."""
    return {"kind": instance.name, **to_table(instance)}


def _to_toml(value: object) -> object:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if hasattr(value, "__checked_init__"):  # a recipe inside a recipe
        return to_kind_table(value)
    if isinstance(value, Mapping):
        return {_to_toml_key(key): _to_toml(item) for key, item in value.items()}
    if isinstance(value, tuple | list | range):
        return [_to_toml(item) for item in value]
    return value


def _to_toml_key(key: object) -> str:
    """Keys of TOML are text: a link (sender, receiver) becomes "sender:receiver"."""
    return ":".join(map(str, key)) if isinstance(key, tuple) else str(key)


# --- error messages ------------------------------------------------------------------------------
def choices(word: object, allowed: Iterable[str]) -> str:
    """The end of an error message: the most similar allowed word, or all of them."""
    allowed = list(allowed)
    similar = difflib.get_close_matches(str(word), allowed, 1)
    if similar:
        return f"did you mean {similar[0]!r}?"
    if len(allowed) == 2:
        return f"choose {' or '.join(allowed)}."
    return f"choose from {', '.join(allowed) or 'nothing'}."


def check_choice(key: str, value: object, allowed: Iterable[object], owner: str) -> None:
    """Raise `InvalidInput` if a value is not one of those that `owner` has.

    Args:
        key: The argument or option.
        value: Its value.
        allowed: The possible values.
        owner: What has these, such as "this run".
    """
    allowed = list(allowed)
    if value not in allowed:
        raise InvalidInput(
            f"{key}={value!r} is not one of {owner}; choose from {', '.join(map(str, allowed))}."
        )


def check_count(
    name: str, value: object, example: object, *, least: int = 1, alternative: str = ""
) -> int:
    """Check an argument that is a whole number, such as a number of clients.

    Args:
        name: The argument.
        value: Its value.
        example: A valid value, for the error.
        least: The smallest number that is accepted.
        alternative: What the caller accepts, too, such as " or None".

    Raises:
        InvalidInput: The value is no whole number, or below `least`.
    """
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not is_whole or value < least:  # type: ignore[operator]
        raise InvalidInput(
            f"{name} must be a whole number of at least {least}{alternative}, got {value!r}; "
            f"use {example}."
        )
    return int(value)  # type: ignore[call-overload, no-any-return]


def reject_unknown_keys(table: Mapping[str, object], allowed: Iterable[str], where: str) -> None:
    """Raise `InvalidConfig` if a table has a key that is not allowed."""
    allowed = list(allowed)
    for key, value in table.items():
        if key not in allowed:
            raise InvalidConfig(_unknown_key(key, value, allowed, where))


def one_of(allowed: Iterable[str | None], fix: str | None = None) -> BeforeValidator:
    """Validator of a field with few possible values.

    Args:
        allowed: The values; a registry may get further ones after this call.
        fix: The end of the error message; None: the most similar value, or all of them.
    """

    def check(value: object, info: pydantic.ValidationInfo) -> object:
        if value not in list(allowed):
            advice = fix or choices(value, map(str, allowed))
            raise ValueError(f"{info.field_name}={value!r} is not known; {advice}")
        return value

    return BeforeValidator(check)


def _unknown_key(key: object, value: object, allowed: list[str], where: str) -> str:
    return f"{key}={value!r} is not a key of {where}; {choices(key, allowed)}"


def _describe(invalid: ValidationError, cls: Any, where: str = "") -> str:
    """One sentence about the first error; unknown keys have precedence.

    Args:
        invalid: The errors of pydantic.
        cls: The recipe.
        where: Name of the table in a config; empty: the recipe was created in Python.
    """
    fields: dict[str, FieldInfo] = cls.__pydantic_fields__
    errors = invalid.errors(include_url=False)
    for error in errors:
        if error["type"] in _UNKNOWN_KEY:
            key = error["loc"][-1]
            return _unknown_key(key, error["input"], list(fields), where or cls.__name__)
    error = errors[0]
    key = _field_name(error, list(fields))
    if key not in fields:  # an error of the whole recipe
        if error["type"] == "value_error":
            return str(error["ctx"]["error"])
        return f"{cls.__name__} takes {', '.join(fields)}, got {error['input']!r}."
    message = _describe_field(error, _FieldDoc(key, fields[key], in_toml=bool(where)))
    return f"{where}.{message}" if where else message


def _describe_field(error: ErrorDetails, field: _FieldDoc) -> str:
    """One sentence about an invalid field."""
    if error["type"] == "value_error":  # raised by a validator, with a complete message
        return str(error["ctx"]["error"])
    if error["type"] == "missing":
        return f"{field.key} is missing; add {field.assignment()}."
    if field.in_toml and error["type"].endswith("_type"):
        return field.wrong_type(error["input"])
    return field.wrong_value(error["input"])


def _field_name(error: ErrorDetails, names: list[str]) -> str:
    """The field of an error; an argument by position is named by its number."""
    if not error["loc"]:
        return ""
    name = error["loc"][0]
    if isinstance(name, str):
        return name
    return names[name] if name < len(names) else ""


def _plain_type(annotation: object) -> type:
    """The plain type in an annotation: int of `Annotated[int, …] | None`, list of `list[str]`."""
    origin = get_origin(annotation) or annotation
    if origin in _TYPE_NAMES:
        return origin
    for argument in get_args(annotation):
        plain = _plain_type(argument)
        if plain is not object:
            return plain
    return object


class _FieldDoc:
    """Texts about one field: its type, range and a valid value.

    In configs, a wrong type and a number out of range have different messages.
    """

    def __init__(self, key: str, info: FieldInfo, *, in_toml: bool) -> None:
        self.key = key
        self.in_toml = in_toml
        self.type = _plain_type(info.annotation)
        self.type_name = _TYPE_NAMES.get(self.type, "something else")
        self.hint: FieldHint | None = None
        self.bound = ""
        self.example = info.examples[0] if info.examples else info.default
        for item in info.metadata:
            if isinstance(item, FieldHint):
                self.hint = item
            elif hasattr(item, "gt"):
                self.bound = f"above {item.gt}"
            elif hasattr(item, "ge"):
                self.bound = f"at least {item.ge}"
        if self.hint is not None and self.hint.example is not None:
            self.example = self.hint.example

    def assignment(self) -> str:
        """A valid assignment: `radius=0.4`, or `radius = 0.4` in a config."""
        equals = " = " if self.in_toml else "="
        if self.example is PydanticUndefined:  # no default, no example
            return f"{self.key}{equals}…"
        if not self.in_toml:
            return f"{self.key}={self.example!r}"
        return f"{self.key} = {json.dumps(self._as_float(self.example))}"

    def wrong_type(self, value: object) -> str:
        return f"{self.key} must be {self.type_name}, got {value!r}; use {self.assignment()}."

    def wrong_value(self, value: object) -> str:
        if self.in_toml:
            value = self._as_float(value)
        if self.hint is not None:
            fix = self.hint.use or f"{self.key}={self.example!r}"
            return (
                f"{self.key} must be {self.hint.requirement}, {self.hint.got} {value!r}; use {fix}."
            )
        if self.in_toml:
            return (
                f"{self.key} must be {self.bound}, got {value!r}; use {self.key} = {self.example}."
            )
        requirement = f"{self.type_name} {self.bound}".strip()
        requirement = requirement.replace("number at least", "number of at least")
        return f"{self.key} must be {requirement}, got {value!r}; use {self.assignment()}."

    def _as_float(self, value: object) -> object:
        """Whole numbers of a float field, as TOML writes them."""
        return float(value) if self.type is float and isinstance(value, int) else value
