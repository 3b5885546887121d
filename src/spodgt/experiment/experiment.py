"""An experiment: what is run, from TOML or the keyword arguments of `compare`, and the draw of a seed."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from dataclasses import fields as fields_of
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from pydantic import BeforeValidator
from torch import Tensor

from spodgt._util.text import first_line
from spodgt.algorithms import ALGORITHMS, LAYERS, algorithms, describe, installed, method
from spodgt.algorithms.base import Algorithm
from spodgt.engine import ENGINES
from spodgt.errors import InvalidConfig, InvalidInput, caller_level
from spodgt.experiment import config
from spodgt.experiment.config import SECTIONS, Table, checksum
from spodgt.experiment.join import join_clients
from spodgt.experiment.problems import Classification, ProblemRecipe
from spodgt.network import Network, Recipe, as_network, check_network
from spodgt.network.graphs import RandomGeometric
from spodgt.participation import (
    Always,
    Beta,
    Participation,
    TraceFile,
    as_availability,
    check_participation,
)
from spodgt.problems.learning import Learning
from spodgt.problems.protocols import HasValidation
from spodgt.problems.python_problem import PythonProblem
from spodgt.runtimes.events.durations import Time
from spodgt.runtimes.world import Draw
from spodgt.types import Availability, Problem
from spodgt.validation import (
    Field,
    Number,
    Whole,
    choices,
    from_table,
    recipe,
    reject_unknown_keys,
    to_table,
)

PAPER_METHODS = (
    "spod-gt",
    "spod-gt-memory",
    "ab-push-pull",
    "g-push-pull",
    "k-gt",
    "sporadic-k-gt",
)
Entry = (
    str | Mapping[str, object] | Algorithm
)  # a method by name, a table with a name and fields, or itself
Start = Tensor | ArrayLike  # initial models
_DELAY = 5000.0
_MOST = 2**53  # rounds that a float counts exactly
_MOST_SEEDS = 1_000_000
_TOO_MANY_SEEDS = f"seeds must be at most {_MOST_SEEDS:,}, got {{!r:.40}}; use seeds=5."
_DTYPES = ("float32", "float64")


# --- [run] -------------------------------------------------------------------------------------------
def _methods(value: object) -> object:
    if value == []:
        raise InvalidConfig('methods must hold at least one, got []; use methods = ["spod-gt"].')
    return list(value) if isinstance(value, tuple) else value


def _how_many_or_which(value: object) -> object:
    if isinstance(value, range | list) and len(value):
        return list(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidConfig(f"seeds must be how many, or a list of which, got {value!r}; use 5.")
    return value


def _layers(value: object) -> object:
    if not isinstance(value, dict | None):
        raise InvalidConfig(
            f"layers must be a table, got {value!r}; use layers = {{ momentum = 0.9 }}."
        )
    for key, one in (value or {}).items():
        if key not in LAYERS:
            raise InvalidConfig(f"{key}={one!r} is not a layer; {choices(key, LAYERS)}")
    return value


def _dtype(value: object) -> object:
    if value not in _DTYPES:
        raise InvalidConfig(f"dtype={value!r} is not known; choose {' or '.join(_DTYPES)}.")
    return value


def _autocast(value: object) -> object:
    if value not in (None, "bf16"):
        raise InvalidConfig(f"autocast={value!r} is not known; use 'bf16', or leave it out.")
    return value


def _evaluate_on(value: object) -> object:
    if value not in (None, "validation"):
        raise InvalidConfig(
            f"evaluate_on={value!r} is not known; use 'validation', or leave it out for the test data."
        )
    return value


def _engine(value: object) -> object:
    if value not in ENGINES:
        raise InvalidConfig(f"engine={value!r} is not known; choose {' or '.join(ENGINES)}.")
    return value


@recipe(InvalidInput)
class RunOptions:
    """When to stop, how often, and on what: `[run]` of a config.

    Args:
        methods: Names, tables with a name and fields, or methods themselves.
        step_size: Of methods that set none of their own: a number, one per client, or a schedule; None leaves
            each method its default.
        layers: Of methods that set none of their own: momentum, adam, clip_tracker, … with their values.
        seeds: How many (0, 1, …), or a list of which.
        delay: Stop before this delay.
        rounds: Stop after so many rounds. At least one of `delay`, `rounds` and `seconds` is given.
        seconds: Stop after so many seconds of virtual time.
        evaluations: About how many times a run is evaluated.
        every: Evaluate after every so many rounds instead.
        dtype: float32 or float64.
        device: As torch names it: cpu or cuda.
        autocast: "bf16" computes forward passes of gradients in bfloat16 where torch.autocast says so; models
            and evaluations stay in float32.
        gradient_norm: Evaluate the gradient norm always or never; None: where it is cheap.
        evaluate_on: "validation" evaluates on the validation data of the problem, or on samples that it holds
            out of training, as `tune` does; None: on the test data.
        engine: auto uses compiled loops where they apply; plain runs methods and models as they are written.
        workers: Processes that compute independent runs; None: one per core where that is faster.
    """

    methods: Annotated[list[object], BeforeValidator(_methods), Field(examples=[["spod-gt"]])] = (
        field(default_factory=lambda: list(PAPER_METHODS))
    )
    step_size: object = None
    layers: Annotated[dict[str, object] | None, BeforeValidator(_layers)] = None
    seeds: Annotated[int | list[object], BeforeValidator(_how_many_or_which)] = 5
    delay: Annotated[Number | None, Field(gt=0, allow_inf_nan=False, examples=[5000])] = None
    rounds: Annotated[Whole | None, Field(gt=0, examples=[100])] = None
    seconds: Annotated[Number | None, Field(gt=0, allow_inf_nan=False, examples=[60.0])] = None
    evaluations: Annotated[Whole, Field(gt=0)] = 25
    every: Annotated[Whole | None, Field(gt=0, examples=[100])] = None
    dtype: Annotated[str, BeforeValidator(_dtype)] = "float32"
    device: str = "cpu"
    autocast: Annotated[str | None, BeforeValidator(_autocast), Field(examples=["bf16"])] = None
    gradient_norm: Annotated[bool | None, Field(examples=[True])] = None
    evaluate_on: Annotated[
        str | None, BeforeValidator(_evaluate_on), Field(examples=["validation"])
    ] = None
    engine: Annotated[str, BeforeValidator(_engine)] = "auto"
    workers: Annotated[Whole | None, Field(gt=0, examples=[2])] = None

    def __post_init__(self) -> None:
        if isinstance(self.seeds, list):
            check_seeds(self.seeds)
        for key in ("rounds", "every", "evaluations"):
            if (getattr(self, key) or 0) >= _MOST:
                raise InvalidInput(
                    f"{key} must be below 2**53, got {getattr(self, key)!r:.40}; use {key}=100."
                )
        if isinstance(self.seeds, int) and self.seeds > _MOST_SEEDS:
            raise InvalidInput(_TOO_MANY_SEEDS.format(self.seeds))
        if self.autocast is not None and self.dtype != "float32":
            raise InvalidInput(
                f"autocast='bf16' needs dtype=float32, got {self.dtype}; leave one of them out."
            )
        if self.rounds is None and self.delay is None and self.seconds is None:
            raise InvalidInput(
                "rounds or delay must say when to stop, got neither; use delay=5000."
            )

    @property
    def seed_list(self) -> list[int]:
        """The seeds themselves."""
        return list(range(self.seeds)) if isinstance(self.seeds, int) else check_seeds(self.seeds)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of all numbers of a model."""
        return torch.float64 if self.dtype == "float64" else torch.float32

    @property
    def torch_device(self) -> torch.device:
        """The device, tried out: one that cannot be used is bad input."""
        try:
            device = torch.device(self.device)
            if device.type == "mps":
                raise TypeError("it has no float64, in which sums are kept")
            torch.zeros(1, dtype=self.torch_dtype, device=device).item()
        except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
            reason = first_line(error).split(". ")[0].rstrip(".")
            raise InvalidInput(
                f"device={self.device!r} cannot be used: {reason}; use cpu."
            ) from None
        return device

    @classmethod
    def parse(cls, table: Mapping[str, object]) -> RunOptions:
        """Read `[run]`; a table that says nothing of the end stops before the default delay."""
        ends = {} if {"rounds", "delay", "seconds"} & table.keys() else {"delay": _DELAY}
        return from_table(cls, {**table, **ends}, "run")

    def to_dict(self) -> Table:
        """As a table; methods are names or tables."""
        entries = [describe(each) if isinstance(each, Algorithm) else each for each in self.methods]
        table = {**to_table(self), "methods": entries}
        if self.engine == "auto":  # as in configs that were written before there was a choice
            del table["engine"]
        return table


