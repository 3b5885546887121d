"""The state of one client, how it is written to disk, and a local round as an algorithm sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, TrackingState
from spodgt.algorithms.base import State as MethodState
from spodgt.algorithms.deprecated import OldRoundNames
from spodgt.errors import Incompatible
from spodgt.peer.protocol.epoch_topology import Part
from spodgt.peer.protocol.running_sums import BOUND, Incarnation, InLink, OutLink
from spodgt.tensors import is_finite

Gradient = Callable[[Tensor, int], Tensor]  # (x as (1, columns) float32, round) -> (1, n) gradient


class State(NamedTuple):
    """Everything that a crash must not tear apart: it is written in one commit."""

    k: int
    epoch: int
    method: TrackingState  # (1, n) each: x and g in float32, y in float64
    z: Tensor  # (1, n) float64: totals folded away by rebases
    out: dict[str, OutLink]
    into: dict[str, InLink]
    gradients: int = 0  # computed so far
    more: Mapping[str, Tensor] = {}  # (1, …): what the method's state has besides, such as momentum
    private: Tensor = torch.empty(
        1, 0
    )  # (1, columns) float32: parameters that never leave this client
    heard_at: int = 0  # the round in which a neighbour's message was last taken
    is_outdated: bool = (
        False  # a root whose disk was set back: it takes a neighbour's model before it leads
    )
    ended: frozenset[str] = frozenset()  # neighbours that have made all their rounds


class Member(NamedTuple):
    """What a client is in its run."""

    client_index: int = 0  # its number
    clients: int = 1  # how many clients the run has
    p: float = 1.0  # the probability that it computes in a round
    step_weight: float = 1.0  # its part of the step; only the root's is not 0 where there is one


class News(NamedTuple):
    """What a new message brings."""

    x: Tensor  # (n,) the sender's model
    mass: Tensor  # (n,) float64, to add to y
    half: Tensor | None = None  # (n,): the sender's model is known up to this much; None: exactly
    middle: Tensor = torch.empty(0)  # (n,): the middle of what the sender's model may be


class NotFinite(Exception):
    """The gradient holds NaN or infinite numbers; nothing was made of it."""


@dataclass(eq=False)
class PeerRound(OldRoundNames):
    """A local round as the algorithm sees it (`types.Round`): the links of one client, one row.

    The mass that arrived is in y before the method steps, and what leaves is taken from the *new* y, after
    the step. So mass that arrives by the next round moves a model in every round, as in the simulator; taken
    from the old y it would move none in the round in which it is sent.
    """

    k: int
    active_client: bool
    member: Member
    gradient: Gradient
    private: Tensor
    models: Mapping[str, Tensor]  # new ones, by in-link
    into: Mapping[str, InLink]
    pushed: bool = False

    def __post_init__(self) -> None:
        self.computes = torch.tensor([[self.active_client]])
        self.p = torch.tensor([[self.member.p]])
        self.client_index = torch.tensor([self.member.client_index])
        self.clients = self.member.clients
        self.step_weight = torch.tensor([[self.member.step_weight]])
        self.reset_tracker = torch.zeros(1, 1, dtype=torch.bool)

    def grad(self, x: Tensor) -> Tensor:
        if not self.active_client:
            return torch.zeros_like(x, dtype=torch.float32)
        n, wide = x.shape[1], torch.cat((x.float(), self.private), 1)
        # rounded here and not when it is stored: the tracker must hold what the disk holds
        g, private = self.gradient(wide, self.k).float(), wide[:, n:].clone()
        if not (is_finite(g) and is_finite(private)):
            raise NotFinite
        self.private = private
        return g

    def pull(self, x: Tensor) -> Tensor:
        pulled = x.clone()
        for sender, model in self.models.items():
            pulled.add_(model - x, alpha=self.into[sender].weight)
        return pulled

    def push(self, y: Tensor) -> Tensor:
        if self.pushed:
            raise Incompatible(
                "a peer's links carry one tracker, the method pushes two; use spod-gt-memory."
            )
        self.pushed = True
        return y

    @property
    def push_self_weight(self) -> Tensor:
        raise Incompatible(
            "peers step along all of a tracker, the method along a part; use spod-gt-memory."
        )

    def gossip(self, x: Tensor) -> Tensor:
        raise Incompatible(
            "peers talk over one-way links, but the method gossips; use spod-gt-memory."
        )

    def gossip_difference(self, x: Tensor) -> Tensor:
        return self.gossip(x)

    def average(self, x: Tensor) -> Tensor:
        raise Incompatible("peers have no server, but the method needs one; use spod-gt-memory.")


def begin(
    algorithm: Algorithm[TrackingState],
    gradient: Gradient,
    x: Tensor,
    computes: bool,
    part: Part,
    *,
    epoch: int = 0,
    member: Member = Member(),  # noqa: B008
    private: Tensor = State._field_defaults["private"],
) -> State:
    """The state after round 0, in which a client only computes."""
    n = x.shape[-1]
    start, private = x.reshape(1, n).float(), private.reshape(1, -1).float()
    round = PeerRound(0, computes, member, gradient, private, {}, {})
    with torch.no_grad():
        try:
            first = algorithm.init(start, round)
        except NotFinite:
            round = PeerRound(0, computes := False, member, gradient, private, {}, {})
            first = algorithm.init(start, round)
    z = torch.zeros(1, n, dtype=torch.float64)
    method, more = narrow(first)
    begun = State(1, epoch, method, z, {}, {}, int(computes), more, round.private)
    return fresh(begun, epoch, part)


def narrow(state: MethodState) -> tuple[TrackingState, dict[str, Tensor]]:
    """A method's own state as x, y, g, in float32 but for the tracker, and what it has besides."""
    named = dict(zip(state._fields, state, strict=True))
    x, y, g = (named.pop(key) for key in TrackingState._fields)
    rounded, y = g.float(), y.double()
    if g.dtype != rounded.dtype:  # the tracker must hold what the disk holds
        y = y + (rounded.double() - g)
    return TrackingState(x.float(), y, rounded), named


