"""Several runs as one: the disjoint union of their networks, and the active clients of rounds.

Runs of one method (several seeds, networks or partitions) are computed together; methods do not
notice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spodgt import rng
from spodgt.algorithms import stack
from spodgt.algorithms.base import Algorithm
from spodgt.kernels.links import BatchLinks
from spodgt.kernels.steps import Activity
from spodgt.participation import delay
from spodgt.participation.roles import HasRoles, Roles
from spodgt.problems.protocols import GradientFunction, PreparesGradients
from spodgt.runtimes.world import Run, RunState, with_average
from spodgt.types import ActiveLinks, Bools, Evaluation, Floats, Ints, Problem, Words

_DRAWS_AT_ONCE = 2**20
_ROUNDS_AT_ONCE = 256


class MixingMatrix(Enum):
    """The matrix of a mixing call; values are the keys of `RunBatch.weights`."""

    PULL = "a"  # row-stochastic
    PUSH = "b"  # column-stochastic: the sender keeps the weight that it does not send
    GOSSIP = "w"  # doubly stochastic


class TallyIndex(NamedTuple):
    """Positions in a tally of all runs."""

    clients: Ints | slice
    links: Ints | slice


class RunBatch:
    """Some runs of one method as one; clients and links are numbered run after run.

    Args:
        all_runs: all runs of the method.
        dtype: of the models.
        device: of the models.
        runs: numbers of the runs in this batch (`live`); None: all.
    """

    def __init__(
        self,
        all_runs: Sequence[Run],
        dtype: torch.dtype,
        device: torch.device,
        runs: Ints | None = None,
    ) -> None:
        self.all_runs = all_runs
        self.dtype = dtype
        self.device = device
        self.runs: Ints = np.arange(len(all_runs)) if runs is None else runs
        self.live = [all_runs[run] for run in self.runs]
        self.sizes = [run.network.clients for run in self.live]  # clients of each run
        self.starts: Ints = np.cumsum([0, *self.sizes])  # first client of each run, and the end
        self.activity = ActivitySampler(self.live)

    @cached_property
    def algorithm(self) -> Algorithm:
        methods = [run.algorithm for run in self.live]
        return stack(methods, self.sizes, dtype=self.dtype, device=self.device)

    @cached_property
    def problem(self) -> Problem:
        first, *others = [run.problem for run in self.live]
        joined: Problem = first.join(others) if others else first
        return joined.to(self.device, self.dtype)

    @cached_property
    def gradient(self) -> GradientFunction:
        """The gradients of the problem; what they share in all rounds is looked up once."""
        return gradient_function(self.problem, self.dtype)

    def problem_of(self, index: int) -> Problem:
        """The problem of one run, on the device of the models."""
        problem: Problem = self.live[index].problem
        return problem.to(self.device, self.dtype)

    def evaluate(self, index: int, run_state: RunState) -> Evaluation:
        """Evaluate the models of all clients of a run and their average, in this process."""
        models = with_average(run_state)
        test_clients = np.append(np.arange(len(models) - 1), -1)
        return self.problem_of(index).evaluate(models, test_clients)

    @cached_property
    def links(self) -> BatchLinks:
        receivers = []
        senders = []
        for run, start in zip(self.live, self.starts[:-1], strict=True):
            receivers.append(run.network.receivers + start)
            senders.append(run.network.senders + start)
        equal_runs = len(self.live) if len(set(self.sizes)) == 1 else 1
        clients = int(self.starts[-1])
        return BatchLinks(equal_runs, clients, np.concatenate(receivers), np.concatenate(senders))

    @cached_property
    def weights(self) -> dict[str, Floats]:
        """(links,) entries of A, B and, where all links are two-way, W, by "a", "b" and "w"."""
        networks = [run.network for run in self.live]
        weights = {
            "a": np.concatenate([network.a for network in networks]),
            "b": np.concatenate([network.b for network in networks]),
        }
        gossip = [network.w for network in networks if network.w is not None]
        if len(gossip) == len(networks):
            weights["w"] = np.concatenate(gossip)
        return weights

    @cached_property
    def tally_index(self) -> TallyIndex:
        """Positions of the clients and links of this batch in a tally of all runs."""
        if len(self.runs) == len(self.all_runs):
            return TallyIndex(slice(None), slice(None))
        is_live = np.isin(np.arange(len(self.all_runs)), self.runs)
        clients = np.repeat(is_live, [run.network.clients for run in self.all_runs])
        links = np.repeat(is_live, [run.network.links for run in self.all_runs])
        return TallyIndex(np.flatnonzero(clients), np.flatnonzero(links))

    @cached_property
    def keys(self) -> Words:
        """(clients,) key of the random stream "batch" of each client's run."""
        return np.repeat([rng.key(run.seed, "batch") for run in self.live], self.sizes)

    @cached_property
    def client_index(self) -> Ints:
        """(clients,) number of each client in its run."""
        return np.concatenate([np.arange(size) for size in self.sizes])

    @cached_property
    def p(self) -> Tensor:
        """(clients, 1) probability that a client computes."""
        p = np.concatenate([run.availability.p for run in self.live])
        return torch.from_numpy(p).to(self.device, self.dtype)[:, None]


