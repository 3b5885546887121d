"""One client: the method's state and its links, advanced one local round at a time.

A node has no socket, file or clock. Its caller passes frames in (`receive`), makes local rounds
(`advance`) and makes them durable (`commit`). Only what is committed is ever sent (`message`, `ack`), so a
crash may lose any computation: nothing that was derived from it has left the process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, TrackingState
from spodgt.errors import Failed
from spodgt.peer.host.events import Notify
from spodgt.peer.protocol import client_state, running_sums
from spodgt.peer.protocol.client_state import Gradient, Member, Received, State
from spodgt.peer.protocol.epoch_limit import EpochRateLimiter
from spodgt.peer.protocol.epoch_topology import EpochTopology
from spodgt.peer.protocol.frame_processing import FrameProcessor
from spodgt.peer.protocol.inbox import Frame, Inbox
from spodgt.peer.protocol.method_step import MethodStep
from spodgt.peer.protocol.outlier_detection import LinkOutliers, distance
from spodgt.peer.protocol.running_sums import Ack, Incarnation, Mass, Message
from spodgt.tensors import NewRow, is_finite, new_row, norm, slices

REBASE_EVERY = 64  # messages after which a quiet link starts from zero
REBASE_QUANTIZED = 4  # the same for int8 totals: the smaller they are, the finer the quantization
HOLD = 4  # unacknowledged messages after which a link gets no more mass: its receiver may be down
_HOLD_FACTOR = 4  # times `rebase_every` messages without a rebase: then a busy link gets no mass


class StateStore(Protocol):
    """Stores committed states."""

    def commit(self, vectors: Mapping[str, Tensor], meta: Mapping[str, object]) -> None:
        """Make all of it durable, or raise and leave the last commit in place."""
        ...


class Node:
    """One client of a run.

    Args:
        algorithm: The method.
        gradient: Of the client's loss.
        store: Of committed states.
        incarnation: Of this process.
        state: The committed state with which the process starts.
        topology: Roles of all clients under the manifest.
        member: The client's place in the run.
        quantized: Messages have 8 bits per number.
        rebase_every: Messages after which a quiet link starts from zero; None: `REBASE_EVERY`, or
            `REBASE_QUANTIZED` with `quantized`.
        notify: Records events.
    """

    def __init__(
        self,
        algorithm: Algorithm[TrackingState],
        gradient: Gradient,
        store: StateStore,
        *,
        incarnation: Incarnation,
        state: State,
        topology: EpochTopology,
        member: Member = Member(),  # noqa: B008
        quantized: bool = False,
        rebase_every: int | None = None,
        notify: Notify = lambda kind, text, subject="": None,
    ) -> None:
        self.store = store
        self.new_row: NewRow = new_row  # makes the vectors of the next state
        self.incarnation = incarnation
        self.state = state
        self.topology = topology
        self.role = topology.role
        self.member = member._replace(step_weight=self.role.step_weight)
        self.quantized = quantized
        self.rebase_every = rebase_every or (REBASE_QUANTIZED if quantized else REBASE_EVERY)
        self.notify = notify
        self.inbox = Inbox()
        self.frames = FrameProcessor(self)
        self.handshaken: set[str] = set()  # out-links whose receiver has met this incarnation
        self.pending_acks: set[str] = set()  # in-links to acknowledge after the next commit
        self.dirty: set[str] = set()  # vectors that the next commit writes
        self._changing: Tensor | None = None  # the tracker, if it was made since the last commit
        self.tracker_in_use: Tensor | None = None  # one that another thread reads
        self.committed = state  # the only state that frames are made of
        self.committed_incarnation = incarnation
        self.has_ended = False  # all rounds were made; a flag of this epoch's messages
        self.last_epoch = 2**62  # of the manifest in force
        self.newer_manifest: str | None = None  # a neighbour that has one
        self.epoch_limiter = EpochRateLimiter()
        self.outliers = LinkOutliers()
        self.method_step = MethodStep(gradient, notify)
        self.use_algorithm(algorithm)

    def use_algorithm(self, algorithm: Algorithm[TrackingState]) -> None:
        """Make the next steps by this method; fields of its state that are missing begin anew."""
        state = self.state
        more = self.method_step.use_algorithm(algorithm, state, self.member)
        if more.keys() != state.more.keys():
            self.state = state._replace(more=more)
            self.dirty |= {f"more:{name}" for name in more}

    # --- frames ------------------------------------------------------------------------------------
    def receive(self, name: str, frame: Frame) -> None:
        """Keep a frame for the next round; safe to call from any thread."""
        self.inbox.add(name, frame)

    def message(self, name: str) -> Message | None:
        """The newest committed message of an out-link; None if there is no such link."""
        state = self.committed
        link = state.out.get(name)
        if link is None:
            return None
        return Message(
            epoch=state.epoch,
            number=link.number,
            base=link.base,
            acked=link.acked,
            sender=self.committed_incarnation,
            seen=link.seen,
            x=state.method.x[0],
            total=link.total,
            root=self.topology.root_index,
            has_ended=self.has_ended,
        )

    def has_unacknowledged(self, name: str) -> bool:
        """Whether a message of an out-link is unacknowledged, or its receiver is not handshaken."""
        link = self.committed.out.get(name)
        return link is not None and (link.acked < link.number or name not in self.handshaken)

    def ack(self, name: str) -> Ack | None:
        """The committed acknowledgement of an in-link; None if there is no such link."""
        link = self.committed.into.get(name)
        if link is None:
            return None
        return Ack(
            epoch=self.committed.epoch,
            number=link.number,
            sender=self.committed_incarnation,
            seen=link.seen,
            root=self.topology.root_index,
            has_ended=self.has_ended,
        )

    # --- one local round -----------------------------------------------------------------------------
    def advance(self, computes: bool, links: Iterable[str]) -> None:
        """Make a local round: apply received frames, step, put mass on links; all before `commit`.

        Args:
            computes: Whether the client computes a gradient.
            links: Out-links that are active in this round.
        """
        growth_before = self.outliers.neighbour_growth
        received = self.apply_received()
        state = self.state
        x = state.method.x[0]
        models = {name: each.message.model(x) for name, each in received.items()}
        result = self.method_step.step(state, self.member, computes, models)
        method, more = client_state.to_tracking_state(result.state)
        # the model has grown by the own step as far as it has not by the neighbours' models
        growth_by_neighbours = self.outliers.neighbour_growth - growth_before
        self.outliers.own_growth += norm(method.x) - norm(state.method.x) - growth_by_neighbours
        self.dirty |= {"x", "y", "g", "private", *(f"more:{name}" for name in more)}
        self._changing = None  # the method may hold the tracker twice
        self.state = state._replace(
            k=state.k + 1,
            method=method,
            gradients=state.gradients + int(result.computed),
            more=more,
            private=result.private,
        )
        self.put_on_links(links)

    def end_block(self, x: Tensor, g: Tensor, steps: int, links: Iterable[str]) -> None:
        """Take over model and contribution after a block of local steps that were made elsewhere.

        The tracker changes by as much as the contribution. Then mass is put on the active out-links.

        Args:
            x: (1, n) float32, the model.
            g: (1, n), the contribution.
            steps: Number of local steps.
            links: Out-links that are active after this block.
        """
        before = self.state.method.g
        if g is not before:
            self._add_to_tracker([Mass(g[0], before[0])])
            self.dirty.add("g")
        self.dirty.add("x")
        state = self.state
        self.state = state._replace(
            k=state.k + 1,
            method=state.method._replace(x=x, g=g),
            gradients=state.gradients + steps,
        )
        self.put_on_links(links)

    def _add_to_tracker(self, masses: Sequence[Mass], sign: float = 1.0) -> None:
        """Add masses to the tracker, in place if it is of no commit and read by no other thread."""
        method = self.state.method
        target = self._changing if self._changing is method.y else None
        if target is self.tracker_in_use:
            target = None
        y = self.sum_of(method.y, masses, sign, target)
        self._changing = y
        self.state = self.state._replace(method=method._replace(y=y))
        self.dirty.add("y")

    def sum_of(
        self, row: Tensor, masses: Sequence[Mass], sign: float, target: Tensor | None = None
    ) -> Tensor:
        """(1, n) float64: row + sign * the sum of the masses, in `target` or in a new row."""
        n = row.shape[1]
        if target is None:
            target = self.new_row(n, torch.float64)[None]
        for part in slices(n):
            change = masses[0].part(part)
            for mass in masses[1:]:
                change += mass.part(part)
            torch.add(row[0, part], change, alpha=sign, out=target[0, part])
        return target

    def put_on_links(self, links: Iterable[str]) -> None:
        """Move mass from the tracker to those out-links that accept it now."""
        used_links = [name for name in links if self._can_add_mass(name)]
        if not used_links:
            return
        y = self.state.method.y[0]
        out = dict(self.state.out)
        masses = []
        for name in used_links:
            out[name], mass = running_sums.add_mass(out[name], y, self.quantized, self.new_row)
            masses.append(mass)
            self.dirty.add(f"out:{name}")
        self.state = self.state._replace(out=out)
        self._add_to_tracker(masses, -1.0)

    def _can_add_mass(self, name: str) -> bool:
        """Whether the receiver of an out-link is up and has acknowledged most messages (backpressure)."""
        link = self.state.out.get(name)
        if link is None or name not in self.role.used_out or name not in self.handshaken:
            return False
        if name in self.state.ended or link.number - link.acked >= HOLD:
            return False
        if not self._has_current_model():
            return False
        return link.number - link.base < _HOLD_FACTOR * self.rebase_every

    def _has_current_model(self) -> bool:
        """Whether the own model may be sent: with a root, the model of this epoch has arrived from it."""
        if self.role.step_weight > 0:
            return not self.state.is_outdated
        into = self.state.into
        return any(into[name].number for name, weight in self.role.into.items() if weight)

    def apply_received(self) -> dict[str, Received]:
        """Apply the frames that have arrived, without a step: their mass is added to the tracker.

        Returns:
            New models and mass by in-link.
        """
        received = self.frames.process(self.inbox.take_all())
        if not received:
            return received
        self._check_outliers(received)
        self._add_to_tracker([each.mass for each in received.values()])
        self.state = self.state._replace(last_received_round=self.state.k)
        return received

    def _check_outliers(self, received: Mapping[str, Received]) -> None:
        """Log messages that are far larger than usual, and note how they lengthen the own model."""
        x, _, g = self.state.method
        own_norms = (norm(g), norm(x))
        for name, each in received.items():
            difference = distance(each.message, x[0])
            detector = self.outliers.detector(name)
            detector.note_round(self.state.k)
            for sentence in detector.check(each.mass.norm(), difference.norm, own_norms):
                self.notify("suspicious", sentence, name)
            detector.growth += self.state.into[name].weight * difference.growth

    def commit(self) -> set[str]:
        """Make the state durable, so that frames can be made of it.

        Returns:
            The in-links to acknowledge now.

        Raises:
            Failed: A vector is not finite; nothing of it was committed.
        """
        vectors = client_state.vectors_of(self.state)
        changed = {name: vector for name, vector in vectors.items() if name in self.dirty}
        for name, vector in changed.items():
            if not is_finite(vector):
                raise Failed(
                    f"{name} is not finite in round {self.state.k}; nothing of it was committed or sent. "
                    "Use a smaller step size, or remove the neighbour that the log calls suspicious."
                )
        self.store.commit(changed, client_state.meta_of(self.state, self.incarnation))
        self.committed = self.state
        self.committed_incarnation = self.incarnation
        self.dirty = set()
        self._changing = None
        pending_acks = self.pending_acks & self.state.into.keys()
        self.pending_acks = set()
        return pending_acks

    def mark_all_dirty(self) -> None:
        """Let the next commit write every vector."""
        self.dirty = set(client_state.vectors_of(self.state))

    # --- epochs ------------------------------------------------------------------------------------
    def begin_epoch(self, epoch: int) -> None:
        """Begin an epoch: the tracker is the own gradient, the links are empty."""
        self.state = client_state.epoch_start_state(self.state, epoch, self.role, self.new_row)
        self.handshaken = set()
        self.has_ended = False
        self.outliers.begin_epoch()
        self.mark_all_dirty()

    def drop_neighbour(self, name: str, why: str) -> bool:
        """Begin an epoch without a neighbour that is down, if it takes part in this one.

        No list of members is needed: in a new epoch every client begins with its own gradient, and a link
        gets no mass before its receiver has answered. A client that returns takes part again. The root of a
        method, and the trees, remain those of the manifest.

        Returns:
            Whether an epoch has begun.
        """
        ends = (self.state.out.get(name), self.state.into.get(name))
        is_used = any(end is not None and end.number for end in ends)
        if not is_used or self.state.epoch >= self.last_epoch:
            return False
        self.begin_epoch(self.state.epoch + 1)
        self.notify("epoch", f"{why}; epoch {self.state.epoch} begins without it", name)
        return True

    def relink(self, topology: EpochTopology, epoch: int) -> None:
        """Take the links of another manifest, in a new epoch."""
        self.topology = topology
        self.role = topology.role
        self.member = self.member._replace(step_weight=self.role.step_weight)
        # a client that is not the root gets the root's model anyway
        is_outdated = self.state.is_outdated and self.role.step_weight > 0
        self.state = self.state._replace(out={}, into={}, is_outdated=is_outdated)
        self.inbox.take_all()
        self.epoch_limiter = EpochRateLimiter(self.epoch_limiter.clock)
        self.outliers = LinkOutliers()
        self.begin_epoch(epoch)

    # --- the last round ------------------------------------------------------------------------------
    def announce_end(self) -> None:
        """Put one more message without mass on every link: no more rounds follow."""
        self.has_ended = True
        out = {name: replace(link, number=link.number + 1) for name, link in self.state.out.items()}
        self.state = self.state._replace(out=out)
        self.dirty |= {f"out:{name}" for name in out}

    def is_end_acknowledged(self) -> bool:
        """Whether every receiver has acknowledged the last message, or has ended itself.

        False in an epoch that has begun after the announcement, until the end is announced in it.
        """
        if not self.has_ended:
            return False
        links = self.state.out.items()
        return all(link.acked == link.number or name in self.state.ended for name, link in links)
