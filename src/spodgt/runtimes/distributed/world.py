"""A block of the clients in every process, on `torch.distributed`.

Every process draws the active links of a round by itself, so nothing is agreed upon by messages. A
round sends each pair of processes one message at most, with the rows that active links need: where a
method mixes what the last round left in its state, models and trackers go together at the start of the
step, and where that is one vector only, already while the last gradients are computed. What a method
derives first is sent when it asks for it. The trajectory is the simulator's.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms import stack
from spodgt.algorithms.base import Algorithm, Schedule, Traits
from spodgt.problems import refuse_statistics
from spodgt.runtimes.distributed.blocks import Block, Traffic, blocks, effort
from spodgt.runtimes.distributed.group import Group
from spodgt.runtimes.distributed.messages import Flight, Item, Key, Mail, Parcel
from spodgt.runtimes.simulator import Run, Simulation, Tally
from spodgt.types import ActiveLinks, Bools, Ints, Minibatches


class Distributed(Simulation):
    """The `World` of one process: its block of clients of `runs` side by side."""

    def __init__(
        self,
        every: Sequence[Run],
        group: Group,
        *,
        dtype: torch.dtype = torch.float32,
        runs: Ints | None = None,
        tally: Tally | None = None,
        mail: Mail | None = None,
    ) -> None:
        refuse_statistics(every[0].problem, "the distributed runtime")
        super().__init__(every, dtype=dtype, device=group.device, runs=runs, tally=tally, fuse=False)
        self.group, self.mail = group, mail or Mail(group)

    # --- the block -------------------------------------------------------------------------------
    @cached_property
    def block(self) -> Block:
        owners = [blocks(effort(run.problem, run.availability), self.group.size) for run in self.live]
        return Block(self.group.rank, np.concatenate(owners), self.links.receivers, self.links.senders)

    @cached_property
    def counts(self) -> list[int]:
        """How many clients of each run are here."""
        number = np.repeat(np.arange(len(self.sizes)), self.sizes)
        return list(map(int, np.bincount(number[self.block.own], minlength=len(self.sizes))))

    @cached_property
    def algorithm(self) -> Algorithm:
        stacked = stack(
            [run.algorithm for run in self.live], self.sizes, dtype=self.dtype, device=self.device
        )
        own = torch.from_numpy(self.block.own)
        return Together(_cut(stacked, own, self.links.clients, tuple(self.counts)))

    @cached_property
    def p(self) -> Tensor:
        p = np.concatenate([run.availability.p for run in self.live])
        return torch.from_numpy(p).to(self.device, self.dtype)[self.block.own, None]

    @cached_property
    def place(self) -> Tensor:
        return torch.from_numpy(self.places[self.block.own]).to(self.device)

    @cached_property
    def counted(self) -> tuple[Ints, Ints]:
        """Where this block's clients, and the links into it, stand in the tally."""
        clients, links = (np.arange(len(t)) for t in (self.tally.gradients, self.tally.messages))
        return clients[self.rows[0]][self.block.own], links[self.rows[1]][self.block.into]

    # --- World -----------------------------------------------------------------------------------
    def start(self) -> Tensor:
        parts = np.split(self.places[self.block.own], np.cumsum(self.counts)[:-1])
        return torch.cat(
            [run.start[rows].to(self.device, self.dtype) for run, rows in zip(self.live, parts, strict=True)]
        )

    def round(self, k: int) -> DistributedRound:  # type: ignore[override]
        self.group.k = k
        activity = self._at(k)
        at = k - activity.first
        return DistributedRound(k, self, activity.computes[at + 1], activity.links.at(at))

    def keep(self, still: Bools, state: Any) -> tuple[Distributed, Any]:
        self.mail.drain()
        rows = torch.from_numpy(np.flatnonzero(np.repeat(still, self.counts))).to(self.device)
        smaller = Distributed(
            self.every, self.group, dtype=self.dtype, runs=self.runs[still], tally=self.tally, mail=self.mail
        )
        return smaller, type(state)(*(tensor[rows] for tensor in state))

    def split(self, x: Tensor) -> list[Tensor]:
        return list(torch.split(x, self.counts))


