"""One run of a discrete-event simulation: computes the batches of its `EventSchedule`.

A batch is one call of the method's own `step` (`activation_round`), or, for gradient tracking, many
batches are one call of a compiled loop (`compiled_tracking`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from spodgt import rng
from spodgt.algorithms import stack
from spodgt.kernels.steps import State, rebuild
from spodgt.runtimes.batch import MixingMatrix, gradient_function
from spodgt.runtimes.events.activation_round import ActivationRound
from spodgt.runtimes.events.activations import ActivationBatch, Tick
from spodgt.runtimes.events.batch_messages import RunContext
from spodgt.runtimes.events.compiled_tracking import CompiledTracking, TrackingRule
from spodgt.runtimes.events.durations import Time
from spodgt.runtimes.events.local_rounds import Coordination
from spodgt.runtimes.events.message_pool import MessagePool, SlotAllocator
from spodgt.runtimes.events.schedule import EventSchedule
from spodgt.runtimes.held_clients import select_client_values
from spodgt.runtimes.world import Run, Tally
from spodgt.types import Floats, Round


class ClientExchanges:
    """The models of clients after their last exchange, before local steps.

    Args:
        period: rounds between two exchanges.
        x: (clients, parameters).
        statistics: (clients, columns).
    """

    def __init__(self, period: int, x: Tensor, statistics: Tensor) -> None:
        self.period = period
        self.x = x
        self.statistics = statistics

    def find(self, batches: Sequence[ActivationBatch]) -> dict[int, list[int]]:
        """Clients by the index of the batch with their last exchange, in ascending order."""
        last_batch: dict[int, int] = {}
        for index, batch in enumerate(batches):
            for client, k in zip(batch.clients, batch.rounds, strict=True):
                if k % self.period == 0:
                    last_batch[client] = index
        clients: dict[int, list[int]] = {}
        for client, index in last_batch.items():
            clients.setdefault(index, []).append(client)
        return dict(sorted(clients.items()))

    def update(self, clients: Sequence[int], x: Tensor, statistics: Tensor) -> None:
        """Copy the models of clients that have just exchanged them."""
        index = torch.tensor(clients, device=x.device)
        self.x[index] = x[index]
        self.statistics[index] = statistics[index]


class PlainSteps:
    """Computes batches by the method's own step."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        method = context.algorithm
        without_values = select_client_values(
            method, torch.zeros(0, dtype=torch.int64), context.clients
        )
        self.has_client_values = repr(without_values) != repr(method)  # such as step sizes

    def compute(self, state: State, batches: Sequence[ActivationBatch]) -> None:
        """Compute consecutive batches, in place."""
        for batch in batches:
            self._step(state, batch)

    def _step(self, state: State, batch: ActivationBatch) -> None:
        context = self.context
        clients = [*batch.clients, *batch.partners]
        index = torch.tensor(clients, device=context.device)
        method = context.algorithm
        rows = state
        if clients != list(range(context.clients)):
            rows = rebuild(state, [tensor[index] for tensor in state])
            if self.has_client_values:
                method = select_client_values(method, index, context.clients)
        after: State = method.step(rows, cast(Round, ActivationRound(context, batch)))
        # A step may return a field of its input: copy before `state` is overwritten.
        inputs = {tensor.untyped_storage().data_ptr() for tensor in rows}
        fields = []
        for tensor in after:
            is_input = tensor.untyped_storage().data_ptr() in inputs
            fields.append(tensor.clone() if is_input else tensor)
        for tensor, new in zip(state, fields, strict=True):
            tensor[index] = new


