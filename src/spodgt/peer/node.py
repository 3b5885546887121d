"""One client: the method's state and its links, moved forward one local round at a time.

`Node` has no socket, file or clock. It is handed frames (`hear`), asked for a local round (`advance`),
and told to make it durable (`commit`); only what is committed is ever shown to the outside (`message`,
`ack`). So any computation may be lost in a crash as long as nothing derived from it has left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm
from spodgt.peer.protocol import (
    Ack,
    InLink,
    Message,
    NewerEpoch,
    OutLink,
    Refused,
    RolledBack,
    Stamp,
    check_life,
    rebase,
    take,
    take_ack,
)
from spodgt.peer.states import (
    Gradient,
    PeerRound,
    State,
    fresh,
    meta_of,
    narrow,
    residual,
    vectors_of,
)

REBASE_EVERY = 64  # messages after which a quiet link starts from zero
_PATIENCE = 4  # a busy link is held after this many times as many, until it is quiet


class Vault(Protocol):
    """Where states are kept."""

    def commit(self, vectors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Make all of it durable, or raise and leave what was there."""
        ...


class Node:
    """One client of a run."""

    def __init__(
        self,
        algorithm: Algorithm,
        gradient: Gradient,
        vault: Vault,
        *,
        stamp: Stamp,
        state: State,
        place: int = 0,
        clients: int = 1,
        p: float = 1.0,
        rebase_every: int = REBASE_EVERY,
        notify: Callable[[str, str], None] = lambda kind, text: None,
    ) -> None:
        self.algorithm, self.gradient, self.vault = algorithm, gradient, vault
        self.stamp, self.state, self.notify = stamp, state, notify
        self.place, self.clients, self.p = torch.tensor([place]), clients, torch.tensor([[p]])
        self.rebase_every = rebase_every
        self.lock = threading.Lock()  # frames arrive in another thread than rounds run in
        self.inbox: dict[str, Message] = {}
        self.acks: dict[str, Ack] = {}
        self.confirmed: set[str] = set()  # out-links whose receiver has met this life
        self.owed: set[str] = set()  # in-links to acknowledge after the next commit
        self.dirty: set[str] = set()
        self.shown: State = state  # what is committed, all that others may see
        self.shown_stamp = stamp
        self.last_epoch = 2**62  # later ones belong to a manifest we do not have yet
        self.heard = 0  # messages that the last round took
        self.measure = False  # whether the next round notes how far neighbours' models are
        self.distance: dict[str, float] = {}

    # --- from outside ----------------------------------------------------------------------------
    def hear(self, name: str, frame: Message | Ack) -> None:
        """Keep a frame for the next round; only the newest of a link is ever kept."""
        with self.lock:
            box: dict[str, Any] = self.inbox if isinstance(frame, Message) else self.acks
            old = box.get(name)
            if old is None or _age(frame) >= _age(old):
                box[name] = frame

    def message(self, name: str) -> Message | None:
        """The newest committed message of an out-link; None if there is nothing to say yet."""
        state, link = self.shown, self.shown.out.get(name)
        if link is None or state.method is None:
            return None
        x = state.method.x[0]
        return Message(
            state.epoch, link.number, link.base, link.acked, self.shown_stamp, link.seen, x, link.total
        )

    def waits(self, name: str) -> bool:
        """Is something on this link unacknowledged, or its receiver not yet met in this life?"""
        link = self.shown.out.get(name)
        return link is not None and (link.acked < link.number or name not in self.confirmed)

    def ack(self, name: str) -> Ack | None:
        """The committed acknowledgement of an in-link."""
        link = self.shown.into.get(name)
        return None if link is None else Ack(self.shown.epoch, link.number, self.shown_stamp, link.seen)

    # --- one local round -------------------------------------------------------------------------
    def advance(self, computes: bool, links: Iterable[str]) -> None:
        """Take what has arrived, put mass on the out-links drawn, step. Nothing leaves before `commit`."""
        news = self._take()
        self.heard = len(news)
        state = self.state
        if self.measure and news:
            self.distance |= {name: float((X - state.method.x[0]).norm()) for name, (X, _) in news.items()}
            self.measure = False
        held = {
            name
            for name, link in state.out.items()
            if link.number - link.base >= _PATIENCE * self.rebase_every
        }
        active = tuple(
            name for name in links if name in self.confirmed and name in state.out and name not in held
        )
        round = PeerRound(
            state.k,
            torch.tensor([[computes]]),
            self.p,
            self.place,
            self.clients,
            self.gradient,
            state,
            news,
            active,
        )
        with torch.no_grad():
            after = self.algorithm.step(state.method, round)
        self.dirty |= {"x", "y", "g", *(f"out:{name}" for name in active)}
        self.state = state._replace(
            k=state.k + 1,
            method=narrow(after),
            out=state.out | round.out,
            gradients=state.gradients + int(computes),
        )

    def absorb(self) -> None:
        """Take what has arrived without a step: mass that reaches a client at rest is not lost either."""
        news = self._take()
        if news:
            y = self.state.method.y.clone()
            for _, mass in news.values():
                y += mass
            self.state = self.state._replace(method=self.state.method._replace(y=y))
            self.dirty.add("y")

    def commit(self) -> set[str]:
        """Make the round durable and show it; returns the in-links to acknowledge now."""
        vectors = vectors_of(self.state)
        self.vault.commit(
            {name: vectors[name] for name in self.dirty if name in vectors}, meta_of(self.state, self.stamp)
        )
        self.shown, self.shown_stamp = self.state, self.stamp
        self.dirty = set()
        owed, self.owed = self.owed & self.state.into.keys(), set()
        return owed

    def residual(self) -> Tensor:
        """L = y - g - Σρ + Σσ - z, zero up to rounding whatever has happened."""
        return residual(self.state)

    def reset(self, epoch: int) -> None:
        """Begin an epoch: the tracker is the own gradient, the links are empty."""
        self.state = fresh(self.state, epoch)
        self.confirmed = set()
        self.dirty = set(vectors_of(self.state))

    def relink(self, out: Mapping[str, float], into: Mapping[str, float], epoch: int) -> None:
        """Take the links of another manifest, in a new epoch."""
        n = self.state.z.shape[1]
        self.state = self.state._replace(
            out={name: OutLink(b, torch.zeros(n)) for name, b in out.items()},
            into={name: InLink(a, torch.zeros(n)) for name, a in into.items()},
        )
        self.inbox, self.acks = {}, {}
        self.reset(epoch)

    # --- what has arrived ------------------------------------------------------------------------
    def _take(self) -> dict[str, tuple[Tensor, Tensor]]:
        with self.lock:
            inbox, self.inbox = self.inbox, {}
            acks, self.acks = self.acks, {}
        news: dict[str, tuple[Tensor, Tensor]] = {}
        before = self.state
        frames: list[tuple[str, Message | Ack]] = [*acks.items(), *inbox.items()]
        for name, frame in frames:
            try:
                if isinstance(frame, Ack):
                    self._take_ack(name, frame)
                elif name in self.state.into:
                    self.owed.add(
                        name
                    )  # also for what brings nothing new: the sender may have missed our ack
                    got = self._take_message(name, frame)
                    if got is not None:
                        news[name] = got
            except Refused as error:
                self.notify("refused", f"{name}: {error}")
            except NewerEpoch as error:
                if error.epoch > self.last_epoch:
                    self.notify("newer manifest", name)
                    continue
                self._restart(before, error.epoch, f"{name}: {error}")
                return {}
            except RolledBack as error:
                self.stamp = Stamp(max(self.stamp.incarnation, error.incarnation) + 1, self.stamp.boot)
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
        if link is None or not check_life(self.stamp, self.state.epoch, ack):
            return
        link = take_ack(link, ack, self.stamp)
        z = self.state.z
        if ack.seen == self.stamp:
            self.confirmed.add(name)
            quiet = rebase(link) if link.number - link.base >= self.rebase_every else None
            if quiet is not None:
                link, folded = quiet
                z = z - folded.double()
                self.dirty |= {"z", f"out:{name}"}
        self.state = self.state._replace(z=z, out=self.state.out | {name: link})

    def _take_message(self, name: str, message: Message) -> tuple[Tensor, Tensor] | None:
        if not check_life(self.stamp, self.state.epoch, message):
            return None
        link, mass, folded = take(self.state.into[name], message, self.stamp)
        z = self.state.z
        if folded is not None:
            z = z + folded.double()
            self.dirty.add("z")
        self.state = self.state._replace(z=z, into=self.state.into | {name: link})
        if mass is None:
            return None
        self.dirty.add(f"in:{name}")
        return message.x, mass


def _age(frame: Message | Ack) -> tuple[int, int, int]:
    return frame.epoch, frame.sender.incarnation, frame.number
