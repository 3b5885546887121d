"""The figures of the paper, one TOML file each, and how such a file is read.

    title = "Fashion-MNIST: radius"        what it is
    figure = "3b"                          which figure of the paper
    paper = "…"                            what the paper says about it
    base = "fmnist-noniid"                 start from this file's config (its neighbour)
    [run] [network] [participation] [problem]   what differs from it, as in any config
    [sweep]
    "network.radius" = [0.3, 0.4, 0.5]     config keys and their values; several keys make a grid

A file of a sweep of your own has the same form; everything but a config section is optional. What a
scale (smoke, laptop, paper) changes is in `scales.toml`, once for all experiments.
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
from spodgt.experiment.toml import SECTIONS, Table
from spodgt.record.sweep import Scale

FOLDER = Path(__file__).parents[1] / "experiment" / "paper"
SCALES = ("smoke", "laptop", "paper")
Values = list[Any]  # of a key of the grid
_TEXTS = ("title", "figure", "paper", "scale")
_MOST_CELLS = 10_000


@dataclass(frozen=True)
class Spec:
    """What a file describes: an experiment, and a grid of values for some of its keys."""

    name: str
    experiment: Experiment  # what all cells have in common
    grid: dict[str, Values] = field(default_factory=dict)
    title: str = ""
    figure: str = ""  # of the paper, where it reproduces one
    paper: str = ""  # what the paper says about it
    scale: Scale = field(default_factory=Scale)
    changes: Table = field(default_factory=dict)  # made by hand since it was loaded

    def points(self) -> list[Table]:
        """Every combination of the grid's values; one empty one where there is no grid."""
        rows = itertools.product(*self.grid.values())
        return [dict(zip(self.grid, values, strict=True)) for values in rows]

    def override(self, changes: Mapping[str, object]) -> Spec:
        """Change config keys; of a key of the grid, a list replaces the values, one value takes it out."""
        grid, fixed = dict(self.grid), Table()
        for key, value in changes.items():
            if key in grid and value in (None, []):
                raise InvalidConfig(
                    f"{key} is swept; give it a value or a list of values, or edit the file."
                )
            if key in grid and isinstance(value, list) and _are_values(value, grid[key]):
                grid[key] = value
            else:
                grid.pop(key, None)
                fixed[key] = value
        changed = {**self.changes, **changes}
        return checked(
            replace(self, experiment=self.experiment.override(fixed), grid=grid, changes=changed)
        )

    def to_toml(self) -> str:
        """The whole of it as a file that `spodgt sweep` reads; nothing if it holds objects of Python."""
        if not self.experiment.portable:
            return ""
        texts = {key: str(getattr(self, key)) for key in _TEXTS if str(getattr(self, key))}
        grid = {"sweep": self.grid} if self.grid else {}
        return tomli_w.dumps({**texts, **self.experiment.to_dict(), **grid})


def names() -> list[str]:
    """The experiments that come with the package, in the paper's order."""
    found = [path.stem for path in FOLDER.glob("*.toml") if path.stem != "scales"]
    return sorted(found, key=lambda name: read_toml(FOLDER / f"{name}.toml").get("figure", name))


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
    changes = dict(table.get(at(spec.experiment, "problem.data"), {}))
    for_grids = changes.pop("grids", {})
    changes |= for_grids if spec.grid else {}
    most = table.get("values", math.inf)
    grid = {key: _ends(values, most) for key, values in spec.grid.items()}
    # A key of the grid belongs to the figure, whatever the scale.
    changes = {key: value for key, value in changes.items() if key not in grid}
    told = {
        key: value for key, value in changes.items() if key != "run.gradient_norm"
    }  # not in a figure
    reduced = {key: (value, at(spec.experiment, key)) for key, value in told.items()}
    kept = {
        key: (len(grid[key]), len(spec.grid[key])) for key in grid if grid[key] != spec.grid[key]
    }
    return replace(
        spec,
        experiment=spec.experiment.override(changes),
        grid=grid,
        scale=Scale(scale, reduced, kept),
    )


def read(path: str | Path) -> Spec:
    """An experiment from a file of the form above; any config of `spodgt run` is one, too."""
    path = Path(path)
    text = read_toml(path)
    grid = text.get("sweep", {})
    if not isinstance(grid, dict):
        raise InvalidConfig(
            f"sweep of {path.name} must be a table, got {grid!r}; write it as [sweep]."
        )
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise InvalidConfig(
                f"sweep key {key!r} of {path.name} must have a list of values, got {values!r}; "
                'write it as "network.radius" = [0.3, 0.4].'
            )
    for key in _TEXTS:
        if not isinstance(text.get(key, ""), str):
            raise InvalidConfig(f"{key} of {path.name} must be text in quotes, got {text[key]!r}.")
    unknown = [key for key in text if key not in (*_TEXTS, *SECTIONS, "base", "sweep")]
    if unknown:
        known = ", ".join((*_TEXTS, "base", "sweep", *SECTIONS))
        raise InvalidConfig(f"{unknown[0]} is not a key of {path.name}; choose from {known}.")
    texts = {key: text[key] for key in _TEXTS if key in text and key != "scale"}
    texts["scale"] = Scale(note=text.get("scale", ""))
    return checked(
        Spec(
            path.stem,
            Experiment.parse(_config(path)).resolve_relative_to(path.parent),
            grid,
            **texts,
        )
    )


def has_grid(tables: Mapping[str, object]) -> bool:
    """Whether the tables of a file name anything that is swept."""
    return bool(tables.get("sweep"))


def is_plain(tables: Mapping[str, object]) -> bool:
    """Whether the tables are those of a single experiment: none of the keys that only sweeps have."""
    return not any(key in tables for key in (*_TEXTS, "base"))


def at(experiment: Experiment, key: str) -> object:
    """The value of a dotted key, None where it is left out."""
    value: object = experiment.to_dict()
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def checked(spec: Spec) -> Spec:
    """The same, or what is wrong with one of its cells."""
    if math.prod(map(len, spec.grid.values())) > _MOST_CELLS:
        raise InvalidConfig(
            f"sweep of {spec.name} has more than {_MOST_CELLS:,} cells; make it smaller."
        )
    for point in spec.points():  # names that mean nothing are an error now, not after an hour
        spec.experiment.override(point)
    return spec


def _are_values(given: Values, before: Values) -> bool:
    """Whether `given` is a list of values like those `before`: if these are lists, one list is one value."""
    lists = isinstance(before[0], list)
    return all(isinstance(one, list) == lists for one in given)


def _config(path: Path, above: tuple[Path, ...] = ()) -> Table:
    """The config sections of a file on top of those of its base."""
    text = read_toml(path)
    sections = {key: text[key] for key in SECTIONS if key in text}
    if "base" not in text:
        return sections
    if not isinstance(text["base"], str):
        raise InvalidConfig(f"base of {path.name} must be text in quotes, got {text['base']!r}.")
    base = path.parent / (text["base"].removesuffix(".toml") + ".toml")
    if base.resolve() in above:
        raise InvalidConfig(f"base of {path.name} leads back to {base.name}; remove one of them.")
    return _merge(_config(base, (*above, path.resolve())), sections)


def _merge(below: Mapping[str, object], above: Mapping[str, object]) -> Table:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = (
            _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
        )
    return merged


def _ends(values: Values, most: float) -> Values:
    return values if len(values) <= most else [values[0], values[-1]]