def read_seeds(seeds: object) -> list[int]:
    """The seeds that Python callers mean: an integer is how many (0, 1, …), anything else lists them.

    An integer used to be the number of one seed; it warns until the next release.
    """
    if not isinstance(seeds, int | Integral):
        return check_seeds(seeds)
    count = int(seeds)
    if isinstance(seeds, bool) or count < 1:
        raise InvalidInput(
            f"seeds must be how many (at least 1) or a list of which, got {seeds!r}; use seeds=5, or "
            "seeds=[0] for seed number 0."
        )
    if count > _MOST_SEEDS:
        raise InvalidInput(_TOO_MANY_SEEDS.format(seeds))
    meaning = {1: "one seed, 0", 2: "two seeds 0, 1", 3: "three seeds 0, 1, 2"}
    warnings.warn(
        f"seeds={count} now means {meaning.get(count, f'{count} seeds 0, 1, …, {count - 1}')}; "
        f"it used to mean seed number {count}; write seeds=[{count}] for that one, seeds=range({count}) for "
        "no warning.",
        FutureWarning,
        stacklevel=caller_level(),
    )
    return list(range(count))


def check_seeds(seeds: Any) -> list[int]:
    """A list of seeds: whole numbers of at least 0 that differ from each other."""
    try:
        given = list(seeds)
        numbers = [-1 if isinstance(seed, bool) else operator.index(seed) for seed in given]
    except TypeError:
        given = seeds
        numbers = []
    if not numbers or min(numbers) < 0 or max(numbers) >= 2**63:
        raise InvalidInput(
            f"seeds must be whole numbers of at least 0, got {given!r}; use seeds=range(5)."
        )
    if len(set(numbers)) < len(numbers):
        raise InvalidInput(
            f"seeds must differ from each other, got {numbers!r}; use seeds=range(5)."
        )
    return numbers


