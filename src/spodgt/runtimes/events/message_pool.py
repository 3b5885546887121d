"""Memory of messages in flight: a pool holds their rows until the last message is received."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from spodgt.runtimes.events.activations import ActivationBatch, LinkMessage, PoolReference
from spodgt.runtimes.events.link_queues import LinkQueues
from spodgt.types import Floats


class SlotAllocator:
    """Free slots of a pool, in an order that is the same after a restart."""

    def __init__(self, capacity: int = 0) -> None:
        self.capacity = capacity
        self.free: list[int] = []

    def reset(self, used: Iterable[int]) -> None:
        """Free all slots except those in use; the lowest is assigned first."""
        self.free = sorted(set(range(self.capacity)) - set(used), reverse=True)

    def acquire(self, reference: PoolReference) -> None:
        """Assign a slot to a row."""
        if not self.free:
            added = max(8, self.capacity // 8)
            self.free = list(range(self.capacity + added - 1, self.capacity - 1, -1))
            self.capacity += added
        reference.slot = self.free.pop()

    def release(self, reference: PoolReference) -> None:
        """Count a reference down; the slot is free after the last one."""
        reference.count -= 1
        if not reference.count and reference.slot >= 0:
            self.free.append(reference.slot)
            reference.slot = -1


class MessagePool:
    """The rows in flight of one run, one buffer for each mixing call of a step.

    Args:
        clients: of the run.
        separate_trackers: trackers have slots of their own, and an inbox; else they use those of
            models. Compiled loops use this: it takes less memory.
    """

    def __init__(self, clients: int, separate_trackers: bool) -> None:
        self.clients = clients
        self.separate_trackers = separate_trackers
        self.model_slots = SlotAllocator()
        self.tracker_slots = SlotAllocator()
        self.buffers: dict[int, Tensor] = {}  # (slots, columns) by number of the mixing call
        self.push_calls: list[int] = []  # numbers of the mixing calls that push
        self.inbox: Tensor | None = None  # (clients, columns) trackers of the next activations
        self.in_flight: dict[LinkMessage, None] = {}  # messages to be received, an ordered set

    def update_refcounts(self, batch: ActivationBatch) -> None:
        """Free the slots of rows that no later batch reads; assign slots to rows that one reads.

        Call it once for every batch, after the slots that the batch reads have been noted.
        """
        for receipt in batch.received:
            message = receipt.message
            self.in_flight.pop(message, None)
            self.model_slots.release(message.copy.model)
            was_in_flight = message.copy.batch != batch.number
            if was_in_flight and self._has_tracker_slot(message):
                self.tracker_slots.release(message.copy.tracker)
        for copy in batch.forgotten:
            self.model_slots.release(copy.model)
        for copy in batch.copies:
            if copy.model.count:
                self.model_slots.acquire(copy.model)
        if not batch.partners:  # pairwise exchanges are received at once
            self._add_in_flight(batch)

    def _add_in_flight(self, batch: ActivationBatch) -> None:
        received = {receipt.message for receipt in batch.received}
        for message in batch.messages:
            if message in received:
                continue
            self.in_flight[message] = None
            if self._has_tracker_slot(message):
                tracker = message.copy.tracker
                tracker.count += 1
                if tracker.slot < 0:
                    self.tracker_slots.acquire(tracker)

    def _has_tracker_slot(self, message: LinkMessage) -> bool:
        return self.separate_trackers and not message.uses_inbox

    def buffer(self, call: int, like: Tensor, capacity: int) -> Tensor:
        """(slots, columns) the rows in flight of a mixing call, for at least `capacity` slots."""
        buffer = self.buffers.get(call)
        if buffer is None or len(buffer) < capacity:
            # more than is needed: the operating system assigns no memory to unwritten pages
            larger = like.new_empty(max(2 * capacity, 2 * self.clients), like.shape[1])
            if buffer is not None:
                larger[: len(buffer)] = buffer
            self.buffers[call] = larger
        return self.buffers[call]

    def tracker_mass(self, push_weights: Floats) -> Tensor | None:
        """(columns,) float64, Σ of the trackers in flight; None if none was ever sent.

        Args:
            push_weights: (links,) entries of B.
        """
        if not self.push_calls or self.push_calls[0] not in self.buffers:
            return None
        buffer = self.buffers[self.push_calls[0]]
        total = buffer.new_zeros(1, buffer.shape[1], dtype=torch.float64)
        for message in self.in_flight:
            slot = message.copy.model.slot
            if self.separate_trackers:
                slot = message.copy.tracker.slot
            if not (self.separate_trackers and message.uses_inbox):
                total.add_(buffer[slot], alpha=float(push_weights[message.link]))
        if self.inbox is None:
            return total[0]
        return total[0] + self.inbox.double().sum(0)

    def reset_slots(self, links: LinkQueues) -> None:
        """Free all slots to which no message refers."""
        copies = links.used_copies()
        self.model_slots.reset(copy.model.slot for copy in copies)
        self.tracker_slots.reset(copy.tracker.slot for copy in copies)

    # --- checkpoints -----------------------------------------------------------------------------
    def pack(self) -> dict[str, Tensor]:
        """The contents of the pool, as tensors."""
        used = max(self.model_slots.capacity, self.tracker_slots.capacity)
        tensors = {f"pool/{call}": buffer[:used] for call, buffer in self.buffers.items()}
        if self.inbox is not None:
            tensors["inbox"] = self.inbox
        return tensors

    def unpack(self, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        """Restore what `pack` returned."""
        for name, tensor in tensors.items():
            if name == "inbox":
                self.inbox = tensor.to(device, copy=True)
            if name.startswith("pool/"):
                self.buffers[int(name.removeprefix("pool/"))] = tensor.to(device, copy=True)