class EventExecutor:
    """One run: its schedule, and the computation of what is scheduled.

    Args:
        run: the run.
        time: the durations of gradients and messages.
        dtype: of the models.
        device: of the models.
        counts: the tally of this run.
        compiled: use compiled loops where they apply; they do not support private parameters.
    """

    def __init__(
        self,
        run: Run,
        time: Time,
        dtype: torch.dtype,
        device: torch.device,
        counts: Tally,
        compiled: bool = True,
    ) -> None:
        network = run.network
        coordination = Coordination.of(run)
        message_size = run.algorithm.message(run.problem.parameters, dtype.itemsize)
        clock = time.draw(network, run.seed)
        self.schedule = EventSchedule(run, clock, message_size, coordination)
        algorithm = stack([run.algorithm], [network.clients], dtype=dtype, device=device)
        rule = None
        if compiled:
            like = torch.empty(0, dtype=dtype, device=device)
            rule = TrackingRule.of(algorithm, run.availability.p, like)
        problem = run.problem.to(device, dtype)
        self.context = RunContext(
            run=run,
            algorithm=algorithm,
            problem=problem,
            gradient=gradient_function(problem, dtype),
            coordination=coordination,
            dtype=dtype,
            device=device,
            weights=_mixing_weights(run),
            keys=np.full(network.clients, rng.key(run.seed, "batch")),
            counts=counts,
            statistics=torch.empty(network.clients, 0),
            pool=MessagePool(network.clients, separate_trackers=rule is not None),
        )
        self.computation: PlainSteps | CompiledTracking = PlainSteps(self.context)
        if rule is not None:
            self.computation = CompiledTracking(self.context, rule, self.schedule.links.receivers)
        self.ticks: list[Tick] = []  # of the current window
        self.first_tick = 1  # number of the first of them
        self.done = 0  # number of the last tick computed
        self.last_exchange: ClientExchanges | None = None  # if the method has local steps
        self.schedule_at_window_start = self._pack_schedule()

    # --- ticks -----------------------------------------------------------------------------------
    def costs(self, k: int) -> list[float]:
        """Delays by the paper's clock of tick k and of those scheduled after it."""
        if k >= self.first_tick + len(self.ticks):
            self._next_window()
        return [tick.cost for tick in self.ticks[k - self.first_tick :]]

    def _next_window(self) -> None:
        """Schedule the next ticks; all before have been computed."""
        self.first_tick = self.schedule.tick + 1
        self.schedule_at_window_start = self._pack_schedule()
        self.context.pool.reset_slots(self.schedule.links)
        self.ticks = self.schedule.next_window()

    def init(self) -> State:
        """The state after round 0, which all clients start at once."""
        context = self.context
        computes: list[bool] = context.run.availability.computes(range(1))[0].tolist()
        everyone = list(range(context.clients))
        batch = ActivationBatch(0, everyone, [0] * context.clients, computes)
        start = context.run.start.to(context.device, context.dtype)
        state: State = context.algorithm.init(start, cast(Round, ActivationRound(context, batch)))
        self.set_last_exchange(state[0], context.statistics)
        return state

    def set_last_exchange(self, x: Tensor, statistics: Tensor) -> None:
        """Set the models of the last exchange, if the method has local steps."""
        period = self.context.run.algorithm.period
        if period > 1:
            self.last_exchange = ClientExchanges(period, x.clone(), statistics.clone())

    def advance(self, state: State, ticks: range) -> None:
        """Compute some ticks, in place."""
        batches: list[ActivationBatch] = []
        for k in ticks:
            if k >= self.first_tick + len(self.ticks):  # before slots are assigned anew
                self.compute(state, batches)
                batches = []
            self.costs(k)
            batches += self.ticks[k - self.first_tick].batches
            self.done = k
        self.compute(state, batches)

    def compute(self, state: State, batches: Sequence[ActivationBatch]) -> None:
        """Compute batches, in place."""
        if self.last_exchange is None:
            self.computation.compute(state, batches)
            return
        first = 0
        for index, clients in self.last_exchange.find(batches).items():
            self.computation.compute(state, batches[first : index + 1])
            self.last_exchange.update(clients, state[0], self.context.statistics)
            first = index + 1
        self.computation.compute(state, batches[first:])

    def in_flight_mass(self) -> Tensor | None:
        """(columns,) Σ of the trackers in flight; None if none was ever sent."""
        return self.context.pool.tracker_mass(self.context.weights[MixingMatrix.PUSH])

    # --- checkpoints -----------------------------------------------------------------------------
    def _pack_schedule(self) -> dict[str, Tensor]:
        pool = self.context.pool
        capacity = torch.tensor([pool.model_slots.capacity, pool.tracker_slots.capacity])
        return {**self.schedule.pack(), "capacity": capacity}

    def pack(self) -> dict[str, Tensor]:
        """What is needed to resume, besides the state: the start of the window and the pool."""
        tensors = self.context.pool.pack()
        for name, tensor in self.schedule_at_window_start.items():
            tensors[f"plan/{name}"] = tensor
        tensors["numbers"] = torch.tensor([self.done, *self.context.pool.push_calls])
        return tensors

    def unpack(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `pack` returned: schedule the window again, and count what was computed."""
        names = [name for name in tensors if name.startswith("plan/")]
        schedule = {name.removeprefix("plan/"): tensors[name] for name in names}
        self.schedule.unpack(schedule)
        pool = self.context.pool
        pool.in_flight = dict.fromkeys(self.schedule.links.in_flight())
        self.done, *pool.push_calls = tensors["numbers"].tolist()
        models, trackers = schedule["capacity"].tolist()
        pool.model_slots = SlotAllocator(models)
        pool.tracker_slots = SlotAllocator(trackers)
        self._next_window()
        for tick in self.ticks[: self.done + 1 - self.first_tick]:
            for batch in tick.batches:
                pool.update_refcounts(batch)
        pool.unpack(tensors, self.context.device)


def _mixing_weights(run: Run) -> dict[MixingMatrix, Floats]:
    weights = {MixingMatrix.PULL: run.network.a, MixingMatrix.PUSH: run.network.b}
    if run.network.w is not None:
        weights[MixingMatrix.GOSSIP] = run.network.w
    return weights
