"""An experiment as TOML text, and the one place where strings become objects.

    [run]            methods, seeds, delay or rounds, step_size, …
    [network]        kind = "random-geometric", clients = 10, radius = 0.4, weights = "degree"
    [participation]  kind = "beta", alpha = 0.5, beta = 0.5
    [problem]        data = "fashion-mnist-small", model = "svm", batch_size = 16
    [problem.partition]  kind = "labels-per-client", labels = 1

Sections that are left out keep their defaults; a key that means nothing is an error.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import networkx as nx
import numpy as np
import torch

from spodgt.algorithms import algorithms, method
from spodgt.algorithms.base import Algorithm
from spodgt.errors import InvalidConfig, InvalidInput, InvalidNetwork
from spodgt.network import WEIGHTS, Network
from spodgt.network.recipes import RECIPES, Recipe
from spodgt.participation import PARTICIPATIONS, Participation, Trace
from spodgt.problems import Quadratic, classification
from spodgt.problems.data import IID, Dirichlet, Explicit, LabelsPerClient
from spodgt.problems.data.datasets import NAMES as DATA
from spodgt.problems.models import MODELS
from spodgt.types import Problem

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PAPER_METHODS = ("spod-gt", "spod-gt-memory", "ab-push-pull", "g-push-pull", "k-gt", "sporadic-k-gt")
PARTITIONS: dict[str, type[Any]] = {
    "iid": IID,
    "labels-per-client": LabelsPerClient,
    "dirichlet": Dirichlet,
    "explicit": Explicit,
}
_SHARED = ("clients", "weights")  # keys of every network, kept when its kind changes


def read_toml(path: str | Path) -> dict[str, Any]:
    """The tables of a file, or one sentence about what is wrong with it."""
    path = Path(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InvalidConfig(f"config {path} does not exist; give the path of a TOML file.") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise InvalidConfig(f"config {path} cannot be read: {reason}; give a TOML file.") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"config {path} is not TOML: {error}; correct it there.") from None


@dataclass(frozen=True)
class RunSection:
    """When to stop, how often, and on what."""

    # Names, or tables with a name and fields.
    methods: list[Any] = field(default_factory=lambda: list(PAPER_METHODS))
    step_size: Any = 0.01  # for methods that set none of their own: a number, one per client, or a schedule
    seeds: Any = 5  # how many, or which
    delay: float | None = None
    rounds: int | None = None
    evaluations: int = 25
    dtype: str = "float32"
    device: str = "cpu"
    gradient_norm: bool | None = None

    def __post_init__(self) -> None:
        some = isinstance(self.seeds, list | range) and len(self.seeds) > 0
        if not some and (not isinstance(self.seeds, int) or isinstance(self.seeds, bool) or self.seeds < 1):
            raise InvalidConfig(f"run.seeds must be how many, or a list of which, got {self.seeds!r}; use 5.")
        if self.dtype not in ("float32", "float64"):
            raise InvalidConfig(f"run.dtype={self.dtype!r} is not known; choose float32 or float64.")
        if not self.methods:
            raise InvalidConfig('run.methods must hold at least one, got []; use methods = ["spod-gt"].')
        for key, example in (("delay", 5000), ("rounds", 100), ("evaluations", 25)):
            value = getattr(self, key)
            if value is not None and not 0 < value < float("inf"):
                raise InvalidConfig(f"run.{key} must be above 0, got {value!r}; use {key} = {example}.")

    @property
    def seed_list(self) -> list[int]:
        return list(range(self.seeds)) if isinstance(self.seeds, int) else list(self.seeds)


@dataclass(frozen=True)
class QuadraticSection:
    """`[problem] kind = "quadratic"`: random quadratics with a known optimum."""

    parameters: int = 10
    seed: int = 0
    condition: float = 10.0
    spread: float = 1.0
    noise: float = 0.0

    def __post_init__(self) -> None:
        for key, least in (("parameters", 1), ("seed", 0), ("condition", 1), ("spread", 0), ("noise", 0)):
            value, example = getattr(self, key), type(self).__dataclass_fields__[key].default
            if not least <= value < float("inf"):
                raise InvalidConfig(
                    f"problem.{key} must be at least {least}, got {value!r}; use {key} = {example}."
                )


@dataclass(frozen=True)
class Config:
    """A whole experiment."""

    run: RunSection = field(default_factory=lambda: RunSection(delay=5000.0))
    network: dict[str, Any] = field(
        default_factory=lambda: {
            "kind": "random-geometric",
            "clients": 10,
            "radius": 0.4,
            "weights": "degree",
        }
    )
    participation: dict[str, Any] = field(
        default_factory=lambda: {"kind": "beta", "alpha": 0.5, "beta": 0.5, "floor": 0.0}
    )
    problem: dict[str, Any] = field(
        default_factory=lambda: {
            "kind": "classification",
            "data": "fashion-mnist-small",
            "model": "svm",
            "batch_size": 16,
            "partition": {"kind": "labels-per-client", "labels": 1},
        }
    )

    @classmethod
    def read(cls, path: str | Path) -> Config:
        return cls.parse(read_toml(path))

    @classmethod
    def parse(cls, text: Mapping[str, Any]) -> Config:
        """Check the sections and their keys; the values of other sections than run are checked by `build`."""
        for key in ("title", "base", "figure", "paper", "sweep"):
            if key in text:
                raise InvalidConfig(f"{key}={text[key]!r} belongs to a sweep; use spodgt sweep FILE.")
        _only(text, [f.name for f in dataclasses.fields(cls)], "the config")
        for name, section in text.items():
            if not isinstance(section, Mapping):
                raise InvalidConfig(f"{name} must be a table, got {section!r}; write it as [{name}].")
        default = cls()
        sections = {
            name: _merged(getattr(default, name), text[name], name)
            for name in ("network", "participation", "problem")
            if name in text
        }
        run = dict(text.get("run", {}))
        if "rounds" not in run and "delay" not in run:
            run["delay"] = default.run.delay
        return cls(run=_typed(RunSection, run, "run"), **sections)

    def to_dict(self) -> dict[str, Any]:
        run = {key: value for key, value in dataclasses.asdict(self.run).items() if value is not None}
        return copy.deepcopy(
            {
                "run": run,
                "network": self.network,
                "participation": self.participation,
                "problem": self.problem,
            }
        )

    def override(self, changes: Mapping[str, Any]) -> Config:
        """Change keys by their dotted names: `{"network.radius": 0.5}`; None drops a key."""
        text = self.to_dict()
        # A new kind comes first: it drops the keys of the old one, not those that are given with it.
        for name, value in sorted(changes.items(), key=lambda change: not change[0].endswith(".kind")):
            *path, last = name.split(".")
            if not path:
                raise InvalidConfig(f"{name!r} is not a key; write it with its section, such as run.delay.")
            table = text
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
        return Config.parse(text)


def value_of(text: str) -> Any:
    """TOML if it reads as TOML, else the text itself: 0.6, true, [1, 2], beta."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


