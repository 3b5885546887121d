"""TOML tables and the recipes they stand for.

    [run]            methods, seeds, delay or rounds, step_size, …
    [network]        kind = "random-geometric", clients = 10, radius = 0.4, weights = "degree"
    [participation]  kind = "beta", alpha = 0.5, beta = 0.5
    [problem]        data = "fashion-mnist-small", model = "svm", batch_size = 16
    [problem]        kind = "python", build = "problem.py:build", arguments = { hidden = 32 }
    [problem.partition]  kind = "labels-per-client", labels = 1
    [time]           compute = 0.02, latency = 0.1: virtual time; left out, all rounds take the same time

A table's `kind` names a recipe; its other keys are the recipe's fields. Omitted keys take their defaults,
unknown keys are rejected.
"""

from __future__ import annotations

import copy
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor, uint8

from spodgt.errors import InvalidConfig
from spodgt.experiment.problems import PROBLEMS, Classification, ProblemRecipe
from spodgt.experiment.text import Speeches
from spodgt.network import NETWORKS, WEIGHT_RULES, GraphFile, Network, Recipe
from spodgt.participation import PARTICIPATIONS, Participation
from spodgt.problems.data import PARTITIONS, BySpeaker
from spodgt.problems.protocols import HasIdentity
from spodgt.types import Problem
from spodgt.validation import choices, from_table, to_table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Table = dict[str, Any]
R = TypeVar("R")

SECTIONS = ("run", "network", "participation", "problem", "time")
_OPTIONAL = ("time",)
GIVEN = "given"  # the kind of an object that was made in Python
_SHARED = ("clients", "weights")  # keys of every network, kept when its kind changes
_DEFAULTS: dict[str, Table] = {
    "network": {"kind": "random-geometric", "clients": 10},
    "participation": {"kind": "beta"},
    "problem": {"kind": "classification"},
    "problem.partition": {"kind": "labels-per-client", "labels": 1},
}


