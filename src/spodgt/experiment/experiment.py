"""An experiment: what is run, from TOML or arguments of `compare`, and the draw of a seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from typing_extensions import Unpack

from spodgt._util.deprecation import MovedMethod, MovedProperty, RenamedAttribute
from spodgt.algorithms.base import Algorithm
from spodgt.errors import InvalidConfig, InvalidInput
from spodgt.experiment import toml
from spodgt.experiment.join import join_clients
from spodgt.experiment.methods import Entry, build_method, check_methods
from spodgt.experiment.problem_recipes import Classification, ProblemRecipe
from spodgt.experiment.run_options import (
    DEFAULT_DELAY,
    MAX_ROUNDS,
    ExperimentOptions,
    RunOptions,
    read_seeds,
)
from spodgt.experiment.toml import SECTIONS, Table, checksum
from spodgt.network import GraphRecipe, Network, as_network, check_network
from spodgt.network.graphs import RandomGeometric
from spodgt.participation import (
    Always,
    Beta,
    Participation,
    as_availability,
    check_participation,
)
from spodgt.problems.protocols import HasSamples, HasValidation
from spodgt.problems.python_problem import PythonProblem
from spodgt.runtimes.events.durations import Time
from spodgt.runtimes.world import Draw
from spodgt.types import Availability, Problem
from spodgt.validation import from_table, reject_unknown_keys, to_table

_SWEEP_KEYS = ("title", "base", "figure", "paper", "sweep")  # of files of `spodgt sweep`


@dataclass(frozen=True)
class Experiment:
    """What is run: recipes for network, participation and problem, and the options of the run.

    Args:
        network: A recipe, drawn for every seed, or a fixed network.
        participation: Which clients and links are active in which round; drawn for every seed.
        problem: A recipe, built for the network's clients when it is first needed, or a problem.
        run: Methods, seeds, limits and evaluations.
        weights: The rule for the weights of drawn networks: "degree", "random" or, of files,
            "given".
        x0: Initial models, (parameters,) or (clients, parameters); those of the problem if None.
        time: How long gradients and messages take, for virtual time; None: rounds without seconds.
    """

    network: Network | GraphRecipe = RandomGeometric(10, 0.4)  # noqa: RUF009 (recipes are frozen)
    participation: Participation = Beta()  # noqa: RUF009
    problem: Problem | ProblemRecipe = Classification()  # noqa: RUF009
    run: RunOptions = RunOptions(delay=DEFAULT_DELAY)  # noqa: RUF009
    weights: str | None = "degree"
    x0: Tensor | ArrayLike | None = field(default=None, compare=False)
    time: Time | None = None

    def __post_init__(self) -> None:
        _ = self.methods  # raises if a method is not known
        if self.run.seconds is not None and self.time is None:
            raise InvalidInput(
                f"seconds={self.run.seconds:g} needs virtual time, got none; "
                "add [time], or use rounds."
            )
        if self.run.epochs is not None and self.time is not None:
            raise InvalidInput(
                f"epochs={self.run.epochs:g} counts rounds, which virtual time does not have; "
                "use seconds."
            )
        if self.time is not None and not isinstance(self.time, Time):
            raise InvalidInput(
                f"time must be a spodgt.Time, got {_class_name(self.time)}; use spodgt.Time(0.02)."
            )

    @property
    def max_rounds(self) -> int | None:
        """Rounds, or ticks of virtual time, after which runs stop; None: they stop by delay only.

        The smallest of the limits `rounds`, `epochs` and `seconds` of `run`, in rounds.
        """
        limits = []
        if self.run.rounds is not None:
            limits.append(self.run.rounds)
        if self.run.seconds is not None and self.time is not None:
            ticks = int(min(self.run.seconds / self.time.seconds, MAX_ROUNDS) + 1e-9)
            limits.append(max(1, ticks))
        if self.run.epochs is not None:
            limits.append(_rounds_of(self.run.epochs, self.base_problem))
        return min(limits, default=None)

    @cached_property
    def methods(self) -> tuple[Algorithm, ...]:
        """The methods, with step size and layers of `run` where they have none of their own."""
        return tuple(build_method(entry, self.run) for entry in self.run.methods)

    # --- TOML ------------------------------------------------------------------------------------
    @classmethod
    def read(cls, path: str | Path) -> Experiment:
        """Read the TOML file at `path`."""
        folder = Path(path).parent
        tables = toml.resolve_references(toml.read_toml(path), folder)
        return cls.parse(tables).resolve_relative_to(folder)

    @classmethod
    def parse(cls, tables: Mapping[str, object]) -> Experiment:
        """Read the tables of a config, `tables`; omitted sections and keys have default values."""
        for key in _SWEEP_KEYS:
            if key in tables:
                raise InvalidConfig(
                    f"{key}={tables[key]!r} belongs to a sweep; use spodgt sweep FILE."
                )
        return replace(cls(), **_read_sections(tables))

    def resolve_relative_to(self, folder: Path) -> Experiment:
        """The same experiment, with user code also searched for in `folder`, that of its config."""
        if not isinstance(self.problem, PythonProblem):
            return self
        return replace(self, problem=self.problem.resolve_relative_to(folder))

    def override(self, changes: Mapping[str, object]) -> Experiment:
        """Change keys by their dotted names, as in `changes`, `{"network.radius": 0.5}`.

        A section may be replaced by a table. None resets a key to its default; a new kind removes
        the keys of the old kind.
        """
        sections = {name.split(".")[0] for name in changes}
        tables = {name: _section_table(self, name) for name in SECTIONS if name in sections}
        changed = toml.change_keys(tables, changes)
        if "run" in tables and not changes.keys() & {"run", "run.methods"}:
            changed["run"]["methods"] = self.run.methods  # objects of Python are not converted
        if callable(self.run.step_size) and not changes.keys() & {"run", "run.step_size"}:
            changed.get("run", {})["step_size"] = self.run.step_size
        return replace(self, **_read_sections(changed))

    def to_dict(self) -> dict[str, Table]:
        """The tables of a config that `parse` reads; objects of Python are described only."""
        tables = {name: _section_table(self, name) for name in SECTIONS}
        if self.time is None:
            del tables["time"]
        tables["run"].pop("workers", None)  # results do not depend on it
        if self.x0 is not None:
            tables["run"]["x0"] = {"kind": toml.GIVEN, "checksum": checksum(self.x0)}
        return tables

    # --- Python ----------------------------------------------------------------------------------
    @classmethod
    def of(
        cls,
        methods: Entry | Iterable[Entry],
        problem: Problem | ProblemRecipe,
        network: Network | GraphRecipe,
        participation: Participation = Always(),  # noqa: B008
        **options: Unpack[ExperimentOptions],
    ) -> Experiment:
        """An experiment from the arguments of `compare`.

        Args:
            methods: One method or several: names, tables, or methods themselves.
            problem: A problem, or a recipe for one.
            network: A fixed network, or a recipe that is drawn for every seed.
            participation: Which clients and links are active in which round.
            options: See `ExperimentOptions`; seed 0 unless `seeds` are given.
        """
        run_options: dict[str, Any] = dict(options)
        x0 = run_options.pop("x0", None)
        time = run_options.pop("time", None)
        weights = run_options.pop("weights", None)
        dtype = run_options.get("dtype", torch.float32)
        entries = check_methods(methods)
        run_options["seeds"] = read_seeds(run_options.get("seeds", (0,)))
        if dtype not in (torch.float32, torch.float64):
            raise InvalidInput(f"dtype must be torch.float32 or torch.float64, got {dtype!r}.")
        run_options["dtype"] = str(dtype).removeprefix("torch.")
        run_options["device"] = str(run_options.get("device", "cpu"))
        _check_problem(problem)
        check_network(network)
        check_participation(participation)
        if isinstance(network, Network) and weights is not None:
            raise InvalidInput(
                f"weights={weights!r} is for recipes, and this network has its weights; "
                "leave weights out, or give them to the network."
            )
        run = RunOptions(entries, **run_options)
        return cls(network, participation, problem, run, weights, x0, time)

    # --- draws -----------------------------------------------------------------------------------
    def draw(self, seed: int) -> Draw:
        """Network, availability, problem and initial models of any `seed`, in `run` or not."""
        network = as_network(self.network, seed, self.weights)
        network, problem = join_clients(network, self.base_problem.draw(seed))
        availability = as_availability(self.participation, network, seed)
        if self.x0 is None:
            start = problem.start(seed)
        else:
            start = _initial_models(self.x0, problem)
        start = start.expand(problem.clients, problem.parameters)
        return Draw(seed, network, availability, problem, start)

    def draw_network(
        self, seed: int, names: Sequence[str] | None = None
    ) -> tuple[Network, Availability]:
        """The network and availability of one `seed`, without loading data.

        Args:
            seed: Any, also one not in `run`.
            names: Of the clients, if the network has none of its own.
        """
        network = as_network(self.network, seed, self.weights)
        if network.names is None and names is not None and len(names) == network.clients:
            network = replace(network, names=tuple(names))
        return network, as_availability(self.participation, network, seed)

    @cached_property
    def base_problem(self) -> Problem:
        """The problem before a seed partitions its data, with the options of `run`; made once."""
        problem = self.problem
        if isinstance(problem, ProblemRecipe):
            problem = problem.make(self.network.clients)
        if self.run.evaluate_on == "validation" and isinstance(problem, HasValidation):
            problem = problem.on_validation_data()
        return problem

    # Deprecated names, removed in the next release.
    check = MovedMethod("spodgt.experiment.checks.check_files")
    portable = MovedProperty("spodgt.experiment.checks.is_portable")
    sources = MovedProperty("spodgt.experiment.user_code.code_checksums")
    beside = RenamedAttribute("resolve_relative_to")
    rounds = RenamedAttribute("max_rounds")
    undivided = RenamedAttribute("base_problem")


def _rounds_of(epochs: float, problem: Problem) -> int:
    """The rounds in which clients that always compute use all samples `epochs` times."""
    if not isinstance(problem, HasSamples):
        raise InvalidInput(
            f"epochs={epochs:g} needs a problem with samples, got {_class_name(problem)}; "
            "use rounds."
        )
    problem = problem.draw(0)  # without the samples that are held out
    assert isinstance(problem, HasSamples)
    sizes = problem.sizes()
    batch_sizes = problem.batches(np.arange(len(sizes)))
    rounds = epochs * float(sizes.sum()) / float(batch_sizes.sum())
    return max(1, math.ceil(min(rounds, MAX_ROUNDS) - 1e-9))


# --- sections of a config ------------------------------------------------------------------------
def _read_sections(tables: Mapping[str, object]) -> Table:
    """The fields of an `Experiment` that the sections in `tables` set.

    Raises:
        InvalidConfig: for an unknown section or key, or an invalid value.
    """
    reject_unknown_keys(tables, SECTIONS, "the config")
    fields: Table = {}
    for name, table in tables.items():
        if name == "run":
            fields["run"] = RunOptions.parse(toml.check_table(table, name))
        elif name == "network":
            fields["network"], fields["weights"] = toml.read_network(table)
        elif name == "participation":
            fields["participation"] = toml.read_participation(table)
        elif name == "time":
            fields["time"] = from_table(Time, toml.check_table(table, name), name)
        else:
            fields["problem"] = toml.read_problem(table)
    return fields


def _section_table(experiment: Experiment, section: str) -> Table:
    """One section of the config of an experiment; the inverse of `_read_sections`."""
    if section == "run":
        return experiment.run.to_dict()
    if section == "network":
        return toml.network_table(experiment.network, experiment.weights)
    if section == "participation":
        return toml.describe_recipe(experiment.participation)
    if section == "problem":
        return toml.problem_table(experiment.problem)
    return {} if experiment.time is None else to_table(experiment.time)


# --- arguments of Python -------------------------------------------------------------------------
def _class_name(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__} itself"
    return type(value).__name__


def _check_problem(problem: object) -> None:
    """Raise `InvalidInput` unless `problem` is a problem or a recipe for one."""
    if isinstance(problem, type) or not isinstance(problem, Problem | ProblemRecipe):
        raise InvalidInput(
            f"problem must be a spodgt.Learning or spodgt.Quadratic, got {_class_name(problem)}; "
            "use spodgt.problems.fashion_mnist_svm()."
        )


def _initial_models(x0: Tensor | ArrayLike, problem: Problem) -> Tensor:
    """The models x0 as a tensor, (parameters,) or (clients, parameters)."""
    clients = problem.clients
    parameters = problem.parameters
    try:
        if isinstance(x0, Tensor):
            start = x0.detach()
        else:
            start = torch.from_numpy(np.array(x0, np.float64))
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(
            f"x0 must be numbers, got {x0!r:.60}; use torch.zeros({parameters})."
        ) from None
    if start.shape not in ((parameters,), (clients, parameters)):
        raise InvalidInput(
            f"x0 must be ({clients}, {parameters}) or ({parameters},), got {tuple(start.shape)}; "
            f"use torch.zeros({clients}, {parameters})."
        )
    if not torch.isfinite(start).all():
        raise InvalidInput("x0 must be finite, got NaN or infinity; check how it was made.")
    return start
