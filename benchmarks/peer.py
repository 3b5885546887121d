"""How fast peers are: local rounds per second, and the link against bare gRPC.

python -m benchmarks.peer rounds        five peers, linear model, durability `process`
python -m benchmarks.peer link          45 MB models over one link, against bare grpc.aio with mTLS
python -m benchmarks.peer profile       profile of one peer, alone on a core
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import torch

from spodgt.experiment import Experiment
from spodgt.peer.membership import certificates, run_folders
from spodgt.peer.membership.run_folders import create
from spodgt.peer.options import Options
from spodgt.peer.protocol.running_sums import Ack, Incarnation, Message
from spodgt.peer.transport import wire_format
from spodgt.peer.transport.connection import LocalClient
from spodgt.peer.transport.grpc_wire import OPTIONS, secure_channel
from spodgt.peer.transport.links import Transport
from tests.peer.fleet import Fleet

CONFIG = Experiment.parse(
    {
        "run": {"methods": ["spod-gt-memory"], "step_size": 0.01, "seeds": 1},
        "network": {"kind": "exponential", "clients": 5},
        "participation": {"kind": "always"},
        "problem": {
            "data": "fashion-mnist-small",
            "model": "svm",
            "partition": {"kind": "labels-per-client", "labels": 1},
        },
    }
)


def rounds(seconds: float = 12.0, commit_every: int = 1) -> dict[str, Any]:
    """Five peers on this host, as fast as they can."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        create(run, CONFIG)
        options = Options(
            durability="process", evaluate_every=1e9, report_every=0.5, commit_every=commit_every
        )
        with Fleet(run, options) as fleet:
            fleet.start()
            fleet.rounds(50, 180)
            pids = {name: fleet.processes[name].pid or 0 for name in fleet.names}
            before = {name: (fleet.status(name)["k"], cpu(pids[name])) for name in fleet.names}
            begun = time.monotonic()
            time.sleep(seconds)
            spent = time.monotonic() - begun
            after = {name: (fleet.status(name)["k"], cpu(pids[name])) for name in fleet.names}
            sent = {
                n: sum(x["messages"] for x in fleet.status(n)["neighbours"] if x["way"] == "to")
                for n in fleet.names
            }
            fleet.stop()
            audit = fleet.audit().error
    done = {name: after[name][0] - before[name][0] for name in after}
    used = {name: after[name][1] - before[name][1] for name in after}
    return {
        "commit_every": commit_every,
        "rounds_per_second": {name: round(done[name] / spent, 1) for name in done},
        "cpu_ms_per_round": {
            name: round(1000 * used[name] / max(1, done[name]), 2) for name in done
        },
        "cpu_share_of_two_cores": round(sum(used.values()) / spent / 2, 2),
        "messages_sent": sent,
        "audit": audit,
        "load": os.getloadavg()[0],
    }


