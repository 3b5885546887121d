"""One client: the method's state and its links, moved forward one local round at a time.

`Node` has no socket, file or clock. It is handed frames (`hear`), asked for a local round (`advance`),
and told to make it durable (`commit`); only what is committed is ever shown to the outside (`message`,
`ack`). So any computation may be lost in a crash as long as nothing derived from it has left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from spodgt.errors import Incompatible
from spodgt.runtimes.peer.protocol import (
    Ack,
    InLink,
    Message,
    NewerEpoch,
    OutLink,
    Refused,
    RolledBack,
    Stamp,
    check_life,
    put,
    rebase,
    take,
    take_ack,
)
from spodgt.types import Algorithm

Gradient = Callable[[Tensor, int], Tensor]  # (x as (1, n) float32, round) -> gradient of the same shape
REBASE_EVERY = 64  # messages after which a quiet link starts from zero
_PATIENCE = 4  # a busy link is held after this many times as many, until it is quiet


class State(NamedTuple):
    """What a crash must not tear: all of it is written in one commit."""

    k: int
    epoch: int
    method: Any  # the algorithm's own state: x, y, g as (1, n)
    z: Tensor  # (1, n) float64: totals that rebases folded away
    out: dict[str, OutLink]
    into: dict[str, InLink]
    gradients: int = 0  # computed so far


class Vault(Protocol):
    """Where states are kept."""

    def commit(self, vectors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Make all of it durable, or raise and leave what was there."""
        ...


@dataclass(eq=False)
class PeerRound:
    """A local round as the algorithm sees it: the links of one client, one row."""

    k: int
    computes: Tensor
    p: Tensor
    place: Tensor
    clients: int
    gradient: Gradient
    state: State
    news: dict[str, tuple[Tensor, Tensor]]  # in-link → (its model, mass to add)
    active: tuple[str, ...]  # out-links that take mass in this round
    out: dict[str, OutLink] = field(default_factory=dict)  # what `push` did to them

    def grad(self, x: Tensor) -> Tensor:
        if not bool(self.computes):
            return torch.zeros_like(x, dtype=torch.float32)
        # rounded here and not when it is stored: the tracker must hold what the disk holds
        return self.gradient(x.float(), self.k).float()

    def pull(self, x: Tensor) -> Tensor:
        return x + sum((self.state.into[j].weight * (X - x) for j, (X, _) in self.news.items()), torch.zeros_like(x))

    def push(self, y: Tensor) -> Tensor:
        if self.out:
            raise Incompatible("a peer's links carry one tracker, but the method pushes twice; use spod-gt-memory.")
        pushed = y
        for _, mass in self.news.values():
            pushed = pushed + mass
        for name in self.active:
            self.out[name], mass = put(self.state.out[name], y[0])
            pushed = pushed - mass
        return pushed

    def gossip(self, x: Tensor) -> Tensor:
        raise Incompatible("peers talk over one-way links, but the method gossips; use spod-gt-memory.")

    def average(self, x: Tensor) -> Tensor:
        raise Incompatible("peers have no server, but the method needs one; use spod-gt-memory.")


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
        return Message(state.epoch, link.number, link.base, link.acked, self.shown_stamp, link.seen, x, link.total)

    def waits(self, name: str) -> bool:
        """Is something on this link unacknowledged, or its receiver not yet met in this life?"""
        link = self.shown.out.get(name)
        return link is not None and (link.acked < link.number or name not in self.confirmed)

    def ack(self, name: str) -> Ack | None:
        """The committed acknowledgement of an in-link."""
        link = self.shown.into.get(name)
        return link and Ack(self.shown.epoch, link.number, self.shown_stamp, link.seen)

    # --- one local round -------------------------------------------------------------------------
    def advance(self, computes: bool, links: Iterable[str]) -> None:
        """Take what has arrived, put mass on the out-links drawn, step. Nothing leaves before `commit`."""
        news = self._take()
        self.heard = len(news)
        state = self.state
        if self.measure and news:
            self.distance |= {name: float((X - state.method.x[0]).norm()) for name, (X, _) in news.items()}
            self.measure = False
        held = {name for name, link in state.out.items() if link.number - link.base >= _PATIENCE * self.rebase_every}
        active = tuple(name for name in links if name in self.confirmed and name in state.out and name not in held)
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
        for name, frame in [*acks.items(), *inbox.items()]:
            try:
                if isinstance(frame, Ack):
                    self._take_ack(name, frame)
                elif name in self.state.into:
                    self.owed.add(name)  # also for what brings nothing new: the sender may have missed our ack
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


