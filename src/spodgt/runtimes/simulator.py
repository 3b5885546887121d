"""The simulator: all clients of many runs, stacked in one tensor. Only active clients compute."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, Schedule
from spodgt.algorithms.compose.codecs import Codec, IntervalQuantizer
from spodgt.algorithms.deprecated import OldRoundNames
from spodgt.kernels.compiled_rounds import CompiledRounds
from spodgt.kernels.links import move_into_intervals
from spodgt.kernels.steps import Activity, State, rebuild
from spodgt.participation.roles import Roles
from spodgt.problems.protocols import HasClientWeights
from spodgt.runtimes.batch import RunBatch
from spodgt.runtimes.world import (
    CheckpointBatch,
    Exchanged,
    Run,
    RunCheckpoint,
    RunState,
    Snapshot,
    Tally,
    with_average,
)
from spodgt.types import ActiveLinks, Bools, Evaluation, Floats, Ints, Minibatches, Problem

T = TypeVar("T")
M = TypeVar("M", bound=Algorithm | Schedule)
_CARRIERS = {
    "pull+push": "a",
    "pull": "a",
    "gossip": "w",
    "push": "b",
}  # weights by which models travel


def cut(method: M, own: Tensor, clients: int) -> M:
    """The same method (or schedule), its values per client cut to this block."""
    changed = copy.copy(method)  # not `replace`: a value is cut, not checked again
    for each in dataclasses.fields(method):  # type: ignore[arg-type]
        value = getattr(method, each.name)
        if isinstance(value, Algorithm | Schedule):
            value = cut(value, own, clients)
        elif isinstance(value, Tensor) and value.ndim and len(value) == clients:
            value = value[own.to(value.device)]
        object.__setattr__(changed, each.name, value)
    return changed


class Simulation:
    """The simulator's `World`: runs side by side on one device.

    Args:
        every: all runs of the batch.
        dtype, device: of the models.
        runs: which of them are still going; all unless given.
        counts: a tally to go on with.
        statistics: (clients, columns) running statistics to go on with.
        compiled: use the compiled rounds of the method where they apply.
    """

    processes = 1

    def __init__(
        self,
        every: Sequence[Run],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        runs: Ints | None = None,
        counts: Tally | None = None,
        statistics: Tensor | None = None,
        compiled: bool = True,
    ) -> None:
        self.batch = RunBatch(every, dtype, torch.device(device), runs)
        self.counts = Tally.zeros(every) if counts is None else counts  # what has happened so far
        self.compiled = compiled
        self.exchanged: dict[int, Exchanged] = {}  # by run, those that are between local steps
        if statistics is not None:
            self.statistics = statistics

    @property
    def runs(self) -> Ints:
        return self.batch.runs

    @cached_property
    def own(self) -> Ints:
        """The clients of the batch that this process holds, row by row."""
        return np.arange(self.batch.links.clients)

    @property
    def row(self) -> Ints:
        """(clients of the batch,): the row of each, of those that are here."""
        return self.own

    @property
    def held(self) -> Ints | slice:
        """Which clients of the batch are here, in their order."""
        return slice(None)

    @cached_property
    def sizes(self) -> list[int]:
        """How many clients of each run are here."""
        return self.batch.sizes

    @cached_property
    def algorithm(self) -> Algorithm:
        """The method, its values per client those of the clients here."""
        return self.batch.algorithm

    @cached_property
    def p(self) -> Tensor:
        return self.batch.p[torch.from_numpy(self.own).to(self.batch.device)]

    @cached_property
    def client_index(self) -> Tensor:
        return torch.from_numpy(self.batch.client_index[self.own]).to(self.batch.device)

    @cached_property
    def counted(self) -> tuple[Ints | slice, Ints | slice]:
        """Where the clients held here, and the links into them, stand in the tally."""
        return self.batch.counted

    @property
    def into(self) -> Ints | slice:
        """Which links of the batch end here."""
        return slice(None)

    @cached_property
    def statistics(self) -> Tensor:
        """(clients, columns): what each client keeps beside its model; mostly no columns.

        Running statistics, such as BatchNorm's, are exchanged with the models; the last columns are private.
        They stand beside the state and not in x, because methods subtract models, extrapolate them and
        put them into corrections (K-GT, EXTRA, D²): statistics there would end up in trackers, and
        variances below zero. Here a gradient refreshes them, a receiver averages them, and that is all.
        """
        device, dtype, rows = self.batch.device, self.batch.dtype, torch.from_numpy(self.own)
        whole = torch.cat([run.problem.statistics(run.seed) for run in self.batch.live])
        return whole[rows].to(device, dtype)

    @cached_property
    def travelling(self) -> int:
        """How many columns of the statistics travel with the models."""
        problem: Problem = self.batch.live[0].problem
        return self.statistics.shape[1] - problem.private

    @cached_property
    def step(self) -> CompiledRounds | None:
        """The method's rounds in compiled loops, where they apply."""
        if not self.compiled or self.statistics.shape[1]:
            return None  # only the method's own calls carry running statistics along
        return CompiledRounds.create(self.algorithm, self.batch)

    # --- World -----------------------------------------------------------------------------------
    def start(self) -> Tensor:
        """The initial models x."""
        parts = np.split(self.batch.client_index[self.own], np.cumsum(self.sizes)[:-1])
        return torch.cat(
            [
                run.start[rows].to(self.batch.device, self.batch.dtype)
                for run, rows in zip(self.batch.live, parts, strict=True)
            ]
        )

    def init(self) -> State:
        state: State = self.algorithm.init(self.start(), self.round(0))
        return state

    def round(self, k: int) -> SimulatedRound:
        activity = self.batch.activity(k)
        at = k - activity.first
        roles = activity.roles and activity.roles.at(at)
        return SimulatedRound(k, self, activity.computes[at + 1], activity.links.at(at), roles)

    def costs(self, k: int) -> Floats:
        activity = self.batch.activity(k)
        return activity.cost[k - activity.first :]

    @cached_property
    def periods(self) -> Ints:
        """(runs,): the rounds between two exchanges of each run."""
        return np.array([run.algorithm.period for run in self.batch.live], np.int64)

    def advance(self, state: State, rounds: range) -> State:
        """Compute some rounds; the models of a run's last exchange are kept where local steps follow it."""
        last = rounds.stop - 1
        exchanges = last - last % self.periods  # the last exchange of each run
        first = rounds.start
        for k in sorted(set(exchanges.tolist()) - {last}):
            if k >= first:
                state = self._advance(state, range(first, k + 1))
                first = k + 1
            if k >= rounds.start - 1:  # an earlier one is kept already
                self._keep_exchanged(state, exchanges == k)
        state = self._advance(state, range(first, last + 1))
        for run in self.runs[exchanges == last].tolist():
            self.exchanged.pop(run, None)
        return state

    def _keep_exchanged(self, state: State, which: Bools) -> None:
        """Copy the models of some runs, which have just exchanged them."""
        parts = zip(
            self.runs.tolist(), self.split(state[0]), self.split(self.statistics), strict=True
        )
        for (run, x, statistics), wanted in zip(parts, which, strict=True):
            if wanted:
                self.exchanged[run] = Exchanged(x.clone(), statistics.clone())

    def at_exchange(self, state: State) -> tuple[Simulation, State]:
        if not self.exchanged:
            return self, state
        world = copy.copy(self)
        world.statistics = self.statistics.clone()
        x = state[0].clone()
        parts = zip(self.runs.tolist(), self.split(x), self.split(world.statistics), strict=True)
        for run, models, statistics in parts:
            if run in self.exchanged:
                models.copy_(self.exchanged[run].x)
                statistics.copy_(self.exchanged[run].statistics)
        return world, rebuild(state, (x, *tuple(state)[1:]))

    def restore_exchanged(self, k: int, x: Tensor, statistics: Tensor) -> None:
        """Take up the models of the last exchange, rows as in the state, in round k."""
        parts = zip(
            self.runs.tolist(), self.split(x), self.split(statistics), self.periods, strict=True
        )
        for run, models, beside, period in parts:
            if k % period:
                self.exchanged[run] = Exchanged(models.clone(), beside.clone())

    def _advance(self, state: State, rounds: range) -> State:
        if self.step is not None:
            activity = self.batch.activity(rounds.start).part(rounds)
            after = self.step.advance(state, activity)
            if after is not None:
                self._count(activity, state, self.step)
                return after
        for k in rounds:
            state = self.algorithm.step(state, self.round(k))
        return state

    def _count(self, activity: Activity, state: State, step: CompiledRounds) -> None:
        """Put compiled rounds on the tally: models and trackers share a message."""
        pulled, pushed = step.message_sizes
        size = state[0].element_size()
        clients, links = self.counted
        pull = activity.links.pull.sum(0)
        push = activity.links.pushing.sum(0)
        messages = pull if pulled else push
        if pulled and pushed:
            messages = activity.links.used.sum(0)
        self.counts.gradients[clients] += activity.computes[1:].sum(0)
        self.counts.messages[links] += messages
        self.counts.bytes[links] += pull * (pulled * size) + push * (pushed * size)

    def keep(self, still: Bools, state: State) -> tuple[Simulation, State]:
        rows = torch.from_numpy(np.flatnonzero(np.repeat(still, self.sizes))).to(self.batch.device)
        smaller = Simulation(
            self.batch.every,
            dtype=self.batch.dtype,
            device=self.batch.device,
            runs=self.runs[still],
            counts=self.counts,
            statistics=self.statistics[rows],
            compiled=self.compiled,
        )
        smaller.exchanged = self.still_exchanged(still)
        return smaller, rebuild(state, [tensor[rows] for tensor in state])

    def still_exchanged(self, still: Bools) -> dict[int, Exchanged]:
        """The models of the last exchange of some runs."""
        kept = self.runs[still].tolist()
        return {run: models for run, models in self.exchanged.items() if run in kept}

    def split(self, x: Tensor) -> list[Tensor]:
        return list(torch.split(x, self.sizes))

    def gather(self, state: State, wanted: Bools) -> list[RunState] | None:
        parts = [self.split(tensor) for tensor in (self.statistics, *state)]
        found = []
        for at in np.flatnonzero(wanted).tolist():
            statistics, *fields = (tensor[at] for tensor in parts)
            found.append(RunState(rebuild(state, fields), statistics))
        return found

    def evaluate(self, state: State, at: int, whole: RunState | None) -> Evaluation | None:
        assert whole is not None
        models = with_average(whole)
        return self.problem(at).evaluate(models, np.r_[np.arange(len(models) - 1), -1])

    def problem(self, at: int) -> Problem:
        """The problem of one run, where the models are."""
        problem: Problem = self.batch.live[at].problem
        return problem.to(self.batch.device, self.batch.dtype)

    def under_way(self, at: int) -> dict[str, Tensor]:
        """Nothing is, between two rounds."""
        return {}

    def meters(self, at: int) -> dict[str, float]:
        """Bytes of one run so far, in all processes; a round has no seconds."""
        first = sum(run.network.links for run in self.batch.every[: self.runs[at]])
        sent = self.tally().bytes[first : first + self.batch.live[at].network.links]
        return {"bytes": float(sent.sum())}

    def agree(self, flags: Bools) -> Bools:
        return flags

    def tally(self) -> Tally:
        return self.counts

    def close(self) -> None:
        """Nothing is under way."""