def cpu(pid: int) -> float:
    """Seconds of processor a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def link(n: int = 45_000_000 // 8, count: int = 12) -> dict[str, Any]:
    """MB/s and CPU seconds per GB of messages with x and total (45 MB), ours and bare; in one process."""
    key, ca = certificates.create_authority("bench")
    a, b = (certificates.issue(key, ca, name) for name in "ab")
    results = {}
    for kind in ("bare", "ours"):
        arrived = asyncio.Semaphore(0)
        if kind == "ours":
            contexts = [wire_format.Context("run", b"1", n, name) for name in "ab"]
            incarnations = Incarnation(1, 1), Incarnation(1, 2)

            def got(
                _: str, frame: Any, incarnations: Any = incarnations, arrived: Any = arrived
            ) -> None:
                server.send_ack("a", Ack(0, frame.number, incarnations[1], incarnations[0]))  # noqa: B023
                arrived.release()

            server = Transport(LocalClient(contexts[1], b, got, print))
            port = await server.start("127.0.0.1:0", {}, {"a": ""})
            client = Transport(LocalClient(contexts[0], a, lambda *_: None, lambda *_: None))
            await client.start("127.0.0.1:0", {"b": f"127.0.0.1:{port}"}, {})
            x, total = torch.randn(n), torch.randn(n)

            async def send(
                number: int,
                x: Any = x,
                total: Any = total,
                incarnations: Any = incarnations,
                arrived: Any = arrived,
            ) -> None:
                message = Message(0, number, 0, 0, incarnations[0], incarnations[1], x, total)
                client.send_latest("b", message)  # noqa: B023
                await arrived.acquire()

            closers = [client.stop, server.stop]
        else:
            credentials = grpc.ssl_server_credentials(
                [(b.key, b.certificate)], ca, require_client_auth=True
            )
            bare = grpc.aio.server(options=OPTIONS)

            async def talk(requests: Any, context: Any, arrived: Any = arrived) -> None:
                size = 0
                while (chunk := await context.read()) is not grpc.aio.EOF:
                    size += len(chunk)
                    if size >= 8 * n:
                        size = 0
                        arrived.release()

            handler = {"Talk": grpc.stream_stream_rpc_method_handler(talk)}
            bare.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", handler),))
            port = bare.add_secure_port("127.0.0.1:0", credentials)
            await bare.start()
            channel = secure_channel(a, f"127.0.0.1:{port}", "b")
            call = channel.stream_stream("/bare/Talk")()
            data = bytes(8 * n)

            async def send(
                number: int, call: Any = call, data: Any = data, arrived: Any = arrived
            ) -> None:
                for at in range(0, len(data), wire_format.CHUNK):
                    await call.write(data[at : at + wire_format.CHUNK])
                await arrived.acquire()

            async def close(channel: Any = channel, bare: Any = bare) -> None:
                await channel.close()
                await bare.stop(0)

            closers = [close]
        await send(1)
        begun, used = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
        for number in range(count):
            await send(number + 2)
        spent, now = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_SELF)
        busy = now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime
        results[kind] = {
            "MB/s": round(8e-6 * n * count / spent),
            "cpu_s_per_GB": round(busy / (8e-9 * n * count), 2),
        }
        for stop in closers:
            await stop()
    results["share"] = {
        "wall": round(results["ours"]["MB/s"] / results["bare"]["MB/s"], 2),
        "cpu": round(results["bare"]["cpu_s_per_GB"] / results["ours"]["cpu_s_per_GB"], 2),
    }
    return {**results, "load": os.getloadavg()[0]}


def profile(count: int = 500) -> dict[str, Any]:
    """CPU milliseconds of the parts of a round: step (with gradient), commit, packing a message."""
    from spodgt.peer.process.main import Peer

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        create(run, CONFIG)
        peer = Peer(
            run_folders.issue(run, "p0"), "p0", Options(durability="process", compiled=True)
        )
        node = peer.node
        node.handshaken = set(node.state.out)  # as if all neighbours were there
        parts = {"step": 0.0, "commit": 0.0, "pack": 0.0, "unpack": 0.0}
        other = wire_format.Context(peer.context.run, peer.context.layout, peer.context.n, "p1")
        for k in range(count):
            t0 = time.process_time()
            node.advance(True, list(node.state.out))
            t1 = time.process_time()
            node.commit()
            t2 = time.process_time()
            message = node.message("p1")
            assert message is not None
            chunks = list(wire_format.pack(peer.context, "p1", message, k))
            t3 = time.process_time()
            assembler = wire_format.MessageAssembler(other, "p0")
            for chunk in chunks:
                assembler.add(chunk)
            t4 = time.process_time()
            for name, value in zip(parts, (t1 - t0, t2 - t1, t3 - t2, t4 - t3), strict=True):
                parts[name] += 1000 * value / count
        return {name: round(value, 3) for name, value in parts.items()}


def main() -> None:
    which = sys.argv[1:] or ["rounds", "link", "profile"]
    works: dict[str, Callable[[], dict[str, Any]]] = {
        "rounds": rounds,
        "grouped": lambda: rounds(commit_every=4),
        "profile": profile,
        "link": lambda: asyncio.run(link()),
    }
    for name in which:
        print(name, json.dumps(works[name]()), flush=True)


if __name__ == "__main__":
    main()
