"""Large messages between processes of one Linux host through shared memory, announced by a small message.

A sender writes into anonymous shared memory and tells the receiver where; the receiver maps it through /proc,
copies, and marks it free. Nothing has a name in a file system, so a killed process leaves nothing behind. At
the start it is tried which processes can read each other's memory; all others use the network.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import secrets
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

LEAST = 2**20  # bytes of a message for which this pays
_HEAD = 4096  # bytes before the message: the first says whether it is still to be read
NOTE = 2  # numbers that announce a message: where it is, and how many bytes are mapped there


@dataclass(eq=False)
class Segment:
    """Shared memory for one message at a time."""

    file: int
    memory: mmap.mmap

    @staticmethod
    def make(size: int) -> Segment:
        file = os.memfd_create("spodgt", os.MFD_CLOEXEC)
        os.ftruncate(file, _HEAD + size)
        return Segment(file, mmap.mmap(file, _HEAD + size))

    @property
    def free(self) -> bool:
        return self.memory[0] == 0

    def mark(self, *, full: bool) -> None:
        self.memory[0] = int(full)

    def view(self, like: Tensor) -> Tensor:
        flat = torch.frombuffer(self.memory, dtype=like.dtype, count=like.numel(), offset=_HEAD)
        return flat.view(like.shape)


@dataclass(eq=False)
class Shared:
    """This process's memory for others, and theirs for it."""

    rank: int
    pids: list[int]
    readable: list[list[bool]]  # [receiver][sender]
    own: dict[int, list[Segment]] = field(default_factory=dict)  # receiver → segments
    others: dict[tuple[int, int], Segment] = field(default_factory=dict)  # (sender, file) → segment

    def fits(self, sender: int, receiver: int, message: Tensor) -> bool:
        """Whether such a message goes this way; both ends find the same."""
        size = message.numel() * message.element_size()
        return self.readable[receiver][sender] and size >= LEAST and message.device.type == "cpu"

    def put(self, receiver: int, message: Tensor) -> Tensor:
        """Write a message; returns the note that announces it."""
        size = message.numel() * message.element_size()
        segments = self.own.setdefault(receiver, [])
        fitting = (s for s in segments if s.free and len(s.memory) >= _HEAD + size)
        segment = next(fitting, None)
        if segment is None:
            segment = Segment.make(1 << (size - 1).bit_length())  # powers of two: few sizes ever
            segments.append(segment)
        segment.view(message).copy_(message)
        segment.mark(full=True)
        return torch.tensor([segment.file, len(segment.memory)])

    def take(self, sender: int, note: Tensor, target: Tensor) -> None:
        """Read the message that a note announces."""
        file, size = note.tolist()
        if (sender, file) not in self.others:
            self.others[sender, file] = _open(self.pids[sender], file, size)
        segment = self.others[sender, file]
        target.copy_(segment.view(target))
        segment.mark(full=False)


def meet(store: Any, rank: int, size: int) -> Shared | None:
    """Find out who can read whose memory; None if nobody can."""
    if size == 1 or os.environ.get("SPODGT_SHARED_MEMORY") == "0":
        return None
    token = secrets.token_bytes(16)
    segment = None
    with contextlib.suppress(AttributeError, OSError):  # not Linux, or not allowed
        segment = Segment.make(len(token))
        segment.memory[_HEAD : _HEAD + len(token)] = token
    mine = {"pid": os.getpid(), "file": segment.file if segment else -1, "token": token.hex()}
    store.set(f"spodgt/shared/{rank}", json.dumps(mine))
    theirs = [json.loads(store.get(f"spodgt/shared/{other}")) for other in range(size)]
    reads = [other != rank and _readable(each) for other, each in enumerate(theirs)]
    store.set(f"spodgt/reads/{rank}", json.dumps(reads))
    readable = [json.loads(store.get(f"spodgt/reads/{other}")) for other in range(size)]
    if segment:  # all have tried by now
        segment.memory.close()
        os.close(segment.file)
    known = Shared(rank, [each["pid"] for each in theirs], readable)
    return known if np.any(readable) else None


def _open(pid: int, file: int, size: int) -> Segment:
    opened = os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
    try:
        return Segment(-1, mmap.mmap(opened, size))
    finally:
        os.close(opened)


def _readable(other: dict[str, Any]) -> bool:
    token = bytes.fromhex(other["token"])
    try:
        segment = _open(other["pid"], other["file"], _HEAD + len(token))
    except (OSError, ValueError):
        return False
    with segment.memory:
        return (
            segment.memory[_HEAD:] == token
        )  # the same number may be another process on another host
