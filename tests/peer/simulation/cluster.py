"""Hosts with peers, their operator, and the authority of the run."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

from spodgt.errors import SpodgtError
from spodgt.experiment import Experiment
from spodgt.peer.host.interfaces import Disconnected, Host
from spodgt.peer.membership import certificates, run_folders
from spodgt.peer.membership.manifest import Manifest, SignedManifest
from spodgt.peer.membership.manifest_changes import check_devices, with_root
from spodgt.peer.options import Deployment, Options
from spodgt.peer.process.main import Peer
from tests.peer.chaos import Chaos
from tests.peer.simulation.checks import Checks, Content, Violation
from tests.peer.simulation.disk import Inode, ProcessFiles, SimulatedDisk
from tests.peer.simulation.network import Network, ProcessWire
from tests.peer.simulation.plan import Setup
from tests.peer.simulation.virtual import SimulatedClock, VirtualLoop

STEP_SECONDS = 0.02  # of a local round on an ordinary host
LAST_EPOCH = 2**62  # later than all
CRASH_SECONDS = 0.01
REPORT_SECONDS = 3.0  # between two reports of a peer; before each it reads its folder
RESTART_SECONDS = 3.0  # after which a supervisor starts a peer again that ended with an error
CERTIFICATE_CURES = ("copy it again", "peer renew", "peer issue", "set the clock")
FOLDER = Path("/peer")
RUNNING: contextvars.ContextVar[PeerProcess | None] = contextvars.ContextVar("RUNNING")


class Crashed(BaseException):
    """The process is dead; the code that runs is unwound."""


def unchanged(data: bytes) -> bytes:
    return data


class SimulatedHost:
    """A machine: its disk and clock outlive the processes on it."""

    def __init__(self, name: str, address: str, clock: SimulatedClock) -> None:
        self.name = name
        self.address = address
        self.clock = clock
        self.disk = SimulatedDisk()
        self.step_seconds = STEP_SECONDS
        self.chaos: dict[str, float] = {}
        self.process: PeerProcess | None = None
        self.is_wanted = True  # whether the supervisor keeps a process running
        self.has_ended = False  # its peer has made all its rounds
        self.is_damaged = False  # a bit of its state was flipped
        self.has_bad_data = False  # gradients are not finite
        self.damage: Callable[[bytes], bytes] = unchanged  # of the frames that leave
        self.end = ""  # the sentence with which the last process ended by itself


class PeerProcess:
    """A running peer; everything it does in the event loop is in its own context."""

    def __init__(
        self, cluster: Cluster, host: SimulatedHost, options: Options, is_clone: bool = False
    ) -> None:
        self.cluster = cluster
        self.host = host
        self.name = host.name
        self.clock = host.clock
        self.is_alive = True
        self.crash_in = 0  # operations on the disk or sends until it crashes; 0: never
        self.crash_operation = ""  # the only one that counts; "": all of them
        self.crash_loses_power = False
        self.is_crashing = False
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.context = contextvars.copy_context()
        self.context.run(RUNNING.set, self)
        self.files = ProcessFiles(host.disk, self.operates, cluster.checks.no_secret)
        wire = ProcessWire(cluster.network, self)
        world = Host(host.clock, cluster.random, self.files, wire)
        try:
            self.peer = Peer(FOLDER, host.name, options, world)
        except BaseException:
            self.is_alive = False
            self.files.close()
            raise
        if cluster.setup.has_old_release and self.name == "p0":
            local = self.peer.transport.local
            local.context = replace(local.context, protocols=(1,))
        cluster.checks.watch(self.peer, is_clone)
        self.honest_gradient = self.peer.node.method_step.gradient
        self.peer.node.method_step.gradient = self._gradient
        if host.chaos:
            receive = Chaos(self.peer.node.receive, **host.chaos, seed=cluster.random.random())
            self.peer.transport.local.receive = receive

    def _gradient(self, x: Tensor, k: int) -> Tensor:
        gradient = self.honest_gradient(x, k)
        if self.host.has_bad_data:
            return torch.full_like(gradient, torch.nan)
        return gradient

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task of this process."""
        return self.context.run(asyncio.create_task, work)

    def operates(self, operation: str) -> None:
        """Called before every change of the disk."""
        if not self.is_alive or self.is_crashing:
            raise OSError("the process is dead")
        if self._crashes(operation):
            # frames that were handed to the thread of the wire may have left before the crash
            self.is_crashing = True
            self.cluster.after(CRASH_SECONDS, lambda: self.kill(self.crash_loses_power))
            raise Crashed(operation)

    def sends(self, data: bytes, sent: set[Content]) -> bytes:
        """Called before every frame of a stream, on which the messages `sent` were sent.

        Returns:
            The bytes that leave: other ones while the frames of the host are damaged.
        """
        try:
            self.cluster.checks.check_frame(data, sent, self.peer.transport.local.context)
        except Violation as error:  # a peer takes it for an error of the stream
            self.cluster.fail(error)
        if not self.is_alive:
            raise Disconnected("the process is dead")
        if self._crashes("send"):
            self.kill(self.crash_loses_power)
            raise Disconnected("the process is dead")
        return self.host.damage(data)

    def _crashes(self, operation: str) -> bool:
        if self.crash_in and self.crash_operation in ("", operation):
            self.crash_in -= 1
            return self.crash_in == 0
        return False

    async def drive(self) -> None:
        """The thread of the rounds."""
        await self.peer.start()
        while True:
            pause = self.peer.rounds.step()
            if pause is None:
                await self.peer.stop()
                self.host.has_ended = True
                self.host.is_wanted = False
                self.kill()
                return
            early = self.cluster.random.uniform(0.3, 1.0)  # a frame may end a pause
            await asyncio.sleep(self.host.step_seconds + pause * early)

    def kill(self, loses_power: bool = False) -> None:
        """End at once, as by kill -9; what was not synced is at risk if power is lost."""
        if not self.is_alive:
            return
        self.is_alive = False
        self.host.process = None
        transport = self.peer.transport
        for stream in (*transport.out.values(), *transport.in_links.dialers.values()):
            stream.closed = True  # a callback of the event loop would open it again
        for task in list(self.tasks):
            task.cancel()
        self.cluster.network.process_ended(self)
        self.files.close()
        if loses_power:
            self.host.disk.lose_power(self.cluster.random)

    async def stop(self) -> None:
        """End cleanly, as by SIGTERM."""
        self.peer.rounds.stop()
        self.peer.rounds.step()
        await self.peer.stop()
        self.kill()


