"""The event queue of a discrete-event simulation: which clients act when, and what they receive.

Times and random draws alone determine the activations of clients, so these are scheduled first and
computed afterwards, many at once:

    batch    activations of different clients: all of them send, then all of them receive
    tick     the batches between two multiples of the tick, after which models may be evaluated
    window   the ticks that are scheduled at once

A client receives only what had arrived at its own time, so computing a batch at once is the same as
computing its activations one by one. Messages carry running sums, as between peers: a message
replaces all older ones of its link, including those in flight.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from spodgt.participation import delay
from spodgt.runtimes.events.activations import ActivationBatch, Tick
from spodgt.runtimes.events.durations import DurationClock
from spodgt.runtimes.events.link_queues import NEVER, LinkQueues
from spodgt.runtimes.events.local_rounds import ClientRounds, Coordination, RoundTable
from spodgt.runtimes.world import Run

_TICKS_AHEAD = 16  # ticks of a window
_ACTIVATIONS_AHEAD = 2**12  # of a window; fewer ticks where they would have more activations


class Activation(NamedTuple):
    """An entry of the event queue, ordered by time: a client ends its local round."""

    time: int  # nanoseconds of virtual time
    client: int
    round_number: int  # that starts; the entry is stale if it has started already


class EventSchedule:
    """The activations of one run; `next_window` schedules more of them.

    Args:
        run: the run.
        clock: its durations.
        message_size: bytes.
        coordination: of its method.
    """

    def __init__(
        self, run: Run, clock: DurationClock, message_size: int, coordination: Coordination
    ) -> None:
        self.coordination = coordination
        self.tick_length = clock.tick
        self.table = RoundTable(run, clock, message_size, coordination.pairwise)
        self.clients = ClientRounds(run, self.table, coordination)
        self.links = LinkQueues(run.network, coordination)
        costs = delay.costs(run.network, run.availability)
        self.client_cost: list[float] = costs.clients.tolist()
        self.link_cost: list[float] = costs.links.tolist()
        self.window = max(1, min(_TICKS_AHEAD, _ACTIVATIONS_AHEAD // run.network.clients))
        self.tick = 0  # the last one scheduled
        self.batch_number = 0  # of the last batch
        self._fill_queue()

    def next_window(self) -> list[Tick]:
        """Schedule the next ticks."""
        self.links.window_start = self.batch_number + 1
        ticks = []
        for _ in range(self.window):
            self.tick += 1
            ticks.append(self._run_until(self.tick * self.tick_length))
        self.links.end_window(self.clients.next_time)
        return ticks

    # --- the event loop --------------------------------------------------------------------------
    def _run_until(self, end: int) -> Tick:
        """Process the event queue up to virtual time `end` (nanoseconds).

        A batch contains each client at most once: an activation that involves a client of the
        current batch starts a new batch.
        """
        tick = Tick()
        batch = self._new_batch()
        clients_in_batch: set[int] = set()
        while self.queue[0].time <= end:
            now = self.queue[0].time
            ready = self._pop_ready_clients(now)
            for active, involved in self._exchanges(ready):
                if not clients_in_batch.isdisjoint(involved):
                    tick.batches.append(batch)
                    batch = self._new_batch()
                    clients_in_batch = set()
                clients_in_batch.update(involved)
                self._activate(batch, tick, active, now)
            for client in ready:
                self._schedule(client, self.clients.next_time[client])
        if batch.clients:
            tick.batches.append(batch)
        return tick

    def _pop_ready_clients(self, now: int) -> list[int]:
        """Remove all events at time `now`; returns the clients that may start their next round."""
        ready: list[int] = []
        while self.queue and self.queue[0].time == now:
            event = heapq.heappop(self.queue)
            client = event.client
            is_stale = event.round_number != self.clients.next_round[client] or client in ready
            if not is_stale and self._may_start(client, now):
                ready.append(client)
        return ready

    def _may_start(self, client: int, now: int) -> bool:
        """Whether no in-neighbour is more than `max_lead` rounds behind.

        If one is, the client is scheduled again for the arrival of the messages in flight; messages
        that are sent later schedule their receiver.
        """
        if self.coordination.max_lead is None:
            return True
        oldest_round = self.clients.next_round[client] - self.coordination.max_lead
        may_start = True
        for link in self.links.in_links[client]:
            needed = self.clients.last_active_round(link, oldest_round)
            queue = self.links.queues[link]
            arrivals = [message.arrival for message in queue if message.round_number >= needed]
            is_received = self.links.last_received_round[link] >= needed
            if not is_received and min(arrivals, default=NEVER) > now:
                may_start = False
                for arrival in arrivals:
                    self._schedule(client, arrival)
        return may_start

    def _exchanges(self, ready: list[int]) -> list[tuple[list[int], list[int]]]:
        """(active clients, clients involved): pairwise exchanges one by one, others at once."""
        if not self.coordination.pairwise:
            return [(ready, ready)] if ready else []
        exchanges = []
        for client in ready:
            k = self.clients.next_round[client]
            partner = self.clients.meetings.partner(client, k)
            exchanges.append(([client], [client, partner]))
        return exchanges

    def _schedule(self, client: int, time: int) -> None:
        activation = Activation(time, client, self.clients.next_round[client])
        heapq.heappush(self.queue, activation)

    def _new_batch(self) -> ActivationBatch:
        self.batch_number += 1
        return ActivationBatch(self.batch_number)

    # --- activations -----------------------------------------------------------------------------
    def _activate(self, batch: ActivationBatch, tick: Tick, clients: list[int], now: int) -> None:
        """Activate clients at one time: all of them send, then all of them receive."""
        first_row = len(batch.clients)
        for client in clients:
            k = self.clients.next_round[client]
            if self.table[k - 1].computes[client]:
                tick.cost += self.client_cost[client]
            batch.clients.append(client)
            batch.rounds.append(k)
            batch.computes.append(self.table[k].computes[client])
            first_message = len(batch.messages)
            if self.coordination.pairwise:
                self.clients.meetings.meet(batch, client, k)
            else:
                self.links.send(batch, client, self.table[k], now)
            for message in batch.messages[first_message:]:
                tick.cost += self.link_cost[message.link]
                if self.coordination.max_lead is not None:  # the receiver may wait for it
                    receiver = self.links.receivers[message.link]
                    time = max(message.arrival, self.clients.next_time[receiver])
                    self._schedule(receiver, time)
        for row, client in enumerate(clients, first_row):
            if not self.coordination.pairwise:
                self.links.receive(batch, row, client, now)
        for client in clients:
            self.links.last_batch[client] = batch.number
        self.clients.start(clients, now)

    # --- checkpoints -----------------------------------------------------------------------------
    def _fill_queue(self) -> None:
        self.queue: list[Activation] = []
        for client, time in enumerate(self.clients.next_time):
            self._schedule(client, time)

    def pack(self) -> dict[str, Tensor]:
        """The state of the schedule between two windows, as tensors."""
        clients = torch.tensor([self.clients.next_time, self.clients.next_round])
        return {"clients": clients, "tick": torch.tensor(self.tick), **self.links.pack()}

    def unpack(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `pack` returned."""
        clients = tensors["clients"].tolist()
        self.clients.next_time = clients[0]
        self.clients.next_round = clients[1]
        self.tick = int(tensors["tick"])
        self.links.unpack(tensors)
        self._fill_queue()