@dataclass(eq=False)
class DistributedRound:
    """Round k of one block. All processes call the same things in the same order."""

    k: int
    world: Distributed
    active: Bools  # (clients of the batch,)
    active_links: ActiveLinks
    state: Any = ()
    together: tuple[Key, ...] = ()  # what went, or goes, in one message at the start
    parcels: dict[int, Parcel] = field(default_factory=dict)  # from and to each process
    posted: list[Parcel] = field(default_factory=list)
    calls: list[Key] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)  # what gradients were asked for
    counted: Bools | None = None

    @property
    def clients(self) -> int:
        return max(self.world.sizes)

    @property
    def p(self) -> Tensor:
        return self.world.p

    @property
    def place(self) -> Tensor:
        return self.world.place

    @cached_property
    def computes(self) -> Tensor:
        return torch.from_numpy(self.active[self.world.block.own]).to(self.world.device)[:, None]

    def grad(self, x: Tensor) -> Tensor:
        world = self.world
        own, active = world.block.own, self.active[world.block.own]
        world.tally.gradients[world.counted[0]] += active
        self.gradients.append(x)
        self._send_early(x)
        here, rows = np.flatnonzero(active), own[active]
        batches = Minibatches(rows, world.keys[rows], world.places[rows], self.k)
        if len(here) == len(x):
            return world.problem.grad(x, batches)
        g = torch.zeros_like(x)
        if len(here):
            index = torch.from_numpy(here).to(x.device)
            g[index] = world.problem.grad(x[index], batches)
        return g

    def pull(self, x: Tensor) -> Tensor:
        return self._mix(x, "a", "pull", self.world.links.receivers)

    def push(self, y: Tensor) -> Tensor:
        return self._mix(y, "b", "push", self.world.links.senders)

    def gossip(self, x: Tensor) -> Tensor:
        return self._mix(x, "w", "pull", self.world.links.receivers)

    def average(self, x: Tensor) -> Tensor:
        world = self.world
        sums = world.group.sum(torch.stack([part.sum(0) for part in world.split(x)]))
        means = sums / torch.tensor(world.sizes, device=x.device)[:, None]
        return means.to(x.dtype).repeat_interleave(torch.tensor(world.counts, device=x.device), 0)

    # --- messages --------------------------------------------------------------------------------
    def links(self, kind: str) -> Bools:
        return self.active_links.pull if kind == "pull" else self.active_links.pushing

    @cached_property
    def _pull_traffic(self) -> Traffic:
        return self.world.block.traffic(self.active_links.pull)

    @cached_property
    def _push_traffic(self) -> Traffic:
        push = self.active_links.push
        same = push is None or bool((push == self.active_links.pull).all())
        return self._pull_traffic if same else self.world.block.traffic(self.active_links.pushing)

    def traffic(self, kind: str) -> Traffic:
        return self._pull_traffic if kind == "pull" else self._push_traffic

    def send(self, part: int, items: Sequence[tuple[str, int | None, Tensor]]) -> dict[int, Parcel]:
        """One message to every process that needs rows of these, all of them together."""
        chosen = [Item(kind, number, tensor, self.traffic(kind)) for kind, number, tensor in items]
        return self.world.mail.post(self.k, part, chosen)

    def open(self, state: Any) -> None:
        """Before the step: send what the method is known to mix, unless it is on its way."""
        self.state, mail = state, self.world.mail
        early = mail.early_for(self.k, state)
        if early is not None:
            self.together, self.parcels = early.plan, early.parcels
        else:
            self.together = mail.plan
            self.parcels = self.send(0, [(kind, number, state[number]) for kind, number in mail.plan])
        self.posted.extend(self.parcels.values())

    def close(self, after: Any) -> None:
        """After the step: wait for what was sent, and learn what to send at once in the next round."""
        for parcel in self.posted:
            parcel.close()
        self.world.mail.learn(self.calls, self.gradients, after)

    def _send_early(self, x: Tensor) -> None:
        """Where only `x` is mixed in the next round, its journey and its gradients overlap."""
        mail = self.world.mail
        if mail.foresees(len(self.gradients)) and mail.early is not None:
            following = self.world.round(self.k + 1)
            self.world.group.k = self.k
            parcels = following.send(0, [(kind, number, x) for kind, number in mail.plan])
            mail.flight = Flight(self.k + 1, x, mail.early, mail.plan, parcels)

    def _mix(self, x: Tensor, weights: str, kind: str, keeper: Ints) -> Tensor:
        world, active = self.world, self.links(kind)
        self._count(active, x)
        number = next((n for n, each in enumerate(self.state) if each is x), None)
        self.calls.append((kind, number))
        traffic, values, parcels = self.traffic(kind), world.weights[weights], self.parcels
        if number is None or (kind, number) not in self.together:
            parcels = self.send(len(self.calls), [(kind, number, x)])
            self.posted.extend(parcels.values())
        out = world.block.mix_own(x, values, active, keeper)  # while messages are on their way
        for peer, clients in traffic.receives.items():
            world.block.add(out, parcels[peer].rows(kind, number), clients, values, active)
        return out

    def _count(self, active: Bools, x: Tensor) -> None:
        """Put messages along active links on the tally: every process counts those that it receives."""
        tally, rows, into = self.world.tally, self.world.counted[1], self.world.block.into
        before = self.counted
        if active is not before:  # models and trackers share a message
            tally.messages[rows] += (active if before is None else active & ~before)[into]
            self.counted = active if before is None else active | before
        tally.bytes[rows] += active[into] * (x.shape[1] * x.element_size())


class Together(Algorithm):
    """A method whose rounds are told where a step begins and ends."""

    name: ClassVar[str] = "together"

    def __init__(self, method: Algorithm) -> None:
        self.method = method
        self.traits: Traits = method.traits  # type: ignore[misc]

    def init(self, x: Tensor, round: Any) -> Any:
        state = self.method.init(x, round)
        round.close(state)
        return state

    def step(self, state: Any, round: Any) -> Any:
        round.open(state)
        after = self.method.step(state, round)
        round.close(after)
        return after


def _cut(value: Any, own: Tensor, clients: int, counts: tuple[int, ...]) -> Any:
    """The same method, its values per client cut to this block."""
    if isinstance(value, Tensor):
        return value[own.to(value.device)] if value.ndim and len(value) == clients else value
    if not isinstance(value, Algorithm | Schedule):
        return value
    changed = copy.copy(value)  # not `replace`: a value is cut, not checked again
    for each in dataclasses.fields(value):  # type: ignore[arg-type]
        object.__setattr__(changed, each.name, _cut(getattr(value, each.name), own, clients, counts))
    return changed
