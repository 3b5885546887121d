"""The exchange of a site: takes finished blocks, returns corrections, while training continues.

training thread   submit(block) ▶ … ▶ take_update(): y - c and the neighbours' newest models
exchange thread   received frames ▶ y += mass │ block: c, y, mass on links ▶ commit ▶ send, acknowledge

The node is used by the exchange thread alone. Frames that bring mass are acknowledged after the commit of the
next block, so one commit serves both; a crash before it makes the neighbour send the same total again.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from spodgt.errors import InvalidInput
from spodgt.peer.host.fault_injection import crash_point
from spodgt.peer.process.local_problem import active_links
from spodgt.peer.process.membership import Membership
from spodgt.peer.process.status import Reporter
from spodgt.peer.protocol.node import Node
from spodgt.peer.transport.links import Transport

_WAIT = 0.2  # seconds, the longest pause of the exchange thread
_SEND_AGAIN = 1.0  # seconds between two sends of what is not acknowledged
_COMMIT_SECONDS = 30.0  # received mass is committed after this time, also if no block ends


class Block(NamedTuple):
    """A finished block of local steps."""

    x: Tensor  # (columns,) float32: the model at its end
    gradient: Tensor | None  # (tracked,): mean raw gradient; None: no step was made
    steps: int


class Update(NamedTuple):
    """What the training thread takes over between two steps."""

    correction: Tensor | None  # (tracked,) y - c; None: as before
    models: list[tuple[Tensor, float]]  # rows of neighbours, with the weights a of their links


@dataclass(eq=False)
class Exchange:
    """Owns the node of a site.

    Args:
        tracked: Number of columns that have a tracker.
        alpha: Weight of a block in the contribution: c += alpha (mean gradient - c).
        max_silent_blocks: Blocks without a message after which the site waits; None: it never waits.
        has_model: Whether the model may be sent; False until the common initial model has arrived.
    """

    node: Node
    transport: Transport
    membership: Membership
    reporter: Reporter
    tracked: int
    alpha: float
    max_silent_blocks: int | None
    has_model: bool
    failure: BaseException | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.name = self.membership.identity.name
        self.clock = self.membership.host.clock
        self._changed = threading.Condition()
        self._block: Block | None = None
        self._correction: Tensor | None = None  # new for the training thread
        self._models: dict[str, tuple[Tensor, float]] = {}
        self._halt = False
        self._is_ending = False  # the training has ended
        self._is_waiting = False  # the training thread waits for news
        self._sent_at = -math.inf
        self._committed_at = self.clock.monotonic()
        self._published_method: object = None
        self._publish_correction()

    # --- called from the training thread ---------------------------------------------------------
    def submit(self, block: Block) -> None:
        """Hand over a block; waits while the one before is still being written."""
        with self._changed:
            self._wait_until(lambda: self._block is None)
            self._block = block
        self.node.arrived.set()

    def drain(self, seconds: float = math.inf) -> None:
        """Wait until the last block is committed."""
        with self._changed:
            self._wait_until(lambda: self._block is None, seconds)

    def take_update(self) -> Update | None:
        """What has changed since the last call; None if nothing has."""
        if self.failure is not None:
            self._raise()
        if self._correction is None and not self._models:
            return None
        with self._changed:
            update = Update(self._correction, list(self._models.values()))
            self._correction = None
            self._models = {}
        return update

    @property
    def is_alone(self) -> bool:
        """Whether no message has arrived for so many blocks that the site should wait."""
        limit = self.max_silent_blocks
        state = self.node.state
        if limit is None or not state.into or state.into.keys() <= state.ended:
            return False
        return state.k - state.heard_at >= limit

    def wait_for_news(self) -> None:
        """Wait until a message arrives, if the site has been without one for too many blocks."""
        if not self.is_alone:
            return
        with self._changed:
            self._is_waiting = True
            self.node.arrived.set()
            try:
                self._wait_until(lambda: self._block is None and not self.is_alone)
            finally:
                self._is_waiting = False

    def wait_for_model(self) -> Tensor:
        """(columns,): the first model that a neighbour sends."""
        with self._changed:
            self._is_waiting = True
            try:
                self._wait_until(lambda: bool(self._models))
            finally:
                self._is_waiting = False
            row, _ = next(iter(self._models.values()))
            self._models = {}
        return row

    def _wait_until(self, condition: Callable[[], bool], seconds: float = math.inf) -> None:
        """Wait for a condition under the lock; failures of the exchange thread are raised here."""
        deadline = self.clock.monotonic() + seconds
        while not condition():
            if self.failure is not None:
                self._raise()
            if self._halt or self.clock.monotonic() > deadline:
                return
            self._changed.wait(_WAIT)

    def _raise(self) -> None:
        assert self.failure is not None
        raise self.failure

    def finish(self, seconds: float) -> None:
        """Inform the neighbours that no more blocks follow; waits for their answers, at most `seconds`."""
        self._is_ending = True
        self.node.arrived.set()
        with self._changed:
            self._is_waiting = True
            self._wait_until(lambda: self.node.has_ended and self.node.is_end_known(), seconds)

    def stop(self) -> None:
        """Let `run` return; called from any thread."""
        self._halt = True
        self.node.arrived.set()

    # --- the exchange thread ---------------------------------------------------------------------
    def run(self) -> None:
        """Serve blocks and frames until `stop`; a failure is raised in the training thread."""
        try:
            self._send_unacknowledged()
            while not self._halt:
                self.node.arrived.wait(_WAIT)
                self.node.arrived.clear()
                self.step()
        except BaseException as error:
            self.failure = error
            with self._changed:
                self._changed.notify_all()

    def step(self) -> None:
        """Take over what has arrived and the block that was handed over, if any."""
        if self._follow_manifest():
            return
        node = self.node
        has_frames = bool(node.inbox or node.acks)
        if has_frames:
            self._receive()
        block = self._block
        if block is not None:
            self._end_block(block)
        elif self._is_ending and not node.has_ended:
            node.end()
            self._commit_and_send()
        elif has_frames:
            self._introduce()
            if self._is_waiting or not node.dirty or self._is_commit_due():
                self._commit_and_send()
        elif self.clock.monotonic() - self._sent_at >= _SEND_AGAIN:
            self._send_unacknowledged()
        self._publish_correction()
        if block is not None:
            with self._changed:
                self._block = None
                self._changed.notify_all()
        if self.reporter.due:
            self._report()

    def _receive(self) -> None:
        """Apply received frames; models are kept for the training thread, the newest of each link."""
        for name, received in self.node.absorb().items():
            weight = self.node.state.into[name].weight
            with self._changed:
                self._models[name] = (received.x, weight)
        crash_point("frames taken")

    def _end_block(self, block: Block) -> None:
        """c += alpha (mean - c); y += change of c; mass on the active links; commit; send."""
        node = self.node
        k = node.state.k
        contribution = node.state.method.g[0]
        if block.gradient is not None:
            contribution = contribution.clone()
            contribution[: self.tracked].lerp_(block.gradient.to(contribution.dtype), self.alpha)
        node.end_block(block.x[None], contribution[None], block.steps, self._active_links(k))
        self._commit_and_send()

    def _active_links(self, k: int) -> list[str]:
        """The out-links drawn for block k; all of them in the last block before the site waits."""
        node = self.node
        if not self.has_model:
            return []
        limit = self.max_silent_blocks
        if limit is not None and k + 1 - node.state.heard_at >= limit:
            return list(node.state.out)
        manifest = self.membership.manifest
        probabilities = manifest.probabilities(self.name)
        return active_links(probabilities, manifest.seed, node.member.client_index, k)

    def _introduce(self) -> None:
        """Send the model to receivers that have connected and never had a message."""
        node = self.node
        if not self.has_model:
            return
        new = [name for name in node.confirmed if node.state.out[name].number == 0]
        if new:
            node.put_on_links(new)
            self._commit_and_send()

    def _is_commit_due(self) -> bool:
        return self.clock.monotonic() - self._committed_at >= _COMMIT_SECONDS

    def _commit_and_send(self) -> None:
        pending_acks = self.node.commit()
        self._committed_at = self.clock.monotonic()
        self._send_unacknowledged()
        for source in sorted(pending_acks):
            ack = self.node.ack(source)
            if ack is not None:
                self.transport.send_ack(source, ack)

    def _send_unacknowledged(self) -> None:
        self._sent_at = self.clock.monotonic()
        for target in self.node.state.out:
            message = self.node.message(target)
            if self.node.waits(target) and message is not None:
                self.transport.send_latest(target, message)

    def _publish_correction(self) -> None:
        """Offer y - c to the training thread if it has changed."""
        method = self.node.state.method
        if method is self._published_method:
            return
        self._published_method = method
        correction = torch.sub(method.y[0, : self.tracked], method.g[0, : self.tracked])
        correction = correction.to(method.g.dtype)
        with self._changed:
            self._correction = correction
            self._changed.notify_all()

    def _follow_manifest(self) -> bool:
        """Adopt a newer manifest: other links, a new epoch."""
        node = self.node
        membership = self.membership
        if node.newer_manifest is not None:
            membership.ask(node.newer_manifest, self.transport.loop)
            node.newer_manifest = None
        if membership.left:
            raise InvalidInput(membership.left)
        terms = membership.adopt()
        if terms is None:
            return False
        manifest = terms.manifest
        node.last_epoch = manifest.last_epoch
        node.member = terms.member
        node.relink(terms.seats, manifest.epoch)
        self._commit_and_send()
        self.reporter.journal.event("manifest", f"version {manifest.version}")
        neighbours = manifest.neighbours(self.name)
        self.transport.loop.call_soon_threadsafe(self.transport.relink, *neighbours)
        self._publish_correction()
        return True

    def _report(self) -> None:
        transport = self.transport
        renewed = self.membership.check_folder()
        if renewed is not None:
            transport.loop.call_soon_threadsafe(transport.renew, renewed)
        address = self.membership.manifest.client(self.name).address
        if address != transport.address:
            asyncio.run_coroutine_threadsafe(transport.move(address), transport.loop)
        self.reporter.status.waiting = self._is_waiting
        self.reporter.status.days_left = self.membership.days_left
        self.reporter.report()

