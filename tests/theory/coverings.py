"""A covering of a graph by shortest paths that uses no link more than it must."""

from __future__ import annotations

import numpy as np

from spodgt.network import Network
from spodgt.theory import distances
from spodgt.types import Ints


def greedy_covering(network: Network) -> int:
    """Utility of a covering built pair by pair, each on the path that adds least to Σ utility².

    As valid as K(G) in the contraction lemmas, and never larger.
    """
    m, d = network.clients, distances(network)
    if m == 1:
        return 0
    successors: list[list[int]] = [[] for _ in range(m)]
    for u, v in zip(network.senders.tolist(), network.receivers.tolist(), strict=True):
        successors[u].append(v)
    use = np.zeros((m, m), dtype=np.int64)
    paths: dict[tuple[int, int], list[tuple[int, int]]] = {}
    pairs = [(int(s), int(t)) for s, t in np.argwhere(d > 0)]
    pairs.sort(key=lambda pair: d[pair])  # short paths have the least choice
    best = -1
    for _ in range(5):  # then reroute while it helps
        for s, t in pairs:
            for link in paths.get((s, t), ()):
                use[link] -= 1
            paths[s, t] = _cheapest_path(d, successors, use, s, t)
            for link in paths[s, t]:
                use[link] += 1
        if best in (int(use.max()), 1):
            break
        best = int(use.max()) if best < 0 else min(best, int(use.max()))
    return best


def _cheapest_path(
    d: Ints, successors: list[list[int]], use: Ints, s: int, t: int
) -> list[tuple[int, int]]:
    """Among the shortest paths from s to t, the one whose links are used least."""
    cost, before = {s: 0}, {s: s}
    layer = [s]
    for left in range(int(d[s, t]) - 1, -1, -1):
        following: list[int] = []
        for u in layer:
            for v in successors[u]:
                if d[v, t] != left:
                    continue
                through_u = cost[u] + 2 * int(use[u, v]) + 1
                if v not in cost:
                    following.append(v)
                if v not in cost or through_u < cost[v]:
                    cost[v], before[v] = through_u, u
        layer = following
    path, v = [], t
    while v != s:
        path.append((before[v], v))
        v = before[v]
    return path
