"""TOML configs: the tables of a file, and the recipes they describe.

    [run]            methods, seeds, delay or rounds, step_size, …
    [network]        kind = "random-geometric", clients = 10, radius = 0.4, weights = "degree"
    [participation]  kind = "beta", alpha = 0.5, beta = 0.5
    [problem]        data = "fashion-mnist-small", model = "svm", batch_size = 16
    [problem]        kind = "python", build = "problem.py:build", arguments = { hidden = 32 }
    [problem.partition]  kind = "labels-per-client", labels = 1
    [time]           compute = 0.02, latency = 0.1: virtual time; optional

The `kind` of a table names a recipe; its other keys are the fields of the recipe. Omitted keys have
default values, unknown keys are rejected.
"""

from __future__ import annotations

import copy
import tomllib
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor, uint8

from spodgt.code_references import find_file, is_reference, map_texts
from spodgt.errors import InvalidConfig
from spodgt.experiment.problem_recipes import PROBLEMS, Classification, ProblemRecipe, Speeches
from spodgt.network import NETWORKS, WEIGHT_RULES, GraphFile, GraphRecipe, Network
from spodgt.participation import PARTICIPATIONS, Participation
from spodgt.problems.data import PARTITIONS, BySpeaker
from spodgt.problems.protocols import HasIdentity
from spodgt.types import Problem
from spodgt.validation import choices, from_table, to_kind_table

Table = dict[str, Any]
R = TypeVar("R")

SECTIONS = ("run", "network", "participation", "problem", "time")
_OPTIONAL = ("time",)
GIVEN = "given"  # the kind of an object that was created in Python
_SHARED = ("clients", "weights")  # keys of every network, kept when its kind changes
_DEFAULTS: dict[str, Table] = {
    "network": {"kind": "random-geometric", "clients": 10},
    "participation": {"kind": "beta"},
    "problem": {"kind": "classification"},
    "problem.partition": {"kind": "labels-per-client", "labels": 1},
}


