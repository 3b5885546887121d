"""What a site of `spodgt.join` costs: memory, bytes written and sent, time lost to exchanges.

    python benchmarks/join.py                     two sites, 50 million parameters, blocks of 100 steps
    python benchmarks/join.py 5000000 20 4        parameters, steps of a block, blocks

Two processes on loopback train a perceptron with SGD; the same process trains alone before it joins.
Memory is in units of the model (4 bytes for each parameter), beyond the largest of training alone.
Processor time is that beyond the same steps alone: of the training thread (corrections, and the ends
of blocks) and of the other threads (state, messages).
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from spodgt.experiment import Experiment
from spodgt.peer.host.files import DiskFile
from spodgt.peer.membership import run_folders
from spodgt.sites.api import join
from spodgt.sites.layout import model_row
from spodgt.sites.run_setup import create_script_run

BATCH = 8
ALONE = 10  # steps without exchanges, for comparison
FIRST_BLOCKS = 1  # not measured: the initial model is sent and files are made


def network(parameters: int) -> nn.Sequential:
    """Two layers without bias, together about `parameters`."""
    width = math.isqrt(parameters // 2)
    first = nn.Linear(width, width, bias=False)
    return nn.Sequential(first, nn.ReLU(), nn.Linear(width, width, bias=False))


class Memory:
    """The largest memory of this process while it is watched, by kind, in bytes."""

    def __init__(self) -> None:
        self.largest = {"RssAnon": 0, "RssFile": 0}
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            for kind, size in resident().items():
                self.largest[kind] = max(self.largest[kind], size)
            time.sleep(0.02)


def resident() -> dict[str, int]:
    """Anonymous memory and mapped files of this process, in bytes."""
    sizes = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        kind, _, value = line.partition(":")
        if kind in ("RssAnon", "RssFile"):
            sizes[kind] = 1024 * int(value.split()[0])
    return sizes


class Written:
    """Bytes that this process writes to its state by files; rows count their own."""

    def __init__(self) -> None:
        self.bytes = 0
        write = DiskFile.write

        def counted(file: DiskFile, data: memoryview, at: int) -> None:
            self.bytes += data.nbytes
            write(file, data, at)

        DiskFile.write = counted  # type: ignore[method-assign]


class Times(NamedTuple):
    """Seconds."""

    wall: float
    training: float  # processor time of the training thread
    others: float  # of all other threads
    system: float  # of all threads, in the system

    @classmethod
    def now(cls) -> Times:
        used = os.times()
        thread = time.thread_time()
        return cls(time.monotonic(), thread, time.process_time() - thread, used.system)

    @classmethod
    def since(cls, begun: Times) -> Times:
        pairs = zip(cls.now(), begun, strict=True)
        return cls(*(now - before for now, before in pairs))


def train(
    folder: Path, parameters: int, block_steps: int, blocks: int, results: Queue[Any]
) -> None:
    """Train alone, then as a site; puts the figures into `results`."""
    torch.set_num_threads(1)
    model = network(parameters)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(BATCH, model[0].in_features)  # type: ignore[arg-type]

    def steps(count: int) -> Times:
        """Make some steps."""
        begun = Times.now()
        for _ in range(count):
            optimizer.zero_grad()
            torch.autograd.backward((model(x) - x).square().mean())
            optimizer.step()
        return Times.since(begun)

    memory = Memory()
    steps(2)
    alone = steps(ALONE)
    base = dict(memory.largest)
    written = Written()
    size = 4 * model_row(model).layout.columns
    with join(
        folder,
        model,
        optimizer,
        block_steps=block_steps,
        durability="process",
        checkpoint_blocks=1000,
    ) as site:
        steps(FIRST_BLOCKS * block_steps)
        assert site._connection is not None
        handover = site._connection.handover
        handover.wait_until(lambda: handover.block is None)
        transport = site._connection.transport
        before = [(traffic.messages, traffic.bytes) for _, traffic in transport.traffic()]
        rows = site._connection.store.rows
        assert rows is not None
        first_bytes = written.bytes + rows.bytes_made
        waited = site.exchange_seconds
        first_k = site._connection.node.state.k
        count = blocks * block_steps
        joined = steps(count)
        handover.wait_until(lambda: handover.block is None)
        after = [(traffic.messages, traffic.bytes) for _, traffic in transport.traffic()]
        exchanges = site._connection.node.state.k - first_k
        waited = site.exchange_seconds - waited
        bytes_written = written.bytes + rows.bytes_made - first_bytes
        sent = after[0][1] - before[0][1]
        messages = after[0][0] - before[0][0]
    results.put(
        {
            "site": folder.name,
            "parameters": size // 4,
            "block_steps": block_steps,
            "blocks": exchanges,
            "extra_memory_in_models": {
                kind: round((memory.largest[kind] - base[kind]) / size, 2) for kind in base
            },
            "bytes_written_per_exchange_in_models": round(bytes_written / exchanges / size, 2),
            "messages_sent": messages,
            "bytes_sent_per_message_in_models": round(sent / max(1, messages) / size, 3),
            "seconds_per_step_alone": round(alone.wall / ALONE, 3),
            "seconds_per_step": round(joined.wall / count, 3),
            "share_of_time_waiting": round(waited / joined.wall, 4),
            "processor_seconds_per_step_alone": round(alone.training / ALONE, 4),
            "processor_seconds_per_step": round(joined.training / count, 4),
            "processor_seconds_of_other_threads_per_exchange": round(joined.others / exchanges, 2),
            "system_seconds_per_exchange": round(joined.system / exchanges, 2),
            "share_of_exchanges": round(joined.others / (joined.training + joined.others), 3),
            "load": os.getloadavg()[0],
        }
    )


def main(parameters: int = 50_000_000, block_steps: int = 100, blocks: int = 3) -> None:
    """Print the figures of both sites."""
    experiment = Experiment.parse(
        {
            "network": {"kind": "exponential", "clients": 2},
            "run": {"methods": ["spod-gt-memory"], "seeds": 1},
        }
    )
    with tempfile.TemporaryDirectory(prefix="spodgt-join-") as directory:
        folder = Path(directory) / "run"
        layout = model_row(network(parameters)).layout
        manifest = create_script_run(folder, experiment, layout)
        for name in manifest.names:
            run_folders.issue(folder, name)
        context = multiprocessing.get_context("spawn")
        results: Queue[Any] = context.Queue()
        processes = []
        for name in manifest.names:
            arguments = (folder / name, parameters, block_steps, blocks, results)
            processes.append(context.Process(target=train, args=arguments))
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        for _ in processes:
            print(json.dumps(results.get(timeout=10)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
