"""Random worlds for the property tests: digraphs, weights, participations, quadratics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

import spodgt
from spodgt.algorithms import ALGORITHMS, method
from spodgt.network import Network
from spodgt.network.graphs import Graph
from spodgt.participation import as_availability
from spodgt.problems import Quadratic
from spodgt.runtimes.world import Run

SEEDS = st.integers(0, 2**32 - 1)
METHODS = (*(name for name, cls in ALGORITHMS.items() if cls.traits.rule is not None), "k-gt")


@st.composite
def networks(draw: st.DrawFn, least: int = 1, most: int = 6) -> Network:
    """A random strongly connected digraph with weights by degree, random or given."""
    clients, seed = draw(st.integers(least, most)), draw(SEEDS)
    rng = np.random.default_rng(seed)
    adjacency = rng.random((clients, clients)) < draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    cycle = rng.permutation(clients)
    adjacency[np.roll(cycle, -1), cycle] = True
    np.fill_diagonal(adjacency, False)
    weights = draw(st.sampled_from(["degree", "random", "given"]))
    if weights != "given":
        return Network.from_adjacency(adjacency, weights=weights, seed=seed)
    pattern = adjacency | np.eye(clients, dtype=bool)
    A, B = (rng.uniform(0.01, 1, (2, clients, clients)) * pattern).copy()
    return Network.from_adjacency(adjacency, A / A.sum(1, keepdims=True), B / B.sum(0))


@st.composite
def bursts(draw: st.DrawFn, network: Network) -> Any:
    """Any participation that has a memory or fixed times."""
    rounds, chance = st.floats(1, 30), st.floats(0.05, 1)
    groups = draw(st.lists(st.integers(0, 2), min_size=network.clients, max_size=network.clients))
    match draw(st.sampled_from(["markov", "bursts", "links", "day-night", "outages", "together"])):
        case "markov":
            return spodgt.Markov(*(draw(rounds) for _ in range(4)))
        case "bursts":
            return spodgt.Bursts(spodgt.Beta(floor=0.05), draw(rounds))
        case "links":
            chances = (draw(chance) for _ in range(3))
            return spodgt.GilbertElliott(draw(rounds), draw(rounds), *chances)
        case "day-night":
            whole = st.integers(1, 9)
            return spodgt.DayNight(
                draw(whole), draw(whole), draw(chance), draw(chance), draw(chance), draw(chance)
            )
        case "outages":
            return spodgt.Outages(
                draw(rounds), draw(rounds), groups=groups, p=draw(chance), p_hat=draw(chance)
            )
    return spodgt.Intersection(
        [spodgt.Markov(draw(rounds)), spodgt.Outages(draw(rounds), groups=groups)]
    )


@st.composite
def participations(draw: st.DrawFn, network: Network, rounds: int = 12) -> Any:
    """Any participation that fits the network; a trace lasts `rounds`."""
    m, rng = network.clients, np.random.default_rng(draw(SEEDS))
    kinds = ["always", "number", "each", "beta", "every-k", "bursts", "trace"] + ["one-link"] * (
        network.links > 0
    )
    match draw(st.sampled_from(kinds)):
        case "always":
            return spodgt.Always()
        case "number":
            return spodgt.Bernoulli(draw(st.floats(0.05, 1)), draw(st.floats(0.05, 1)))
        case "each":
            return spodgt.Bernoulli(rng.uniform(0.05, 1, m), rng.uniform(0.05, 1, network.links))
        case "beta":
            return spodgt.Beta(0.5, 0.5, floor=0.05)
        case "every-k":
            return spodgt.EveryK(draw(st.integers(1, 4)))
        case "bursts":
            return draw(bursts(network))
        case "one-link":
            return spodgt.OneLink(pairs=draw(st.booleans()))
    links = (rng.random((rounds, m, m)) < 0.5) & network.adjacency
    computes = rng.random((rounds + 1, m)) < 0.5
    return spodgt.Trace(
        computes, links, p=rng.uniform(0.1, 1, m), p_hat=rng.uniform(0.1, 1, (m, m))
    )


@st.composite
def worlds(
    draw: st.DrawFn, least: int = 1, most: int = 6, rounds: int = 12
) -> tuple[Any, Any, Any, int]:
    """(problem, network, participation, seed)."""
    network = draw(networks(least, most))
    seed = draw(st.integers(0, 10**6))
    problem = Quadratic.random(network.clients, draw(st.integers(1, 3)), seed=seed)
    return problem, network, draw(participations(network, rounds)), seed


def as_run(
    network: Network, participation: Any, problem: Any, seed: int = 0, name: str = "spod-gt"
) -> Run:
    """One run as `train` makes it."""
    availability = as_availability(participation, network, seed)
    fitted = method(name).fit(availability)
    return Run(
        seed,
        fitted,
        network,
        fitted.adapt_availability(availability, network),
        problem,
        problem.start(seed).double(),
    )


def graph(clients: int, links: Sequence[tuple[int, int]]) -> Network:
    """From (sender, receiver) pairs."""
    return Network.from_graph(Graph.of(clients, [i for _, i in links], [j for j, _ in links]))
