"""Blocks of local steps: a client sends messages only at the end of a block of its rounds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from spodgt import rng
from spodgt.errors import InvalidInput
from spodgt.network import Network
from spodgt.participation.availability import AvailabilityWrapper
from spodgt.types import ActiveLinks, Availability, Bools, Ints

BlockLengths = int | str | tuple[int, ...]
"""Rounds in a block: a number for all clients, a range such as "1-20" from which every client draws
the length of each of its blocks, or one number per client."""

MAX_LENGTH = 2**53  # larger integers are not exact as float64
_RANGE = re.compile(r"\s*(\d+)\s*-\s*(\d+)\s*")


def check_block_lengths(value: object, name: str) -> BlockLengths:
    """Check and convert block lengths; `name` is the argument and its owner, for errors."""
    if isinstance(value, str):
        match = _RANGE.fullmatch(value)
        if match is not None and 1 <= int(match[1]) <= int(match[2]):
            return f"{int(match[1])}-{int(match[2])}"
    elif isinstance(value, Sequence | np.ndarray | Tensor) and len(value) > 0:
        numbers = torch.as_tensor(value).flatten().tolist()  # (clients, 1) in a batch of runs
        if all(_is_length(number) for number in numbers):
            return tuple(numbers)
    elif _is_length(value):
        return int(value)  # type: ignore[call-overload, no-any-return]
    raise InvalidInput(
        f'{name} must be a whole number above 0, a list with one per client, or a range "1-20", '
        f"got {value!r}; use local_steps=5."
    )


def _is_length(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return False
    return 1 <= int(value) <= MAX_LENGTH


@dataclass(frozen=True, eq=False)
class LocalBlocks(AvailabilityWrapper):
    """Links are active only in rounds in which a block of their sender ends.

    A block is counted in rounds, with and without a gradient. Lengths are uniform in
    shortest, …, longest, one draw for each client and block, a pure function of the seed.

    Args:
        base: The wrapped availability.
        senders: (links,) the sender of each link.
        shortest: (clients,) least length of a block.
        longest: (clients,) greatest length of a block.
    """

    senders: Ints
    shortest: Ints
    longest: Ints
    # a cache, which a frozen dataclass cannot replace: empty, or the longest table drawn so far
    tables: list[Bools] = field(default_factory=list, repr=False)

    @property
    def idle_links(self) -> bool:
        return bool((self.longest > 1).any()) or self.base.idle_links

    def links(self, rounds: range) -> ActiveLinks:
        """(rounds, links) mask of active links."""
        links = self.base.links(rounds)
        is_end = self.block_ends(rounds)[:, self.senders]
        push = None if links.push is None else links.push & is_end
        return ActiveLinks(links.pull & is_end, push)

    def block_ends(self, rounds: range) -> Bools:
        """(rounds, clients) mask of clients with a block that ends in this round."""
        if (self.shortest == self.longest).all():
            k = np.asarray(rounds)[:, None]
            return np.asarray((k > 0) & (k % self.shortest == 0))
        if not self.tables or len(self.tables[0]) < rounds.stop:
            self.tables[:] = [self._draw(max(1024, 2 * rounds.stop))]
        return self.tables[0][rounds.start : rounds.stop]

    def _draw(self, count: int) -> Bools:
        """(count, clients) block ends of rounds 0, …, count - 1."""
        clients = np.arange(len(self.shortest))
        blocks = np.arange(count // int(self.shortest.min()) + 1)[:, None]
        draw = rng.uniform(rng.key(self.seed, "blocks"), blocks, clients)
        spread = self.longest - self.shortest + 1
        lengths = self.shortest + (draw * spread).astype(np.int64)
        ends = np.cumsum(lengths, 0)  # the round in which each block ends
        block, client = np.nonzero(ends < count)
        is_end = np.zeros((count, len(clients)), bool)
        is_end[ends[block, client], client] = True
        return is_end


def with_local_blocks(
    availability: Availability, network: Network, lengths: BlockLengths, name: str
) -> LocalBlocks:
    """The availability with blocks of local steps.

    Args:
        availability: That of a run.
        network: Its network.
        lengths: Rounds in a block.
        name: The argument and its owner, for errors.

    Raises:
        InvalidInput: The number of lengths is not that of the clients.
    """
    shortest = longest = lengths
    if isinstance(lengths, str):
        shortest, longest = map(int, lengths.split("-"))
    if isinstance(lengths, tuple) and len(lengths) != network.clients:
        raise InvalidInput(
            f"{name} must be one number or {network.clients}, one per client, got {len(lengths)}."
        )
    low = np.broadcast_to(np.array(shortest, np.int64), network.clients)
    high = np.broadcast_to(np.array(longest, np.int64), network.clients)
    return LocalBlocks(availability, network.senders, low, high)


def block_ends(availability: Availability, rounds: range) -> Bools:
    """(rounds, clients) mask of block ends; without `LocalBlocks` every round ends a block."""
    while isinstance(availability, AvailabilityWrapper):
        if isinstance(availability, LocalBlocks):
            return availability.block_ends(rounds)
        availability = availability.base
    return np.ones((len(rounds), len(availability.p)), bool)
