"""Peers in one process: nodes over vaults in memory, and a network that does what a test tells it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch

import spodgt
from spodgt.network import Network
from spodgt.peer.host.events import describe
from spodgt.peer.protocol.audit import Audit, audit
from spodgt.peer.protocol.client_state import Member, initial_state, meta_of, state_from, vectors_of
from spodgt.peer.protocol.epoch_limit import EpochRateLimiter
from spodgt.peer.protocol.epoch_topology import EpochTopology
from spodgt.peer.protocol.node import Node
from spodgt.peer.protocol.running_sums import Ack, Incarnation, Message
from spodgt.peer.transport import wire_format


class MemoryStore:
    """A disk that survives the process."""

    def __init__(self) -> None:
        self.vectors: dict[str, Any] = {}
        self.meta: dict[str, Any] = {}

    def commit(self, vectors: Any, meta: Any) -> None:
        self.vectors = {**self.vectors, **vectors}
        self.meta = copy.deepcopy(dict(meta))


class World:
    """Clients 0 … m-1 on quadratics h_i |x - c_i|²/2; links i → i+1 and i → i+2 unless `links` are given."""

    def __init__(
        self,
        m: int = 4,
        n: int = 3,
        *,
        rebase_every: int = 1,
        node: type[Node] = Node,
        step: float = 0.06,
        method: str = "spod-gt-memory",
        links: list[tuple[int, int]] | None = None,
        quantized: bool = False,
    ) -> None:
        self.m, self.n, self.rebase_every, self.kind = m, n, rebase_every, node
        self.quantized = quantized
        self.algorithm = spodgt.method(method, step_size=step)
        draws = torch.Generator().manual_seed(5)
        self.c = torch.randn(m, n, generator=draws)
        self.h = 0.5 + torch.rand(m, n, generator=draws)
        self.names = [f"p{i}" for i in range(m)]
        steps = (1, 2) if m > 2 else (1,)
        self.links = links or [(i, (i + s) % m) for i in range(m) for s in steps]
        adjacency = np.zeros((m, m), bool)
        for sender, receiver in self.links:
            adjacency[receiver, sender] = True
        network = Network.from_adjacency(adjacency)
        link_costs = np.ones(network.links) if self.algorithm.traits.root else None
        client_indices = {name: i for i, name in enumerate(self.names)}
        self.topology = [
            EpochTopology(name, client_indices, network, link_costs) for name in self.names
        ]
        self.outs = {i: dict(topology.role.out) for i, topology in enumerate(self.topology)}
        self.ins = {i: dict(topology.role.into) for i, topology in enumerate(self.topology)}
        self.starts = 0
        self.now = 0.0  # seconds
        self.seconds = 60.0  # that a local round takes
        self.events: list[tuple[str, str]] = []
        self.flying: list[tuple[str, str, Any]] = []  # (from, to, frame)
        self.stores = [MemoryStore() for _ in range(m)]
        self.nodes = [self.start(i) for i in range(m)]

    def gradient(self, i: int) -> Any:
        def grad(x: torch.Tensor, k: int) -> torch.Tensor:
            return self.h[i].double() * (x - self.c[i])  # a problem may compute in float64

        return grad

    def start(self, i: int, fresh: bool = False) -> Node:
        """A process starts: from its disk if there is something on it."""
        store = self.stores[i]
        self.starts += 1
        if not store.meta or fresh:
            topology = self.topology[i]
            state = initial_state(
                self.algorithm, self.gradient(i), torch.zeros(1, self.n), True, topology.role
            )
            incarnation = Incarnation(1, self.starts)
        else:
            state = state_from(store.vectors, store.meta)
            incarnation = Incarnation(store.meta["incarnation"] + 1, self.starts)
        store.commit(vectors_of(state), meta_of(state, incarnation))

        def notify(kind: str, text: str, subject: str = "") -> None:
            self.events.append((kind, f"p{i} {describe(text, subject)}"))

        node = self.kind(
            self.algorithm,
            self.gradient(i),
            store,
            incarnation=incarnation,
            state=state,
            topology=self.topology[i],
            member=Member(i, self.m),
            quantized=self.quantized,
            rebase_every=self.rebase_every,
            notify=notify,
        )
        node.epoch_limiter = EpochRateLimiter(clock=lambda: self.now)
        return node

    def crash(self, i: int) -> None:
        self.nodes[i] = self.start(i)

    def tick(
        self, i: int, computes: bool = True, links: list[str] | None = None, *, crash: str = ""
    ) -> None:
        """One local round of client i; `crash` names the point at which its process dies."""
        node = self.nodes[i]
        self.now += self.seconds
        node.advance(computes, self.outs[i] if links is None else links)
        if crash == "before commit":
            return self.crash(i)
        pending_acks = node.commit()
        if crash == "after commit":
            return self.crash(i)
        self.send(i, acks=pending_acks)
        if crash == "after send":
            self.crash(i)
        return None

    def rest(self, i: int) -> None:
        """Client i takes what has arrived and acknowledges it, without a round."""
        self.nodes[i].apply_received()
        self.send(i, acks=self.nodes[i].commit())

    def send(self, i: int, acks: set[str], only: set[str] | None = None) -> None:
        node, name = self.nodes[i], self.names[i]
        for target in acks:
            frame: Ack | Message | None = node.ack(target)
            if frame:
                self.flying.append((name, target, frame))
        for target in self.outs[i]:
            if node.has_unacknowledged(target):
                frame = node.message(target)
                if frame and self.quantized:
                    frame = self.over_the_wire(name, target, frame)
                if frame:
                    self.flying.append((name, target, frame))

    def over_the_wire(self, sender: str, receiver: str, frame: Message) -> Message:
        """What a receiver makes of the bytes."""
        a, b = (
            wire_format.Context("run", b"", self.n, name, quantized=True)
            for name in (sender, receiver)
        )
        assembler = wire_format.MessageAssembler(b, sender)
        got = [assembler.add(chunk) for chunk in wire_format.pack(a, receiver, frame, 1)][-1]
        assert isinstance(got, Message)
        return got

    def deliver(self, at: int, *, keep: bool = False) -> None:
        source, target, frame = self.flying[at] if keep else self.flying.pop(at)
        self.nodes[int(target[1:])].receive(source, frame)

    def exchange(self, rounds: int, links: list[str] | None = None) -> None:
        """Rounds of everybody, one after the other; all that is sent arrives."""
        for _ in range(rounds):
            for i in range(self.m):
                self.tick(i, links=links)
            while self.flying:
                self.deliver(0)

    def drain(self, rounds: int = 30) -> None:
        """Everybody reachable, nothing lost: let the links come to rest."""
        self.exchange(rounds, links=[])

    def audit(self) -> Audit:
        """From the disks alone."""
        return audit(
            {
                name: state_from(v.vectors, v.meta)
                for name, v in zip(self.names, self.stores, strict=True)
            }
        )

    def x(self) -> torch.Tensor:
        return torch.stack([node.committed.method.x[0] for node in self.nodes])

    @property
    def optimum(self) -> torch.Tensor:
        return (self.h * self.c).sum(0) / self.h.sum(0)


class Noisy(World):
    """Fresh noise in every gradient: something is rounded in every round."""

    def gradient(self, i: int) -> Any:
        exact, draws = super().gradient(i), torch.Generator().manual_seed(i)
        return lambda x, k: exact(x, k) + torch.randn(self.n, generator=draws)
