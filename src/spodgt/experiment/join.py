"""Where the clients of a network and those of a problem become the same clients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from spodgt.errors import InvalidInput
from spodgt.network import Network
from spodgt.network.names import describe_difference
from spodgt.problems.protocols import HasClientNames
from spodgt.types import Problem


def client_names(problem: Problem) -> tuple[str, ...] | None:
    """The names of a problem's clients; None where they are numbered."""
    return problem.client_names if isinstance(problem, HasClientNames) else None


def join_clients(network: Network, problem: Problem) -> tuple[Network, Problem]:
    """The network and the problem with the same clients in the same order: that of the network.

    Clients are joined by name where both have names. Otherwise client i of the one is client i of the
    other, and both get the names that there are.
    """
    names = client_names(problem)
    if names is None or network.names is None:
        if problem.clients != network.clients:
            raise InvalidInput(
                f"problem has {problem.clients} clients, but the network has {network.clients}; "
                "use the same number for both."
            )
        return (network if names is None else replace(network, names=names)), problem
    difference = describe_difference("the network", network.names, "the data", names)
    if difference:
        raise InvalidInput(
            f"clients must have the same names in network and data, but {difference}; rename them, or give "
            "clients as a list, which is joined by position."
        )
    assert isinstance(problem, HasClientNames)
    order = np.array([names.index(name) for name in network.names])
    return network, problem.reordered(order)
