"""An experiment as TOML text, and the one place where strings become objects.

    [run]            methods, seeds, delay or rounds, step_size, …
    [network]        kind = "random-geometric", clients = 10, radius = 0.4, weights = "degree"
    [participation]  kind = "beta", alpha = 0.5, beta = 0.5
    [problem]        data = "fashion-mnist-small", model = "svm", batch_size = 16
    [problem.partition]  kind = "labels-per-client", labels = 1

Sections that are left out keep their defaults; a key that means nothing is an error.
"""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import networkx as nx
import numpy as np
import torch

from spodgt.algorithms import method
from spodgt.data import IID, Dirichlet, Explicit, LabelsPerClient
from spodgt.errors import InvalidConfig
from spodgt.graphs import RECIPES, Recipe
from spodgt.models import MODELS
from spodgt.network import WEIGHTS, Network
from spodgt.participation import PARTICIPATIONS, Participation, Trace
from spodgt.problems import Quadratic, classification
from spodgt.types import Algorithm, Problem

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
DATA = ("fashion-mnist-small", "fashion-mnist", "cifar-10")


@dataclass(frozen=True)
class RunSection:
    """When to stop, how often, and on what."""

    methods: tuple[Any, ...] = PAPER_METHODS  # names, or tables with a name and fields
    step_size: float = 0.01  # for methods that set none of their own
    seeds: Any = 5  # how many, or which
    delay: float | None = None
    rounds: int | None = None
    evaluations: int = 50
    dtype: str = "float32"
    device: str = "cpu"
    gradient_norm: bool | None = None

    @property
    def seed_list(self) -> list[int]:
        return list(range(self.seeds)) if isinstance(self.seeds, int) else list(self.seeds)


