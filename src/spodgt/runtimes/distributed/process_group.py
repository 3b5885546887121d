"""The processes of one job, over `torch.distributed`: gloo between CPUs, nccl between GPUs.

Every operation has a timeout, and a failure names the lost rank and the round. The first rank that
fails sets a flag in the rendezvous store; a thread of each live rank answers it, even while the
rank waits for another; the survivors report the rank that has not answered. Nothing is pickled. The
network is trusted: nothing is authenticated or encrypted here.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from spodgt._util.text import first_line
from spodgt.errors import Failed, InvalidInput
from spodgt.types import Bools

TIMEOUT = 600.0  # seconds a process may take for its gradients, or rank 0 for an evaluation
_GRACE = 5.0  # seconds that survivors have to answer
_POLL = 0.25  # seconds between two checks of the flag
_GATHER_TAG = 7  # tags of mixing count up from 16


class Transfer(NamedTuple):
    """A tensor to send or to receive."""

    peer: int  # rank of the other process
    tensor: Tensor


@dataclass(eq=False)
class PendingTransfer:
    """A transfer in progress."""

    group: Group
    peer: int  # rank of the other process
    handle: Any

    def wait(self) -> None:
        with self.group.errors_with_rank(self.peer):
            self.handle.wait()


class StartedTransfers(NamedTuple):
    """Transfers in progress; every one must be waited for."""

    sends: list[PendingTransfer]
    receives: list[PendingTransfer]

    def wait(self) -> None:
        for work in (*self.sends, *self.receives):
            work.wait()


@dataclass(eq=False)
class Group:
    """This process and the others of its job."""

    rank: int
    size: int
    device: torch.device
    timeout: float  # seconds
    store: Any = field(repr=False)
    members: Any = field(default=None, repr=False)  # a torch group of the first ranks; None: all
    k: int = 0  # the current round, for error messages

    # --- communication ---------------------------------------------------------------------------
    def start_transfers(
        self, sends: Sequence[Transfer], receives: Sequence[Transfer], tag: int
    ) -> StartedTransfers:
        """Start to send and receive tensors, all at once."""
        transfers = [*sends, *receives]
        if not transfers:
            return StartedTransfers([], [])
        operations = []
        for index, transfer in enumerate(transfers):
            call = dist.isend if index < len(sends) else dist.irecv
            operations.append(dist.P2POp(call, transfer.tensor, transfer.peer, self.members, tag))
        with self.errors_with_rank(transfers[0].peer):
            handles = dist.batch_isend_irecv(operations)
        if len(handles) < len(transfers):  # nccl returns one handle for the whole batch
            handles = [handles[0]] * len(transfers)
        works = []
        for transfer, handle in zip(transfers, handles, strict=True):
            works.append(PendingTransfer(self, transfer.peer, handle))
        return StartedTransfers(works[: len(sends)], works[len(sends) :])

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.size > 1:
            with self.errors_with_rank(None):
                dist.all_reduce(tensor, group=self.members)
        return tensor

    def any(self, flags: Bools) -> Bools:
        """Flags that are set in any process."""
        return (self.sum(torch.from_numpy(flags.astype(np.int64))) > 0).numpy()

    def broadcast_bytes(self, data: bytes) -> bytes:
        """The bytes of rank 0."""
        if self.size == 1:
            return data
        with self.errors_with_rank(None):
            length = torch.tensor([len(data)])
            dist.broadcast(length, 0, self.members)
            tensor = torch.empty(int(length), dtype=torch.uint8)
            if self.rank == 0:
                tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            dist.broadcast(tensor, 0, self.members)
        return bytes(tensor.numpy().tobytes())

    def gather(self, rows: Tensor, counts: Sequence[int]) -> list[Tensor] | None:
        """The rows of all ranks, on rank 0; None elsewhere.

        Args:
            rows: (counts[rank], …) of this rank.
            counts: number of rows of each rank.
        """
        rows = rows.detach().cpu().contiguous()
        if self.rank:
            sends = [Transfer(0, rows)] if len(rows) else []
            self.start_transfers(sends, [], _GATHER_TAG).wait()
            return None
        parts = [rows]
        receives = []
        for rank in range(1, len(counts)):
            parts.append(rows.new_empty(counts[rank], *rows.shape[1:]))
            if counts[rank]:
                receives.append(Transfer(rank, parts[rank]))
        self.start_transfers([], receives, _GATHER_TAG).wait()
        return parts

    def scatter(self, parts: Sequence[Tensor] | None, like: Tensor) -> Tensor:
        """The part of this rank.

        Args:
            parts: of all ranks, on rank 0; None elsewhere.
            like: a tensor with the shape and the type of the part, which is overwritten.
        """
        if self.rank == 0:
            assert parts is not None
            sends = []
            for rank in range(1, len(parts)):
                if len(parts[rank]):
                    sends.append(Transfer(rank, parts[rank].contiguous()))
            self.start_transfers(sends, [], _GATHER_TAG).wait()
            return parts[0]
        receives = [Transfer(0, like)] if len(like) else []
        self.start_transfers([], receives, _GATHER_TAG).wait()
        return like

    # --- failures --------------------------------------------------------------------------------
    @contextmanager
    def errors_with_rank(self, peer: int | None) -> Iterator[None]:
        """Raise `Failed` with the rank and the round for errors of the transport.

        Args:
            peer: rank of the other process; None: a collective operation.
        """
        try:
            yield
        except RuntimeError as error:
            raise self._failure(peer, error) from error

    def _failure(self, peer: int | None, error: Exception) -> Failed:
        lost = self._find_lost_ranks() if peer is None else f"rank {peer}"
        with suppress(Exception):  # the store may be lost, too
            # The first report is right: later ones may only see that other survivors have stopped.
            lost = self.store.compare_set("spodgt/lost", "", lost).decode() or lost
        return Failed(
            f"{lost} was lost in round {self.k} (rank {self.rank} saw: {_shorten(error)}); the "
            "last checkpoint is kept: start again with --resume, or let torchrun --max-restarts do "
            "it."
        )

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Answer failure reports of other ranks from a thread, even while this rank waits."""
        store = self.store.clone()  # a clone may be used in another thread
        finished = threading.Event()

        def listen() -> None:
            with suppress(Exception):  # the store ends with the job
                while not finished.wait(_POLL):
                    if store.check(["spodgt/failed"]):
                        store.set(f"spodgt/alive/{self.rank}", "1")
                        return

        thread = threading.Thread(target=listen, name="liveness", daemon=True)
        thread.start()
        try:
            yield
        finally:
            finished.set()
            thread.join(_GRACE)

    def _find_lost_ranks(self) -> str:
        """The ranks that do not answer after a collective operation has failed."""
        silent = [rank for rank in range(self.size) if rank != self.rank]
        try:
            self.store.set("spodgt/failed", "1")
            started = time.monotonic()
            while len(silent) > 1 and time.monotonic() - started < _GRACE:  # busy ranks are late
                time.sleep(_POLL)
                if self.store.check(["spodgt/lost"]):
                    return str(self.store.get("spodgt/lost").decode())
                silent = [r for r in silent if not self.store.check([f"spodgt/alive/{r}"])]
        except Exception:
            silent = []
        return " or ".join(f"rank {rank}" for rank in silent) or "an unknown rank"


