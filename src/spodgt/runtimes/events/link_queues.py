"""Messages in flight on every link, and those that receivers remember."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from spodgt.network import Network
from spodgt.runtimes.events.activations import ActivationBatch, LinkMessage, Receipt, SentCopy
from spodgt.runtimes.events.local_rounds import Coordination, LocalRound, links_of_clients

NEVER = 2**62  # the arrival of a message that a newer one has replaced


class LinkQueues:
    """The messages of one run between two activations.

    Args:
        network: the network.
        coordination: of the run's method.
    """

    def __init__(self, network: Network, coordination: Coordination) -> None:
        self.coordination = coordination
        self.receivers: list[int] = network.receivers.tolist()
        self.in_links = links_of_clients(network.receivers, network.clients)
        self.out_links = links_of_clients(network.senders, network.clients)
        self.queues: list[list[LinkMessage]] = [[] for _ in range(network.links)]  # oldest first
        self.memory: list[LinkMessage | None] = [None] * network.links  # the last one received
        self.last_received_round = [0] * network.links  # of the sender
        self.transmission_start = [0] * network.links  # of the last message of each link
        self.transmission_end = [0] * network.links
        self.last_batch = [-1] * network.clients  # number of the last batch of each client
        self.window_start = 0  # number of the first batch of the current window

    def send(self, batch: ActivationBatch, client: int, starting: LocalRound, now: int) -> None:
        """Put the rows of a client on its active out-links.

        Args:
            batch: the batch; its last row is the client's.
            client: the sender.
            starting: the round that it starts.
            now: nanoseconds.
        """
        copy = SentCopy(batch.number, row=len(batch.copies))
        batch.copies.append(copy)
        for link in self.out_links[client]:
            if starting.links[link]:
                arrival = now
                if not self.coordination.synchronous:
                    arrival = self._transmit(link, starting, now) + starting.latencies[link]
                message = LinkMessage(link, copy, arrival, batch.rounds[-1])
                self.queues[link].append(message)
                batch.messages.append(message)
                copy.model.count += 1

    def receive(self, batch: ActivationBatch, row: int, client: int, now: int) -> None:
        """Take the messages that have arrived on the in-links of a client.

        Args:
            batch: the batch.
            row: of the client in it.
            client: the receiver.
            now: nanoseconds.
        """
        for link in self.in_links[client]:
            arrived = self._pop_arrived(link, now)
            for message in arrived:
                if message.copy.batch != batch.number:
                    message.uses_inbox |= self._is_before_next_activation(message)
            if arrived:
                batch.received += [Receipt(row, message, False) for message in arrived[:-1]]
                batch.received.append(Receipt(row, arrived[-1]))
                self.last_received_round[link] = arrived[-1].round_number
                if self.coordination.uses_stale_models:
                    self._remember(batch, arrived[-1])
            remembered = self.memory[link]
            if remembered is not None:
                batch.remembered.append(Receipt(row, remembered))

    def end_window(self, next_time: list[int]) -> None:
        """Mark the messages that the next activation of their receiver will receive.

        Args:
            next_time: (clients,) when each client is activated next.
        """
        for message in self.in_flight():
            if message.arrival <= next_time[self.receivers[message.link]]:
                message.uses_inbox |= self._is_before_next_activation(message)

    def in_flight(self) -> list[LinkMessage]:
        """All messages that have not been received."""
        return [message for queue in self.queues for message in queue]

    def _transmit(self, link: int, starting: LocalRound, now: int) -> int:
        """When the last byte of a new message is sent; it replaces a message that still waits."""
        if starting.transfers is None:
            return now
        if now >= self.transmission_end[link]:
            self.transmission_start[link] = now
        elif now >= self.transmission_start[link]:  # the last message is being transmitted
            self.transmission_start[link] = self.transmission_end[link]
        else:
            self.queues[link][-1].arrival = NEVER
        self.transmission_end[link] = self.transmission_start[link] + starting.transfers[link]
        return self.transmission_end[link]

    def _pop_arrived(self, link: int, now: int) -> list[LinkMessage]:
        """Remove the newest message that has arrived, and all older ones."""
        queue = self.queues[link]
        count = len(queue)
        while count and queue[count - 1].arrival > now:
            count -= 1
        arrived = queue[:count]
        del queue[:count]
        return arrived

    def _remember(self, batch: ActivationBatch, message: LinkMessage) -> None:
        previous = self.memory[message.link]
        if previous is not None:
            batch.forgotten.append(previous.copy)
        self.memory[message.link] = message
        message.copy.model.count += 1

    def _is_before_next_activation(self, message: LinkMessage) -> bool:
        """Whether a message of this window was sent after the last activation of its receiver."""
        sent = message.copy.batch
        return sent >= self.window_start and sent >= self.last_batch[self.receivers[message.link]]

    # --- checkpoints -----------------------------------------------------------------------------
    def used_copies(self) -> list[SentCopy]:
        """The copies to which messages refer, each once."""
        remembered = [message for message in self.memory if message is not None]
        messages = [*self.in_flight(), *remembered]
        return list(dict.fromkeys(message.copy for message in messages))

    def pack(self) -> dict[str, Tensor]:
        """The state of all links, as tensors."""
        copies = self.used_copies()
        references = [
            [c.model.count, c.model.slot, c.tracker.count, c.tracker.slot] for c in copies
        ]
        remembered = [message for message in self.memory if message is not None]
        links = [self.transmission_start, self.transmission_end, self.last_received_round]
        return {
            "links": torch.tensor(links),
            "copies": torch.tensor(references).reshape(-1, 4),
            "messages": _to_table(self.in_flight(), copies),
            "memory": _to_table(remembered, copies),
        }

    def unpack(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `pack` returned."""
        links = tensors["links"].tolist()
        self.transmission_start, self.transmission_end, self.last_received_round = links
        copies = []
        for numbers in tensors["copies"].tolist():
            copy = SentCopy()
            copy.model.count, copy.model.slot, copy.tracker.count, copy.tracker.slot = numbers
            copies.append(copy)
        for message in _from_table(tensors["messages"], copies):
            self.queues[message.link].append(message)
        for message in _from_table(tensors["memory"], copies):
            self.memory[message.link] = message


def _to_table(messages: list[LinkMessage], copies: list[SentCopy]) -> Tensor:
    """(messages, 5): link, number of the copy, arrival, round, whether it uses an inbox."""
    numbers = {copy: number for number, copy in enumerate(copies)}
    rows = [[m.link, numbers[m.copy], m.arrival, m.round_number, m.uses_inbox] for m in messages]
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, 5)


def _from_table(table: Tensor, copies: list[SentCopy]) -> list[LinkMessage]:
    messages = []
    for link, copy, arrival, round_number, uses_inbox in table.tolist():
        message = LinkMessage(link, copies[copy], arrival, round_number)
        message.uses_inbox = bool(uses_inbox)
        messages.append(message)
    return messages