def gradient_function(problem: Problem, dtype: torch.dtype) -> GradientFunction:
    """The stochastic gradients of a problem, for many rounds with models of `dtype`."""
    if isinstance(problem, PreparesGradients):
        return problem.gradient_function(dtype)
    return problem.grad


class RoundActivity(NamedTuple):
    """Active clients and links of a batch in one round."""

    computes: Bools  # (clients,)
    pull: Bools  # (links,) links that carry models
    push: Bools  # (links,) links that carry trackers
    roles: Roles | None  # weights of this round, if they change between rounds


class ActivitySampler:
    """Active clients and links of several runs, drawn many rounds at a time."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.drawn: Activity | None = None
        self.drawn_rounds = range(0)

    def round(self, k: int) -> RoundActivity:
        """Round k alone."""
        drawn = self.starting_with(k)
        index = k - drawn.first
        pull, push = drawn.links
        return RoundActivity(
            computes=drawn.computes[index + 1],
            pull=pull[index],
            push=pull[index] if push is None else push[index],
            roles=None if drawn.roles is None else drawn.roles.at(index),
        )

    def starting_with(self, k: int) -> Activity:
        """Rounds that were drawn at once: round k, some after it, and maybe some before it."""
        if self.drawn is None or k not in self.drawn_rounds:
            self.drawn = self._draw(k)
            self.drawn_rounds = self.drawn.rounds
        return self.drawn

    def over(self, rounds: range) -> Iterator[Activity]:
        """These rounds, in parts that were drawn at once."""
        k = rounds.start
        while k < rounds.stop:
            drawn = self.starting_with(k)
            stop = min(rounds.stop, drawn.rounds.stop)
            yield drawn.part(range(k, stop))
            k = stop

    def costs(self, k: int) -> Floats:
        """(rounds, runs) delays of round k and of some rounds after it."""
        activity = self.starting_with(k)
        return activity.cost[k - activity.first :]

    def _draw(self, k: int) -> Activity:
        width = sum(run.network.clients + run.network.links for run in self.runs)
        rounds = range(k, k + max(1, min(_ROUNDS_AT_ONCE, _DRAWS_AT_ONCE // width)))
        computes = []
        links = []
        costs = []
        for run, clock in zip(self.runs, self._clocks, strict=True):
            active_clients, active_links = _draw_run(run, rounds)
            computes.append(active_clients)
            links.append(active_links)
            processing = clock.processing(active_clients[:-1])
            costs.append(processing + clock.transmission(active_links.used))
        push = None
        if any(active.push is not None for active in links):
            push = _concatenate([active.pushing for active in links])
        joined = ActiveLinks(_concatenate([active.pull for active in links]), push)
        roles = self._roles(rounds)
        return Activity(k, _concatenate(computes), joined, np.stack(costs, 1), roles)

    @cached_property
    def _clocks(self) -> list[delay.Costs]:
        return [delay.costs(run.network, run.availability) for run in self.runs]

    def _roles(self, rounds: range) -> Roles | None:
        """The roles of all runs: they have the same method, so all or none of them have roles."""
        roles = []
        for run in self.runs:
            if isinstance(run.availability, HasRoles):
                roles.append(run.availability.roles(rounds))
        if not roles:
            return None
        return Roles(*(np.concatenate(fields, 1) for fields in zip(*roles, strict=True)))


def _concatenate(parts: Sequence[Bools]) -> Bools:
    """(rounds, …) runs side by side; a single run is not copied."""
    return np.concatenate(parts, 1) if len(parts) > 1 else parts[0]


def _draw_run(run: Run, rounds: range) -> tuple[Bools, ActiveLinks]:
    """Active clients, from one round before, and active links of some rounds of one run.

    Round 0 has no links, and no client computes before it.
    """
    computes = run.availability.computes(range(max(0, rounds.start - 1), rounds.stop))
    links = run.availability.links(rounds)
    if rounds.start == 0:
        computes = np.concatenate([np.zeros_like(computes[:1]), computes])
        links.pull[0] = False
        links.pushing[0] = False
    return computes, links
