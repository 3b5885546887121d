"""What the frames of neighbours change in a node: links, epochs, its incarnation.

Each frame has one `Outcome`, which determines what the node does next:

    Received      a message has brought new mass
    FrameAge      nothing further: of this epoch without news, or of an earlier one
    NewerEpoch    the node follows into a later epoch, at a limited rate
    RolledBack    the own disk was set back to an older state: a new incarnation, and a new epoch
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from spodgt.peer.protocol import running_sums
from spodgt.peer.protocol.client_state import Received, State
from spodgt.peer.protocol.inbox import Frame
from spodgt.peer.protocol.running_sums import (
    Ack,
    FrameAge,
    Mass,
    Message,
    NewerEpoch,
    OutLink,
    Refused,
    RolledBack,
)

if TYPE_CHECKING:
    from spodgt.peer.protocol.node import Node

# A disk is set back before a start, not while the process runs: a neighbour with more proofs is lying.
MAX_ROLLBACK_PROOFS = 4

Outcome = Received | FrameAge | NewerEpoch | RolledBack


class FrameProcessor:
    """Applies received frames to the state of a node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.rollback_proofs: Counter[str] = Counter()  # by neighbour

    def process(self, frames: list[tuple[str, Frame]]) -> dict[str, Received]:
        """Apply frames, given with their senders.

        A frame that no honest peer sends is logged and changes nothing.

        Returns:
            New models and mass by in-link. It is empty if an epoch has begun: then none of the frames counts.
        """
        node = self.node
        before = node.state
        received: dict[str, Received] = {}
        for name, frame in frames:
            try:
                outcome = self._process(name, frame)
            except Refused as error:
                node.notify("refused", str(error), name)
                continue
            if isinstance(outcome, Received):
                received[name] = outcome
            elif self._begins_epoch(name, frame, outcome, before):
                return {}
        return received

    def _begins_epoch(self, name: str, frame: Frame, outcome: Outcome, before: State) -> bool:
        """Begin an epoch if the outcome of a frame requires one; returns whether one has begun."""
        if isinstance(outcome, NewerEpoch):
            return self._follow_epoch(name, outcome.epoch, before)
        if isinstance(outcome, RolledBack):
            return self._recover(name, outcome, frame.epoch, before)
        return False

    def _process(self, name: str, frame: Frame) -> Outcome:
        """Apply a frame if its link exists; raises `Refused` if no honest peer sends it."""
        node = self.node
        if isinstance(frame, Ack):
            if name not in node.state.out:
                return FrameAge.EARLIER
            return self._process_ack(name, frame)
        if name not in node.state.into:
            return FrameAge.EARLIER
        # also for messages without new mass: the sender may have missed the acknowledgement
        node.pending_acks.add(name)
        return self._process_message(name, frame)

    def _check_epoch(self, name: str, frame: Frame) -> FrameAge | NewerEpoch | RolledBack:
        """Compare the epoch and the root of a frame with the own ones.

        Raises:
            Refused: The frame names another root than the manifest.
        """
        node = self.node
        topology = node.topology
        is_of_manifest = node.state.epoch <= frame.epoch <= node.last_epoch
        if is_of_manifest and frame.root != topology.root_index:
            raise Refused(
                f"it names the client at place {frame.root} as root, the manifest names "
                f"{topology.root or 'none'} (place {topology.root_index})"
            )
        outcome = running_sums.check_epoch(node.incarnation, node.state.epoch, frame)
        if isinstance(outcome, FrameAge):
            node.epoch_limiter.note_common_epoch(name)
        return outcome

    def _process_ack(self, name: str, ack: Ack) -> Outcome:
        node = self.node
        outcome = self._check_epoch(name, ack)
        if outcome is not FrameAge.CURRENT:
            return outcome
        link = node.state.out[name]
        self._note_end(name, ack.has_ended, ack.sender.number > link.seen.number)
        applied = running_sums.apply_ack(link, ack)
        if isinstance(applied, RolledBack):
            return applied
        node.state = node.state._replace(out=node.state.out | {name: applied})
        if ack.seen == node.incarnation:
            if name not in node.handshaken:
                # The first contact counts as a message. Otherwise clients that restart after an outage, each
                # without messages for too long, would all wait for each other.
                node.handshaken.add(name)
                node.state = node.state._replace(last_received_round=node.state.k)
            if applied.number - applied.base >= node.rebase_every:
                self._rebase(name, applied)
        return outcome

    def _rebase(self, name: str, link: OutLink) -> None:
        """Start the totals of an out-link from zero, unless a message is unacknowledged."""
        node = self.node
        rebased = running_sums.rebase(link)
        if rebased is not None:
            link, folded = rebased
            z = node.sum_of(node.state.z, [Mass(folded)], -1.0)
            node.state = node.state._replace(z=z, out=node.state.out | {name: link})
            node.dirty |= {"z", f"out:{name}"}

    def _process_message(self, name: str, message: Message) -> Outcome:
        node = self.node
        outcome = self._check_epoch(name, message)
        before = node.state.into[name]
        if outcome is not FrameAge.CURRENT:
            # a neighbour that is acknowledged in this epoch may have no message of it to send
            is_earlier = outcome is FrameAge.EARLIER and message.sender == before.seen
            if is_earlier and node.state.is_outdated:
                self._adopt_model(name, message)
            return outcome
        effect = running_sums.apply_message(before, message)
        if isinstance(effect, RolledBack):
            return effect
        link, mass, folded = effect
        is_newer = mass is not None or message.sender.number > before.seen.number
        if message.sender == link.seen:
            self._note_end(name, message.has_ended, is_newer)
            if node.state.is_outdated:
                self._adopt_model(name, message)
        z = node.state.z
        if folded is not None:
            z = node.sum_of(z, [Mass(folded)], 1.0)
            node.dirty.add("z")
        node.state = node.state._replace(z=z, into=node.state.into | {name: link})
        if mass is None:
            return outcome
        node.dirty.add(f"in:{name}")
        return Received(message, mass)

    def _note_end(self, name: str, has_ended: bool, is_newer: bool) -> None:
        """Keep which neighbours have made all rounds; a newer frame without the flag means more rounds."""
        node = self.node
        ended = node.state.ended
        if has_ended:
            ended = ended | {name}
        elif is_newer:
            ended = ended - {name}
        if ended != node.state.ended:
            node.state = node.state._replace(ended=ended)
            node.dirty.add("x")  # so that a commit follows

    def _adopt_model(self, name: str, message: Message) -> None:
        """Replace the model of a root whose disk was set back by the one that a neighbour has of it."""
        node = self.node
        running_sums.check_vectors(message)
        x = message.model(node.state.method.x[0])[None].clone()
        node.state = node.state._replace(method=node.state.method._replace(x=x), is_outdated=False)
        node.dirty.add("x")
        node.notify("model", "its model is the newest known here; the root continues from it", name)

    def _follow_epoch(self, name: str, epoch: int, before: State) -> bool:
        """Begin the epoch of a neighbour, or one on the way to it, if the rate limit permits.

        Returns:
            Whether an epoch has begun.
        """
        node = self.node
        current = node.state.epoch
        if epoch > node.last_epoch:
            node.newer_manifest = name
            node.notify("newer manifest", name)
            return False
        following = node.epoch_limiter.next_epoch(name, current, epoch)
        if following is None:
            reason = "rate limit: too many have begun within a minute"
            node.notify("refused", f"epoch {epoch} is not followed yet, {reason}", name)
            return False
        text = f"epoch {epoch} has begun"
        if following < epoch:
            text = f"{text}, far ahead; on the way to it epoch {following} begins"
        self._restart(name, before, following, text)
        return True

    def _recover(self, name: str, proof: RolledBack, epoch: int, before: State) -> bool:
        """Begin an epoch as a new incarnation, after the own disk was set back.

        Returns:
            Whether an epoch has begun.
        """
        node = self.node
        self.rollback_proofs[name] += 1
        if self.rollback_proofs[name] > MAX_ROLLBACK_PROOFS:
            text = f"{proof.why}; believed {MAX_ROLLBACK_PROOFS} times, not again"
            node.notify("refused", text, name)
            return False
        number = max(node.incarnation.number, proof.incarnation) + 1
        node.incarnation = node.incarnation._replace(number=number)
        following = max(node.state.epoch, epoch) + 1
        text = f"{proof.why}; the state was set back, epoch {following} begins"
        self._restart(name, before, following, text)
        is_root = bool(node.topology.root) and node.role.step_weight > 0
        node.state = node.state._replace(is_outdated=is_root)
        node.notify("rolled back", proof.why, name)
        return True

    def _restart(self, name: str, before: State, epoch: int, text: str) -> None:
        """Begin an epoch from the state before the frames."""
        # frames that were applied before would leave ρ without the mass that belongs to it
        self.node.state = before
        self.node.begin_epoch(epoch)
        self.node.notify("epoch", text, name)