# --- text ----------------------------------------------------------------------------------------
def read_toml(path: str | Path) -> Table:
    """Read a TOML file.

    Raises:
        InvalidConfig: if the file does not exist, cannot be read or is not TOML.
    """
    path = Path(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        reason = "does not exist; give the path of a TOML file."
    except UnicodeDecodeError:
        reason = "cannot be read: it is not text in UTF-8; give a TOML file."
    except OSError as error:
        reason = f"cannot be read: {error.strerror}; give a TOML file."
    except (ValueError, RecursionError) as error:  # also numbers of too many digits, nested lists
        cause = str(error).partition(";")[0]
        reason = f"is not TOML: {cause}; correct it there."
    raise InvalidConfig(f"config {path} {reason}")


def resolve_references(tables: Table, folder: Path) -> Table:
    """Tables in which code of the user that is only in `folder` is named by its path there.

    Args:
        tables: of a config.
        folder: of the file of this config.
    """
    run = tables.get("run")
    if not isinstance(run, Mapping):
        return tables

    def resolve(text: str) -> str:
        if ".py:" not in text or not is_reference(text):
            return text
        if find_file(text, Path()) is not None or find_file(text, folder) is None:
            return text
        return (folder / text).as_posix()

    resolved = dict(run)
    for key in ("step_size", "methods"):
        if key in run:
            resolved[key] = map_texts(run[key], resolve)
    return {**tables, "run": resolved}


def value_of(text: str) -> Any:
    """Parse a value as TOML, such as 0.6, true or [1, 2]; other text is returned unchanged."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


# --- from tables ---------------------------------------------------------------------------------
def read_network(table: object) -> tuple[GraphRecipe, str | None]:
    """The recipe of `[network]`, and its rule for weights; a file with weights needs a rule."""
    fields = _with_defaults(table, "network")
    default = None if fields["kind"] == GraphFile.name else "degree"
    weights = fields.pop("weights", default)
    if weights is not default and weights not in WEIGHT_RULES:
        raise InvalidConfig(
            f"network.weights={weights!r} is not known; choose from {', '.join(WEIGHT_RULES)}."
        )
    return _recipe(NETWORKS, fields, "network"), weights


def read_participation(table: object) -> Participation:
    """The recipe of `[participation]`."""
    return _recipe(PARTICIPATIONS, _with_defaults(table, "participation"), "participation")


def read_problem(table: object) -> ProblemRecipe:
    """The recipe of `[problem]`."""
    fields = _with_defaults(table, "problem")
    if fields["kind"] in (Classification.name, Speeches.name):
        section = "problem.partition"
        given = check_table(fields.get("partition", {}), section)
        if fields["kind"] == Speeches.name:
            given = {"kind": BySpeaker.name, **given}
        fields["partition"] = _recipe(PARTITIONS, _with_defaults(given, section), section)
    return _recipe(PROBLEMS, fields, "problem")


def check_table(table: object, name: str) -> Mapping[str, object]:
    """Check that a section is a table."""
    if not isinstance(table, Mapping):
        raise InvalidConfig(f"{name} must be a table, got {table!r}; write it as [{name}].")
    return table


def _with_defaults(table: object, name: str) -> Table:
    """The table with default values for omitted keys; of another kind, only keys of every kind."""
    given = check_table(table, name)
    defaults = _DEFAULTS[name]
    kind = given.get("kind", defaults["kind"])
    if kind != defaults["kind"]:
        defaults = _shared_keys(defaults, kind)
    return {**defaults, **given}


def _shared_keys(table: Mapping[str, object], kind: object) -> Table:
    """The keys of a network that a network of another kind has, too; a file has none of them."""
    if kind == GraphFile.name:
        return {}
    return {key: value for key, value in table.items() if key in _SHARED}


def _recipe(kinds: Mapping[str, type[R]], table: Table, section: str) -> R:
    fields = dict(table)
    kind = fields.pop("kind")
    if kind == GIVEN:
        raise InvalidConfig(
            f"{section}.kind='given' was an object of Python, which a config cannot hold; "
            "pass it to spodgt.compare again."
        )
    if not isinstance(kind, str) or kind not in kinds:
        raise InvalidConfig(f"{section}.kind={kind!r} is not known; {choices(kind, kinds)}")
    return from_table(kinds[kind], fields, section)


# --- changes -------------------------------------------------------------------------------------
def change_keys(tables: Mapping[str, Table], changes: Mapping[str, object]) -> Table:
    """Change keys of tables by their dotted names.

    Args:
        tables: of a config, by section.
        changes: values by names such as "network.radius"; None removes a key, a new kind removes
            the keys of the old kind, and a section may be replaced by a table.
    """
    changed = copy.deepcopy(dict(tables))
    # New kinds are set first, outer tables before inner ones: they remove the keys of the old kind.
    kinds = sorted((name for name in changes if name.endswith(".kind")), key=_depth)
    others = [name for name in changes if not name.endswith(".kind")]
    for name in [*kinds, *others]:
        value = changes[name]
        if name in SECTIONS and isinstance(value, Mapping):
            changed[name] = dict(value)
        else:
            _change_key(changed, name, value)
    return changed


def _depth(name: str) -> int:
    return name.count(".")


def _change_key(tables: Table, name: str, value: object) -> None:
    *path, key = name.split(".")
    if not path:
        raise InvalidConfig(f"{name!r} is not a key; write it with its section, such as run.delay.")
    table = tables
    for part in path:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise InvalidConfig(
                f"{name!r} is not a key: {part} is {table!r}, not a table; drop .{key}."
            )
    if key == "kind" and table.get("kind") != value:
        shared = _shared_keys(table, value) if path == ["network"] else {}
        table.clear()
        table.update(shared)
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def is_rerunnable(tables: Mapping[str, object]) -> bool:
    """Whether the tables of an experiment are complete: none describes an object of Python."""
    for name in SECTIONS:
        section = tables.get(name)
        if isinstance(section, Mapping):
            if section.get("kind") == GIVEN or "x0" in section:
                return False
        elif name not in _OPTIONAL:
            return False
    return True


# --- to tables -----------------------------------------------------------------------------------
def network_table(network: Network | GraphRecipe, weights: str | None) -> Table:
    """`[network]`; a fixed network is described by its size and a checksum of links and weights."""
    if isinstance(network, Network):
        arrays = [network.receivers, network.senders, network.a, network.b]
        if network.w is not None:
            arrays.append(network.w)
        return {
            "kind": GIVEN,
            "class": "Network",
            "clients": network.clients,
            "links": network.links,
            "checksum": checksum(*arrays),
        }
    table = describe_recipe(network, NETWORKS)
    if weights is not None:
        table["weights"] = weights
    return table


def problem_table(problem: Problem | ProblemRecipe) -> Table:
    """`[problem]`; an object of Python is described by its size and a checksum of its numbers."""
    if isinstance(problem, ProblemRecipe):
        table = describe_recipe(problem, PROBLEMS)
        if isinstance(problem, Classification | Speeches):
            table["partition"] = describe_recipe(problem.partition, PARTITIONS)
        return table
    table = {
        "kind": GIVEN,
        "class": type(problem).__name__,
        "clients": problem.clients,
        "parameters": problem.parameters,
    }
    if isinstance(problem, HasIdentity):
        settings, arrays = problem.identity
        table["checksum"] = checksum(*arrays)
        if settings:
            table["settings"] = settings
    return table


def describe_recipe(made: object, kinds: Mapping[str, type] = PARTICIPATIONS) -> Table:
    """The table of a recipe; one of another class is described by its name and a checksum."""
    if type(made) in kinds.values():
        return to_kind_table(made)
    table: Table = {"kind": GIVEN, "class": type(made).__name__}
    arrays = [value for value in vars(made).values() if isinstance(value, np.ndarray | Tensor)]
    if arrays:
        table["checksum"] = checksum(*arrays)
    else:
        table["text"] = repr(made)
    return table


def checksum(*arrays: ArrayLike | Tensor) -> str:
    """The CRC-32 of arrays and tensors of any type, as eight hexadecimal digits."""
    total = 0
    for array in arrays:
        if isinstance(array, Tensor):  # as bytes: NumPy does not have all types of torch
            array = array.detach().cpu().contiguous().flatten().view(uint8) if array.numel() else []
        total = zlib.crc32(np.ascontiguousarray(array).tobytes(), total)
    return f"{total:08x}"
