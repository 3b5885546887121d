"""The failure table: every row is a function that injects a fault and returns what was measured.

`python -m tests.peer.failures [ROW ...]` runs rows and prints rows of docs/results/peer-failures.csv.
Rows that need root or a part of the kernel that is missing raise `Skipped` with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch

from spodgt.experiment import Experiment
from spodgt.peer.host import fault_injection
from spodgt.peer.membership import manifest_changes, run_folders
from spodgt.peer.membership.certificates import Identity
from spodgt.peer.membership.manifest import Manifest, SignedManifest
from spodgt.peer.membership.manifest_changes import remove_client
from spodgt.peer.membership.run_folders import create
from spodgt.peer.options import Change, Deployment, Options
from spodgt.peer.process.local_problem import manifest_problem
from spodgt.peer.protocol.audit import Audit
from spodgt.peer.protocol.running_sums import Incarnation, Message
from spodgt.peer.storage import state_store
from spodgt.peer.transport import wire_format
from spodgt.peer.transport import wire_pb2 as pb
from spodgt.peer.transport.grpc_wire import SERVICE, secure_channel
from spodgt.problems.protocols import HasOptimum
from spodgt.types import Problem
from tests.peer.fleet import Fleet
from tests.peer.proxy import Proxies
from tests.peer.world import Noisy

EXACT = 1e-12
QUADRATIC = {"kind": "quadratic", "parameters": 20, "seed": 1}
LARGE = {"model": "mlp", "hidden": 200, "partition": {"kind": "iid"}}  # messages of two chunks
CHAOS = {"loss": 0.3, "twice": 0.1, "late": 0.2, "replay": 0.05, "seed": 3.0}


class Skipped(Exception):
    """This host cannot inject the fault."""


def make(
    folder: Path,
    *,
    clients: int = 5,
    problem: dict[str, Any] | None = None,
    step: float = 0.02,
    rate: float = 40,
    addresses: list[str] | None = None,
    method: str | dict[str, Any] = "spod-gt-memory",
    graph: str = "exponential",
) -> Path:
    """A run's folder."""
    config = Experiment.parse(
        {
            "run": {"methods": [method], "step_size": step, "seeds": 1},
            "network": {"kind": graph, "clients": clients},
            "participation": {"kind": "always"},
            "problem": problem or QUADRATIC,
        }
    )
    create(folder, config, Deployment(addresses=addresses, rounds_per_second=float(rate)))
    return folder


@contextmanager
def fleet(
    chaos: dict[str, float] | None = None, options: Options | None = None, **kwargs: Any
) -> Iterator[Fleet]:
    with (
        tempfile.TemporaryDirectory() as folder,
        Fleet(
            make(Path(folder) / "run", **kwargs),
            options or Options(durability="process", evaluate_every=2, report_every=0.3),
            chaos,
        ) as made,
    ):
        yield made


def settled(f: Fleet, *names: str) -> Audit:
    f.stop()
    return f.audit(*names)


def exact(found: Audit) -> str:
    assert found.problems == [], found.problems
    assert found.error is not None
    assert found.error <= EXACT, found.error
    assert max(found.local.values()) <= EXACT
    return f"audit {found.error:.1e}"


def resets(f: Fleet) -> int:
    return max(int(f.status(name).get("epoch", 0)) for name in f.names)


def beyond(f: Fleet, key: str, before: dict[str, int], by: int = 0) -> Callable[[], bool]:
    """Whether clients report more than `by` above what they had reported before."""
    return lambda: all(f.status(name).get(key, 0) > value + by for name, value in before.items())


# --- rows ------------------------------------------------------------------------------------------
def row_1(seconds: float = 20) -> str:
    """30 % loss, 10 % duplicates, late and replayed frames, above TLS"""
    with fleet(chaos=CHAOS) as f:
        f.start()
        f.rounds(100, 120)
        time.sleep(seconds)
        consensus = max(f.status(n)["consensus"] for n in f.names)
        k = min(f.status(n)["k"] for n in f.names)
        found = settled(f)
        assert resets(f) == 0
        return f"{exact(found)} after {k} rounds; distance between neighbours {consensus:.1e}"


