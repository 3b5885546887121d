"""Commands with many options: a dataclass of options stands for all of them in the command's signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Annotated, get_args, get_type_hints

import typer


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """What typer registers: each parameter that is a dataclass becomes one option per field.

    A field is annotated with a typer option, or with the text of its help alone, and has a default.
    """
    signature = inspect.signature(
        command, eval_str=True
    )  # `get_type_hints` of 3.10 hides what defaults to None
    hints = {name: given.annotation for name, given in signature.parameters.items()}
    groups = {
        name: hint for name, hint in hints.items() if is_dataclass(hint) and isinstance(hint, type)
    }
    parameters: list[inspect.Parameter] = []
    for given in signature.parameters.values():
        if (group := groups.get(given.name)) is None:
            parameters.append(given)
            continue
        for field in fields(group):
            hint = get_type_hints(group, include_extras=True)[field.name]
            kind, told = get_args(hint)
            hint = Annotated[kind, typer.Option(help=told)] if isinstance(told, str) else hint
            parameters.append(
                given.replace(name=field.name, default=field.default, annotation=hint)
            )

    def call(**values: object) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    call.__doc__, call.__name__ = command.__doc__, command.__name__
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call