def _shorten(error: Exception) -> str:
    """An error without the source line that gloo puts first, and the advice that follows."""
    reason = first_line(error)
    return reason.split("] ", 1)[-1].split(". ", 1)[0][:120].rstrip(".")


# --- starting ------------------------------------------------------------------------------------
def launched() -> bool:
    """Whether this process was started by `torchrun`, or has made a process group itself."""
    return dist.is_available() and (dist.is_initialized() or dist.is_torchelastic_launched())


def restarted() -> bool:
    """Whether `torchrun --max-restarts` has started this job again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def main_process() -> bool:
    """Whether this process writes and reports: rank 0, or the only process."""
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
            # torchrun keeps one store over restarts; it has the addresses of ended processes.
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            store = dist.PrefixStore(f"spodgt/{attempt}", store)  # type: ignore[attr-defined]
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout)
            )
        except (RuntimeError, ValueError) as error:
            reason = first_line(error)
            raise Failed(
                f"the processes could not connect: {reason}; see docs/howto/processes.md."
            ) from error
    else:
        store = _default_store()
    return Group(dist.get_rank(), dist.get_world_size(), device, timeout, store)


def _default_store() -> Any:
    """The store of a process group that was made by the caller.

    PyTorch has no public function for it. Without it, lost ranks are not named in errors.
    """
    get_store = getattr(dist.distributed_c10d, "_get_default_store", None)
    if get_store is None:
        return dist.HashStore()  # type: ignore[attr-defined]
    return get_store()


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