def row_5(points: tuple[str, ...] = fault_injection.POINTS, times: tuple[int, ...] = (1, 2)) -> str:
    """kill -9 at each commit, send and ack point, first and second time"""
    worst, count = 0.0, 0
    with fleet(clients=3, problem=LARGE, rate=10) as f:
        f.start("p0", "p1")
        for point in points:
            for time_ in times:
                f.start("p2", crash=f"{point}:{time_}")
                f.wait(lambda: not f.alive("p2"), 60, f"p2 dies at {point}")
                count += 1
        f.start("p2")
        f.wait(
            lambda: all(
                n["state"] == "up" for n in f.status("p2").get("neighbours", [{"state": ""}])
            ),
            60,
        )
        time.sleep(1)
        assert resets(f) == 0
        found = settled(f)
        worst = found.error or 0.0
        return f"{exact(found)} after {count} crashes at {len(points)} points" + (
            f" ({worst:.0e})" if worst > EXACT else ""
        )


def row_6(times: int = 20) -> str:
    """kill -9 of all at once, with the lost frames of row 1"""
    with fleet(chaos=CHAOS) as f:
        worst = 0.0
        for _ in range(times):
            begin_anew(f, *f.names)
            time.sleep(0.3)
            f.kill()
            found = f.audit()
            exact(found)
            worst = max(worst, found.error or 0.0)
        assert resets(f) == 0
        return f"audit {worst:.1e} at worst, {f.kills} kill -9"


def row_6b(kills: int = 100, **kwargs: Any) -> str:
    """kill -9 of one client after another, ≥ 100 times, with the lost frames of row 1"""
    draw = random.Random(4)
    with fleet(chaos=CHAOS, **kwargs) as f:
        f.start()
        f.rounds(3, 120)
        while f.kills < kills:
            name = draw.choice(f.names)
            f.kill(name)
            f.start(name)
            time.sleep(draw.uniform(0.05, 0.5))
        before = {n: f.status(n)["k"] for n in f.names}
        f.wait(lambda: all(f.status(n)["k"] > before[n] + 20 for n in f.names), 60)
        assert resets(f) == 0
        k = min(f.status(n)["k"] for n in f.names)
        return f"{exact(settled(f))}, {f.kills} kill -9 among 5 processes, {k} rounds"


def row_6c(kills: int = 60) -> str:
    """the same with short messages, ≥ 60 times: compress = "int8\""""
    return row_6b(kills, method={"name": "spod-gt-memory", "compress": "int8"})


def row_7(seconds: float = 60) -> str:
    """SIGSTOP: a client that is there and does nothing"""
    with fleet() as f:
        f.start()
        f.rounds(40, 120)
        f.kill("p2", number=signal.SIGSTOP)
        begun = time.monotonic()
        f.wait(
            lambda: any(
                n["name"] == "p2" and n["state"] == "down" for n in f.status("p0")["neighbours"]
            ),
            40,
            "p0 sees it",
        )
        seen = time.monotonic() - begun
        before = f.status("p0")["k"]
        time.sleep(max(0.0, seconds - seen))
        went_on = f.status("p0")["k"] - before
        f.kill("p2", number=signal.SIGCONT)
        back = f.wait(
            lambda: (
                all(n["state"] == "up" for n in f.status("p0")["neighbours"])
                and all(n["state"] == "up" for n in f.status("p2")["neighbours"])
            ),
            30,
            "p2 is back",
        )
        assert went_on > 0
        return (
            f"{exact(settled(f))}; keepalive dropped it after {seen:.0f} s, others went on, back "
            f"{back:.1f} s after SIGCONT"
        )


def row_8() -> str:
    """restart with the same identity while the old stream lives"""
    with fleet(clients=3) as f:
        f.start()
        f.rounds(20, 120)
        took = []
        for _ in range(3):
            f.kill("p1")
            begun = time.monotonic()
            begin_anew(f, "p1")
            f.wait(lambda: all(n["state"] == "up" for n in f.status("p1")["neighbours"]), 60)
            took.append(time.monotonic() - begun)
        longest = f"all links up {max(took):.1f} s after the restart (process start included)"
        return f"{exact(settled(f))}; {longest}"


