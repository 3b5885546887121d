"""A block of the clients in every process, on `torch.distributed`.

Every process draws the active links of a round itself, so that no process has to announce what it
sends. The trajectory is that of the simulator.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spodgt.kernels.steps import State, rebuild
from spodgt.problems.running_statistics import refuse_statistics
from spodgt.runtimes.batch import RunBatch
from spodgt.runtimes.batch_round import BatchRound, RoundLinks
from spodgt.runtimes.distributed.client_blocks import ClientBlock, assign_processes, client_costs
from spodgt.runtimes.distributed.messages import FieldKey, Messenger
from spodgt.runtimes.distributed.mixer import MessageMixer, RoundMessages
from spodgt.runtimes.distributed.process_group import Group
from spodgt.runtimes.held_clients import ClientStatistics, HeldClients
from spodgt.runtimes.last_exchange import LastExchanges
from spodgt.runtimes.world import Run, RunState, Tally, with_average
from spodgt.types import ActiveLinks, Bools, Evaluation, Floats, Ints, Problem


@dataclass(eq=False)
class DistributedRounds:
    """Computes the rounds of the block of one process."""

    held: HeldClients
    block: ClientBlock
    messenger: Messenger
    tally: Tally
    statistics: ClientStatistics

    def __post_init__(self) -> None:
        keys: dict[FieldKey, None] = {}  # an ordered set
        for kind, name in self.held.algorithm.traits.mixed_fields:
            keys[FieldKey("push" if kind == "push" else "pull", name)] = None
        self.fields = tuple(keys)

    def init(self) -> State:
        """The state after round 0."""
        messages = self._messages(0)
        models = self.held.initial_models()
        state: State = self.held.algorithm.init(models, self.start(0, messages))
        messages.close()
        return state

    def advance(self, state: State, rounds: range) -> State:
        """The state after these rounds."""
        method = self.held.algorithm
        for k in rounds:
            messages = self._messages(k)
            messages.send_fields(state, tuple(method.traits.state))
            state = method.step(state, self.start(k, messages))
            messages.close()
        return state

    def start(self, k: int, messages: RoundMessages) -> BatchRound:
        """Round k."""
        self.messenger.group.k = k
        now = self.held.batch.activity.round(k)
        links = RoundLinks(self.held, now.pull, now.push, now.roles, self.tally)
        mixer = MessageMixer(links, self.block, messages)
        return BatchRound(k, links, mixer, now.computes, self.statistics)

    def _messages(self, k: int) -> RoundMessages:
        now = self.held.batch.activity.round(k)
        active = ActiveLinks(now.pull, now.push)
        return RoundMessages(k, active, self.block, self.messenger, self.fields)


class DistributedWorld:
    """The `World` of one process: its block of clients of several runs.

    Args:
        all_runs: all runs of the method, also those that are finished.
        group: the processes.
        dtype: of the models.
        runs: numbers of the runs that are not finished; None: all.
        tally: counts of this process to continue from; None: zeros.
        statistics: (clients, columns) private parameters to continue from; None: the initial ones.

    Raises:
        InvalidInput: the problem has running statistics, or fewer clients than processes.
    """

    def __init__(
        self,
        all_runs: Sequence[Run],
        group: Group,
        *,
        dtype: torch.dtype = torch.float32,
        runs: Ints | None = None,
        tally: Tally | None = None,
        statistics: Tensor | None = None,
    ) -> None:
        refuse_statistics(all_runs[0].problem, "the distributed runtime")
        self.communicator = group
        self.messenger = Messenger(group)
        self.batch = RunBatch(all_runs, dtype, group.device, runs)
        self.runs = self.batch.runs
        owners = []
        for run in self.batch.live:
            owners.append(assign_processes(client_costs(run.problem, run.availability), group.size))
        links = self.batch.links
        self.block = ClientBlock(group.rank, np.concatenate(owners), links.receivers, links.senders)
        self.held = HeldClients(self.batch, self.block.clients, self.block.in_links)
        self.sizes = self.held.sizes
        self.counts = Tally.zeros(all_runs) if tally is None else tally  # of this process
        self.statistics = ClientStatistics.initial(self.held, statistics)
        self.rounds = DistributedRounds(
            self.held, self.block, self.messenger, self.counts, self.statistics
        )
        self.exchanges = LastExchanges(self.held)

    def init(self) -> State:
        return self.rounds.init()

    def costs(self, k: int) -> Floats:
        return self.batch.activity.costs(k)

    def advance(self, state: State, rounds: range) -> State:
        if not self.exchanges.has_local_steps:
            return self.rounds.advance(state, rounds)
        return self.exchanges.advance(state, rounds, self.rounds.advance, self.statistics)

    def select_runs(self, selected: Bools, state: State) -> tuple[DistributedWorld, State]:
        world = DistributedWorld(
            self.batch.all_runs,
            self.communicator,
            dtype=self.batch.dtype,
            runs=self.runs[selected],
            tally=self.counts,
            statistics=self.statistics.values[self.held.rows_of(selected)],
        )
        world.exchanges = self.exchanges.select(world.held)
        return world, self.held.select(state, selected)

    def at_last_exchange(self, state: State) -> tuple[DistributedWorld, State]:
        if not self.exchanges.models:
            return self, state
        state, values = self.exchanges.substitute(state, self.statistics.values)
        world = copy.copy(self)
        world.statistics = self.statistics.with_values(values)
        return world, state

    def gather(self, state: State, wanted: Bools) -> list[RunState] | None:
        group = self.communicator
        is_wanted = np.repeat(wanted, self.batch.sizes)
        clients = [
            np.flatnonzero(is_wanted & (self.block.owner == rank)) for rank in range(group.size)
        ]
        counts = [len(part) for part in clients]
        rows = torch.from_numpy(self.block.row[clients[group.rank]]).to(group.device)
        order = torch.from_numpy(np.argsort(np.concatenate(clients)))
        fields = []
        for tensor in (*state, self.statistics.values):
            if not tensor.numel():  # no columns: nothing to send
                fields.append(tensor.new_empty(sum(counts), *tensor.shape[1:], device="cpu"))
                continue
            parts = group.gather(tensor[rows], counts)
            if parts is not None:
                fields.append(torch.cat(parts)[order])
        if group.rank:
            return None
        *state_fields, statistics = fields
        sizes = np.asarray(self.batch.sizes)[wanted].tolist()
        run_states = []
        parts_of_fields = zip(*(torch.split(field, sizes) for field in state_fields), strict=True)
        for tensors, values in zip(parts_of_fields, torch.split(statistics, sizes), strict=True):
            run_states.append(RunState(rebuild(state, tensors), values))
        return run_states

    def evaluate(self, state: State, index: int, run_state: RunState | None) -> Evaluation | None:
        """Every process evaluates its own models, and the main process also the average."""
        group = self.communicator
        problem = self.batch.problem_of(index)
        owner = np.split(self.block.owner, self.batch.starts[1:-1])[index]
        models = self.held.split(state[0])[index]
        statistics = self.held.split(self.statistics.values)[index]
        clients = np.flatnonzero(owner == group.rank)
        scores = _scores(problem, torch.cat([models, statistics], 1), clients)
        counts = np.bincount(owner, minlength=group.size).tolist()
        parts = group.gather(scores, counts)  # blocks are in the order of clients
        if parts is None or run_state is None:
            return None
        average = with_average(run_state)[-1:].to(group.device)
        parts.append(_scores(problem, average, np.array([-1])).to(parts[0]))
        loss, *metrics = torch.cat(parts).T
        return Evaluation(loss, dict(zip(problem.metrics, metrics, strict=True)))

    def in_flight_state(self, index: int) -> dict[str, Tensor]:
        """No message is in flight between two rounds that a checkpoint needs."""
        return {}

    def counters(self, index: int) -> dict[str, float]:
        """Collective: the bytes of all processes."""
        counts = self.tally().of_run(self.batch.all_runs, int(self.runs[index]))
        return {"bytes": float(counts.bytes.sum())}

    def tally(self) -> Tally:
        totals = [torch.from_numpy(count.copy()) for count in self.counts]
        return Tally(*(self.communicator.sum(total).numpy() for total in totals))


def _scores(problem: Problem, models: Tensor, test_clients: Ints) -> Tensor:
    """(models, 1 + metrics) loss and metrics; `test_clients` as for `Problem.evaluate`."""
    evaluation = problem.evaluate(models, test_clients)
    columns = [evaluation.loss, *(evaluation.metrics[name] for name in problem.metrics)]
    return torch.stack(columns, 1)
