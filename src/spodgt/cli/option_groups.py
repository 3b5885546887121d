"""Option groups: a command parameter that is a dataclass becomes one option per field."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, NamedTuple, get_args, get_origin, get_type_hints

import typer


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
    typer option, `Annotated[int, typer.Option(…)]`; other fields keep their defaults. Fields whose
    type typer cannot parse have a `TextOption` in the annotation of the command's parameter:
    `Annotated[Deployment, {"names": TextOption(split_commas)}]`.
    """
    # `get_type_hints` of Python 3.10 loses annotations of parameters that default to None
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, _OptionGroup] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        group = _OptionGroup.of(parameter)
        if group is None:
            parameters.append(parameter)
        else:
            groups[parameter.name] = group
            parameters.extend(group.parameters())

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
        hints = get_type_hints(group, include_extras=True)
        self.fields: dict[str, Field[object]] = {}
        self.hints: dict[str, object] = {}
        for field in fields(group):
            if get_origin(hints[field.name]) is Annotated:
                self.fields[field.name] = field
                self.hints[field.name] = hints[field.name]

    @classmethod
    def of(cls, parameter: inspect.Parameter) -> _OptionGroup | None:
        """The group of a command's parameter; None if it is a plain option."""
        hint = parameter.annotation
        text_options: TextOptions = {}
        if get_origin(hint) is Annotated:
            hint, text_options = get_args(hint)[:2]
        if not isinstance(hint, type) or not is_dataclass(hint):
            return None
        return cls(hint, text_options)

    def parameters(self) -> list[inspect.Parameter]:
        """The options as parameters of a function, for typer."""
        return [self._parameter(name) for name in self.fields]

    def _parameter(self, name: str) -> inspect.Parameter:
        kind, option = get_args(self.hints[name])[:2]
        default = self.fields[name].default
        text_option = self.text_options.get(name)
        flags: list[str] = []
        if text_option is not None:
            kind = _argument_type(text_option.parse)
            default = None
            if text_option.flag is not None:
                flags.append(text_option.flag)
        elif kind is bool and default is False:
            flags.append("--" + name.replace("_", "-"))
        if isinstance(option, str):
            option = typer.Option(*flags, help=option)
        if default is MISSING:
            raise TypeError(f"{self.group.__name__}.{name} needs a default or a TextOption")
        return inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[kind, option],
        )

    def build(self, values: dict[str, object]) -> object:
        """The dataclass of the given values, which are removed from `values`."""
        arguments = {}
        for name in self.fields:
            value = values.pop(name)
            if name in self.text_options:
                value = self.text_options[name].parse(value)
            arguments[name] = value
        return self.group(**arguments)


def _argument_type(parse: Callable[..., object]) -> object:
    """The annotation of a parser's only argument."""
    parameters = inspect.signature(parse, eval_str=True).parameters.values()
    return next(iter(parameters)).annotation