# --- states ------------------------------------------------------------------------------------------
def begin(
    algorithm: Algorithm,
    gradient: Gradient,
    x: Tensor,
    computes: bool,
    out: Mapping[str, float],
    into: Mapping[str, float],
    *,
    epoch: int = 0,
    place: int = 0,
    clients: int = 1,
    p: float = 1.0,
) -> State:
    """The state after round 0, in which a client only computes; links map names to weights."""
    n = x.shape[-1]
    empty = State(0, epoch, None, torch.zeros(1, n, dtype=torch.float64), {}, {})
    round = PeerRound(
        0,
        torch.tensor([[computes]]),
        torch.tensor([[p]]),
        torch.tensor([place]),
        clients,
        gradient,
        empty,
        {},
        (),
    )
    with torch.no_grad():
        method = algorithm.init(x.reshape(1, n).float(), round)
    if getattr(method, "_fields", None) != ("x", "y", "g"):
        raise Incompatible(
            f"method {algorithm.name} cannot run between peers: its state is not x, y, g; use spod-gt-memory."
        )
    return empty._replace(
        k=1,
        gradients=int(computes),
        method=narrow(method),
        out={name: OutLink(b, torch.zeros(n)) for name, b in out.items()},
        into={name: InLink(a, torch.zeros(n)) for name, a in into.items()},
    )


def narrow(method: Any) -> Any:
    """Models and gradients in float32, the tracker in float64."""
    return type(method)(method.x.float(), method.y.double(), method.g.float())


def fresh(state: State, epoch: int) -> State:
    """The state with which `epoch` begins."""
    zero = torch.zeros(state.z.shape[1])
    return state._replace(
        epoch=epoch,
        method=state.method._replace(y=state.method.g.double()),
        z=torch.zeros_like(state.z),
        # lives stay known: they tell a second process of the same name from the first
        out={name: OutLink(link.weight, zero, seen=link.seen) for name, link in state.out.items()},
        into={name: InLink(link.weight, zero, seen=link.seen) for name, link in state.into.items()},
    )


def residual(state: State) -> Tensor:
    """L = y - g - Σρ + Σσ - z of one client."""
    total = state.method.y - state.method.g.double() - state.z
    for into in state.into.values():
        total = total - into.total.double()
    for out in state.out.values():
        total = total + out.total.double()
    return total[0]


def vectors_of(state: State) -> dict[str, Tensor]:
    """Every vector of a state by name."""
    x, y, g = state.method
    named = {"x": x[0], "y": y[0], "g": g[0], "z": state.z[0]}
    named |= {f"out:{name}": link.total for name, link in state.out.items()}
    return named | {f"in:{name}": link.total for name, link in state.into.items()}


def meta_of(state: State, stamp: Stamp) -> dict[str, Any]:
    """Everything of a state that is not a vector."""
    return {
        "k": state.k,
        "epoch": state.epoch,
        "gradients": state.gradients,
        "incarnation": stamp.incarnation,
        "out": {n: [v.weight, v.number, v.base, v.acked, *v.seen] for n, v in state.out.items()},
        "in": {n: [v.weight, v.number, v.base, *v.seen] for n, v in state.into.items()},
    }


def state_from(vectors: Mapping[str, Tensor], meta: Mapping[str, Any], shape: Any) -> State:
    """The inverse of `vectors_of` and `meta_of`; `shape` is the type of the method's state."""
    method = shape(vectors["x"][None], vectors["y"][None], vectors["g"][None])
    out = {
        name: OutLink(b, vectors[f"out:{name}"], number, base, acked, Stamp(*seen))
        for name, (b, number, base, acked, *seen) in meta["out"].items()
    }
    into = {
        name: InLink(a, vectors[f"in:{name}"], number, base, Stamp(*seen))
        for name, (a, number, base, *seen) in meta["in"].items()
    }
    return State(meta["k"], meta["epoch"], method, vectors["z"][None], out, into, meta["gradients"])


def _age(frame: Message | Ack) -> tuple[int, int, int]:
    return frame.epoch, frame.sender.incarnation, frame.number