@dataclass(frozen=True, eq=False)
class Experiment:
    """What a config builds: the arguments of `compare`."""

    methods: list[Algorithm]
    problem: Problem
    network: Network | Recipe
    participation: Participation
    options: dict[str, Any]


def build(config: Config) -> Experiment:
    """Turn names and numbers into objects, or say which key is wrong."""
    run = config.run
    network = build_network(config.network)
    return Experiment(
        methods(config),
        build_problem(config.problem, network.clients),
        network,
        build_participation(config.participation),
        {
            "rounds": run.rounds,
            "delay": run.delay,
            "seeds": run.seed_list,
            "evaluations": run.evaluations,
            "gradient_norm": run.gradient_norm,
            "dtype": getattr(torch, run.dtype),
            "device": run.device,
            "weights": config.network.get("weights", "degree"),
            "config": config.to_dict(),
        },
    )


def methods(config: Config) -> list[Algorithm]:
    """The methods of a config; those that set no step size of their own get the common one."""
    built = []
    for entry in config.run.methods:
        table = {"name": entry} if isinstance(entry, str) else entry
        if not isinstance(table, Mapping) or "name" not in table:
            raise InvalidConfig(
                f'run.methods must hold names or tables with a name, got {entry!r}; use "spod-gt".'
            )
        fields = {key: value for key, value in table.items() if key != "name"}
        cls = algorithms().get(table["name"]) if isinstance(table["name"], str) else None
        if cls is not None and hasattr(cls, "step_size"):
            fields = {"step_size": config.run.step_size} | fields
        built.append(method(table["name"], **fields))
    return built


