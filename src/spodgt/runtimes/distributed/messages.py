"""Messages between processes: rows of several tensors in one buffer per pair of processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from spodgt.runtimes.distributed.client_blocks import BlockTraffic, as_slice
from spodgt.runtimes.distributed.process_group import Group, PendingTransfer, Transfer
from spodgt.types import Ints

_TAGS = 16  # per round: messages of different calls cannot be confused


class FieldKey(NamedTuple):
    """A tensor that is mixed."""

    kind: str  # "pull" or "push": the links
    field: str | None  # name in the state; None: computed by the method


@dataclass(frozen=True, eq=False)
class MixedTensor:
    """A tensor whose rows are sent over links."""

    key: FieldKey
    tensor: Tensor
    traffic: BlockTraffic


class Rows(NamedTuple):
    """Rows of one tensor in a flat buffer."""

    offset: int
    rows: int
    columns: int


@dataclass(eq=False)
class PendingMessage:
    """The messages of one call to and from another process."""

    messenger: Messenger
    received: Tensor
    layout: dict[FieldKey, Rows]  # of `received`
    buffers: list[Tensor]
    sends: list[PendingTransfer] = field(default_factory=list)
    receives: list[PendingTransfer] = field(default_factory=list)

    def rows(self, key: FieldKey) -> Tensor:
        """Wait for the message; returns the rows received for a tensor."""
        self._wait(self.receives)
        place = self.layout[key]
        end = place.offset + place.rows * place.columns
        return self.received[place.offset : end].view(place.rows, place.columns)

    def close(self) -> None:
        """Wait for all transfers; the buffers may be used again."""
        self._wait(self.sends)
        self._wait(self.receives)
        self.messenger.free_buffers.extend(self.buffers)
        self.buffers = []

    @staticmethod
    def _wait(works: list[PendingTransfer]) -> None:
        while works:
            works.pop().wait()


@dataclass(eq=False)
class Messenger:
    """Sends and receives rows between processes, and counts what it sent."""

    group: Group
    free_buffers: list[Tensor] = field(default_factory=list)
    bytes: int = 0
    messages: int = 0

    def send_receive(
        self, k: int, call: int, tensors: Sequence[MixedTensor]
    ) -> dict[int, PendingMessage]:
        """Start to send and receive rows of all `tensors`, one message per pair of processes.

        Args:
            k: number of the round.
            call: number of the call in the round.
            tensors: of the same type.

        Returns:
            The messages by rank of the other process; every one must be closed.
        """
        messages: dict[int, PendingMessage] = {}
        sends: list[Transfer] = []
        receives: list[Transfer] = []
        peers: set[int] = set()
        for item in tensors:
            peers |= item.traffic.sends.keys() | item.traffic.receives.keys()
        for peer in sorted(peers):
            message = self._allocate(peer, tensors)
            messages[peer] = message
            if len(message.received):
                receives.append(Transfer(peer, message.received))
            outgoing = [item for item in tensors if peer in item.traffic.sends]
            if outgoing:
                packed = self._pack(peer, outgoing, message.buffers)
                sends.append(Transfer(peer, packed))
                self.bytes += packed.numel() * packed.element_size()
                self.messages += 1
        started = self.group.start_transfers(sends, receives, _TAGS * (1 + k % 2**20) + call)
        for work in started.sends:
            messages[work.peer].sends.append(work)
        for work in started.receives:
            messages[work.peer].receives.append(work)
        return messages

    def _allocate(self, peer: int, tensors: Sequence[MixedTensor]) -> PendingMessage:
        """A message with a buffer for what `peer` sends."""
        layout: dict[FieldKey, Rows] = {}
        size = 0
        for item in tensors:
            if peer in item.traffic.receives:
                rows = Rows(size, len(item.traffic.receives[peer]), item.tensor.shape[1])
                layout[item.key] = rows
                size += rows.rows * rows.columns
        like = tensors[0].tensor
        if not size:
            return PendingMessage(self, like.new_empty(0), layout, [])
        buffer = self._buffer(size, like)
        return PendingMessage(self, buffer[:size], layout, [buffer])

    def _pack(self, peer: int, tensors: Sequence[MixedTensor], buffers: list[Tensor]) -> Tensor:
        """The rows for `peer` as one flat tensor; a new buffer is added to `buffers`."""
        first = tensors[0]
        span = as_slice(first.traffic.sends[peer])
        if len(tensors) == 1 and span is not None and first.tensor.is_contiguous():
            return first.tensor[span].view(-1)  # without a copy: states are never written to
        size = sum(len(item.traffic.sends[peer]) * item.tensor.shape[1] for item in tensors)
        buffer = self._buffer(size, first.tensor)
        buffers.append(buffer)
        start = 0
        for item in tensors:
            rows = item.traffic.sends[peer]
            end = start + len(rows) * item.tensor.shape[1]
            _copy_rows(item.tensor, rows, buffer[start:end].view(len(rows), -1))
            start = end
        return buffer[:size]

    def _buffer(self, size: int, like: Tensor) -> Tensor:
        """The smallest free buffer that is large enough, or a new one."""
        sizes = {}
        for index, buffer in enumerate(self.free_buffers):
            if buffer.numel() >= size and buffer.dtype == like.dtype:
                sizes[index] = buffer.numel()
        if sizes:
            return self.free_buffers.pop(min(sizes, key=sizes.__getitem__))
        self.free_buffers = self.free_buffers[-2 * self.group.size :]  # others are too small
        return torch.empty(size, dtype=like.dtype, device=like.device)


def _copy_rows(tensor: Tensor, rows: Ints, out: Tensor) -> None:
    span = as_slice(rows)
    if span is not None:
        out.copy_(tensor[span])
    else:
        torch.index_select(tensor, 0, torch.from_numpy(rows).to(tensor.device), out=out)