def row_9() -> str:
    """two processes with one state directory, or one certificate"""
    with fleet(clients=3) as f:
        f.start()
        f.rounds(20, 120)
        first = f.processes["p1"]
        f.start("p1")
        f.wait(lambda: not f.alive("p1"), 60)
        text = (f.run / "p1" / "error.txt").read_text()
        assert "in use by another process" in text, text
        copy = f.run / "copy" / "p1"
        shutil.copytree(f.run / "p1", copy)
        home, f.run = f.run, f.run / "copy"
        f.start("p1", options=Options(durability="process", listen="127.0.0.1:0", report_every=0.3))
        f.run = home
        second, f.processes["p1"] = f.processes["p1"], first
        f.wait(
            lambda: any(
                "another process uses its name" in row.get("text", "")
                for n in ("p0", "p2")
                for row in f.log(n, "refused")
            ),
            60,
        )
        k = f.status("p1")["k"]
        f.wait(lambda: f.status("p1")["k"] > k + 20, 30)
        second.kill()
        second.join()
        assert resets(f) == 0
        return (
            "second process refused by the lock; a copy elsewhere refused by its neighbours; "
            f"{exact(settled(f))}"
        )


def row_10() -> str:
    """torn write: the newest slot of y damaged"""
    from spodgt.peer.storage.state_store import DiskStateStore

    with fleet(clients=3) as f:
        f.start()
        f.rounds(40, 120)
        f.kill("p1")
        store = DiskStateStore(f.run / "p1" / "state")
        store.load()
        slot = store.slots["y"]
        store.close()
        with (f.run / "p1" / "state" / "vectors.bin").open("r+b") as file:
            file.seek(slot["at"] + slot["slot"] * slot["n"] * 8 + 64)
            file.write(b"\xff" * 64)  # and not into the slot beside it
        f.start("p1")
        f.wait(lambda: f.log("p1", "damaged"), 60)
        k = f.status("p1")["k"]
        f.wait(
            lambda: (
                f.status("p1")["k"] > k + 40 and len({f.status(n)["epoch"] for n in f.names}) == 1
            ),
            60,
        )
        count = resets(f)
        return f"older commit used; {exact(settled(f))}, {count} epoch resets"


def row_11() -> str:
    """state directory set back to an old copy"""
    with fleet(clients=4) as f:
        f.start()
        f.rounds(30, 120)
        f.kill("p1")
        shutil.copytree(f.run / "p1" / "state", f.run / "yesterday")
        f.start("p1")
        k = f.status("p1")["k"]
        f.wait(lambda: f.status("p1")["k"] > k + 60, 60)
        f.kill("p1")
        shutil.rmtree(f.run / "p1" / "state")
        shutil.copytree(f.run / "yesterday", f.run / "p1" / "state")
        begun = time.monotonic()
        f.start("p1")
        f.wait(lambda: f.log("p1", "rolled back"), 60, "it is noticed")
        f.wait(lambda: all(f.status(n)["epoch"] >= 1 for n in f.names), 60)
        took = time.monotonic() - begun
        time.sleep(1)
        why = f.log("p1", "rolled back")[0]["text"]
        return f"noticed and named (“{why}”), all in the new epoch after {took:.1f} s; {exact(settled(f))}"


def row_12() -> str:
    """disk full; disk read-only"""
    if os.geteuid() != 0:
        raise Skipped("mounting a small disk needs root")
    with fleet(clients=3) as f:
        disk = f.run / "p1" / "state"
        disk.mkdir(parents=True)
        if subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=False
        ).returncode:
            raise Skipped("this kernel lets us mount no tmpfs")
        try:
            answers = []
            for fault in ("full", "read-only"):
                f.start(*[n for n in f.names if not f.alive(n)])
                before = f.status("p1").get("k", 0)
                f.wait(beyond(f, "k", {"p1": before}, 20), 90)
                if fault == "full":
                    (disk / "filler").write_bytes(bytes(max(0, shutil.disk_usage(disk).free)))
                else:
                    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=False)
                    if (
                        subprocess.run(
                            ["touch", str(disk / "probe")], check=False, capture_output=True
                        ).returncode
                        == 0
                    ):
                        answers.append(
                            "read-only remount refused by the kernel while files are open"
                        )
                        continue
                f.wait(lambda: not f.alive("p1"), 60, f"p1 stops on a disk that is {fault}")
                answers.append((f.run / "p1" / "error.txt").read_text().split(":", 1)[1].strip())
                (disk / "filler").unlink(missing_ok=True)
            f.stop()
            found = f.audit()
            return f"stops with “{answers[0]}”; {answers[1]}; {exact(found)}"
        finally:
            f.kill()
            subprocess.run(["umount", "-l", str(disk)], check=False)