def build_network(section: Mapping[str, Any]) -> Network | Recipe:
    fields = dict(section)
    kind, weights = fields.pop("kind"), fields.pop("weights", "degree")
    if weights not in WEIGHTS:
        raise InvalidConfig(f"network.weights={weights!r} is not known; choose from {', '.join(WEIGHTS)}.")
    if kind == "file":
        return _read_network(_typed(_File, fields, "network").path, weights)
    return _kind(RECIPES, kind, fields, "network", extra=["file"])  # type: ignore[no-any-return]


def _read_network(path: str, weights: str) -> Network:
    """A graph from a file: GraphML, GML, an edge list ("u v": u sends to v), or a 0/1 matrix in CSV."""
    readers: dict[str, Callable[[str], Any]] = {
        ".graphml": nx.read_graphml,
        ".gml": nx.read_gml,
        ".txt": lambda p: nx.read_edgelist(p, create_using=nx.DiGraph),
        ".edgelist": lambda p: nx.read_edgelist(p, create_using=nx.DiGraph),
        ".csv": lambda p: np.loadtxt(p, delimiter=",", ndmin=2),
    }
    suffix = Path(path).suffix
    if suffix not in readers:
        raise InvalidConfig(f"network.path={path!r} must end in {', '.join(readers)}.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an empty file; the network says what is wrong with it
            graph = readers[suffix](path)
    except FileNotFoundError:
        raise InvalidConfig(f"network.path={path!r} does not exist; give the path of a graph file.") from None
    except Exception as error:  # readers of graph formats raise whatever their parsers raise
        reason = str(error).strip().split("\n")[0].split(";")[0].rstrip(".")
        raise InvalidConfig(
            f"network.path={path!r} cannot be read as {suffix}: {reason}; check the file."
        ) from None
    try:
        if suffix == ".csv":
            return Network.from_adjacency(graph, weights=weights)
        return Network.from_networkx(_in_order(graph), weights=weights)
    except InvalidNetwork as error:
        raise InvalidNetwork(f"network.path={path!r} is no network: {error}") from None


def _in_order(graph: Any) -> Any:
    """Nodes that are numbers, by their numbers and not by their first lines."""
    if not all(str(node).isdigit() for node in graph):
        return graph
    ordered = graph.__class__()
    ordered.add_nodes_from(sorted(graph, key=int))
    ordered.add_edges_from(graph.edges)
    return ordered


def build_participation(section: Mapping[str, Any]) -> Participation:
    fields = dict(section)
    kind = fields.pop("kind")
    if kind == "trace":
        return Trace.read(_typed(_File, fields, "participation").path)
    return _kind(PARTICIPATIONS, kind, fields, "participation")  # type: ignore[no-any-return]


def build_problem(section: Mapping[str, Any], clients: int) -> Problem:
    fields = dict(section)
    kind = fields.pop("kind")
    if kind == "quadratic":
        chosen = dataclasses.asdict(_typed(QuadraticSection, fields, "problem"))
        return Quadratic.random(clients, chosen.pop("parameters"), **chosen)
    if kind != "classification":
        raise InvalidConfig(f"problem.kind={kind!r} is not known; choose classification or quadratic.")
    model, data = fields.pop("model"), fields.pop("data")
    for key, value, known in (("model", model, list(MODELS)), ("data", data, list(DATA))):
        if value not in known:
            raise InvalidConfig(f"problem.{key}={value!r} is not known; {_choices(value, known)}")
    partition, batch_size = dict(fields.pop("partition")), fields.pop("batch_size")
    options = ("augment", "test_samples", *MODELS[model].options)
    _only(
        fields, ("kind", "data", "model", "batch_size", "partition", *options), f"problem with model {model}"
    )
    if not isinstance(fields.get("augment", False), bool):
        raise InvalidConfig(
            f"problem.augment must be true or false, got {fields['augment']!r}; use augment = true."
        )
    for key, value in {"batch_size": batch_size, **fields}.items():
        least = 0 if key == "batch_size" else 1  # a batch size of 0 is everything a client holds
        if key in ("augment", "norm"):  # norm, a text, is checked by its model
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InvalidConfig(
                f"problem.{key} must be a whole number of at least {least}, got {value!r}; "
                f"use {key} = {1000 if key == 'test_samples' else 16}."
            )
    split = _kind(PARTITIONS, partition.pop("kind"), partition, "problem.partition")
    return classification(
        data, model, clients=clients, partition=split, batch_size=batch_size or None, **fields
    )


# --- checks ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _File:
    path: str


def _merged(default: Mapping[str, Any], given: Any, name: str) -> dict[str, Any]:
    """Defaults below what is given; a section of another kind starts from nothing."""
    if not isinstance(given, Mapping):
        raise InvalidConfig(f"{name} must be a table, got {given!r}; write it as [{name}].")
    if given.get("kind", default["kind"]) != default["kind"]:
        base = {"clients": default["clients"]} if name == "network" and given["kind"] != "file" else {}
        return {**base, **given}
    merged = {**default, **given}
    if "partition" in merged:
        merged["partition"] = _merged(default["partition"], merged["partition"], f"{name}.partition")
    return merged


def _only(given: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    for key, value in given.items():
        if key not in known:
            raise InvalidConfig(f"{key}={value!r} is not a key of {where}; {_choices(key, list(known))}")


def _choices(word: Any, known: list[str]) -> str:
    near = difflib.get_close_matches(str(word), known, 1)
    return f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known) or 'nothing'}."


