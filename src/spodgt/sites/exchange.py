"""The exchange of a site: takes finished blocks, returns corrections, while training continues.

    received frames ▶ y += mass │ block: c, y, mass on links ▶ commit ▶ send, acknowledge

The node is used by the exchange thread alone. Frames that bring mass are acknowledged after the
commit of the next block, so one commit serves both; a crash before it makes the neighbour send the
same total again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spodgt.peer.host.fault_injection import crash_point
from spodgt.peer.process.link_schedule import active_links
from spodgt.peer.process.membership import Membership
from spodgt.peer.process.publisher import Publisher
from spodgt.peer.process.status import Reporter
from spodgt.peer.process.upkeep import Upkeep
from spodgt.peer.protocol.node import Node
from spodgt.peer.storage.state_store import DiskStateStore
from spodgt.peer.transport.links import Transport
from spodgt.sites.handover import Block, Handover, ReceivedModel, TrackerAndContribution
from spodgt.tensors import slices

MODEL = "initial model"  # label of a state: whose initial model it holds
COMMON = "common"
AWAITED = "awaited"
_WAIT = 0.2  # seconds, the longest pause of the exchange thread
_COMMIT_SECONDS = 30.0  # received mass is committed after this time, also if no block ends


@dataclass(frozen=True)
class ExchangeOptions:
    """How blocks are exchanged.

    Args:
        alpha: Weight of a block in the contribution: c += alpha (mean gradient - c).
        max_silent_blocks: Blocks without a message after which the site waits; None: it never
            waits.
    """

    alpha: float = 1.0
    max_silent_blocks: int | None = 10


@dataclass(eq=False)
class Exchange:
    """Owns the node of a site; `run` is the exchange thread.

    Args:
        handover: To and from the training thread.
        store: Of the node; one of its labels is whether the initial model is that of the run.
    """

    node: Node
    transport: Transport
    membership: Membership
    reporter: Reporter
    handover: Handover
    options: ExchangeOptions
    store: DiskStateStore

    def __post_init__(self) -> None:
        self.name = self.membership.identity.name
        self.publisher = Publisher(self.node, self.transport)
        self.sender = Sender(self.node, self.publisher)
        self.upkeep = Upkeep(self.node, self.transport, self.membership, self.reporter.journal)
        self._postponed: set[str] = set()  # links of the last block whose receivers were away
        self._published: object = None  # the state of the method that the training thread has
        self._publish_correction()

    @property
    def is_alone(self) -> bool:
        """Whether no message has arrived for so many blocks that the site should wait."""
        limit = self.options.max_silent_blocks
        state = self.node.state
        if limit is None or not state.into or state.into.keys() <= state.ended:
            return False
        return state.k - state.last_received_round >= limit

    @property
    def has_common_model(self) -> bool:
        """Whether the initial model of the run has arrived, or need not; else nothing is sent."""
        return self.store.labels[MODEL] == COMMON

    def run(self) -> None:
        """Serve blocks and frames until the handover is stopped; failures go to the training
        thread.

        A block that was handed over before is committed first.
        """
        try:
            self.publisher.send_unacknowledged()
            handover = self.handover
            while not handover.is_stopped or handover.block is not None:
                self.node.inbox.arrived.wait(_WAIT)
                self.node.inbox.arrived.clear()
                self.step()
        except BaseException as error:
            self.handover.fail(error)

    def step(self) -> None:
        """Apply received frames, then the block that was handed over, if there is one."""
        if not self.handover.is_correction_in_use:
            self.node.tracker_in_use = None  # it may be changed in place
        if self._follow_manifest():
            return
        has_frames = bool(self.node.inbox)
        if has_frames:
            self._receive()
        if self.handover.block is not None:
            self._end_block(self.handover.block)
        elif self.handover.is_ending and not self.node.has_ended:
            self.node.announce_end()
            self.sender.commit_and_send()
        elif has_frames:
            self._answer()
        else:
            self.publisher.send_again()
        if self._postponed:
            self._use_postponed_links()
        self._publish_correction()
        if self.reporter.due:
            self._report()

    def _receive(self) -> None:
        """Apply received frames; the newest model of each link is kept for the training thread."""
        for name, received in self.node.apply_received().items():
            if not self.has_common_model:
                self._take_initial_model(received.message.x)
                continue
            weight = self.node.state.into[name].weight
            model = ReceivedModel(received.message.x, weight, received.message.half_width)
            self.handover.offer_model(name, model)
        crash_point("frames taken")

    def _answer(self) -> None:
        """After frames between two blocks: send the model to new receivers, commit if it is due.

        Received mass may wait for the commit of the next block, unless the training thread waits.
        """
        if self.has_common_model:
            self.sender.introduce()
        has_nothing_to_write = not self.node.dirty
        if self.handover.is_waiting or has_nothing_to_write or self.sender.is_commit_due():
            self.sender.commit_and_send()

    def _take_initial_model(self, row: Tensor) -> None:
        """Begin from a neighbour's model; it is committed with the message that has brought it."""
        node = self.node
        method = node.state.method._replace(x=row[None])
        node.state = node.state._replace(method=method)
        node.dirty.add("x")
        self.store.labels[MODEL] = COMMON
        self.handover.offer_initial_model(row)

    def _end_block(self, block: Block) -> None:
        """c += alpha (mean - c); y += change of c; mass on the active links; commit; send.

        Then the next block may be handed over.
        """
        node = self.node
        k = node.state.k
        contribution = node.state.method.g
        if block.gradient is not None:
            contribution = self._contribution(block.gradient)
        node.end_block(block.x[None], contribution, block.steps, self._active_links(k))
        self.sender.commit_and_send()
        self._publish_correction()  # before the training thread continues
        self.handover.finish_block()

    def _contribution(self, gradient: Tensor) -> Tensor:
        """c + alpha (gradient - c), (1, columns), in the place of the gradient."""
        if self.options.alpha < 1:
            before = self.node.state.method.g[0]
            for part in slices(len(gradient)):
                torch.lerp(before[part], gradient[part], self.options.alpha, out=gradient[part])
        return gradient[None]

    def _active_links(self, k: int) -> list[str]:
        """The out-links drawn for block k; all of them in the last block before the site waits.

        Links whose receivers are not connected are postponed. Mass on them would be missing in the
        sum of the trackers of all others until the receiver returns.
        """
        node = self.node
        if not self.has_common_model:
            return []
        limit = self.options.max_silent_blocks
        if limit is not None and k + 1 - node.state.last_received_round >= limit:
            drawn = list(node.state.out)
        else:
            manifest = self.membership.manifest
            probabilities = manifest.probabilities(self.name)
            drawn = active_links(probabilities, manifest.seed, node.member.client_index, k)
        connected = self.transport.connected()
        self._postponed = {name for name in drawn if name not in connected}
        return [name for name in drawn if name in connected]

    def _use_postponed_links(self) -> None:
        """Use links whose receivers have returned; a site that waits ends no block to do it."""
        node = self.node
        returned = self._postponed & self.transport.connected() & node.handshaken
        if returned and not node.has_ended:
            self._postponed -= returned
            node.put_on_links(sorted(returned))
            self.sender.commit_and_send()

    def _publish_correction(self) -> None:
        """Offer y - c to the training thread if it has changed."""
        method = self.node.state.method
        if method is self._published:
            return
        self.node.tracker_in_use = method.y
        self.handover.offer_correction(TrackerAndContribution(method.y[0], method.g[0]))
        self._published = method

    def _follow_manifest(self) -> bool:
        """Adopt a newer manifest, if there is one."""
        if self.upkeep.adopt_manifest() is None:
            return False
        self.sender.commit_and_send()
        self._publish_correction()
        return True

    def _report(self) -> None:
        self.upkeep.check()
        self.reporter.status.waiting = self.handover.is_waiting
        self.reporter.status.days_left = self.membership.certificate.days_left
        self.reporter.report()


class Sender:
    """Commits the state of a node, then sends."""

    def __init__(self, node: Node, publisher: Publisher) -> None:
        self.node = node
        self.publisher = publisher
        self._committed_at = publisher.clock.monotonic()

    def introduce(self) -> None:
        """Send the model to receivers that have connected and never had a message."""
        node = self.node
        new = [name for name in node.handshaken if node.state.out[name].number == 0]
        if new:
            node.put_on_links(new)
            self.commit_and_send()

    def is_commit_due(self) -> bool:
        """Whether received mass has waited for its commit for long."""
        return self.publisher.clock.monotonic() - self._committed_at >= _COMMIT_SECONDS

    def commit_and_send(self) -> None:
        """Commit, then send what is not acknowledged, and acknowledge what was received."""
        pending_acks = self.node.commit()
        self._committed_at = self.publisher.clock.monotonic()
        self.publisher.send_committed(pending_acks)
