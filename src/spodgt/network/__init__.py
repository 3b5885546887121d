"""Who can talk: graph recipes, networks with their mixing weights."""

from spodgt.network.network import DENSE_LIMIT, WEIGHTS, Network, as_network

__all__ = ["DENSE_LIMIT", "WEIGHTS", "Network", "as_network"]
