"""Option groups: a command parameter that is a dataclass becomes one option per field."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Annotated, NamedTuple, get_args, get_origin, get_type_hints

import typer

from spodgt.cli.app import flag


class TextOption(NamedTuple):
    """An option that is given as text and parsed into the value of a field.

    The type of the option is that of the parser's argument: `str | None`, or `list[str] | None`
    for an option that may be repeated. None means that the option was not given.
    """

    parse: Callable[..., object]
    flag: str | None = None  # such as "--address"; None: the name of the field


TextOptions = dict[str, TextOption]  # by field


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Expand the dataclass parameters of a command into options, for typer.

    A field is an option if its annotation has a help text, `Annotated[int, "Stop after …"]`, or a
    typer option, `Annotated[int, typer.Option(…)]`; other fields keep their defaults. Fields of
    types that typer cannot parse have a `TextOption` in the annotation of the command's parameter:
    `Annotated[Deployment, {"names": TextOption(split_commas)}]`.
    """
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, _OptionGroup] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        group = _OptionGroup.of(parameter.annotation)
        if group is None:
            parameters.append(parameter)
        else:
            groups[parameter.name] = group
            parameters.extend(group.parameters)

    def call(**values: object) -> None:
        for name, group in groups.items():
            values[name] = group.build(values)
        command(**values)

    call.__doc__ = command.__doc__
    call.__name__ = command.__name__
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


class _OptionGroup:
    """The options of one dataclass."""

    def __init__(self, group: type, text_options: TextOptions) -> None:
        self.group = group
        self.text_options = text_options
        self.parameters: list[inspect.Parameter] = []
        hints = get_type_hints(group, include_extras=True)
        for field in fields(group):
            if get_origin(hints[field.name]) is Annotated:
                kind, option = get_args(hints[field.name])[:2]
                self._add(field.name, kind, field.default, option)

    @classmethod
    def of(cls, annotation: object) -> _OptionGroup | None:
        """The group of a parameter with this annotation; None if it is a single option."""
        text_options: TextOptions = {}
        if get_origin(annotation) is Annotated:
            annotation, text_options = get_args(annotation)[:2]
        if not isinstance(annotation, type) or not is_dataclass(annotation):
            return None
        return cls(annotation, text_options)

    def _add(self, name: str, kind: object, default: object, option: object) -> None:
        """Add a field as a keyword-only parameter; `option` is a help text or a typer option."""
        long_flag = "--" + name.replace("_", "-")
        if name in self.text_options:
            text_option = self.text_options[name]
            arguments = inspect.signature(text_option.parse, eval_str=True).parameters
            kind = next(iter(arguments.values())).annotation
            default = None
            long_flag = text_option.flag or long_flag
        if isinstance(option, str) and kind is bool:
            option = flag(long_flag, option)
        elif isinstance(option, str):
            option = typer.Option(long_flag, help=option)
        parameter = inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[kind, option],
        )
        self.parameters.append(parameter)

    def build(self, values: dict[str, object]) -> object:
        """The dataclass of the given values, which are removed from `values`."""
        arguments = {}
        for parameter in self.parameters:
            value = values.pop(parameter.name)
            if parameter.name in self.text_options:
                value = self.text_options[parameter.name].parse(value)
            arguments[parameter.name] = value
        return self.group(**arguments)
