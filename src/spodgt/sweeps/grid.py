"""Specifications of sweeps, and the TOML files that hold them; the paper's figures are shipped.

    title = "Fashion-MNIST: radius"        title of the report
    figure = "3b"                          number of the figure in the paper
    paper = "…"                            statement of the paper about it
    base = "fmnist-noniid"                 file in the same folder with the base config
    [run] [network] [participation] [problem]   differences from the base, as in any config
    [sweep]
    "network.radius" = [0.3, 0.4, 0.5]     config keys and their values; several keys form a grid

Sweeps of users have the same form; all keys except a config section are optional. The changes of a
scale (smoke, laptop, paper) are in `scales.toml`, for all experiments.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w

from spodgt.errors import InvalidConfig
from spodgt.experiment import Experiment, read_toml
from spodgt.experiment.checks import is_portable
from spodgt.experiment.toml import SECTIONS, Table
from spodgt.record.sweep import Scale
from spodgt.validation import choices

FOLDER = Path(__file__).parents[1] / "experiment" / "paper"
SCALES = ("smoke", "laptop", "paper")
Values = list[Any]  # of a key of the grid
_TEXTS = ("title", "figure", "paper", "scale")
_MAX_CELLS = 10_000
_NOT_IN_FIGURES = ("run.gradient_norm",)  # changes of a scale that no figure shows


@dataclass(frozen=True)
class Spec:
    """A sweep: an experiment, and a grid of values for some of its config keys."""

    name: str
    experiment: Experiment  # shared by all cells
    grid: dict[str, Values] = field(default_factory=dict)
    title: str = ""
    figure: str = ""  # number in the paper, if it reproduces a figure
    paper: str = ""  # statement of the paper about it
    scale: Scale = field(default_factory=Scale)
    changes: Table = field(default_factory=dict)  # by the user, since it was loaded

    def points(self) -> list[Table]:
        """Every combination of the grid's values; a single empty one without a grid."""
        rows = itertools.product(*self.grid.values())
        return [dict(zip(self.grid, values, strict=True)) for values in rows]

    def override(self, changes: Mapping[str, object]) -> Spec:
        """Change config keys.

        For a key of the grid, a list replaces its values, and a single value removes it from the
        grid.
        """
        grid = dict(self.grid)
        fixed: Table = {}
        for key, value in changes.items():
            if key.startswith("sweep."):
                swept = choices(key.removeprefix("sweep."), self.grid)
                raise InvalidConfig(
                    f"{key} is not a key; keys of the grid are set without 'sweep.': {swept}"
                )
            if key in grid and value in (None, []):
                raise InvalidConfig(
                    f"{key} is swept; give it a value or a list of values, or edit the file."
                )
            if key in grid and isinstance(value, list) and _are_values(value, grid[key]):
                grid[key] = value
            else:
                grid.pop(key, None)
                fixed[key] = value
        changed = replace(
            self,
            experiment=self.experiment.override(fixed),
            grid=grid,
            changes={**self.changes, **changes},
        )
        return checked(changed)

    def to_toml(self) -> str:
        """The sweep as a file for `spodgt sweep`; empty if it holds Python objects."""
        if not is_portable(self.experiment):
            return ""
        tables: Table = {}
        for key in _TEXTS:
            text = str(getattr(self, key))
            if text:
                tables[key] = text
        tables |= self.experiment.to_dict()
        if self.grid:
            tables["sweep"] = self.grid
        return tomli_w.dumps(tables)


def names() -> list[str]:
    """The shipped experiments, in the order of the paper."""
    shipped = [path.stem for path in FOLDER.glob("*.toml") if path.stem != "scales"]
    return sorted(shipped, key=lambda name: read_toml(FOLDER / f"{name}.toml").get("figure", name))


def load(name: str, scale: str = "paper") -> Spec:
    """A shipped experiment at one scale."""
    if name not in names():
        raise InvalidConfig(
            f"experiment {name!r} is not known; choose from {', '.join(names())}, all."
        )
    if scale not in SCALES:
        raise InvalidConfig(f"--scale={scale!r} is not known; choose from {', '.join(SCALES)}.")
    spec = read(FOLDER / f"{name}.toml")
    table = read_toml(FOLDER / "scales.toml").get(scale, {})
    max_values = table.get("values", math.inf)
    grid = {key: _first_and_last(values, max_values) for key, values in spec.grid.items()}
    changes = _scale_changes(table, spec)
    return replace(
        spec,
        experiment=spec.experiment.override(changes),
        grid=grid,
        scale=_compare_with_paper(scale, spec, changes, grid),
    )


