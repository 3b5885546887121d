"""The paper's clock: what a round costs.

    τ = mean_i [ v_i/p_i + (1/|N_in(i)|) Σ_j v̂_ij/p̂_ij + (1/|N_out(i)|) Σ_j v̂_ji/p̂_ji ]

A client or link that works with probability p takes 1/p to do its part, so a method that insists on
every link in every round pays 1/p̂ for each. x[k] is available at the sum of the first k rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spodgt.compiled import jit, share
from spodgt.compiled.instructions import total
from spodgt.network import Network
from spodgt.types import Availability, Bools, Floats

_LARGE = 2**18  # numbers from which a sum is made in one pass
_MOST = 1e250  # what waiting for a client that never comes costs: for ever, but sums stay finite


@dataclass(frozen=True, eq=False)
class Costs:
    """What one gradient of each client and one use of each link add to the delay."""

    clients: Floats  # (clients,)
    links: Floats  # (links,)

    def processing(self, computes: Bools) -> Floats:
        """Delay of the gradients of each round; `computes` is (rounds, clients)."""
        return _total(computes, self.clients)

    def transmission(self, links: Bools) -> Floats:
        """Delay of the messages of each round, in and out; `links` is (rounds, links)."""
        return _total(links, self.links)


def _total(which: Bools, each: Floats) -> Floats:
    """(rounds,): the sum of what `which` (rounds, n) says of `each` (n,), as numpy adds it up."""
    if len(each) < _LARGE:
        return np.asarray(np.where(which, each, 0.0).sum(-1))
    half = len(each) // 2 - len(each) // 2 % 8  # where numpy divides it, too
    sums = np.empty((len(which), 2))

    def work(first: int, last: int) -> None:
        for part in range(first, last):
            span = slice(0, half) if part == 0 else slice(half, None)
            for row, out in zip(which.view(np.uint8), sums, strict=True):
                out[part] = _pairwise(row[span], each[span])

    share(2, which.size, work)
    return np.asarray(sums[:, 0] + sums[:, 1])


@jit
def _pairwise(which, each):  # type: ignore[no-untyped-def]
    """Σ each[n] where which[n] is 1 and not 0, halves first: in the order in which numpy adds a row."""
    begins, sizes = np.zeros(64, np.int64), np.zeros(64, np.int64)  # of the halves under way
    found, half = np.zeros(64), np.zeros(64, np.bool_)
    top = 0
    sizes[0] = len(which)
    while True:
        begin, size = begins[top], sizes[top]
        if size > 128:
            half[top] = False
            top += 1
            begins[top], sizes[top] = begin, size // 2 - size // 2 % 8
            continue
        whole, end = begin + (size >> 3 << 3), begin + size
        so_far = total(which, each, begin, whole)
        for n in range(whole, end):
            so_far += each[n] * which[n]
        top -= 1
        while top >= 0 and half[top]:
            so_far += found[top]
            top -= 1
        if top < 0:
            return so_far
        found[top], half[top] = so_far, True
        first = sizes[top] // 2 - sizes[top] // 2 % 8
        begins[top + 1], sizes[top + 1] = begins[top] + first, sizes[top] - first
        top += 1


def costs(network: Network, availability: Availability) -> Costs:
    """What gradients and links cost on a network."""
    # Each link is an in-link of its receiver and an out-link of its sender: both means are charged.
    weight = 1.0 / network.in_degree[network.receivers] + 1.0 / network.out_degree[network.senders]
    return Costs(
        np.minimum(1.0 / (network.clients * availability.p), _MOST),
        np.minimum(weight / (network.clients * availability.p_hat), _MOST),
    )
