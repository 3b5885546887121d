"""A client as a process: rounds in one thread, sockets in another, and both stop cleanly.

take what has arrived ▶ step ▶ commit ▶ only now send and acknowledge ▶ again
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spodgt import rng
from spodgt.algorithms import method
from spodgt.algorithms.spod_gt import SpodGT, SpodGTState
from spodgt.errors import Incompatible, InvalidInput
from spodgt.peer import identity as identities
from spodgt.peer import manifest as manifests
from spodgt.peer import wire
from spodgt.peer.audit import local_error
from spodgt.peer.capacity import active_links, capacity
from spodgt.peer.crash import crash_point
from spodgt.peer.links import Chaos
from spodgt.peer.manifest import RESETS, Manifest
from spodgt.peer.node import Node
from spodgt.peer.protocol import Ack, Message, Stamp
from spodgt.peer.report import Journal, Status
from spodgt.peer.states import begin, state_from, vectors_of
from spodgt.peer.store import Store, StoreFailed
from spodgt.peer.transport import GrpcPost
from spodgt.types import Minibatches, Problem

SUSPECT = 1e-9  # a local audit above this means broken memory or a bug: stop rather than spread it


@dataclass(frozen=True)
class Options:
    """How one peer runs; none of it is agreed with others."""

    durability: str = "power"
    rounds: int | None = None
    gradients: int | None = None
    seconds: float | None = None
    linger: bool = False  # stay reachable after the last round
    report_seconds: float = 1.0
    evaluate_seconds: float = 5.0
    commit_every: int = 1
    listen: str | None = None  # if other than the manifest's address
    problem: Callable[[str], Problem] | None = None


class Peer:
    """One client of a run, from its folder of certificate, manifest and state."""

    def __init__(self, folder: str | Path, name: str, options: Options = Options()) -> None:  # noqa: B008
        self.folder, self.name, self.options = Path(folder), name, options
        self.identity = load_identity(self.folder, name)
        identities.check(self.identity)
        self.manifest, self.text, self.signature = manifests.read(self.folder, self.identity.authority)
        own = self.manifest.client(name)
        self.place = own.place
        self.problem = self._problem()
        self.journal = Journal(self.folder / "log.jsonl", name)
        self.store = Store(self.folder / "state", durability=options.durability)
        self.key = np.array([rng.key(self.manifest.seed, "batch")])
        self.algorithm = as_method(self.manifest)
        self.capacity = capacity(own.compute, self.manifest.seed, own.place)
        self.context = wire.Context(
            self.manifest.run, bytes.fromhex(self.manifest.layout), self.manifest.parameters, name, version()
        )
        self.node = self._node()
        self.news = threading.Event()
        self.halt = threading.Event()
        self.failure: BaseException | None = None
        self.finished = False
        self.begun = time.monotonic()
        self.status = Status(name)
        hear = Chaos.of(self._hear, os.environ.get("SPODGT_CHAOS", ""))
        self.post = GrpcPost(
            self.context, self.identity, hear, self.notify, lambda: (self.text, self.signature)
        )

    # --- making it -------------------------------------------------------------------------------
    def _problem(self) -> Problem:
        places = self.manifest.places or len(self.manifest.clients)
        make = self.options.problem
        if make:
            problem = own_problem(make, self.name)
        else:
            problem = manifests.as_problem(self.manifest.problem, places, self.manifest.seed)
        problem = problem.to(torch.device("cpu"), torch.float32)
        if problem.clients == 1:
            self.row = 0
        elif self.place < problem.clients:
            self.row = self.place
        else:
            raise InvalidInput(
                f"the problem has {problem.clients} clients, but {self.name} is number {self.place}; give "
                "it data."
            )
        if manifests.layout_of(problem) != self.manifest.layout:
            raise InvalidInput(
                f"the model of {self.name} has {problem.parameters} parameters, with other names or shapes "
                f"than the {self.manifest.parameters} of the manifest; use the model the run was made with, "
                "or make the run with spodgt peer init --problem."
            )
        return problem

    def _node(self) -> Node:
        out, into = self.manifest.weights_of(self.name)
        boot, loaded = secrets.randbits(63), self.store.load()
        if loaded is None:
            start = self.problem.start(self.manifest.seed)[self.row]
            first = self.capacity.computes(0)
            state = begin(
                self.algorithm,
                self.gradient,
                start,
                first,
                out,
                into,
                epoch=self.manifest.epoch,
                place=self.place,
            )
            stamp = Stamp(1, boot)
        else:
            vectors, meta = loaded
            if meta["run"] != self.manifest.run or meta["name"] != self.name:
                raise InvalidInput(
                    f"{self.store.path} holds the state of {meta['name']} in run {meta['run']}, not of "
                    f"{self.name} in "
                    f"{self.manifest.run}; give another folder."
                )
            state = state_from(vectors, meta, SpodGTState)
            stamp = Stamp(meta["incarnation"] + 1, boot)
            if self.store.damaged:
                self.notify(
                    "damaged",
                    f"the newest commit cannot be used ({self.store.damaged}); the one before it is",
                )
        node = Node(
            self.algorithm,
            self.gradient,
            self,
            stamp=stamp,
            state=state,
            place=self.place,
            clients=len(self.manifest.clients),
            p=self.capacity.p,
            notify=self.notify,
        )
        node.last_epoch = self.manifest.epoch + RESETS - 1
        if loaded is None:
            node.dirty = set(vectors_of(state))
        elif state.epoch < self.manifest.epoch:
            node.relink(out, into, self.manifest.epoch)
        node.commit()  # the new life is on disk before anybody hears of it
        return node

    def commit(self, vectors: Any, meta: Any) -> None:
        """`Vault`: the node's state with the names of run and client."""
        self.store.commit(
            vectors, {**meta, "run": self.manifest.run, "name": self.name, "layout": self.manifest.layout}
        )

    def gradient(self, x: Tensor, k: int) -> Tensor:
        begun = time.perf_counter()
        g = self.problem.grad(x, Minibatches(np.array([self.row]), self.key, np.array([self.place]), k))
        self.capacity.spent(time.perf_counter() - begun)
        return g

    def notify(self, kind: str, text: str) -> None:
        self.journal.event(kind, text)
        if kind == "newer manifest":
            self.loop.call_soon_threadsafe(self._ask_manifest, text)

    def _hear(self, source: str, frame: Message | Ack) -> None:
        self.node.hear(source, frame)
        self.news.set()

    # --- rounds, in their own thread ---------------------------------------------------------------
    def _rounds(self) -> None:
        try:
            while not self.halt.is_set() and not self._over():
                self._round()
            if self.node.dirty:
                self._publish()
            self.finished = True
            while self.options.linger and not self.halt.is_set():
                self._rest()
        except BaseException as error:
            self.failure = error
        finally:
            self.loop.call_soon_threadsafe(self.idle.set)

    def _rest(self) -> None:
        """After the last round: take what neighbours send and acknowledge it."""
        self.news.wait(0.2)
        self.news.clear()
        if self.update is not None:
            self._adopt()
        elif self.node.inbox or self.node.acks:
            self.node.absorb()
            self._publish()
        self._report()

    def _over(self) -> bool:
        o, state = self.options, self.node.state
        return (
            (o.rounds is not None and state.k > o.rounds)
            or (o.gradients is not None and state.gradients >= o.gradients)
            or (o.seconds is not None and time.monotonic() - self.begun >= o.seconds)
        )

    def _round(self) -> None:
        node, manifest, k = self.node, self.manifest, self.node.state.k
        if self.update is not None:
            self._adopt()
            return
        self._pace()
        if manifest.max_alone and self.alone >= manifest.max_alone and not node.inbox:
            # theory wants bounded delays: without news from anybody a client drifts towards its own data
            self.status.waiting = True
            self.news.wait(0.2)
            self.news.clear()
            self._report()
            return
        self.status.waiting = False
        links = active_links(manifest.chances(self.name), manifest.seed, self.place, k)
        node.advance(self.capacity.computes(k), links)
        self.alone = 0 if node.heard else self.alone + 1
        crash_point("frames taken")
        if k % self.options.commit_every == 0:
            self._publish()
        self._report()

    def _pace(self) -> None:
        rate = self.manifest.rounds_per_second
        if rate:
            self.next = max(self.next + 1 / rate, time.monotonic() - 1)
            while (left := self.next - time.monotonic()) > 0 and not self.halt.is_set():
                time.sleep(min(left, 0.2))

    alone = 0
    next = 0.0
    update: tuple[bytes, bytes, Manifest] | None = None

    def _publish(self) -> None:
        owed = self.node.commit()
        for target in self.node.state.out:
            if self.node.waits(target):
                message = self.node.message(target)
                if message is not None:
                    self.post.send_latest(target, message)
        for source in owed:
            ack = self.node.ack(source)
            if ack is not None:
                self.post.send_ack(source, ack)

    def _adopt(self) -> None:
        """Take a newer manifest: other links, a new epoch."""
        assert self.update is not None
        self.text, self.signature, self.manifest = self.update
        self.update = None
        manifests.write(self.folder, self.text, self.signature)
        out, into = self.manifest.weights_of(self.name)
        self.node.last_epoch = self.manifest.epoch + RESETS - 1
        self.node.relink(out, into, self.manifest.epoch)
        self._publish()
        self.notify("manifest", f"version {self.manifest.version} with {len(self.manifest.clients)} clients")
        self.loop.call_soon_threadsafe(self.post.relink, *self._addresses())

    def _report(self) -> None:
        now, status = time.monotonic(), self.status
        if now - status.at < self.options.report_seconds:
            return
        self._look_for_manifest()
        evaluated = now - status.evaluated >= self.options.evaluate_seconds
        if evaluated:
            scores = self.problem.evaluate(self.node.state.method.x)
            status.loss, status.accuracy, status.evaluated = (
                float(scores.loss[0]),
                float(scores.accuracy[0]),
                now,
            )
        status.audit = local_error(self.node.state)
        status.look(self.node, self.post, self.manifest, now - self.begun)
        self.node.measure = True
        self.journal.write_status(self.folder / "status.json", status, evaluated)
        if status.audit > SUSPECT:
            raise StoreFailed(
                f"the local audit of {self.name} is {status.audit:.1e}, it must be zero to rounding; "
                "nothing more is sent. "
                "Check this host's memory, remove the state directory and start again."
            )

    # --- sockets -----------------------------------------------------------------------------------
    def _addresses(self) -> tuple[dict[str, str], set[str]]:
        out = {
            link.receiver: self.manifest.client(link.receiver).address
            for link in self.manifest.links
            if link.sender == self.name
        }
        return out, {link.sender for link in self.manifest.links if link.receiver == self.name}

    def _ask_manifest(self, neighbour: str) -> None:
        if self.asking is None or self.asking.done():
            self.asking = asyncio.ensure_future(self._fetch(neighbour))

    asking: asyncio.Future[None] | None = None

    async def _fetch(self, neighbour: str) -> None:
        with contextlib.suppress(Exception):  # the neighbour's next frame asks again
            text, signature = await self.post.fetch_manifest(
                self.manifest.client(neighbour).address, neighbour
            )
            self._consider(manifests.verify(text, signature, self.identity.authority), text, signature)
        await asyncio.sleep(0.5)

    def _consider(self, newer: Manifest, text: bytes, signature: bytes) -> None:
        ours = self.manifest
        if newer.run == ours.run and newer.version > ours.version and newer.layout == ours.layout:
            newer.client(self.name)
            self.update = (text, signature, newer)
            self.news.set()

    def _look_for_manifest(self) -> None:
        """Somebody may have put a newer manifest into our folder."""
        with contextlib.suppress(InvalidInput, OSError):  # half written, or not ours: the next look tells
            if (self.folder / "manifest.toml").read_bytes() != self.text:
                self._consider(*manifests.read(self.folder, self.identity.authority))

    async def run(self, view: Callable[[Peer], None] | None = None) -> None:
        """Run until the rounds are done or `halt` is set."""
        self.loop, self.idle = asyncio.get_running_loop(), asyncio.Event()
        address = self.options.listen or self.manifest.client(self.name).address
        try:
            await self.post.start(address, *self._addresses())
        except RuntimeError:
            raise StoreFailed(f"{self.name} cannot listen at {address}; is another process there?") from None
        worker = threading.Thread(target=self._rounds, name="rounds", daemon=True)
        worker.start()
        try:
            while not self.halt.is_set() and not self.idle.is_set():
                if view:
                    view(self)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.idle.wait(), 0.5)
        finally:
            self.halt.set()
            self.news.set()
            await self.idle.wait()
            await asyncio.sleep(0.05)
            await self.post.stop()
            self.status.at = self.status.evaluated = 0.0
            if not self.failure:
                self._report()
            self.store.close()
        if self.failure:
            self.journal.event("failed", str(self.failure))
            raise self.failure


