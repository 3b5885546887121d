"""All clients of many runs, stacked in one tensor.

A batch of runs is the disjoint union of their networks, so the algorithm code does not change:
several seeds, step sizes, networks or partitions run together. Only active clients compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spodgt import rng
from spodgt.algorithms import stack
from spodgt.algorithms.base import Algorithm
from spodgt.kernels.fused import Fused, fused
from spodgt.kernels.mixing import Links
from spodgt.network import Network
from spodgt.participation import delay as delays
from spodgt.types import ActiveLinks, Availability, Bools, Floats, Ints, Minibatches, Problem

_CHUNK = 2**20  # draws made at once
_CARRIERS = {"pull+push": "a", "pull": "a", "gossip": "w", "push": "b"}  # weights by which models travel


@dataclass(frozen=True, eq=False)
class Run:
    """Everything about one run: a seed's network, participation and data, and a method fitted to them."""

    seed: int
    algorithm: Algorithm
    network: Network
    availability: Availability
    problem: Problem
    start: Tensor  # (clients, parameters)


@dataclass(frozen=True, eq=False)
class Activity:
    """Who does what in some rounds of a whole batch."""

    first: int
    computes: Bools  # (1 + rounds, clients): the round before the first, too
    links: ActiveLinks  # (rounds, links)
    cost: Floats  # (rounds, runs): delay between x[k-1] and x[k]

    def part(self, rounds: range) -> Activity:
        """Some of these rounds."""
        low, high = rounds.start - self.first, rounds.stop - self.first
        links = self.links.at(slice(low, high))
        return Activity(rounds.start, self.computes[low : high + 1], links, self.cost[low:high])


class Tally(NamedTuple):
    """What really happened, counted where it happens, for all runs one after the other."""

    gradients: Ints  # (clients of all runs,)
    messages: Ints  # (links of all runs,): rounds in which a link carried something
    bytes: Ints  # (links of all runs,)

    @staticmethod
    def zeros(runs: Sequence[Run]) -> Tally:
        links = sum(run.network.links for run in runs)
        clients = sum(run.network.clients for run in runs)
        return Tally(np.zeros(clients, np.int64), np.zeros(links, np.int64), np.zeros(links, np.int64))


