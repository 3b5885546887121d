"""The methods of an experiment, from names, tables and objects."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from spodgt.algorithms import find_class, method
from spodgt.algorithms.base import Algorithm
from spodgt.errors import InvalidConfig, InvalidInput
from spodgt.experiment.run_options import RunOptions

Entry = str | Mapping[str, object] | Algorithm  # a name, a table with a name and fields, a method


def build_method(entry: object, run: RunOptions) -> Algorithm:
    """The method of one entry, with step size and layers of `run` where it has none of its own."""
    if isinstance(entry, Algorithm):
        return entry
    table = {"name": entry} if isinstance(entry, str) else entry
    if not isinstance(table, Mapping) or "name" not in table:
        raise InvalidConfig(
            f'run.methods must hold names or tables with a name, got {entry!r}; use "spod-gt".'
        )
    fields = {**(run.layers or {}), **table}
    name = fields.pop("name")
    if run.step_size is not None and _has_step_size(str(name)):
        fields.setdefault("step_size", run.step_size)
    return method(name, **fields)


def check_methods(methods: Entry | Iterable[Entry]) -> list[object]:
    """A list of methods and tables, from the argument of `compare`."""
    if isinstance(methods, str | Algorithm | Mapping):
        methods = [methods]
    if not isinstance(methods, Iterable):
        raise InvalidInput(
            f'methods must be a list of methods, got {type(methods).__name__}; use ["spod-gt"].'
        )
    entries: list[object] = []
    for entry in methods:
        entries.append(entry if isinstance(entry, Mapping) else method(entry))
    if not entries:
        raise InvalidInput('methods must name at least one method, got none; use ["spod-gt"].')
    return entries


def _has_step_size(name: str) -> bool:
    """Whether the method of this name has a step size."""
    try:
        algorithm = find_class(name)
    except InvalidConfig:
        return False
    fields = dataclasses.fields(algorithm)  # type: ignore[arg-type]
    return any(field.name == "step_size" for field in fields)