class Cluster:
    """All hosts of a run."""

    def __init__(self, setup: Setup, random: Random, loop: VirtualLoop) -> None:
        self.setup = setup
        self.random = random
        self.loop = loop
        self.network = Network(loop, random)
        self.checks = Checks(loop)
        self.hosts: dict[str, SimulatedHost] = {}
        self.tasks: dict[asyncio.Task[None], None] = {}  # of the operator
        self.failure: BaseException | None = None
        self.clones: dict[str, PeerProcess] = {}
        self.old_manifests: list[bytes] = []
        self.copies: dict[str, list[dict[Path, Inode]]] = {}  # of disks, by client, oldest first
        self.ends: dict[int, Callable[[], object] | None] = {}  # of faults; None: it has ended
        self.moved: set[str] = set()  # clients whose address has changed
        self.started = 0
        loop.set_task_factory(self._make_task)
        loop.set_exception_handler(self._unhandled)
        self.manifest = first_manifest(setup)
        self.key, self.authority = certificates.create_authority(self.manifest.run)
        self.checks.manifest = self.manifest
        for name in self.manifest.names:
            self.add_host(name)

    # --- the event loop ----------------------------------------------------------------------------
    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        process = RUNNING.get(None)
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(lambda done: process.tasks.pop(done, None))
            if not process.is_alive:
                task.cancel()
        return task

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, Crashed | Disconnected | OSError | None):
            return
        self.fail(Violation(f"unhandled in a task: {type(error).__name__}: {error}"))

    def fail(self, error: BaseException) -> None:
        self.failure = self.failure or error

    def after(self, seconds: float, work: Callable[[], object]) -> None:
        """Do something later, as an operator or a supervisor."""

        def do() -> None:
            try:
                work()
            except Exception as error:
                self.fail(error)

        contextvars.Context().run(self.loop.call_later, seconds, do)

    def at_end(self, seconds: float, work: Callable[[], object]) -> None:
        """Do what ends a fault, after `seconds` or when all faults end, whatever comes first."""
        number = len(self.ends)
        self.ends[number] = work
        self.after(seconds, lambda: self._end(number))

    def end_faults(self) -> None:
        """End all faults that last."""
        for number in list(self.ends):
            self._end(number)

    def _end(self, number: int) -> None:
        work = self.ends.get(number)
        self.ends[number] = None
        if work is not None:
            work()

    # --- the authority and the operator ------------------------------------------------------------
    def add_host(self, name: str) -> SimulatedHost:
        address = self.manifest.client(name).address
        host = SimulatedHost(name, address, SimulatedClock(self.loop))
        self.hosts[name] = host
        self.issue(name)
        self.give_manifest(name)
        return host

    def issue(self, name: str, days: float = 30.0) -> None:
        """Put a new certificate into a client's folder."""
        now = datetime.fromtimestamp(SimulatedClock(self.loop).wall(), UTC)
        made = certificates.issue(self.key, self.authority, name, days=days, start=now)
        disk = self.hosts[name].disk
        disk.put(FOLDER / "ca.pem", self.authority)
        disk.put(FOLDER / "key.pem", made.key, 0o600)
        disk.put(FOLDER / "cert.pem", made.certificate)
        self.checks.secrets.append(made.key.splitlines()[1])

    def give_manifest(self, name: str) -> None:
        """Put the newest manifest into a client's folder."""
        signed = SignedManifest.sign(self.manifest, self.key)
        self.old_manifests.append(signed.file)
        self.hosts[name].disk.put(FOLDER / "manifest.toml", signed.file)

    def publish(self, manifest: Manifest, name: str) -> None:
        """Sign a version and give it to one client."""
        self.manifest = manifest
        self.checks.manifest = manifest
        self.give_manifest(name)
        self.start_ended()
        # those that end before this client has read its folder learn of the version by one more start
        self.after(2 * REPORT_SECONDS, self.start_ended)

    # --- processes ---------------------------------------------------------------------------------
    def start(self, name: str) -> None:
        """Start the peer of a host, unless it runs or was removed."""
        host = self.hosts[name]
        if host.process is not None or not host.is_wanted:
            return
        self.started += 1
        try:
            process = PeerProcess(self, host, self.options())
        except SpodgtError as error:
            self.ended(host, error)
            return
        except Crashed:
            self._start_later(name)
            return
        host.process = process
        process.spawn(process.drive()).add_done_callback(lambda task: self._done(process, task))

    def options(self) -> Options:
        return Options(
            durability=self.setup.durability,
            report_every=REPORT_SECONDS,
            evaluate_every=20.0,
            commit_every=self.setup.commit_every,
            drop_after=self.setup.drop_after,
        )

    def start_clone(self, name: str) -> None:
        """Start a second process from a copy of a disk."""
        if name in self.clones or not self.hosts[name].is_wanted:
            return
        host = SimulatedHost(name, "10.9.9.9:7000", self.hosts[name].clock)
        host.disk.inodes = self.hosts[name].disk.copy()
        self.checks.lost_state(name, LAST_EPOCH)
        options = replace(self.options(), listen=f"10.9.9.{name[1:]}:7000")
        try:
            process = PeerProcess(self, host, options, is_clone=True)
        except SpodgtError as error:
            self.checks.note(f"clone of {name} ended: {error}")
            self.checks.clone_ended(name, 0)
            return
        self.clones[name] = process
        process.spawn(process.drive()).add_done_callback(
            lambda task: task.cancelled() or task.exception()
        )

    def end_clone(self, name: str) -> None:
        """The second process is found and ended; what it has sent may be unknown to the first."""
        process = self.clones.pop(name, None)
        if process is not None:
            process.kill()
            self.checks.clone_ended(name, process.peer.node.state.epoch)

    def copy_disks(self) -> None:
        """Keep copies of all disks, for faults that set one back."""
        for name, host in self.hosts.items():
            self.copies.setdefault(name, []).append(host.disk.copy())
        self.after(4.0, self.copy_disks)

    def _done(self, process: PeerProcess, task: asyncio.Task[None]) -> None:
        """The rounds of a process have ended, for whatever reason."""
        host = process.host
        error = None if task.cancelled() else task.exception()
        if isinstance(error, SpodgtError) and process.is_alive:
            process.kill()
            self.ended(host, error)
        elif error is not None and not isinstance(error, Crashed | SpodgtError):
            self.fail(error)
        elif host.process is None or process.is_crashing:
            self._start_later(host.name)

    def ended(self, host: SimulatedHost, error: SpodgtError) -> None:
        """A peer has ended with a sentence: the operator does as it says, and it is started again."""
        host.end = str(error)
        self.checks.note(f"{host.name} ended: {host.end}")
        is_removed = host.name not in self.manifest.names and "is not in version" in host.end
        if is_removed or "was removed from the run" in host.end:
            host.is_wanted = False
        elif "remove the directory" in host.end and host.is_damaged:
            host.is_damaged = False
            host.disk.remove(FOLDER / "state")
            self.checks.lost_state(host.name)
        elif "manifest.toml" in host.end:
            self.give_manifest(host.name)
        elif any(text in host.end for text in CERTIFICATE_CURES):
            self.issue(host.name)
        elif "gradients in a row were not finite" in host.end and host.has_bad_data:
            host.has_bad_data = False
        elif "the disk is full" not in host.end:
            self.fail(Violation(f"{host.name} ended: {host.end}"))
        self._start_later(host.name)

    def start_ended(self) -> None:
        """Start the members again that have made all rounds: they end again at once."""
        for name in self.manifest.names:
            host = self.hosts.get(name)  # None: a newcomer
            if host is not None and host.has_ended:
                host.has_ended = False
                host.is_wanted = True
                self.after(0.0, lambda name=name: self.start(name))  # type: ignore[misc]

    def _start_later(self, name: str) -> None:
        host = self.hosts[name]
        if host.is_wanted:
            self.after(RESTART_SECONDS, lambda: self.start(name))

    def kill(self, name: str, loses_power: bool = False) -> None:
        process = self.hosts[name].process
        if process is not None:
            process.kill(loses_power)
        elif loses_power:
            self.hosts[name].disk.lose_power(self.random)

    def running(self) -> dict[str, Peer]:
        """The peers that run, by name."""
        peers = {}
        for name, host in self.hosts.items():
            if host.process is not None:
                peers[name] = host.process.peer
        return peers

    async def close(self) -> None:
        for host in self.hosts.values():
            host.is_wanted = False
            self.kill(host.name)
            self.end_clone(host.name)
        for _ in range(3):
            await asyncio.sleep(0)
        for task in asyncio.all_tasks(self.loop):
            if task is not asyncio.current_task():
                task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)


