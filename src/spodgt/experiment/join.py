"""Matches the clients of a network with those of a problem, by name or by position."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from spodgt.errors import InvalidInput
from spodgt.network import Network
from spodgt.network.names import describe_difference
from spodgt.problems.protocols import HasClientNames
from spodgt.types import Problem


def client_names(problem: Problem) -> tuple[str, ...] | None:
    """The names of a problem's clients; None if they have numbers only."""
    return problem.client_names if isinstance(problem, HasClientNames) else None


def join_clients(network: Network, problem: Problem) -> tuple[Network, Problem]:
    """The network and the problem with the same clients, in the order of the network.

    Clients are matched by name if both have names. Otherwise client i of the network is client i of
    the problem, and both get the names of one of them.

    Raises:
        InvalidInput: if they have different clients.
    """
    names = client_names(problem)
    if names is None or network.names is None:
        if problem.clients != network.clients:
            raise InvalidInput(
                f"problem has {problem.clients} clients, but the network has {network.clients}; "
                "use the same number for both."
            )
        if names is not None:
            network = replace(network, names=names)
        return network, problem
    difference = describe_difference("the network", network.names, "the data", names)
    if difference:
        raise InvalidInput(
            f"clients must have the same names in network and data, but {difference}; rename them, "
            "or give clients as a list, which is joined by position."
        )
    assert isinstance(problem, HasClientNames)
    order = np.array([names.index(name) for name in network.names])
    return network, problem.reordered(order)
