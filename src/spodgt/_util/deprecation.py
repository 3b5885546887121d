"""Deprecated names: they work for one release and warn with the new name."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial, wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def warn_renamed(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Warn that `old` is deprecated.

    Args:
        old: Deprecated name.
        new: What to use instead.
        stacklevel: Frames up to the line to show; 3 is the caller of the function that warns.
    """
    warnings.warn(f"{old} is deprecated; use {new}.", DeprecationWarning, stacklevel=stacklevel)


def renamed_attribute(module: str, name: str, renamed: Mapping[str, str]) -> object:
    """The value of a deprecated attribute of a module, for the module's `__getattr__`.

    Args:
        module: `__name__` of the module.
        name: Attribute that was not found.
        renamed: New dotted name ("package.module.name") of each deprecated attribute.

    Raises:
        AttributeError: `name` is not a deprecated attribute.
    """
    if name not in renamed:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    warn_renamed(f"{module}.{name}", renamed[name], stacklevel=4)
    new_module, new_name = renamed[name].rsplit(".", 1)
    return getattr(import_module(new_module), new_name)


class RenamedAttribute:
    """A deprecated name of another attribute of the same class: `old = RenamedAttribute("new")`."""

    def __init__(self, new: str) -> None:
        self.new = new

    def __set_name__(self, owner: type, name: str) -> None:
        self.old = name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self
        class_name = type(instance).__name__
        warn_renamed(f"{class_name}.{self.old}", f"{class_name}.{self.new}", stacklevel=3)
        return getattr(instance, self.new)


def renamed_attributes(names: Mapping[str, str]) -> Callable[[type[T]], type[T]]:
    """Class decorator: deprecated names of attributes, each with the name to use."""

    def decorate(cls: type[T]) -> type[T]:
        for old, new in names.items():
            attribute = RenamedAttribute(new)
            attribute.__set_name__(cls, old)
            setattr(cls, old, attribute)
        return cls

    return decorate


class MovedProperty:
    """A deprecated property that is a function of the object now.

    Args:
        function: The function, "package.module.name".
    """

    def __init__(self, function: str) -> None:
        self.function = function

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self
        return self._import(instance)(instance)

    def _import(self, instance: object) -> Callable[[object], Any]:
        warn_renamed(f"{type(instance).__name__}.{self.name}", self.function, stacklevel=4)
        module, name = self.function.rsplit(".", 1)
        function: Callable[[object], Any] = getattr(import_module(module), name)
        return function


class MovedMethod(MovedProperty):
    """A deprecated method without arguments that is a function of the object now."""

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self
        return partial(self._import(instance), instance)


def renamed_argument(old: str, new: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator of a function with a renamed argument: the old keyword warns and works.

    Args:
        old: Deprecated keyword.
        new: Name of the parameter.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            if old in kwargs and new not in kwargs:
                warn_renamed(f"{function.__name__}({old}=…)", f"{function.__name__}({new}=…)")
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate


class RenamedKey(dict[str, object]):
    """A dict in which one key has a deprecated name, too.

    Args:
        values: The content.
        old: Deprecated key; `self[old]` warns.
        new: Key to use instead.
    """

    def __init__(self, values: Mapping[str, object], old: str, new: str) -> None:
        super().__init__(values)
        self.old = old
        self.new = new

    def __missing__(self, key: str) -> object:
        if key != self.old:
            raise KeyError(key)
        warn_renamed(f"the key {self.old!r}", repr(self.new))
        return self[self.new]
