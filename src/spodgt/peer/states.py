"""The state of one client, how it is written down, and a local round as an algorithm sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm
from spodgt.errors import Incompatible
from spodgt.peer.protocol import InLink, OutLink, Stamp, put

Gradient = Callable[[Tensor, int], Tensor]  # (x as (1, n) float32, round) -> gradient of the same shape


class State(NamedTuple):
    """What a crash must not tear: all of it is written in one commit."""

    k: int
    epoch: int
    method: Any  # the algorithm's own state: x, y, g as (1, n)
    z: Tensor  # (1, n) float64: totals that rebases folded away
    out: dict[str, OutLink]
    into: dict[str, InLink]
    gradients: int = 0  # computed so far


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
        pulled = x.clone()
        for j, (X, _) in self.news.items():
            pulled.add_(X - x, alpha=self.state.into[j].weight)
        return pulled

    def push(self, y: Tensor) -> Tensor:
        if self.out:
            raise Incompatible(
                "a peer's links carry one tracker, but the method pushes twice; use spod-gt-memory."
            )
        pushed = y.clone()
        for _, mass in self.news.values():
            pushed += mass
        for name in self.active:
            self.out[name], mass = put(self.state.out[name], y[0])
            pushed -= mass
        return pushed

    def gossip(self, x: Tensor) -> Tensor:
        raise Incompatible("peers talk over one-way links, but the method gossips; use spod-gt-memory.")

    def average(self, x: Tensor) -> Tensor:
        raise Incompatible("peers have no server, but the method needs one; use spod-gt-memory.")


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
    whole: Tensor = total[0]
    return whole


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