@dataclass(frozen=True)
class Config:
    """A whole experiment."""

    run: RunSection = field(default_factory=lambda: RunSection(delay=5000.0))
    network: dict[str, Any] = field(
        default_factory=lambda: {"kind": "random-geometric", "clients": 10, "radius": 0.4, "weights": "degree"}
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
        path = Path(path)
        try:
            return cls.parse(tomllib.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise InvalidConfig(f"config {path} does not exist; give the path of a TOML file.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidConfig(f"config {path} cannot be read: {error}.") from None
        except tomllib.TOMLDecodeError as error:
            raise InvalidConfig(f"config {path} is not TOML: {error}.") from None

    @classmethod
    def parse(cls, text: Mapping[str, Any]) -> Config:
        """Check the names of sections and keys; values are checked by `build`."""
        _only(text, [f.name for f in dataclasses.fields(cls)], "the config")
        for name, section in text.items():
            if not isinstance(section, Mapping):
                raise InvalidConfig(f"{name} must be a table, got {section!r}; write it as [{name}].")
        default = cls()
        sections = {
            name: _merged(getattr(default, name), dict(text[name]), name)
            for name in ("network", "participation", "problem")
            if name in text
        }
        run = dict(text.get("run", {}))
        _only(run, [f.name for f in dataclasses.fields(RunSection)], "run")
        if "rounds" not in run and "delay" not in run:
            run["delay"] = default.run.delay
        return cls(run=_typed(RunSection, run, "run"), **sections)

    def to_dict(self) -> dict[str, Any]:
        run = {key: value for key, value in dataclasses.asdict(self.run).items() if value is not None}
        return {
            "run": {**run, "methods": list(self.run.methods)},
            "network": self.network,
            "participation": self.participation,
            "problem": self.problem,
        }

    def override(self, changes: Mapping[str, Any]) -> Config:
        """Change keys by their dotted names: `{"network.radius": 0.5}`."""
        text = self.to_dict()
        for name, value in changes.items():
            *path, last = name.split(".")
            table = text
            for key in path:
                table = table.setdefault(key, {}) if isinstance(table.get(key, {}), dict) else {}
            if not path:
                raise InvalidConfig(f"{name!r} is not a key; write it with its section, such as run.delay.")
            if value is None:
                table.pop(last, None)
            elif last == "kind" and table.get("kind") != value:
                table.clear()  # the keys of another kind mean nothing here
                table["kind"] = value
                if name == "network.kind":
                    table["clients"] = self.network.get("clients", 10)
            else:
                table[last] = value
        return Config.parse(text)


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
    network = _network(config.network)
    clients = network.clients
    if run.dtype not in ("float32", "float64"):
        raise InvalidConfig(f"run.dtype must be float32 or float64, got {run.dtype!r}.")
    if isinstance(run.seeds, bool) or not isinstance(run.seeds, int | list | tuple) or run.seeds in (0, [], ()):
        raise InvalidConfig(f"run.seeds must be a number of seeds or a list of them, got {run.seeds!r}; use 5.")
    try:
        device = torch.device(run.device)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InvalidConfig(
            f"run.device={run.device!r} is not there: {str(error).splitlines()[0]}; use cpu."
        ) from None
    return Experiment(
        methods(config),
        _problem(config.problem, clients),
        network,
        _participation(config.participation),
        {
            "rounds": run.rounds,
            "delay": run.delay,
            "seeds": run.seed_list,
            "evaluations": run.evaluations,
            "gradient_norm": run.gradient_norm,
            "dtype": getattr(torch, run.dtype),
            "device": device,
            "weights": config.network.get("weights", "degree"),
            "config": config.to_dict(),
        },
    )


def methods(config: Config) -> list[Algorithm]:
    built = []
    for entry in config.run.methods:
        if not isinstance(entry, str | Mapping) or (isinstance(entry, Mapping) and "name" not in entry):
            raise InvalidConfig(f"run.methods must hold names or tables with a name, got {entry!r}; use \"spod-gt\".")
        fields = {} if isinstance(entry, str) else {key: v for key, v in entry.items() if key != "name"}
        name = entry if isinstance(entry, str) else entry["name"]
        try:
            built.append(method(name, **{"step_size": config.run.step_size, **fields}))
        except InvalidConfig:
            if "step_size" in fields:
                raise
            built.append(method(name, **fields))  # a method without a step size, such as gossip
    return built


def _network(section: Mapping[str, Any]) -> Network | Recipe:
    fields = dict(section)
    kind, weights = fields.pop("kind"), fields.pop("weights", "degree")
    if weights not in WEIGHTS:
        raise InvalidConfig(f"network.weights must be one of {', '.join(WEIGHTS)}, got {weights!r}.")
    if kind == "file":
        _only(fields, ["path"], "network")
        return _read_network(fields.get("path"), weights)
    return _kind(RECIPES, kind, fields, "network", extra=["file"])  # type: ignore[no-any-return]


def _read_network(path: Any, weights: str) -> Network:
    """A graph from a file: GraphML, GML, an edge list (a line "u v": u sends to v), or a 0/1 matrix in CSV."""
    readers = {
        ".graphml": nx.read_graphml,
        ".gml": nx.read_gml,
        ".txt": lambda p: nx.read_edgelist(p, create_using=nx.DiGraph),
        ".edgelist": lambda p: nx.read_edgelist(p, create_using=nx.DiGraph),
    }
    if not isinstance(path, str):
        raise InvalidConfig(f"network.path must name a graph file, got {path!r}.")
    suffix = Path(path).suffix
    if suffix not in readers and suffix != ".csv":
        raise InvalidConfig(f"network.path={path!r} must end in {', '.join([*readers, '.csv'])}.")
    try:
        if suffix == ".csv":
            return Network.from_adjacency(np.loadtxt(path, delimiter=",", ndmin=2), weights=weights)
        graph = readers[suffix](path)
    except FileNotFoundError:
        raise InvalidConfig(f"network.path={path!r} does not exist.") from None
    except (nx.NetworkXError, ValueError, OSError) as error:
        raise InvalidConfig(f"network.path={path!r} cannot be read as a graph: {error}.") from None
    except Exception as error:  # readers of graph formats raise whatever their parsers raise
        raise InvalidConfig(f"network.path={path!r} cannot be read as a graph: {error}.") from None
    return Network.from_networkx(graph, weights=weights)


def _participation(section: Mapping[str, Any]) -> Participation:
    fields = dict(section)
    kind = fields.pop("kind")
    if kind == "trace":
        _only(fields, ["path"], "participation")
        if not isinstance(fields.get("path"), str):
            raise InvalidConfig(f"participation.path must name a CSV or Parquet file, got {fields.get('path')!r}.")
        return Trace.read(fields["path"])
    return _kind(PARTICIPATIONS, kind, fields, "participation")  # type: ignore[no-any-return]


def _problem(section: Mapping[str, Any], clients: int) -> Problem:
    fields = dict(section)
    kind = fields.pop("kind", "classification")
    if kind == "quadratic":
        _only(fields, ["parameters", "seed", "condition", "spread", "noise"], "problem")
        return Quadratic.random(clients, fields.pop("parameters", 10), **fields)
    if kind != "classification":
        raise InvalidConfig(f"problem.kind must be classification or quadratic, got {kind!r}.")
    model, data = fields.pop("model", "svm"), fields.pop("data", DATA[0])
    for key, value, known in (("model", model, list(MODELS)), ("data", data, list(DATA))):
        if value not in known:
            raise InvalidConfig(f"problem.{key}={value!r} is not known; {_choices(str(value), known)}")
    partition = dict(fields.pop("partition", {"kind": "iid"}))
    batch_size = fields.pop("batch_size", 16)
    _only(fields, MODELS[model].options, f"problem with model {model}")
    split = _kind(PARTITIONS, partition.pop("kind", "iid"), partition, "problem.partition")
    return classification(data, model, clients=clients, partition=split, batch_size=batch_size or None, **fields)


# --- checks ------------------------------------------------------------------------------------------
def _merged(default: dict[str, Any], given: dict[str, Any], name: str) -> dict[str, Any]:
    """Defaults below what is given; a section of another kind starts from nothing."""
    if "kind" in given and given["kind"] != default["kind"]:
        base = {"clients": default["clients"]} if name == "network" and given["kind"] != "file" else {}
        return {**base, **given}
    merged = {**default, **given}
    partition = given.get("partition")
    if partition is not None and not isinstance(partition, Mapping):
        raise InvalidConfig(f"problem.partition must be a table, got {partition!r}; use {{ kind = \"iid\" }}.")
    return merged


def _only(given: Mapping[str, Any], known: Any, where: str) -> None:
    for key in given:
        if key not in known:
            raise InvalidConfig(f"{key}={given[key]!r} is not a key of {where}; {_choices(key, list(known))}")


def _choices(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, 1)
    return f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known) or 'nothing'}."


def _kind(table: Mapping[str, Any], kind: Any, fields: dict[str, Any], where: str, extra: list[str] = []) -> Any:  # noqa: B006
    if kind not in table:
        raise InvalidConfig(f"{where}.kind={kind!r} is not known; {_choices(str(kind), [*table, *extra])}")
    return _typed(table[kind], fields, where)


def _typed(cls: Any, fields: dict[str, Any], where: str) -> Any:
    """Build a dataclass from a table, checking names and simple types first."""
    hints = get_type_hints(cls)
    known = [f.name for f in dataclasses.fields(cls) if f.init]
    _only(fields, known, where)
    values = {}
    for key, value in fields.items():
        if isinstance(value, bool) and hints[key] in (int, float, int | None, float | None):
            _wrong(where, key, value, "a number")
        if hints[key] in (float, float | None) and isinstance(value, int):
            value = float(value)
        if hints[key] in (int, int | None) and not isinstance(value, int):
            _wrong(where, key, value, "a whole number")
        if hints[key] in (float, float | None) and not isinstance(value, float):
            _wrong(where, key, value, "a number")
        if hints[key] is str and not isinstance(value, str):
            _wrong(where, key, value, "text in quotes")
        if hints[key] in (bool, bool | None) and not isinstance(value, bool):
            _wrong(where, key, value, "true or false")
        if key == "methods":
            if not isinstance(value, list | tuple):
                _wrong(where, key, value, "a list")
            value = tuple(value)
        values[key] = value
    missing = [
        f.name
        for f in dataclasses.fields(cls)
        if f.init and f.name not in values and f.default is f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise InvalidConfig(f"{where}.{missing[0]} is missing; add it.")
    return cls(**values)


def _wrong(where: str, key: str, value: Any, wanted: str) -> None:
    raise InvalidConfig(f"{where}.{key} must be {wanted}, got {value!r}.")
