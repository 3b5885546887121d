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
from spodgt.peer import protocol, states
from spodgt.peer.protocol import Ack, Incarnation, Message, NewerEpoch, Refused, RolledBack
from spodgt.peer.states import Gradient, Member, News, PeerRound, State

REBASE_EVERY = 64  # messages after which a quiet link starts from zero
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
        member: Member = Member(),  # noqa: B008
        rebase_every: int = REBASE_EVERY,
        notify: Callable[[str, str], None] = lambda kind, text: None,
    ) -> None:
        self.algorithm, self.gradient, self.vault = algorithm, gradient, vault
        self.incarnation, self.state, self.member = incarnation, state, member
        self.rebase_every, self.notify = rebase_every, notify
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
        self.heard = 0  # messages that the last round took
        self.measure = False  # whether the next round notes how far neighbours' models are
        self.distance: dict[str, float] = {}

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
        return Message(*numbers, self.shown_incarnation, link.seen, state.method.x[0], link.total)

    def waits(self, name: str) -> bool:
        """Whether something on this link is unacknowledged, or its receiver has not met this incarnation."""
        link = self.shown.out.get(name)
        return link is not None and (link.acked < link.number or name not in self.confirmed)

    def ack(self, name: str) -> Ack | None:
        """The committed acknowledgement of an in-link."""
        link = self.shown.into.get(name)
        if link is None:
            return None
        return Ack(self.shown.epoch, link.number, self.shown_incarnation, link.seen)

    # --- one local round -------------------------------------------------------------------------
    def advance(self, computes: bool, links: Iterable[str]) -> None:
        """Take what has arrived, put mass on the out-links drawn, step. Nothing leaves before `commit`."""
        news = self._take()
        self.heard = len(news)
        state = self.state
        if self.measure and news:
            x = state.method.x[0]
            self.distance |= {name: float((new.x - x).norm()) for name, new in news.items()}
            self.measure = False
        limit = _HELD_AFTER * self.rebase_every
        active = {
            name: link
            for name in links
            if name in self.confirmed and (link := state.out.get(name)) and link.number - link.base < limit
        }
        round = PeerRound(state.k, computes, self.member, self.gradient, news, state.into, active)
        with torch.no_grad():
            after = self.algorithm.step(state.method, round)
        self.dirty |= {"x", "y", "g", *(f"out:{name}" for name in active)}
        self.state = state._replace(
            k=state.k + 1,
            method=states.narrow(after),
            out=state.out | round.out,
            gradients=state.gradients + int(computes),
        )

    def absorb(self) -> None:
        """Take what has arrived without a step: mass that reaches a client at rest is not lost either."""
        news = self._take()
        if news:
            y = self.state.method.y.clone()
            for new in news.values():
                y += new.mass
            self.state = self.state._replace(method=self.state.method._replace(y=y))
            self.dirty.add("y")

    def commit(self) -> set[str]:
        """Make the round durable and show it; returns the in-links to acknowledge now."""
        vectors = states.vectors_of(self.state)
        changed = {name: vectors[name] for name in self.dirty if name in vectors}
        self.vault.commit(changed, states.meta_of(self.state, self.incarnation))
        self.shown, self.shown_incarnation = self.state, self.incarnation
        self.dirty = set()
        owed, self.owed = self.owed & self.state.into.keys(), set()
        return owed

    def reset(self, epoch: int) -> None:
        """Begin an epoch: the tracker is the own gradient, the links are empty."""
        self.state = states.fresh(self.state, epoch)
        self.confirmed = set()
        self.touch()

    def touch(self) -> None:
        """Let the next commit write every vector."""
        self.dirty = set(states.vectors_of(self.state))

    def relink(self, out: Mapping[str, float], into: Mapping[str, float], epoch: int) -> None:
        """Take the links of another manifest, in a new epoch."""
        outs, ins = states.empty_links(out, into, self.state.z.shape[1])
        self.state = self.state._replace(out=outs, into=ins)
        self.inbox, self.acks = {}, {}
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
                if error.epoch > self.state.epoch + protocol.JUMP:
                    self.notify("refused", f"{name}: epoch {error.epoch} is too far from {self.state.epoch}")
                    continue
                self._restart(before, error.epoch, f"{name}: {error}")
                return {}
            except RolledBack as error:
                self.proofs[name] += 1
                if self.proofs[name] > _PROOFS:
                    self.notify("refused", f"{name}: {error}; believed {_PROOFS} times, not again")
                    continue
                number = max(self.incarnation.number, error.incarnation) + 1
                self.incarnation = self.incarnation._replace(number=number)
                epoch = max(self.state.epoch, frame.epoch) + 1
                self._restart(before, epoch, f"{name}: {error}; state was set back, epoch {epoch} begins")
                self.notify("rolled back", f"{name}: {error}")
                return {}
        return news

    def _restart(self, before: State, epoch: int, why: str) -> None:
        self.state = before  # half-taken frames would leave ρ without its mass
        self.reset(epoch)
        self.notify("epoch", why)

    def _take_ack(self, name: str, ack: Ack) -> None:
        link = self.state.out.get(name)
        if link is None or not protocol.check_epoch(self.incarnation, self.state.epoch, ack):
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
        if not protocol.check_epoch(self.incarnation, self.state.epoch, message):
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
        return News(message.x, mass)


def _age(frame: Message | Ack) -> tuple[int, int, int]:
    return frame.epoch, frame.sender.number, frame.number
