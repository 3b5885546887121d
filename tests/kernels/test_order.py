"""Orders of clients: links grouped by their ends, and neighbours that stand together."""

from itertools import pairwise

import numpy as np
import pytest

import spodgt
from spodgt.kernels.order import BLOCK, WINDOW, first_uses, grouped, near_order


def test_links_are_grouped_in_their_order() -> None:
    ends = np.random.default_rng(0).integers(0, 7, 100)
    pointers, links = grouped(ends, 8)  # the last client has none
    assert np.array_equal(links, np.argsort(ends, kind="stable"))
    assert np.array_equal(np.diff(pointers), np.bincount(ends, minlength=8))


def test_a_network_in_a_plane_is_ordered_and_others_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("spodgt.kernels.order._NEAR", 100)
    plane = spodgt.Network.random_geometric(2000, 0.06, seed=1)
    order = near_order(plane.clients, plane.receivers, plane.senders)
    assert order is not None
    assert np.array_equal(np.sort(order), np.arange(2000))
    for net in (spodgt.Network.k_regular(2000, 8, seed=1), spodgt.Network.ring(2000)):
        assert near_order(net.clients, net.receivers, net.senders) is None


def test_every_row_is_fetched_before_its_first_use_and_not_again_soon() -> None:
    net = spodgt.Network.random_geometric(500, 0.1, seed=1)
    begins, rows = first_uses(net.receivers, net.senders, 500)
    blocks = [set(rows[low:high].tolist()) for low, high in pairwise(begins[:-1].tolist())]
    assert len(blocks) == -(-500 // BLOCK)
    assert sum(map(len, blocks)) == len(rows)
    read: list[set[int]] = []
    for block, fetched in enumerate(blocks):
        read.append(set(net.senders[net.receivers // BLOCK == block].tolist()))
        assert fetched == read[block] - set().union(*read[max(0, block - WINDOW) : block])
