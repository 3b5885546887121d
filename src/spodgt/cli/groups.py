"""Commands with many options: a dataclass of options stands for all of them in the command's signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import get_type_hints


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Turn each parameter that is a dataclass into one option per field.

    Args:
        command: Its dataclass parameters have fields annotated as typer options, all with defaults.

    Returns:
        What typer registers: the fields are keyword arguments, and the command gets the dataclasses.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: hint for name, hint in hints.items() if is_dataclass(hint) and isinstance(hint, type)}
    parameters: list[inspect.Parameter] = []
    for given in inspect.signature(command).parameters.values():
        group = groups.get(given.name)
        if group is None:
            parameters.append(given.replace(annotation=hints[given.name]))
            continue
        types = get_type_hints(group, include_extras=True)
        parameters += [
            given.replace(name=f.name, default=f.default, annotation=types[f.name]) for f in fields(group)
        ]

    def call(**values: object) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    call.__doc__, call.__name__ = command.__doc__, command.__name__
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call