@dataclass(eq=False)
class SimulatedRound(OldRoundNames):
    """Round k of the clients that this process holds, and what it sent."""

    k: int
    world: Simulation
    active: Bools  # (clients of the batch,): who computes
    links: ActiveLinks  # of the batch
    roles: Roles | None = None  # of the batch
    sent: Bools | None = None
    refreshed: bool = False  # this round's gradients have changed the running statistics
    carried: bool = False  # this round's models have taken the running statistics along

    @property
    def clients(self) -> int:
        return max(self.world.batch.sizes)

    @property
    def p(self) -> Tensor:
        return self.world.p

    @property
    def client_index(self) -> Tensor:
        return self.world.client_index

    @cached_property
    def computes(self) -> Tensor:
        return torch.from_numpy(self.active[self.world.own]).to(self.world.batch.device)[:, None]

    @cached_property
    def step_weight(self) -> Tensor:
        here = (
            np.ones(len(self.world.own))
            if self.roles is None
            else self.roles.step_weight[self.world.own]
        )
        return torch.from_numpy(here).to(self.world.batch.device, self.world.batch.dtype)[:, None]

    @cached_property
    def client_weight(self) -> Tensor:
        batch = self.world.batch
        scales = batch.problem.loss_scales if isinstance(batch.problem, HasClientWeights) else None
        here = np.ones(len(self.world.own)) if scales is None else scales[self.world.own]
        return torch.from_numpy(here).to(batch.device, batch.dtype)[:, None]

    @cached_property
    def reset_tracker(self) -> Tensor:
        own = self.world.own
        here = np.zeros(len(own), bool) if self.roles is None else self.roles.reset_tracker[own]
        return torch.from_numpy(here).to(self.world.batch.device)[:, None]

    def weights(self, which: str) -> Floats:
        """(links of the batch,): the weights a, b or w in this round."""
        if self.roles is None or which == "w":
            return self.world.batch.weights[which]
        return self.roles.a if which == "a" else self.roles.b

    def grad(self, x: Tensor) -> Tensor:
        world = self.world
        world.counts.gradients[world.counted[0]] += self.active[world.held]
        rows = np.arange(len(self.active))[world.held]
        rows = rows[self.active[rows]]  # in the order of clients, whatever that of rows is
        here = world.row[rows]
        batches = Minibatches(rows, world.batch.keys[rows], world.batch.client_index[rows], self.k)
        if world.statistics.shape[1]:
            return self._refresh(x, batches, torch.from_numpy(here).to(x.device))
        if len(here) == len(x):
            return world.batch.problem.grad(x, batches)
        g = torch.zeros_like(x)
        if len(here):
            index = torch.from_numpy(here).to(x.device)
            g[index] = world.batch.problem.grad(x[index], batches)
        return g

    def pull(self, x: Tensor, codec: Callable[[int], IntervalQuantizer] | None = None) -> Tensor:
        if codec is not None:
            return self._lean(x, codec(self.k))
        return self._mix(x, "a", self.links.pull, self.world.batch.links.receivers)

    def push(self, y: Tensor, codec: Codec | None = None) -> Tensor:
        return self._mix(y, "b", self.links.pushing, self.world.batch.links.senders, codec)

    def mix_columns(self, x: Tensor, how: str, columns: Callable[[int], slice]) -> Tensor:
        which, mix, out = columns(self.k), self.pull if how == "pull" else self.push, x.clone()
        out[:, which] = mix(x[:, which].contiguous())
        return out

    @property
    def push_self_weight(self) -> Tensor:
        batch = self.world.batch
        sent = np.bincount(
            batch.links.senders, self.links.pushing * self.weights("b"), batch.links.clients
        )
        return torch.from_numpy(1.0 - sent[self.world.own]).to(batch.device, batch.dtype)[:, None]

    def gossip(self, x: Tensor) -> Tensor:
        return self._mix(x, "w", self.links.pull, self.world.batch.links.receivers)

    def gossip_difference(self, x: Tensor) -> Tensor:
        self._count(self.links.pull, x)
        self._carry("w", self.links.pull)
        return self.world.batch.links.mix_differences(x, self.weights("w"), self.links.pull)

    def average(self, x: Tensor) -> Tensor:
        if not self.carried and self.world.travelling:
            self.carried = True
            self._renew(self.average(self.world.statistics[:, : self.world.travelling]))
        return torch.cat(
            [part.mean(0, keepdim=True).expand_as(part) for part in self.world.split(x)]
        )

    def _refresh(self, x: Tensor, batches: Minibatches, index: Tensor) -> Tensor:
        """Gradients of rows `index` of x with statistics; the first of a round bring these up to date."""
        world, g = self.world, torch.zeros_like(x)
        models = torch.cat([x[index], world.statistics[index]], 1)
        if len(index):
            g[index] = world.batch.problem.grad(models, batches)
        if not self.refreshed:
            self.refreshed = True
            world.statistics = world.statistics.index_copy(0, index, models[:, x.shape[1] :])
        return g

    def _carry(self, weights: str, active: Bools) -> None:
        """Running statistics travel with the models, once a round; whoever receives them weighs them."""
        world, links = self.world, self.world.batch.links
        carrier = _CARRIERS.get(world.algorithm.traits.mixing)
        if world.travelling and weights == carrier and not self.carried:
            self.carried = True
            travelling = world.statistics[:, : world.travelling].contiguous()
            self._count(active, travelling)
            values = self.weights("w" if carrier == "w" else "a")
            self._renew(links.mix(travelling, values, active, keeper=links.receivers))

    def _renew(self, exchanged: Tensor) -> None:
        """Put what was received in the place of the old; private columns stay."""
        world = self.world
        world.statistics = torch.cat([exchanged, world.statistics[:, world.travelling :]], 1)

    def _mix(
        self, x: Tensor, weights: str, active: Bools, keeper: Ints, codec: Codec | None = None
    ) -> Tensor:
        self._count(active, x, codec)
        self._carry(weights, active)
        return self.world.batch.links.mix(x, self.weights(weights), active, keeper=keeper)

    def _lean(self, x: Tensor, codec: IntervalQuantizer) -> Tensor:
        """Move every model towards the intervals that its working in-links say."""
        world, links, active = self.world, self.world.batch.links, self.links.pull
        self._count(active, x, codec)
        self._carry("a", active)
        data, place = self._said(x, codec)
        on = np.flatnonzero(active)
        on = on[np.isin(links.receivers[on], world.own)]
        rows, weights = world.row[links.receivers[on]], self.weights("a")[on]
        intervals = codec.unpack(data, x.shape[1], x.dtype)
        return move_into_intervals(x, *intervals, rows, place[links.senders[on]], weights)

    def _said(self, x: Tensor, codec: IntervalQuantizer) -> tuple[Tensor, Ints]:
        """The bytes of those who send to the clients here, and (clients of the batch,) whose row is where."""
        return codec.pack(x), self.world.row

    def _count(
        self, active: Bools, x: Tensor, codec: Codec | IntervalQuantizer | None = None
    ) -> None:
        """Put messages along `active` links on the tally: of those, the links into this process."""
        counts, rows, before, into = (
            self.world.counts,
            self.world.counted[1],
            self.sent,
            self.world.into,
        )
        if active is not before:  # models and trackers share a message
            counts.messages[rows] += (active if before is None else active & ~before)[into]
            self.sent = active if before is None else active | before
        columns, item = x.shape[1], x.element_size()
        counts.bytes[rows] += active[into] * (
            codec.size(columns, item) if codec else columns * item
        )


