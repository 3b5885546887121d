"""Messages between processes: rows of several tensors packed into one buffer per pair of processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spodgt.runtimes.distributed.client_blocks import Traffic, spans
from spodgt.runtimes.distributed.process_group import Group, Work
from spodgt.types import Ints

Key = tuple[
    str, str | None
]  # over which links, and which field of the state; None for what is derived
_TAGS = 16  # per round: a message meets only its own counterpart, so a slip is a time-out and not garbage


@dataclass(frozen=True, eq=False)
class Item:
    """A tensor that is mixed over one kind of links."""

    key: Key
    tensor: Tensor
    traffic: Traffic


@dataclass(eq=False)
class Parcel:
    """One message to a process, one from it, or both."""

    mail: Mail
    received: Tensor
    places: dict[Key, tuple[int, int, int]]  # where in it: offset, rows, columns
    buffers: list[Tensor]
    sending: list[Work] = field(default_factory=list)
    receiving: list[Work] = field(default_factory=list)

    def rows(self, key: Key) -> Tensor:
        """The rows that came for this tensor; waits for them."""
        self._wait(self.receiving)
        offset, rows, columns = self.places[key]
        return self.received[offset : offset + rows * columns].view(rows, columns)

    def close(self) -> None:
        """Wait for everything; the buffers may then be used again."""
        self._wait(self.sending)
        self._wait(self.receiving)
        self.mail.free.extend(self.buffers)
        self.buffers = []

    @staticmethod
    def _wait(works: list[Work]) -> None:
        while works:
            works.pop().wait()


@dataclass(frozen=True, eq=False)
class Flight:
    """Messages of round k that left in the round before, all of them rows of `x`."""

    k: int
    x: Tensor
    parcels: dict[int, Parcel]


@dataclass(eq=False)
class Mail:
    """Packs and sends rows between processes, and counts what it sent."""

    group: Group
    overlap: bool = True  # send the models of the next round while gradients are computed
    flight: Flight | None = None
    free: list[Tensor] = field(default_factory=list)
    bytes: int = 0
    messages: int = 0

    def post(self, k: int, part: int, items: Sequence[Item]) -> dict[int, Parcel]:
        """Send and receive all `items` at once; `part` numbers the messages of a round."""
        parcels, sends, receives = {}, [], []
        for peer in sorted({peer for item in items for peer in item.traffic.peers}):
            out = [
                (item.tensor, item.traffic.sends[peer])
                for item in items
                if peer in item.traffic.sends
            ]
            places, size = {}, 0
            for item in items:
                if peer in item.traffic.receives:
                    rows, columns = len(item.traffic.receives[peer]), item.tensor.shape[1]
                    places[item.key] = (size, rows, columns)
                    size += rows * columns
            like, buffers = items[0].tensor, []
            if size:
                buffers.append(self._buffer(size, like))
                receives.append((peer, buffers[0][:size]))
            if out:
                message = self._pack(out, buffers)
                sends.append((peer, message))
                self.bytes += message.numel() * message.element_size()
                self.messages += 1
            parcels[peer] = Parcel(self, buffers[0] if size else like[:0], places, buffers)
        works = self.group.post(sends, receives, _TAGS * (1 + k % 2**20) + part)
        for (peer, _), work in zip(sends, works, strict=False):
            parcels[peer].sending.append(work)
        for (peer, _), work in zip(receives, works[len(sends) :], strict=True):
            parcels[peer].receiving.append(work)
        return parcels

    def _pack(self, pieces: list[tuple[Tensor, Ints]], buffers: list[Tensor]) -> Tensor:
        tensor, rows = pieces[0]
        span = spans(rows)
        if len(pieces) == 1 and span is not None and tensor.is_contiguous():
            return tensor[span].view(-1)  # as it lies there: states are never written to
        buffer = self._buffer(sum(len(rows) * tensor.shape[1] for tensor, rows in pieces), tensor)
        buffers.append(buffer)
        at = 0
        for tensor, rows in pieces:
            end = at + len(rows) * tensor.shape[1]
            place, span = buffer[at:end].view(len(rows), -1), spans(rows)
            if span is not None:
                place.copy_(tensor[span])
            else:
                torch.index_select(tensor, 0, torch.from_numpy(rows).to(tensor.device), out=place)
            at = end
        return buffer[:at]

    def _buffer(self, size: int, like: Tensor) -> Tensor:
        """The smallest free buffer that is large enough, or a new one."""
        fits = [n for n, b in enumerate(self.free) if b.numel() >= size and b.dtype == like.dtype]
        if fits:
            return self.free.pop(min(fits, key=lambda n: self.free[n].numel()))
        self.free = self.free[-2 * self.group.size :]  # sizes have grown: let the old ones go
        return torch.empty(size, dtype=like.dtype, device=like.device)

    # --- early messages --------------------------------------------------------------------------
    def take(self, k: int) -> dict[int, Parcel] | None:
        """The messages of round k, if they left early."""
        flight, self.flight = self.flight, None
        if flight is not None and flight.k == k:
            return flight.parcels
        self._close(flight)
        return None

    def check(self, x: Tensor) -> None:
        """After a step: what left early must be the x that it returned, else nothing leaves early again."""
        if self.flight is not None and self.flight.x is not x:
            self.overlap = False
            self.drain()

    def drain(self) -> None:
        """Wait for messages that nobody needs any more; the other side does the same."""
        flight, self.flight = self.flight, None
        self._close(flight)

    @staticmethod
    def _close(flight: Flight | None) -> None:
        for parcel in flight.parcels.values() if flight else ():
            parcel.close()