def row_13() -> str:
    """disk lost; client leaves for ever"""
    with fleet(clients=5) as f:
        f.start()
        f.rounds(40, 120)
        f.kill("p1")
        shutil.rmtree(f.run / "p1" / "state")
        f.start("p1")
        f.wait(lambda: all(f.status(n)["epoch"] >= 1 for n in f.names), 60, "epoch reset")
        f.kill("p3")
        begun = time.monotonic()
        run_folders.remove(f.run, "p3")
        rest = [n for n in f.names if n != "p3"]
        f.kill("p0", number=signal.SIGTERM)
        f.start("p0")  # one client is given the new manifest; the others learn it from each other
        f.wait(lambda: all(f.status(n)["version"] == 2 for n in rest), 60, "version 2 spreads")
        took = time.monotonic() - begun
        time.sleep(2)
        f.stop()
        return (
            f"disk lost: epoch reset; client removed: version 2 at all survivors after {took:.1f} s; "
            f"{exact(f.audit(*rest))}"
        )


def row_16() -> str:
    """clock jumps"""
    library = next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)
    if library is None:
        raise Skipped("libfaketime is not installed")
    with fleet(clients=3) as f:
        f.start("p0", "p2")
        clock = f.run / "clock"
        clock.write_text("+0")
        env = {
            **os.environ,
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(clock),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        process = command(f, "p1", env=env)
        try:
            f.rounds(40, 180)
            rates = []
            for jump in ("+12h", "-3d", "+0"):
                clock.write_text(jump)
                k, begun = f.status("p1")["k"], time.monotonic()
                f.wait(beyond(f, "k", {"p1": k}, 40), 60, f"rounds go on after a jump of {jump}")
                rates.append(40 / (time.monotonic() - begun))
            clock.write_text(
                "+90d"
            )  # certificates are for 30 days: new handshakes fail, and say so
            k = f.status("p1")["k"]
            f.wait(lambda: f.status("p1")["k"] > k + 20, 60, "open links do not care")
        finally:
            process.terminate()
            process.wait(30)
        return f"rounds went on through +12 h, -3 d and +90 d; {exact(settled(f))}"


def row_17(rounds: int = 100_000) -> str:
    """1e5 rounds of float32 links, in memory, fresh noise in every gradient; with rebases and without"""
    told = []
    for every, how in ((64, "with rebases"), (10**9, "without")):
        world = Noisy(2, n=4, rebase_every=every)
        world.exchange(rounds)
        largest = max(
            float(link.total.abs().max())
            for node in world.nodes
            for link in node.state.out.values()
        )
        told.append(f"{how} {exact(world.audit())}, largest total {largest:.1e}")
    return f"{rounds} rounds: " + ", ".join(told)


def all_up(f: Fleet, *names: str) -> bool:
    """Whether the clients report every link as up."""
    known = [f.status(name).get("neighbours") for name in names or f.names]
    return all(links and all(n["state"] == "up" for n in links) for links in known)


def row_19(resets_wanted: int = 243) -> str:
    """TCP connections reset all the time, no kills"""
    real, shown = run_folders.free_addresses(4), run_folders.free_addresses(4)
    with (
        Proxies(dict(zip(shown, real, strict=True)), cut=0.004) as proxies,
        fleet(clients=4, graph="complete", addresses=shown) as f,
    ):
        for name, address in zip(f.names, real, strict=True):
            f.start(name, options=replace(f.options, listen=address))
        f.rounds(20, 120)
        begun = time.monotonic()
        f.wait(lambda: proxies.resets >= resets_wanted, 600, "enough resets")
        took, proxies.cut = time.monotonic() - begun, 0.0
        back = f.wait(lambda: all_up(f), 60, "all 12 links up")
        time.sleep(2)
        assert all_up(f)
        assert resets(f) == 0
        found = exact(settled(f))
        return (
            f"{proxies.resets} resets in {took:.0f} s; all 12 links up {back:.1f} s later; {found}"
        )


def row_20(connections: int = 1100) -> str:
    """1,100 silent connections of a stranger, 1,024 descriptors"""
    with fleet(clients=3) as f:
        f.start("p0", "p2")
        address = run_folders.load(f.run).client("p1").address
        process = command(
            f, "p1", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
        )
        held: list[socket.socket] = []
        try:
            f.rounds(40, 180)
            host, _, port = address.rpartition(":")
            for _ in range(connections):
                held.append(socket.socket())
                held[-1].setblocking(False)
                held[-1].connect_ex((host, int(port)))
            time.sleep(1)
            before = {"p1": f.status("p1")["k"]}
            f.wait(beyond(f, "k", before, 100), 60, "rounds go on")
            f.kill("p0")
            known = {"p0": f.status("p0")["incarnation"]}
            f.start("p0")
            back = f.wait(
                lambda: beyond(f, "incarnation", known)() and all_up(f), 60, "a neighbour gets in"
            )
            assert process.poll() is None
        finally:
            for each in held:
                each.close()
            process.terminate()
            process.wait(30)
        return f"rounds went on; a neighbour that restarted was in after {back:.1f} s; {exact(settled(f))}"


def row_21(frames: int = 400) -> str:
    """a member's 400 refused frames of 1 MB"""
    with fleet(clients=3) as f:
        f.start("p0", "p1")
        f.wait(beyond(f, "k", {"p0": 20, "p1": 20}), 120)
        person = Identity.read(f.run / "p2", "p2")
        address = run_folders.load(f.run).client("p0").address
        process, memory = f.processes["p0"], []
        memory.append(resident(process.pid))
        asyncio.run(shout(person, address, "p0", frames))
        memory.append(resident(process.pid))
        log = sum(path.stat().st_size for path in (f.run / "p0").glob("log.jsonl*"))
        before = {"p0": f.status("p0")["k"]}
        f.wait(beyond(f, "k", before, 40), 60, "rounds go on")
        assert log < 20e6
        assert memory[1] - memory[0] < 20e6
        return f"log {log / 1e6:.2f} MB, memory {(memory[1] - memory[0]) / 1e6:+.1f} MB; rounds went on"


def row_26() -> str:
    """a member's frames with the largest incarnation, the largest epoch, and huge numbers"""
    with fleet(clients=3) as f:
        f.start("p0", "p1")
        f.wait(beyond(f, "k", {"p0": 20, "p1": 20}), 120)
        manifest = run_folders.load(f.run)
        person, address = Identity.read(f.run / "p2", "p2"), manifest.client("p0").address
        n, layout = manifest.parameters, bytes.fromhex(manifest.layout)
        own = wire_format.Context(manifest.run, layout, n, "p2", "")
        zero, last = torch.zeros(n), Incarnation(2**64 - 1, 1)
        honest = Message(manifest.epoch, 1, 0, 0, Incarnation(1, 7), Incarnation(), zero, zero)
        lies = [
            honest._replace(seen=last),
            honest._replace(sender=last),
            honest._replace(epoch=2**64 - 1),
        ]
        lies += [
            honest._replace(seen=Incarnation(2**61)),
            honest._replace(total=torch.full((n,), 3e38)),
        ]
        asyncio.run(
            say(person, address, "p0", [list(wire_format.pack(own, "p0", lie, 1)) for lie in lies])
        )
        f.wait(beyond(f, "k", {n: f.status(n)["k"] for n in ("p0", "p1")}, 60), 60, "rounds go on")
        assert f.log("p0", "refused")
        f.kill("p0")
        f.start("p0", "p2")
        f.wait(lambda: all_up(f), 60, "all links up after a restart")
        assert max(f.status(n)["incarnation"] for n in f.names) <= 2
        refused = f"{len(lies)} frames refused, rounds went on"
        return f"{refused}; all links up after a restart; {exact(settled(f))}"


async def say(person: Identity, address: str, name: str, messages: list[list[bytes]]) -> None:
    """Messages as chunks, each on a stream of its own that is open for two seconds at most."""
    for chunks in messages:
        async with secure_channel(person, address, name) as channel:
            with contextlib.suppress(
                grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.TimeoutError
            ):
                call = channel.stream_stream(f"/{SERVICE}/Talk")()
                for chunk in chunks:
                    await call.write(chunk)
                await asyncio.wait_for(call.read(), 2)


async def shout(person: Identity, address: str, name: str, frames: int) -> None:
    """Frames whose header holds 1 MB of text, each on a stream of its own."""
    async with secure_channel(person, address, name) as channel:
        for number in range(frames):
            text = pb.Header(protocol=1, run="x" * 2**20 + str(number)).SerializeToString()
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                call = channel.stream_stream(f"/{SERVICE}/Talk")()
                await call.write(struct.pack("<I", len(text)) + text)
                await call.read()


def row_22(seconds: float = 60) -> str:
    """a client that starts a minute before the others know it"""
    with fleet(clients=5) as f:
        whole = run_folders.load(f.run)
        rest = [n for n in f.names if n != "p4"]
        run_folders.publish(f.run, replace(remove_client(whole, "p4"), version=2, removed=()))
        f.start(*rest)
        f.wait(beyond(f, "k", dict.fromkeys(rest, 20)), 120)
        signed = SignedManifest.sign(replace(whole, version=3), (f.run / "ca.key").read_bytes())
        signed.write(f.run / "p4")
        f.start("p4")
        time.sleep(seconds)
        signed.write(f.run / "p0")
        back = f.wait(lambda: all_up(f), 60, "all links up")
        time.sleep(1)
        return f"all links up {back:.1f} s after the manifest came; {exact(settled(f))}"


def models(f: Fleet, *names: str) -> dict[str, tuple[int, torch.Tensor]]:
    """Round and model of clients, from their disks while they run."""
    found = {
        name: state_store.read(f.run / name / "state", running=True) for name in names or f.names
    }
    return {name: (meta["k"], vectors["x"]) for name, (vectors, meta) in found.items()}


def farthest(f: Fleet, optimum: torch.Tensor, *names: str) -> float:
    """The largest relative distance of a client's model from `optimum`."""
    distances = [
        (x.double() - optimum).norm() / optimum.norm() for _, x in models(f, *names).values()
    ]
    return float(max(distances))


def row_23(seconds: float = 60) -> str:
    """a client that dies and stays dead, --drop-after 5, quadratics"""
    options = Options(durability="process", evaluate_every=2, report_every=0.3, drop_after=5)
    with fleet(options=options, step=0.1) as f:
        problem = manifest_problem(run_folders.load(f.run))
        assert isinstance(problem, HasOptimum)
        alive = [n for n in f.names if n != "p4"]
        optimum = problem.optimum([float(n != "p4") for n in f.names])
        f.start()
        f.rounds(15, 120)
        f.kill("p4")
        f.wait(lambda: all(f.status(n)["epoch"] >= 1 for n in alive), 60, "an epoch without it")
        time.sleep(seconds)
        far = farthest(f, optimum, *alive)
        named = sum("p4 silent" in " ".join(f.status(n)["warnings"]) for n in alive)
        f.start("p4")
        back = f.wait(
            lambda: farthest(f, problem.optimum()) < 0.05, 60, "all at the optimum of all"
        )
        assert far < 0.05, far
        assert named
        return (
            f"survivors at {far:.1e} (relative) from their optimum, p4 named by {named}; all within 0.05 of "
            f"the optimum of all {back:.0f} s after its return; {exact(settled(f))}"
        )


def row_25(seconds: float = 60) -> str:
    """the same, linear models on images: the living hold 8 of 10 labels"""
    options = Options(durability="process", evaluate_every=1, report_every=0.3, drop_after=5)
    partition = {"kind": "labels-per-client", "labels": 2}
    images = {"data": "fashion-mnist-small", "model": "svm", "partition": partition}
    with fleet(options=options, problem=images, step=0.05, rate=30) as f:
        alive = [n for n in f.names if n != "p4"]

        def accuracy() -> float:
            return float(sum(f.status(n)["accuracy"] for n in alive)) / len(alive)

        f.start()
        f.rounds(300, 200)
        before = accuracy()
        f.kill("p4")
        f.wait(lambda: all(f.status(n)["epoch"] >= 1 for n in alive), 60, "an epoch without it")
        time.sleep(seconds)
        after = accuracy()
        held = after / 0.8  # no living client can know the two other labels of ten
        found = exact(settled(f, *alive))
        assert held >= 0.70, held
        told = f"{after:.3f} of all ten labels, {held:.3f} of the eight that the living hold"
        return f"mean accuracy {before:.3f} before, {seconds:.0f} s after the new epoch {told}; {found}"


def row_24(step: float = 0.1, distance: float = 1e-4) -> str:
    """rounds to 1e-4 on quadratics, equal devices, against the simulator"""
    with fleet(step=step) as f:
        manifest = run_folders.load(f.run)
        wanted = simulated_rounds(manifest, manifest_problem(manifest), step, distance)
        took = rounds_to(f, distance)
        found = exact(settled(f))
        assert took <= 1.3 * wanted, (took, wanted)
        return f"{took} rounds, the simulator {wanted}; {found}"


def row_40(method: str = "relay", step: float = 0.4, distance: float = 1e-6) -> str:
    """relay between peers, quadratics: a two-way and a one-way graph"""
    told = []
    for graph in ("random-geometric", "ring"):
        with fleet(method=method, graph=graph, step=step) as f:
            took = rounds_to(f, distance)
            sent = sum(
                n["messages"]
                for name in f.names
                for n in f.status(name)["neighbours"]
                if n["way"] == "to"
            )
            told.append(f"{graph}: {distance:.0e} after {took} rounds, {sent} messages")
            told[-1] += f", root {f.status('p0')['root'] or 'none'}, {exact(settled(f))}"
    return "; ".join(told)


def rounds_to(f: Fleet, distance: float) -> int:
    """Start all, and wait until their models are so close (relative) to the optimum: the rounds it took."""
    problem = manifest_problem(run_folders.load(f.run))
    assert isinstance(problem, HasOptimum)
    optimum = problem.optimum()
    f.start()
    f.rounds(5, 120)
    f.wait(lambda: farthest(f, optimum) < distance, 120, "close to the optimum")
    return max(k for k, _ in models(f).values())


def begin_anew(f: Fleet, *names: str) -> float:
    """Start clients, and wait for the first report of each; returns how long that took."""
    known = {name: f.status(name).get("incarnation", 0) for name in names}
    f.start(*names)
    return f.wait(beyond(f, "incarnation", known), 120, "a first report")


def row_41(times: int = 10) -> str:
    """relay: kill -9 of the root, many times; the manifest names another; its disk is lost; it is removed"""
    with fleet(method="relay", step=0.4) as f:
        problem, told = manifest_problem(run_folders.load(f.run)), []
        assert isinstance(problem, HasOptimum)

        def best(names: list[str]) -> torch.Tensor:
            return problem.optimum([float(n in names) for n in f.names])

        def is_led(names: list[str], root: str) -> bool:
            return {f.status(n)["root"] for n in names} == {root}

        f.start()
        f.rounds(20, 120)
        root = f.status("p0")["root"]
        for _ in range(times):
            f.kill(root)
            begin_anew(f, root)
            time.sleep(0.5)
        f.wait(lambda: farthest(f, best(f.names)) < 1e-6, 60, "at the optimum")
        assert resets(f) == 0
        f.kill()
        told.append(f"{f.kills - 4} kill -9 of the root {root}, then of all: {exact(f.audit())}")
        begin_anew(f, *f.names)
        second = next(n for n in f.names if n != root)
        run_folders.publish_next(
            f.run, lambda m: manifest_changes.apply_change(m, Change(root=second))
        )
        took = f.wait(lambda: is_led(f.names, second), 60, "another root")
        f.wait(lambda: farthest(f, best(f.names)) < 1e-6, 60, "at the optimum")
        told.append(
            f"set --root: {second} leads after {took:.1f} s, within 1e-6, {exact(settled(f))}"
        )
        begin_anew(f, *f.names)
        f.kill(second)
        shutil.rmtree(f.run / second / "state")
        begin_anew(f, second)
        f.wait(lambda: farthest(f, best(f.names)) < 1e-6, 60, "at the optimum again")
        assert is_led(f.names, second)
        assert "its model is the newest known here" in (f.run / second / "log.jsonl").read_text()
        told.append(
            f"its disk is lost: it leads on from a neighbour's model, within 1e-6, {exact(settled(f))}"
        )
        begin_anew(f, *f.names)
        f.kill(second)
        begun = time.monotonic()
        run_folders.remove(f.run, second)
        rest = [n for n in f.names if n != second]
        f.wait(lambda: all(f.status(n)["version"] == 3 for n in rest), 60, "version 3")
        f.wait(lambda: farthest(f, best(rest), *rest) < 1e-6, 60, "at the optimum of the rest")
        gone = time.monotonic() - begun
        third = {f.status(n)["root"] for n in rest}
        assert len(third) == 1
        f.stop()
        told.append(
            f"removed: {third.pop()} leads, within 1e-6 after {gone:.0f} s, {exact(f.audit(*rest))}"
        )
        return "; ".join(told)


def simulated_rounds(manifest: Manifest, problem: Problem, step: float, distance: float) -> int:
    """The rounds that the method's equations take with all mass in the clients."""
    network, clients = manifest.network, np.arange(len(manifest.clients))
    A, B = (
        torch.eye(len(clients), dtype=torch.float64),
        torch.eye(len(clients), dtype=torch.float64),
    )
    for i, j, a, b in zip(network.receivers, network.senders, network.a, network.b, strict=True):
        A[i, i], A[i, j] = A[i, i] - a, a
        B[j, j], B[i, j] = B[j, j] - b, b
    problem = problem.to(torch.device("cpu"), torch.float64)
    assert isinstance(problem, HasOptimum)
    x, optimum, k = problem.start(manifest.seed).double(), problem.optimum(), 0
    y = g = problem.full(x, clients)[1]
    while ((x - optimum).norm(dim=1) / optimum.norm()).max() >= distance:
        y, k = B @ y, k + 1
        x = A @ x - step * y
        new = problem.full(x, clients)[1]
        y, g = y + new - g, new
    return k


def command(f: Fleet, name: str, **how: Any) -> subprocess.Popen[bytes]:
    """A client started by the command; `how` are arguments of Popen."""
    line = [sys.executable, "-m", "spodgt", "peer", "start", name, "--run", str(f.run)]
    line += ["--durability", "process", "--quiet"]
    with (f.run / f"{name}.out").open("w") as out:
        return subprocess.Popen(line, stderr=out, stdout=out, **how)


def resident(pid: int | None) -> float:
    """Bytes of memory that a process holds."""
    return float(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


ROWS: dict[str, Callable[[], str]] = {
    name.removeprefix("row_"): function
    for name, function in sorted(globals().items())
    if name.startswith("row_")
}


def main() -> None:
    from tests.peer import netns

    ROWS.update(
        {n.removeprefix("row_"): getattr(netns, n) for n in dir(netns) if n.startswith("row_")}
    )
    for name in sys.argv[1:] or sorted(
        ROWS, key=lambda n: (int("".join(filter(str.isdigit, n))), n)
    ):
        begun = time.monotonic()
        try:
            figure = ROWS[name]()
        except Skipped as error:
            figure = f"skipped: {error}"
        except Exception as error:
            figure = f"FAILED: {type(error).__name__}: {error}"
        print(
            f"| {name} | {(ROWS[name].__doc__ or '').strip()} | {figure} | "
            f"{time.monotonic() - begun:.0f} s |",
            flush=True,
        )


if __name__ == "__main__":
    main()
