"""One client: the method's state and its links, advanced one local round at a time.

`Node` has no socket, file or clock. It is given frames (`hear`), asked for a local round (`advance`),
and told to make it durable (`commit`); only what is committed is ever shown to the outside (`message`,
`ack`). So any computation may be lost in a crash as long as nothing derived from it has left.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, TrackingState
from spodgt.algorithms.compose.wrapper import Wrapper
from spodgt.errors import Failed
from spodgt.peer.protocol import client_state, running_sums
from spodgt.peer.protocol.client_state import Gradient, Member, News, NotFinite, PeerRound, State
from spodgt.peer.protocol.epoch_limit import FollowedEpochs
from spodgt.peer.protocol.epoch_topology import Seats
from spodgt.peer.protocol.outlier_detection import FAR, Norms, norm, outward
from spodgt.peer.protocol.running_sums import (
    Ack,
    Incarnation,
    Message,
    NewerEpoch,
    Refused,
    RolledBack,
)
from spodgt.tensors import is_finite

REBASE_EVERY = 64  # messages after which a quiet link starts from zero
REBASE_SHORT = (
    4  # the same where totals are short: the smaller they are, the more 8 bits say of them
)
HOLD = 4  # unacknowledged messages after which a link takes no more mass: its receiver may be gone
BAD_GRADIENTS = 10  # in a row that are not finite, after which the client gives up
_HELD_AFTER = 4  # a busy link is held after this many times as many, until it is quiet

_PROOFS = 4  # a disk is set back before a start, not in a process: more of them from one neighbour are a lie


class Vault(Protocol):
    """Where states are kept."""

    def commit(self, vectors: Mapping[str, Tensor], meta: Mapping[str, object]) -> None:
        """Make all of it durable, or raise and leave what was there."""
        ...


class Node:
    """One client of a run."""

    def __init__(
        self,
        algorithm: Algorithm[TrackingState],
        gradient: Gradient,
        vault: Vault,
        *,
        incarnation: Incarnation,
        state: State,
        seats: Seats,
        member: Member = Member(),  # noqa: B008
        short: bool = False,
        rebase_every: int | None = None,
        notify: Callable[[str, str], None] = lambda kind, text: None,
    ) -> None:
        self.gradient, self.vault = gradient, vault
        self.incarnation, self.state, self.member, self.seats = incarnation, state, member, seats
        self.short, self.notify = short, notify  # short: messages have 8 bits a number
        self.rebase_every = rebase_every or (REBASE_SHORT if short else REBASE_EVERY)
        self.lock = threading.Lock()  # frames arrive in another thread than rounds run in
        self.arrived = threading.Event()  # set by every frame; whoever waits for one clears it
        self.inbox: dict[str, Message] = {}
        self.acks: dict[str, Ack] = {}
        self.confirmed: set[str] = set()  # out-links whose receiver has met this incarnation
        self.owed: set[str] = set()  # in-links to acknowledge after the next commit
        self.dirty: set[str] = set()
        self.shown: State = state  # what is committed, all that others may see
        self.shown_incarnation = incarnation
        self.has_ended = False  # all rounds of the manifest were made
        self.last_epoch = 2**62  # later ones belong to a manifest we do not have yet
        self.newer_manifest: str | None = None  # a neighbour that has one
        self.proofs: Counter[str] = Counter()  # that our disk was set back, by neighbour
        self.norms: dict[str, Norms] = {}  # by in-link
        self.own_pull = 0.0  # by how much the own steps have lengthened the model
        self.bad_gradients = self.bad_in_a_row = 0  # that were not finite
        self.epochs = FollowedEpochs()
        self.part = seats.part
        self.member = member._replace(step_weight=self.part.step_weight)
        self.use(algorithm)

    def use(self, algorithm: Algorithm[TrackingState]) -> None:
        """Step by this method from now on; of its state beyond x, y, g what is not known begins anew."""
        state = self.state
        idle = PeerRound(0, False, self.member, self.gradient, state.private, {}, {})
        first = algorithm.init(state.method.x, idle)
        self.algorithm, self.kind = algorithm, type(first)
        local = algorithm.local_steps if isinstance(algorithm, Wrapper) else None
        self.exchange_every = local or 1  # rounds between two uses of the links
        more = {
            name: state.more.get(name, begun)
            for name, begun in client_state.narrow(first)[1].items()
        }
        if more.keys() != state.more.keys():
            self.state = state._replace(more=more)
            self.dirty |= {f"more:{name}" for name in more}

    # --- from outside ----------------------------------------------------------------------------
    def hear(self, name: str, frame: Message | Ack) -> None:
        """Keep a frame for the next round; only the newest of a link is ever kept."""
        with self.lock:
            if isinstance(frame, Message):
                if name not in self.inbox or _age(frame) >= _age(self.inbox[name]):
                    self.inbox[name] = frame
            elif name not in self.acks or _age(frame) >= _age(self.acks[name]):
                self.acks[name] = frame
        self.arrived.set()

    def message(self, name: str) -> Message | None:
        """The newest committed message of an out-link; None if there is nothing to say yet."""
        state, link = self.shown, self.shown.out.get(name)
        if link is None:
            return None
        numbers = state.epoch, link.number, link.base, link.acked
        vectors = state.method.x[0], link.total
        ends = self.shown_incarnation, link.seen
        return Message(*numbers, *ends, *vectors, self.seats.root_place, self.has_ended)

    def waits(self, name: str) -> bool:
        """Whether something on this link is unacknowledged, or its receiver has not met this incarnation."""
        link = self.shown.out.get(name)
        return link is not None and (link.acked < link.number or name not in self.confirmed)

    def ack(self, name: str) -> Ack | None:
        """The committed acknowledgement of an in-link."""
        link = self.shown.into.get(name)
        if link is None:
            return None
        ends = self.shown_incarnation, link.seen
        root = self.seats.root_place
        return Ack(self.shown.epoch, link.number, *ends, root, self.has_ended)

    # --- one local round -------------------------------------------------------------------------
    def advance(self, computes: bool, links: Iterable[str]) -> None:
        """Take what has arrived, step, put mass on the out-links drawn. Nothing leaves before `commit`."""
        pull_before = self._pull()
        news = self.absorb()
        state = self.state
        after, private, computed = self._step(computes, {name: new.x for name, new in news.items()})
        method, more = client_state.narrow(after)
        self.own_pull += norm(method.x) - norm(state.method.x) - (self._pull() - pull_before)
        self.dirty |= {"x", "y", "g", "private", *(f"more:{name}" for name in more)}
        self.state = state._replace(
            k=state.k + 1,
            method=method,
            gradients=state.gradients + int(computed),
            more=more,
            private=private,
        )
        self.put_on_links(links)

    def end_block(self, x: Tensor, g: Tensor, steps: int, links: Iterable[str]) -> None:
        """Take the model and the contribution after a block of local steps that were made elsewhere.

        The tracker changes by as much as the contribution. Then mass is put on the out-links drawn.

        Args:
            x: (1, n) float32, the model.
            g: (1, n), the contribution.
            steps: Number of local steps.
            links: Out-links to use.
        """
        state = self.state
        y = state.method.y
        if g is not state.method.g:
            y = y + g.double() - state.method.g.double()
            self.dirty |= {"y", "g"}
        self.dirty.add("x")
        self.state = state._replace(
            k=state.k + 1,
            method=state.method._replace(x=x, y=y, g=g),
            gradients=state.gradients + steps,
        )
        self.put_on_links(links)

    def put_on_links(self, links: Iterable[str]) -> None:
        """Put mass on those of the out-links whose receivers are there."""
        method = self.state.method
        y = method.y.clone()
        out = dict(self.state.out)
        for name in links:
            if self._carries(name):
                out[name], mass = running_sums.put(out[name], method.y[0], self.short)
                y -= mass
                self.dirty |= {"y", f"out:{name}"}
        self.state = self.state._replace(method=method._replace(y=y), out=out)

    def _carries(self, name: str) -> bool:
        """Whether an out-link is used now: its receiver is there and has most of what was sent."""
        link = self.state.out.get(name)
        if link is None or name not in self.part.sends or name not in self.confirmed:
            return False
        if name in self.state.ended:
            return False
        if link.number - link.acked >= HOLD or not self._up_to_date():
            return False
        return link.number - link.base < _HELD_AFTER * self.rebase_every

    def _up_to_date(self) -> bool:
        """Whether the own model may be passed on: that of a root's epoch has come, or there is no root."""
        if self.part.step_weight > 0:
            return not self.state.is_outdated
        into = self.state.into
        return any(into[name].number for name, weight in self.part.into.items() if weight)

    def _step(
        self, computes: bool, models: Mapping[str, Tensor]
    ) -> tuple[TrackingState, Tensor, bool]:
        """The method's next state, the private columns, and whether a gradient was taken.

        A gradient that is not finite counts as none: the client is idle, or waits if the method cannot be.
        """
        state = self.state
        before = client_state.widen(self.kind, state.method, state.more)
        for active in (computes, False):
            round = PeerRound(
                state.k, active, self.member, self.gradient, state.private, models, state.into
            )
            try:
                with torch.no_grad():
                    after = self.algorithm.step(before, round)
            except NotFinite:
                self._note_bad_gradient()
                if self.algorithm.traits.sporadic_clients != "yes":
                    return before, state.private, False
                continue
            if active:
                self.bad_in_a_row = 0
            return after, round.private, active
        raise AssertionError("an idle client takes no gradient")

    def _note_bad_gradient(self) -> None:
        self.bad_gradients += 1
        self.bad_in_a_row += 1
        k = self.state.k
        self.notify(
            "not finite", f"the gradient of round {k} holds NaN or infinite numbers; not used"
        )
        if self.bad_in_a_row >= BAD_GRADIENTS:
            raise Failed(
                f"{self.bad_in_a_row} gradients in a row were not finite, the last in round {k}; "
                "none was used. Check this client's data, or use a smaller step size."
            )

    def absorb(self) -> dict[str, News]:
        """Take what has arrived, without a step; mass that reaches a client at rest is not lost either."""
        news = self._take()
        if news:
            x, y, g = self.state.method
            y, own = y.clone(), (norm(g), norm(x))
            for name, new in news.items():
                y += new.mass
                norms = self.norms.setdefault(name, Norms())
                norms.note_round(self.state.k)
                difference = new.x - x[0]
                for told in norms.note(norm(new.mass), norm(difference), own):
                    self.notify("suspicious", f"{name}: {told}")
                norms.pull += self.state.into[name].weight * outward(difference, x[0])
            self.state = self.state._replace(
                method=self.state.method._replace(y=y), heard_at=self.state.k
            )
            self.dirty.add("y")
        return news

    def _pull(self) -> float:
        return sum(norms.pull for norms in self.norms.values())

    def name_who_ruined(self, length: float) -> None:
        """Flag the neighbour whose models have moved the own one away since its norm was `length`.

        Nobody is flagged if it was moved by the own steps: then the step size may be too large.
        """
        name = max(self.norms, key=lambda each: self.norms[each].pull, default="")
        if not name or self.norms[name].flags:
            return
        norms = self.norms[name]
        if norms.pull > max(FAR * length, self.own_pull):
            norms.flags = 1
            norms.far = norms.pull / max(length, 1e-300)
            told = f"it has moved our model by {norms.pull:.2g}, which had the norm {length:.2g}"
            self.notify("suspicious", f"{name}: model: {told}, and the loss is ruined")

    def commit(self) -> set[str]:
        """Make the round durable and show it; returns the in-links to acknowledge now."""
        vectors = client_state.vectors_of(self.state)
        changed = {name: vector for name, vector in vectors.items() if name in self.dirty}
        for name, vector in changed.items():
            if not is_finite(vector):
                raise Failed(
                    f"{name} is not finite in round {self.state.k}; nothing of it was committed or sent. "
                    "Use a smaller step size, or remove the neighbour that the log calls suspicious."
                )
        self.vault.commit(changed, client_state.meta_of(self.state, self.incarnation))
        self.shown, self.shown_incarnation = self.state, self.incarnation
        self.dirty = set()
        owed, self.owed = self.owed & self.state.into.keys(), set()
        return owed

    def reset(self, epoch: int) -> None:
        """Begin an epoch: the tracker is the own gradient, the links are empty."""
        self.state = client_state.fresh(self.state, epoch, self.part)
        self.confirmed = set()
        for norms in self.norms.values():
            norms.begin_epoch()
        self.touch()

    def drop(self, name: str, why: str) -> bool:
        """Begin an epoch without a neighbour that is gone, if this one needs it; says whether.

        No list of members is needed: in a new epoch every client begins with its own gradient, and a link
        takes no mass before its receiver has answered. A client that returns takes part again. The root of a
        method, and the trees, stay those of the manifest.
        """
        ends = (self.state.out.get(name), self.state.into.get(name))
        is_used = any(end is not None and end.number for end in ends)
        if not is_used or self.state.epoch >= self.last_epoch:
            return False
        self.reset(self.state.epoch + 1)
        self.notify("epoch", f"{name}: {why}; epoch {self.state.epoch} begins without it")
        return True

    def end(self) -> None:
        """Tell all neighbours that no more rounds follow: one more message on every link, without mass."""
        self.has_ended = True
        out = {name: replace(link, number=link.number + 1) for name, link in self.state.out.items()}
        self.state = self.state._replace(out=out)
        self.dirty |= {f"out:{name}" for name in out}

    def is_end_known(self) -> bool:
        """Whether every receiver has acknowledged the last message, or has ended itself."""
        links = self.state.out.items()
        return all(link.acked == link.number or name in self.state.ended for name, link in links)

    def _note_end(self, name: str, has_ended: bool, is_newer: bool) -> None:
        """Keep which neighbours have ended; one that has more rounds to make again sends newer frames."""
        ended = self.state.ended
        if has_ended:
            ended = ended | {name}
        elif is_newer:
            ended = ended - {name}
        if ended != self.state.ended:
            self.state = self.state._replace(ended=ended)
            self.dirty.add("x")  # a commit is due

    def touch(self) -> None:
        """Let the next commit write every vector."""
        self.dirty = set(client_state.vectors_of(self.state))

    def relink(self, seats: Seats, epoch: int) -> None:
        """Take the links of another manifest, in a new epoch."""
        self.seats = seats
        self.part = seats.part
        self.member = self.member._replace(step_weight=self.part.step_weight)
        is_outdated = (
            self.state.is_outdated and self.part.step_weight > 0
        )  # another root's model comes by itself
        self.state = self.state._replace(out={}, into={}, is_outdated=is_outdated)
        self.inbox = {}
        self.acks = {}
        self.epochs = FollowedEpochs(self.epochs.clock)
        self.norms = {}
        self.own_pull = 0.0
        self.reset(epoch)

    # --- what has arrived ------------------------------------------------------------------------
    def _take(self) -> dict[str, News]:
        with self.lock:
            inbox, self.inbox = self.inbox, {}
            acks, self.acks = self.acks, {}
        news: dict[str, News] = {}
        before = self.state
        frames: list[tuple[str, Message | Ack]] = [*acks.items(), *inbox.items()]
        for name, frame in frames:
            try:
                if isinstance(frame, Ack):
                    self._take_ack(name, frame)
                elif name in self.state.into:
                    # also for what brings nothing new: the sender may have missed our acknowledgement
                    self.owed.add(name)
                    got = self._take_message(name, frame)
                    if got is not None:
                        news[name] = got
            except Refused as error:
                self.notify("refused", f"{name}: {error}")
            except NewerEpoch as error:
                if error.epoch > self.last_epoch:
                    self.newer_manifest = name
                    self.notify("newer manifest", name)
                    continue
                if error.epoch > self.state.epoch + running_sums.JUMP:
                    self.epochs.ahead[name] = error.epoch - self.state.epoch
                    self.notify(
                        "refused", f"{name}: epoch {error.epoch} is too far from {self.state.epoch}"
                    )
                    continue
                epoch = self.epochs.next(name, self.state.epoch, error.epoch)
                if epoch is None:
                    told = f"epoch {error.epoch} is not followed yet: too many have begun within a minute"
                    self.notify("refused", f"{name}: {told}")
                    continue
                why = f"{name}: {error}"
                if epoch < error.epoch:
                    why = f"{why}, far ahead; on the way to it epoch {epoch} begins"
                self._restart(before, epoch, why)
                return {}
            except RolledBack as error:
                self.proofs[name] += 1
                if self.proofs[name] > _PROOFS:
                    self.notify("refused", f"{name}: {error}; believed {_PROOFS} times, not again")
                    continue
                number = max(self.incarnation.number, error.incarnation) + 1
                self.incarnation = self.incarnation._replace(number=number)
                epoch = max(self.state.epoch, frame.epoch) + 1
                why = f"{name}: {error}; state was set back, epoch {epoch} begins"
                self._restart(before, epoch, why)
                leads = bool(self.seats.root) and self.part.step_weight > 0
                self.state = self.state._replace(is_outdated=leads)
                self.notify("rolled back", f"{name}: {error}")
                return {}
        return news

    def _restart(self, before: State, epoch: int, why: str) -> None:
        self.state = before  # half-taken frames would leave ρ without its mass
        self.reset(epoch)
        self.notify("epoch", why)

    def _of_this_epoch(self, name: str, frame: Message | Ack) -> bool:
        """Whether a frame of `name` is of this epoch; raises for one of a later epoch or of another root."""
        if (
            self.state.epoch <= frame.epoch <= self.last_epoch
            and frame.root != self.seats.root_place
        ):
            raise Refused(
                f"it names the client at place {frame.root} as root, the manifest names "
                f"{self.seats.root or 'none'} (place {self.seats.root_place})"
            )
        is_of_this_epoch = running_sums.check_epoch(self.incarnation, self.state.epoch, frame)
        self.epochs.reached(name)
        return is_of_this_epoch

    def _take_ack(self, name: str, ack: Ack) -> None:
        link = self.state.out.get(name)
        if link is None or not self._of_this_epoch(name, ack):
            return
        self._note_end(name, ack.has_ended, ack.sender.number > link.seen.number)
        link = running_sums.take_ack(link, ack)
        z = self.state.z
        heard_at = self.state.heard_at
        if ack.seen == self.incarnation:
            if name not in self.confirmed:
                # a first contact counts as news: else clients that restart after an outage, each without
                # news for too long, would all wait for a message of another
                self.confirmed.add(name)
                heard_at = self.state.k
            quiet = (
                running_sums.rebase(link) if link.number - link.base >= self.rebase_every else None
            )
            if quiet is not None:
                link, folded = quiet
                z = z - folded.double()
                self.dirty |= {"z", f"out:{name}"}
        self.state = self.state._replace(z=z, heard_at=heard_at, out=self.state.out | {name: link})

    def _take_message(self, name: str, message: Message) -> News | None:
        if not self._of_this_epoch(name, message):
            return None
        before = self.state.into[name]
        link, mass, folded = running_sums.take(before, message)
        is_newer = mass is not None or message.sender.number > before.seen.number
        if message.sender == link.seen:
            self._note_end(name, message.has_ended, is_newer)
        if self.state.is_outdated and message.sender == link.seen:
            self._adopt_model(name, message)
        z = self.state.z
        if folded is not None:
            z = z + folded.double()
            self.dirty.add("z")
        self.state = self.state._replace(z=z, into=self.state.into | {name: link})
        if mass is None:
            return None
        self.dirty.add(f"in:{name}")
        own = self.state.method.x[0]
        return News(message.model(own), mass, message.half, message.x)

    def _adopt_model(self, name: str, message: Message) -> None:
        """Lead on from a neighbour's model: the own one is older than what this root had passed on."""
        running_sums.check_vectors(message)
        x = message.model(self.state.method.x[0])[None].clone()
        self.state = self.state._replace(method=self.state.method._replace(x=x), is_outdated=False)
        self.dirty.add("x")
        self.notify(
            "model", f"{name}: its model is the newest known here; the root goes on from it"
        )


def _age(frame: Message | Ack) -> tuple[int, int, int]:
    return frame.epoch, frame.sender.number, frame.number
