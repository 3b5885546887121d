"""The state of one client, how it is written to disk, and a local round as an algorithm sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, TrackingState
from spodgt.errors import Incompatible
from spodgt.peer.protocol import Incarnation, InLink, OutLink, put

Links = tuple[dict[str, OutLink], dict[str, InLink]]  # by the neighbour's name
Gradient = Callable[[Tensor, int], Tensor]  # (x as (1, n) float32, round) -> gradient of the same shape


class State(NamedTuple):
    """Everything that a crash must not tear apart: it is written in one commit."""

    k: int
    epoch: int
    method: TrackingState  # (1, n) each: x and g in float32, y in float64
    z: Tensor  # (1, n) float64: totals folded away by rebases
    out: dict[str, OutLink]
    into: dict[str, InLink]
    gradients: int = 0  # computed so far


class Member(NamedTuple):
    """What a client is in its run."""

    place: int = 0  # its number
    clients: int = 1  # how many clients the run has
    p: float = 1.0  # the probability that it computes in a round


class News(NamedTuple):
    """What a new message brings."""

    x: Tensor  # (n,) the sender's model
    mass: Tensor  # (n,) float64, to add to y


@dataclass(eq=False)
class PeerRound:
    """A local round as the algorithm sees it (`types.Round`): the links of one client, one row."""

    k: int
    active_client: bool
    member: Member
    gradient: Gradient
    news: Mapping[str, News]  # by in-link
    into: Mapping[str, InLink]
    active: Mapping[str, OutLink]  # the out-links that take mass in this round
    out: dict[str, OutLink] = field(default_factory=dict)  # their states after `push`

    def __post_init__(self) -> None:
        self.computes = torch.tensor([[self.active_client]])
        self.p, self.place = torch.tensor([[self.member.p]]), torch.tensor([self.member.place])
        self.clients = self.member.clients
        self.lead, self.restarts = torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.bool)

    def grad(self, x: Tensor) -> Tensor:
        if not self.active_client:
            return torch.zeros_like(x, dtype=torch.float32)
        # rounded here and not when it is stored: the tracker must hold what the disk holds
        return self.gradient(x.float(), self.k).float()

    def pull(self, x: Tensor) -> Tensor:
        pulled = x.clone()
        for sender, news in self.news.items():
            pulled.add_(news.x - x, alpha=self.into[sender].weight)
        return pulled

    def push(self, y: Tensor) -> Tensor:
        if self.out:
            raise Incompatible(
                "a peer's links carry one tracker, the method pushes twice; use spod-gt-memory."
            )
        pushed = y.clone()
        for news in self.news.values():
            pushed += news.mass
        for name, link in self.active.items():
            self.out[name], mass = put(link, y[0])
            pushed -= mass
        return pushed

    def gossip(self, x: Tensor) -> Tensor:
        raise Incompatible("peers talk over one-way links, but the method gossips; use spod-gt-memory.")

    def average(self, x: Tensor) -> Tensor:
        raise Incompatible("peers have no server, but the method needs one; use spod-gt-memory.")


def begin(
    algorithm: Algorithm[TrackingState],
    gradient: Gradient,
    x: Tensor,
    computes: bool,
    out: Mapping[str, float],
    into: Mapping[str, float],
    *,
    epoch: int = 0,
    member: Member = Member(),  # noqa: B008
) -> State:
    """The state after round 0, in which a client only computes; `out` and `into` map names to weights."""
    n = x.shape[-1]
    with torch.no_grad():
        first = algorithm.init(x.reshape(1, n).float(), PeerRound(0, computes, member, gradient, {}, {}, {}))
    z = torch.zeros(1, n, dtype=torch.float64)
    return State(1, epoch, narrow(first), z, *empty_links(out, into, n), gradients=int(computes))


def empty_links(out: Mapping[str, float], into: Mapping[str, float], n: int) -> Links:
    """Links that have carried nothing, from their weights."""
    outs = {name: OutLink(b, torch.zeros(n)) for name, b in out.items()}
    return outs, {name: InLink(a, torch.zeros(n)) for name, a in into.items()}


def narrow(state: TrackingState) -> TrackingState:
    """A method's own state (x, y, g), with models and gradients in float32 and the tracker in float64."""
    return TrackingState(state.x.float(), state.y.double(), state.g.float())


def fresh(state: State, epoch: int) -> State:
    """The state with which `epoch` begins."""
    zero = torch.zeros(state.z.shape[1])
    return state._replace(
        epoch=epoch,
        method=state.method._replace(y=state.method.g.double()),
        z=torch.zeros_like(state.z),
        # incarnations stay known: they tell a second process of the same name from the first
        out={name: OutLink(link.weight, zero, seen=link.seen) for name, link in state.out.items()},
        into={name: InLink(link.weight, zero, seen=link.seen) for name, link in state.into.items()},
    )


def vectors_of(state: State) -> dict[str, Tensor]:
    """Every vector of a state by name."""
    x, y, g = state.method
    named = {"x": x[0], "y": y[0], "g": g[0], "z": state.z[0]}
    named |= {f"out:{name}": link.total for name, link in state.out.items()}
    return named | {f"in:{name}": link.total for name, link in state.into.items()}


def meta_of(state: State, own: Incarnation) -> dict[str, object]:
    """Everything of a state that is not a vector, as JSON values."""
    return {
        "k": state.k,
        "epoch": state.epoch,
        "gradients": state.gradients,
        "incarnation": own.number,
        "out": {n: [v.weight, v.number, v.base, v.acked, *v.seen] for n, v in state.out.items()},
        "in": {n: [v.weight, v.number, v.base, *v.seen] for n, v in state.into.items()},
    }


def state_from(vectors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> State:
    """The inverse of `vectors_of` and `meta_of`."""
    method = TrackingState(vectors["x"][None], vectors["y"][None], vectors["g"][None])
    out = {
        name: OutLink(b, vectors[f"out:{name}"], number, base, acked, Incarnation(*seen))
        for name, (b, number, base, acked, *seen) in meta["out"].items()
    }
    into = {
        name: InLink(a, vectors[f"in:{name}"], number, base, Incarnation(*seen))
        for name, (a, number, base, *seen) in meta["in"].items()
    }
    return State(meta["k"], meta["epoch"], method, vectors["z"][None], out, into, meta["gradients"])
