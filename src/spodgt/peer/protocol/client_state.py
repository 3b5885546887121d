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
from spodgt.peer.protocol.epoch_topology import EpochRole
from spodgt.peer.protocol.running_sums import (
    MAX_NUMBER,
    Incarnation,
    InLink,
    Mass,
    Message,
    OutLink,
)
from spodgt.tensors import NewRow, is_finite, new_row, slices, zero_row

Gradient = Callable[[Tensor, int], Tensor]  # (x as (1, columns) float32, round) -> (1, n) gradient


class State(NamedTuple):
    """The state that is written in one commit."""

    k: int
    epoch: int
    method: TrackingState  # (1, n) each: x and g in float32, y in float64
    z: Tensor  # (1, n) float64: totals folded away by rebases
    out: dict[str, OutLink]
    into: dict[str, InLink]
    gradients: int = 0  # computed so far
    more: Mapping[str, Tensor] = {}  # (1, …): what the method's state has besides, such as momentum
    # (1, columns) float32: parameters that never leave this client
    private: Tensor = torch.empty(1, 0)
    last_received_round: int = 0  # of the last message with new mass
    # a root whose disk was set back: it adopts a neighbour's model before it sends its own
    is_outdated: bool = False
    ended: frozenset[str] = frozenset()  # neighbours that have made all their rounds


class Member(NamedTuple):
    """The place of a client in its run."""

    client_index: int = 0  # its number
    clients: int = 1  # number of clients in the run
    p: float = 1.0  # the probability that it computes in a round
    step_weight: float = 1.0  # of its gradient; with a root, that of all other clients is 0


class Received(NamedTuple):
    """A new message and its mass."""

    message: Message
    mass: Mass  # to add to y


class NotFinite(Exception):
    """The gradient holds NaN or infinite numbers; it was not used."""


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
        wide = torch.cat((x.float(), self.private), 1)
        # rounded here and not when it is stored: the tracker must contain the gradient on the disk
        g = self.gradient(wide, self.k).float()
        private = wide[:, x.shape[1] :].clone()
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
        """The identity: a peer's mass leaves *after* the step, in `Node.put_on_links`.

        Mass that arrived was added to y before the step. Were mass to leave the old y here, mass that arrives
        in this round would move no model before it leaves again; see the class.
        """
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


def initial_state(
    algorithm: Algorithm[TrackingState],
    gradient: Gradient,
    x: Tensor,
    computes: bool,
    role: EpochRole,
    *,
    epoch: int = 0,
    member: Member = Member(),  # noqa: B008
    private: Tensor = State._field_defaults["private"],
) -> State:
    """The state after round 0, in which a client only computes.

    Args:
        algorithm: The method.
        gradient: Of the client's loss.
        x: (n,) the initial model.
        computes: Whether the client computes a gradient in round 0.
        role: Its links.
        epoch: The epoch that begins.
        member: The client's place in the run.
        private: (columns,) its private parameters.
    """
    start = x.reshape(1, -1).float()
    private = private.reshape(1, -1).float()
    with torch.no_grad():
        try:
            round = PeerRound(0, computes, member, gradient, private, {}, {})
            first = algorithm.init(start, round)
        except NotFinite:  # as if it had not computed
            computes = False
            round = PeerRound(0, computes, member, gradient, private, {}, {})
            first = algorithm.init(start, round)
    z = torch.zeros(start.shape, dtype=torch.float64)
    method, more = to_tracking_state(first)
    state = State(1, epoch, method, z, {}, {}, int(computes), more, round.private)
    return epoch_start_state(state, epoch, role)


def to_tracking_state(state: MethodState) -> tuple[TrackingState, dict[str, Tensor]]:
    """Split a method's own state into x, y, g (float32, the tracker float64) and its other fields."""
    named = dict(zip(state._fields, state, strict=True))
    x, y, g = (named.pop(key) for key in TrackingState._fields)
    rounded = g.float()
    y = y.double()
    if g.dtype != rounded.dtype:  # the tracker must contain the gradient on the disk
        y = y + (rounded.double() - g)
    return TrackingState(x.float(), y, rounded), named


def to_method_state(
    kind: type[TrackingState], method: TrackingState, more: Mapping[str, Tensor]
) -> TrackingState:
    """The inverse of `to_tracking_state`: the state in the type of the method."""
    named = {**method._asdict(), **more}
    return kind(**{key: named[key] for key in kind._fields})