def _kind(
    table: Mapping[str, Any], kind: Any, fields: dict[str, Any], where: str, *, extra: Sequence[str] = ()
) -> Any:
    if not isinstance(kind, str) or kind not in table:
        raise InvalidConfig(f"{where}.kind={kind!r} is not known; {_choices(kind, [*table, *extra])}")
    return _typed(table[kind], fields, where)


_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    bool: "true or false",
    list: "a list",
}
_EXAMPLES = {  # of keys that have no default
    "clients": 10,
    "delay": 5000.0,
    "rounds": 100,
    "gradient_norm": "true",
    "methods": '["spod-gt"]',
    "path": '"file.csv"',
    "labels": 1,
    "alpha": 0.5,
    "indices": "[[0, 1], [2]]",
}


def _typed(cls: Any, fields: dict[str, Any], where: str) -> Any:
    """Build a dataclass from a table, checking names and simple types first; its values it checks itself."""
    hints, slots = get_type_hints(cls), {f.name: f for f in dataclasses.fields(cls) if f.init}
    _only(fields, slots, where)
    values = {}
    for key, slot in slots.items():
        if key in fields:
            values[key] = _value(fields[key], hints[key], f"{where}.{key}", slot)
        elif slot.default is slot.default_factory is dataclasses.MISSING:
            raise InvalidConfig(f"{where}.{key} is missing; add {key} = {_EXAMPLES.get(key, '…')}.")
    try:
        return cls(**values)
    except InvalidInput as error:  # it knows its fields, but not where they stand in a config
        known = str(error).split(" ")[0] in values
        raise type(error)(f"{where}.{error}" if known else str(error)) from None


def _value(value: Any, hint: Any, name: str, slot: Any) -> Any:
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    wanted = next(get_origin(kind) or kind for kind in kinds if kind is not NoneType)
    if wanted not in _WORDS:
        return value
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        known = slot.default not in (dataclasses.MISSING, None)
        example = json.dumps(slot.default) if known else _EXAMPLES.get(slot.name, "…")
        raise InvalidConfig(f"{name} must be {_WORDS[wanted]}, got {value!r}; use {slot.name} = {example}.")
    return value
