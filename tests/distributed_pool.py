"""Four real processes that join once and then do what tests ask, in groups of two, three or four."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch.multiprocessing as mp

SIZE = 4
PATIENCE = 120.0  # seconds


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Pool:
    """`pool(size, function, …)` calls `function(group, …)` in `size` processes and returns their answers."""

    def __init__(self) -> None:
        context, port = mp.get_context("forkserver"), free_port()
        context.set_forkserver_preload(["spodgt.training"])
        self.pipes, self.processes = [], []
        for rank in range(SIZE):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, port), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def __call__(
        self, size: int, function: Callable[..., Any], *arguments: Any, **named: Any
    ) -> list[Any]:
        for pipe in self.pipes[:size]:
            pipe.send((size, function, arguments, named))
        answers = []
        for rank, pipe in enumerate(self.pipes[:size]):
            if not pipe.poll(PATIENCE):
                raise TimeoutError(f"rank {rank} of {size} does not answer to {function.__name__}")
            answers.append(pipe.recv())
        for rank, (good, answer) in enumerate(answers):
            if not good:
                raise RuntimeError(f"rank {rank}: {answer}")
        return [answer for _, answer in answers]

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def _serve(pipe: Connection, rank: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SPODGT_TIMEOUT": "30"}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(SIZE)}
    import torch
    import torch.distributed as dist

    from spodgt.runtimes.distributed.process_group import Group, join

    torch.set_num_threads(1)
    group = join()
    groups = {SIZE: group}
    for size in range(1, SIZE):
        members = dist.new_group(list(range(size)))
        groups[size] = Group(rank, size, group.device, group.timeout, group.store, members)
    while True:
        size, function, arguments, named = pipe.recv()
        try:
            pipe.send((True, function(groups[size], *arguments, **named)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