# --- text --------------------------------------------------------------------------------------------
def read_toml(path: str | Path) -> Table:
    """The tables of a file, or one sentence about what is wrong with it."""
    path = Path(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise InvalidConfig(
            f"config {path} does not exist; give the path of a TOML file."
        ) from None
    except UnicodeDecodeError:
        raise InvalidConfig(
            f"config {path} cannot be read: it is not text in UTF-8; give a TOML file."
        ) from None
    except OSError as error:
        raise InvalidConfig(
            f"config {path} cannot be read: {error.strerror}; give a TOML file."
        ) from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # a number of too many digits, lists in lists in lists
        reason = str(error).partition(";")[0]
        raise InvalidConfig(f"config {path} is not TOML: {reason}; correct it there.") from None


def value_of(text: str) -> Any:
    """TOML if it reads as TOML, else the text itself: 0.6, true, [1, 2], beta."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


# --- from tables -------------------------------------------------------------------------------------
def read_network(table: object) -> tuple[Recipe, str | None]:
    """The recipe of `[network]`, and its rule for weights; a file that has weights needs one."""
    fields = _with_defaults(table, "network")
    default = None if fields["kind"] == GraphFile.name else "degree"
    weights = fields.pop("weights", default)
    if weights is not default and weights not in WEIGHT_RULES:
        raise InvalidConfig(
            f"network.weights={weights!r} is not known; choose from {', '.join(WEIGHT_RULES)}."
        )
    return _recipe(NETWORKS, fields, "network"), weights


def read_participation(table: object) -> Participation:
    return _recipe(PARTICIPATIONS, _with_defaults(table, "participation"), "participation")


def read_problem(table: object) -> ProblemRecipe:
    """The recipe of `[problem]`."""
    fields = _with_defaults(table, "problem")
    if fields["kind"] in (Classification.name, Speeches.name):
        where = "problem.partition"
        given = check_table(fields.get("partition", {}), where)
        if fields["kind"] == Speeches.name:
            given = {"kind": BySpeaker.name, **given}
        partition = _with_defaults(given, where)
        fields["partition"] = _recipe(PARTITIONS, partition, "problem.partition")
    return _recipe(PROBLEMS, fields, "problem")


def check_table(table: object, name: str) -> Mapping[str, object]:
    """Refuse anything else than a table."""
    if not isinstance(table, Mapping):
        raise InvalidConfig(f"{name} must be a table, got {table!r}; write it as [{name}].")
    return table


def _with_defaults(table: object, name: str) -> Table:
    """Defaults below what is given; a table of another kind starts from nothing but the clients."""
    given, default = check_table(table, name), _DEFAULTS[name]
    kind = given.get("kind", default["kind"])
    if kind != default["kind"]:
        keep = () if kind == "file" else _SHARED
        default = {key: value for key, value in default.items() if key in keep}
    return {**default, **given}


def _recipe(kinds: Mapping[str, type[R]], table: Table, where: str) -> R:
    fields = dict(table)
    kind = fields.pop("kind")
    if kind == GIVEN:
        raise InvalidConfig(
            f"{where}.kind='given' was an object of Python, which a config cannot hold; "
            "pass it to spodgt.compare again."
        )
    if not isinstance(kind, str) or kind not in kinds:
        raise InvalidConfig(f"{where}.kind={kind!r} is not known; {choices(kind, kinds)}")
    return from_table(kinds[kind], fields, where)


def changed(tables: Mapping[str, Table], changes: Mapping[str, object]) -> Table:
    """The tables with keys changed by dotted names; None drops a key, a new kind the keys of the old one."""
    text = copy.deepcopy(dict(tables))

    def order(change: tuple[str, object]) -> tuple[bool, int]:
        inner = not change[0].endswith(".kind")
        return inner, 0 if inner else change[0].count(".")

    # New kinds come first, the outer before the inner: they drop old keys, not those given with them.
    for name, value in sorted(changes.items(), key=order):
        *path, last = name.split(".")
        if name in SECTIONS and isinstance(value, Mapping):
            text[name] = dict(value)
            continue
        if not path:
            raise InvalidConfig(
                f"{name!r} is not a key; write it with its section, such as run.delay."
            )
        table: Table = text
        for key in path:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise InvalidConfig(
                    f"{name!r} is not a key: {key} is {table!r}, not a table; drop .{last}."
                )
        if last == "kind" and table.get("kind") != value:
            kept = {key: table[key] for key in _SHARED if key in table and path == ["network"]}
            table.clear()  # the keys of another kind mean nothing here
            table.update({} if value == "file" else kept)
        table[last] = value
        if value is None:
            del table[last]
    return text


def rerunnable(tables: Mapping[str, object]) -> bool:
    """Whether the tables of an experiment say everything: no object of Python was given."""
    sections = [tables.get(name) for name in SECTIONS]
    given = [
        each.get("kind") == GIVEN or "x0" in each for each in sections if isinstance(each, Mapping)
    ]
    needed = all(
        isinstance(tables.get(name), Mapping) for name in SECTIONS if name not in _OPTIONAL
    )
    return needed and not any(given)


# --- to tables ---------------------------------------------------------------------------------------
def network_table(network: Network | Recipe, weights: str | None) -> Table:
    """`[network]`; a fixed network is described by its size and a checksum of its links and weights."""
    if isinstance(network, Network):
        sides = network.receivers, network.senders, network.a, network.b
        numbers = checksum(*sides, *([] if network.w is None else [network.w]))
        facts = {"clients": network.clients, "links": network.links, "checksum": numbers}
        return {"kind": GIVEN, "class": "Network", **facts}
    rule = {} if weights is None else {"weights": weights}
    return {**described(network, NETWORKS), **rule}


def problem_table(problem: Problem | ProblemRecipe) -> Table:
    """`[problem]`; an object of Python is described by its size and a checksum of its numbers."""
    if isinstance(problem, ProblemRecipe):
        table = described(problem, PROBLEMS)
        if isinstance(problem, Classification | Speeches):
            table["partition"] = described(problem.partition, PARTITIONS)
        return table
    facts = {
        "class": type(problem).__name__,
        "clients": problem.clients,
        "parameters": problem.parameters,
    }
    if isinstance(problem, HasIdentity):
        settings, numbers = problem.identity
        facts |= {"checksum": checksum(*numbers), **({"settings": settings} if settings else {})}
    return {"kind": GIVEN, **facts}


def described(made: Any, kinds: Mapping[str, type] = PARTICIPATIONS) -> Table:
    """The table of a recipe that configs know; another is described by its class and numbers."""
    if type(made) in kinds.values():
        return {"kind": made.name, **to_table(made)}
    numbers = [value for value in vars(made).values() if isinstance(value, np.ndarray | Tensor)]
    facts = {"kind": GIVEN, "class": type(made).__name__}
    return {**facts, "checksum": checksum(*numbers)} if numbers else {**facts, "text": repr(made)}


def checksum(*arrays: ArrayLike | Tensor) -> str:
    """Eight letters that tell arrays and tensors of any type from others."""
    total = 0
    for array in arrays:
        if isinstance(array, Tensor):  # of any type, on any device; numpy knows fewer
            array = array.detach().cpu().contiguous().flatten().view(uint8) if array.numel() else []
        total = zlib.crc32(np.ascontiguousarray(array).tobytes(), total)
    return f"{total:08x}"