def _scale_changes(table: Table, spec: Spec) -> Table:
    """The config changes of a scale; keys of the grid are swept at every scale."""
    data = str(value_at(spec.experiment, "problem.data"))
    changes = dict(table.get(data, {}))
    grid_changes = changes.pop("grids", {})
    if spec.grid:
        changes |= grid_changes
    return {key: value for key, value in changes.items() if key not in spec.grid}


def _compare_with_paper(scale: str, spec: Spec, changes: Table, grid: dict[str, Values]) -> Scale:
    reduced = {}
    for key, value in changes.items():
        if key not in _NOT_IN_FIGURES:
            reduced[key] = (value, value_at(spec.experiment, key))
    kept = {}
    for key, values in grid.items():
        if values != spec.grid[key]:
            kept[key] = (len(values), len(spec.grid[key]))
    return Scale(scale, reduced, kept)


def read(path: str | Path) -> Spec:
    """The sweep of a file of the form above; any config of `spodgt run` is one of a single cell."""
    path = Path(path)
    tables = read_toml(path)
    _check_tables(tables, path.name)
    experiment = Experiment.parse(_config(path)).resolve_relative_to(path.parent)
    texts = {key: tables[key] for key in _TEXTS if key in tables and key != "scale"}
    scale = Scale(note=tables.get("scale", ""))
    return checked(Spec(path.stem, experiment, tables.get("sweep", {}), scale=scale, **texts))


def _check_tables(tables: Table, file: str) -> None:
    grid = tables.get("sweep", {})
    if not isinstance(grid, dict):
        raise InvalidConfig(f"sweep of {file} must be a table, got {grid!r}; write it as [sweep].")
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            example = values if isinstance(values, int | float | str) else 0.3
            raise InvalidConfig(
                f"sweep key {key!r} of {file} must have a list of values, got {values!r}; "
                f'write it as "{key}" = [{example!r}].'
            )
    for key in _TEXTS:
        if not isinstance(tables.get(key, ""), str):
            raise InvalidConfig(f"{key} of {file} must be text in quotes, got {tables[key]!r}.")
    known = (*_TEXTS, "base", "sweep", *SECTIONS)
    for key in tables:
        if key not in known:
            raise InvalidConfig(f"{key} is not a key of {file}; {choices(key, known)}")


def has_grid(tables: Mapping[str, object]) -> bool:
    """Whether a file has keys to sweep."""
    return bool(tables.get("sweep"))


def is_plain(tables: Mapping[str, object]) -> bool:
    """Whether a file is the config of a single experiment, without keys of sweeps."""
    return not any(key in tables for key in (*_TEXTS, "base"))


def value_at(experiment: Experiment, key: str) -> object:
    """The value of a dotted config key; None if it is not set."""
    value: object = experiment.to_dict()
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def checked(spec: Spec) -> Spec:
    """Return `spec`, or raise InvalidConfig if one of its cells is invalid."""
    if math.prod(map(len, spec.grid.values())) > _MAX_CELLS:
        raise InvalidConfig(
            f"sweep of {spec.name} has more than {_MAX_CELLS:,} cells; make it smaller."
        )
    for point in spec.points():
        spec.experiment.override(point)
    return spec


def _are_values(given: Values, before: Values) -> bool:
    """Whether `given` is a list of values, and not a single value that is a list itself."""
    values_are_lists = isinstance(before[0], list)
    return all(isinstance(value, list) == values_are_lists for value in given)


def _config(path: Path, parents: tuple[Path, ...] = ()) -> Table:
    """The config sections of a file, merged into those of its base."""
    tables = read_toml(path)
    sections = {key: tables[key] for key in SECTIONS if key in tables}
    if "base" not in tables:
        return sections
    if not isinstance(tables["base"], str):
        raise InvalidConfig(f"base of {path.name} must be text in quotes, got {tables['base']!r}.")
    base = path.parent / (tables["base"].removesuffix(".toml") + ".toml")
    if base.resolve() in parents:
        raise InvalidConfig(f"base of {path.name} leads back to {base.name}; remove one of them.")
    return _merge(_config(base, (*parents, path.resolve())), sections)


def _merge(base: Mapping[str, object], changes: Mapping[str, object]) -> Table:
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = _merge(old, value)
        merged[key] = value
    return merged


def _first_and_last(values: Values, max_values: float) -> Values:
    """All values, or only the first and the last one if there are more than `max_values`."""
    if len(values) <= max_values:
        return values
    return [values[0], values[-1]]