class Simulation:
    """The simulator's `World`: `runs` side by side on one device."""

    def __init__(
        self,
        every: Sequence[Run],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        runs: Ints | None = None,
        tally: Tally | None = None,
        statistics: Tensor | None = None,
        fuse: bool = True,  # compiled steps where there are any; they overwrite the state they are given
    ) -> None:
        self.every, self.dtype, self.device = every, dtype, torch.device(device)
        self.runs: Ints = np.arange(len(every)) if runs is None else runs
        self.tally = Tally.zeros(every) if tally is None else tally
        self.fuse = fuse
        self.live = [every[run] for run in self.runs]
        self._activity: Activity | None = None
        if statistics is not None:
            self.statistics = statistics

    # --- the union -------------------------------------------------------------------------------
    @cached_property
    def sizes(self) -> list[int]:
        return [run.network.clients for run in self.live]

    @cached_property
    def algorithm(self) -> Algorithm:
        stacked = stack(
            [run.algorithm for run in self.live], self.sizes, dtype=self.dtype, device=self.device
        )
        return fused(stacked, self.device) if self.fuse else stacked

    @cached_property
    def starts(self) -> Ints:
        """The first client of every run, and the end."""
        return np.cumsum([0, *self.sizes])

    @cached_property
    def problem(self) -> Problem:
        first, *others = [run.problem for run in self.live]
        joined: Problem = first.join(others) if others else first
        return joined.to(self.device, self.dtype)

    @cached_property
    def links(self) -> Links:
        offsets = np.cumsum([0, *self.sizes])
        pairs = list(zip(self.live, offsets, strict=False))
        return Links(
            len(self.live) if len(set(self.sizes)) == 1 else 1,
            int(offsets[-1]),
            np.concatenate([run.network.receivers + offset for run, offset in pairs]),
            np.concatenate([run.network.senders + offset for run, offset in pairs]),
        )

    @cached_property
    def weights(self) -> dict[str, Floats]:
        networks = [run.network for run in self.live]
        weights = {"a": np.concatenate([n.a for n in networks]), "b": np.concatenate([n.b for n in networks])}
        if all(n.w is not None for n in networks):
            weights["w"] = np.concatenate([n.w for n in networks if n.w is not None])
        return weights

    @cached_property
    def rows(self) -> tuple[Ints | slice, Ints | slice]:
        """Where the live clients and links stand in the tally."""
        if len(self.runs) == len(self.every):
            return slice(None), slice(None)
        live = np.isin(np.arange(len(self.every)), self.runs)
        clients = np.repeat(live, [run.network.clients for run in self.every])
        links = np.repeat(live, [run.network.links for run in self.every])
        return np.flatnonzero(clients), np.flatnonzero(links)

    @cached_property
    def keys(self) -> rng.Words:
        """(clients,): the key of each client's run, for its mini-batches."""
        return np.repeat([rng.key(run.seed, "batch") for run in self.live], self.sizes)

    @cached_property
    def places(self) -> Ints:
        return np.concatenate([np.arange(size) for size in self.sizes])

    @cached_property
    def p(self) -> Tensor:
        p = np.concatenate([run.availability.p for run in self.live])
        return torch.from_numpy(p).to(self.device, self.dtype)[:, None]

    @cached_property
    def statistics(self) -> Tensor:
        """(clients, columns): each client's running statistics, such as BatchNorm's; mostly no columns.

        They stand beside the state and not in x, because methods subtract models, extrapolate them and
        put them into corrections (K-GT, EXTRA, D²): statistics there would end up in trackers, and
        variances below zero. Here a gradient refreshes them, a receiver averages them, and that is all.
        """
        parts = [run.problem.statistics(run.seed).to(self.device, self.dtype) for run in self.live]
        return torch.cat(parts)

    # --- World -----------------------------------------------------------------------------------
    def start(self) -> Tensor:
        return torch.cat([run.start.to(self.device, self.dtype) for run in self.live])

    def round(self, k: int) -> SimulatedRound:
        activity = self._at(k)
        at = k - activity.first
        before, now = activity.computes[at : at + 2]
        return SimulatedRound(k, self, now, before, activity.links.at(at))

    def costs(self, k: int) -> Floats:
        activity = self._at(k)
        return activity.cost[k - activity.first :]

    def advance(self, state: Any, rounds: range) -> Any:
        algorithm = self.algorithm
        if isinstance(algorithm, Fused):
            activity = self._at(rounds.start).part(rounds)
            if algorithm.advance(state, self, rounds.start, activity):
                return state
        for k in rounds:
            state = algorithm.step(state, self.round(k))
        return state

    def keep(self, still: Bools, state: Any) -> tuple[Simulation, Any]:
        rows = torch.from_numpy(np.flatnonzero(np.repeat(still, self.sizes))).to(self.device)
        smaller = Simulation(
            self.every,
            dtype=self.dtype,
            device=self.device,
            runs=self.runs[still],
            tally=self.tally,
            statistics=self.statistics[rows],
            fuse=self.fuse,
        )
        return smaller, type(state)(*(tensor[rows] for tensor in state))

    def split(self, x: Tensor) -> list[Tensor]:
        """One tensor per run, from one for the whole batch."""
        return list(torch.split(x, self.sizes))

    def _at(self, k: int) -> Activity:
        activity = self._activity
        if activity is None or not activity.first <= k < activity.first + len(activity.cost):
            activity = self._activity = self._draw(k)
        return activity

    def _draw(self, k: int) -> Activity:
        width = self.links.clients + len(self.links.receivers)
        rounds = range(k, k + max(1, min(256, _CHUNK // width)))
        drawn = [_activity(run, rounds) for run in self.live]
        computes, links, cost = zip(*drawn, strict=True)
        together = all(each.push is None for each in links)
        pull = np.concatenate([each.pull for each in links], 1)
        push = None if together else np.concatenate([each.pushing for each in links], 1)
        return Activity(k, np.concatenate(computes, 1), ActiveLinks(pull, push), np.stack(cost, 1))


def _activity(run: Run, rounds: range) -> tuple[Bools, ActiveLinks, Floats]:
    """Clients (from one round before), links and delays of some rounds of one run.

    Round 0 has no links, no delay and nothing before it.
    """
    availability, clock = run.availability, delays.costs(run.network, run.availability)
    v = availability.computes(range(max(0, rounds.start - 1), rounds.stop))
    links = availability.links(rounds)
    if rounds.start == 0:
        v = np.concatenate([np.zeros_like(v[:1]), v])
        links.pull[0] = links.pushing[0] = False
    return v, links, clock.processing(v[:-1]) + clock.transmission(links.used)


@dataclass(eq=False)
class SimulatedRound:
    """Round k of a simulation, and what it sent."""

    k: int
    world: Simulation
    active: Bools  # (clients,)
    before: Bools  # (clients,): who computed in the round before
    links: ActiveLinks
    sent: Bools | None = None
    refreshed: bool = False  # this round's gradients have changed the running statistics
    carried: bool = False  # this round's models have taken the running statistics along

    @property
    def clients(self) -> int:
        return self.world.sizes[0]

    @property
    def p(self) -> Tensor:
        return self.world.p

    @property
    def place(self) -> Tensor:
        return torch.from_numpy(self.world.places).to(self.world.device)

    @cached_property
    def computes(self) -> Tensor:
        return torch.from_numpy(self.active).to(self.world.device)[:, None]

    def grad(self, x: Tensor) -> Tensor:
        world, rows = self.world, np.flatnonzero(self.active)
        world.tally.gradients[world.rows[0]] += self.active
        if world.statistics.shape[1]:
            return self._refresh(x, rows)
        if len(rows) == len(x):
            return world.problem.grad(x, Minibatches(rows, world.keys, world.places, self.k))
        g = torch.zeros_like(x)
        if len(rows):
            index = torch.from_numpy(rows).to(x.device)
            g[index] = world.problem.grad(x[index], self._batches(rows))
        return g

    def pull(self, x: Tensor) -> Tensor:
        return self._mix(x, "a", self.links.pull, self.world.links.receivers)

    def push(self, y: Tensor) -> Tensor:
        return self._mix(y, "b", self.links.pushing, self.world.links.senders)

    def gossip(self, x: Tensor) -> Tensor:
        return self._mix(x, "w", self.links.pull, self.world.links.receivers)

    def average(self, x: Tensor) -> Tensor:
        if not self.carried and self.world.statistics.shape[1]:
            self.carried = True
            self.world.statistics = self.average(self.world.statistics)
        return torch.cat([part.mean(0, keepdim=True).expand_as(part) for part in self.world.split(x)])

    def _batches(self, rows: Ints) -> Minibatches:
        return Minibatches(rows, self.world.keys[rows], self.world.places[rows], self.k)

    def _refresh(self, x: Tensor, rows: Ints) -> Tensor:
        """Gradients of models with running statistics; the first of a round bring these up to date."""
        world, g, index = self.world, torch.zeros_like(x), torch.from_numpy(rows).to(x.device)
        models = torch.cat([x[index], world.statistics[index]], 1)
        if len(rows):
            g[index] = world.problem.grad(models, self._batches(rows))
        if not self.refreshed:
            self.refreshed = True
            world.statistics = world.statistics.index_copy(0, index, models[:, x.shape[1] :])
        return g

    def _carry(self, weights: str, active: Bools) -> None:
        """Running statistics travel with the models, once a round; whoever receives them weighs them."""
        world = self.world
        carrier = _CARRIERS.get(world.live[0].algorithm.traits.mixing)
        if world.statistics.shape[1] and weights == carrier and not self.carried:
            self.carried = True
            self.count(active, world.statistics)
            values = world.weights["w" if carrier == "w" else "a"]
            world.statistics = world.links.mix(world.statistics, values, active, keeper=world.links.receivers)

    def _mix(self, x: Tensor, weights: str, active: Bools, keeper: Ints) -> Tensor:
        self.count(active, x)
        self._carry(weights, active)
        return self.world.links.mix(x, self.world.weights[weights], active, keeper=keeper)

    def count(self, active: Bools, x: Tensor) -> None:
        """Put messages along `active` links on the tally."""
        tally, rows = self.world.tally, self.world.rows[1]
        if active is not self.sent:  # models and trackers share a message
            tally.messages[rows] += active if self.sent is None else active & ~self.sent
            self.sent = active if self.sent is None else active | self.sent
        tally.bytes[rows] += active * (x.shape[1] * x.element_size())
