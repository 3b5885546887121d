"""Mixing of stacked models over the active links: compiled, and the same with torch's own products."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spodgt.compiled import aligned, jit, jit_part, share, usable
from spodgt.compiled.code import SPAN
from spodgt.compiled.instructions import blend, blend_rest, fetch, room, tally
from spodgt.kernels.order import BLOCK, first_uses, grouped, nearness
from spodgt.types import Array, Bools, Floats, Ints

COLUMNS = 512  # of a block that is mixed in place: with ten clients it stays in the first-level cache
_NUMBERS = 2**16  # of a block mixed from one state into another: both stay in the second-level cache
_FEW = 4096  # rows whose blocks of columns fit the second-level cache together
_DENSE = 64  # clients of a run up to which a dense matrix is faster
LINE = 16  # numbers of a row that come together
FAR = 8  # clients whose rows are fetched ahead
SCATTERED = 2**22  # numbers of a state with short rows that leaves the caches
_LARGE = 2**18  # numbers of a state from which its memory is used again
NOTHING: Floats = np.empty(0)


def roomy(x: Tensor) -> Tensor:
    """Memory for another `x`, in large pages where it is large: numpy asks for them, torch does not."""
    if not usable(x) or x.numel() < _LARGE:
        return torch.empty_like(x)
    return torch.from_numpy(aligned(tuple(x.shape), x.new_empty(0).numpy().dtype))


class Buffers:
    """Memory for mixed states, owned by a world: fresh pages cost more than the mixing itself.

    A step takes buffers with `like`; `reclaim(state)` before the next step frees all that `state` does not
    lie in. A step may therefore keep what it mixed in the state it returns, and nowhere else.
    """

    def __init__(self) -> None:
        self._all: list[Tensor] = []
        self._free: list[Tensor] = []

    def like(self, x: Tensor) -> Tensor:
        """A tensor of the shape and type of `x`, with any numbers in it."""
        if x.numel() < _LARGE:
            return torch.empty_like(x)
        for number, free in enumerate(self._free):
            if free.shape == x.shape and free.dtype == x.dtype:
                return self._free.pop(number)
        self._all.append(roomy(x))
        return self._all[-1]

    def reclaim(self, state: tuple[Tensor, ...]) -> None:
        """Free what holds no part of `state`; buffers of another shape than x are given up."""
        held = {tensor.untyped_storage().data_ptr() for tensor in state}
        self._all = [b for b in self._all if b.shape == state[0].shape and b.dtype == state[0].dtype]
        self._free = [b for b in self._all if b.untyped_storage().data_ptr() not in held]


@jit_part
def fetch_row(x, i):  # type: ignore[no-untyped-def]
    """Have row i of x fetched."""
    row = x[i]
    for c in range(0, len(row), LINE):
        fetch(row, c, 0, 0)


@jit_part
def ahead(states, links, uses, i, end):  # type: ignore[no-untyped-def]
    """Have rows of some states fetched that clients soon after i, before `end`, read.

    Those of the next block, or of a few.
    """
    (pointers, senders, _, active), (begins, rows) = links, uses
    if len(rows):
        block = min(i // BLOCK + 1, len(begins) - 3)
        low, size, part = begins[block], begins[block + 1] - begins[block], i % BLOCK
        for n in range(low + size * part // BLOCK, low + size * (part + 1) // BLOCK):
            for x in states:
                fetch_row(x, rows[n])
    elif i % FAR == 0:
        for link in range(pointers[min(i + FAR, end)], pointers[min(i + 2 * FAR, end)]):
            if active[link]:
                for x in states:
                    fetch_row(x, senders[link])


@jit
def combine(x, out, links, kept, bases, lefts, size, low, high):  # type: ignore[no-untyped-def]
    """out_i ← kept_i x_i + Σ w_ij x_j over active links, for clients low to high.

    `links` is (pointers, senders, weights, active). Client i is row i - bases[0] of x and row i - bases[1] of
    `out`; `size` columns are mixed, from lefts[0] on in x and from lefts[1] on in `out`.
    """
    pointers, senders, weights, active = links
    (base, to_base), (left, to_left) = bases, lefts
    for i in range(low, high):
        place, some = (i - base, left, i - to_base, to_left), (pointers[i], pointers[i + 1], base)
        blend_row(x, out, place, kept[i], False, (senders, weights, active), some, size)


@jit_part
def blend_row(x, out, place, own, rests, links, some, size):  # type: ignore[no-untyped-def]
    """A row of `out` ← own × a row of x + Σ over active links in `size` columns, by `blend` or `blend_rest`.

    `place` is the row and the first column in x, and those in `out`; `some` are the first link, the last, and
    the client of row 0.
    """
    row, left, to_row, to_left = place
    # Not by division, and not a range with a step, whose length is one: that is slow for every row.
    (most, least), done = (SPAN >> 2, 8) if x.itemsize == 4 else (SPAN >> 3, 4), left - left
    while done < size:
        c, count = done, min(most, size - done)
        if count < least <= size:
            c, count = size - least, least  # some columns twice: cheaper than one by one
        start, to, at = (x, row, left + c), (out, to_row, to_left + c), left + c
        if rests:
            blend_rest(start, own, to, x, links, some, at, count)
        else:
            blend(start, own, to, x, links, some, at, count)
        done += most


class Slim(NamedTuple):
    """The links of very many clients with short rows and a weight for each, in as few bytes as they take."""

    pointers: Array  # (clients + 1,) where the links of each receiver begin
    senders: NDArray[np.int32]  # (links,)
    weights: Array  # (links,) in the precision of the state
    out_pointers: Array  # (clients + 1,) where the links of each sender begin in the next two
    out_links: NDArray[np.uint32]  # (links,) by sender, then by receiver; none where receivers keep
    out_weights: Array  # (links,) of these, or (clients,) where all of a sender weigh the same
    alike: bool  # which of the two; only of floats, whose sums in double precision are exact

    @classmethod
    def of(cls, links: Links, weights: Array, *, sent: bool) -> Slim:
        """`sent`: senders keep what is not sent, not receivers."""
        if not sent:
            nobody = links.pointers[:0], np.empty(0, np.uint32), weights[:0]
            return cls(links.pointers, links.narrow, weights, *nobody, False)
        (pointers, order), own = links.outgoing, np.zeros(links.clients, weights.dtype)
        own[links.senders] = weights
        alike = weights.itemsize == 4 and bool((own[links.senders] == weights).all())
        out = order.astype(np.uint32)
        return cls(
            links.pointers, links.narrow, weights, pointers, out, own if alike else weights[order], alike
        )


@jit
def kept_by_senders(slim, active, kept, low, high):  # type: ignore[no-untyped-def]
    """kept[n] ← what the n-th client from `low` to before `high` does not send.

    `active` are zeros and ones: numba makes a branch of a bool in a product, which nobody can foresee. It
    asks of signed indices whether they count from the end. Weights that are alike are counted.
    """
    _, _, _, pointers, links, weights, alike = slim
    for i in range(low, high):
        gone = 0.0
        if alike:
            gone = weights[i] * np.float64(tally(active, links, pointers[i], pointers[i + 1]))
        else:
            for link in range(pointers[i], pointers[i + 1]):
                n = np.uint64(link)
                gone += weights[n] * active[links[n]]
        kept[i - low] = 1.0 - gone


@jit_part
def mix_row(x, out, slim, active, own, rests, i, to):  # type: ignore[no-untyped-def]
    """Row `to` of `out` ← row i of the mixing; clients keep `own`, or what links leave of it if `rests`."""
    pointers, senders, weights, _, _, _, _ = slim
    place, some = (i, i - i, to, i - i), (pointers[i], pointers[i + 1], i - i)
    blend_row(x, out, place, own, rests, (senders, weights, active), some, x.shape[1])


@jit
def _mix_received(x, out, slim, active, uses, first, last):  # type: ignore[no-untyped-def]
    links = slim[0], slim[1], slim[2], active
    for i in range(first, last):
        ahead((x,), links, uses, i, last)
        mix_row(x, out, slim, active, 1.0, True, i, i)


@jit
def _mix_sent(x, out, slim, active, known, uses, first, last):  # type: ignore[no-untyped-def]
    links, kept = (slim[0], slim[1], slim[2], active), room(known)
    for low in range(first, last, BLOCK):
        high = min(low + BLOCK, last)
        if len(known):
            for i in range(low, high):
                kept[i - low] = known[i]
        else:
            kept_by_senders(slim, active, kept, low, high)
        for i in range(low, high):
            ahead((x,), links, uses, i, last)
            mix_row(x, out, slim, active, kept[i - low], False, i, i)


def ones_of(active: Bools) -> Array:
    """Zeros and ones side by side, as loops read them."""
    return np.ascontiguousarray(active).view(np.uint8)


def mix_rows(
    x: Tensor, out: Tensor, links: Links, slim: Slim, active: Array, known: Floats = NOTHING
) -> Tensor:
    """The same as `mix` for more clients than a cache holds; what they keep is found on the way, or known."""
    given = x.numpy(), out.numpy(), tuple(slim), ones_of(active)
    if len(slim.out_links):
        share(len(x), x.numel(), lambda *part: _mix_sent(*given, known, links.uses, *part))
    else:
        share(len(x), x.numel(), lambda *part: _mix_received(*given, links.uses, *part))
    return out


def mix(x: Tensor, out: Tensor, links: Links, weights: Array, active: Array, kept: Array) -> Tensor:
    """out_i = kept_i x_i + Σ over active links j → i of w_ij x_j."""
    rows, width = x.shape
    how = links.pointers, links.senders, weights, ones_of(active)
    given = x.numpy(), out.numpy(), how, kept, (0, 0)
    columns = max(COLUMNS, _NUMBERS // max(1, rows))

    def by_columns(first: int, last: int) -> None:  # few long rows: neighbours are read once from memory
        for left in range(first * columns, min(width, last * columns), columns):
            combine(*given, (left, left), min(width - left, columns), 0, rows)

    if width > 2 * columns and rows <= _FEW:
        share(-(-width // columns), x.numel(), by_columns)
    else:
        share(rows, x.numel(), lambda first, last: combine(*given, (0, 0), width, first, last))
    return out


@jit
def _stays(pointers, links, weights, active, out, first, last):  # type: ignore[no-untyped-def]
    """Of clients first to last, whose links are `links`, or those between their pointers.

    `active` are zeros and ones: numba makes a branch of a bool in a product, which nobody can foresee.
    """
    for i in range(first, last):
        gone = 0.0
        for n in range(pointers[i], pointers[i + 1]):
            link = links[n] if len(links) else n
            gone += weights[link] * active[link]
        out[i] = 1.0 - gone


@dataclass(frozen=True, eq=False)
class Links:
    """The links of a batch of runs as one disjoint union."""

    runs: int  # equal blocks of clients; one where runs differ in size
    clients: int  # of all runs together
    receivers: Ints
    senders: Ints
    places: Ints | None = None  # (links,) of the links in the order of clients, their places here
    _laid: dict[tuple[int, str, bool], tuple[Array, Slim, Floats]] = field(default_factory=dict)

    @cached_property
    def pointers(self) -> Ints:
        """Where each receiver's links begin: links are sorted by receiver."""
        counts = np.bincount(self.receivers, minlength=self.clients)
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    @cached_property
    def narrow(self) -> NDArray[np.int32]:
        """The senders in half as many bytes."""
        return self.senders.astype(np.int32)

    @cached_property
    def uses(self) -> tuple[Ints, NDArray[np.int32]]:
        """The rows to fetch for each block of clients; none where most neighbours stand far apart."""
        if nearness(self.receivers, self.senders) < 0.5:
            return np.zeros(1, np.int64), np.empty(0, np.int32)
        return first_uses(self.receivers, self.senders, self.clients)

    @cached_property
    def outgoing(self) -> tuple[Ints, Ints]:
        """Where each sender's links begin, and which they are, in the order of receiving clients."""
        if self.places is None:
            return grouped(self.senders, self.clients)
        pointers, links = grouped(self.senders[self.places], self.clients)
        return pointers, self.places[links]

    @property
    def dense(self) -> bool:
        """Runs of equal size lie in equal blocks, so one batched product mixes them all."""
        return self.clients % self.runs == 0 and self.clients // self.runs <= _DENSE

    def mix(
        self,
        x: Tensor,
        weights: Floats,
        active: Bools,
        *,
        keeper: Ints,
        out: Tensor | None = None,
        lasting: bool = False,
    ) -> Tensor:
        """Send along the `active` links; `keeper` is the end of each link that keeps what is not sent.

        `lasting`: the same array of weights comes in every round, so it is worth while to lay it out.
        """
        if not usable(x):
            moved = np.where(active, weights, 0.0)
            return self.plain(x, moved, active, self.stays(weights, active, keeper))
        out, kind = torch.empty_like(x) if out is None else out, x.new_empty(0).numpy().dtype
        if lasting and x.numel() >= SCATTERED and x.shape[1] <= COLUMNS:
            slim, kept = self._laid_out(weights, kind, keeper)
            return mix_rows(x, out, self, slim, active, kept if len(kept) and active.all() else NOTHING)
        weights = weights.astype(kind, copy=False)  # what is kept is the rest of what really goes
        return mix(x, out, self, weights, active, self.stays(weights, active, keeper))

    def _laid_out(self, weights: Array, kind: np.dtype[np.generic], keeper: Ints) -> tuple[Slim, Floats]:
        """The links with these weights, and what senders keep where all are active."""
        sent = keeper is self.senders
        key = id(weights), kind.str, sent
        if key not in self._laid:
            numbers = weights.astype(kind, copy=False)
            kept = self.stays(numbers, np.ones(len(numbers), bool), keeper) if sent else NOTHING
            self._laid[key] = weights, Slim.of(self, numbers, sent=sent), kept
        return self._laid[key][1:]

    def stays(self, weights: Floats, active: Bools, keeper: Ints) -> Floats:
        """(clients,): one minus what goes along the active links, of the ends that keep the rest."""
        known = keeper is self.receivers or keeper is self.senders
        if not known or (self.places is None and len(weights) < _LARGE):
            moved = np.where(active, weights, 0.0)
            return np.subtract(1.0, np.bincount(keeper, moved, minlength=self.clients), dtype=np.float64)
        ends = self.outgoing if keeper is self.senders else (self.pointers, np.empty(0, np.int64))
        out, ones = np.empty(self.clients), ones_of(active)
        share(self.clients, len(weights), lambda *part: _stays(*ends, weights, ones, out, *part))
        return out

    def plain(self, x: Tensor, moved: Floats, active: Bools, kept: Floats) -> Tensor:
        """The same with torch's own products, on any device."""
        if self.dense:
            m = self.clients // self.runs
            matrix = np.zeros((self.clients, m))
            matrix[self.receivers, self.senders % m] = moved
            matrix[np.arange(self.clients), np.arange(self.clients) % m] = kept
            blocks = torch.from_numpy(matrix).to(x).view(self.runs, m, m)
            return torch.bmm(blocks, x.view(self.runs, m, -1)).view_as(x)
        on = np.flatnonzero(active)
        # Links are sorted by receiver; putting the diagonal first in each row keeps that order.
        rows = np.concatenate([np.arange(self.clients), self.receivers[on]])
        order = np.argsort(rows, kind="stable")
        columns = np.concatenate([np.arange(self.clients), self.senders[on]])[order]
        values = np.concatenate([kept, moved[on]])[order]
        pointers = np.r_[0, np.cumsum(np.bincount(rows, minlength=self.clients))]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch calls its CSR support a beta
            sparse = torch.sparse_csr_tensor(
                torch.from_numpy(pointers).to(x.device),
                torch.from_numpy(columns).to(x.device),
                torch.from_numpy(values).to(x),
                (self.clients, self.clients),
            )
            mixed: Tensor = sparse @ x
            return mixed