@dataclass(frozen=True)
class Simulator:
    """The runtime of one process."""

    device: torch.device
    records: bool = True
    processes: int = 1
    restarted: bool = False

    def working(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def check_alike(self, facts: Mapping[str, str]) -> None:
        """There is only one process."""

    def first(self, action: Callable[[], T]) -> T:
        return action()

    def share(self, data: Callable[[], bytes]) -> bytes:
        return data()

    def world(self, runs: Sequence[Run], dtype: torch.dtype) -> Simulation:
        return Simulation(runs, dtype=dtype, device=self.device)

    def restored_world(
        self,
        runs: Sequence[Run],
        dtype: torch.dtype,
        checkpoints: Mapping[int, RunCheckpoint],
        batch: CheckpointBatch,
    ) -> Simulation:
        """The world of runs that continue from checkpoints; `batch` holds the same, joined."""
        return Simulation(
            runs,
            dtype=dtype,
            device=self.device,
            runs=np.array(list(checkpoints)),
            counts=batch.counts,
            statistics=batch.statistics.to(self.device),
        )

    def restore(
        self,
        runs: Sequence[Run],
        dtype: torch.dtype,
        checkpoints: Mapping[int, RunCheckpoint] | None,
    ) -> Snapshot:
        assert checkpoints is not None
        batch = CheckpointBatch.join(runs, checkpoints)
        world = self.restored_world(runs, dtype, checkpoints, batch)
        kind = self.world(runs[:1], dtype).init()  # tells the state's type
        names = world.algorithm.traits.state
        state = rebuild(kind, [batch.state[name].to(self.device) for name in names])
        points = list(checkpoints.values())
        k = points[0].k
        if batch.exchanged is not None:
            x, statistics = batch.exchanged
            world.restore_exchanged(k, x.to(self.device), statistics.to(self.device))
        return Snapshot(k, np.array([point.delay for point in points]), world, state)
