"""What must hold: at every commit under any fault, and after the faults have ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from spodgt.peer.membership.manifest import RESETS, Manifest
from spodgt.peer.process.local_problem import manifest_problem
from spodgt.peer.process.main import Peer
from spodgt.peer.protocol.audit import audit, local_error
from spodgt.peer.protocol.client_state import State
from spodgt.peer.protocol.node import StateStore
from spodgt.peer.transport.wire_format import REPEATS, Context
from spodgt.problems.quadratic import Quadratic
from tests.peer.simulation.frames import header_of
from tests.peer.simulation.virtual import VirtualLoop

EXACT = 1e-12


Content = tuple[int, int, int, int]  # of a message: epoch, number, base, incarnation


class Violation(AssertionError):
    """A promise is broken."""


class CheckedStore:
    """Checks every commit of a peer after it was made."""

    def __init__(self, store: StateStore, peer: Peer, checks: Checks) -> None:
        self.store = store
        self.peer = peer
        self.checks = checks

    def commit(self, vectors: Mapping[str, Tensor], meta: Mapping[str, object]) -> None:
        self.store.commit(vectors, meta)
        self.checks.committed(self.peer.name, self.peer.node.state)


class Checks:
    """The observer of a simulation: it sees every commit, and every byte that leaves a process."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.manifest: Manifest | None = None
        self.states: dict[str, State] = {}  # the last commit of each client
        self.incarnations: dict[str, int] = {}  # of the last start of each client
        self.secrets: list[bytes] = []
        self.commits = 0
        self.log: list[str] = []
        self.set_back: dict[str, int] = {}  # clients whose disk is older, and the epoch of that

    def note(self, text: str) -> None:
        self.log.append(f"{self.loop.now:7.2f} s {text}")

    # --- at every commit ---------------------------------------------------------------------------
    def watch(self, peer: Peer, is_clone: bool) -> None:
        """Check the state with which a peer starts, and all its commits from now on.

        A clone must not be believed by anybody for longer than it takes to prove it; only its own state
        is checked.
        """
        name = peer.name
        if is_clone:
            peer.node.store = CheckedStore(peer.store, peer, Checks(self.loop))
            return
        before = self.states.get(name)
        state = peer.node.state
        is_durable = before is None or name in self.set_back
        if before is not None and (state.epoch, state.k) >= (before.epoch, before.k):
            is_durable = True
        if before is not None and not is_durable:
            raise Violation(
                f"{name} starts in epoch {state.epoch}, round {state.k}, but had committed "
                f"epoch {before.epoch}, round {before.k}"
            )
        number = peer.node.incarnation.number
        if name not in self.set_back and number <= self.incarnations.get(name, 0):
            raise Violation(f"{name} starts twice with incarnation {number}")
        self.incarnations[name] = number
        peer.node.store = CheckedStore(peer.store, peer, self)
        self.committed(name, state)

    def lost_state(self, name: str, epoch: int = 0) -> None:
        """A disk was set back or lost: its owner may know less than it has sent, until a later epoch."""
        known = [state.epoch for state in self.states.values()]
        self.set_back[name] = max([epoch, self.set_back.get(name, 0), *known])

    def clone_ended(self, name: str, epoch: int) -> None:
        """No second process sends in the name of a client any more; the last epoch of it is given."""
        self.set_back.pop(name, None)
        self.lost_state(name, epoch)

    def committed(self, name: str, state: State) -> None:
        self.commits += 1
        error = local_error(state)
        if not error <= EXACT:
            raise Violation(f"the local audit of {name} is {error:.1e} in round {state.k}")
        if name in self.set_back and state.epoch > self.set_back[name]:
            del self.set_back[name]
        before = self.states.get(name)
        if before is not None and name not in self.set_back and state.epoch < before.epoch:
            raise Violation(f"{name} goes back from epoch {before.epoch} to {state.epoch}")
        self.states[name] = state
        if self.manifest is not None and name in self.manifest.names:
            self._check_links(name, state)
        if self.commits % 50 == 0:
            self.check_all()

    def _check_links(self, name: str, state: State) -> None:
        """Both ends of each link agree on what was sent."""
        for other in {*state.out, *state.into}:
            theirs = self.states.get(other)
            if theirs is None or theirs.epoch != state.epoch:
                continue
            if name in self.set_back or other in self.set_back:
                continue
            for sender, receiver in ((name, other), (other, name)):
                self._check_link(sender, receiver)

    def _check_link(self, sender: str, receiver: str) -> None:
        out = self.states[sender].out.get(receiver)
        into = self.states[receiver].into.get(sender)
        if out is None or into is None:
            return
        link = f"link {sender} → {receiver}"
        if into.number > out.number:
            raise Violation(f"{link}: {into.number} received, but only {out.number} committed")
        if out.acked > into.number:
            raise Violation(f"{link}: {out.acked} acknowledged, but only {into.number} committed")
        is_same = into.number == out.number and into.base == out.base
        if is_same and not torch.equal(into.total, out.total):
            raise Violation(f"{link}: totals of message {out.number} differ")

    def check_all(self) -> None:
        """The audit of all clients, if they are in one epoch."""
        if self.manifest is None or self.set_back:
            return
        names = self.manifest.names
        epochs = {self.states[name].epoch for name in names if name in self.states}
        version = min(epochs, default=0) // RESETS
        if len(epochs) > 1 or version != self.manifest.version:
            return
        if not all(name in self.states for name in names):
            return
        found = audit({name: self.states[name] for name in names})
        if found.error is not None and not (found.error <= EXACT and not found.problems):
            raise Violation(f"the audit of all is {found.error:.1e}: {found.problems}")

    def check_frame(self, data: bytes, sent: set[Content], context: Context) -> None:
        """No key leaves a process, and a stream carries each message once."""
        self.no_secret(data)
        content = _content_of(data, context)
        if content is None:
            return
        if content in sent:
            raise Violation(f"message {content} is sent twice on a stream")
        sent.add(content)

    def no_secret(self, data: bytes) -> None:
        for secret in self.secrets:
            if secret in data:
                raise Violation("a private key has left its file")

    # --- after the faults --------------------------------------------------------------------------
    def obstacles(self, peers: Mapping[str, Peer], manifest: Manifest) -> list[str]:
        """What is not well yet."""
        found = []
        for name in manifest.names:
            if name not in peers:
                found.append(f"{name} does not run")
        for name, peer in peers.items():
            version = peer.membership.manifest.version
            if version != manifest.version:
                found.append(f"{name} has version {version} of the manifest")
            for other, traffic in peer.transport.traffic():
                if traffic.state != "up":
                    found.append(f"{name}-{other} is {traffic.state}: {traffic.why}")
            if peer.reporter.status.waiting:
                found.append(f"{name} waits")
            for text in peer.reporter.status.warnings:
                if "not finite" not in text:  # a count since the start of the process
                    found.append(f"{name} warns: {text}")
        epochs = {name: peer.node.state.epoch for name, peer in peers.items()}
        if len(set(epochs.values())) > 1:
            found.append(f"epochs differ: {epochs}")
        return found

    def distance(self, peers: Mapping[str, Peer], manifest: Manifest) -> float:
        """The largest distance of a model from the optimum, relative to that of the initial model."""
        problem: Any = manifest_problem(manifest)
        assert isinstance(problem, Quadratic)
        weights = torch.zeros(problem.clients)
        for name in manifest.linked:
            weights[manifest.client(name).part] = 1.0
        optimum = problem.optimum(weights)
        scale = float(optimum.norm())
        models = [peers[name].node.state.method.x[0].double() for name in manifest.linked]
        return max(float((x - optimum).norm()) for x in models) / scale


def _content_of(data: bytes, context: Context) -> Content | None:
    """What a frame carries, if it is the first chunk of a message in a protocol that repeats headers only."""
    header = header_of(data)
    if header is None or header.offset or header.protocol < REPEATS or header.n != context.n:
        return None
    return header.epoch, header.number, header.base, header.incarnation.number