# --- the whole ---------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Experiment:
    """What is run: recipes for network, participation and problem, and the options of the run.

    Args:
        network: A recipe, drawn anew for every seed, or a fixed network.
        participation: Who takes part in which round; drawn anew for every seed.
        problem: A recipe, built for the network's clients when it is first needed, or a problem itself.
        run: Methods, seeds, when to stop, how often to evaluate.
        weights: The rule for the weights of drawn networks: "degree", "random" or, of files, "given".
        x0: Initial models, (parameters,) or (clients, parameters); the problem's own if None.
        time: How long gradients and messages take, for virtual time; None: rounds without seconds.
    """

    network: Network | Recipe = RandomGeometric(10, 0.4)  # noqa: RUF009 (recipes are frozen)
    participation: Participation = Beta()  # noqa: RUF009
    problem: Problem | ProblemRecipe = Classification()  # noqa: RUF009
    run: RunOptions = RunOptions(delay=_DELAY)  # noqa: RUF009
    weights: str | None = "degree"
    x0: Start | None = field(default=None, compare=False)
    time: Time | None = None

    def __post_init__(self) -> None:
        _ = self.methods  # a method that means nothing is an error now
        if self.run.seconds is not None and self.time is None:
            raise InvalidInput(
                f"seconds={self.run.seconds:g} needs virtual time, got none; add [time], or use rounds."
            )
        if self.time is not None and not isinstance(self.time, Time):
            raise InvalidInput(
                f"time must be a spodgt.Time, got {_kind(self.time)}; use spodgt.Time(0.02)."
            )

    @property
    def rounds(self) -> int | None:
        """After how many rounds, or ticks of virtual time, runs end; None where only the delay says."""
        run, ends = self.run, [] if self.run.rounds is None else [self.run.rounds]
        if run.seconds is not None and self.time is not None:
            ends.append(max(1, int(min(run.seconds / self.time.seconds, _MOST) + 1e-9)))
        return min(ends, default=None)

    @cached_property
    def methods(self) -> tuple[Algorithm, ...]:
        """The methods; those that set no step size of their own get that of `run`."""
        return tuple(self._method(entry) for entry in self.run.methods)

    def _method(self, entry: object) -> Algorithm:
        if isinstance(entry, Algorithm):
            return entry
        table = {"name": entry} if isinstance(entry, str) else entry
        if not isinstance(table, Mapping) or "name" not in table:
            raise InvalidConfig(
                f'run.methods must hold names or tables with a name, got {entry!r}; use "spod-gt".'
            )
        fields = {
            **(self.run.layers or {}),
            **{key: value for key, value in table.items() if key != "name"},
        }
        name = str(table["name"])
        cls = ALGORITHMS.get(name) or algorithms().get(
            name
        )  # the second asks installed packages, slowly
        steps = cls is not None and any(each.name == "step_size" for each in fields_of(cls))  # type: ignore[arg-type]
        if steps and self.run.step_size is not None:
            fields = {"step_size": self.run.step_size} | fields
        return method(table["name"], **fields)

    # --- TOML ----------------------------------------------------------------------------------------
    @classmethod
    def read(cls, path: str | Path) -> Experiment:
        """Read the TOML file at `path`."""
        return cls.parse(config.read_toml(path)).beside(Path(path).parent)

    @classmethod
    def parse(cls, tables: Mapping[str, object]) -> Experiment:
        """Read the tables of a config, `tables`: what is left out is default."""
        for key in ("title", "base", "figure", "paper", "sweep"):
            if key in tables:
                raise InvalidConfig(
                    f"{key}={tables[key]!r} belongs to a sweep; use spodgt sweep FILE."
                )
        return cls()._with(tables)

    def _with(self, tables: Mapping[str, object]) -> Experiment:
        """The experiment with some of its sections replaced."""
        reject_unknown_keys(tables, SECTIONS, "the config")
        parts: Table = {}
        for name, table in tables.items():
            if name == "run":
                parts["run"] = RunOptions.parse(config.check_table(table, name))
            elif name == "network":
                parts["network"], parts["weights"] = config.read_network(table)
            elif name == "participation":
                parts["participation"] = config.read_participation(table)
            elif name == "time":
                parts["time"] = from_table(Time, config.check_table(table, name), name)
            else:
                parts["problem"] = config.read_problem(table)
        return replace(self, **parts)

    def beside(self, folder: Path) -> Experiment:
        """The same experiment, whose code is also looked for in `folder`, where its config is."""
        if not isinstance(self.problem, PythonProblem):
            return self
        return replace(self, problem=self.problem.resolve_relative_to(folder))

    def override(self, changes: Mapping[str, object]) -> Experiment:
        """Change keys by their dotted names, as in `changes`, `{"network.radius": 0.5}`.

        A section may be replaced whole, by a table. None puts a key back to its default; a new kind drops the
        keys of the old one.
        """
        touched = {name.split(".")[0] for name in changes}
        tables = {name: table for name, table in self._tables().items() if name in touched}
        after = config.changed({name: table() for name, table in tables.items()}, changes)
        if "run" in tables and not changes.keys() & {"run", "run.methods"}:
            after["run"]["methods"] = self.run.methods  # those of Python stay as they are
        return self._with(after)

    def _tables(self) -> dict[str, Callable[[], Table]]:
        return {
            "run": self.run.to_dict,
            "network": lambda: config.network_table(self.network, self.weights),
            "participation": lambda: config.described(self.participation),
            "problem": lambda: config.problem_table(self.problem),
            "time": lambda: {} if self.time is None else to_table(self.time),
        }

    def to_dict(self) -> dict[str, Table]:
        """The tables of a config that `parse` reads; objects of Python are described, not held."""
        tables = {name: table() for name, table in self._tables().items()}
        if self.time is None:
            del tables["time"]
        tables["run"].pop("workers", None)  # results do not depend on it
        if self.x0 is not None:
            tables["run"]["x0"] = {"kind": config.GIVEN, "checksum": checksum(self.x0)}
        return tables

    @property
    def portable(self) -> bool:
        """Whether another process can make it from its tables: nothing is an object of this script."""
        return config.rerunnable(self.to_dict()) and all(map(installed, self.methods))

    # --- Python --------------------------------------------------------------------------------------
    @classmethod
    def of(
        cls,
        methods: Entry | Iterable[Entry],
        problem: Problem | ProblemRecipe,
        network: Network | Recipe,
        participation: Participation = Always(),  # noqa: B008
        *,
        seeds: int | Iterable[int] = (0,),
        x0: Start | None = None,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        weights: str | None = None,
        time: Time | None = None,
        **options: Any,
    ) -> Experiment:
        """An experiment from the keyword arguments of `compare`.

        Args:
            methods: One method or several: names, tables, or methods themselves.
            problem: A problem, or a recipe for one.
            network: A fixed network, or a recipe that is drawn for every seed.
            participation: Who takes part in which round.
            seeds: How many (0, 1, …), or a list of which; seed 0 unless given.
            x0: Initial models, (parameters,) or (clients, parameters).
            dtype: torch.float32 or torch.float64.
            device: Where the models are.
            weights: The rule for the weights of drawn networks.
            time: How long gradients and messages take, for virtual time.
            options: Others of `RunOptions`: rounds, delay, seconds, evaluations, every, gradient_norm,
                autocast, engine, workers.
        """
        given: object = [methods] if isinstance(methods, str | Algorithm | Mapping) else methods
        if not isinstance(given, Iterable):
            raise InvalidInput(
                f'algorithms must be a list of methods, got {type(given).__name__}; use ["spod-gt"].'
            )
        entries: list[object] = [
            each if isinstance(each, Mapping) else method(each) for each in given
        ]
        numbers: list[object] = [*read_seeds(seeds)]
        if not entries:
            raise InvalidInput(
                'algorithms must name at least one method, got none; use ["spod-gt"].'
            )
        if dtype not in (torch.float32, torch.float64):
            raise InvalidInput(f"dtype must be torch.float32 or torch.float64, got {dtype!r}.")
        options |= {"dtype": str(dtype).removeprefix("torch."), "device": str(device)}
        if isinstance(problem, type) or not isinstance(problem, Problem | ProblemRecipe):
            raise InvalidInput(
                f"problem must be a spodgt.Learning or spodgt.Quadratic, got {_kind(problem)}; "
                "use spodgt.problems.fashion_mnist_svm()."
            )
        check_network(network)
        check_participation(participation)
        if isinstance(network, Network) and weights is not None:
            raise InvalidInput(
                f"weights={weights!r} is for recipes, and this network has its weights; "
                "leave weights out, or give them to the network."
            )
        run = RunOptions(entries, seeds=numbers, **options)
        return cls(network, participation, problem, run, weights, x0, time)

    # --- draws ---------------------------------------------------------------------------------------
    def draw(self, seed: int) -> Draw:
        """Network, availability, problem and initial models of any `seed`, also one not in `run`."""
        drawn = as_network(self.network, seed, self.weights)
        network, problem = join_clients(drawn, self.undivided.draw(seed))
        availability = as_availability(self.participation, network, seed)
        start = problem.start(seed) if self.x0 is None else _start(self.x0, problem)
        start = start.expand(problem.clients, problem.parameters)
        return Draw(seed, network, availability, problem, start)

    def draw_network(
        self, seed: int, names: Sequence[str] | None = None
    ) -> tuple[Network, Availability]:
        """The network and availability of one `seed` alone, without loading any data.

        Args:
            seed: Any, also one not in `run`.
            names: Of the clients, where the network has none of its own.
        """
        network = as_network(self.network, seed, self.weights)
        if network.names is None and names is not None and len(names) == network.clients:
            network = replace(network, names=tuple(names))
        return network, as_availability(self.participation, network, seed)

    def check(self) -> None:
        """Read the files and data it names: what is missing is said now, not at the first draw."""
        _ = self.network.clients, self.undivided
        if isinstance(self.participation, TraceFile):
            _ = self.participation.trace

    @property
    def sources(self) -> dict[str, str]:
        """Check sums of the user's code that it names, by what they are of."""
        own = self.problem
        return {f"source of {own.build}": own.digest} if isinstance(own, PythonProblem) else {}

    @cached_property
    def undivided(self) -> Problem:
        """The problem before a seed divides it among the clients; data are loaded once."""
        given = self.problem
        problem = given.make(self.network.clients) if isinstance(given, ProblemRecipe) else given
        if self.run.evaluate_on == "validation" and isinstance(problem, HasValidation):
            problem = problem.on_validation_data()
        if self.run.autocast is None:
            return problem
        if not isinstance(problem, Learning):
            raise InvalidInput(
                f"autocast='bf16' is for models of torch, and {_kind(problem)} has none; leave it out."
            )
        return problem.with_autocast()


def _kind(what: object) -> str:
    return f"the class {what.__name__} itself" if isinstance(what, type) else type(what).__name__


def _start(x0: Start, problem: Problem) -> Tensor:
    m, n = problem.clients, problem.parameters
    try:
        start = (
            x0.detach() if isinstance(x0, Tensor) else torch.from_numpy(np.array(x0, np.float64))
        )
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(f"x0 must be numbers, got {x0!r:.60}; use torch.zeros({n}).") from None
    if start.shape not in ((n,), (m, n)):
        raise InvalidInput(
            f"x0 must be ({m}, {n}) or ({n},), got {tuple(start.shape)}; use torch.zeros({m}, {n})."
        )
    if not torch.isfinite(start).all():
        raise InvalidInput("x0 must be finite, got NaN or infinity; check how it was made.")
    return start
