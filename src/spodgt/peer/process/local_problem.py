"""Local computation of one client: when its device computes, and on which part of the problem.

The table `compute` of a client in the manifest describes its device:

{kind = "bernoulli", p = 0.7}      drawn, a pure function of (seed, round, client)
{kind = "budget", share = 0.25}    at most this fraction of wall time goes into gradients
{kind = "trace", path = "a.csv"}   recorded: a log as `TraceFile` reads it, with its other keys; in a loop
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spodgt import rng
from spodgt.errors import InvalidConfig, InvalidInput
from spodgt.experiment import ProblemRecipe, PythonProblem
from spodgt.experiment.join import client_names
from spodgt.experiment.toml import read_problem
from spodgt.network.names import list_names
from spodgt.participation import TraceFile
from spodgt.peer.host.clock import SYSTEM_CLOCK, Clock
from spodgt.peer.membership.manifest import Manifest, layout_of
from spodgt.peer.options import Table
from spodgt.peer.protocol.client_state import State
from spodgt.problems.protocols import HasClientWeights
from spodgt.problems.running_statistics import refuse_statistics
from spodgt.types import Minibatches, Problem
from spodgt.validation import from_table

_FRACTIONS = {"bernoulli": "p", "budget": "share"}  # key of the fraction in (0, 1], by kind


class ScheduledCapacity(ABC):
    """Computes in rounds that are drawn or recorded.

    Args:
        p: Fraction of the rounds in which the device computes.
    """

    def __init__(self, p: float) -> None:
        self.p = p

    @abstractmethod
    def computes(self, k: int) -> bool:
        """Whether the device computes in round k."""

    def note_gradient_time(self, seconds: float) -> None:  # noqa: B027
        """A schedule does not depend on the duration of gradients."""


class BernoulliCapacity(ScheduledCapacity):
    """Independent draws, a pure function of (seed, round, client): those of the simulator."""

    def __init__(self, p: float, seed: int, client_index: int) -> None:
        super().__init__(p)
        self.key = rng.key(seed, "clients")
        self.client_index = client_index

    def computes(self, k: int) -> bool:
        return bool(rng.uniform(self.key, k, self.client_index) < self.p)


class TraceCapacity(ScheduledCapacity):
    """Replays a recorded log in a loop."""

    def __init__(self, rounds: NDArray[np.bool_]) -> None:
        super().__init__(float(rounds.mean()))
        self.rounds = rounds

    def computes(self, k: int) -> bool:
        return bool(self.rounds[k % len(self.rounds)])


@dataclass
class BudgetCapacity:
    """Computes as long as gradients have taken no more than a fraction `p` of the time."""

    p: float
    clock: Callable[[], float] = SYSTEM_CLOCK.monotonic
    used: float = 0.0  # seconds spent on gradients
    begun: float = -1.0  # monotonic time of the first round; negative before it

    def computes(self, k: int) -> bool:
        now = self.clock()
        if self.begun < 0:
            self.begun = now
        return self.used <= self.p * (now - self.begun)

    def note_gradient_time(self, seconds: float) -> None:
        self.used += seconds


Capacity = ScheduledCapacity | BudgetCapacity


def read_capacity(
    section: Table, seed: int, client_index: int, name: str = "", clock: Clock = SYSTEM_CLOCK
) -> Capacity:
    """The capacity of a client's device.

    Args:
        section: The table `compute` of the client in the manifest.
        seed: Of the run.
        client_index: The client's number, for its draws.
        name: Of the client, which selects its column of a recorded log.
        clock: Of the host.

    Raises:
        InvalidConfig: The table has another form.
    """
    kind = section.get("kind")
    fields = {key: value for key, value in section.items() if key != "kind"}
    if kind == "trace" and "path" in fields:
        log = from_table(TraceFile, fields, "compute")
        return TraceCapacity(log.trace.column(client_index, name))
    key = _FRACTIONS.get(kind) if isinstance(kind, str) else None
    if key is None or set(fields) != {key}:
        raise InvalidConfig(
            f"compute={dict(section)!r} must be one of {{kind = 'bernoulli', p = 0.7}}, "
            "{kind = 'budget', share = 0.25} and {kind = 'trace', path = 'trace.csv'}."
        )
    fraction = fields[key]
    if not isinstance(fraction, int | float) or not 0 < fraction <= 1:
        raise InvalidConfig(f"compute.{key} must be in (0, 1], got {fraction!r}; use {key} = 0.5.")
    if kind == "budget":
        return BudgetCapacity(fraction, clock.monotonic)
    return BernoulliCapacity(fraction, seed, client_index)


def describe_limits(manifest: Manifest) -> list[str]:
    """Limits of clients and links, one sentence for each limited client."""
    sentences = []
    if manifest.rounds_per_second:
        sentences.append(f"all clients: at most {manifest.rounds_per_second:g} rounds per second")
    for client in manifest.clients:
        parts = _limits_of_device(client.compute)
        for receiver, p_hat in manifest.probabilities(client.name).items():
            if p_hat < 1:
                parts.append(f"sends to {receiver} in {100 * p_hat:.3g} % of its rounds")
        if parts:
            sentences.append(f"{client.name}: {', '.join(parts)}")
    return sentences


def _limits_of_device(table: Table) -> list[str]:
    kind = table["kind"]
    if kind not in ("bernoulli", "budget"):
        return [f"computes by the schedule {dict(table)}"]
    share = float(table[_FRACTIONS[kind]])  # type: ignore[arg-type]
    if kind == "budget" and share < 1:
        return [f"spends at most {100 * share:.3g} % of its time on gradients"]
    if kind == "bernoulli" and share < 1:
        return [f"computes in {100 * share:.3g} % of its rounds"]
    return []


class LocalProblem:
    """What client `name` computes, on the problem of the manifest."""

    def __init__(
        self, name: str, manifest: Manifest, capacity: Capacity, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.clock = clock
        problem = manifest_problem(manifest, name)
        refuse_statistics(problem, "peers")
        self.problem = problem.to(torch.device("cpu"), torch.float32)
        own = manifest.client(name)
        self.client_index = own.place
        self.seed = manifest.seed
        self.capacity = capacity
        self.row = row_of(problem, name, own.part)
        if layout_of(problem) != manifest.layout:
            raise InvalidInput(
                f"the model of {name} has {problem.parameters} parameters, with other names or shapes "
                f"than the {manifest.parameters} of the manifest; use the model the run was made with, "
                "or make the run with spodgt peer init --problem."
            )
        self.keys = np.array([rng.key(self.seed, "batch")])

    def start(self) -> Tensor:
        """(parameters,): the initial model."""
        return self.problem.start(self.seed)[self.row]

    def private(self) -> Tensor:
        """(columns,): the parameters that never leave this client, as they begin."""
        return self.problem.statistics(self.seed)[self.row]

    def gradient(self, x: Tensor, k: int) -> Tensor:
        """(1, parameters): the stochastic gradient of local round k; private columns of x are updated."""
        begun = self.clock.monotonic()
        g = self.problem.grad(
            x, Minibatches(np.array([self.row]), self.keys, np.array([self.client_index]), k)
        )
        self.capacity.note_gradient_time(self.clock.monotonic() - begun)
        return g

    def evaluate(self, state: State) -> list[tuple[float, float]]:
        """(loss, accuracy) of the model, and of its running mean where the method keeps one."""
        models = [state.method.x]
        if "mean" in state.more:
            models.append(state.more["mean"].float())
        wide = torch.cat([torch.cat((x, state.private), 1) for x in models])
        scores = self.problem.evaluate(wide, np.full(len(models), self.row))
        accuracies = scores.metrics.get("accuracy")
        rows = []
        for index, loss in enumerate(scores.loss):
            accuracy = math.nan if accuracies is None else float(accuracies[index])
            rows.append((float(loss), accuracy))
        return rows


def row_of(problem: Problem, name: str, part: int) -> int:
    """The client of a problem that peer `name` is: the one of its name, or else number `part`.

    A problem of one client is the peer's own.
    """
    if problem.clients == 1:
        if isinstance(problem, HasClientWeights) and problem.weighting == "samples":
            raise InvalidInput(
                f"client_weights='samples' needs the samples of all clients, but {name} has its own alone; "
                "give a dict with the weights of all clients, and clients as a dict by name."
            )
        return 0
    names = client_names(problem)
    if names is not None:
        if name not in names:
            raise InvalidInput(
                f"the data have no client {name!r}, their clients are {list_names(names)}; use these names."
            )
        return names.index(name)
    if part >= problem.clients:
        raise InvalidInput(
            f"the problem has {problem.clients} parts, but {name} has number {part}; give it data."
        )
    return part


def manifest_problem(manifest: Manifest, name: str | None = None) -> Problem:
    """The problem that a manifest describes, in as many parts as the run was made with."""
    if manifest.is_script:
        raise InvalidInput(
            "the run is for training scripts; start the script that calls spodgt.join with this "
            "folder."
        )
    clients = manifest.divided_into or len(manifest.clients)
    return problem_of(read_problem(manifest.problem), clients, name).draw(manifest.seed)


def problem_of(recipe: ProblemRecipe, clients: int, name: str | None) -> Problem:
    """The problem of a recipe; a function of the user's may load the data of client `name` alone."""
    return recipe.make(clients, name) if isinstance(recipe, PythonProblem) else recipe.make(clients)