def widen(
    kind: type[TrackingState], method: TrackingState, more: Mapping[str, Tensor]
) -> TrackingState:
    """The inverse of `narrow`: the state as the type that the method steps."""
    named = {**method._asdict(), **more}
    return kind(**{key: named[key] for key in kind._fields})


def fresh(state: State, epoch: int, part: Part) -> State:
    """The state with which `epoch` begins: the tracker is the own gradient, the links are empty."""
    zero = torch.zeros(state.z.shape[1])
    outs = {name: OutLink(b, zero) for name, b in part.out.items()}
    ins = {name: InLink(a, zero) for name, a in part.into.items()}
    return state._replace(
        epoch=epoch,
        method=state.method._replace(y=state.method.g.double()),
        z=torch.zeros_like(state.z),
        # incarnations stay known: they tell a second process of the same name from the first
        out={
            name: replace(link, seen=state.out.get(name, link).seen) for name, link in outs.items()
        },
        into={
            name: replace(link, seen=state.into.get(name, link).seen) for name, link in ins.items()
        },
    )


def restored(state: State, x: Tensor) -> State:
    """The state with which an epoch begins from the model `x` (n,), and nothing else of what was there."""
    zero = torch.zeros_like(state.z)
    method = TrackingState(x[None].float(), zero, zero.float())
    out = {name: link.weight for name, link in state.out.items()}
    into = {name: link.weight for name, link in state.into.items()}
    part = Part(out, into, frozenset(out), frozenset(into))
    return fresh(state._replace(method=method, more={}, is_outdated=False), state.epoch + 1, part)


def vectors_of(state: State) -> dict[str, Tensor]:
    """Every vector of a state by name."""
    x, y, g = state.method
    named = {"x": x[0], "y": y[0], "g": g[0], "z": state.z[0]}
    named |= {"private": state.private[0]} if state.private.shape[1] else {}
    named |= {f"more:{name}": tensor[0] for name, tensor in state.more.items()}
    named |= {f"out:{name}": link.total for name, link in state.out.items()}
    return named | {f"in:{name}": link.total for name, link in state.into.items()}


def meta_of(state: State, own: Incarnation) -> dict[str, object]:
    """Everything of a state that is not a vector, as JSON values."""
    return {
        "k": state.k,
        "epoch": state.epoch,
        "gradients": state.gradients,
        "heard_at": state.heard_at,
        "more": list(state.more),
        "outdated": state.is_outdated,
        "ended": sorted(state.ended),
        "incarnation": own.number,
        "out": {n: [v.weight, v.number, v.base, v.acked, *v.seen] for n, v in state.out.items()},
        "in": {n: [v.weight, v.number, v.base, *v.seen] for n, v in state.into.items()},
    }


def state_from(vectors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> State:
    """The inverse of `vectors_of` and `meta_of`; `ValueError` for numbers that no client can have reached."""
    method = TrackingState(vectors["x"][None], vectors["y"][None], vectors["g"][None])
    out = {
        name: OutLink(b, vectors[f"out:{name}"], number, base, acked, Incarnation(*seen))
        for name, (b, number, base, acked, *seen) in meta["out"].items()
    }
    into = {
        name: InLink(a, vectors[f"in:{name}"], number, base, Incarnation(*seen))
        for name, (a, number, base, *seen) in meta["in"].items()
    }
    heard_at = meta.get("heard_at", meta["k"])  # a state of before this was kept
    numbers = [meta["k"], meta["epoch"], meta["gradients"], meta["incarnation"], heard_at]
    ends: list[OutLink | InLink] = [*out.values(), *into.values()]
    numbers += [number for end in ends for number in (end.number, end.base, end.seen.number)]
    if not all(isinstance(number, int) and 0 <= number < BOUND for number in numbers):
        raise ValueError(f"its numbers {numbers} are not between 0 and 2^62")
    more = {name: vectors[f"more:{name}"][None] for name in meta.get("more", ())}
    private = vectors["private"][None] if "private" in vectors else torch.empty(1, 0)
    return State(
        meta["k"],
        meta["epoch"],
        method,
        vectors["z"][None],
        out,
        into,
        meta["gradients"],
        more,
        private,
        heard_at,
        bool(meta.get("outdated", False)),  # release 0.2.0 did not keep these
        frozenset(meta.get("ended", ())),
    )