@jit
def _add(out, source, to, rows, weights, first, last):  # type: ignore[no-untyped-def]
    """Blocks first to last of columns of `add_rows`."""
    width = out.shape[1]
    for block in range(first, last):
        left, right = block * 2048, min((block + 1) * 2048, width)
        for n in range(len(to)):
            weight, into, row = (
                out.dtype.type(weights[n]),
                out[to[n], left:right],
                source[rows[n], left:right],
            )
            for c in range(len(into)):
                into[c] += weight * row[c]


def add_rows(out: Tensor, source: Tensor, to: Ints, rows: Ints, weights: Floats) -> None:
    """In place: out[to] += weights · source[rows], one after the other."""
    if not len(to):
        return
    if usable(out, source):
        views = out.numpy(), source.numpy(), to, rows, weights
        blocks, numbers = -(-out.shape[1] // 2048), len(to) * out.shape[1]
        share(blocks, numbers, lambda first, last: _add(*views, first, last))
    else:
        values = source[torch.from_numpy(rows).to(out.device)]
        values = values * torch.from_numpy(weights).to(values)[:, None]
        out.index_add_(0, torch.from_numpy(to).to(out.device), values)


@jit
def _lean(x, out, middle, half, receivers, senders, weights, first, last):  # type: ignore[no-untyped-def]
    for link in range(len(receivers)):
        i, j, w = receivers[link], senders[link], x.dtype.type(weights[link])
        for c in range(first, last):
            off, h = middle[j, c] - x[i, c], half[j, c]
            if off > h:
                out[i, c] += w * (off - h)
            elif off < -h:
                out[i, c] += w * (off + h)


def lean(x: Tensor, middle: Tensor, half: Tensor, receivers: Ints, senders: Ints, weights: Floats) -> Tensor:
    """Every receiver's row of x moved towards the intervals that its senders say, by the weights of links.

    Args:
        x: (rows, columns).
        middle, half: (senders, columns) the intervals.
        receivers: (links,) rows of x.
        senders: (links,) rows of the intervals.
        weights: (links,) which part of the way a receiver goes.
    """
    out = x.clone()
    if usable(x, middle, half):
        given = x.numpy(), out.numpy(), middle.numpy(), half.numpy(), receivers, senders, weights
        share(x.shape[1], x.numel(), lambda first, last: _lean(*given, first, last))
        return out
    into, by = torch.from_numpy(receivers).to(x.device), torch.from_numpy(weights).to(x)[:, None]
    said = torch.from_numpy(senders).to(x.device)
    off = middle[said] - x[into]
    return out.index_add_(0, into, by * off.sign() * (off.abs() - half[said]).clamp(min=0))