def load_identity(folder: Path, name: str) -> identities.Identity:
    try:
        parts = [(folder / file).read_bytes() for file in ("key.pem", "cert.pem", "ca.pem")]
    except OSError as error:
        raise InvalidInput(
            f"{error.filename} cannot be read: {error.strerror}; make it with: spodgt peer issue {name}."
        ) from None
    return identities.Identity(name, *parts)


def own_problem(make: Callable[[str], Any], name: str) -> Problem:
    """What a user's function gives for a client, if it is a problem."""
    try:
        problem = make(name)
    except Exception as error:
        raise InvalidInput(f"--problem failed for {name!r}: {type(error).__name__}: {error}.") from error
    if not callable(getattr(problem, "grad", None)):
        raise InvalidInput(
            f"--problem must return a spodgt.Learning for {name!r}, got {type(problem).__name__}."
        )
    return problem  # type: ignore[no-any-return]


def as_method(manifest: Manifest) -> SpodGT:
    fields = dict(manifest.method)
    built = method(fields.pop("name"), **fields)
    if not isinstance(built, SpodGT):
        raise Incompatible(f"method {built.name} cannot run between peers; use spod-gt-memory or spod-gt.")
    return built


def version() -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("spodgt")
    return "unknown"


def run_peer(peer: Peer, view: Callable[[Peer], None] | None = None) -> None:
    """Run a peer in this process; SIGTERM and SIGINT end it cleanly."""
    import signal

    torch.set_num_threads(1)  # several peers may share a host; a peer's step is small

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, peer.halt.set)
        await peer.run(view)

    asyncio.run(main())