def first_step_size(method: str) -> float:
    """The step size of the first manifest.

    It is large, so that few rounds lead to the optimum. `relay` needs a smaller one: messages are late
    where a commit is made after three rounds.
    """
    return 0.15 if method == "relay" else 0.2


def first_manifest(setup: Setup) -> Manifest:
    """The manifest with which a run begins."""
    config = Experiment.parse(
        {
            "run": {
                "methods": [{"name": setup.method, **setup.layers}],
                "step_size": first_step_size(setup.method),
                "seeds": 1,
            },
            "network": {"kind": setup.graph, "clients": setup.clients},
            "participation": {"kind": "always"},
            "problem": {"kind": "quadratic", "parameters": 3, "condition": 2.0, "seed": 1},
        }
    )
    device = {"kind": "bernoulli", "p": setup.p}
    addresses = [f"10.0.0.{index}:7000" for index in range(setup.clients)]
    if setup.has_no_address:
        addresses[0] = ""
    deployment = Deployment(
        addresses=addresses,
        rounds_per_second=setup.rate,
        max_alone=setup.max_alone,
        divided_into=setup.clients + 2,
        compute={f"p{index}": device for index in range(setup.clients)},
        rounds=setup.rounds,
    )
    manifest = run_folders.plan_manifest(config, deployment)
    dial = "receiver" if setup.dialled_by_receivers else "sender"
    links = []
    for link in manifest.links:
        changed = replace(link, p_hat=setup.p_hat)
        if not setup.has_no_address:
            changed = replace(changed, dial=dial)
        links.append(changed)
    manifest = replace(manifest, run="simulation", links=tuple(links))
    check_devices(manifest)
    return with_root(manifest)