def epoch_start_state(
    state: State, epoch: int, role: EpochRole, new_row: NewRow = new_row
) -> State:
    """The state with which `epoch` begins: the tracker is the own gradient, the links are empty.

    Incarnations of neighbours are kept: they distinguish a second process of the same name from the
    first.
    """
    n = state.z.shape[1]
    zero = zero_row(n, torch.float32)
    out = {}
    for name, weight in role.out.items():
        out_link = OutLink(weight, zero)
        out[name] = replace(out_link, seen=state.out.get(name, out_link).seen)
    into = {}
    for name, weight in role.into.items():
        in_link = InLink(weight, zero)
        into[name] = replace(in_link, seen=state.into.get(name, in_link).seen)
    y = new_row(n, torch.float64)
    for part in slices(n):
        y[part] = state.method.g[0, part]
    return state._replace(
        epoch=epoch,
        method=state.method._replace(y=y[None]),
        z=zero_row(n, torch.float64)[None],
        out=out,
        into=into,
    )


def state_with_model(state: State, x: Tensor) -> State:
    """The state with which an epoch begins from the model `x`, (n,), alone."""
    zero = torch.zeros_like(state.z)
    method = TrackingState(x[None].float(), zero, zero.float())
    out = {name: link.weight for name, link in state.out.items()}
    into = {name: link.weight for name, link in state.into.items()}
    role = EpochRole(out, into, frozenset(out), frozenset(into))
    return epoch_start_state(
        state._replace(method=method, more={}, is_outdated=False), state.epoch + 1, role
    )


def vectors_of(state: State) -> dict[str, Tensor]:
    """Every vector of a state by name."""
    x, y, g = state.method
    named = {"x": x[0], "y": y[0], "g": g[0], "z": state.z[0]}
    if state.private.shape[1]:
        named["private"] = state.private[0]
    named |= {f"more:{name}": tensor[0] for name, tensor in state.more.items()}
    named |= {f"out:{name}": link.total for name, link in state.out.items()}
    return named | {f"in:{name}": link.total for name, link in state.into.items()}


def meta_of(state: State, own: Incarnation) -> dict[str, object]:
    """Everything of a state that is not a vector, as JSON values."""
    return {
        "k": state.k,
        "epoch": state.epoch,
        "gradients": state.gradients,
        "heard_at": state.last_received_round,
        "more": list(state.more),
        "outdated": state.is_outdated,
        "ended": sorted(state.ended),
        "incarnation": own.number,
        "out": {
            name: [link.weight, link.number, link.base, link.acked, *link.seen]
            for name, link in state.out.items()
        },
        "in": {
            name: [link.weight, link.number, link.base, *link.seen]
            for name, link in state.into.items()
        },
    }


def state_from(vectors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> State:
    """The inverse of `vectors_of` and `meta_of`.

    Raises:
        ValueError: A counter has a value that no client can have reached.
    """
    method = TrackingState(vectors["x"][None], vectors["y"][None], vectors["g"][None])
    out = {}
    for name, (weight, number, base, acked, *seen) in meta["out"].items():
        total = vectors[f"out:{name}"]
        out[name] = OutLink(weight, total, number, base, acked, Incarnation(*seen))
    into = {}
    for name, (weight, number, base, *seen) in meta["in"].items():
        into[name] = InLink(weight, vectors[f"in:{name}"], number, base, Incarnation(*seen))
    state = State(
        k=meta["k"],
        epoch=meta["epoch"],
        method=method,
        z=vectors["z"][None],
        out=out,
        into=into,
        gradients=meta["gradients"],
        more={name: vectors[f"more:{name}"][None] for name in meta.get("more", ())},
        private=vectors["private"][None] if "private" in vectors else torch.empty(1, 0),
        # release 0.2.0 did not keep these
        last_received_round=meta.get("heard_at", meta["k"]),
        is_outdated=bool(meta.get("outdated", False)),
        ended=frozenset(meta.get("ended", ())),
    )
    _check_counters(state, meta["incarnation"])
    return state


def _check_counters(state: State, incarnation: object) -> None:
    counters = [state.k, state.epoch, state.gradients, incarnation, state.last_received_round]
    ends: list[OutLink | InLink] = [*state.out.values(), *state.into.values()]
    for end in ends:
        counters += [end.number, end.base, end.seen.number]
    for counter in counters:
        if not isinstance(counter, int) or not 0 <= counter < MAX_NUMBER:
            raise ValueError(f"its numbers {counters} are not between 0 and 2^62")
