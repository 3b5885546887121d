"""The simulator: all clients of many runs in one tensor, in one process."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms.compose.codecs import Codec, IntervalQuantizer
from spodgt.kernels.compiled_rounds import CompiledRounds
from spodgt.kernels.links import MixingOperator
from spodgt.kernels.steps import Activity, State
from spodgt.runtimes.batch import MixingMatrix, RunBatch
from spodgt.runtimes.batch_round import BatchRound, RoundLinks
from spodgt.runtimes.held_clients import ClientStatistics, HeldClients, run_states
from spodgt.runtimes.last_exchange import LastExchanges
from spodgt.runtimes.world import (
    CheckpointBatch,
    Run,
    RunCheckpoint,
    RunState,
    SingleProcess,
    SingleProcessRuntime,
    Snapshot,
    Tally,
)
from spodgt.types import Bools, Evaluation, Floats, Ints


@dataclass(frozen=True, eq=False)
class LocalMixer:
    """Mixing of rows that are all in one tensor."""

    links: RoundLinks
    operators: dict[tuple[MixingMatrix, torch.dtype], MixingOperator]  # shared by all rounds

    def mix(
        self, x: Tensor, matrix: MixingMatrix, active: Bools, codec: Codec | None = None
    ) -> Tensor:
        """Codecs are lossless for the rows they are used for, so rows are not packed."""
        return self._operator(matrix, x)(x, active)

    def _operator(self, matrix: MixingMatrix, x: Tensor) -> MixingOperator:
        """The operator for rows like x, made once unless weights change between rounds."""
        operator = self.operators.get((matrix, x.dtype))
        if operator is None:
            operator = MixingOperator(
                self.links.held.batch.links,
                self.links.weights(matrix),
                self.links.keepers(matrix),
                x.dtype,
            )
            if self.links.roles is None:
                self.operators[matrix, x.dtype] = operator
        return operator

    def mix_differences(self, x: Tensor, active: Bools) -> Tensor:
        weights = self.links.weights(MixingMatrix.GOSSIP)
        return self.links.held.batch.links.mix_differences(x, weights, active)

    def share_packed(self, x: Tensor, codec: IntervalQuantizer) -> tuple[Tensor, Ints]:
        return codec.pack(x), self.links.held.row

    def average(self, x: Tensor) -> Tensor:
        means = [rows.mean(0, keepdim=True).expand_as(rows) for rows in self.links.held.split(x)]
        return torch.cat(means)


@dataclass(eq=False)
class SimulatedRounds:
    """Computes the rounds of a batch: in compiled loops where they apply, else by `step`."""

    held: HeldClients
    tally: Tally
    statistics: ClientStatistics
    compiled: bool
    operators: dict[tuple[MixingMatrix, torch.dtype], MixingOperator] = field(default_factory=dict)

    @cached_property
    def compiled_rounds(self) -> CompiledRounds | None:
        """The method's rounds in compiled loops; None if its model is not linear, such as a CNN.

        See `CompiledRounds.create` for the other conditions.
        """
        if not self.compiled or self.statistics.columns:
            return None  # only the calls of `step` exchange statistics
        return CompiledRounds.create(self.held.algorithm, self.held.batch)

    def advance(self, state: State, rounds: range) -> State:
        """The state after these rounds."""
        if self.compiled_rounds is None:
            return self._advance_by_step(state, rounds)
        for activity in self.held.batch.activity.over(rounds):
            after = self.compiled_rounds.advance(state, activity)
            if after is None:
                state = self._advance_by_step(state, activity.rounds)
            else:
                sizes = self.compiled_rounds.message_sizes
                self._count_compiled(activity, sizes, state[0].element_size())
                state = after
        return state

    def _advance_by_step(self, state: State, rounds: range) -> State:
        for k in rounds:
            state = self.held.algorithm.step(state, self.start(k))
        return state

    def start(self, k: int) -> BatchRound:
        """Round k."""
        now = self.held.batch.activity.round(k)
        links = RoundLinks(self.held, now.pull, now.push, now.roles, self.tally)
        mixer = LocalMixer(links, self.operators)
        return BatchRound(k, links, mixer, now.computes, self.statistics)

    def _count_compiled(
        self, activity: Activity, message_sizes: tuple[int, int], item_bytes: int
    ) -> None:
        """Count gradients and messages of compiled rounds; models and trackers share a message.

        Args:
            activity: the rounds.
            message_sizes: numbers that a link carries by pull or gossip, and by push.
            item_bytes: bytes of a number.
        """
        pulled, pushed = message_sizes
        pull = activity.links.pull.sum(0)
        push = activity.links.pushing.sum(0)
        messages = pull if pulled else push
        if pulled and pushed:
            messages = activity.links.used.sum(0)
        index = self.held.tally_index
        self.tally.gradients[index.clients] += activity.computes[1:].sum(0)
        self.tally.messages[index.links] += messages
        self.tally.bytes[index.links] += (pull * pulled + push * pushed) * item_bytes


class Simulation:
    """The simulator's `World`: runs side by side on one device.

    Args:
        all_runs: all runs of the method, also those that are finished.
        dtype: of the models.
        device: of the models.
        runs: numbers of the runs that are not finished; None: all.
        tally: counts to continue from; None: zeros.
        statistics: (clients, columns) running statistics to continue from; None: the initial ones.
        compiled: use the compiled rounds of the method where they apply.
    """

    def __init__(
        self,
        all_runs: Sequence[Run],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        runs: Ints | None = None,
        tally: Tally | None = None,
        statistics: Tensor | None = None,
        compiled: bool = True,
    ) -> None:
        self.batch = RunBatch(all_runs, dtype, torch.device(device), runs)
        self.runs = self.batch.runs
        self.held = HeldClients(self.batch)
        self.sizes = self.held.sizes
        self.communicator = SingleProcess()
        self.counts = Tally.zeros(all_runs) if tally is None else tally
        self.statistics = ClientStatistics.initial(self.held, statistics)
        self.rounds = SimulatedRounds(self.held, self.counts, self.statistics, compiled)
        self.exchanges = LastExchanges(self.held)

    def init(self) -> State:
        models = self.held.initial_models()
        state: State = self.held.algorithm.init(models, self.rounds.start(0))
        return state

    def costs(self, k: int) -> Floats:
        return self.batch.activity.costs(k)

    def advance(self, state: State, rounds: range) -> State:
        if not self.exchanges.has_local_steps:
            return self.rounds.advance(state, rounds)
        return self.exchanges.advance(state, rounds, self.rounds.advance, self.statistics)

    def select_runs(self, selected: Bools, state: State) -> tuple[Simulation, State]:
        world = Simulation(
            self.batch.all_runs,
            dtype=self.batch.dtype,
            device=self.batch.device,
            runs=self.runs[selected],
            tally=self.counts,
            statistics=self.statistics.values[self.held.rows_of(selected)],
            compiled=self.rounds.compiled,
        )
        world.exchanges = self.exchanges.select(world.held)
        return world, self.held.select(state, selected)

    def at_last_exchange(self, state: State) -> tuple[Simulation, State]:
        if not self.exchanges.models:
            return self, state
        state, values = self.exchanges.substitute(state, self.statistics.values)
        world = copy.copy(self)
        world.statistics = self.statistics.with_values(values)
        return world, state

    def gather(self, state: State, wanted: Bools) -> list[RunState] | None:
        return run_states(self.held, state, self.statistics.values, wanted)

    def evaluate(self, state: State, index: int, run_state: RunState | None) -> Evaluation | None:
        assert run_state is not None
        return self.batch.evaluate(index, run_state)

    def in_flight_state(self, index: int) -> dict[str, Tensor]:
        """No message is in flight between two rounds."""
        return {}

    def counters(self, index: int) -> dict[str, float]:
        counts = self.counts.of_run(self.batch.all_runs, int(self.runs[index]))
        return {"bytes": float(counts.bytes.sum())}

    def tally(self) -> Tally:
        return self.counts


@dataclass(frozen=True)
class Simulator(SingleProcessRuntime):
    """The runtime of the simulator."""

    device: torch.device

    def world(self, runs: Sequence[Run], dtype: torch.dtype) -> Simulation:
        return Simulation(runs, dtype=dtype, device=self.device)

    def restore(
        self,
        runs: Sequence[Run],
        dtype: torch.dtype,
        checkpoints: Mapping[int, RunCheckpoint] | None,
    ) -> Snapshot:
        assert checkpoints is not None
        joined = CheckpointBatch.join(runs, checkpoints)
        world = Simulation(
            runs,
            dtype=dtype,
            device=self.device,
            runs=np.array(list(checkpoints)),
            tally=joined.counts,
            statistics=joined.statistics.to(self.device),
        )
        like = self.world(runs[:1], dtype).init()  # a state of the right type
        if joined.exchanged is not None:
            x = joined.exchanged.x.to(self.device)
            statistics = joined.exchanged.statistics.to(self.device)
            world.exchanges.restore(joined.k, x, statistics)
        names = world.held.algorithm.traits.state
        state = joined.to_state(like, names, self.device)
        return Snapshot(joined.k, joined.delay, world, state)
