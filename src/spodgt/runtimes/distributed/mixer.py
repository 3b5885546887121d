"""Mixing across processes: rows of active links are sent in messages.

The state fields that a method mixes unchanged (`Traits.mixed_fields`) are sent in one message at
the start of the step. A tensor that the method computes is sent when the method mixes it. All
processes make the same calls in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms.compose.codecs import Codec, IntervalQuantizer
from spodgt.kernels.steps import State
from spodgt.runtimes.batch import MixingMatrix
from spodgt.runtimes.batch_round import RoundLinks
from spodgt.runtimes.distributed.client_blocks import ClientBlock
from spodgt.runtimes.distributed.messages import (
    FieldKey,
    Messenger,
    MixedTensor,
    PendingMessage,
)
from spodgt.types import ActiveLinks, Bools, Ints


class RoundMessages:
    """The messages of one round of a block.

    Args:
        k: number of the round.
        active: active links of the batch.
        block: the clients of this process.
        messenger: to the other processes.
        fields: the state fields that every step mixes unchanged.
    """

    def __init__(
        self,
        k: int,
        active: ActiveLinks,
        block: ClientBlock,
        messenger: Messenger,
        fields: tuple[FieldKey, ...],
    ) -> None:
        self.k = k
        self.messenger = messenger
        self.fields = fields
        pull = block.traffic(active.pull)
        push = pull
        if active.push is not None and not np.array_equal(active.push, active.pull):
            push = block.traffic(active.push)
        self.traffic = {"pull": pull, "push": push}
        self.sent_fields: dict[FieldKey, Tensor] = {}  # at the start of the step, in one message
        self.field_messages: dict[int, PendingMessage] = {}  # with these fields
        self.pending: list[PendingMessage] = []
        self.calls = 0  # mixing calls so far

    def send_fields(self, state: State, names: tuple[str, ...]) -> None:
        """Before the step: send the fields that it mixes unchanged.

        Args:
            state: the state.
            names: of its fields.
        """
        tensors = dict(zip(names, state, strict=True))
        for key in self.fields:
            if key.field is not None and tensors[key.field].dtype == state[0].dtype:
                self.sent_fields[key] = tensors[key.field]
        self.field_messages = self._send(0, self.sent_fields)
        self.pending.extend(self.field_messages.values())

    def send(
        self, x: Tensor, kind: str, packed: Tensor | None = None
    ) -> tuple[FieldKey, dict[int, PendingMessage]]:
        """Send x, unless it was sent at the start of the step.

        Args:
            x: (clients of the block, columns).
            kind: "pull" or "push", the links.
            packed: (clients of the block, bytes) the compressed form to send instead.

        Returns:
            The key of x in its messages, and these by rank.
        """
        self.calls += 1
        key = self._find_sent_field(x, kind)
        if key is not None:
            return key, self.field_messages
        key = FieldKey(kind, None)
        messages = self._send(self.calls, {key: x if packed is None else packed})
        self.pending.extend(messages.values())
        return key, messages

    def close(self) -> None:
        """After the step: wait for the messages."""
        for message in self.pending:
            message.close()

    def _send(self, call: int, tensors: Mapping[FieldKey, Tensor]) -> dict[int, PendingMessage]:
        items = []
        for key, tensor in tensors.items():
            items.append(MixedTensor(key, tensor, self.traffic[key.kind]))
        return self.messenger.send_receive(self.k, call, items)

    def _find_sent_field(self, x: Tensor, kind: str) -> FieldKey | None:
        """The state field that is x, if it was sent at the start of the step.

        A method that mixes a field unchanged passes the same tensor object.
        """
        for key, tensor in self.sent_fields.items():
            if tensor is x and key.kind == kind:
                return key
        return None


@dataclass(eq=False)
class MessageMixer:
    """The `Mixer` of one round of a block."""

    links: RoundLinks
    block: ClientBlock
    messages: RoundMessages

    def mix(
        self, x: Tensor, matrix: MixingMatrix, active: Bools, codec: Codec | None = None
    ) -> Tensor:
        kind = "push" if matrix is MixingMatrix.PUSH else "pull"
        packed = None if codec is None else codec.pack(x)
        key, messages = self.messages.send(x, kind, packed)
        weights = self.links.weights(matrix)
        # While the messages are in flight:
        out = self.block.mix_inner(x, weights, active, self.links.keepers(matrix))
        for peer, clients in self.messages.traffic[kind].receives.items():
            rows = messages[peer].rows(key)
            if codec is not None:
                rows = codec.unpack(rows, x.shape[1], x.dtype)
            self.block.add_received(out, rows, clients, weights, active)
        return out

    def mix_differences(self, x: Tensor, active: Bools) -> Tensor:
        key, messages = self.messages.send(x, "pull")
        weights = self.links.weights(MixingMatrix.GOSSIP)
        out = self.block.mix_inner_differences(x, weights, active)
        for peer, clients in self.messages.traffic["pull"].receives.items():
            rows = messages[peer].rows(key)
            self.block.add_received(out, rows, clients, weights, active, subtract=x)
        return out

    def share_packed(self, x: Tensor, codec: IntervalQuantizer) -> tuple[Tensor, Ints]:
        packed = [codec.pack(x)]
        key, messages = self.messages.send(packed[0], "pull")
        index = self.block.row.copy()
        count = len(x)
        for peer, clients in self.messages.traffic["pull"].receives.items():
            index[clients] = count + np.arange(len(clients))
            packed.append(messages[peer].rows(key))
            count += len(clients)
        return torch.cat(packed), index

    def average(self, x: Tensor) -> Tensor:
        held = self.links.held
        sums = torch.stack([rows.sum(0) for rows in held.split(x)])
        clients = torch.tensor(held.batch.sizes, device=x.device)[:, None]
        means = self.messages.messenger.group.sum(sums) / clients
        return means.to(x.dtype).repeat_interleave(torch.tensor(held.sizes, device=x.device), 0)
