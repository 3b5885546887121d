"""Who can talk: graph recipes, networks with their mixing weights, graph files."""

from spodgt.network.files import GraphFile
from spodgt.network.graph import Named
from spodgt.network.graphs import RECIPES, Recipe
from spodgt.network.mixing_weights import WEIGHTS
from spodgt.network.network import DENSE_LIMIT, Network, as_network, check_network

NETWORKS: dict[str, type[Recipe]] = {
    **RECIPES,
    GraphFile.name: GraphFile,
}  # all kinds a config knows

__all__ = [
    "DENSE_LIMIT",
    "NETWORKS",
    "WEIGHTS",
    "GraphFile",
    "Named",
    "Network",
    "Recipe",
    "as_network",
    "check_network",
]
