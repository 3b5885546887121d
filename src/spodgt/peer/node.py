"""One client: the method's state and its links, advanced one local round at a time.

`Node` has no socket, file or clock. It is given frames (`hear`), asked for a local round (`advance`),
and told to make it durable (`commit`); only what is committed is ever shown to the outside (`message`,
`ack`). So any computation may be lost in a crash as long as nothing derived from it has left.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, TrackingState
from spodgt.algorithms.compose.wrapper import Wrapper
from spodgt.compiled import finite
from spodgt.errors import Failed
from spodgt.peer import protocol, states
from spodgt.peer.norms import Norms
from spodgt.peer.protocol import Ack, Crew, Incarnation, Message, NewerEpoch, Refused, RolledBack
from spodgt.peer.seats import Part, Seats
from spodgt.peer.states import Gradient, Member, News, NotFinite, PeerRound, State

REBASE_EVERY = 64  # messages after which a quiet link starts from zero
REBASE_SHORT = 4  # the same where totals are short: the smaller they are, the more 8 bits say of them
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
        self.last_epoch = 2**62  # later ones belong to a manifest we do not have yet
        self.newer_manifest: str | None = None  # a neighbour that has one
        self.proofs: Counter[str] = Counter()  # that our disk was set back, by neighbour
        self.norms: dict[str, Norms] = {}  # by in-link
        self.bad_gradients = self.bad_in_a_row = 0  # that were not finite
        self.given_up: set[str] = set()  # neighbours dropped and not heard since
        self.part = self._part()
        self.use(algorithm)

    def _part(self) -> Part:
        """What this client does in the epoch of its state."""
        part = self.seats.part(self.state.crew)
        self.member = self.member._replace(lead=part.lead)
        return part

    def use(self, algorithm: Algorithm[TrackingState]) -> None:
        """Step by this method from now on; of its state beyond x, y, g what is not known begins anew."""
        state = self.state
        idle = PeerRound(0, False, self.member, self.gradient, state.private, {}, {})
        first = algorithm.init(state.method.x, idle)
        self.algorithm, self.kind = algorithm, type(first)
        local = algorithm.local_steps if isinstance(algorithm, Wrapper) else None
        self.exchange_every = local or 1  # rounds between two uses of the links
        more = {name: state.more.get(name, begun) for name, begun in states.narrow(first)[1].items()}
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
        return Message(*numbers, self.shown_incarnation, link.seen, *vectors, state.crew)

    def waits(self, name: str) -> bool:
        """Whether something on this link is unacknowledged, or its receiver has not met this incarnation."""
        link = self.shown.out.get(name)
        return link is not None and (link.acked < link.number or name not in self.confirmed)

    def ack(self, name: str) -> Ack | None:
        """The committed acknowledgement of an in-link."""
        link = self.shown.into.get(name)
        if link is None:
            return None
        return Ack(self.shown.epoch, link.number, self.shown_incarnation, link.seen, self.shown.crew)

    # --- one local round -------------------------------------------------------------------------
    def advance(self, computes: bool, links: Iterable[str]) -> None:
        """Take what has arrived, step, put mass on the out-links drawn. Nothing leaves before `commit`."""
        news = self.absorb()
        state = self.state
        after, private, computed = self._step(computes, {name: new.x for name, new in news.items()})
        method, more = states.narrow(after)
        y, out = method.y.clone(), dict(state.out)
        for name in links:
            if self._carries(name):
                out[name], mass = protocol.put(out[name], method.y[0], self.short)
                y -= mass
                self.dirty.add(f"out:{name}")
        self.dirty |= {"x", "y", "g", "private", *(f"more:{name}" for name in more)}
        self.state = state._replace(
            k=state.k + 1,
            method=method._replace(y=y),
            out=out,
            gradients=state.gradients + int(computed),
            more=more,
            private=private,
            heard_at=state.k + 1 if news else state.heard_at,
        )

    def _carries(self, name: str) -> bool:
        """Whether an out-link is used now: its receiver is there and has most of what was sent."""
        link = self.state.out.get(name)
        if link is None or name not in self.part.sends or name not in self.confirmed:
            return False
        if link.number - link.acked >= HOLD or not self._up_to_date():
            return False
        return link.number - link.base < _HELD_AFTER * self.rebase_every

    def _up_to_date(self) -> bool:
        """Whether the own model may be passed on: that of a root's epoch has come, or there is no root."""
        into, part = self.state.into, self.part
        return part.lead > 0 or any(into[name].number for name, weight in part.into.items() if weight)

    def _step(self, computes: bool, models: Mapping[str, Tensor]) -> tuple[TrackingState, Tensor, bool]:
        """The method's next state, the private columns, and whether a gradient was taken.

        A gradient that is not finite counts as none: the client is idle, or waits if the method cannot be.
        """
        state = self.state
        before = states.widen(self.kind, state.method, state.more)
        for active in (computes, False):
            round = PeerRound(state.k, active, self.member, self.gradient, state.private, models, state.into)
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
        self.notify("not finite", f"the gradient of round {k} holds NaN or infinite numbers; not used")
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
            y, own = y.clone(), (float(g.norm()), float(x.norm()))
            for name, new in news.items():
                y += new.mass
                sizes = float(new.mass.norm()), float((new.x - x[0]).norm())
                for told in self.norms.setdefault(name, Norms()).note(*sizes, own):
                    self.notify("suspicious", f"{name}: {told}")
            self.state = self.state._replace(method=self.state.method._replace(y=y))
            self.dirty.add("y")
        return news

    def commit(self) -> set[str]:
        """Make the round durable and show it; returns the in-links to acknowledge now."""
        vectors = states.vectors_of(self.state)
        changed = {name: vectors[name] for name in self.dirty if name in vectors}
        for name, vector in changed.items():
            if not finite(vector):
                raise Failed(
                    f"{name} is not finite in round {self.state.k}; nothing of it was committed or sent. "
                    "Use a smaller step size, or remove the neighbour that the log calls suspicious."
                )
        self.vault.commit(changed, states.meta_of(self.state, self.incarnation))
        self.shown, self.shown_incarnation = self.state, self.incarnation
        self.dirty = set()
        owed, self.owed = self.owed & self.state.into.keys(), set()
        return owed

    def reset(self, epoch: int, crew: Crew) -> None:
        """Begin an epoch: the tracker is the own gradient, the links are empty."""
        self.state = self.state._replace(crew=crew)
        self.part = self._part()
        self.state = states.fresh(self.state, epoch, crew, self.part)
        self.confirmed = set()
        self.norms = {}  # the numbers of an epoch begin large
        self.touch()

    def drop(self, name: str, why: str) -> bool:
        """Begin an epoch without a neighbour that is gone, if this one needs it; says whether.

        Without a root no list of members is needed: in a new epoch every client begins with its own
        gradient, and a link takes no mass before its receiver has answered. With one, the crew is the list.
        Who comes back takes part again.
        """
        ends = self.state.out.get(name), self.state.into.get(name)
        crew = self.seats.without(self.state.crew, [name])
        needed = any(end is not None and end.number for end in ends)
        needed = needed or (crew != self.state.crew and name not in self.given_up)
        if not needed or self.state.epoch >= self.last_epoch:
            return False
        self.given_up.add(name)
        self.reset(self.state.epoch + 1, crew)
        told = f"epoch {self.state.epoch} begins without it{self._led()}"
        self.notify("epoch", f"{name}: {why}; {told}")
        return True

    def _led(self) -> str:
        root = self.seats.leader(self.state.crew)
        return f"; its root is {root}" if root else ""

    def go_to(self, x: Tensor) -> None:
        """Begin again from the model `x` (parameters,), in an epoch that is still to be named."""
        self.state = states.restored(self.state, x)
        self.use(self.algorithm)
        self.touch()

    def touch(self) -> None:
        """Let the next commit write every vector."""
        self.dirty = set(states.vectors_of(self.state))

    def relink(self, seats: Seats, epoch: int) -> None:
        """Take the links of another manifest, in a new epoch."""
        self.seats, self.given_up = seats, set()
        self.state = self.state._replace(out={}, into={})
        self.inbox, self.acks = {}, {}
        self.reset(epoch, seats.first)

    # --- what has arrived ------------------------------------------------------------------------
    def _take(self) -> dict[str, News]:
        with self.lock:
            inbox, self.inbox = self.inbox, {}
            acks, self.acks = self.acks, {}
        news: dict[str, News] = {}
        before = self.state
        frames: list[tuple[str, Message | Ack]] = [*acks.items(), *inbox.items()]
        for name, frame in frames:
            self.given_up.discard(name)
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
                if error.epoch > self.state.epoch + protocol.JUMP:
                    self.notify("refused", f"{name}: epoch {error.epoch} is too far from {self.state.epoch}")
                    continue
                if not self.seats.fits(error.crew):
                    self.notify("refused", f"{name}: no epoch of this manifest has {error.crew}")
                    continue
                self._follow(before, error, name)
                return {}
            except RolledBack as error:
                self.proofs[name] += 1
                if self.proofs[name] > _PROOFS:
                    self.notify("refused", f"{name}: {error}; believed {_PROOFS} times, not again")
                    continue
                number = max(self.incarnation.number, error.incarnation) + 1
                self.incarnation = self.incarnation._replace(number=number)
                epoch = max(self.state.epoch, frame.epoch) + 1
                crew = self.seats.without(before.crew, stale=True)
                why = f"{name}: {error}; state was set back, epoch {epoch} begins"
                self._restart(before, epoch, crew, why)
                self.notify("rolled back", f"{name}: {error}")
                return {}
        return news

    def _follow(self, before: State, newer: NewerEpoch, name: str) -> None:
        """Go on in an epoch of which a frame of `name` tells, or in the next one if it does not fit."""
        epoch, why = newer.epoch, f"{name}: {newer}"
        crew = self.seats.present(self.seats.merged(before.crew, newer.crew))
        if crew != newer.crew:  # two have begun one at once, or without this client
            epoch += 1
            why = f"{why}, and epoch {epoch} with all that is known of who takes part"
        self._restart(before, epoch, crew, why)

    def _restart(self, before: State, epoch: int, crew: Crew, why: str) -> None:
        self.state = before  # half-taken frames would leave ρ without its mass
        self.reset(epoch, crew)
        self.notify("epoch", why + self._led())

    def _of_this_epoch(self, frame: Message | Ack) -> bool:
        return protocol.check_epoch(self.incarnation, self.state.epoch, self.state.crew, frame)

    def _take_ack(self, name: str, ack: Ack) -> None:
        link = self.state.out.get(name)
        if link is None or not self._of_this_epoch(ack):
            return
        link = protocol.take_ack(link, ack)
        z = self.state.z
        if ack.seen == self.incarnation:
            self.confirmed.add(name)
            quiet = protocol.rebase(link) if link.number - link.base >= self.rebase_every else None
            if quiet is not None:
                link, folded = quiet
                z = z - folded.double()
                self.dirty |= {"z", f"out:{name}"}
        self.state = self.state._replace(z=z, out=self.state.out | {name: link})

    def _take_message(self, name: str, message: Message) -> News | None:
        if not self._of_this_epoch(message):
            return None
        link, mass, folded = protocol.take(self.state.into[name], message)
        z = self.state.z
        if folded is not None:
            z = z + folded.double()
            self.dirty.add("z")
        self.state = self.state._replace(z=z, into=self.state.into | {name: link})
        if mass is None:
            return None
        self.dirty.add(f"in:{name}")
        return News(message.model(self.state.method.x[0]), mass)


def _age(frame: Message | Ack) -> tuple[int, int, int]:
    return frame.epoch, frame.sender.number, frame.number
