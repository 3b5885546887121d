"""A block of the clients in every process, on `torch.distributed`.

Every process draws the active links of a round by itself, so nothing is agreed upon by messages. A
round sends each pair of processes one message at most, with the rows that active links need: the fields
that a method declares to mix as they are (`Traits.mixed_fields`) go together at the start of the step,
and where that is x alone, already while the last gradients are computed. What a method derives first is
sent when it asks for it. The trajectory is the simulator's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm
from spodgt.algorithms.compose.codecs import Codec, IntervalQuantizer
from spodgt.kernels.steps import State, rebuild
from spodgt.problems import refuse_statistics
from spodgt.runtimes.distributed.client_blocks import Block, Traffic, blocks, effort
from spodgt.runtimes.distributed.messages import Flight, Item, Key, Mail, Parcel
from spodgt.runtimes.distributed.process_group import Group
from spodgt.runtimes.simulator import SimulatedRound, Simulation, cut
from spodgt.runtimes.world import Run, RunState, Tally, with_average
from spodgt.types import Bools, Evaluation, Ints


class Distributed(Simulation):
    """The `World` of one process: its block of clients of the runs side by side."""

    arranges = False

    def __init__(
        self,
        every: Sequence[Run],
        group: Group,
        *,
        dtype: torch.dtype = torch.float32,
        runs: Ints | None = None,
        counts: Tally | None = None,
        mail: Mail | None = None,
        statistics: Tensor | None = None,
    ) -> None:
        refuse_statistics(every[0].problem, "the distributed runtime")
        super().__init__(
            every,
            dtype=dtype,
            device=group.device,
            runs=runs,
            counts=counts,
            statistics=statistics,
            compiled=False,
        )
        self.group, self.mail = group, mail or Mail(group)

    # --- the block -------------------------------------------------------------------------------
    @property
    def processes(self) -> int:  # type: ignore[override]
        return self.group.size

    @cached_property
    def block(self) -> Block:
        live, links = self.batch.live, self.batch.links
        owners = [blocks(effort(run.problem, run.availability), self.group.size) for run in live]
        return Block(self.group.rank, np.concatenate(owners), links.receivers, links.senders)

    @cached_property
    def own(self) -> Ints:
        return self.block.own

    @property
    def row(self) -> Ints:
        return self.block.row

    @property
    def held(self) -> Ints:
        return self.own

    @cached_property
    def sizes(self) -> list[int]:
        number = np.repeat(np.arange(len(self.batch.sizes)), self.batch.sizes)
        return list(map(int, np.bincount(number[self.own], minlength=len(self.batch.sizes))))

    @cached_property
    def algorithm(self) -> Algorithm:
        return cut(self.batch.algorithm, torch.from_numpy(self.own), self.batch.links.clients)

    @cached_property
    def counted(self) -> tuple[Ints, Ints]:
        clients, links = (np.arange(len(t)) for t in (self.counts.gradients, self.counts.messages))
        return clients[self.batch.counted[0]][self.own], links[self.batch.counted[1]][
            self.block.into
        ]

    @property
    def into(self) -> Ints:
        return self.block.into

    @cached_property
    def planned(self) -> tuple[Key, ...]:
        """What every step mixes as it is: over which links, and which field of the state."""
        mixes = self.algorithm.traits.mixed_fields
        return tuple(
            dict.fromkeys(("push" if kind == "push" else "pull", name) for kind, name in mixes)
        )

    # --- World -----------------------------------------------------------------------------------
    def init(self) -> State:
        now = self.round(0)
        state: State = self.algorithm.init(self.start(), now)
        now.close(state)
        return state

    def round(self, k: int) -> DistributedRound:
        self.group.k = k
        activity = self.batch.activity(k)
        at = k - activity.first
        roles = activity.roles and activity.roles.at(at)
        return DistributedRound(k, self, activity.computes[at + 1], activity.links.at(at), roles)

    def _advance(self, state: State, rounds: range) -> State:
        for k in rounds:
            now = self.round(k)
            now.open(state)
            state = self.algorithm.step(state, now)
            now.close(state)
        return state

    def keep(self, still: Bools, state: State) -> tuple[Distributed, State]:
        self.mail.drain()
        rows = torch.from_numpy(np.flatnonzero(np.repeat(still, self.sizes))).to(self.group.device)
        smaller = Distributed(
            self.batch.every,
            self.group,
            dtype=self.batch.dtype,
            runs=self.runs[still],
            counts=self.counts,
            mail=self.mail,
            statistics=self.statistics[rows],
        )
        smaller.exchanged = self.still_exchanged(still)
        return smaller, rebuild(state, [tensor[rows] for tensor in state])

    def gather(self, state: State, wanted: Bools) -> list[RunState] | None:
        sizes, owner = self.batch.sizes, self.block.owner
        chosen = np.repeat(wanted, sizes)
        rows = [np.flatnonzero(chosen & (owner == rank)) for rank in range(self.group.size)]
        mine = torch.from_numpy(self.block.row[rows[self.group.rank]]).to(self.group.device)
        tensors = (*state, self.statistics) if self.statistics.shape[1] else state
        gathered = [
            self.group.gather(tensor[mine], [len(each) for each in rows]) for tensor in tensors
        ]
        order = torch.from_numpy(np.argsort(np.concatenate(rows)))
        whole = [torch.cat(parts)[order] for parts in gathered if parts is not None]
        if self.group.rank:
            return None
        if not self.statistics.shape[1]:
            whole.append(torch.empty(len(whole[0]), 0))
        parts = [torch.split(tensor, np.asarray(sizes)[wanted].tolist()) for tensor in whole]
        return [
            RunState(rebuild(state, fields), last) for *fields, last in zip(*parts, strict=True)
        ]

    def evaluate(self, state: State, at: int, whole: RunState | None) -> Evaluation | None:
        """Every process evaluates its own models; the recording one the average, too."""
        problem = self.problem(at)

        def table(x: Tensor, rows: Ints) -> Tensor:
            found = problem.evaluate(x, rows)
            return torch.stack([found.loss, *(found.metrics[name] for name in problem.metrics)], 1)

        models, statistics = (self.split(tensor)[at] for tensor in (state[0], self.statistics))
        owner = np.split(self.block.owner, np.cumsum(self.batch.sizes)[:-1])[at]
        here = table(torch.cat([models, statistics], 1), np.flatnonzero(owner == self.group.rank))
        parts = self.group.gather(here, np.bincount(owner, minlength=self.group.size).tolist())
        if parts is None or whole is None:
            return None
        average = table(with_average(whole)[-1:].to(self.group.device), np.array([-1]))
        loss, *rest = torch.cat(
            [*parts, average.to(parts[0])]
        ).T  # blocks follow each other in the order of clients
        return Evaluation(loss, dict(zip(problem.metrics, rest, strict=True)))

    def agree(self, flags: Bools) -> Bools:
        return (self.group.sum(torch.from_numpy(flags.astype(np.int64))) > 0).numpy()

    def tally(self) -> Tally:
        return Tally(
            *(self.group.sum(torch.from_numpy(count.copy())).numpy() for count in self.counts)
        )

    def close(self) -> None:
        self.mail.drain()


@dataclass(eq=False)
class DistributedRound(SimulatedRound):
    """Round k of one block. All processes call the same things in the same order."""

    world: Distributed
    left: dict[Key, Tensor] = field(
        default_factory=dict
    )  # what was sent at the start, in one message
    parcels: dict[int, Parcel] = field(default_factory=dict)  # from and to each process
    posted: list[Parcel] = field(default_factory=list)
    calls: int = 0
    gradients: int = 0

    def grad(self, x: Tensor) -> Tensor:
        self.gradients += 1
        self._send_early(x)
        return super().grad(x)

    def average(self, x: Tensor) -> Tensor:
        world = self.world
        sums = world.group.sum(torch.stack([part.sum(0) for part in world.split(x)]))
        means = sums / torch.tensor(world.batch.sizes, device=x.device)[:, None]
        return means.to(x.dtype).repeat_interleave(torch.tensor(world.sizes, device=x.device), 0)

    # --- messages --------------------------------------------------------------------------------
    @cached_property
    def _pull_traffic(self) -> Traffic:
        return self.world.block.traffic(self.links.pull)

    @cached_property
    def _push_traffic(self) -> Traffic:
        push = self.links.push
        same = push is None or bool((push == self.links.pull).all())
        return self._pull_traffic if same else self.world.block.traffic(self.links.pushing)

    def traffic(self, kind: str) -> Traffic:
        return self._pull_traffic if kind == "pull" else self._push_traffic

    def send(self, part: int, tensors: Mapping[Key, Tensor]) -> dict[int, Parcel]:
        """One message to every process that needs rows of these, all of them together."""
        items = [Item(key, tensor, self.traffic(key[0])) for key, tensor in tensors.items()]
        return self.world.mail.post(self.k, part, items)

    def open(self, state: State) -> None:
        """Before the step: send what the method mixes as it is, unless it is on its way."""
        world, fields = self.world, dict(zip(self.world.algorithm.traits.state, state, strict=True))
        planned = {key: fields[key[1]] for key in world.planned if key[1] is not None}
        self.left = {
            key: tensor for key, tensor in planned.items() if tensor.dtype == state[0].dtype
        }
        early = world.mail.take(self.k)
        self.parcels = self.send(0, self.left) if early is None else early
        self.posted.extend(self.parcels.values())

    def close(self, after: State) -> None:
        """After the step: wait for what was sent."""
        for parcel in self.posted:
            parcel.close()
        self.world.mail.check(after[0])

    def _send_early(self, x: Tensor) -> None:
        """Where only x is mixed in the next round, its journey and its gradients overlap."""
        world, mail = self.world, self.world.mail
        alone = bool(world.planned) and all(name == "x" for _, name in world.planned)
        if mail.overlap and alone and self.gradients == 1 and mail.flight is None:
            following = world.round(self.k + 1)
            world.group.k = self.k
            mail.flight = Flight(self.k + 1, x, following.send(0, dict.fromkeys(world.planned, x)))

    def gossip_difference(self, x: Tensor) -> Tensor:
        return self._mix(x, "w", self.links.pull, None)

    def _mix(
        self,
        x: Tensor,
        weights: str,
        active: Bools,
        keeper: Ints | None,
        codec: Codec | None = None,
    ) -> Tensor:
        """As in one process; without a `keeper` of what is not sent, the difference to x."""
        world, kind = self.world, "push" if weights == "b" else "pull"
        self._count(active, x, codec)
        self.calls += 1
        key = next(
            (key for key, sent in self.left.items() if sent is x and key[0] == kind), (kind, None)
        )
        traffic, values, parcels = self.traffic(kind), self.weights(weights), self.parcels
        if key[1] is None:
            parcels = self.send(self.calls, {key: x if codec is None else codec.pack(x)})
            self.posted.extend(parcels.values())
        # While messages are on their way:
        if keeper is None:
            own = x
            out = world.block.mix_own_differences(x, values, active)
        else:
            own = None
            out = world.block.mix_own(x, values, active, keeper)
        for peer, clients in traffic.receives.items():
            rows = parcels[peer].rows(key)
            rows = rows if codec is None else codec.unpack(rows, x.shape[1], x.dtype)
            world.block.add(out, rows, clients, values, active, own)
        return out

    def _said(self, x: Tensor, codec: IntervalQuantizer) -> tuple[Tensor, Ints]:
        self.calls += 1
        place, said, key = self.world.block.row.copy(), [codec.pack(x)], ("pull", None)
        parcels = self.send(self.calls, {key: said[0]})
        self.posted.extend(parcels.values())
        for peer, clients in self.traffic("pull").receives.items():
            place[clients] = sum(map(len, said)) + np.arange(len(clients))
            said.append(parcels[peer].rows(key))
        return torch.cat(said), place
