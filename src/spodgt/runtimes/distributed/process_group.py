"""The processes of one job, over `torch.distributed`: gloo between CPUs, nccl between GPUs.

Every operation has a time limit, and one that fails names the lost rank and the round. On failure the first
rank to notice sets a flag in the rendezvous store; a thread of each live rank answers, even while the rank
waits for another; all survivors report the rank that did not. Nothing is pickled. The network is trusted:
nothing is authenticated or encrypted here.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from spodgt._util.text import first_line
from spodgt.errors import Failed, InvalidInput

TIMEOUT = 600.0  # seconds a process may take for its gradients, or rank 0 for an evaluation
_GRACE = 5.0  # seconds that survivors have to answer
_LISTEN = 0.25  # seconds between two checks of the flag
_GATHER = 7  # tags; mixing counts up from 16


Piece = tuple[int, Tensor]  # to or from whom, and what


@dataclass(eq=False)
class Group:
    """This process among its peers."""

    rank: int
    size: int
    device: torch.device
    timeout: float
    store: Any = field(repr=False)
    members: Any = field(default=None, repr=False)  # a torch group of the first ranks; None for all
    k: int = 0  # the round at hand, for messages

    # --- sending ---------------------------------------------------------------------------------
    def post(self, sends: Sequence[Piece], receives: Sequence[Piece], tag: int) -> list[Work]:
        """Start all of these at once, and give a handle for each; every one must be waited for."""
        both = [(dist.isend, *each) for each in sends] + [(dist.irecv, *each) for each in receives]
        operations = [
            dist.P2POp(call, tensor, peer, self.members, tag) for call, peer, tensor in both
        ]
        if not operations:
            return []
        with self.named(both[0][1]):
            works = dist.batch_isend_irecv(operations)
        if len(works) < len(both):  # nccl gives one handle for the whole batch
            works = [works[0]] * len(both)
        return [Work(self, peer, work) for (_, peer, _), work in zip(both, works, strict=True)]

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            with self.named(None):
                dist.all_reduce(tensor, group=self.members)
        return tensor

    def share_bytes(self, data: bytes | bytearray) -> Tensor:
        """The bytes of rank 0."""
        if self.size == 1:
            return torch.frombuffer(bytearray(data), dtype=torch.uint8)
        with self.named(None):
            length = torch.tensor([len(data)])
            dist.broadcast(length, 0, self.members)
            tensor = torch.empty(int(length), dtype=torch.uint8)
            if self.rank == 0:
                tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            dist.broadcast(tensor, 0, self.members)
        return tensor

    def gather(self, mine: Tensor, counts: Sequence[int]) -> list[Tensor] | None:
        """On rank 0 the rows of every rank, of which rank r has `counts[r]`; None elsewhere."""
        mine = mine.detach().cpu().contiguous()
        if self.rank:
            self._all(self.post([(0, mine)] if len(mine) else [], [], _GATHER))
            return None
        parts = [mine] + [mine.new_empty(count, *mine.shape[1:]) for count in counts[1:]]
        self._all(self.post([], [(r, p) for r, p in enumerate(parts) if r and len(p)], _GATHER))
        return parts

    def scatter(self, parts: Sequence[Tensor] | None, like: Tensor) -> Tensor:
        """The part of this rank, from rank 0; `like` has its shape and type."""
        if self.rank == 0:
            assert parts is not None
            sends = [(r, part.contiguous()) for r, part in enumerate(parts) if r and len(part)]
            self._all(self.post(sends, [], _GATHER))
            return parts[0]
        self._all(self.post([], [(0, like)] if len(like) else [], _GATHER))
        return like

    @staticmethod
    def _all(works: list[Work]) -> None:
        for work in works:
            work.wait()

    # --- failing ---------------------------------------------------------------------------------
    @contextmanager
    def named(self, peer: int | None) -> Iterator[None]:
        """Turn what the transport raises into a sentence with the rank and the round."""
        try:
            yield
        except RuntimeError as error:
            raise self._lost(peer, error) from error

    def _lost(self, peer: int | None, error: Exception) -> Failed:
        who = f"rank {peer}" if peer is not None else self._missing()
        with suppress(Exception):  # the store itself may be gone
            # The first to notice is right: later ones may only see that others have stopped.
            who = self.store.compare_set("spodgt/lost", "", who).decode() or who
        reason = first_line(error)
        return Failed(
            f"{who} was lost in round {self.k} (rank {self.rank} saw: {_short(reason)}); the last "
            "checkpoint is kept: start again with --resume, or let torchrun --max-restarts do it."
        )

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Answer from a thread when another rank reports a failure, whatever this one is waiting for."""
        store, over = (
            self.store.clone(),
            threading.Event(),
        )  # clones may be used beside the original

        def listen() -> None:
            with suppress(Exception):  # the store goes with the job
                while not over.wait(_LISTEN):
                    if store.check(["spodgt/failed"]):
                        store.set(f"spodgt/alive/{self.rank}", "1")
                        return

        thread = threading.Thread(target=listen, name="liveness", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(_GRACE)

    def _missing(self) -> str:
        """The ranks that do not answer, as well as can be told after a collective call failed."""
        try:
            self.store.set("spodgt/failed", "1")
            begun, away = time.monotonic(), [r for r in range(self.size) if r != self.rank]
            while len(away) > 1 and time.monotonic() - begun < _GRACE:  # a busy rank answers late
                time.sleep(_LISTEN)
                if self.store.check(["spodgt/lost"]):
                    return str(self.store.get("spodgt/lost").decode())
                away = [r for r in away if not self.store.check([f"spodgt/alive/{r}"])]
        except Exception:
            away = []
        return " or ".join(f"rank {r}" for r in away) or "an unknown rank"


@dataclass(eq=False)
class Work:
    """A message on its way to or from `peer`."""

    group: Group
    peer: int
    handle: Any

    def wait(self) -> None:
        with self.group.named(self.peer):
            self.handle.wait()


def _short(reason: str) -> str:
    """Without the source line that gloo puts first, and the advice that follows."""
    return reason.split("] ", 1)[-1].split(". ", 1)[0][:120].rstrip(".")


# --- starting --------------------------------------------------------------------------------------
def launched() -> bool:
    """Whether this process was started by `torchrun`, or has made a process group itself."""
    return dist.is_available() and (dist.is_initialized() or dist.is_torchelastic_launched())


def restarted() -> bool:
    """Whether `torchrun --max-restarts` has started this job again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def main_process() -> bool:
    """Whether this process is the one that writes and shows: rank 0, or the only one."""
    return not launched() or int(os.environ.get("RANK", "0")) == 0


_joined: Group | None = None


def join(device: torch.device | str = "cpu") -> Group:
    """Join the job once per process; a CUDA `device` means the GPU of this process on its host."""
    global _joined  # noqa: PLW0603  (torch keeps the default group in a global, too)
    if _joined is None or not dist.is_initialized():
        _joined = _join(torch.device(device))
    return _joined


def _join(device: torch.device) -> Group:
    if device == torch.device("cuda"):
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    timeout = _timeout()
    if not dist.is_initialized():
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        try:
            store, rank, size = next(iter(rendezvous("env://")))
            # torchrun keeps one store over restarts: addresses of the dead must not be found again.
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            store = dist.PrefixStore(f"spodgt/{attempt}", store)  # type: ignore[attr-defined]
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout)
            )
        except (RuntimeError, ValueError) as error:
            reason = first_line(error)
            raise Failed(
                f"the processes could not meet: {reason}; see docs/howto/processes.md."
            ) from error
    else:
        store = dist.distributed_c10d._get_default_store()
    return Group(dist.get_rank(), dist.get_world_size(), device, timeout, store)


def _timeout() -> float:
    text = os.environ.get("SPODGT_TIMEOUT", str(TIMEOUT))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise InvalidInput(
            f"SPODGT_TIMEOUT must be seconds above 0, got {text!r}; use {TIMEOUT:.0f}."
        )
    return seconds
